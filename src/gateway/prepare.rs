//! From a draft to what is stored: authorised, identified, routed. Every way in goes through here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::answer::Element;
use super::{Error, Result, Routing};
use crate::auth::Principal;
use crate::config::identity::Messages;
use crate::domain::claim::ClaimKey;
use crate::domain::delivery::{Target, TargetKind};
use crate::domain::identity::{Derived, Enforcement, Facts, OnDuplicate};
use crate::domain::message::{Draft, Message};
use crate::domain::{Random, Timestamp};
use crate::store::accept::{self, WorkClaim};
use crate::telemetry::Metrics;
use crate::telemetry::trace::Traces;

/// What is known of messages, whoever publishes them.
#[derive(Clone)]
pub struct Preparer {
    pub routing: Routing,
    pub messages: Messages,
    pub keeping: Keeping,
    pub random: Random,
    pub metrics: Metrics,
    pub traces: Traces,
}

/// What is stored of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// Its deliveries, until they are made.
    Deliveries,
    /// Claims only: what only a later moment or a handler could take is refused.
    Claims,
}

/// Who publishes, and under which idempotency key.
pub(super) struct By<'a> {
    pub principal: &'a Principal,
    pub idempotency_key: Option<&'a str>,
    pub way: Way,
}

/// How a message comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// In a request, which may have to have an idempotency key.
    Request,
    /// In a push, whose sender has an identity of its own for it.
    Push,
    /// In a handler's answer, which exists once by itself.
    Cascade,
    /// In a row of the intake, which exists once by itself.
    Intake,
}

/// A message on its way into the store, and what its answer tells.
pub(super) struct Prepared {
    pub element: Element,
    pub stored: accept::Message,
}

/// A message that a handler is about to be invoked with.
pub(super) struct PreparedInvoke {
    pub message: Arc<Message>,
    pub row_id: Uuid,
    pub work: Option<WorkClaim>,
    /// Where the deduplication id comes from.
    pub source: Option<&'static str>,
    pub on_duplicate: OnDuplicate,
}

/// The messages of one request, in order.
#[derive(Default)]
pub(super) struct Batch {
    pub elements: Vec<Element>,
    pub messages: Vec<accept::Message>,
    /// Where the first message of each work is.
    works: HashMap<ClaimKey, usize>,
}

impl Batch {
    /// Adds a message; the second one that asks for the same work becomes a duplicate of the first.
    pub fn add(&mut self, Prepared { element, mut stored }: Prepared) {
        if let Some(claim) = &stored.claim {
            let place = self.messages.len();
            let first = *self.works.entry(claim.key).or_insert(place);
            if first != place {
                stored.claim = None;
                stored.same_as = Some(first);
            }
        }
        self.elements.push(element);
        self.messages.push(stored);
    }
}

impl Preparer {
    /// The message that `draft` becomes at `now`, with its claim and its rows (none of them held yet).
    ///
    /// # Errors
    /// `Forbidden`, `Unroutable`, `SchemaViolation`, `IdempotencyKeyMissing`, `DeduplicationIdMissing`.
    pub(super) fn prepare(&self, by: &By<'_>, draft: Draft, now: Timestamp) -> Result<Prepared> {
        let principal = by.principal;
        if draft.destinations.is_none() && !principal.may_publish(&draft.kind) {
            return Err(Error::Forbidden {
                detail: format!(
                    "Publishing messages of type `{0}` needs the grant `publish:{0}`.",
                    draft.kind
                ),
            });
        }
        self.check_key(by, &draft)?;
        self.check_schema(&draft)?;
        let targets = self.routing.targets(principal, &draft)?;
        let targets = self.sendable(&draft, targets, now)?;
        if targets.is_empty() {
            self.metrics.unroutable();
        }
        let derived = self.derive(by, &draft);
        let enforcement = self.messages.identity.enforcement(&draft.kind);
        let claim = work_claim(principal, &draft.kind, derived.as_ref(), enforcement)?;
        let row_id = self.random.uuid_v7(now);
        let source = derived.as_ref().map(|derived| derived.source.as_str());
        let message = self.message(principal, draft, row_id, derived, now);
        let deliver_at = message.deliver_at;
        let element = Element {
            id: message.id.clone(),
            kind: message.kind.clone(),
            tenant: message.tenant.clone(),
            deduplication_id: message.deduplication_id.clone(),
            deduplication_source: source,
            targets: targets.clone(),
            deliver_at: deliver_at.filter(|at| *at > now),
            on_duplicate: enforcement
                .map_or(OnDuplicate::Acknowledge, |enforcement| enforcement.on_duplicate),
            outcomes: None,
        };
        let rows = targets.into_iter().map(|target| self.routing.row(target, &message)).collect();
        let stored = accept::Message { row_id, message, claim, same_as: None, targets: rows };
        Ok(Prepared { element, stored })
    }

    /// The targets that can be reached before the answer, where nothing is stored.
    fn sendable(&self, draft: &Draft, mut targets: Vec<Target>, now: Timestamp) -> Result<Vec<Target>> {
        if self.keeping == Keeping::Deliveries {
            return Ok(targets);
        }
        let later =
            draft.deliver_at.is_some_and(|at| at > now) || draft.delay.is_some_and(|delay| !delay.is_zero());
        if later {
            let detail = "Nothing is stored in the durability mode `serverless`, so nothing can be delivered later. \
                          Leave `deliverAt` and `delay` out, or have an operator choose another mode.";
            return Err(Error::SchedulingUnavailable { detail: detail.into() });
        }
        let some = !targets.is_empty();
        targets.retain(|target| target.kind == TargetKind::Destination);
        if some && targets.is_empty() {
            let detail = format!(
                "Only a handler takes messages of type `{0}`, and in the durability mode `serverless` nothing waits \
                 for one. `POST /v1/invoke/{0}` runs it now.",
                draft.kind
            );
            return Err(Error::Unroutable { detail });
        }
        Ok(targets)
    }

    /// The message that a handler is invoked with, and the claim of its work. It has no rows.
    ///
    /// # Errors
    /// `SchemaViolation`, `IdempotencyKeyMissing`, `DeduplicationIdMissing`.
    pub(super) fn prepare_invoke(&self, by: &By<'_>, draft: Draft, now: Timestamp) -> Result<PreparedInvoke> {
        self.sendable(&draft, Vec::new(), now)?;
        self.check_key(by, &draft)?;
        self.check_schema(&draft)?;
        let derived = self.derive(by, &draft);
        let enforcement = self.messages.identity.enforcement(&draft.kind);
        let work = work_claim(by.principal, &draft.kind, derived.as_ref(), enforcement)?;
        let row_id = self.random.uuid_v7(now);
        let source = derived.as_ref().map(|derived| derived.source.as_str());
        let message = self.message(by.principal, draft, row_id, derived, now);
        let on_duplicate =
            enforcement.map_or(OnDuplicate::Acknowledge, |enforcement| enforcement.on_duplicate);
        Ok(PreparedInvoke { message, row_id, work, source, on_duplicate })
    }

    fn message(
        &self,
        principal: &Principal,
        draft: Draft,
        row_id: Uuid,
        derived: Option<Derived>,
        now: Timestamp,
    ) -> Arc<Message> {
        let deliver_at = draft.deliver_at.or_else(|| draft.delay.map(|delay| later(now, delay)));
        let mut envelope = draft.envelope;
        let (parent, state) = (envelope.traceparent.as_deref(), envelope.tracestate.as_deref());
        envelope.traceparent = self.traces.continue_from(parent, state, self.random);
        if envelope.traceparent.is_none() {
            envelope.tracestate = None;
        }
        Arc::new(Message {
            id: draft.id.unwrap_or_else(|| row_id.to_string()),
            kind: draft.kind,
            tenant: principal.tenant.clone(),
            body: draft.body,
            deduplication_id: derived.map(|derived| derived.id),
            partition_key: draft.partition_key,
            correlation_id: draft.correlation_id,
            deliver_at,
            deliver_by: draft.deliver_by,
            accepted_at: now,
            envelope,
        })
    }

    fn check_key(&self, by: &By<'_>, draft: &Draft) -> Result<()> {
        if by.way == Way::Request
            && by.idempotency_key.is_none()
            && self.messages.key_required.contains(&draft.kind)
        {
            return Err(Error::IdempotencyKeyMissing {
                detail: format!("Messages of type `{}` need an `Idempotency-Key` header.", draft.kind),
            });
        }
        Ok(())
    }

    /// Checks the data against the schema of its type, where it has one. The places are pointers into what the
    /// publisher sent.
    pub(super) fn check_schema(&self, draft: &Draft) -> Result<()> {
        let Some(schema) = self.messages.schemas.get(&draft.kind) else { return Ok(()) };
        schema.check(&draft.body, draft.body_at).map_err(|errors| Error::SchemaViolation {
            detail: format!("The data violates the schema of `{}`; `errors` lists where.", draft.kind),
            errors,
        })
    }

    /// The deduplication id of a draft, if it has one.
    pub(super) fn derive(&self, by: &By<'_>, draft: &Draft) -> Option<Derived> {
        let facts = Facts::of_draft(draft, &by.principal.tenant, by.idempotency_key);
        self.messages.identity.derive(&draft.deduplication, &facts)
    }
}

/// The claim of the work, where the type enforces one.
fn work_claim(
    principal: &Principal,
    kind: &str,
    derived: Option<&Derived>,
    enforcement: Option<Enforcement>,
) -> Result<Option<WorkClaim>> {
    let Some(enforcement) = enforcement else { return Ok(None) };
    let Some(derived) = derived else {
        if !enforcement.required {
            return Ok(None);
        }
        return Err(Error::DeduplicationIdMissing {
            detail: format!(
                "Messages of type `{kind}` need a deduplication id: set `deduplicationId` (the header \
                 `Deduplication-Id`), or what its rule is made of."
            ),
        });
    };
    let work = enforcement.work_key(&principal.tenant, kind, &derived.id);
    Ok(Some(WorkClaim {
        key: work.key,
        scope: work.scope,
        id: derived.id.clone(),
        window: enforcement.window,
    }))
}

/// `now + delay`; what lies beyond the calendar is refused at the edge.
fn later(now: Timestamp, delay: Duration) -> Timestamp {
    chrono::Duration::from_std(delay).ok().and_then(|delay| now.checked_add_signed(delay)).unwrap_or(now)
}
