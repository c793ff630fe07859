//! Writes what attempts came to: whatever is queued, in one commit, until the store has it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use tokio::sync::{mpsc, oneshot};

use super::engine::Shared;
use super::renewals::Renewal;
use crate::domain::delivery::{DeadKind, Target};
use crate::store::accept::{self, MessageOutcome};
use crate::store::deliveries::{Counted, DeadNote, Settle, Settled, Settlement};
use crate::store::inbox::{Conclusion, HeldClaim};
use crate::store::{self, ErrorKind};

/// Settlements waiting for the store. A full queue stops the attempts.
const QUEUE: usize = 4_096;
/// Settlements per commit.
const BATCH: usize = 500;
/// Ends of handlers' work per commit, and what they publish.
const GROUP: usize = 100;
const GROUP_MESSAGES: usize = 500;
const GROUP_BYTES: usize = 4 * 1024 * 1024;
/// Groups that are written at the same time, so that one prepares while the other waits for its commit.
const GROUPS: usize = 2;
/// Ends that are written one by one, at the same time.
const CONCLUDING: usize = 4;

/// A settlement and what is said of it once it is written.
pub(super) struct Item {
    pub settlement: Settlement,
    pub target: Target,
    pub message_id: String,
    /// What is written in the same commit.
    pub work: Work,
    /// Told when it is written, or cannot be.
    pub reply: Option<oneshot::Sender<Settled>>,
}

/// What a handler's work brings besides the outcome of its delivery.
#[derive(Default)]
pub(super) struct Work {
    pub claim: Option<HeldClaim>,
    pub messages: Vec<accept::Message>,
    /// Kept until the end is written.
    pub _renewal: Option<Renewal>,
}

impl Item {
    fn conclusion(&self, shared: &Shared) -> Conclusion {
        Conclusion {
            settlement: Some(self.settlement.clone()),
            claims: self.work.claim.iter().cloned().collect(),
            arrival: None,
            messages: self.work.messages.clone(),
            token: shared.random.token(),
        }
    }
}

impl Work {
    fn is_nothing(&self) -> bool {
        self.claim.is_none() && self.messages.is_empty()
    }
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
        let (plain, worked): (Vec<Item>, Vec<Item>) =
            items.drain(..).partition(|item| item.work.is_nothing());
        if !plain.is_empty() {
            let batch: Vec<Settlement> = plain.iter().map(|item| item.settlement.clone()).collect();
            let settled = write(&shared, &batch).await;
            for (item, settled) in plain.into_iter().zip(settled) {
                report(&shared, item, settled);
            }
        }
        stream::iter(groups(worked)).for_each_concurrent(GROUPS, |group| conclude_all(&shared, group)).await;
        *lock(&shared.settler.busy_since) = None;
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

/// Splits what is to be written into groups, in each of which no work is published twice.
fn groups(items: Vec<Item>) -> Vec<Vec<Item>> {
    let mut groups: Vec<Vec<Item>> = Vec::new();
    let (mut keys, mut messages, mut bytes) = (HashSet::new(), 0, 0);
    for item in items {
        let published = &item.work.messages;
        let own: Vec<_> =
            published.iter().filter_map(|message| message.claim.as_ref()).map(|claim| claim.key).collect();
        let own_messages = published.len();
        let own_bytes: usize = published.iter().map(|message| message.message.body.len()).sum();
        match groups.last_mut() {
            Some(group)
                if group.len() < GROUP
                    && messages + own_messages <= GROUP_MESSAGES
                    && bytes + own_bytes <= GROUP_BYTES
                    && own.iter().all(|key| !keys.contains(key)) =>
            {
                group.push(item);
            }
            _ => {
                keys.clear();
                (messages, bytes) = (0, 0);
                groups.push(vec![item]);
            }
        }
        messages += own_messages;
        bytes += own_bytes;
        keys.extend(own);
    }
    groups
}

/// Ends several handlers' works in one commit; where that cannot be done, one by one.
async fn conclude_all(shared: &Shared, group: Vec<Item>) {
    if group.len() > 1 {
        let conclusions: Vec<Conclusion> = group.iter().map(|item| item.conclusion(shared)).collect();
        match shared.store.conclude_all(&conclusions).await {
            Ok(concluded) => {
                shared.store_answered();
                for ((item, conclusion), concluded) in group.into_iter().zip(&conclusions).zip(concluded) {
                    report(shared, item, Some(concluded.settled));
                    published(shared, &conclusion.messages, &concluded.messages);
                }
                return;
            }
            Err(error) => {
                tracing::debug!(%error, works = group.len(), "a group of outcomes is written one by one");
            }
        }
    }
    stream::iter(group).for_each_concurrent(CONCLUDING, |item| conclude(shared, item)).await;
}

/// Ends a handler's work: its delivery, its claim and what it published, in one commit.
async fn conclude(shared: &Shared, mut item: Item) {
    let mut conclusion = item.conclusion(shared);
    let mut wait = Duration::from_millis(100);
    let concluded = loop {
        match shared.store.conclude(&conclusion).await {
            Ok(concluded) => break concluded,
            Err(error) if is_final(&error) && !conclusion.messages.is_empty() => {
                // What it published is what the store does not take.
                let text = format!("what it published cannot be stored: {error}");
                let error = DeadNote { kind: DeadKind::InvalidReply, text };
                item.settlement.outcome = Settle::Dead { error, counted: Counted::Yes };
                conclusion.settlement = Some(item.settlement.clone());
                conclusion.messages.clear();
            }
            Err(error) if is_final(&error) => {
                tracing::error!(%error, row = %item.settlement.row, "an outcome could not be written; the row will be due again");
                return;
            }
            Err(error) => {
                shared.store_failed("settle", &error);
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(Duration::from_secs(2));
            }
        }
    };
    shared.store_answered();
    report(shared, item, Some(concluded.settled));
    published(shared, &conclusion.messages, &concluded.messages);
}

/// Says what became of the messages that a handler published, and has them sent.
fn published(shared: &Shared, messages: &[accept::Message], outcomes: &[MessageOutcome]) {
    let now = shared.clock.now();
    let mut accepted = 0;
    for (stored, outcome) in messages.iter().zip(outcomes) {
        let message = &stored.message;
        match outcome {
            MessageOutcome::Duplicate(first) => {
                shared.metrics.duplicate(&message.kind);
                tracing::info!(
                    message_type = %message.kind, message = %message.id,
                    deduplication_id = ?message.deduplication_id, first_message = ?first.claim.message_id,
                    "duplicate: the work is taken by an earlier message"
                );
            }
            MessageOutcome::Accepted { .. } => {
                accepted += 1;
                let wait =
                    message.deliver_at.map_or(Duration::ZERO, |at| (at - now).to_std().unwrap_or_default());
                for row in &stored.targets {
                    if let Some(worker) = shared.workers.get(&row.target) {
                        worker.note_due(shared.clock.monotonic() + wait);
                    }
                }
            }
        }
    }
    if accepted > 0 {
        shared.metrics.accepted(accepted);
    }
}

fn is_final(error: &store::Error) -> bool {
    matches!(error.kind, ErrorKind::InvalidData | ErrorKind::Internal | ErrorKind::Corrupt)
}

fn report(shared: &Shared, item: Item, settled: Option<Settled>) {
    if let Some(worker) = shared.workers.get(&item.target).filter(|worker| worker.options.order.is_some()) {
        // It is the turn of the next one of its key.
        worker.note_due(shared.clock.monotonic());
    }
    match (&item.settlement.outcome, settled) {
        (Settle::Dead { error, .. }, Some(Settled::Yes)) => {
            shared.metrics.dead(&item.target, error.kind, 1);
            let level_kind: DeadKind = error.kind;
            tracing::warn!(
                message = %item.message_id, target_name = %item.target.name, kind = level_kind.as_str(),
                error = %error.text, "dead letter"
            );
        }
        (Settle::Discard { error, .. }, Some(Settled::Yes)) => {
            shared.metrics.discarded(&item.target);
            tracing::warn!(
                message = %item.message_id, target_name = %item.target.name, %error,
                "discarded, as the handler's policy says"
            );
        }
        (_, Some(Settled::Fenced)) => {
            tracing::debug!(
                message = %item.message_id, target_name = %item.target.name,
                "the row was taken by somebody else meanwhile; nothing written"
            );
        }
        _ => {}
    }
    if let (Some(reply), Some(settled)) = (item.reply, settled) {
        // Nobody waits for it any more: it is written all the same.
        let _ = reply.send(settled);
    }
}
