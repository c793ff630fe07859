//! Delivering: take, attempt, settle.
//!
//! The stored row is the queue; memory only makes it fast. Right after a commit the accepting node attempts
//! from memory what it *reserved* room for before the commit ([`Engine::reserve`], [`Engine::offer`]);
//! everything else, and everything whose node died, is taken from the store when its one clock is due.
//!
//! - [`Engine`]: what the rest of the program sees.
//! - [`worker`]: one task per target: what to attempt next, many attempts at once.
//! - [`verdict`]: what an attempt came to.
//! - [`attempt`]: one attempt.
//! - [`lot`], [`asked`]: attempts for somebody who waits, a request or a pass; all there is in the serverless
//!   modes.
//! - [`breaker`]: whether a target may be attempted at all. Pure.
//! - [`gate`]: what the engines of several stores share of a target: its breaker and its slots.
//! - [`settler`]: writes what attempts came to, many per commit, until the store has it.
//! - [`inbox`]: what is particular to handlers: claims before they run, messages that they publish.
//! - [`lanes`]: ordered targets: a round through the keys, each of whose first rows may be due.
//! - [`outcome`]: what a failed attempt means for its row, its target's breaker, and the target.
//! - [`pace`]: how often attempts may begin.
//! - [`renewals`]: keeps the leases of what runs.
//! - [`scanner`]: the node's own clock: looks for due rows, pauses, what expired and what is to be purged.
//!
//! Invariants:
//! - An attempt begins only while the row's lease, on the monotonic clock from *before* it was leased, covers
//!   the target's whole timeout (a handler's lease is renewed instead, while it runs). A row that cannot be begun in time is forgotten; the store hands it out again.
//! - An attempt's outcome is never dropped: the settler keeps it until the store has it, and its queue is
//!   bounded, so that an unreachable store stops the attempts.
//! - One target never holds back another.

mod asked;
mod attempt;
pub mod breaker;
pub mod direct;
mod engine;
mod gate;
mod inbox;
mod lanes;
mod lot;
mod outcome;
pub mod pace;
mod renewals;
mod scanner;
mod settler;
mod verdict;
mod worker;

pub use asked::{Inline, Passed};
pub use engine::{Background, Engine, Held, Options, Permit, TargetOptions, TargetView};
pub use gate::Gates;
pub use inbox::{Cascade, HandlerOptions};
pub use lot::Fate;
pub use renewals::{Renewal, Renewals};
