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
use super::breaker::Admission;
use super::engine::{Held, Shared, TargetOptions, TargetView};
use super::gate::{Gate, Gates, Turn};
use super::lanes::{Rounds, Step};
use super::settler::Item;
use crate::domain::delivery::{DeadKind, MAX_TAKES};
use crate::store::deliveries::{Counted, Take, Taken};
use crate::store::{self};
use crate::telemetry::TargetLabels;

/// The most rows taken by one statement.
const TAKE: usize = 500;
/// When to ask again for rows that are due and locked.
const LOCKED_ROWS: Duration = Duration::from_millis(250);

pub(super) struct Worker {
    pub options: TargetOptions,
    pub labels: TargetLabels,
    pub rows_held: AtomicUsize,
    sender: mpsc::UnboundedSender<Held>,
    receiver: tokio::sync::Mutex<mpsc::UnboundedReceiver<Held>>,
    /// Something other than a new row changed.
    changed: Arc<Notify>,
    /// When the store is to be asked next, as far as is known.
    next_due: Mutex<Option<Instant>>,
    /// How far the look through the keys of an ordered target has come.
    pub rounds: Rounds,
    pub gate: Arc<Gate>,
    /// What the last round of a pass through the keys of an ordered target left: when the next row is due.
    pub passed: Mutex<Option<Option<Instant>>>,
    paused: AtomicBool,
    /// Whether the store has said yet which targets are paused; before that nothing is attempted.
    pause_known: AtomicBool,
    pub last_error: Mutex<Option<String>>,
    progress: Mutex<Instant>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    pub fn new(options: TargetOptions, gates: &Gates, labels: TargetLabels, now: Instant) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let changed = Arc::new(Notify::new());
        Self {
            labels,
            rows_held: AtomicUsize::new(0),
            sender,
            receiver: tokio::sync::Mutex::new(receiver),
            gate: gates.of(&options, &changed),
            changed,
            // What a node that died left behind is looked for at once.
            next_due: Mutex::new(Some(now)),
            rounds: Rounds::new(),
            passed: Mutex::default(),
            paused: AtomicBool::new(false),
            pause_known: AtomicBool::new(false),
            last_error: Mutex::new(None),
            progress: Mutex::new(now),
            options,
        }
    }

    /// Rows that may be held in memory, in flight or waiting for it.
    pub fn memory_rows(&self) -> usize {
        let rows = (self.options.max_in_flight * 4).clamp(256, 8_192);
        self.options.pace.as_ref().map_or(rows, |pace| rows.min(pace.rows()))
    }

    /// Whether holding a row in memory makes sense: it would be attempted soon.
    pub fn wants_memory(&self, now: Instant) -> bool {
        !self.holds()
            && self.gate.admits(now) == Admission::Yes
            && self.options.pace.as_ref().is_none_or(|pace| pace.closed_until(now).is_none())
    }

    /// Gives the row back when this worker takes no more.
    pub fn offer(&self, held: Held) -> Result<(), Box<Held>> {
        self.sender.send(held).map_err(|unsent| Box::new(unsent.0))
    }

    pub fn note_due(&self, at: Instant) {
        self.rounds.news();
        self.look_again(at);
    }

    /// Rows without a place in the order may be there.
    pub fn note_strays(&self, now: Instant) {
        self.rounds.note_strays();
        self.note_due(now);
    }

    fn look_again(&self, at: Instant) {
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

    pub fn is_paused(&self) -> bool {
        self.options.paused || self.paused.load(Ordering::Relaxed)
    }

    pub fn view(&self) -> TargetView {
        TargetView {
            target: self.options.target.clone(),
            ordered: self.options.order.is_some(),
            breaker_open: self.gate.is_open(),
            paused: self.is_paused(),
            last_error: lock(&self.last_error).clone(),
        }
    }

    pub fn last_progress(&self) -> Instant {
        *lock(&self.progress)
    }

    /// What the last attempt that failed said.
    pub fn told_last(&self) -> Option<String> {
        lock(&self.last_error).clone()
    }

    /// Whether an attempt may begin; one that is a probe is counted as begun.
    pub fn admit(&self, now: Instant) -> Admission {
        match self.gate.admits(now) {
            // Another one's attempt is the probe.
            Admission::Probe if !self.gate.probe(now) => Admission::No(None),
            admission => admission,
        }
    }
}

impl TargetOptions {
    /// How much of a row's lease must be left for an attempt to begin: all of its time; for handlers, whose
    /// leases are renewed, enough for the first renewal.
    pub(super) fn needs_lease(&self) -> Duration {
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
/// Rows on their way back to the store, and when their leases end.
type Returns = FuturesUnordered<BoxFuture<'static, (store::Result<u64>, Instant)>>;

/// Runs until the engine drains. A defect in one round is logged and the next round begins anew.
pub(super) async fn run(worker: Arc<Worker>, shared: Arc<Shared>) {
    let Some(settlements) = shared.settler.sender() else { return };
    loop {
        let mut task = Task {
            worker: Arc::clone(&worker),
            shared: Arc::clone(&shared),
            settlements: settlements.clone(),
            unsettled: VecDeque::new(),
            ready: VecDeque::new(),
            flights: FuturesUnordered::new(),
            look: Fuse::terminated(),
            returns: FuturesUnordered::new(),
            turn: Turn::new(&worker.gate),
            quick: true,
        };
        let ended = AssertUnwindSafe(task.run()).catch_unwind().await;
        if ended.is_ok() {
            return;
        }
        tracing::error!(target_name = %worker.options.target.name, "a defect stopped this target's task; it begins anew");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = shared.clock.monotonic();
        worker.gate.probe_abandoned(now);
        worker.note_due(now);
    }
}

/// Waits for nothing but its next event: what it asks of the store is asked beside its attempts, so that a store
/// that does not answer holds no slot and no probe of a target that other stores deliver to as well.
pub(super) struct Task {
    pub worker: Arc<Worker>,
    pub shared: Arc<Shared>,
    pub settlements: mpsc::Sender<Item>,
    /// Outcomes for which the settler has no room yet.
    pub unsettled: VecDeque<Item>,
    /// Leased, not yet attempted.
    ready: VecDeque<Held>,
    flights: Flights,
    look: Look,
    returns: Returns,
    turn: Turn,
    /// Whether recent attempts were quick enough to take rows ahead.
    pub quick: bool,
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
            self.begin(now);
            self.look_at_store(now);
            let wake = self.wake_at(now);
            tokio::select! {
                Some(concluded) = self.flights.next(), if !self.flights.is_empty() => {
                    self.conclude(concluded);
                    // What has ended meanwhile, before anything else is asked.
                    while let Some(Some(concluded)) = self.flights.next().now_or_never() {
                        self.conclude(concluded);
                    }
                }
                () = room(&self.settlements), if !self.unsettled.is_empty() => self.hand_over(),
                Some(returned) = self.returns.next(), if !self.returns.is_empty() => self.returned(returned),
                () = self.turn.came() => {}
                Some(held) = queue.recv() => self.ready.push_back(held),
                looked = &mut self.look, if !self.look.is_terminated() => self.looked(looked),
                () = worker.changed.notified() => {}
                () = tokio::time::sleep(wake.saturating_duration_since(now)) => {}
                () = shared.draining.cancelled() => {}
            }
        }
        self.drain(&mut queue).await;
    }

    /// Begins what may begin; gives back what may not for a while.
    fn begin(&mut self, now: Instant) {
        while let Some(held) = self.ready.front().filter(|_| self.unsettled.is_empty()) {
            let admission = self.worker.gate.admits(now);
            if self.worker.holds() || matches!(admission, Admission::No(_)) {
                return self.give_back_ready();
            }
            if self.flights.len() >= self.worker.options.max_in_flight {
                return;
            }
            if now + self.worker.options.needs_lease() > held.lease_until {
                if self.turn.is_shared() {
                    // It waited for its turn at the target: nobody has to wait for its lease as well.
                    return self.give_back_ready();
                }
                // It could end after the lease: somebody else will have it when the lease has ended.
                self.worker.note_due(held.lease_until);
                self.ready.pop_front();
                continue;
            }
            let Some(slot) = self.turn.take() else { return };
            if let Some(pace) = &self.worker.options.pace
                && pace.begin(now).is_err()
            {
                if pace.closed_until(now).is_some() {
                    self.give_back_ready();
                }
                return;
            }
            let Some(held) = self.ready.pop_front() else { return };
            if held.takes > MAX_TAKES {
                let text = format!("taken {MAX_TAKES} times without ever being settled");
                self.dead(held, DeadKind::NeverSettled, text, Counted::No);
                continue;
            }
            if held.delivery.message.deliver_by.is_some_and(|by| by <= self.shared.clock.now()) {
                self.dead(held, DeadKind::Expired, "its deliver-by has passed".into(), Counted::No);
                continue;
            }
            if admission == Admission::Probe && !self.worker.gate.probe(now) {
                // Another store's delivery is the probe.
                self.ready.push_front(held);
                continue;
            }
            let attempt = attempt::attempt(Arc::clone(&self.worker), Arc::clone(&self.shared), held);
            self.flights.push(attempt.inspect(|_| drop(slot)).boxed());
        }
        if self.ready.is_empty() || !self.unsettled.is_empty() {
            self.turn.leave();
        }
    }

    /// Asks the store for due rows, if there is room for them and no question is under way.
    fn look_at_store(&mut self, now: Instant) {
        let free = self.room();
        if free == 0 || !self.unsettled.is_empty() || !self.look.is_terminated() || self.worker.holds() {
            return;
        }
        if self.worker.options.pace.as_ref().is_some_and(|pace| pace.closed_until(now).is_some()) {
            return;
        }
        let limit = match self.worker.gate.admits(now) {
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
        let worker = Arc::clone(&self.worker);
        self.look = match self.worker.options.order {
            None => look(store, take, now).boxed().fuse(),
            Some(on_dead_letter) => {
                let step = self.worker.rounds.step(take, on_dead_letter);
                look_in_order(worker, store, step, now).boxed().fuse()
            }
        };
    }

    /// How many rows may be taken: what can begin soon. Not a few at a time while many are in flight.
    fn room(&self) -> usize {
        let most = self.worker.options.max_in_flight;
        let ahead = if self.quick { most } else { 0 };
        let free = (most + ahead).saturating_sub(self.flights.len() + self.ready.len());
        if free * 4 < most && !self.flights.is_empty() {
            return 0;
        }
        let pace = self.worker.options.pace.as_ref();
        let free = pace.map_or(free, |pace| free.min(pace.rows().saturating_sub(self.ready.len())));
        if self.quick { free } else { self.worker.gate.room(free) }
    }

    fn looked(&mut self, looked: store::Result<Looked>) {
        let now = self.shared.clock.monotonic();
        match looked {
            Ok(looked) => {
                self.shared.store_answered();
                if let Some(next) = looked.next {
                    self.worker.look_again(now + next);
                }
                for taken in looked.taken {
                    let held = Held {
                        delivery: taken.delivery,
                        token: looked.token,
                        lease_until: looked.asked_at + self.worker.options.lease,
                        takes: taken.takes,
                        forced: taken.forced,
                        _permit: None,
                    };
                    if taken.expired {
                        self.dead(held, DeadKind::Expired, "its deliver-by has passed".into(), Counted::No);
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
        if self.worker.holds() || !self.unsettled.is_empty() {
            return idle;
        }
        let due =
            if self.room() > 0 && self.look.is_terminated() { *lock(&self.worker.next_due) } else { None };
        if let Some(pace) = &self.worker.options.pace {
            if let Some(until) = pace.closed_until(now) {
                return until.min(idle);
            }
            if let Some(turn) = pace.turn(now).filter(|_| !self.ready.is_empty()) {
                return turn.min(due.unwrap_or(idle)).min(idle);
            }
        }
        match self.worker.gate.admits(now) {
            Admission::Yes | Admission::Probe => due.unwrap_or(idle).min(idle),
            Admission::No(Some(until)) => until.min(idle),
            Admission::No(None) => idle,
        }
    }

    /// Makes what is held and not attempted due again, for whoever comes first.
    fn give_back_ready(&mut self) {
        self.turn.leave();
        let Some(until) = self.ready.iter().map(|held| held.lease_until).min() else { return };
        let rows: Vec<_> = self.ready.drain(..).map(|held| (held.delivery.row, held.token)).collect();
        let store = Arc::clone(&self.shared.store);
        self.returns.push(async move { (store.give_back(&rows).await, until) }.boxed());
    }

    fn returned(&mut self, (returned, until): (store::Result<u64>, Instant)) {
        match returned {
            Ok(_) => self.worker.note_due(self.shared.clock.monotonic()),
            Err(error) => {
                self.shared.store_failed("give back", &error);
                self.worker.note_due(until);
            }
        }
    }

    async fn drain(&mut self, queue: &mut mpsc::UnboundedReceiver<Held>) {
        queue.close();
        while let Ok(held) = queue.try_recv() {
            self.ready.push_back(held);
        }
        if !self.look.is_terminated()
            && let Ok(Ok(looked)) = tokio::time::timeout(Duration::from_secs(3), &mut self.look).await
        {
            self.looked(Ok(looked));
        }
        self.give_back_ready();
        let returned = async { while self.returns.next().await.is_some() {} };
        if tokio::time::timeout(Duration::from_secs(3), returned).await.is_err() {
            tracing::warn!(
                "the store did not take back what was held; those rows are due when their leases end"
            );
        }
        while !self.flights.is_empty() || !self.unsettled.is_empty() {
            tokio::select! {
                Some(concluded) = self.flights.next(), if !self.flights.is_empty() => self.conclude(concluded),
                () = room(&self.settlements), if !self.unsettled.is_empty() => self.hand_over(),
                () = self.shared.stopped.cancelled() => return,
            }
        }
    }
}

/// Ends when the settler takes more.
async fn room(settlements: &mpsc::Sender<Item>) {
    drop(settlements.reserve().await);
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

/// A step through the keys.
async fn look_in_order(
    worker: Arc<Worker>,
    store: store::Shared,
    step: Step,
    asked_at: Instant,
) -> store::Result<Looked> {
    let looked = step.make(&store).await.inspect_err(|_| worker.rounds.failed(&step))?;
    let next = worker.rounds.stepped(&looked, asked_at);
    let next = next.map(|next| next.saturating_duration_since(asked_at));
    Ok(Looked { taken: looked.taken, asked_at, token: step.take.take.token, next })
}
