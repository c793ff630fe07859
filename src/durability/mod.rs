//! The durability pass: one bounded round of what is due.
//!
//! Where nothing runs in the background, somebody calls [`pass`]: the endpoint, `oncegate storage flush`, or a user
//! of this crate. Each store is passed over by itself, side by side:
//!
//! - One pass works on a store at a time. The lock is a claim with a lease, renewed while the pass goes on; a store
//!   that is locked is skipped, and counts as more work. A pass that dies frees it when the lease ends.
//! - The steps are `intake`, `outgoing`, `incoming`, `purge`, in this order, each by itself: one that fails is
//!   reported and the others run.
//! - Bounded in time and in rows per step. Nothing begins when the time is up; what was taken and not begun is
//!   given back; what is under way then ends by itself.
//! - A row that failed is due again later, so that it never holds back a healthy one.
//!
//! [`report`]: what a pass did. [`lock`]: one at a time. [`steps`]: the work.

mod lock;
pub mod report;
mod steps;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::FutureExt as _;
pub use report::{Report, Step, StepName, StepOutcome, StoreSteps};

use crate::delivery::Engine;
use crate::domain::{Clock, Random};
use crate::store;
use crate::store::status::Retention;

/// How much longer than the pass one of its steps may go on before it is given up on.
const GRACE: Duration = Duration::from_secs(3);

/// A store, and what passes over it need.
pub struct NamedStore {
    /// As in `[stores.NAME]`.
    pub name: Arc<str>,
    pub store: store::Shared,
    /// Its deliveries; [`Background::Off`](crate::delivery::Background::Off) where nothing else makes them.
    pub engine: Engine,
    /// Where messages come in by the users' own transactions.
    pub intake: Option<Arc<dyn Intake>>,
}

/// What becomes of the rows of the intake. Implemented where messages are prepared.
pub trait Intake: Send + Sync + 'static {
    fn judge(&self) -> store::intake::Shared;

    /// Says what became of them.
    fn moved(&self, moved: store::intake::Moved);
}

/// The bounds of a pass.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long it goes on.
    pub duration: Duration,
    /// Rows per step and store.
    pub batch_size: u32,
    pub retention: Retention,
    pub clock: Clock,
    pub random: Random,
}

/// A pass over one store, under way.
struct Pass<'a> {
    on: &'a NamedStore,
    options: &'a Options,
    /// Nothing begins after this.
    until: Instant,
}

/// Makes one pass over every store: accepts the intake, makes due deliveries, purges what expired. Never fails as a
/// whole: see the report.
pub async fn pass(stores: &[NamedStore], options: Options) -> Report {
    let began = options.clock.monotonic();
    let until = began + options.duration;
    let mut passes = Vec::new();
    for on in stores {
        passes.push(Pass { on, options: &options, until }.run().boxed());
    }
    let passed = futures::future::join_all(passes).await;
    let mut report = Report::default();
    for store in passed {
        report.add(store);
    }
    let took = options.clock.monotonic().saturating_duration_since(began);
    report.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    report
}
