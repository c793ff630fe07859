//! What an attempt means: to the breaker of its target, to the store, and to who reads the log.

use std::time::{Duration, Instant};

use tokio::sync::mpsc::error::TrySendError;

use super::attempt::Concluded;
use super::engine::Held;
use super::inbox::{self, Ended};
use super::settler::{Item, Work};
use super::worker::{Task, lock};
use crate::domain::delivery::{DeadKind, Failure, Fault};
use crate::store::deliveries::{Counted, DeadNote, ErrorNote, Settle, Settlement};

/// A target this quick may have the next rows taken while the last are still in flight.
const QUICK: Duration = Duration::from_millis(200);
/// The longest error text kept.
const ERROR_TEXT_CHARS: usize = 2_000;

impl Task {
    /// Says what an attempt means, to the breaker and to the store.
    pub(super) fn conclude(&mut self, concluded: Concluded) {
        let Concluded { held, ended, took, work } = concluded;
        self.quick = took < QUICK;
        let now = self.shared.clock.monotonic();
        let settle = match ended {
            Ended::Ran(Ok(_)) => {
                self.shared.metrics.sent(&self.worker.labels, took);
                self.worker.gate.succeeded();
                Settle::Done { receipt: self.shared.options.receipt }
            }
            Ended::Ran(Err(failure)) => self.failed(&held, &failure, now),
            not_run => {
                self.worker.gate.probe_abandoned(now);
                inbox::not_run(&self.worker, &self.shared, &held, not_run, now)
            }
        };
        if let Settle::Retry { after, .. } = &settle {
            self.worker.note_due(now + *after);
        }
        self.settle(held, settle, work);
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
        let gate = &self.worker.gate;
        match failure.fault {
            Fault::Message(kind) => {
                gate.succeeded(); // it answered
                let error = DeadNote { kind, text: text.to_owned() };
                ("message", Settle::Dead { error, counted: Counted::Yes })
            }
            Fault::Target => {
                let (until, just_now) = gate.opened(now, failure.retry_after);
                let after = until.saturating_duration_since(now);
                if just_now {
                    self.say_opened(after, text);
                }
                let error = ErrorNote { kind: "Target", text: text.to_owned() };
                ("target", Settle::Retry { after, counted: Counted::No, error })
            }
            Fault::Attempt => {
                if let Some(until) = gate.failed(now) {
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

/// Error texts come from outside: one line, bounded, nothing that a database chokes on.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(ERROR_TEXT_CHARS).collect()
}
