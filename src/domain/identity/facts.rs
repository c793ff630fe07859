//! What an id is derived from.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::domain::json;
use crate::domain::message::{Draft, Envelope, Message};

/// A message as the rules see it. Its body is parsed when a rule first asks for a member, and only then.
#[derive(Debug)]
pub struct Facts<'a> {
    kind: &'a str,
    id: Option<&'a str>,
    tenant: &'a str,
    envelope: &'a Envelope,
    idempotency_key: Option<&'a str>,
    body: &'a [u8],
    root: OnceCell<Option<&'a RawValue>>,
    members: OnceCell<Option<json::Members<'a>>>,
}

impl<'a> Facts<'a> {
    /// Of a draft. Its `{@id}` is the publisher's, never one that the gateway gives: that one is new each time.
    ///
    /// `tenant` is the principal's (empty: none), `idempotency_key` the request's, unquoted.
    pub fn of_draft(draft: &'a Draft, tenant: &'a str, idempotency_key: Option<&'a str>) -> Self {
        Self::new(&draft.kind, draft.id.as_deref(), tenant, &draft.envelope, idempotency_key, &draft.body)
    }

    /// Of a message that was accepted.
    pub fn of_message(message: &'a Message) -> Self {
        Self::new(&message.kind, Some(&message.id), &message.tenant, &message.envelope, None, &message.body)
    }

    fn new(
        kind: &'a str,
        id: Option<&'a str>,
        tenant: &'a str,
        envelope: &'a Envelope,
        idempotency_key: Option<&'a str>,
        body: &'a [u8],
    ) -> Self {
        let (root, members) = (OnceCell::new(), OnceCell::new());
        Self { kind, id, tenant, envelope, idempotency_key, body, root, members }
    }

    pub(super) fn kind(&self) -> &'a str {
        self.kind
    }

    pub(super) fn id(&self) -> Option<&'a str> {
        self.id
    }

    pub(super) fn tenant(&self) -> Option<&'a str> {
        Some(self.tenant)
    }

    pub(super) fn source(&self) -> Option<&'a str> {
        self.envelope.source.as_deref()
    }

    pub(super) fn subject(&self) -> Option<&'a str> {
        self.envelope.subject.as_deref()
    }

    pub(super) fn idempotency_key(&self) -> Option<&'a str> {
        self.idempotency_key
    }

    pub(super) fn headers(&self) -> &'a BTreeMap<String, String> {
        &self.envelope.headers
    }

    pub(super) fn body_sha256(&self) -> String {
        sha256_hex(self.body)
    }

    /// The data, if it is JSON (whatever its content type says).
    pub(super) fn root(&self) -> Option<&'a RawValue> {
        *self.root.get_or_init(|| json::document(self.body).ok())
    }

    /// The members of the data, if it is a JSON object.
    pub(super) fn members(&self) -> Option<&[(Cow<'a, str>, &'a RawValue)]> {
        self.members.get_or_init(|| self.root().and_then(json::members)).as_deref()
    }

    /// Whether the body was parsed.
    #[cfg(test)]
    pub(super) fn is_parsed(&self) -> bool {
        self.root.get().is_some()
    }
}

pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
