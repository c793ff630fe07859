//! Writes what attempts came to: whatever is queued, in one commit, until the store has it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::engine::Shared;
use crate::domain::delivery::{DeadKind, Target};
use crate::store::deliveries::{Settle, Settled, Settlement};
use crate::store::{self, ErrorKind};

/// Settlements waiting for the store. A full queue stops the attempts.
const QUEUE: usize = 4_096;
/// Settlements per commit.
const BATCH: usize = 500;

/// A settlement and what is said of it once it is written.
pub(super) struct Item {
    pub settlement: Settlement,
    pub target: Target,
    pub message_id: String,
}

/// The queue's near end.
pub(super) struct Settler {
    sender: Mutex<Option<mpsc::Sender<Item>>>,
    /// Since when a batch has been waiting for the store.
    busy_since: Mutex<Option<Instant>>,
}

pub(super) fn channel() -> (Settler, mpsc::Receiver<Item>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (Settler { sender: Mutex::new(Some(sender)), busy_since: Mutex::new(None) }, receiver)
}

impl Settler {
    /// A handle for one worker. `None` after [`close`](Self::close).
    pub fn sender(&self) -> Option<mpsc::Sender<Item>> {
        lock(&self.sender).clone()
    }

    /// Takes no more; the task ends when the queue is empty and the workers' handles are gone.
    pub fn close(&self) {
        lock(&self.sender).take();
    }

    pub fn last_progress(&self, now: Instant) -> Instant {
        lock(&self.busy_since).unwrap_or(now)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub(super) async fn run(shared: Arc<Shared>, mut queue: mpsc::Receiver<Item>) {
    let mut items = Vec::with_capacity(BATCH);
    while queue.recv_many(&mut items, BATCH).await > 0 {
        *lock(&shared.settler.busy_since) = Some(shared.clock.monotonic());
        let batch: Vec<Settlement> = items.iter().map(|item| item.settlement.clone()).collect();
        let settled = write(&shared, &batch).await;
        *lock(&shared.settler.busy_since) = None;
        for (item, settled) in items.drain(..).zip(settled) {
            report(&shared, &item, settled);
        }
    }
}

/// Tries until the store has it. Only what the store refuses as it is, alone, is dropped: its lease ends and
/// it is attempted again.
async fn write(shared: &Shared, batch: &[Settlement]) -> Vec<Option<Settled>> {
    let mut wait = Duration::from_millis(100);
    loop {
        match shared.store.settle(batch).await {
            Ok(settled) => {
                shared.store_answered();
                return settled.into_iter().map(Some).collect();
            }
            Err(error) if is_final(&error) && batch.len() > 1 => {
                let mut settled = Vec::with_capacity(batch.len());
                for one in batch.chunks(1) {
                    settled.extend(Box::pin(write(shared, one)).await);
                }
                return settled;
            }
            Err(error) if is_final(&error) => {
                tracing::error!(%error, row = %batch[0].row, "an outcome could not be written; the row will be due again");
                return vec![None];
            }
            Err(error) => {
                shared.store_failed("settle", &error);
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(Duration::from_secs(2));
            }
        }
    }
}

fn is_final(error: &store::Error) -> bool {
    matches!(error.kind, ErrorKind::InvalidData | ErrorKind::Internal | ErrorKind::Corrupt)
}

fn report(shared: &Shared, item: &Item, settled: Option<Settled>) {
    match (&item.settlement.outcome, settled) {
        (Settle::Dead { error, .. }, Some(Settled::Yes)) => {
            shared.metrics.dead(&item.target, error.kind, 1);
            let level_kind: DeadKind = error.kind;
            tracing::warn!(
                message = %item.message_id, target_name = %item.target.name, kind = level_kind.as_str(),
                error = %error.text, "dead letter"
            );
        }
        (Settle::Retry { .. } | Settle::Dead { .. }, Some(Settled::Fenced)) => {
            tracing::debug!(
                message = %item.message_id, target_name = %item.target.name,
                "the row was taken by somebody else meanwhile; nothing written"
            );
        }
        _ => {}
    }
}
