//! Taking and settling deliveries.

use std::time::Duration;

use crate::domain::delivery::{DeadKind, Delivery, Target};
use crate::domain::{RowKey, Token};

/// Leases up to `limit` due rows of `target`.
#[derive(Clone, Debug)]
pub struct Take {
    pub target: Target,
    pub limit: u32,
    pub lease: Duration,
    /// The token for the rows taken: unique per call.
    pub token: Token,
}

/// A row that this call leased.
#[derive(Clone, Debug)]
pub struct Taken {
    pub delivery: Delivery,
    /// How often it has been taken since it was last settled, this time included.
    pub takes: u32,
    /// Whether its `deliver_by` has passed, by the database's clock.
    pub expired: bool,
    /// Whether it passes another message's claim of its work: replayed with force.
    pub forced: bool,
    /// Whether it was scheduled, and has not failed since.
    pub was_scheduled: bool,
}

/// What an attempt came to.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub row: RowKey,
    /// The token under which the row is leased. `Done` needs none: delivered is delivered.
    pub token: Token,
    pub outcome: Settle,
}

#[derive(Clone, Debug)]
pub enum Settle {
    /// Acknowledged by the target: the row goes, a receipt stays (unless `keep_receipt` is off).
    Done { receipt: Receipt },
    /// Due again after a while. `deliver_by` caps the new due time.
    Retry { after: Duration, counted: Counted, error: ErrorNote },
    /// Given up on for good, because the configuration says so: the row goes, a receipt says that it was discarded.
    /// `error` is for the log.
    Discard { receipt: Receipt, error: String },
    /// Taken back, as if it had never been accepted: the row goes and leaves nothing. Under its token only.
    Withdrawn,
    /// Given up on: the row moves to the dead letters whole.
    Dead { error: DeadNote, counted: Counted },
}

/// What the receipt of a discarded delivery says.
pub(super) const DISCARDED: &str = "Discarded";

/// Whether a receipt is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Receipt {
    #[default]
    Keep,
    Drop,
}

/// Whether the attempt counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    Yes,
    No,
}

/// The last error of a row: for operators.
#[derive(Clone, Debug)]
pub struct ErrorNote {
    /// `Attempt` or `Target`: whose fault.
    pub kind: &'static str,
    pub text: String,
}

/// Why a row was given up on.
#[derive(Clone, Debug)]
pub struct DeadNote {
    pub kind: DeadKind,
    pub text: String,
}

/// What became of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Yes,
    /// The row is gone, or leased under another token: nothing was written.
    Fenced,
}
