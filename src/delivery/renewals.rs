//! Leases that are renewed while work runs: rows of handlers, and claims.
//!
//! One task for all of them: what is due is renewed together. It sleeps while nothing is held.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
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
}

/// Renews until it is dropped: to be kept until the work's end is written.
pub struct Renewal {
    renewals: Renewals,
    number: u64,
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
        let number = {
            let mut entries = self.lock();
            entries.next_number += 1;
            let number = entries.next_number;
            entries.held.insert(number, Entry { held, lease, due: now + lease / (2 * PART) });
            number
        };
        self.0.changed.notify_one();
        Renewal { renewals: self.clone(), number }
    }

    fn next_due(&self) -> Option<Instant> {
        self.lock().held.values().map(|entry| entry.due).min()
    }

    /// What is due at `now`, by lease; due again after a part of it.
    fn take_due(&self, now: Instant) -> Vec<(Duration, Vec<Held>)> {
        let mut due: HashMap<Duration, Vec<Held>> = HashMap::new();
        for entry in self.lock().held.values_mut().filter(|entry| entry.due <= now) {
            entry.due = now + entry.lease / PART;
            due.entry(entry.lease).or_default().push(entry.held.clone());
        }
        due.into_iter().collect()
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
        for (lease, held) in renewals.take_due(clock.monotonic()) {
            let renewed = tokio::time::timeout(lease / PART, store.renew_held(&held, lease)).await;
            match renewed {
                Ok(Ok(())) => {}
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
