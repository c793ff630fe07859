//! The key of a claim: 128 bits of a SHA-256 over what it is a claim of.

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// What a claim is a claim of. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum ClaimKind {
    /// An HTTP request, by its `Idempotency-Key`.
    Request = 0,
    /// The work that a published message asks for, by its deduplication id.
    Work = 1,
    /// The handling of a message by one handler.
    Handler = 2,
    /// A claim that a consumer took over the claims API.
    Consumer = 3,
    /// A lock of the gateway's own, such as a durability pass's.
    Lock = 4,
}

/// A claim's primary key. Compared as bytes on every engine, so `Abc` and `abc` never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimKey(pub Uuid);

impl ClaimKey {
    /// The key for `id` within the `scope`'s parts. Each part is prefixed by its length, so that no two
    /// different lists of parts make the same bytes.
    pub fn new(kind: ClaimKind, scope: &[&str], id: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update([1_u8, kind as u8]); // the version of this scheme, and the kind
        for part in scope.iter().chain(std::iter::once(&id)) {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let digest = hash.finalize();
        let mut bytes = [0_u8; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(Uuid::from_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_into_each_other() {
        let one = ClaimKey::new(ClaimKind::Work, &["a", "bc"], "d");
        let other = ClaimKey::new(ClaimKind::Work, &["ab", "c"], "d");
        assert_ne!(one, other);
    }

    #[test]
    fn keys_are_compared_as_bytes() {
        let key = |id| ClaimKey::new(ClaimKind::Work, &["t"], id);
        assert_ne!(key("Abc"), key("abc"));
        assert_ne!(key("a"), key("a "));
        assert_ne!(key("\u{e9}"), key("e\u{301}"));
    }
}
