//! Where messages stand.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Error, Gateway, Result, may_read, may_write};
use crate::auth::Principal;
use crate::domain::delivery::TargetKind;
use crate::domain::ordering::OnDeadLetter;
use crate::store::accept::MessageState;
use crate::store::status::{Ahead, Cancelled, MessageQuery, MessageStatus, TargetStatus};

/// A message, per target.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Message)]
pub struct Message {
    pub id: String,
    pub r#type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deduplication_id: Option<String>,
    pub destinations: Vec<Delivery>,
    pub handlers: Vec<Delivery>,
    /// `duplicate`: an earlier message had taken its work, so that nothing of it was sent. Only of messages that were
    /// published in a transaction of their publisher's, who could not be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
    /// Then: that message's id, unless it is another tenant's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicate_of: Option<String>,
}

/// Where one delivery stands.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = DeliveryStatus)]
pub struct Delivery {
    pub name: String,
    /// `scheduled`, `pending`, `retrying`, `sent`, `handled` or `dead`.
    pub state: String,
    /// Attempts that counted; 0 before the first.
    pub attempts: u32,
    /// When it may be attempted next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_at: Option<DateTime<Utc>>,
    /// Of the last failed attempt; `Discarded` where an error policy gave the delivery up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<String>,
    /// The message whose turn it is of its key, where the target is ordered and it is another's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<WaitsFor>,
}

/// What a message of an ordered target waits for.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitsFor {
    pub message_id: String,
    /// `pending` (being delivered, or next), `retrying` or `dead`.
    pub state: String,
    /// The id of the dead letter that blocks the key: replay or discard it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<String>,
}

/// A page of messages.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = MessagePage)]
pub struct Page {
    pub items: Vec<Message>,
    /// Give it as `cursor` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Filters of a listing; all that are given must hold.
#[derive(Clone, Debug, Default)]
pub struct Query {
    pub state: Option<String>,
    pub kind: Option<String>,
    pub deduplication_id: Option<String>,
    pub correlation_id: Option<String>,
    /// 100 if left out; 1,000 at most.
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

const LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1_000;

impl Gateway {
    /// Where a message stands.
    ///
    /// # Errors
    /// `NotFound` when nothing of it is left, or it is another tenant's.
    pub async fn message(&self, principal: &Principal, id: &str) -> Result<Message> {
        may_read(principal)?;
        let node = self.stores.of(&principal.tenant);
        let found = if plausible(id) { node.store.message(&principal.tenant, id).await? } else { None };
        let mut found = found.ok_or_else(|| not_found(id))?;
        for one in &mut found.targets {
            // Dead letters matter where they block.
            if node.engine.order(&one.target) != Some(OnDeadLetter::Block) {
                one.ahead.retain(|ahead| ahead.dead_letter.is_none());
            }
        }
        Ok(found.into())
    }

    /// Messages that still have rows; with the states `sent` and `handled`, those that have receipts.
    ///
    /// # Errors
    /// `Malformed` for a filter that cannot be read.
    pub async fn messages(&self, principal: &Principal, query: Query) -> Result<Page> {
        may_read(principal)?;
        let wanted = MessageQuery {
            tenant: principal.tenant.clone(),
            state: query.state.as_deref().map(parse_state).transpose()?,
            kind: query.kind,
            deduplication_id: query.deduplication_id,
            correlation_id: query.correlation_id,
            limit: query.limit.unwrap_or(LIMIT).clamp(1, MAX_LIMIT),
            cursor: query.cursor.as_deref().map(parse_cursor).transpose()?,
        };
        let page = self.store(principal).messages(&wanted).await?;
        Ok(Page {
            items: page.items.into_iter().map(Message::from).collect(),
            next_cursor: page.next.map(|id| id.simple().to_string()),
        })
    }

    /// Cancels a message of which nothing is due yet, and frees its deduplication id.
    ///
    /// # Errors
    /// `NotFound`, `NotCancellable`.
    pub async fn cancel(&self, principal: &Principal, id: &str) -> Result<()> {
        may_write(principal)?;
        let cancelled = if plausible(id) {
            self.store(principal).cancel(&principal.tenant, id).await?
        } else {
            Cancelled::NotFound
        };
        match cancelled {
            Cancelled::Yes => {
                tracing::info!(message = id, principal = %principal.name, "message cancelled");
                Ok(())
            }
            Cancelled::NotFound => Err(not_found(id)),
            Cancelled::TooLate => Err(Error::NotCancellable {
                detail: "Only a message all of whose deliveries are still scheduled can be cancelled; see \
                         GET /v1/messages/{id} for where they stand."
                    .into(),
            }),
        }
    }
}

/// Whether a store can be asked for it at all.
fn plausible(id: &str) -> bool {
    !id.is_empty() && id.len() <= 1_024 && !id.chars().any(char::is_control)
}

fn not_found(id: &str) -> Error {
    let id: String = id.chars().filter(|c| !c.is_control()).take(64).collect();
    Error::NotFound { detail: format!("The message `{id}` is unknown, or delivered and its receipt gone.") }
}

fn parse_state(text: &str) -> Result<MessageState> {
    use MessageState::{Dead, Handled, Pending, Retrying, Scheduled, Sent};
    [Scheduled, Pending, Retrying, Sent, Handled, Dead]
        .into_iter()
        .find(|state| state.as_str() == text)
        .ok_or_else(|| {
            Error::malformed_at(
                "`state` must be one of scheduled, pending, retrying, sent, handled, dead.",
                vec![super::Place::new("query state", "is none of the states")],
            )
        })
}

fn parse_cursor(text: &str) -> Result<uuid::Uuid> {
    uuid::Uuid::try_parse(text).map_err(|_| {
        Error::malformed_at(
            "`cursor` must be the `nextCursor` of the page before.",
            vec![super::Place::new("query cursor", "is not a cursor")],
        )
    })
}

impl From<MessageStatus> for Message {
    fn from(status: MessageStatus) -> Self {
        let (duplicates, targets) =
            status.targets.into_iter().partition::<Vec<_>, _>(|t| t.state == MessageState::Duplicate);
        // What was accepted under this id at another time is what matters.
        let first = duplicates.into_iter().last().filter(|_| targets.is_empty());
        let outcome = first.as_ref().map(|first| first.state.as_str());
        let duplicate_of = first.map(|first| first.target.name.to_string()).filter(|id| !id.is_empty());
        let (destinations, handlers) =
            targets.into_iter().partition::<Vec<_>, _>(|t| t.target.kind == TargetKind::Destination);
        Self {
            id: status.id,
            r#type: status.kind,
            deduplication_id: status.deduplication_id,
            destinations: destinations.into_iter().map(Delivery::from).collect(),
            handlers: handlers.into_iter().map(Delivery::from).collect(),
            outcome,
            duplicate_of,
        }
    }
}

impl From<Ahead> for WaitsFor {
    fn from(ahead: Ahead) -> Self {
        Self {
            message_id: ahead.message_id,
            state: ahead.state.as_str().to_owned(),
            dead_letter: ahead.dead_letter.map(|id| id.to_string()),
        }
    }
}

impl From<TargetStatus> for Delivery {
    fn from(status: TargetStatus) -> Self {
        // Of a message and a dead letter, what somebody has to do something about.
        let ahead = status.ahead.into_iter().max_by_key(|ahead| ahead.dead_letter.is_some());
        Self {
            name: status.target.name.to_string(),
            state: status.state.as_str().to_owned(),
            attempts: status.attempts,
            due_at: status.due_at,
            sent_at: status.sent_at,
            error_kind: status.error_kind,
            waits_for: ahead.map(WaitsFor::from),
        }
    }
}
