//! Leases that are renewed while work runs: rows of handlers, and claims.
//!
//! One task for all of them: what is due is renewed together. It sleeps while nothing is held.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::domain::Clock;
use crate::store;
use crate::store::inbox::Held;

/// Of a lease's length passes between renewals.
const PART: u32 = 3;

/// What is held just now. Cheap to clone.
#[derive(Clone, Default)]
pub struct Renewals(Arc<Inner>);

#[derive(Default)]
struct Inner {
    entries: Mutex<Entries>,
    changed: Notify,
}

#[derive(Default)]
struct Entries {
    next_number: u64,
    held: HashMap<u64, Entry>,
}

struct Entry {
    held: Held,
    lease: Duration,
    due: Instant,
    /// Until when it is held for certain: on the monotonic clock, from before it was renewed.
    until: watch::Sender<Instant>,
}

/// Renews until it is dropped: to be kept until the work's end is written.
pub struct Renewal {
    renewals: Renewals,
    number: u64,
    until: watch::Receiver<Instant>,
}

impl Renewal {
    /// Ends when the lease has, because it could not be renewed: from then on somebody else may hold it.
    pub(super) async fn lost(&self) {
        let mut until = self.until.clone();
        loop {
            let ends = *until.borrow_and_update();
            tokio::select! {
                () = tokio::time::sleep_until(ends.into()) => return,
                changed = until.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.renewals.lock().held.remove(&self.number);
    }
}

impl Renewals {
    fn lock(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews `held` for `lease` at a time. At least half of the present lease is to be left.
    pub fn keep(&self, held: Held, lease: Duration, now: Instant) -> Renewal {
        self.keep_from(held, lease, now, now + lease / 2)
    }

    /// The same, of a lease of which it is known until when it holds.
    pub(super) fn keep_from(&self, held: Held, lease: Duration, now: Instant, until: Instant) -> Renewal {
        let (until, receiver) = watch::channel(until);
        let number = {
            let mut entries = self.lock();
            entries.next_number += 1;
            let number = entries.next_number;
            entries.held.insert(number, Entry { held, lease, due: now + lease / (2 * PART), until });
            number
        };
        self.0.changed.notify_one();
        Renewal { renewals: self.clone(), number, until: receiver }
    }

    fn next_due(&self) -> Option<Instant> {
        self.lock().held.values().map(|entry| entry.due).min()
    }

    /// What is due at `now`, by lease, with its numbers; due again after a part of it.
    fn take_due(&self, now: Instant) -> Vec<(Duration, Vec<u64>, Vec<Held>)> {
        let mut due: HashMap<Duration, (Vec<u64>, Vec<Held>)> = HashMap::new();
        for (number, entry) in self.lock().held.iter_mut().filter(|(_, entry)| entry.due <= now) {
            entry.due = now + entry.lease / PART;
            let (numbers, held) = due.entry(entry.lease).or_default();
            numbers.push(*number);
            held.push(entry.held.clone());
        }
        due.into_iter().map(|(lease, (numbers, held))| (lease, numbers, held)).collect()
    }

    /// These hold until then.
    fn renewed(&self, numbers: &[u64], until: Instant) {
        let entries = self.lock();
        for entry in numbers.iter().filter_map(|number| entries.held.get(number)) {
            entry.until.send_replace(until);
        }
    }
}

/// Runs until `ended`.
pub(super) async fn run(renewals: Renewals, store: store::Shared, clock: Clock, ended: CancellationToken) {
    loop {
        let now = clock.monotonic();
        let wait = renewals.next_due().map(|due| due.saturating_duration_since(now));
        tokio::select! {
            () = ended.cancelled() => return,
            () = renewals.0.changed.notified() => continue,
            () = sleep(wait) => {}
        }
        for (lease, numbers, held) in renewals.take_due(clock.monotonic()) {
            let asked_at = clock.monotonic();
            let renewed = tokio::time::timeout(lease / PART, store.renew_held(&held, lease)).await;
            match renewed {
                // What somebody else has taken was lost, and said to be, before.
                Ok(Ok(())) => renewals.renewed(&numbers, asked_at + lease),
                Ok(Err(error)) => tracing::warn!(%error, held = held.len(), "leases were not renewed"),
                Err(_) => tracing::warn!(held = held.len(), "leases were not renewed in time"),
            }
        }
    }
}

/// `None`: for ever.
async fn sleep(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
