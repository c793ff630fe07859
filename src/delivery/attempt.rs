//! One attempt at a delivery, from the claim (handlers only) to what the target said.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::future::FutureExt;

use super::engine::{Held, Shared};
use super::inbox::{Ended, HandlerOptions};
use super::settler::Work;
use super::worker::Worker;
use crate::domain::delivery::{DeadKind, Failure, Fault};
use crate::domain::policy::Cause;
use crate::store;
use crate::transport::Ack;

/// An attempt that has ended.
pub(super) struct Concluded {
    pub held: Held,
    pub ended: Ended,
    pub took: Duration,
    pub work: Work,
}

/// Makes an attempt.
pub(super) async fn attempt(worker: Arc<Worker>, shared: Arc<Shared>, held: Held) -> Concluded {
    let began = shared.clock.monotonic();
    let (ended, work) = match &worker.options.handler {
        None => (Ended::Ran(send(&worker, &held).await), Work::default()),
        Some(handler) => handle(&worker, &shared, handler, &held).await,
    };
    let took = shared.clock.monotonic().saturating_duration_since(began);
    Concluded { held, ended, took, work }
}

/// One attempt, with its time limit.
async fn send(worker: &Worker, held: &Held) -> Result<Ack, Failure> {
    let timeout = worker.options.timeout;
    let sending = AssertUnwindSafe(worker.options.transport.send(&held.delivery)).catch_unwind();
    match tokio::time::timeout(timeout, sending).await {
        Ok(Ok(result)) => result,
        Ok(Err(_panic)) => Err(Failure::new(Fault::Attempt, "a defect in the transport; see the log")),
        Err(_elapsed) => {
            Err(Failure::new(Fault::Attempt, format!("no answer within {timeout:?}")).cause(Cause::Timeout))
        }
    }
}

/// Runs a handler under its claim, if the work has an identity, while the leases are renewed.
pub(super) async fn handle(
    worker: &Worker,
    shared: &Shared,
    handler: &HandlerOptions,
    held: &Held,
) -> (Ended, Work) {
    let lease = worker.options.lease;
    let row = Some((held.delivery.row, held.token));
    let claimed = handler.claim(&shared.store, held, lease, shared.random).await;
    let claim = match claimed {
        Ok(claim) => claim,
        Err(ended) => return (ended, Work::default()),
    };
    let claims = claim.iter().map(|claim| (claim.key, claim.token)).collect();
    let (now, until) = (shared.clock.monotonic(), held.lease_until);
    let renewal = shared.renewals.keep_from(store::inbox::Held { row, claims }, lease, now, until);
    let mut ran = if worker.options.order.is_some() {
        // Where the lease ends, the next taker may go on to the next message of the key.
        tokio::select! {
            ran = send(worker, held) => ran,
            () = renewal.lost() => Err(Failure::new(Fault::Attempt, "its lease could not be renewed; see the log")),
        }
    } else {
        send(worker, held).await
    };
    let mut work = Work { claim, messages: Vec::new(), _renewal: Some(renewal) };
    if let Ok(Ack { reply: Some(reply) }) = &ran {
        match handler.cascade.read(&worker.options.target.name, &held.delivery.message, reply) {
            Ok(messages) => work.messages = messages,
            Err(text) => {
                let failure = Failure::new(Fault::Message(DeadKind::InvalidReply), text);
                ran = Err(failure.cause(Cause::InvalidReply));
            }
        }
    }
    (Ended::Ran(ran), work)
}
