//! Running a handler for a request that waits (a push): one attempt, now, whose end the request is told.
//!
//! The delivery may be stored, leased to the request: then it ends in one commit with what the handler published, or
//! is taken back whole so that the sender can push again; and if this process dies, the next taker has it. What is
//! given up on is stored with its bytes before the request is told so.

use std::sync::Arc;
use std::time::Duration;

use super::attempt::handle;
use super::breaker::Admission;
use super::engine::{Background, Engine, Held, Shared};
use super::inbox::Ended;
use super::outcome;
use super::settler::Work;
use super::worker::Worker;
use crate::domain::Token;
use crate::domain::delivery::{DeadKind, Delivery, Failure};
use crate::store::accept::{self, MessageOutcome};
use crate::store::deliveries::{Counted, DeadNote, Settle, Settled, Settlement};
use crate::store::inbox::{Arrival, Conclusion, Held as HeldLeases};
use crate::store::{self, Error, ErrorKind};

/// How often an end is tried to be written.
const TRIES: u32 = 5;

/// What is to be run.
pub struct Direct {
    pub delivery: Delivery,
    /// Of its row, where that is stored.
    pub token: Token,
    pub stored: Stored,
}

/// Whether the delivery is stored, leased to the request.
pub enum Stored {
    Yes(Arrival),
    /// Not yet: this is how it would be, if it has to be given up on.
    No(Box<accept::Message>),
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The handler has done it, or did it before.
    Handled,
    /// It is given up on for good, as the handler's policy says.
    Discarded,
    /// It is a dead letter.
    Dead,
    /// It is to be pushed again; why, for the log.
    Again(String),
}

/// What an attempt means.
enum Verdict {
    Done,
    Again(String),
    /// Given up on for good, as a policy says; why, for the log.
    Discard(String),
    Dead(DeadNote),
}

impl Engine {
    /// Runs the handler. To be run to its end, whether or not the request still waits.
    ///
    /// # Errors
    /// The store did not take the end. A stored delivery is run again when its lease ends.
    pub async fn run_now(&self, direct: Direct) -> store::Result<End> {
        let shared = self.shared();
        let Some(worker) = shared.workers.get(&direct.delivery.target) else {
            return Err(Error::new(ErrorKind::Internal, "a handler without its task"));
        };
        if shared.options.background == Background::Off
            && let Err(error) = self.learn_pauses().await
        {
            shared.store_failed("pauses", &error);
        }
        let now = shared.clock.monotonic();
        let probe = match worker.gate.admits(now) {
            Admission::Yes => false,
            Admission::Probe => true,
            Admission::No(_) => {
                return self.end(direct, Verdict::Again(FAILING.to_owned()), Work::default()).await;
            }
        };
        if worker.holds() || shared.draining.is_cancelled() {
            return self.end(direct, Verdict::Again(PAUSED.to_owned()), Work::default()).await;
        }
        let Some(mut handler) = worker.options.handler.clone() else {
            return Err(Error::new(ErrorKind::Internal, "a target that is no handler"));
        };
        if probe {
            worker.gate.probe(now);
        }
        // The receiver says whether a push that comes again is recognised; what the handler recognises work by stays.
        handler.keep_handled = Duration::ZERO;
        let lease = worker.options.lease;
        let row =
            Some((direct.delivery.row, direct.token)).filter(|_| matches!(direct.stored, Stored::Yes(_)));
        let leases = HeldLeases { row, claims: Vec::new() };
        let _renewal = shared.renewals.keep(leases, lease, now);
        let held = Held::of(direct.delivery.clone(), direct.token, now + lease);
        let (ended, work) = handle(worker, shared, &handler, &held).await;
        let verdict = judge(worker, shared, &held, ended);
        self.end(direct, verdict, work).await
    }

    async fn end(&self, direct: Direct, verdict: Verdict, work: Work) -> store::Result<End> {
        let shared = self.shared();
        let Direct { delivery, token, stored } = direct;
        let (outcome, end) = match verdict {
            Verdict::Done => (Settle::Done { receipt: shared.options.receipt }, End::Handled),
            Verdict::Again(why) => (Settle::Withdrawn, End::Again(why)),
            Verdict::Discard(error) => {
                tracing::warn!(
                    message = %delivery.message.id, target_name = %delivery.target.name, %error,
                    "discarded, as the handler's policy says"
                );
                shared.metrics.discarded(&delivery.target);
                (Settle::Discard { receipt: shared.options.receipt, error }, End::Discarded)
            }
            Verdict::Dead(error) => (Settle::Dead { error, counted: Counted::Yes }, End::Dead),
        };
        let arrival = match stored {
            Stored::Yes(arrival) => Some(arrival),
            Stored::No(message) => {
                if end == End::Dead {
                    let request = accept::Request {
                        claim: None,
                        messages: vec![*message],
                        answer: Arc::new(accept::NoAnswer),
                        token,
                    };
                    let accepted = retried(|| {
                        let (store, request) = (&shared.store, &request);
                        async move {
                            let outcome = store.accept(std::slice::from_ref(request)).await.pop();
                            outcome.unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "no outcome")))
                        }
                    });
                    accepted.await?;
                } else {
                    return self.end_unstored(&end, work).await.map(|()| end);
                }
                None
            }
        };
        let conclusion = Conclusion {
            settlement: Some(Settlement { row: delivery.row, token, outcome }),
            claims: work.claim.iter().cloned().collect(),
            arrival,
            messages: work.messages.clone(),
            token: shared.random.token(),
        };
        let concluded = retried(|| shared.store.conclude(&conclusion)).await;
        let concluded = match concluded {
            // What it published is what the store does not take: that is the reply's fault.
            Err(error) if error.kind == ErrorKind::InvalidData && !conclusion.messages.is_empty() => {
                let text = format!("what it published cannot be stored: {error}");
                let dead = DeadNote { kind: DeadKind::InvalidReply, text };
                let outcome = Settle::Dead { error: dead, counted: Counted::Yes };
                let settlement = Some(Settlement { row: delivery.row, token, outcome });
                let conclusion = Conclusion { settlement, messages: Vec::new(), ..conclusion };
                shared.store.conclude(&conclusion).await?;
                shared.metrics.dead(&delivery.target, DeadKind::InvalidReply, 1);
                return Ok(End::Dead);
            }
            other => other?,
        };
        if concluded.settled == Settled::Fenced {
            let text = "it ran longer than its lease could be kept, and another taker has it";
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        if let Some(Settle::Dead { error, .. }) = conclusion.settlement.as_ref().map(|it| &it.outcome) {
            shared.metrics.dead(&delivery.target, error.kind, 1);
            tracing::warn!(
                message = %delivery.message.id, target_name = %delivery.target.name, kind = error.kind.as_str(),
                error = %error.text, "dead letter"
            );
        }
        self.published(&conclusion.messages, &concluded.messages);
        Ok(end)
    }

    /// The end of a run that left nothing in the store but its claim.
    async fn end_unstored(&self, end: &End, work: Work) -> store::Result<()> {
        let shared = self.shared();
        if *end != End::Handled {
            if let Some(claim) = &work.claim {
                // What cannot be given back is free when its lease ends.
                let released = retried(|| shared.store.release(claim.key, claim.token)).await;
                drop(released.inspect_err(|error| shared.store_failed("release", error)));
            }
            return Ok(());
        }
        if work.claim.is_none() && work.messages.is_empty() {
            return Ok(());
        }
        let conclusion = Conclusion {
            settlement: None,
            claims: work.claim.iter().cloned().collect(),
            arrival: None,
            messages: work.messages.clone(),
            token: shared.random.token(),
        };
        let concluded = retried(|| shared.store.conclude(&conclusion)).await?;
        if concluded.settled == Settled::Fenced {
            return Err(Error::new(ErrorKind::Unavailable, "its claim was lost while it ran"));
        }
        self.published(&conclusion.messages, &concluded.messages);
        Ok(())
    }

    fn published(&self, messages: &[accept::Message], outcomes: &[MessageOutcome]) {
        let shared = self.shared();
        let now = shared.clock.now();
        let mut accepted = 0;
        for (stored, outcome) in messages.iter().zip(outcomes) {
            let message = &stored.message;
            if let MessageOutcome::Duplicate(first) = outcome {
                shared.metrics.duplicate(&message.kind);
                tracing::info!(
                    message_type = %message.kind, message = %message.id,
                    deduplication_id = ?message.deduplication_id, first_message = ?first.claim.message_id,
                    "duplicate: the work is taken by an earlier message"
                );
                continue;
            }
            accepted += 1;
            let wait =
                message.deliver_at.map_or(Duration::ZERO, |at| (at - now).to_std().unwrap_or_default());
            for row in &stored.targets {
                self.note_due(&row.target, wait);
            }
        }
        if accepted > 0 {
            shared.metrics.accepted(accepted);
        }
    }
}

const FAILING: &str = "the handler does not take messages just now";
const PAUSED: &str = "the handler is paused, or the node is stopping";

/// What an attempt means for a sender that would push again, and for the handler's breaker.
fn judge(worker: &Arc<Worker>, shared: &Arc<Shared>, held: &Held, ended: Ended) -> Verdict {
    let now = shared.clock.monotonic();
    match ended {
        Ended::Ran(Ok(_)) => {
            worker.gate.succeeded();
            Verdict::Done
        }
        Ended::Ran(Err(failure)) => failed(worker, shared, held, &failure),
        not_run => {
            worker.gate.probe_abandoned(now);
            match not_run {
                Ended::Duplicate(first) => {
                    shared.metrics.duplicate(&held.delivery.message.kind);
                    tracing::info!(
                        handler = %held.delivery.target.name, message = %held.delivery.message.id, id = %first.id,
                        first_message = ?first.message_id, "duplicate: the handler has done this work; acknowledged"
                    );
                    Verdict::Done
                }
                Ended::NoId => {
                    let text = "the handler needs an id of the work, and the message has none".to_owned();
                    Verdict::Dead(DeadNote { kind: DeadKind::MissingDeduplicationId, text })
                }
                Ended::Unclaimed(error) => {
                    Verdict::Again(format!("the store did not take the claim: {error}"))
                }
                _ => Verdict::Again("the same work is being done for another delivery".to_owned()),
            }
        }
    }
}

/// What a failure means, as the handler's policies say; there is no waiting here, but for the sender to push again.
fn failed(worker: &Arc<Worker>, shared: &Arc<Shared>, held: &Held, failure: &Failure) -> Verdict {
    match outcome::of_failure(worker, shared, held, failure, shared.clock.monotonic()) {
        Settle::Done { .. } => Verdict::Done,
        Settle::Discard { error, .. } => Verdict::Discard(error),
        Settle::Dead { error, .. } => Verdict::Dead(error),
        Settle::Retry { error, .. } => Verdict::Again(error.text),
        Settle::Withdrawn => Verdict::Again(failure.text.clone()),
    }
}

/// Tries again while the store is not reached.
async fn retried<T, F>(mut attempt: impl FnMut() -> F) -> store::Result<T>
where
    F: Future<Output = store::Result<T>>,
{
    let mut pause = Duration::from_millis(100);
    for _ in 1..TRIES {
        match attempt().await {
            Err(error)
                if matches!(
                    error.kind,
                    ErrorKind::Unavailable
                        | ErrorKind::Locked
                        | ErrorKind::OutcomeUnknown
                        | ErrorKind::Overloaded
                ) =>
            {
                tokio::time::sleep(pause).await;
                pause *= 3;
            }
            result => return result,
        }
    }
    attempt().await
}
