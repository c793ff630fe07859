//! One pass at a time on a store: a claim with a lease, which is renewed while the pass goes on.

use std::time::Duration;

use super::{NamedStore, Options};
use crate::delivery::Renewal;
use crate::domain::Token;
use crate::domain::claim::{ClaimKey, ClaimKind};
use crate::store;
use crate::store::claims::{Claimed, NewClaim};
use crate::store::inbox::Held;

/// How long a pass that died keeps others out.
const LEASE: Duration = Duration::from_secs(15);
const SCOPE: &str = "durability";
const ID: &str = "pass";

/// Held until it is released; renewed meanwhile.
pub(super) struct Lock {
    key: ClaimKey,
    token: Token,
    _renewal: Renewal,
}

impl Lock {
    /// The lock, or `None` where another pass has it. Waits for nobody.
    pub async fn try_take(on: &NamedStore, options: &Options) -> store::Result<Option<Self>> {
        let key = ClaimKey::new(ClaimKind::Lock, &[SCOPE], ID);
        let token = options.random.token();
        let claim = NewClaim {
            key,
            kind: ClaimKind::Lock,
            scope: SCOPE.to_owned(),
            id: ID.to_owned(),
            tenant: String::new(),
            token,
            lease: LEASE,
            message_id: None,
            fingerprint: None,
        };
        let asked_at = options.clock.monotonic();
        match on.store.claim(&claim).await? {
            Claimed::Held(_) => Ok(None),
            Claimed::Granted(_) => {
                let held = Held { row: None, claims: vec![(key, token)] };
                let _renewal = on.engine.renewals().keep(held, LEASE, asked_at);
                Ok(Some(Self { key, token, _renewal }))
            }
        }
    }

    /// Lets the next one in.
    pub async fn release(self, on: &NamedStore) {
        if let Err(error) = on.store.release(self.key, self.token).await {
            tracing::warn!(store = %on.name, %error, "the lock of a durability pass could not be released; its lease ends");
        }
    }
}
