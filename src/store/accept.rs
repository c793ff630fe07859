//! What is handed to [`Store::accept`](super::Store::accept), and what comes back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::claims::Claim;
use super::{Error, ErrorKind, Result};
use crate::domain::claim::ClaimKey;
use crate::domain::delivery::Target;
use crate::domain::ordering::OrderKey;
use crate::domain::{self, Timestamp, Token};

/// One HTTP request's (or one push's, one intake row's) worth of messages: stored whole or not at all.
#[derive(Clone, Debug)]
pub struct Request {
    /// The claim of the request itself, where it has an idempotency key.
    pub claim: Option<RequestClaim>,
    pub messages: Vec<Message>,
    /// What the answer to the request is, given what became of its messages.
    pub answer: Arc<dyn Answer>,
    /// The token of everything this request writes: its claims and its leased rows. Unique per attempt to
    /// accept it; running the same request again after a lost reply uses the same token.
    pub token: Token,
}

impl Request {
    /// Whether every engine can store it as it is. A NUL within a text is refused by some and cut off at by
    /// the readers of others; the edge refuses it as well.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`].
    pub fn check_storable(&self) -> Result<()> {
        let own = self.claim.iter().flat_map(|claim| [claim.scope.as_str(), claim.id.as_str()]);
        if own.chain(self.messages.iter().flat_map(Message::texts)).any(|text| text.contains('\0')) {
            return Err(Error::new(ErrorKind::InvalidData, "a text has a NUL in it"));
        }
        Ok(())
    }
}

impl Message {
    /// Whether every engine can store its texts.
    pub fn is_storable(&self) -> bool {
        !self.texts().any(|text| text.contains('\0'))
    }

    /// Everything of it that is stored as a text.
    fn texts(&self) -> impl Iterator<Item = &str> {
        let message = &*self.message;
        let envelope = &message.envelope;
        let optional = [
            &message.deduplication_id,
            &message.partition_key,
            &message.correlation_id,
            &envelope.source,
            &envelope.subject,
            &envelope.content_type,
            &envelope.causation_id,
            &envelope.traceparent,
            &envelope.tracestate,
        ];
        [message.id.as_str(), &message.kind, &message.tenant]
            .into_iter()
            .chain(optional.into_iter().flatten().map(String::as_str))
            .chain(envelope.headers.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]))
            .chain(self.claim.iter().flat_map(|claim| [claim.scope.as_str(), claim.id.as_str()]))
            .chain(self.targets.iter().map(|new| &*new.target.name))
    }
}

/// The claim of a request by its idempotency key. Written confirmed, with the answer.
#[derive(Clone, Debug)]
pub struct RequestClaim {
    pub key: ClaimKey,
    /// The readable scope and id; compared on a hit.
    pub scope: String,
    pub id: String,
    /// SHA-256 over everything of the request that is input.
    pub fingerprint: [u8; 32],
    /// How long the answer is kept, from now.
    pub window: Duration,
}

/// The claim of the work that a message asks for. Written confirmed, expiring at
/// max(now, `deliver_at`) + `window`.
#[derive(Clone, Debug)]
pub struct WorkClaim {
    pub key: ClaimKey,
    pub scope: String,
    pub id: String,
    pub window: Duration,
}

/// A message and the rows to be written for it.
#[derive(Clone, Debug)]
pub struct Message {
    /// The first half of its rows' keys: a UUIDv7 of the gateway's. `message.id` is this in its text form
    /// when the client gave none.
    pub row_id: Uuid,
    pub message: Arc<domain::Message>,
    /// A later message of the same request with an equal claim key must not carry a claim: it is in
    /// [`same_as`](Self::same_as).
    pub claim: Option<WorkClaim>,
    /// The place, in this request, of an earlier message that asks for the same work. Nothing is written for
    /// this one; its outcome is that of a duplicate of the earlier one (or of what that one duplicates).
    pub same_as: Option<usize>,
    /// By `target_no`: the row of `targets[n]` has the key (`row_id`, n).
    pub targets: Vec<NewDelivery>,
}

/// One row to be written.
#[derive(Clone, Debug)]
pub struct NewDelivery {
    pub target: Target,
    /// `Some`: this node holds the row in memory and will attempt it; it is written `leased` for this long.
    /// `None`: it is written `waiting`, due now. A message with a `deliver_at` in the future is written
    /// `scheduled`, due then, whatever this says.
    pub hold: Option<Duration>,
    /// `Some`: it has its place in the order of this key, behind all rows of the key that were there before and
    /// those before it in its request. Such a row is never held.
    pub order: Option<OrderKey>,
}

impl NewDelivery {
    /// A row that waits to be taken.
    pub fn waiting(target: Target) -> Self {
        Self { target, hold: None, order: None }
    }
}

/// Renders a request's answer, so that the stored one is exactly what is answered.
pub trait Answer: Send + Sync + fmt::Debug {
    /// The bytes to keep for replay, given what became of each message; `None` refuses the request: nothing
    /// of it is stored and its claim is released, all before the commit. Must be pure and quick.
    fn render(&self, outcomes: &[MessageOutcome]) -> Option<Bytes>;
}

/// The answer of requests that need none kept: accepts whatever became of the messages.
#[derive(Clone, Copy, Debug)]
pub struct NoAnswer;

impl Answer for NoAnswer {
    fn render(&self, _outcomes: &[MessageOutcome]) -> Option<Bytes> {
        Some(Bytes::new())
    }
}

/// What became of a request.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Stored; one outcome per message, in order.
    Stored(Vec<MessageOutcome>),
    /// The [`Answer`] refused these outcomes; nothing is stored.
    Refused(Vec<MessageOutcome>),
    /// The idempotency key was used before, by a request with the same fingerprint, and this is the claim:
    /// confirmed (its `answer` is to be replayed; a confirmed claim without one is a tombstone) or still
    /// claimed (in flight).
    Replay(Claim),
    /// The idempotency key was used before by another request.
    KeyReused(Claim),
}

/// What became of one message.
#[derive(Clone, Debug)]
pub enum MessageOutcome {
    /// Its rows are written. `expires_at`: until when its claim stands, where it has one.
    Accepted { expires_at: Option<Timestamp> },
    /// The work it asks for is taken by this claim.
    Duplicate(Box<Duplicate>),
}

/// The message that took the work first.
#[derive(Clone, Debug)]
pub struct Duplicate {
    pub claim: Claim,
    /// Where that message stands: the least advanced of its deliveries.
    pub state: MessageState,
}

/// Where a message stands. The names are those of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageState {
    Scheduled,
    Pending,
    Retrying,
    Sent,
    Handled,
    Dead,
    /// Dropped, since an earlier message had taken its work. Only of what came by the intake: others are told.
    Duplicate,
}

impl MessageState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Pending => "pending",
            Self::Retrying => "retrying",
            Self::Sent => "sent",
            Self::Handled => "handled",
            Self::Dead => "dead",
            Self::Duplicate => "duplicate",
        }
    }
}
