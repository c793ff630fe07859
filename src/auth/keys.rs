//! API keys: long random secrets, of which only a keyed hash is kept.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::Principal;
use super::principal::Via;
use crate::config;
use crate::domain::Random;

/// Every API key of the configuration.
///
/// The secrets are high-entropy, so a fast hash is enough; it is keyed by random bytes of this process, so that
/// what is compared says nothing about the secret. All of them are compared, whichever matches.
pub(super) struct Keys {
    hash_key: [u8; 32],
    secrets: Vec<([u8; 32], u32)>,
    principals: Vec<Principal>,
}

impl Keys {
    pub fn new(auth: &config::Auth) -> Self {
        let hash_key = Random.bytes();
        let mut keys = Self { hash_key, secrets: Vec::new(), principals: Vec::new() };
        for ((name, key), number) in auth.keys.iter().zip(0..) {
            keys.principals.push(Principal {
                name: name.clone(),
                tenant: key.tenant.clone().unwrap_or_default(),
                grants: key.grants.clone(),
                via: Via::Key,
            });
            for secret in &key.secrets {
                keys.secrets.push((keys.hash(secret.expose().as_bytes()), number));
            }
        }
        keys
    }

    pub fn is_empty(&self) -> bool {
        self.principals.is_empty()
    }

    /// Whose secret this is.
    pub fn find(&self, secret: &str) -> Option<&Principal> {
        let presented = self.hash(secret.as_bytes());
        let mut found = u32::MAX;
        for (hash, number) in &self.secrets {
            found.conditional_assign(number, hash.ct_eq(&presented));
        }
        self.principals.get(found as usize)
    }

    fn hash(&self, secret: &[u8]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.hash_key).expect("HMAC takes a key of any length");
        mac.update(secret);
        mac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;
    use crate::config::auth::Key;

    fn keys() -> Keys {
        let key = |secrets: &[&str]| Key {
            secrets: secrets.iter().map(|secret| Secret::new(*secret)).collect(),
            tenant: Some("acme".into()),
            grants: vec!["publish:*".parse().unwrap()],
        };
        let mut auth = config::Auth::default();
        auth.keys.insert("shop".into(), key(&["old-secret", "new-secret"]));
        auth.keys.insert("till".into(), key(&["till-secret"]));
        Keys::new(&auth)
    }

    #[test]
    fn a_secret_is_its_owners() {
        let keys = keys();
        for (secret, name) in [("old-secret", "shop"), ("new-secret", "shop"), ("till-secret", "till")] {
            let principal = keys.find(secret).unwrap();
            assert_eq!((principal.name.as_str(), principal.tenant.as_str()), (name, "acme"));
        }
        for wrong in ["", "old-secre", "old-secret ", "Old-secret"] {
            assert!(keys.find(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn no_secret_is_kept() {
        let keys = keys();
        assert!(keys.secrets.iter().all(|(hash, _)| !hash.starts_with(b"old")));
        assert_ne!(keys.hash_key, self::keys().hash_key);
    }
}
