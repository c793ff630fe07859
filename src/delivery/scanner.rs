//! The node's own clock: what is due, what is paused, what expired, what is to be purged.
//!
//! An idle node asks the store one small question every `poll` (5 s).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::engine::Shared;
use crate::domain::delivery::{DeadKind, Target};
use crate::store;

/// How often rows of targets that no configuration names are looked for.
const ORPHANS_EVERY: Duration = Duration::from_secs(300);
/// Between rounds at least.
const SHORT: Duration = Duration::from_millis(50);
/// Expired rows per step.
const EXPIRE_BATCH: u32 = 1_000;
/// Purge steps in a row, so that a large backlog of expired rows does not keep the scanner from its rounds.
const PURGE_STEPS: u32 = 20;

pub(super) async fn run(shared: Arc<Shared>) {
    let mut targets: Vec<Target> = shared.workers.keys().cloned().collect();
    targets.sort();
    let started = shared.clock.monotonic();
    // Nodes that start together do not purge together.
    let mut next_purge = started + shared.random.jitter(shared.options.purge_every);
    let mut next_orphans = started;
    loop {
        *shared.scanner_progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
            shared.clock.monotonic();
        let wait = match round(&shared, &targets, &mut next_purge, &mut next_orphans).await {
            Ok(wait) => {
                shared.store_answered();
                wait
            }
            Err(error) => {
                shared.store_failed("scan", &error);
                Duration::from_secs(1).min(shared.options.poll)
            }
        };
        tokio::select! {
            () = shared.draining.cancelled() => return,
            () = shared.look_around.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

async fn round(
    shared: &Shared,
    targets: &[Target],
    next_purge: &mut Instant,
    next_orphans: &mut Instant,
) -> store::Result<Duration> {
    let pauses = shared.pauses.load(Ordering::SeqCst);
    let purge_now = shared.clock.monotonic() >= *next_purge;
    let seen = shared.store.look(targets, purge_now.then_some(&shared.options.retention)).await?;
    let now = shared.clock.monotonic();
    shared.looks.send_replace(seen.intake);
    // What was paused or resumed here meanwhile is newer; the next round has it.
    let newest = shared.pauses.load(Ordering::SeqCst) == pauses;
    if newest {
        for worker in shared.workers.values() {
            worker.set_paused(seen.paused.iter().any(|pause| pause.target == worker.options.target));
        }
    }
    let ends_in = seen.paused.iter().filter_map(|pause| pause.ends_in).min();
    let ends_in = if newest { ends_in } else { Some(SHORT) };
    let wait = ends_in.map_or(shared.options.poll, |ends_in| ends_in.max(SHORT).min(shared.options.poll));
    for (target, due) in targets.iter().zip(seen.due) {
        let worker = &shared.workers[target];
        if let Some(after) = due {
            worker.note_due(now + after);
        }
        shared.metrics.breaker(&worker.labels, worker.view().breaker_open);
    }
    for _ in 0..if seen.expired { PURGE_STEPS } else { 0 } {
        let expired = shared.store.expire(EXPIRE_BATCH).await?;
        for (target, count) in &expired {
            shared.metrics.dead(target, DeadKind::Expired, *count);
            tracing::warn!(target_name = %target.name, count, "messages passed their deliver-by: dead letters");
        }
        if expired.iter().map(|(_, count)| count).sum::<u64>() < u64::from(EXPIRE_BATCH) {
            break;
        }
    }
    if purge_now {
        *next_purge = now + shared.options.purge_every;
        if seen.over {
            purge(shared).await?;
        }
    }
    if now >= *next_orphans {
        *next_orphans = now + ORPHANS_EVERY;
        for worker in shared.workers.values().filter(|worker| worker.options.order.is_some()) {
            // What a node wrote that did not know of the order yet.
            worker.note_strays(now);
        }
        for backlog in shared.store.backlog().await? {
            if !shared.workers.contains_key(&backlog.target) {
                tracing::warn!(
                    target_name = %backlog.target.name, kind = backlog.target.kind.as_str(), rows = backlog.depth,
                    "rows wait for a target that no configuration names: configure it again, or cancel them"
                );
            }
        }
    }
    Ok(wait)
}

async fn purge(shared: &Shared) -> store::Result<()> {
    for _ in 0..PURGE_STEPS {
        let purged = shared.store.purge(shared.options.purge_batch, &shared.options.retention).await?;
        if purged.claims + purged.handler_claims + purged.dead_letters + purged.receipts > 0 {
            tracing::info!(
                claims = purged.claims,
                handler_claims = purged.handler_claims,
                dead_letters = purged.dead_letters,
                receipts = purged.receipts,
                "purged what expired"
            );
        }
        if !purged.more || shared.draining.is_cancelled() {
            break;
        }
    }
    Ok(())
}
