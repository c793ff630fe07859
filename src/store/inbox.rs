//! Handling: the claims of deliveries to handlers, the leases that are renewed while a handler runs, and the
//! one commit that ends it.

use std::time::Duration;

use bytes::Bytes;

use super::accept::{self, MessageOutcome};
use super::claims::NewClaim;
use super::deliveries::{Settled, Settlement};
use crate::domain::claim::ClaimKey;
use crate::domain::{RowKey, Token};

/// A claim that a delivery takes before its handler runs.
///
/// It is had where nobody has it, where its time is over, and where an earlier taker of the *same row* left it
/// unconfirmed: that this one is the later taker is proved by the row's token, which is the newest there is.
#[derive(Clone, Debug)]
pub struct Handling {
    pub claim: NewClaim,
    pub row: RowKey,
    /// The token under which the row is leased.
    pub row_token: Token,
}

/// What is held while work runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub row: Option<(RowKey, Token)>,
    pub claims: Vec<(ClaimKey, Token)>,
}

/// A claim to be confirmed, or released if the work failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldClaim {
    pub key: ClaimKey,
    pub token: Token,
    /// For how long it is confirmed, from now.
    pub window: Duration,
    /// What is kept with it for replay.
    pub answer: Option<Bytes>,
}

/// The claim of a push. It was written confirmed, with the delivery, and stands longer than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub key: ClaimKey,
    /// The one under which it was accepted.
    pub token: Token,
    /// For how long it still stands, from now, once the delivery has ended. It goes with a delivery that is
    /// withdrawn, and stays as it is for one that is to be tried again.
    pub keep: Duration,
}

/// What becomes of an [`Arrival`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrivalEnd {
    Kept,
    Deleted,
    Untouched,
}

/// The end of some work, written in one commit or not at all.
#[derive(Clone, Debug)]
pub struct Conclusion {
    /// What becomes of the delivery, where there is one. Its token is checked, whatever the outcome.
    pub settlement: Option<Settlement>,
    /// Confirmed if the settlement is `Done` or there is none, else released.
    pub claims: Vec<HeldClaim>,
    /// The claim that the delivery was accepted with, where it came by a push that may come again.
    pub arrival: Option<Arrival>,
    /// What the work published.
    pub messages: Vec<accept::Message>,
    /// The token of what `messages` write. Unique per attempt.
    pub token: Token,
}

/// What became of a conclusion.
#[derive(Clone, Debug)]
pub struct Concluded {
    /// [`Settled::Fenced`]: the row or a claim is not held any more, and nothing was written.
    pub settled: Settled,
    /// One per message; none when nothing was written now.
    pub messages: Vec<MessageOutcome>,
}

impl Concluded {
    pub(super) fn fenced() -> Self {
        Self { settled: Settled::Fenced, messages: Vec::new() }
    }
}

impl Conclusion {
    /// Whether the work was done, so that its claims are confirmed.
    pub fn is_done(&self) -> bool {
        use super::deliveries::Settle;
        self.settlement.as_ref().is_none_or(|settlement| matches!(settlement.outcome, Settle::Done { .. }))
    }

    /// What becomes of its arrival.
    pub(super) fn arrival_end(&self) -> ArrivalEnd {
        use super::deliveries::Settle;
        match self.settlement.as_ref().map(|settlement| &settlement.outcome) {
            Some(Settle::Withdrawn) => ArrivalEnd::Deleted,
            Some(Settle::Retry { .. }) => ArrivalEnd::Untouched,
            _ => ArrivalEnd::Kept,
        }
    }

    /// The messages as a request without a claim of its own.
    pub(super) fn request(&self) -> accept::Request {
        accept::Request {
            claim: None,
            messages: self.messages.clone(),
            answer: std::sync::Arc::new(accept::NoAnswer),
            token: self.token,
        }
    }
}
