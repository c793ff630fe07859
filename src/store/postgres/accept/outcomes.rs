//! What becomes of a request's messages, given which claims it lost. Pure.

use std::collections::HashMap;
use std::time::Duration;

use crate::domain::Timestamp;
use crate::domain::claim::{ClaimKey, ClaimKind};
use crate::store::accept::{Duplicate, Message, MessageOutcome, MessageState, Outcome, Request, WorkClaim};
use crate::store::claims::{Claim, ClaimState};
use crate::store::postgres::rows::later;
use crate::store::{Error, ErrorKind, Result};

/// Claims that others hold, with the state of the message that took the work.
pub(super) type Lost = HashMap<ClaimKey, Duplicate>;

/// One outcome per message. `now`: the server's time, about.
pub(super) fn of(request: &Request, now: Timestamp, lost: &Lost) -> Result<Vec<MessageOutcome>> {
    let mut outcomes: Vec<MessageOutcome> = Vec::with_capacity(request.messages.len());
    for message in &request.messages {
        let outcome = match (message.same_as, &message.claim) {
            (Some(earlier), _) => match (outcomes.get(earlier), request.messages.get(earlier)) {
                (Some(MessageOutcome::Duplicate(first)), _) => MessageOutcome::Duplicate(first.clone()),
                (Some(MessageOutcome::Accepted { .. }), Some(first)) => {
                    MessageOutcome::Duplicate(Box::new(duplicate_of(request, first, now)?))
                }
                _ => return Err(Error::new(ErrorKind::Internal, "a message is the same as a later one")),
            },
            (None, Some(claim)) => match lost.get(&claim.key) {
                Some(duplicate) => MessageOutcome::Duplicate(Box::new(duplicate.clone())),
                None => MessageOutcome::Accepted { expires_at: Some(expiry(message, claim, now)) },
            },
            (None, None) => MessageOutcome::Accepted { expires_at: None },
        };
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// Until when the claim of a message's work stands: what is published ahead is still known then.
pub(super) fn expiry(message: &Message, claim: &WorkClaim, now: Timestamp) -> Timestamp {
    later(message.message.deliver_at.map_or(now, |at| at.max(now)), claim.window)
}

/// What a later message of the same request is a duplicate of.
fn duplicate_of(request: &Request, first: &Message, now: Timestamp) -> Result<Duplicate> {
    let claim = first.claim.as_ref();
    let claim =
        claim.ok_or_else(|| Error::new(ErrorKind::Internal, "a message is the same as one without claim"))?;
    let expires_at = expiry(first, claim, now);
    let state = match (first.targets.is_empty(), first.message.deliver_at) {
        (true, _) => MessageState::Sent,
        (false, Some(at)) if at > now => MessageState::Scheduled,
        (false, _) => MessageState::Pending,
    };
    let claim = Claim {
        key: claim.key,
        kind: ClaimKind::Work,
        scope: claim.scope.clone(),
        id: claim.id.clone(),
        token: request.token,
        state: ClaimState::Confirmed,
        message_id: Some(first.message.id.clone()),
        row_id: Some(first.row_id),
        tenant: first.message.tenant.clone(),
        first_seen_at: now,
        expires_at,
        expires_in: (expires_at - now).to_std().unwrap_or(Duration::ZERO),
        fingerprint: None,
        answer: None,
    };
    Ok(Duplicate { claim, state })
}

/// What becomes of a request whose own key is taken by `held`.
pub(super) fn of_taken_key(request: &Request, held: Claim) -> Outcome {
    let fingerprint = request.claim.as_ref().map(|claim| claim.fingerprint);
    if held.fingerprint == fingerprint { Outcome::Replay(held) } else { Outcome::KeyReused(held) }
}
