//! What a failed attempt means: for its row, for its target's breaker, and, where an error policy says so, for the
//! target as a whole.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::engine::{Held, Shared};
use super::worker::{Worker, lock};
use crate::domain::delivery::{DeadKind, Failure, Fault};
use crate::domain::policy::{self, Step, Then};
use crate::store::deliveries::{Counted, DeadNote, ErrorNote, Settle};
use crate::store::status::Paused;

/// The longest error text kept.
const ERROR_TEXT_CHARS: usize = 2_000;
/// The longest wait for a store that does not take a pause.
const PAUSE_RETRY: Duration = Duration::from_secs(5);

/// A failed attempt, on its way to a meaning.
struct Failed<'a> {
    worker: &'a Arc<Worker>,
    shared: &'a Arc<Shared>,
    failure: &'a Failure,
    /// For operators.
    text: String,
    /// How many attempts failed, this one included.
    count: u32,
    now: Instant,
}

/// What becomes of the row. Tells the breaker, and pauses the target where a policy says so.
pub(super) fn of_failure(
    worker: &Arc<Worker>,
    shared: &Arc<Shared>,
    held: &Held,
    failure: &Failure,
    now: Instant,
) -> Settle {
    let count = held.delivery.attempts + 1;
    let failed = Failed { worker, shared, failure, text: printable(&failure.text), count, now };
    let policies = worker.options.handler.as_ref().map_or(&[][..], |handler| &handler.policies);
    let settle = match policy::step(policies, failure, count) {
        Some(step) => failed.by_policy(step),
        None => failed.by_fault(),
    };
    let fault = match failure.fault {
        Fault::Message(_) => "message",
        Fault::Target => "target",
        Fault::Attempt => "attempt",
    };
    shared.metrics.failed(&worker.labels, fault);
    let name = &worker.options.target.name;
    tracing::debug!(
        message = %held.delivery.message.id, target_name = %name, fault, error = %failed.text, "attempt failed"
    );
    *lock(&worker.last_error) = Some(failed.text);
    settle
}

impl Failed<'_> {
    /// Whoever's fault it is: no policy is about it.
    fn by_fault(&self) -> Settle {
        match self.failure.fault {
            Fault::Message(kind) => {
                self.worker.gate.succeeded(); // it answered
                self.dead(kind, self.text.clone())
            }
            Fault::Target => {
                let after = self.opened();
                let error = ErrorNote { kind: "Target", text: self.text.clone() };
                Settle::Retry { after, counted: Counted::No, error }
            }
            Fault::Attempt => {
                self.tell_breaker();
                self.backoff(Then::DeadLetter)
            }
        }
    }

    /// A policy is about it, so that every attempt counts.
    fn by_policy(&self, step: Step) -> Settle {
        match self.failure.fault {
            Fault::Message(_) => self.worker.gate.succeeded(),
            Fault::Target | Fault::Attempt => self.tell_breaker(),
        }
        match step {
            Step::Backoff(then) => self.backoff(then),
            Step::Retry(after) => self.again(after),
            Step::End(then) => self.end(then),
        }
    }

    fn backoff(&self, then: Then) -> Settle {
        let retry = &self.worker.options.retry;
        match retry.next(self.count, self.failure.retry_after, self.shared.random) {
            Some(after) => self.again(after),
            None => self.end(then),
        }
    }

    fn again(&self, after: Duration) -> Settle {
        let error = ErrorNote { kind: "Attempt", text: self.text.clone() };
        Settle::Retry { after, counted: Counted::Yes, error }
    }

    fn end(&self, then: Then) -> Settle {
        match (then, self.failure.fault) {
            (Then::DeadLetter, Fault::Message(kind)) => self.dead(kind, self.text.clone()),
            (Then::DeadLetter, Fault::Attempt | Fault::Target) => {
                let text = format!("after {} attempts: {}", self.count, self.text);
                self.dead(DeadKind::AttemptsExhausted, text)
            }
            (Then::Discard, _) => {
                Settle::Discard { receipt: self.shared.options.receipt, error: self.text.clone() }
            }
            (Then::Pause(wait), _) => {
                pause(self.worker, self.shared, wait, &self.text);
                self.again(Duration::ZERO)
            }
        }
    }

    fn dead(&self, kind: DeadKind, text: String) -> Settle {
        Settle::Dead { error: DeadNote { kind, text }, counted: Counted::Yes }
    }

    fn tell_breaker(&self) {
        let opened = self.worker.gate.failed(self.now);
        if let Some(until) = opened {
            self.say_opened(until.saturating_duration_since(self.now));
        }
    }

    /// Opens the breaker; for how long.
    fn opened(&self) -> Duration {
        let (until, just_now) = self.worker.gate.opened(self.now, self.failure.retry_after);
        let wait = until.saturating_duration_since(self.now);
        if just_now {
            self.say_opened(wait);
        }
        wait
    }

    fn say_opened(&self, wait: Duration) {
        tracing::warn!(
            target_name = %self.worker.options.target.name, wait_seconds = wait.as_secs_f64(), error = %self.text,
            "the target does not take messages; they wait"
        );
    }
}

/// Pauses a target: here at once, and for all nodes when the store has it.
fn pause(worker: &Arc<Worker>, shared: &Arc<Shared>, wait: Option<Duration>, error: &str) {
    if worker.view().paused {
        return; // another message did it
    }
    worker.set_paused(true);
    shared.pauses.fetch_add(1, Ordering::SeqCst);
    let target = worker.options.target.clone();
    tracing::warn!(
        target_name = %target.name, seconds = ?wait.map(|wait| wait.as_secs_f64()), error,
        "paused, as the handler's policy says; POST /v1/targets/{{name}}/resume ends it"
    );
    let paused = wait.map_or(Paused::Yes, Paused::For);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let mut again = Duration::from_millis(100);
        while let Err(error) = shared.store.set_paused(&target, paused).await {
            if shared.draining.is_cancelled() {
                tracing::warn!(target_name = %target.name, %error, "the pause is not stored");
                return;
            }
            shared.store_failed("pause", &error);
            tokio::time::sleep(again).await;
            again = (again * 2).min(PAUSE_RETRY);
        }
        shared.pauses.fetch_add(1, Ordering::SeqCst);
        shared.look_around.notify_one();
    });
}

/// Error texts come from outside: one line, bounded, nothing that a database chokes on.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(ERROR_TEXT_CHARS).collect()
}
