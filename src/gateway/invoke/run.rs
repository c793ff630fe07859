//! The handler's run, and what its end means.
//!
//! - A status below 400 is a success: recorded together with what it published, then answered.
//! - 400 to 499 passes through; 5xx and no connection are failures of the handler. The claims are given back
//!   before the answer leaves.
//! - No answer in time, or a connection lost after the request was sent: nobody knows. The claims stay until
//!   the handler's connection ends, or twice its timeout has passed; then they are given back, or kept.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::task::JoinHandle;

use super::response::{going_on, passed, tombstone};
use super::{Body, Claims, Invoked, OnAmbiguous, Response};
use crate::config::durability::Mode;
use crate::delivery::Renewal;
use crate::domain::delivery::{Delivery, Failure, Fault};
use crate::domain::media;
use crate::gateway::{Error, Gateway, HandlerFailure, Result, StoreNode};
use crate::store::accept::{self, MessageOutcome};
use crate::store::deliveries::Settled;
use crate::store::inbox::Conclusion;
use crate::store::{self, ErrorKind};
use crate::transport::{CallError, Handler, REPLY_JSON, Reply};

/// How often an end is tried to be written.
const TRIES: u32 = 4;

/// What was heard of a handler.
struct Heard {
    status: u16,
    headers: Vec<(String, String)>,
    /// In a form that publishes messages.
    reply: Option<Reply>,
    body: Body,
}

type Hearing = Result<Heard, CallError>;

impl Gateway {
    pub(super) async fn run(
        self: &Arc<Self>,
        invoked: Invoked,
        delivery: Delivery,
        claims: Claims,
    ) -> Result<Response> {
        let began = self.clock.monotonic();
        let held = claims.held();
        let renewal = (!held.claims.is_empty())
            .then(|| claims.node.engine.renewals().keep(held, self.invoker.lease, began));
        let delivery = Arc::new(delivery);
        let timeout = invoked.transport.timeout();
        // In a task of its own: a call that is answered too late has still to end before another may begin.
        let mut call = tokio::spawn(hear(
            Arc::clone(&invoked.transport),
            Arc::clone(&delivery),
            self.invoker.max_response_bytes,
        ));
        let heard = match tokio::time::timeout(timeout, &mut call).await {
            Err(_elapsed) => {
                self.hold_on(invoked, claims, renewal, began, 504, Some(call));
                return Err(Error::HandlerTimeout { timeout });
            }
            Ok(Err(_panic)) => Err(CallError::Lost("a defect; see the log".to_owned())),
            Ok(Ok(heard)) => heard,
        };
        match heard {
            Ok(heard) if heard.status < 400 => self.succeeded(&delivery, heard, &claims).await,
            Ok(Heard { status, headers, body, .. }) => {
                self.release(&claims).await;
                if status >= 500 {
                    let detail = format!("The handler answered {status}.");
                    return Err(Error::HandlerFailed { detail, failure: HandlerFailure::Answered(status) });
                }
                Ok(Response { status, headers, body, replayed: crate::gateway::publish::Replayed::No })
            }
            Err(CallError::NotSent(failure)) => {
                tracing::warn!(handler = %delivery.target.name, error = %failure, "a handler was not reached");
                self.release(&claims).await;
                Err(failed(HandlerFailure::Unreachable, "The handler could not be reached; it did not run."))
            }
            Err(CallError::Lost(text)) => {
                tracing::warn!(handler = %delivery.target.name, error = %text, "the connection to a handler was lost");
                self.hold_on(invoked, claims, renewal, began, 502, None);
                Err(failed(
                    HandlerFailure::Lost,
                    "The connection to the handler was lost; whether it did its work is not known.",
                ))
            }
        }
    }

    async fn succeeded(&self, delivery: &Delivery, heard: Heard, claims: &Claims) -> Result<Response> {
        let Heard { status, headers, reply, body } = heard;
        let mut response =
            Response { status, headers, body, replayed: crate::gateway::publish::Replayed::No };
        let mut messages = Vec::new();
        if let Some(reply) = reply {
            let cascades = &self.invoker.cascades;
            let read = cascades.parts(&reply).and_then(|parts| {
                let handler = &delivery.target.name;
                Ok((parts.response, cascades.prepare(handler, &delivery.message, parts.drafts)?))
            });
            match read {
                Ok((said, published)) => {
                    messages = published;
                    if media::is(&reply.content_type, REPLY_JSON) {
                        let body = said.unwrap_or_else(|| Bytes::from_static(b"null"));
                        let json = ("content-type".to_owned(), "application/json".to_owned());
                        response = Response::whole(200, vec![json], body);
                    }
                }
                Err(text) => {
                    tracing::warn!(handler = %delivery.target.name, error = %text, "a handler's reply cannot be published");
                    self.release(claims).await;
                    return Err(failed(
                        HandlerFailure::Reply,
                        "The handler's reply publishes what cannot be accepted; nothing of it was published.",
                    ));
                }
            }
        }
        let answer = self.kept_of(&response);
        self.conclude(claims, answer, messages).await?;
        Ok(response)
    }

    /// What is kept of a response.
    pub(super) fn kept_of(&self, response: &Response) -> Bytes {
        response.keep(self.invoker.max_response_bytes)
    }

    /// Confirms the claims, the request's with `answer`, and stores what was published: one commit, before the
    /// answer leaves.
    pub(super) async fn conclude(
        &self,
        claims: &Claims,
        answer: Bytes,
        mut messages: Vec<accept::Message>,
    ) -> Result<()> {
        let node = &claims.node;
        let (token, now, leased_at) = (self.random.token(), self.clock.now(), self.clock.monotonic());
        if let Err(error) = self.send_published(node, &mut messages, token, now).await {
            self.release(claims).await;
            return Err(error);
        }
        self.hold_published(node, &mut messages, now);
        let mut claims = claims.clone();
        if let Some(request) = &mut claims.request {
            request.answer = Some(answer);
        }
        let claims: Vec<_> = claims.iter().cloned().collect();
        if claims.is_empty() && messages.is_empty() {
            return Ok(());
        }
        let conclusion = Conclusion { settlement: None, claims, arrival: None, messages, token };
        let concluded = retried(|| node.store.conclude(&conclusion)).await.map_err(|error| {
            tracing::error!(%error, "what a handler did could not be recorded");
            // It ran, so that "nothing happened" would be a lie.
            Error::OutcomeUnknown { retry_after: error.retry_after() }
        })?;
        if concluded.settled == Settled::Fenced {
            tracing::error!(
                "a handler ran longer than its claims could be kept; what it did was not recorded"
            );
            return Err(Error::OutcomeUnknown { retry_after: Duration::from_secs(1) });
        }
        self.published(node, &conclusion.messages, &concluded.messages);
        if self.settings.mode == Mode::ServerlessWithOutbox && !conclusion.messages.is_empty() {
            if let Err(error) = node.engine.learn_pauses().await {
                tracing::debug!(store = %node.name, %error, "which targets are paused is not known");
            }
            self.send_stored(node, &conclusion.messages, &concluded.messages, token, leased_at).await;
        }
        Ok(())
    }

    /// Has what was published sent.
    fn published(&self, node: &StoreNode, messages: &[accept::Message], outcomes: &[MessageOutcome]) {
        let now = self.clock.now();
        let mut accepted = 0;
        for (stored, outcome) in messages.iter().zip(outcomes) {
            let message = &stored.message;
            if let MessageOutcome::Duplicate(first) = outcome {
                node.metrics.duplicate(&message.kind);
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
                node.engine.note_due(&row.target, wait);
            }
        }
        node.metrics.accepted(accepted);
    }

    /// Gives the claims back. What cannot be given back is free when its lease ends.
    pub(super) async fn release(&self, claims: &Claims) {
        for claim in claims.iter() {
            if let Err(error) = retried(|| claims.node.store.release(claim.key, claim.token)).await {
                tracing::warn!(%error, "a claim could not be given back; it is free when its lease ends");
            }
        }
    }

    /// Keeps the claims in flight until nothing of the call can run any more.
    fn hold_on(
        self: &Arc<Self>,
        invoked: Invoked,
        claims: Claims,
        renewal: Option<Renewal>,
        began: Instant,
        status: u16,
        call: Option<JoinHandle<Hearing>>,
    ) {
        let gateway = Arc::clone(self);
        tokio::spawn(async move {
            let end = began + invoked.transport.timeout() * 2;
            let left = end.saturating_duration_since(gateway.clock.monotonic());
            match call {
                Some(mut call) => {
                    if tokio::time::timeout(left, &mut call).await.is_err() {
                        call.abort();
                    }
                }
                None => tokio::time::sleep(left).await,
            }
            match invoked.on_ambiguous {
                OnAmbiguous::Release => gateway.release(&claims).await,
                // Its error is logged where it arises.
                OnAmbiguous::Keep => drop(gateway.conclude(&claims, tombstone(status), Vec::new()).await),
            }
            drop(renewal);
        });
    }
}

fn failed(failure: HandlerFailure, detail: &str) -> Error {
    Error::HandlerFailed { detail: detail.to_owned(), failure }
}

/// Calls the handler and reads as much of its answer as may be kept.
async fn hear(handler: Arc<Handler>, delivery: Arc<Delivery>, max_bytes: usize) -> Hearing {
    let mut response = handler.call(&delivery).await?;
    let status = response.status();
    let headers = passed(response.headers());
    let lost = |failure: Failure| match failure.fault {
        Fault::Attempt => CallError::Lost(failure.text),
        Fault::Target | Fault::Message(_) => CallError::NotSent(failure),
    };
    if status.is_success()
        && let Some(reply) = handler.reply(&mut response).await.map_err(lost)?
    {
        let body = Body::Whole(reply.body.clone());
        return Ok(Heard { status: status.as_u16(), headers, reply: Some(reply), body });
    }
    let mut body = BytesMut::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => {
                body.extend_from_slice(&chunk);
                if body.len() > max_bytes {
                    let body = going_on(body.freeze(), response);
                    return Ok(Heard { status: status.as_u16(), headers, reply: None, body });
                }
            }
            Ok(None) => break,
            Err(error) => return Err(CallError::Lost(crate::transport::guard::describe(error))),
        }
    }
    Ok(Heard { status: status.as_u16(), headers, reply: None, body: Body::Whole(body.freeze()) })
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
                pause *= 4;
            }
            result => return result,
        }
    }
    attempt().await
}
