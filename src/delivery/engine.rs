//! What the rest of the program sees of delivering.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::breaker;
use super::gate::Gates;
use super::inbox::HandlerOptions;
use super::pace::Pace;
use super::renewals::{self, Renewals};
use super::scanner;
use super::settler::{self, Settler};
use super::worker::Worker;
use crate::domain::delivery::{Delivery, Target};
use crate::domain::ordering::OnDeadLetter;
use crate::domain::retry::Backoff;
use crate::domain::{Clock, Random, Token};
use crate::store::deliveries::Receipt;
use crate::store::status::Retention;
use crate::telemetry::Metrics;
use crate::{store, transport};

/// A target, its way and its limits.
#[derive(Clone)]
pub struct TargetOptions {
    pub target: Target,
    pub transport: transport::Shared,
    /// One attempt ends within this.
    pub timeout: Duration,
    /// How long a row is leased for an attempt: more than `timeout`.
    pub lease: Duration,
    /// How long a row that failed for a request or a pass waits at least.
    pub stale: Duration,
    pub max_in_flight: usize,
    /// How often attempts begin, where that is limited. Shared by the node's stores.
    pub pace: Option<Arc<Pace>>,
    pub retry: Backoff,
    pub breaker: breaker::Settings,
    /// Paused by the configuration.
    pub paused: bool,
    /// Whether the messages of a key come one after the other, and what a dead letter does to those behind it.
    pub order: Option<OnDeadLetter>,
    /// Handlers only. Their leases are renewed while they run, so that `lease` may be shorter than `timeout`.
    pub handler: Option<HandlerOptions>,
}

/// Whether deliveries are made by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    On,
    /// Only for requests and passes: no task looks at the store, and no timer runs while nobody asks for anything.
    Off,
}

/// The node's limits and rhythms.
#[derive(Clone, Debug)]
pub struct Options {
    pub background: Background,
    /// Bodies held in memory for attempts, over all targets, in bytes.
    pub memory_bytes: usize,
    /// How often the store is looked at when nothing is known to be due.
    pub poll: Duration,
    /// How often what expired is purged.
    pub purge_every: Duration,
    /// Rows per purge step.
    pub purge_batch: u32,
    pub retention: Retention,
    /// Whether a delivery that was made leaves a receipt.
    pub receipt: Receipt,
    /// What it shares of its targets with the engines of other stores.
    pub gates: Gates,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            background: Background::On,
            memory_bytes: 64 * 1024 * 1024,
            poll: Duration::from_secs(5),
            purge_every: Duration::from_secs(60),
            purge_batch: 5_000,
            retention: Retention {
                receipts: Duration::from_secs(24 * 60 * 60),
                dead_letters: Duration::from_secs(30 * 24 * 60 * 60),
            },
            receipt: Receipt::Keep,
            gates: Gates::default(),
        }
    }
}

/// What all tasks of the engine share.
pub(super) struct Shared {
    /// The store's name, for the log.
    pub name: Arc<str>,
    pub store: store::Shared,
    pub clock: Clock,
    pub random: Random,
    pub metrics: Metrics,
    pub options: Options,
    pub workers: HashMap<Target, Arc<Worker>>,
    pub settler: Settler,
    pub renewals: Renewals,
    memory_used: AtomicUsize,
    /// No attempt begins any more.
    pub draining: CancellationToken,
    /// What still runs is left alone; its lease will end.
    pub stopped: CancellationToken,
    /// The store failed the last time somebody asked it: said once, not at every try.
    store_failing: AtomicBool,
    /// When it was last asked which targets are paused, where nobody asks by the clock.
    pub pauses_asked: std::sync::Mutex<Option<Instant>>,
    pub scanner_progress: std::sync::Mutex<Instant>,
    /// Told at every look of the scanner: whether rows of the intake wait.
    pub looks: watch::Sender<bool>,
    /// How often a target was paused or resumed here: what was read before is older than that.
    pub pauses: AtomicUsize,
    /// The scanner is to begin a round.
    pub look_around: tokio::sync::Notify,
}

impl Shared {
    /// Logs that the store fails, once until it answers again.
    pub fn store_failed(&self, what: &'static str, error: &store::Error) {
        if !self.store_failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(store = %self.name, what, %error, "the store does not answer; deliveries wait");
        }
    }

    pub fn store_answered(&self) {
        if self.store_failing.swap(false, Ordering::Relaxed) {
            tracing::info!(store = %self.name, "the store answers again");
        }
    }
}

/// Delivers. Shared by the use cases; ends with [`drain`](Self::drain).
#[derive(Clone)]
pub struct Engine {
    pub(super) shared: Arc<Shared>,
    pub(super) workers: TaskTracker,
    background: TaskTracker,
    /// Leases are not renewed any more.
    ended: CancellationToken,
}

/// Room in memory for one row, to be taken *before* the row is written, so that the row can be written as
/// leased by this node. Dropping it gives the room back.
pub struct Permit {
    worker: Arc<Worker>,
    shared: Arc<Shared>,
    bytes: usize,
    reserved_at: Instant,
}

impl Permit {
    /// For how long the row is to be written as leased.
    pub fn lease(&self) -> Duration {
        self.worker.options.lease
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.worker.rows_held.fetch_sub(1, Ordering::Relaxed);
        self.shared.memory_used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A row that this node has leased.
pub struct Held {
    pub(super) delivery: Delivery,
    pub(super) token: Token,
    /// On the monotonic clock, from before the row was leased.
    pub(super) lease_until: Instant,
    pub(super) takes: u32,
    /// Whether it passes another message's claim of its work.
    pub(super) forced: bool,
    /// Only held: its room is given back when the row is let go.
    pub(super) _permit: Option<Permit>,
}

impl Held {
    /// A delivery that a request runs.
    pub(super) fn of(delivery: Delivery, token: Token, lease_until: Instant) -> Self {
        Self { delivery, token, lease_until, takes: 1, forced: false, _permit: None }
    }
}

/// What the API tells of a target.
#[derive(Clone, Debug)]
pub struct TargetView {
    pub target: Target,
    pub ordered: bool,
    pub breaker_open: bool,
    pub paused: bool,
    pub last_error: Option<String>,
}

impl Engine {
    /// Starts delivering: one task per target, a settler, and the scanner. Needs a Tokio runtime.
    pub fn start(
        name: &str,
        store: store::Shared,
        targets: Vec<TargetOptions>,
        options: Options,
        clock: Clock,
        random: Random,
        metrics: Metrics,
    ) -> Self {
        let (settler, settlements) = settler::channel();
        let gates = &options.gates;
        let worker = |options: TargetOptions| {
            let labels = metrics.labels(&options.target);
            Worker::new(options, gates, labels, clock.monotonic())
        };
        let workers: HashMap<Target, Arc<Worker>> =
            targets.into_iter().map(|options| (options.target.clone(), Arc::new(worker(options)))).collect();
        let shared = Arc::new(Shared {
            name: name.into(),
            store,
            scanner_progress: std::sync::Mutex::new(clock.monotonic()),
            looks: watch::Sender::new(false),
            pauses: AtomicUsize::new(0),
            look_around: tokio::sync::Notify::new(),
            clock,
            random,
            metrics,
            options,
            workers,
            settler,
            renewals: Renewals::default(),
            memory_used: AtomicUsize::new(0),
            draining: CancellationToken::new(),
            stopped: CancellationToken::new(),
            store_failing: AtomicBool::new(false),
            pauses_asked: std::sync::Mutex::default(),
        });
        let engine = Self {
            shared: Arc::clone(&shared),
            workers: TaskTracker::new(),
            background: TaskTracker::new(),
            ended: CancellationToken::new(),
        };
        tokio::spawn(renewals::run(
            shared.renewals.clone(),
            Arc::clone(&shared.store),
            shared.clock.clone(),
            engine.ended.clone(),
        ));
        engine.background.spawn(settler::run(Arc::clone(&shared), settlements));
        if shared.options.background == Background::Off {
            return engine;
        }
        for worker in shared.workers.values() {
            engine.workers.spawn(super::worker::run(Arc::clone(worker), Arc::clone(&shared)));
        }
        engine.background.spawn(scanner::run(Arc::clone(&shared)));
        engine
    }

    /// Room for a row of `bytes` where deliveries are made in the background, or `None`: then the row is written
    /// `waiting` and taken from the store later.
    pub fn reserve(&self, target: &Target, bytes: usize) -> Option<Permit> {
        let worker = self.shared.workers.get(target)?;
        // Whose turn it is in an order, the store knows.
        if self.shared.options.background == Background::Off || worker.options.order.is_some() {
            return None;
        }
        if self.shared.draining.is_cancelled() || !worker.wants_memory(self.shared.clock.monotonic()) {
            return None;
        }
        let used = self.shared.memory_used.fetch_add(bytes, Ordering::Relaxed);
        let held = worker.rows_held.fetch_add(1, Ordering::Relaxed);
        let permit = Permit {
            worker: Arc::clone(worker),
            shared: Arc::clone(&self.shared),
            bytes,
            reserved_at: self.shared.clock.monotonic(),
        };
        // Beyond a limit the permit is dropped here, which takes back what was added.
        (used + bytes <= self.shared.options.memory_bytes && held < worker.memory_rows()).then_some(permit)
    }

    /// The row is committed, leased under `token`: attempt it from memory.
    pub fn offer(&self, permit: Permit, delivery: Delivery, token: Token) {
        let lease_until = permit.reserved_at + permit.lease();
        let worker = Arc::clone(&permit.worker);
        let held = Held { delivery, token, lease_until, takes: 1, forced: false, _permit: Some(permit) };
        if let Err(late) = worker.offer(held) {
            // Draining: nobody has to wait for the lease to end.
            let store = Arc::clone(&self.shared.store);
            self.background.spawn(async move {
                if let Err(error) = store.give_back(&[(late.delivery.row, late.token)]).await {
                    tracing::debug!(%error, "a row could not be given back; it is due when its lease ends");
                }
            });
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Renews the leases of work that runs outside of deliveries.
    pub fn renewals(&self) -> &Renewals {
        &self.shared.renewals
    }

    /// Changes at every look at the store that is made anyway: whether rows of the intake wait.
    pub fn looks(&self) -> watch::Receiver<bool> {
        self.shared.looks.subscribe()
    }

    /// A row of this target is committed and will be due after `after`.
    pub fn note_due(&self, target: &Target, after: Duration) {
        if let Some(worker) = self.shared.workers.get(target) {
            worker.note_due(self.shared.clock.monotonic() + after);
        }
    }

    /// Rows of this target came back, which may have been written while it had no order.
    pub fn note_strays(&self, target: &Target) {
        if let Some(worker) = self.shared.workers.get(target) {
            worker.note_strays(self.shared.clock.monotonic());
        }
    }

    /// What dead letters do to the keys of a target; `None`: it is not ordered.
    pub fn order(&self, target: &Target) -> Option<OnDeadLetter> {
        self.shared.workers.get(target)?.options.order
    }

    /// Pauses or resumes on this node, at once; other nodes follow the store.
    pub fn set_paused(&self, target: &Target, paused: bool) {
        self.shared.pauses.fetch_add(1, Ordering::SeqCst);
        if let Some(worker) = self.shared.workers.get(target) {
            worker.set_paused(paused);
        }
    }

    /// Every configured target, by name.
    pub fn targets(&self) -> Vec<TargetView> {
        let mut views: Vec<_> = self.shared.workers.values().map(|worker| worker.view()).collect();
        views.sort_by(|a, b| a.target.cmp(&b.target));
        views
    }

    /// `Err`: a loop of this node has made no progress for `limit`; which, and for how long.
    ///
    /// # Errors
    /// A sentence for `/readyz`.
    pub fn progress(&self, limit: Duration) -> Result<(), String> {
        let now = self.shared.clock.monotonic();
        if self.shared.options.background == Background::Off {
            return stuck("settler", self.shared.settler.last_progress(now), now, limit);
        }
        let scanner = *self.shared.scanner_progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let stamps = self
            .shared
            .workers
            .values()
            .map(|worker| (worker.options.target.to_string(), worker.last_progress()))
            .chain([
                ("scanner".to_owned(), scanner),
                ("settler".to_owned(), self.shared.settler.last_progress(now)),
            ]);
        for (name, stamp) in stamps {
            stuck(&name, stamp, now, limit)?;
        }
        Ok(())
    }

    /// Stops: no further attempt begins, rows held and not attempted are given back, attempts under way may
    /// end until `deadline` has passed, and what they came to is written.
    pub async fn drain(&self, deadline: Duration) {
        self.shared.draining.cancel();
        self.workers.close();
        if tokio::time::timeout(deadline, self.workers.wait()).await.is_err() {
            tracing::warn!("attempts were still running at the deadline; their leases will end");
            self.shared.stopped.cancel();
            self.workers.wait().await;
        }
        self.shared.settler.close();
        self.background.close();
        if tokio::time::timeout(Duration::from_secs(5), self.background.wait()).await.is_err() {
            tracing::warn!("the store did not take the last outcomes; those messages will be sent again");
        }
        self.ended.cancel();
    }

    /// Ends the connections to the targets. To be called once nothing is attempted by them any more: engines of
    /// several stores share them.
    pub async fn close(&self) {
        for worker in self.shared.workers.values() {
            worker.options.transport.close().await;
        }
    }
}

/// Whether what last moved at `stamp` has stood still for too long.
fn stuck(name: &str, stamp: Instant, now: Instant, limit: Duration) -> Result<(), String> {
    let idle = now.saturating_duration_since(stamp);
    if idle > limit {
        return Err(format!("the loop of the {name} has made no progress for {} s", idle.as_secs()));
    }
    Ok(())
}
