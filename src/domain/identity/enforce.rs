//! What is done with an id at publish.

use std::time::Duration;

use crate::domain::Timestamp;
use crate::domain::claim::{ClaimKey, ClaimKind};

/// How the identity of one message type is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enforcement {
    /// Whether a message without an id is refused; else it passes as it is.
    pub required: bool,
    /// How long an id is remembered, counted from when the message is due.
    pub window: Duration,
    pub on_duplicate: OnDuplicate,
    pub scope: Scope,
}

/// How a duplicate is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDuplicate {
    #[default]
    Acknowledge,
    Conflict,
}

/// Within what an id is unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The tenant and the message type.
    #[default]
    Type,
    /// Everything in the store.
    Store,
}

/// What a claim of the work is made under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkKey {
    pub key: ClaimKey,
    /// Readable, for people: the scope's parts.
    pub scope: String,
}

impl Enforcement {
    /// The key of the claim for this id.
    pub fn work_key(&self, tenant: &str, kind: &str, id: &str) -> WorkKey {
        match self.scope {
            Scope::Type => {
                let scope = if tenant.is_empty() { kind.to_owned() } else { format!("{tenant} {kind}") };
                WorkKey { key: ClaimKey::new(ClaimKind::Work, &[tenant, kind], id), scope }
            }
            Scope::Store => {
                WorkKey { key: ClaimKey::new(ClaimKind::Work, &[], id), scope: "store".to_owned() }
            }
        }
    }

    /// Until when the id of a message is remembered: max(now, `deliver_at`) + window, so that what is published
    /// ahead for tomorrow is still known tomorrow.
    pub fn expires_at(&self, now: Timestamp, deliver_at: Option<Timestamp>) -> Timestamp {
        let from = deliver_at.map_or(now, |at| at.max(now));
        chrono::Duration::from_std(self.window)
            .ok()
            .and_then(|window| from.checked_add_signed(window))
            .unwrap_or(Timestamp::MAX_UTC)
    }
}
