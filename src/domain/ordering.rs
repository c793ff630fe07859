//! The order of messages for one target: one key at a time, many keys side by side.
//!
//! The words are those of the field: a key is what SQS FIFO calls a message group and Service Bus a session.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Keys are spread over this many lanes; whoever looks for the next message of a key holds its lane meanwhile.
pub const LANES: u8 = 64;

/// What is delivered one message after the other: a tenant's messages with one partition key. Those without
/// a partition key are one key as well, so that a target without keys is strictly first in, first out.
/// Compared as bytes on every engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrderKey(pub Uuid);

impl OrderKey {
    /// Less than every key of a message.
    pub const FIRST: Self = Self(Uuid::nil());

    /// The key of a message. Each part is prefixed by its length, so that no two keys make the same bytes.
    pub fn new(tenant: &str, partition_key: Option<&str>) -> Self {
        let mut hash = Sha256::new();
        hash.update([1_u8, u8::from(partition_key.is_some())]); // the version of this scheme, and whether there is one
        for part in std::iter::once(tenant).chain(partition_key) {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let digest = hash.finalize();
        let mut bytes = [0_u8; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(Uuid::from_bytes(bytes))
    }

    /// The lane of the key.
    pub fn lane(self) -> u8 {
        self.0.as_bytes()[0] % LANES
    }
}

/// What a dead letter does to the later messages of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnDeadLetter {
    /// They go on; the dead letter is out of order when it is replayed.
    #[default]
    Continue,
    /// They wait until it is replayed or discarded.
    Block,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_a_key_of_its_own_and_tenants_never_meet() {
        let keys = [
            OrderKey::new("", None),
            OrderKey::new("", Some("")),
            OrderKey::new("", Some("a")),
            OrderKey::new("", Some("A")),
            OrderKey::new("a", None),
            OrderKey::new("a", Some("a")),
            OrderKey::new("aa", Some("")),
        ];
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
        assert_eq!(OrderKey::new("t", Some("k")), OrderKey::new("t", Some("k")));
    }

    #[test]
    fn keys_are_spread_over_all_lanes() {
        let lanes: std::collections::BTreeSet<u8> =
            (0..2_000).map(|n| OrderKey::new("", Some(&format!("key-{n}"))).lane()).collect();
        assert_eq!(lanes, (0..LANES).collect());
    }
}
