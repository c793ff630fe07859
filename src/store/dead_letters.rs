//! Dead letters: finding, mending, replaying and discarding them.
//!
//! A dead letter is a delivery's row, whole, with why it was given up on. A replay is one atomic move back to
//! the queue: the row gets a new key, so that whoever still settles the old one settles nothing, and everything
//! that is said of its message (claims, receipts, other deliveries) still holds.

use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

use crate::domain::delivery::{DeadKind, Target};
use crate::domain::{Message, Timestamp};

/// A delivery that was given up on.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Its own, a UUIDv7.
    pub id: Uuid,
    pub target: Target,
    pub message: Arc<Message>,
    pub error_kind: String,
    /// For operators.
    pub error_text: String,
    /// Attempts that counted.
    pub attempts: u32,
    pub failed_at: Timestamp,
}

/// Which of them; all that are given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The message's type, to the letter.
    pub kind: Option<String>,
    pub target: Option<Target>,
    pub error_kind: Option<DeadKind>,
    /// Given up on at this moment or later.
    pub from: Option<Timestamp>,
    /// Given up on before this moment.
    pub until: Option<Timestamp>,
}

/// A tenant's dead letters, by their ids or by what they are.
#[derive(Clone, Debug)]
pub struct Selection {
    pub tenant: String,
    pub ids: Option<Vec<Uuid>>,
    pub filter: Filter,
}

/// A place in the list, which is ordered by it: by when they were given up on, then by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub failed_at: Timestamp,
    pub id: Uuid,
}

/// A page of the list.
#[derive(Clone, Debug)]
pub struct Query {
    pub tenant: String,
    pub filter: Filter,
    pub limit: u32,
    /// A page ends before its bodies come to more than this, but has at least one dead letter.
    pub body_bytes: u64,
    /// The last one of the page before.
    pub after: Option<Cursor>,
}

#[derive(Clone, Debug, Default)]
pub struct Page {
    pub items: Vec<DeadLetter>,
    /// Where the next page begins; `None`: this was the last.
    pub next: Option<Cursor>,
}

/// What is changed of a message; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    pub body: Option<Bytes>,
    pub content_type: Option<String>,
    pub headers: Option<std::collections::BTreeMap<String, String>>,
}

impl Edit {
    pub(super) fn apply(&self, envelope: &mut crate::domain::message::Envelope) {
        if let Some(content_type) = &self.content_type {
            envelope.content_type = Some(content_type.clone());
        }
        if let Some(headers) = &self.headers {
            envelope.headers.clone_from(headers);
        }
    }
}

/// Dead letters to be moved back to the queue.
#[derive(Clone, Debug)]
pub struct Replay {
    pub selection: Selection,
    /// The targets that there are: dead letters of others stay.
    pub targets: Vec<Target>,
    pub duplicates: Duplicates,
    pub limit: u32,
}

/// What becomes of dead letters whose work another message has meanwhile claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// They stay.
    Keep,
    /// They are replayed all the same.
    Replay,
}

/// A dead letter that a replay leaves where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hindrance {
    pub id: Uuid,
    pub target: Target,
    pub why: Why,
}

/// Why a replay leaves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its target is not among those that there are.
    TargetGone,
    /// Another message holds the claim of its work.
    Duplicate,
}

/// Whether discarding a dead letter frees the claim of its work, if that is still its message's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claims {
    Release,
    Keep,
}

/// Dead letters that have something in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub kind: String,
    pub target: Target,
    pub error_kind: String,
    pub count: u64,
    pub oldest_at: Timestamp,
    pub newest_at: Timestamp,
}

/// A row's `target_no` is the place of its target among its message's, plus this times the number of its
/// replays. So a replayed row has a key that no row had before it; after 31 replays the numbers begin again.
pub(super) const GENERATION: i16 = 1_024;
