//! Publish: from drafts to an answer that leaves only after the commit.

use bytes::Bytes;

use crate::domain::message::Draft;
use chrono::{DateTime, Utc};

/// Everything of an HTTP publish that the use case needs.
#[derive(Debug)]
pub struct Call {
    pub principal: crate::auth::Principal,
    pub form: Form,
    pub drafts: Vec<Draft>,
    /// The request's identity, where it has one.
    pub key: Option<RequestKey>,
}

/// One message, or a batch (whose answer is a list, an empty one included).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Single,
    Batch,
}

/// An `Idempotency-Key` and what it is the key of.
#[derive(Clone, Debug)]
pub struct RequestKey {
    /// Unquoted.
    pub key: String,
    pub method: String,
    pub path: String,
    pub fingerprint: [u8; 32],
}

/// What is answered; also what is stored for replay, so that both are the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub kind: AnswerKind,
    /// The path of the message's status.
    pub location: Option<String>,
    /// JSON: a [`PublishAnswer`] or a [`BatchAnswer`].
    pub body: Bytes,
    pub replayed: Replayed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// 202
    Accepted,
    /// 200
    Duplicate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed {
    No,
    Yes,
}

/// The answer of a publish.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PublishAnswer {
    /// The message's id; for a duplicate, the first message's, unless that is another tenant's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub outcome: Outcome,
    /// Where the first message stands (a duplicate only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The identity of the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deduplication_id: Option<String>,
    /// Where the identity comes from: `publisher`, `rule`, `contract`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deduplication_source: Option<String>,
    /// When the first message was accepted (a duplicate only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_seen_at: Option<DateTime<Utc>>,
    /// Until when the identity is remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// The destinations that it goes to.
    pub destinations: Vec<String>,
    /// The handlers that it goes to.
    pub handlers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliver_at: Option<DateTime<Utc>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    Accepted,
    Duplicate,
}

/// The answer of a batch: one per element, in order.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
pub struct BatchAnswer {
    pub messages: Vec<PublishAnswer>,
}
