//! What a node looks for every few seconds, in one question.

use std::time::Duration;

use super::status::Pause;

/// What a look saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// How long until the earliest row of each target that was asked for is due (zero: now); `None`: it has no row.
    pub due: Vec<Option<Duration>>,
    /// The targets that are paused for all nodes.
    pub paused: Vec<Pause>,
    /// Whether [`expire`](super::Store::expire) has something to do.
    pub expired: bool,
    /// Whether [`move_intake`](super::Store::move_intake) has.
    pub intake: bool,
    /// Whether [`purge`](super::Store::purge) has, if that was asked for.
    pub over: bool,
}
