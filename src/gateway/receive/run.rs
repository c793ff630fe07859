//! Running a handler for what is pushed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::prepare::{By, Way};
use super::super::{Error, Gateway, Result};
use super::Receiver;
use super::identity::Pushed;
use crate::auth::Principal;
use crate::delivery::direct::{Direct, End, Stored};
use crate::domain::RowKey;
use crate::domain::claim::{ClaimKey, ClaimKind};
use crate::domain::delivery::{Delivery, Target};
use crate::store::accept::{self, MessageOutcome, NewDelivery, WorkClaim};
use crate::store::inbox::Arrival;

/// How long a push is remembered whose delivery has not ended: longer than any sender tries.
const WHILE_IT_WAITS: Duration = Duration::from_secs(31 * 24 * 3600);

pub(super) struct Run {
    pub receiver: Arc<Receiver>,
    pub handler: String,
    pub deduplicate: bool,
    /// The sender's count, this attempt included.
    pub attempts: u32,
    /// The answer's deadline: nothing more begins after it.
    pub until: Instant,
}

/// What became of one message.
enum Ended {
    Done,
    Again,
}

impl Run {
    /// Runs the messages in order, until one is to be pushed again.
    pub async fn all(&self, gateway: &Arc<Gateway>, messages: Vec<Pushed>) -> Result<()> {
        let again = || Error::PushAgain { status: self.receiver.retry_status() };
        for pushed in messages {
            if gateway.clock.monotonic() >= self.until {
                return Err(again());
            }
            if let Ended::Again = self.one(gateway, pushed).await? {
                return Err(again());
            }
        }
        Ok(())
    }

    async fn one(&self, gateway: &Arc<Gateway>, pushed: Pushed) -> Result<Ended> {
        let principal = self.receiver.principal();
        let known_by = pushed.known_by.clone().filter(|_| self.deduplicate);
        let draft = gateway.with_fallback(&principal, pushed);
        let now = gateway.clock.now();
        let by = By { principal: &principal, idempotency_key: None, way: Way::Push };
        let prepared = gateway.preparer.prepare_invoke(&by, draft, now)?;
        let node = Arc::clone(gateway.stores.of(&principal.tenant));
        let target = Target::handler(&self.handler);
        let later = prepared.message.deliver_at.is_some_and(|at| at > now);
        let stored = accept::Message {
            row_id: prepared.row_id,
            message: Arc::clone(&prepared.message),
            claim: known_by.map(|id| self.claim(&principal, id)),
            same_as: None,
            targets: vec![NewDelivery {
                hold: Some(self.receiver.lease),
                ..NewDelivery::waiting(target.clone())
            }],
        };
        let token = gateway.random.token();
        let row = RowKey { id: prepared.row_id, target_no: 0 };
        let delivery =
            Delivery { row, target, message: prepared.message, attempts: self.attempts.saturating_sub(1) };
        let state = match (stored.claim.clone(), later) {
            (None, false) => Stored::No(Box::new(stored)),
            (claim, _) => {
                let request = accept::Request {
                    claim: None,
                    messages: vec![stored],
                    answer: Arc::new(accept::NoAnswer),
                    token,
                };
                let accept::Outcome::Stored(outcomes) = node.acceptor.accept(request).await? else {
                    return Err(Error::Internal);
                };
                if let Some(MessageOutcome::Duplicate(first)) = outcomes.first() {
                    return self.came_again(gateway, &node.store, &delivery, first).await;
                }
                node.metrics.accepted(1);
                let Some(claim) = claim.filter(|_| !later) else {
                    // It is to be delivered later, and is stored for that.
                    node.engine.note_due(&delivery.target, Duration::ZERO);
                    return Ok(Ended::Done);
                };
                Stored::Yes(Arrival { key: claim.key, token, keep: self.receiver.keep_handled })
            }
        };
        let message = Arc::clone(&delivery.message);
        match node.engine.run_now(Direct { delivery, token, stored: state }).await? {
            End::Handled | End::Discarded | End::Dead => Ok(Ended::Done),
            End::Again(why) => {
                tracing::info!(
                    receiver = %self.receiver.name, handler = %self.handler, message_type = %message.kind,
                    message = %message.id, attempt = self.attempts, reason = %why, "to be pushed again"
                );
                Ok(Ended::Again)
            }
        }
    }

    /// The claim that recognises what is pushed again.
    fn claim(&self, principal: &Principal, id: String) -> WorkClaim {
        let scope = [principal.tenant.as_str(), self.receiver.name.as_str(), "push"];
        WorkClaim {
            key: ClaimKey::new(ClaimKind::Handler, &scope, &id),
            scope: scope.join(" "),
            id,
            window: WHILE_IT_WAITS,
        }
    }

    /// It was taken before: it is being run, or it is done, or stored for whoever takes it next.
    async fn came_again(
        &self,
        gateway: &Gateway,
        store: &crate::store::Shared,
        delivery: &Delivery,
        first: &accept::Duplicate,
    ) -> Result<Ended> {
        let leased = match first.claim.row_id {
            Some(row_id) => store.leased_for(row_id).await?,
            None => None,
        };
        let running = leased.is_some();
        gateway.metrics.duplicate(&delivery.message.kind);
        tracing::info!(
            receiver = %self.receiver.name, message = %delivery.message.id, running,
            first_seen_at = %first.claim.first_seen_at, "pushed again; the handler is not run a second time"
        );
        Ok(if running { Ended::Again } else { Ended::Done })
    }
}
