//! Publish: from drafts to an answer that leaves only after the commit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};

use super::answer::{self, Element, Renderer};
use super::prepare::{Batch, By, Way};
use super::{Error, Gateway, Result, StoreNode};
use crate::auth::Principal;
use crate::config::durability::Mode;
use crate::delivery::{Engine, Permit};
use crate::domain::claim::{ClaimKey, ClaimKind};
use crate::domain::delivery::Delivery;
use crate::domain::message::Draft;
use crate::domain::{RowKey, Timestamp, Token};
use crate::store::accept::{self, MessageOutcome, Outcome as Accepted};
use crate::store::claims::{Claim, ClaimState};

/// Everything of an HTTP publish that the use case needs.
#[derive(Debug)]
pub struct Call {
    pub principal: Principal,
    pub form: Form,
    pub drafts: Vec<Draft>,
    /// The request's identity, where it has one.
    pub key: Option<RequestKey>,
}

/// One message, or a batch (whose answer is a list, an empty one included).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Single,
    Batch,
}

/// An `Idempotency-Key` and what it is the key of.
#[derive(Clone, Debug)]
pub struct RequestKey {
    /// Unquoted.
    pub key: String,
    pub method: String,
    pub path: String,
    pub fingerprint: [u8; 32],
}

/// What is answered; also what is stored for replay, so that both are the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub kind: AnswerKind,
    /// The path of the message's status.
    pub location: Option<String>,
    /// JSON: a [`PublishAnswer`] or a [`BatchAnswer`].
    pub body: Bytes,
    pub replayed: Replayed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// 202
    Accepted,
    /// 200
    Duplicate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed {
    No,
    Yes,
}

/// The answer of a publish.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PublishAnswer {
    /// The message's id; for a duplicate, the first message's, unless that is another tenant's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub outcome: Outcome,
    /// Where the first message stands (a duplicate only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The identity of the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deduplication_id: Option<String>,
    /// Where the identity comes from: `publisher`, `rule`, `contract`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deduplication_source: Option<String>,
    /// When the first message was accepted (a duplicate only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_seen_at: Option<DateTime<Utc>>,
    /// Until when the identity is remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// The destinations that it goes to.
    pub destinations: Vec<String>,
    /// The handlers that it goes to.
    pub handlers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliver_at: Option<DateTime<Utc>>,
    /// What became of it at each destination when the answer was given. In the durability mode
    /// `serverless-with-outbox` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcomes: Option<BTreeMap<String, SendOutcome>>,
}

/// What became of a message at a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum SendOutcome {
    /// The destination has it.
    Sent,
    /// It is stored; a durability pass sends it.
    Pending,
    /// The destination will never take it: it is a dead letter.
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PublishOutcome)]
pub enum Outcome {
    Accepted,
    Duplicate,
}

/// The answer of a batch: one per element, in order.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
pub struct BatchAnswer {
    pub messages: Vec<PublishAnswer>,
}

impl Gateway {
    /// Accepts one message or a batch. The answer exists only after the commit. To be run to its end, whether
    /// or not the client still waits: what is committed is sent from here.
    ///
    /// # Errors
    /// Nothing is stored, except with `OutcomeUnknown`.
    pub async fn publish(&self, call: Call) -> Result<Answer> {
        self.publish_by(call, Way::Request).await
    }

    /// As [`publish`](Self::publish), of messages that come in this way.
    pub(super) async fn publish_by(&self, call: Call, way: Way) -> Result<Answer> {
        let now = self.clock.now();
        let Call { principal, form, drafts, key } = call;
        let token = self.random.token();
        let mut batch = Batch::default();
        for (index, draft) in drafts.into_iter().enumerate() {
            let idempotency_key = key.as_ref().map(|key| key.key.as_str());
            let by = By { principal: &principal, idempotency_key, way };
            let prepared =
                self.preparer.prepare(&by, draft, now).map_err(|error| error.of_element(form, index))?;
            batch.add(prepared);
        }
        let Batch { elements, messages, .. } = batch;
        let node = self.stores.of(&principal.tenant);
        let claim = key.map(|key| self.request_claim(&principal, &key));
        let publish = Publish { node, form, elements, messages, claim, token, now };
        match self.settings.mode {
            Mode::ServerlessWithOutbox => self.publish_and_send(publish).await,
            Mode::Balanced | Mode::Serverless => match self.inline_places(&publish.messages, now) {
                Some(places) => self.send_and_publish(publish, places).await,
                None => self.store_and_offer(publish).await,
            },
        }
    }

    /// Accepts, and has the rest done in the background.
    pub(super) async fn store_and_offer(&self, publish: Publish<'_>) -> Result<Answer> {
        let Publish { node, form, elements, mut messages, claim, token, now } = publish;
        let permits = reserve(&node.engine, &mut messages, now);
        let renderer = Arc::new(Renderer { form, elements });
        let publish = Accept { node, renderer: &renderer, messages: &messages, claim, token };
        match self.accept(publish).await? {
            Stored::Now(outcomes) => {
                let answer = renderer.answer(&outcomes);
                let sending = Sending { permits, token, now };
                self.send_on(node, &renderer, messages, sending, &outcomes);
                Ok(answer)
            }
            Stored::Before(answer) => Ok(answer),
        }
    }

    /// Accepts a request, or says why not.
    pub(super) async fn accept(&self, accept: Accept<'_>) -> Result<Stored> {
        let Accept { node, renderer, messages, claim, token } = accept;
        if messages.is_empty() && claim.is_none() {
            return Ok(Stored::Now(Vec::new()));
        }
        let fingerprint = claim.as_ref().map(|claim| claim.fingerprint);
        let request = accept::Request {
            claim,
            messages: messages.to_vec(),
            answer: Arc::clone(renderer) as Arc<dyn accept::Answer>,
            token,
        };
        let began = self.clock.monotonic();
        let outcome = node.acceptor.accept(request).await?;
        node.metrics.accept_took(self.clock.monotonic().saturating_duration_since(began));
        match outcome {
            Accepted::Stored(outcomes) => Ok(Stored::Now(outcomes)),
            Accepted::Refused(outcomes) => {
                say_duplicates(node, renderer, &outcomes);
                Err(taken(renderer, &outcomes))
            }
            Accepted::Replay(claim) => self.replay(&claim, fingerprint).map(Stored::Before),
            Accepted::KeyReused(_) => Err(Error::IdempotencyKeyReused),
        }
    }

    pub(super) fn request_claim(&self, principal: &Principal, key: &RequestKey) -> accept::RequestClaim {
        let caller = principal.identity();
        let scope = [principal.tenant.as_str(), caller.as_str(), key.method.as_str(), key.path.as_str()];
        accept::RequestClaim {
            key: ClaimKey::new(ClaimKind::Request, &scope, &key.key),
            scope: scope.join(" "),
            id: key.key.clone(),
            fingerprint: key.fingerprint,
            window: self.settings.idempotency_window,
        }
    }

    /// The rows are committed: attempt what is held in memory, remember when the rest is due.
    fn send_on(
        &self,
        node: &StoreNode,
        renderer: &Renderer,
        messages: Vec<accept::Message>,
        sending: Sending,
        outcomes: &[MessageOutcome],
    ) {
        let Sending { permits, token, now } = sending;
        let mut accepted = 0;
        for ((stored, permits), outcome) in messages.into_iter().zip(permits).zip(outcomes) {
            if matches!(outcome, MessageOutcome::Duplicate(_)) {
                continue; // its permits go back
            }
            accepted += 1;
            let wait = stored
                .message
                .deliver_at
                .map_or(Duration::ZERO, |at| (at - now).to_std().unwrap_or_default());
            for (target_no, (row, permit)) in stored.targets.into_iter().zip(permits).enumerate() {
                let Some(permit) = permit else {
                    node.engine.note_due(&row.target, wait);
                    continue;
                };
                // Targets are configured by hand; there are never more than an i16 can count.
                let target_no = i16::try_from(target_no).unwrap_or(i16::MAX);
                let delivery = Delivery {
                    row: RowKey { id: stored.row_id, target_no },
                    target: row.target,
                    message: Arc::clone(&stored.message),
                    attempts: 0,
                };
                node.engine.offer(permit, delivery, token);
            }
        }
        node.metrics.accepted(accepted);
        say_duplicates(node, renderer, outcomes);
    }

    /// The key was used before.
    pub(super) fn replay(&self, claim: &Claim, fingerprint: Option<[u8; 32]>) -> Result<Answer> {
        if claim.fingerprint != fingerprint {
            return Err(Error::IdempotencyKeyReused);
        }
        if claim.state == ClaimState::Claimed {
            return Err(Error::IdempotencyKeyInFlight {
                retry_after: claim.expires_in.max(Duration::from_secs(1)),
            });
        }
        claim.answer.as_ref().and_then(answer::kept).ok_or_else(|| {
            tracing::error!(key = %claim.id, "the answer kept for an idempotency key cannot be read");
            Error::Internal
        })
    }
}

/// A request whose messages are prepared.
pub(super) struct Publish<'a> {
    pub node: &'a Arc<StoreNode>,
    pub form: Form,
    pub elements: Vec<Element>,
    pub messages: Vec<accept::Message>,
    pub claim: Option<accept::RequestClaim>,
    pub token: Token,
    pub now: Timestamp,
}

/// What is to be stored of a request.
pub(super) struct Accept<'a> {
    pub node: &'a StoreNode,
    pub renderer: &'a Arc<Renderer>,
    pub messages: &'a [accept::Message],
    pub claim: Option<accept::RequestClaim>,
    pub token: Token,
}

/// What became of it.
pub(super) enum Stored {
    Now(Vec<MessageOutcome>),
    /// The request was done before, with this answer.
    Before(Answer),
}

/// The answer of a request whose work is taken.
pub(super) fn taken(renderer: &Renderer, outcomes: &[MessageOutcome]) -> Error {
    let answer = renderer.answer(outcomes);
    Error::Duplicate {
        detail: "The work that this message asks for is taken; see `id`, `state` and `expiresAt`.".into(),
        answer: Box::new(serde_json::from_slice(&answer.body).unwrap_or_default()),
    }
}

/// What is needed to send on what was stored.
struct Sending {
    /// By message, by target.
    permits: Vec<Vec<Option<Permit>>>,
    token: Token,
    now: Timestamp,
}

/// Takes room in memory for every row that may be attempted at once, and writes into the rows for how long
/// they are leased. By message, by target.
fn reserve(engine: &Engine, messages: &mut [accept::Message], now: Timestamp) -> Vec<Vec<Option<Permit>>> {
    messages
        .iter_mut()
        .map(|stored| {
            let later = stored.same_as.is_some() || stored.message.deliver_at.is_some_and(|at| at > now);
            // Bodies are shared between the rows of one message; what a row holds besides counts as 1 KiB.
            let bytes = stored.message.body.len() + 1_024;
            let rows = stored.targets.iter_mut();
            rows.map(|row| {
                let permit = if later { None } else { engine.reserve(&row.target, bytes) };
                row.hold = permit.as_ref().map(Permit::lease);
                permit
            })
            .collect()
        })
        .collect()
}

/// A duplicate is never silent.
pub(super) fn say_duplicates(node: &StoreNode, renderer: &Renderer, outcomes: &[MessageOutcome]) {
    for (element, outcome) in renderer.elements.iter().zip(outcomes) {
        let MessageOutcome::Duplicate(first) = outcome else { continue };
        node.metrics.duplicate(&element.kind);
        tracing::info!(
            message_type = %element.kind, message = %element.id, deduplication_id = ?element.deduplication_id,
            first_message = ?first.claim.message_id, first_seen_at = %first.claim.first_seen_at,
            expires_at = %first.claim.expires_at, "duplicate: the work is taken by an earlier message"
        );
    }
}
