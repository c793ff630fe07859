//! Ordered targets: of each key the message whose turn it is, and no other.
//!
//! Every row of an ordered target carries a number from a sequence of the database, its *turn*. A row that was
//! begun stays the first of its key until it is settled, whatever comes in front of it; at most one row of a key
//! is begun. Two things keep it so:
//!
//! - The key is its first row's: leased, in backoff or given back, that row is the only one of its key that
//!   [`take_in_order`](super::Store::take_in_order) hands out, under a new token each time. A lease that ends is
//!   taken over; what its former owner still writes is fenced by the token, so no later row comes to the front
//!   while somebody holds the first.
//! - Keys are spread over lanes. A taker holds the lanes that it takes from until its commit, so two takers never
//!   begin different rows of a key.
//!
//! A row that is scheduled has no place in its key's order before it is due: it then joins at the end.

use std::time::Duration;

use super::deliveries;
use crate::domain::ordering::{OnDeadLetter, OrderKey};

/// Turns of one statement's rows: the number from the sequence times this, plus the row's place in it. The
/// sequence begins so high that a moment in microseconds is an earlier turn than all of them: that is the turn of
/// rows which were written while their target had no order.
pub(super) const TURNS: i64 = 1 << 20;
/// Keys that are looked at in one call.
pub(super) const KEYS: u32 = 2_000;
/// Rows that join their keys' order in one step.
pub(super) const JOINING: u32 = 1_000;
/// When to look again for what somebody else is looking at.
pub(super) const HELD_LANES: Duration = Duration::from_millis(20);

/// Leases the row whose turn it is of up to `take.limit` keys, where it is due.
#[derive(Clone, Debug)]
pub struct Take {
    pub take: deliveries::Take,
    /// Keys after this one are looked at, in their order.
    pub after: Option<OrderKey>,
    pub on_dead_letter: OnDeadLetter,
}

/// What a look at the keys found.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    pub taken: Vec<deliveries::Taken>,
    /// How long until something is due that was looked at and not taken; `None`: nothing is.
    pub next: Option<Duration>,
    /// There may be more: go on after this key.
    pub resume: Option<OrderKey>,
}

impl Looked {
    /// The earlier of what is known and `next`.
    pub(super) fn note(&mut self, next: Duration) {
        self.next = Some(self.next.map_or(next, |known| known.min(next)));
    }
}
