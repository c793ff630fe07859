//! Intake: messages that a transaction of the user's committed, moved on as a publish.

use std::sync::Arc;

use super::accept::{self, MessageOutcome};
use super::deliveries::Receipt;
use crate::domain::delivery::{DeadKind, Target};
use crate::domain::message::Draft;
use crate::domain::{Random, Timestamp};

/// A row of the intake, read.
#[derive(Clone, Debug)]
pub struct Row {
    /// The order within one transaction, and nothing else.
    pub seq: i64,
    pub tenant: String,
    /// As much of the message as can be read.
    pub draft: Draft,
    /// What of it cannot.
    pub problem: Option<String>,
    pub written_at: Timestamp,
}

/// What is to become of a group of rows. A row that is in neither list is a defect.
#[derive(Debug, Default)]
pub struct Judged {
    /// Accepted, in order.
    pub messages: Vec<accept::Message>,
    /// Given up on.
    pub dead: Vec<Dead>,
    /// Whether what turns out to be a duplicate leaves a receipt, as what is delivered does.
    pub receipts: Receipt,
}

/// The place among the targets that a duplicate's receipt has. Its target is the id of the message that took the work
/// first; empty where that is another tenant's.
pub(super) const DUPLICATE_NO: i16 = -1;

/// A row that cannot be accepted, and why.
#[derive(Debug)]
pub struct Dead {
    pub row: Row,
    pub kind: DeadKind,
    /// For operators.
    pub text: String,
}

/// Decides what becomes of rows, within the transaction that moves them. Must be pure and quick.
pub trait Judge: Send + Sync + 'static {
    fn judge(&self, rows: Vec<Row>) -> Judged;
}

/// A judge that can be shared.
pub type Shared = Arc<dyn Judge>;

/// Whether a commit tells the nodes, or is found by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notifying {
    On,
    Off,
}

/// How much is moved in one commit.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub rows: u32,
    /// Of data; a single row of any size is moved.
    pub bytes: u64,
}

/// What was moved.
#[derive(Debug, Default)]
pub struct Moved {
    /// Each accepted message and what became of it.
    pub accepted: Vec<(accept::Message, MessageOutcome)>,
    pub dead: Vec<Dead>,
    /// Rows that were seen and had to be left, because another transaction holds what they need.
    pub left: usize,
}

impl Moved {
    /// Rows that are gone from the intake.
    pub fn rows(&self) -> usize {
        self.accepted.len() + self.dead.len()
    }

    /// Those that turned out to be duplicates, and the targets of their receipts.
    pub(super) fn duplicates(&self) -> Vec<(&accept::Message, &str)> {
        let told = |(message, outcome)| match outcome {
            &MessageOutcome::Accepted { .. } => None,
            MessageOutcome::Duplicate(first) => {
                let message: &accept::Message = message;
                let ours = first.claim.tenant == message.message.tenant;
                let id = first.claim.message_id.as_deref().filter(|_| ours);
                Some((message, id.unwrap_or_default()))
            }
        };
        self.accepted.iter().map(|(message, outcome)| (message, outcome)).filter_map(told).collect()
    }

    pub(super) fn add(&mut self, other: Self) {
        self.accepted.extend(other.accepted);
        self.dead.extend(other.dead);
        self.left += other.left;
    }
}

impl Judged {
    /// The messages as one request, whose messages stand and fall by themselves.
    pub(super) fn request(&self) -> accept::Request {
        accept::Request {
            claim: None,
            messages: self.messages.clone(),
            answer: Arc::new(accept::NoAnswer),
            token: Random.token(),
        }
    }

    /// All rows given up on, for a reason of the store's own.
    pub(super) fn unreadable(rows: Vec<Row>, text: &str) -> Self {
        let bury = |row| Dead { row, kind: DeadKind::Unreadable, text: text.to_owned() };
        Self { dead: rows.into_iter().map(bury).collect(), ..Self::default() }
    }
}

impl Dead {
    /// Where the message was to go, as far as it says; nobody took it.
    pub(super) fn target(&self) -> Target {
        let named = self.row.draft.destinations.iter().flatten().next();
        Target::destination(named.map_or("", String::as_str))
    }

    pub(super) fn deduplication_id(&self) -> Option<&str> {
        match &self.row.draft.deduplication {
            crate::domain::message::DraftDeduplication::Id(id) => Some(id),
            _ => None,
        }
    }
}
