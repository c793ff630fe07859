//! What operators and publishers ask of a store.

use std::time::Duration;

use crate::domain::Timestamp;
use crate::domain::delivery::{Target, TargetKind};
use crate::store::accept::MessageState;

/// Whether a store can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// Reached, but `storage migrate` has to run first.
    NotMigrated,
}

/// What an operator should know of a store that is reached.
#[derive(Clone, Copy, Debug)]
pub struct Checkup {
    /// The time by the clock that decides about due times and leases.
    pub now: Timestamp,
    /// Whether what is committed survives a crash of the database.
    pub durable: bool,
}

/// The rows of one target.
#[derive(Clone, Debug)]
pub struct Backlog {
    pub target: Target,
    pub depth: u64,
    /// The earliest due time (it may lie ahead).
    pub oldest_due_at: Option<Timestamp>,
    /// How long the oldest *due* row has been waiting; zero when none is due.
    pub oldest_age: Duration,
    pub last_error: Option<String>,
}

/// A message, per target.
#[derive(Clone, Debug)]
pub struct MessageStatus {
    pub id: String,
    pub kind: String,
    pub deduplication_id: Option<String>,
    pub targets: Vec<TargetStatus>,
}

/// Where one delivery stands.
#[derive(Clone, Debug)]
pub struct TargetStatus {
    pub target: Target,
    pub state: MessageState,
    /// Attempts made that counted.
    pub attempts: u32,
    pub due_at: Option<Timestamp>,
    pub sent_at: Option<Timestamp>,
    pub error_kind: Option<String>,
    /// What it waits for, if it has its place in an order and it is not its turn: the message of its key whose
    /// turn it is, and the first dead letter of an earlier one (which matters where dead letters block). Told by
    /// [`Store::message`](super::Store::message) only.
    pub ahead: Vec<Ahead>,
}

/// A message that another one of its key waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    pub message_id: String,
    pub state: MessageState,
    /// The dead letter's id, if it is one.
    pub dead_letter: Option<uuid::Uuid>,
}

/// The state of a delivery that was made.
pub fn done_state(kind: TargetKind) -> MessageState {
    match kind {
        TargetKind::Destination => MessageState::Sent,
        TargetKind::Handler => MessageState::Handled,
    }
}

/// Filters of a listing. Ordered by row key; `cursor` is the last row id of the page before.
#[derive(Clone, Debug, Default)]
pub struct MessageQuery {
    pub tenant: String,
    pub state: Option<MessageState>,
    pub kind: Option<String>,
    pub deduplication_id: Option<String>,
    pub correlation_id: Option<String>,
    pub limit: u32,
    pub cursor: Option<uuid::Uuid>,
}

#[derive(Clone, Debug, Default)]
pub struct MessagePage {
    pub items: Vec<MessageStatus>,
    /// Where the next page begins; `None`: this was the last.
    pub next: Option<uuid::Uuid>,
}

/// What became of a request to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    Yes,
    /// Nothing of it is left.
    NotFound,
    /// Some of its deliveries are no longer merely scheduled.
    TooLate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paused {
    /// Until somebody resumes it.
    Yes,
    /// For this long, unless it is paused for longer already.
    For(Duration),
    No,
}

/// A target that is paused for all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    pub target: Target,
    /// When it ends by itself, from now; `None`: it does not.
    pub ends_in: Option<Duration>,
}

/// How long things are kept.
#[derive(Clone, Debug)]
pub struct Retention {
    pub receipts: Duration,
    pub dead_letters: Duration,
}

/// What a purge deleted. `more`: a kind reached the limit, so there may be more at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    pub handler_claims: u64,
    pub claims: u64,
    pub dead_letters: u64,
    pub receipts: u64,
    pub more: bool,
}
