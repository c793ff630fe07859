//! What a pushed message is called, and what of it may go on.

use uuid::Uuid;

use super::super::prepare::{By, Way};
use super::super::{Error, Gateway, Result};
use super::{Message, Receiver};
use crate::auth::Principal;
use crate::domain::message::{Draft, DraftDeduplication};
use crate::domain::{Timestamp, wire};
use crate::push::Identity;

/// The namespace of ids that are derived from senders' ids.
const NAMESPACE: Uuid = Uuid::from_u128(0x6f6e_6365_6761_7465_8000_7075_7368_6964);
/// Own headers of a pushed message; a push has a hundred at most.
const MOST_HEADERS: usize = 128;

/// A message, ready to be prepared.
pub(super) struct Pushed {
    pub draft: Draft,
    /// What the sender calls it.
    pub sender_id: Option<String>,
    /// What it is recognised by when it comes again; `None`: nothing.
    pub known_by: Option<String>,
}

impl Gateway {
    /// The draft as it is accepted: with its type and its id, and only with headers that may stand.
    pub(super) fn draft(
        &self,
        receiver: &Receiver,
        source: Option<&str>,
        kind: Option<&str>,
        message: Message,
        now: Timestamp,
    ) -> Result<Pushed> {
        let Message { mut draft, identity } = message;
        if draft.kind.is_empty() {
            draft.kind = kind.unwrap_or_default().to_owned();
        }
        draft.destinations = None;
        let headers = std::mem::take(&mut draft.envelope.headers);
        // A type may have spaces here: EventBridge's have.
        let spaced = draft.kind.clone();
        draft.kind = draft.kind.replace(' ', "_");
        draft.check(&self.settings.limits, now).map_err(|errors| {
            let say = |error: &crate::domain::fields::FieldError| {
                format!("{} {}", error.field.name(), error.detail)
            };
            let texts: Vec<_> = errors.iter().map(say).collect();
            Error::malformed(format!("The message cannot be taken: {}.", texts.join("; ")))
        })?;
        draft.kind = spaced;
        let stands = |name: &str, value: &str| {
            !wire::is_reserved(name) && !name.contains('\0') && !value.contains('\0')
        };
        draft.envelope.headers = headers.into_iter().filter(|(name, value)| stands(name, value)).collect();
        if draft.envelope.headers.len() > MOST_HEADERS {
            return Err(Error::malformed(format!("The message has more than {MOST_HEADERS} headers.")));
        }
        let sender_id = draft.id.clone();
        if let (Identity::Sender, Some(id)) = (identity, &sender_id) {
            let place = source.unwrap_or(&receiver.name);
            let name = format!("{}:{place}|{id}", place.len());
            draft.id = Some(Uuid::new_v5(&NAMESPACE, name.as_bytes()).to_string());
        }
        let known_by = draft.id.clone().map(|id| match (identity, &draft.envelope.source) {
            (Identity::Event, Some(source)) => format!("{source}|{id}"),
            _ => id,
        });
        Ok(Pushed { draft, sender_id, known_by })
    }

    /// The sender's id is the deduplication id, unless the derivation gives one.
    pub(super) fn with_fallback(&self, principal: &Principal, pushed: Pushed) -> Draft {
        let Pushed { mut draft, sender_id, .. } = pushed;
        let by = By { principal, idempotency_key: None, way: Way::Push };
        if draft.deduplication == DraftDeduplication::Derive
            && let Some(id) = sender_id
            && self.preparer.derive(&by, &draft).is_none()
        {
            draft.deduplication = DraftDeduplication::Id(id);
        }
        draft
    }
}
