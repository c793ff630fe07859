//! How dead letters are told.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::domain::delivery::{Target, TargetKind};
use crate::domain::native;
use crate::store::dead_letters::{self as stored, Hindrance, Why};

/// A delivery that was given up on: why, and its message in the native form.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    /// Its own; not the message's.
    pub id: String,
    pub message_id: String,
    pub r#type: String,
    /// For which destination it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// For which handler it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
    /// `MissingDeduplicationId`, `Expired`, `Refused`, `TooLarge`, `AttemptsExhausted`, `Unreadable`,
    /// `Unroutable`, `InvalidReply` or `NeverSettled`.
    pub error_kind: String,
    /// What the last attempt met, for people.
    pub error_text: String,
    /// Attempts that counted.
    pub attempts: u32,
    pub failed_at: DateTime<Utc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The data where it is JSON.
    #[schema(value_type = Option<serde_json::Value>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
    /// The data where it is not.
    #[schema(format = Byte)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deduplication_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub causation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliver_at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliver_by: Option<DateTime<Utc>>,
}

impl From<&stored::DeadLetter> for DeadLetter {
    fn from(dead: &stored::DeadLetter) -> Self {
        let message = &*dead.message;
        let envelope = &message.envelope;
        let (destination, handler) = named(&dead.target);
        // What is written as JSON can be read as such; if not, it is told as bytes.
        let data = native::json_body(message).and_then(|text| RawValue::from_string(text).ok());
        let told = data.is_some() || (message.body.is_empty() && envelope.content_type.is_none());
        Self {
            id: dead.id.to_string(),
            message_id: message.id.clone(),
            r#type: message.kind.clone(),
            destination,
            handler,
            error_kind: dead.error_kind.clone(),
            error_text: dead.error_text.clone(),
            attempts: dead.attempts,
            failed_at: dead.failed_at,
            source: envelope.source.clone(),
            subject: envelope.subject.clone(),
            data,
            data_base64: (!told).then(|| STANDARD.encode(&message.body)),
            content_type: envelope.content_type.clone(),
            headers: (!envelope.headers.is_empty()).then(|| envelope.headers.clone()),
            deduplication_id: message.deduplication_id.clone(),
            partition_key: message.partition_key.clone(),
            correlation_id: message.correlation_id.clone(),
            causation_id: envelope.causation_id.clone(),
            deliver_at: message.deliver_at,
            deliver_by: message.deliver_by,
        }
    }
}

/// As a destination, or as a handler.
fn named(target: &Target) -> (Option<String>, Option<String>) {
    let name = target.name.to_string();
    match target.kind {
        TargetKind::Destination => (Some(name), None),
        TargetKind::Handler => (None, Some(name)),
    }
}

/// A page of dead letters.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = DeadLetterPage)]
pub struct Page {
    pub items: Vec<DeadLetter>,
    /// Give it as `cursor` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// What a replay did.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplayAnswer {
    /// How many are on their way again.
    pub replayed: u64,
    /// How many more the same request would replay: repeat it until this is 0.
    pub remaining: u64,
    /// Those that stay dead letters, 1,000 of them at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Left>,
}

/// A dead letter that was not replayed.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = NotReplayed)]
pub struct Left {
    pub id: String,
    /// Why, and what to do.
    pub detail: String,
}

impl From<Hindrance> for Left {
    fn from(left: Hindrance) -> Self {
        let detail = match left.why {
            Why::TargetGone => {
                format!("There is no {} any more. Configure it, or discard the dead letter.", left.target)
            }
            Why::Duplicate => {
                "Another message has taken its deduplication id meanwhile. Discard it, or replay \
                               it with `force`."
                    .to_owned()
            }
        };
        Self { id: left.id.to_string(), detail }
    }
}

/// What a discard did.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiscardAnswer {
    pub discarded: u64,
    /// How many more the same request would discard: repeat it until this is 0.
    pub remaining: u64,
}

/// All dead letters, counted.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = DeadLetterSummary)]
pub struct Summary {
    pub items: Vec<SummaryItem>,
}

/// Dead letters of one type, target and kind of error.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = DeadLetterCount)]
pub struct SummaryItem {
    pub r#type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
    pub error_kind: String,
    pub count: u64,
    pub oldest_at: DateTime<Utc>,
    pub newest_at: DateTime<Utc>,
}

impl From<stored::Group> for SummaryItem {
    fn from(group: stored::Group) -> Self {
        let (destination, handler) = named(&group.target);
        Self {
            r#type: group.kind,
            destination,
            handler,
            error_kind: group.error_kind,
            count: group.count,
            oldest_at: group.oldest_at,
            newest_at: group.newest_at,
        }
    }
}
