//! Claims: the records that an identity is taken.

use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use crate::domain::claim::{ClaimKey, ClaimKind};
use crate::domain::{Timestamp, Token};

/// A claim as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub key: ClaimKey,
    pub kind: ClaimKind,
    /// Readable, for people: the scope's parts joined by spaces.
    pub scope: String,
    pub id: String,
    pub token: Token,
    pub state: ClaimState,
    /// The logical id of the message that holds it, where a message does.
    pub message_id: Option<String>,
    /// The row id of that message.
    pub row_id: Option<Uuid>,
    /// The tenant of that message.
    pub tenant: String,
    pub first_seen_at: Timestamp,
    /// The lease's end while claimed, the window's end once confirmed.
    pub expires_at: Timestamp,
    /// From now, by the database's clock.
    pub expires_in: Duration,
    pub fingerprint: Option<[u8; 32]>,
    pub answer: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    Claimed,
    Confirmed,
}

/// A claim to be taken with a lease.
#[derive(Clone, Debug)]
pub struct NewClaim {
    pub key: ClaimKey,
    pub kind: ClaimKind,
    pub scope: String,
    pub id: String,
    pub tenant: String,
    pub token: Token,
    pub lease: Duration,
    pub message_id: Option<String>,
    pub fingerprint: Option<[u8; 32]>,
}

/// Whether a claim was granted.
#[derive(Clone, Debug)]
pub enum Claimed {
    Granted(Claim),
    /// By whom, still unconfirmed or already confirmed: see its state.
    Held(Claim),
}
