//! What an attempt means: to the breaker of its target, to the store, and to who reads the log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::error::TrySendError;

use super::attempt::Concluded;
use super::engine::{Held, Shared};
use super::inbox::{self, Ended};
use super::outcome;
use super::settler::{Item, Work};
use super::worker::{Task, Worker};
use crate::domain::delivery::DeadKind;
use crate::store::deliveries::{Counted, DeadNote, Settle, Settlement};

/// A target this quick may have the next rows taken while the last are still in flight.
const QUICK: Duration = Duration::from_millis(200);

/// What an attempt means, to the breaker and to the store.
pub(super) fn means(
    worker: &Arc<Worker>,
    shared: &Arc<Shared>,
    held: &Held,
    ended: Ended,
    took: Duration,
    now: Instant,
) -> Settle {
    match ended {
        Ended::Ran(Ok(_)) => {
            shared.metrics.sent(&worker.labels, took);
            worker.gate.succeeded();
            Settle::Done { receipt: shared.options.receipt }
        }
        Ended::Ran(Err(failure)) => outcome::of_failure(worker, shared, held, &failure, now),
        not_run => {
            worker.gate.probe_abandoned(now);
            inbox::not_run(worker, shared, held, not_run, now)
        }
    }
}

impl Task {
    /// Says what an attempt means, to the breaker and to the store.
    pub(super) fn conclude(&mut self, concluded: Concluded) {
        let Concluded { held, ended, took, work } = concluded;
        self.quick = took < QUICK;
        let now = self.shared.clock.monotonic();
        let settle = means(&self.worker, &self.shared, &held, ended, took, now);
        if let Settle::Retry { after, .. } = &settle {
            self.worker.note_due(now + *after);
        }
        self.settle(held, settle, work);
    }

    pub(super) fn dead(&mut self, held: Held, kind: DeadKind, text: String, counted: Counted) {
        let outcome = Settle::Dead { error: DeadNote { kind, text }, counted };
        self.settle(held, outcome, Work::default());
    }

    fn settle(&mut self, held: Held, outcome: Settle, work: Work) {
        let item = Item {
            settlement: Settlement { row: held.delivery.row, token: held.token, outcome },
            target: self.worker.options.target.clone(),
            message_id: held.delivery.message.id.clone(),
            work,
            reply: None,
        };
        self.unsettled.push_back(item);
        self.hand_over();
    }

    /// Gives the settler what it has room for. The rest waits here, and nothing else begins meanwhile.
    pub(super) fn hand_over(&mut self) {
        while let Some(item) = self.unsettled.pop_front() {
            // The settler outlives the workers, so that it is never closed.
            if let Err(TrySendError::Full(item)) = self.settlements.try_send(item) {
                return self.unsettled.push_front(item);
            }
        }
    }
}
