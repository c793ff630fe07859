//! What the deliveries to one target share on this node, whichever store they are in: its breaker, and how many
//! attempts may run at once.
//!
//! Invariant: a store that does not answer keeps nobody from the target. Slots are given out in the order in which
//! stores ask for them, and whoever has one or probes never waits for a store meanwhile.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::breaker::{Admission, Breaker};
use super::engine::TargetOptions;
use crate::domain::delivery::Target;

/// The gates of one node, for the engines of its stores. Clones share them; the default is of one store alone.
#[derive(Clone, Default)]
pub struct Gates {
    several: bool,
    gates: Arc<Mutex<HashMap<Target, Arc<Gate>>>>,
}

impl Gates {
    /// For engines of several stores.
    pub fn of_several() -> Self {
        Self { several: true, gates: Arc::default() }
    }

    /// The gate of a target; `changed` is told when its breaker changes.
    pub(super) fn of(&self, options: &TargetOptions, changed: &Arc<Notify>) -> Arc<Gate> {
        let mut gates = lock(&self.gates);
        let gate = gates.entry(options.target.clone()).or_insert_with(|| {
            let slots = self.several.then(|| Arc::new(Semaphore::new(options.max_in_flight)));
            let breaker = Mutex::new(Breaker::new(options.breaker));
            Arc::new(Gate { breaker, slots, watchers: Mutex::default() })
        });
        lock(&gate.watchers).push(Arc::clone(changed));
        Arc::clone(gate)
    }
}

impl fmt::Debug for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gates").field("several", &self.several).finish_non_exhaustive()
    }
}

/// A target's breaker and slots.
pub(super) struct Gate {
    breaker: Mutex<Breaker>,
    /// `None`: one store, whose task counts its own attempts.
    slots: Option<Arc<Semaphore>>,
    watchers: Mutex<Vec<Arc<Notify>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gate {
    pub fn admits(&self, now: Instant) -> Admission {
        lock(&self.breaker).admits(now)
    }

    pub fn is_open(&self) -> bool {
        lock(&self.breaker).is_open()
    }

    /// Whether the attempt that is about to begin is the probe.
    pub fn probe(&self, now: Instant) -> bool {
        let mut breaker = lock(&self.breaker);
        let yes = breaker.admits(now) == Admission::Probe;
        if yes {
            breaker.probe();
        }
        yes
    }

    pub fn probe_abandoned(&self, now: Instant) {
        self.change(|breaker| breaker.probe_abandoned(now));
    }

    pub fn succeeded(&self) {
        self.change(Breaker::succeeded);
    }

    pub fn failed(&self, now: Instant) -> Option<Instant> {
        self.change(|breaker| breaker.failed(now))
    }

    /// Until when it is open, and whether it opened just now.
    pub fn opened(&self, now: Instant, asked: Option<Duration>) -> (Instant, bool) {
        self.change(|breaker| {
            let was_open = breaker.is_open();
            (breaker.opened(now, asked), !was_open)
        })
    }

    /// Tells everybody who may wait for it.
    fn change<T>(&self, change: impl FnOnce(&mut Breaker) -> T) -> T {
        let (changed, told) = {
            let mut breaker = lock(&self.breaker);
            let before = breaker.is_open();
            let told = change(&mut breaker);
            (before || breaker.is_open(), told)
        };
        if changed {
            for watcher in lock(&self.watchers).iter() {
                watcher.notify_one();
            }
        }
        told
    }

    /// How many of `wanted` rows to take from a store: no more than can begin soon.
    pub fn room(&self, wanted: usize) -> usize {
        let free = self.slots.as_ref().map_or(usize::MAX, |slots| slots.available_permits().max(1));
        wanted.min(free)
    }
}

/// Lets one attempt run, until it is dropped.
pub(super) struct Slot(#[expect(dead_code, reason = "only held")] Option<OwnedSemaphorePermit>);

/// One store's place among those that want slots.
pub(super) struct Turn {
    slots: Option<Arc<Semaphore>>,
    waiting: Option<BoxFuture<'static, Slot>>,
    had: Option<Slot>,
}

impl Turn {
    pub fn new(gate: &Gate) -> Self {
        Self { slots: gate.slots.clone(), waiting: None, had: None }
    }

    /// A slot; or none yet, and a place in the queue.
    pub fn take(&mut self) -> Option<Slot> {
        let Some(slots) = &self.slots else { return Some(Slot(None)) };
        if self.had.is_some() || self.waiting.is_some() {
            return self.had.take();
        }
        if let Ok(permit) = Arc::clone(slots).try_acquire_owned() {
            return Some(Slot(Some(permit)));
        }
        // Never closed.
        self.waiting = Some(Arc::clone(slots).acquire_owned().map(|permit| Slot(permit.ok())).boxed());
        None
    }

    /// Ends when a slot is there to be taken; never, while none is waited for.
    pub async fn came(&mut self) {
        match &mut self.waiting {
            Some(waiting) => {
                self.had = Some(waiting.await);
                self.waiting = None;
            }
            None => std::future::pending().await,
        }
    }

    /// Nothing is to be attempted just now.
    pub fn leave(&mut self) {
        self.waiting = None;
        self.had = None;
    }

    /// Whether slots are shared, so that rows may have to wait for one.
    pub fn is_shared(&self) -> bool {
        self.slots.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(slots: usize) -> Gate {
        let settings = super::super::breaker::Settings { failures: 1, open: Duration::from_secs(1) };
        Gate {
            breaker: Mutex::new(Breaker::new(settings)),
            slots: Some(Arc::new(Semaphore::new(slots))),
            watchers: Mutex::default(),
        }
    }

    #[tokio::test]
    async fn slots_go_to_whoever_asked_first_and_not_to_whoever_is_quick() {
        let gate = gate(1);
        let (mut busy, mut other) = (Turn::new(&gate), Turn::new(&gate));
        let slot = busy.take().unwrap();
        assert!(other.take().is_none());
        // Polled once, it stands in the queue.
        assert!(futures::poll!(Box::pin(other.came())).is_pending());
        drop(slot);
        assert!(busy.take().is_none(), "the other's turn");
        other.came().await;
        let slot = other.take().unwrap();
        drop(slot);
        busy.came().await;
        assert!(busy.take().is_some());
    }

    #[tokio::test]
    async fn who_leaves_holds_nothing() {
        let gate = gate(1);
        let (mut one, mut two) = (Turn::new(&gate), Turn::new(&gate));
        let slot = one.take().unwrap();
        assert!(two.take().is_none() && futures::poll!(Box::pin(two.came())).is_pending());
        drop(slot);
        two.leave();
        assert!(one.take().is_some());
    }

    #[tokio::test]
    #[allow(clippy::disallowed_methods)]
    async fn everybody_is_told_when_the_breaker_closes() {
        let gate = gate(1);
        let watcher = Arc::new(Notify::new());
        lock(&gate.watchers).push(Arc::clone(&watcher));
        assert!(gate.failed(Instant::now()).is_some());
        watcher.notified().await;
        gate.succeeded();
        watcher.notified().await;
        gate.succeeded();
        assert!(futures::poll!(Box::pin(watcher.notified())).is_pending(), "nothing changed");
    }
}
