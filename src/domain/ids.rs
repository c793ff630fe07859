//! Keys of rows and tokens of attempts, and the injected source of randomness that makes them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Timestamp;

/// The key of a delivery's row: a UUIDv7 of the gateway's own (never a client's message id) and the place of
/// the target among the message's targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey {
    pub id: Uuid,
    pub target_no: i16,
}

impl fmt::Display for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.id, self.target_no)
    }
}

/// A fencing token: random, 63 bits, unique per attempt. Never a counter in the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token(pub i64);

/// The injected source of randomness: ids, tokens and jitter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Random;

impl Random {
    /// A fresh fencing token.
    pub fn token(&self) -> Token {
        let mut bytes = [0_u8; 8];
        fill(&mut bytes);
        Token(i64::from_le_bytes(bytes) & i64::MAX)
    }

    /// A UUIDv7 (RFC 9562) for this moment.
    pub fn uuid_v7(&self, now: Timestamp) -> Uuid {
        let mut bytes = [0_u8; 10];
        fill(&mut bytes);
        let millis = u64::try_from(now.timestamp_millis()).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid()
    }

    /// A number from 0 (inclusive) to 1 (exclusive).
    pub fn unit(&self) -> f64 {
        let mut bytes = [0_u8; 4];
        fill(&mut bytes);
        f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0)
    }

    /// Full jitter: a uniformly random duration up to `ceiling`.
    pub fn jitter(&self, ceiling: Duration) -> Duration {
        ceiling.mul_f64(self.unit())
    }

    /// `N` random bytes, for secrets.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0_u8; N];
        fill(&mut bytes);
        bytes
    }
}

fn fill(bytes: &mut [u8]) {
    // A machine whose kernel gives no random bytes can make neither ids nor tokens: there is nothing to go on with.
    getrandom::fill(bytes).expect("the operating system's random source answers");
}
