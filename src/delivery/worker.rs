//! One target's task: what to attempt next, many attempts at once, what an attempt came to.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, Fuse, FusedFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Notify, mpsc};

use super::attempt::{self, Concluded};
use super::breaker::{Admission, Breaker};
use super::engine::{Held, Shared, TargetOptions, TargetView};
use super::inbox::{self, Ended};
use super::settler::{Item, Work};
use crate::domain::delivery::{DeadKind, Failure, Fault, MAX_TAKES};
use crate::store::deliveries::{Counted, DeadNote, ErrorNote, Settle, Settlement, Take, Taken};
use crate::store::{self};
use crate::telemetry::TargetLabels;

/// The most rows taken by one statement.
const TAKE: usize = 500;
/// A target this quick may have the next rows taken while the last are still in flight.
const QUICK: Duration = Duration::from_millis(200);
/// When to ask again for rows that are due and locked.
const LOCKED_ROWS: Duration = Duration::from_millis(250);
/// The longest error text kept.
const ERROR_TEXT_CHARS: usize = 2_000;

pub(super) struct Worker {
    pub options: TargetOptions,
    pub labels: TargetLabels,
    pub rows_held: AtomicUsize,
    sender: mpsc::UnboundedSender<Held>,
    receiver: tokio::sync::Mutex<mpsc::UnboundedReceiver<Held>>,
    /// Something other than a new row changed.
    changed: Notify,
    /// When the store is to be asked next, as far as is known.
    next_due: Mutex<Option<Instant>>,
    breaker: Mutex<Breaker>,
    paused: AtomicBool,
    /// Whether the store has said yet which targets are paused; before that nothing is attempted.
    pause_known: AtomicBool,
    last_error: Mutex<Option<String>>,
    progress: Mutex<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    pub fn new(options: TargetOptions, labels: TargetLabels, now: Instant) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self {
            labels,
            rows_held: AtomicUsize::new(0),
            sender,
            receiver: tokio::sync::Mutex::new(receiver),
            changed: Notify::new(),
            // What a node that died left behind is looked for at once.
            next_due: Mutex::new(Some(now)),
            breaker: Mutex::new(Breaker::new(options.breaker)),
            paused: AtomicBool::new(false),
            pause_known: AtomicBool::new(false),
            last_error: Mutex::new(None),
            progress: Mutex::new(now),
            options,
        }
    }

    /// Rows that may be held in memory, in flight or waiting for it.
    pub fn memory_rows(&self) -> usize {
        (self.options.max_in_flight * 4).clamp(256, 8_192)
    }

    /// Whether holding a row in memory makes sense: it would be attempted soon.
    pub fn wants_memory(&self, now: Instant) -> bool {
        !self.holds() && lock(&self.breaker).admits(now) == Admission::Yes
    }

    /// Gives the row back when this worker takes no more.
    pub fn offer(&self, held: Held) -> Result<(), Box<Held>> {
        self.sender.send(held).map_err(|unsent| Box::new(unsent.0))
    }

    pub fn note_due(&self, at: Instant) {
        let mut next = lock(&self.next_due);
        if next.is_none_or(|known| at < known) {
            *next = Some(at);
            drop(next);
            self.changed.notify_one();
        }
    }

    pub fn set_paused(&self, paused: bool) {
        let was = self.paused.swap(paused, Ordering::Relaxed);
        let was_known = self.pause_known.swap(true, Ordering::Relaxed);
        if was != paused || !was_known {
            self.changed.notify_one();
        }
    }

    /// Whether no attempt may begin: paused, or not yet known not to be.
    pub fn holds(&self) -> bool {
        self.is_paused() || !self.pause_known.load(Ordering::Relaxed)
    }

    fn is_paused(&self) -> bool {
        self.options.paused || self.paused.load(Ordering::Relaxed)
    }

    pub fn view(&self) -> TargetView {
        TargetView {
            target: self.options.target.clone(),
            breaker_open: lock(&self.breaker).is_open(),
            paused: self.is_paused(),
            last_error: lock(&self.last_error).clone(),
        }
    }

    pub fn last_progress(&self) -> Instant {
        *lock(&self.progress)
    }
}

impl TargetOptions {
    /// How much of a row's lease must be left for an attempt to begin: all of its time; for handlers, whose
    /// leases are renewed, enough for the first renewal.
    fn needs_lease(&self) -> Duration {
        if self.handler.is_some() { self.lease / 2 } else { self.timeout }
    }
}

/// What a look at the store brought.
struct Looked {
    taken: Vec<Taken>,
    /// The monotonic moment from before the rows were leased.
    asked_at: Instant,
    token: crate::domain::Token,
    /// When to look again: now, if the answer was full.
    next: Option<Duration>,
}

type Flights = FuturesUnordered<BoxFuture<'static, Concluded>>;
type Look = Fuse<BoxFuture<'static, store::Result<Looked>>>;

/// Runs until the engine drains. A defect in one round is logged and the next round begins anew.
pub(super) async fn run(worker: Arc<Worker>, shared: Arc<Shared>) {
    let Some(settlements) = shared.settler.sender() else { return };
    loop {
        let mut task = Task {
            worker: Arc::clone(&worker),
            shared: Arc::clone(&shared),
            settlements: settlements.clone(),
            ready: VecDeque::new(),
            flights: FuturesUnordered::new(),
            look: Fuse::terminated(),
            quick: true,
        };
        let ended = AssertUnwindSafe(task.run()).catch_unwind().await;
        if ended.is_ok() {
            return;
        }
        tracing::error!(target_name = %worker.options.target.name, "a defect stopped this target's task; it begins anew");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = shared.clock.monotonic();
        lock(&worker.breaker).probe_abandoned(now);
        worker.note_due(now);
    }
}

struct Task {
    worker: Arc<Worker>,
    shared: Arc<Shared>,
    settlements: mpsc::Sender<Item>,
    /// Leased, not yet attempted.
    ready: VecDeque<Held>,
    flights: Flights,
    look: Look,
    /// Whether recent attempts were quick enough to take rows ahead.
    quick: bool,
}

impl Task {
    async fn run(&mut self) {
        let worker = Arc::clone(&self.worker);
        let shared = Arc::clone(&self.shared);
        let mut queue = worker.receiver.lock().await;
        while !shared.draining.is_cancelled() {
            while let Ok(held) = queue.try_recv() {
                self.ready.push_back(held);
            }
            let now = shared.clock.monotonic();
            *lock(&worker.progress) = now;
            self.begin(now).await;
            self.look_at_store(now);
            let wake = self.wake_at(now);
            tokio::select! {
                Some(concluded) = self.flights.next(), if !self.flights.is_empty() => {
                    self.conclude(concluded).await;
                    // What has ended meanwhile, before anything else is asked.
                    while let Some(Some(concluded)) = self.flights.next().now_or_never() {
                        self.conclude(concluded).await;
                    }
                }
                Some(held) = queue.recv() => self.ready.push_back(held),
                looked = &mut self.look, if !self.look.is_terminated() => self.looked(looked).await,
                () = worker.changed.notified() => {}
                () = tokio::time::sleep(wake.saturating_duration_since(now)) => {}
                () = shared.draining.cancelled() => {}
            }
        }
        self.drain(&mut queue).await;
    }

    /// Begins what may begin; gives back what may not for a while.
    async fn begin(&mut self, now: Instant) {
        while let Some(held) = self.ready.front() {
            let admission = lock(&self.worker.breaker).admits(now);
            if self.worker.holds() || matches!(admission, Admission::No(_)) {
                self.give_back_ready().await;
                return;
            }
            if self.flights.len() >= self.worker.options.max_in_flight {
                return;
            }
            if now + self.worker.options.needs_lease() > held.lease_until {
                // It could end after the lease: somebody else will have it when the lease has ended.
                self.worker.note_due(held.lease_until);
                self.ready.pop_front();
                continue;
            }
            let Some(held) = self.ready.pop_front() else { return };
            if held.takes > MAX_TAKES {
                let text = format!("taken {MAX_TAKES} times without ever being settled");
                self.dead(held, DeadKind::NeverSettled, text, Counted::No).await;
                continue;
            }
            if held.delivery.message.deliver_by.is_some_and(|by| by <= self.shared.clock.now()) {
                self.dead(held, DeadKind::Expired, "its deliver-by has passed".into(), Counted::No).await;
                continue;
            }
            if admission == Admission::Probe {
                lock(&self.worker.breaker).probe();
            }
            let (worker, shared) = (Arc::clone(&self.worker), Arc::clone(&self.shared));
            self.flights.push(attempt::attempt(worker, shared, held).boxed());
        }
    }

    /// Asks the store for due rows, if there is room for them and no question is under way.
    fn look_at_store(&mut self, now: Instant) {
        let free = self.room();
        if free == 0 || !self.look.is_terminated() || self.worker.holds() {
            return;
        }
        let limit = match lock(&self.worker.breaker).admits(now) {
            Admission::Yes => free.min(TAKE),
            Admission::Probe => 1,
            Admission::No(_) => return,
        };
        {
            let mut next = lock(&self.worker.next_due);
            if next.is_none_or(|due| due > now) {
                return;
            }
            // What becomes known while the store is asked is kept apart from its answer.
            *next = None;
        }
        let take = Take {
            target: self.worker.options.target.clone(),
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
            lease: self.worker.options.lease,
            token: self.shared.random.token(),
        };
        let store = Arc::clone(&self.shared.store);
        self.look = look(store, take, now).boxed().fuse();
    }

    /// How many rows may be taken: what can begin soon. Not a few at a time while many are in flight.
    fn room(&self) -> usize {
        let most = self.worker.options.max_in_flight;
        let ahead = if self.quick { most } else { 0 };
        let free = (most + ahead).saturating_sub(self.flights.len() + self.ready.len());
        if free * 4 < most && !self.flights.is_empty() { 0 } else { free }
    }

    async fn looked(&mut self, looked: store::Result<Looked>) {
        let now = self.shared.clock.monotonic();
        match looked {
            Ok(looked) => {
                self.shared.store_answered();
                if let Some(next) = looked.next {
                    self.worker.note_due(now + next);
                }
                for taken in looked.taken {
                    let held = Held {
                        delivery: taken.delivery,
                        token: looked.token,
                        lease_until: looked.asked_at + self.worker.options.lease,
                        takes: taken.takes,
                        _permit: None,
                    };
                    if taken.expired {
                        self.dead(held, DeadKind::Expired, "its deliver-by has passed".into(), Counted::No)
                            .await;
                    } else {
                        self.ready.push_back(held);
                    }
                }
            }
            Err(error) => {
                self.shared.store_failed("take", &error);
                self.worker.note_due(now + Duration::from_secs(1));
            }
        }
    }

    fn wake_at(&self, now: Instant) -> Instant {
        let idle = now + self.shared.options.poll;
        if self.worker.holds() {
            return idle;
        }
        let due =
            if self.room() > 0 && self.look.is_terminated() { *lock(&self.worker.next_due) } else { None };
        match lock(&self.worker.breaker).admits(now) {
            Admission::Yes | Admission::Probe => due.unwrap_or(idle).min(idle),
            Admission::No(Some(until)) => until.min(idle),
            Admission::No(None) => idle,
        }
    }

    /// Says what an attempt means, to the breaker and to the store.
    async fn conclude(&mut self, concluded: Concluded) {
        let Concluded { held, ended, took, work } = concluded;
        self.quick = took < QUICK;
        let now = self.shared.clock.monotonic();
        let settle = match ended {
            Ended::Ran(Ok(_)) => {
                self.shared.metrics.sent(&self.worker.labels, took);
                lock(&self.worker.breaker).succeeded();
                Settle::Done { receipt: self.shared.options.receipt }
            }
            Ended::Ran(Err(failure)) => self.failed(&held, &failure, now),
            not_run => {
                lock(&self.worker.breaker).probe_abandoned(now);
                inbox::not_run(&self.worker, &self.shared, &held, not_run, now)
            }
        };
        if let Settle::Retry { after, .. } = &settle {
            self.worker.note_due(now + *after);
        }
        self.settle(held, settle, work).await;
    }

    fn failed(&self, held: &Held, failure: &Failure, now: Instant) -> Settle {
        let text = printable(&failure.text);
        let (label, settle) = self.judge(held, failure, &text, now);
        self.shared.metrics.failed(&self.worker.labels, label);
        tracing::debug!(
            message = %held.delivery.message.id, target_name = %self.worker.options.target.name,
            fault = label, error = %text, "attempt failed"
        );
        *lock(&self.worker.last_error) = Some(text);
        settle
    }

    fn judge(&self, held: &Held, failure: &Failure, text: &str, now: Instant) -> (&'static str, Settle) {
        let mut breaker = lock(&self.worker.breaker);
        match failure.fault {
            Fault::Message(kind) => {
                breaker.succeeded(); // it answered
                let error = DeadNote { kind, text: text.to_owned() };
                ("message", Settle::Dead { error, counted: Counted::Yes })
            }
            Fault::Target => {
                let was_open = breaker.is_open();
                let until = breaker.opened(now, failure.retry_after);
                drop(breaker);
                let after = until.saturating_duration_since(now);
                if !was_open {
                    self.say_opened(after, text);
                }
                let error = ErrorNote { kind: "Target", text: text.to_owned() };
                ("target", Settle::Retry { after, counted: Counted::No, error })
            }
            Fault::Attempt => {
                let opened = breaker.failed(now);
                drop(breaker);
                if let Some(until) = opened {
                    self.say_opened(until.saturating_duration_since(now), text);
                }
                let failed = held.delivery.attempts + 1;
                let wait = self.worker.options.retry.next(failed, failure.retry_after, self.shared.random);
                let settle = match wait {
                    Some(after) => Settle::Retry {
                        after,
                        counted: Counted::Yes,
                        error: ErrorNote { kind: "Attempt", text: text.to_owned() },
                    },
                    None => Settle::Dead {
                        error: DeadNote {
                            kind: DeadKind::AttemptsExhausted,
                            text: format!("after {failed} attempts: {text}"),
                        },
                        counted: Counted::Yes,
                    },
                };
                ("attempt", settle)
            }
        }
    }

    fn say_opened(&self, wait: Duration, text: &str) {
        tracing::warn!(
            target_name = %self.worker.options.target.name, wait_seconds = wait.as_secs_f64(), error = %text,
            "the target does not take messages; they wait"
        );
    }

    async fn dead(&mut self, held: Held, kind: DeadKind, text: String, counted: Counted) {
        let outcome = Settle::Dead { error: DeadNote { kind, text }, counted };
        self.settle(held, outcome, Work::default()).await;
    }

    async fn settle(&mut self, held: Held, outcome: Settle, work: Work) {
        let item = Item {
            settlement: Settlement { row: held.delivery.row, token: held.token, outcome },
            target: self.worker.options.target.clone(),
            message_id: held.delivery.message.id.clone(),
            work,
        };
        // The settler outlives the workers.
        drop(self.settlements.send(item).await);
    }

    /// Makes what is held and not attempted due again, for whoever comes first.
    async fn give_back_ready(&mut self) {
        let now = self.shared.clock.monotonic();
        let rows: Vec<_> = self.ready.iter().map(|held| (held.delivery.row, held.token)).collect();
        if let Err(error) = self.shared.store.give_back(&rows).await {
            self.shared.store_failed("give back", &error);
            if let Some(until) = self.ready.iter().map(|held| held.lease_until).min() {
                self.worker.note_due(until);
            }
        } else {
            self.worker.note_due(now);
        }
        self.ready.clear();
    }

    async fn drain(&mut self, queue: &mut mpsc::UnboundedReceiver<Held>) {
        queue.close();
        while let Ok(held) = queue.try_recv() {
            self.ready.push_back(held);
        }
        if !self.look.is_terminated()
            && let Ok(Ok(looked)) = tokio::time::timeout(Duration::from_secs(3), &mut self.look).await
        {
            self.looked(Ok(looked)).await;
        }
        if !self.ready.is_empty()
            && tokio::time::timeout(Duration::from_secs(3), self.give_back_ready()).await.is_err()
        {
            tracing::warn!(
                "the store did not take back what was held; those rows are due when their leases end"
            );
        }
        while !self.flights.is_empty() {
            tokio::select! {
                Some(concluded) = self.flights.next() => self.conclude(concluded).await,
                () = self.shared.stopped.cancelled() => return,
            }
        }
    }
}

async fn look(store: store::Shared, take: Take, asked_at: Instant) -> store::Result<Looked> {
    let taken = store.take(&take).await?;
    let next = if taken.len() == take.limit as usize {
        Some(Duration::ZERO)
    } else {
        let next = store.due_in(std::slice::from_ref(&take.target)).await?.into_iter().next().flatten();
        // Due, yet not to be had: somebody else's transaction holds it.
        if taken.is_empty() { next.map(|next| next.max(LOCKED_ROWS)) } else { next }
    };
    Ok(Looked { taken, asked_at, token: take.token, next })
}

/// Error texts come from outside: one line, bounded, nothing that a database chokes on.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(ERROR_TEXT_CHARS).collect()
}
