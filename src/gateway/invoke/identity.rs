//! Who may run: the request's key, and the work's identity.

use std::time::Duration;

use bytes::Bytes;

use super::Response;
use super::response::{Kept, kept};
use crate::auth::Principal;
use crate::domain::claim::ClaimKind;
use crate::domain::identity::OnDuplicate;
use crate::gateway::prepare::PreparedInvoke;
use crate::gateway::publish::{Outcome, PublishAnswer, RequestKey};
use crate::gateway::{Error, Gateway, Result};
use crate::store;
use crate::store::accept::{MessageState, WorkClaim};
use crate::store::claims::{Claim, ClaimState, Claimed, NewClaim};
use crate::store::inbox::HeldClaim;

/// How often a request that waits looks for the first one's answer.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_MOST: Duration = Duration::from_millis(250);
/// When to ask again for the answer of a request that still runs.
const IN_FLIGHT: Duration = Duration::from_secs(1);

pub(super) enum Request {
    Had(HeldClaim),
    Replay(Response),
}

pub(super) enum Work {
    Had(HeldClaim),
    Duplicate(Response),
}

impl Gateway {
    /// Claims the request's key, or replays its answer; waits for it while another request runs.
    pub(super) async fn claim_request(
        &self,
        principal: &Principal,
        key: &RequestKey,
        wait: Duration,
    ) -> Result<Request> {
        let claim = self.request_claim(principal, key);
        let new = NewClaim {
            key: claim.key,
            kind: ClaimKind::Request,
            scope: claim.scope,
            id: claim.id,
            tenant: principal.tenant.clone(),
            token: self.random.token(),
            lease: self.invoker.lease,
            message_id: None,
            fingerprint: Some(claim.fingerprint),
        };
        let store = self.store(principal);
        let deadline = self.clock.monotonic() + wait;
        let mut slot = None;
        loop {
            let mut standing = match store.claim(&new).await? {
                Claimed::Granted(_) => {
                    let window = claim.window;
                    return Ok(Request::Had(HeldClaim {
                        key: new.key,
                        token: new.token,
                        window,
                        answer: None,
                    }));
                }
                Claimed::Held(claim) => claim,
            };
            let mut pause = LOOK;
            loop {
                if standing.fingerprint != new.fingerprint {
                    return Err(Error::IdempotencyKeyReused);
                }
                if standing.state == ClaimState::Confirmed {
                    return replay(&standing).map(Request::Replay);
                }
                let left = deadline.saturating_duration_since(self.clock.monotonic());
                slot = slot.or_else(|| self.invoker.waiters.try_acquire().ok());
                if left.is_zero() || slot.is_none() {
                    return Err(Error::IdempotencyKeyInFlight { retry_after: IN_FLIGHT });
                }
                tokio::time::sleep(pause.min(left)).await;
                pause = (pause * 2).min(LOOK_MOST);
                match store.claim_of(new.key).await? {
                    Some(claim) => standing = claim,
                    // The first one failed: this one runs.
                    None => break,
                }
            }
        }
    }

    /// Claims the work, or says who has it, as a publish does.
    pub(super) async fn claim_work(&self, prepared: &PreparedInvoke, work: &WorkClaim) -> Result<Work> {
        let message = &*prepared.message;
        let new = NewClaim {
            key: work.key,
            kind: ClaimKind::Work,
            scope: work.scope.clone(),
            id: work.id.clone(),
            tenant: message.tenant.clone(),
            token: self.random.token(),
            lease: self.invoker.lease,
            message_id: Some(message.id.clone()),
            fingerprint: None,
        };
        let node = self.stores.of(&message.tenant);
        let first = match node.store.claim(&new).await? {
            Claimed::Granted(_) => {
                return Ok(Work::Had(HeldClaim {
                    key: new.key,
                    token: new.token,
                    window: work.window,
                    answer: None,
                }));
            }
            Claimed::Held(claim) => claim,
        };
        node.metrics.duplicate(&message.kind);
        tracing::info!(
            message_type = %message.kind, message = %message.id, deduplication_id = %work.id,
            first_message = ?first.message_id, first_seen_at = %first.first_seen_at,
            expires_at = %first.expires_at, "duplicate: the work is taken; the handler is not run"
        );
        let answer = PublishAnswer {
            // A duplicate of another tenant's is told without its id.
            id: first.message_id.clone().filter(|_| first.tenant == message.tenant),
            outcome: Outcome::Duplicate,
            state: Some(state_of(&node.store, &first).await?.as_str().to_owned()),
            deduplication_id: Some(work.id.clone()),
            deduplication_source: prepared.source.map(str::to_owned),
            first_seen_at: Some(first.first_seen_at),
            expires_at: Some(first.expires_at),
            destinations: Vec::new(),
            handlers: Vec::new(),
            deliver_at: None,
            outcomes: None,
        };
        // Only what is over is answered the same for good.
        let over = first.state == ClaimState::Confirmed;
        if prepared.on_duplicate == OnDuplicate::Conflict || !over {
            return Err(Error::Duplicate {
                detail: "The work that this message asks for is taken; see `id`, `state` and `expiresAt`."
                    .into(),
                answer: Box::new(serde_json::to_value(&answer).unwrap_or_default()),
            });
        }
        let body = Bytes::from(serde_json::to_vec(&answer).unwrap_or_default());
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        Ok(Work::Duplicate(Response::whole(200, headers, body)))
    }
}

/// Where the message stands that took the work first.
async fn state_of(store: &store::Shared, first: &Claim) -> Result<MessageState> {
    if first.state == ClaimState::Claimed {
        return Ok(MessageState::Pending);
    }
    let Some(id) = &first.message_id else { return Ok(MessageState::Handled) };
    let status = store.message(&first.tenant, id).await?;
    // Nothing left of it: it was invoked, or its receipt is gone.
    let states = status.into_iter().flat_map(|status| status.targets).map(|target| target.state);
    Ok(states.min_by_key(|state| *state as u8).unwrap_or(MessageState::Handled))
}

fn replay(claim: &Claim) -> Result<Response> {
    match claim.answer.as_ref().and_then(kept) {
        Some(Kept::Response(response)) => Ok(response),
        Some(Kept::Tombstone(original_status)) => Err(Error::ResponseNotKept { original_status }),
        None => {
            tracing::error!(key = %claim.id, "the answer kept for an idempotency key cannot be read");
            Err(Error::Internal)
        }
    }
}
