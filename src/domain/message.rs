//! A message, and the draft of one that a publisher hands in.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Timestamp;

/// A message as it is stored and relayed. All times are UTC; `body` is carried as bytes and never re-encoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The logical id: the client's, else the row's UUIDv7 in its text form. Not a key: it may come again.
    pub id: String,
    /// What the message is, e.g. `order.created`.
    pub kind: String,
    /// The tenant of the principal that published it; empty: none.
    pub tenant: String,
    /// The bytes of the data, as the publisher sent them.
    pub body: Bytes,
    /// The identity of the work the message asks for; `None`: it has none.
    pub deduplication_id: Option<String>,
    pub partition_key: Option<String>,
    pub correlation_id: Option<String>,
    /// Not before this moment.
    pub deliver_at: Option<Timestamp>,
    /// Not after this moment.
    pub deliver_by: Option<Timestamp>,
    /// When the gateway took responsibility for it.
    pub accepted_at: Timestamp,
    /// What is only carried, never searched for.
    pub envelope: Envelope,
}

/// The members of a message that are carried to the target and that no query asks for. Stored as one JSON text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
    /// The message's own headers, names in lower case.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

/// What a publisher asks for: a message that has no place, no moment and perhaps no id yet.
///
/// Every way in (HTTP in all its forms, a push, a handler's answer, a row of the intake) ends in drafts, and
/// from there on they are treated alike.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    pub id: Option<String>,
    pub kind: String,
    pub body: Bytes,
    pub body_at: BodyAt,
    pub deduplication: DraftDeduplication,
    pub partition_key: Option<String>,
    pub correlation_id: Option<String>,
    pub deliver_at: Option<Timestamp>,
    /// Instead of `deliver_at`: this long after it was accepted.
    pub delay: Option<std::time::Duration>,
    pub deliver_by: Option<Timestamp>,
    /// Instead of the routes: these destinations.
    pub destinations: Option<Vec<String>>,
    pub envelope: Envelope,
}

/// Where a draft's body stands in what the publisher sent: for whoever has to name a place in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyAt {
    /// It is what was sent.
    #[default]
    Root,
    /// It is this member's value; a JSON Pointer.
    Member(&'static str),
    /// It is encoded in this member's text, into which no pointer leads.
    Encoded(&'static str),
}

/// What the publisher said of the deduplication id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DraftDeduplication {
    /// Nothing: the rules may derive one.
    #[default]
    Derive,
    /// An explicit empty string: no rule applies to this message.
    OptOut,
    /// This one; no rule overwrites it.
    Id(String),
}
