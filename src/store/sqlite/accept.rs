//! Accepting groups of requests: one transaction, a few statements.
//!
//! The group is written whole; should the database refuse something of it, it is rolled back to where it
//! began and its requests are written one by one, each under a savepoint, so that only the bad one fails.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use sqlx::{Connection, SqliteConnection};

use super::rows::{later, micros, moment, stored_id, until};
use super::{Inner, claims, deliveries};
use crate::domain::claim::{ClaimKey, ClaimKind};
use crate::store::accept::{
    Duplicate, Message, MessageOutcome, MessageState, Outcome, Request, RequestClaim, WorkClaim,
};
use crate::store::claims::{Claim, ClaimState};
use crate::store::{Error, ErrorKind, Result};

pub(super) async fn accept(store: &Arc<Inner>, group: &[Request]) -> Vec<Result<Outcome>> {
    // What no store takes is refused before it can hold up the others.
    let mut outcomes: Vec<Option<Result<Outcome>>> =
        group.iter().map(|request| storable(request).err().map(Err)).collect();
    let good: Vec<usize> = (0..group.len()).filter(|&at| outcomes[at].is_none()).collect();
    let requests: Vec<Request> = good.iter().map(|&at| group[at].clone()).collect();
    let written = match requests.is_empty() {
        true => Ok(Vec::new()),
        false => {
            store
                .write(move |connection, now| {
                    Box::pin(async move { write(connection, now, &requests).await })
                })
                .await
        }
    };
    match written {
        Ok(written) => {
            for (at, outcome) in good.into_iter().zip(written) {
                outcomes[at] = Some(outcome);
            }
        }
        Err(error) => {
            for at in good {
                outcomes[at] = Some(Err(error.clone()));
            }
        }
    }
    let missing = || Err(Error::new(ErrorKind::Internal, "a request of the group has no outcome"));
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(missing)).collect()
}

async fn write(
    connection: &mut SqliteConnection,
    now: i64,
    requests: &[Request],
) -> Result<Vec<Result<Outcome>>> {
    let whole: Vec<&Request> = requests.iter().collect();
    match guarded(connection, now, &whole).await {
        Ok(outcomes) => return Ok(outcomes.into_iter().map(Ok).collect()),
        Err(error) if !is_of_the_data(&error) => return Err(error),
        Err(_) => {}
    }
    let mut outcomes = Vec::with_capacity(requests.len());
    for request in requests {
        outcomes.push(match guarded(connection, now, &[request]).await {
            Ok(mut one) => one.pop().ok_or_else(|| Error::new(ErrorKind::Internal, "no outcome")),
            Err(error) if is_of_the_data(&error) => Err(error),
            Err(error) => return Err(error),
        });
    }
    Ok(outcomes)
}

/// Whether an error concerns the request that it arose from, and no other.
fn is_of_the_data(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::InvalidData | ErrorKind::Internal | ErrorKind::Corrupt)
}

/// Writes these requests under a savepoint.
async fn guarded(connection: &mut SqliteConnection, now: i64, requests: &[&Request]) -> Result<Vec<Outcome>> {
    let mut savepoint = connection.begin().await.map_err(super::error::of)?;
    match write_group(&mut savepoint, now, requests).await {
        Ok(outcomes) => {
            savepoint.commit().await.map_err(super::error::of)?;
            Ok(outcomes)
        }
        Err(error) => match savepoint.rollback().await {
            // SQLite has ended the whole transaction (as it does when the disk is full): no request of it
            // may be tried again within it.
            Err(ended) if is_of_the_data(&error) => {
                Err(Error::new(ErrorKind::Unavailable, format!("{}; then: {ended}", error.detail)))
            }
            _ => Err(error),
        },
    }
}

/// A request on its way.
struct Plan<'a> {
    request: &'a Request,
    outcomes: Vec<MessageOutcome>,
    /// What is stored with the request's claim so far.
    answer: Option<Bytes>,
    end: Option<Outcome>,
}

pub(super) async fn write_group(
    connection: &mut SqliteConnection,
    now: i64,
    requests: &[&Request],
) -> Result<Vec<Outcome>> {
    let mut plans = Vec::with_capacity(requests.len());
    for request in requests {
        // Nearly always nothing is a duplicate, and then this is what happens and what is answered.
        let outcomes = outcomes(request, now, &|_| None)?;
        let answer = request.answer.render(&outcomes);
        plans.push(Plan { request, outcomes, answer, end: None });
    }
    claim_requests(connection, now, &mut plans).await?;
    claim_work(connection, now, &mut plans).await?;
    for plan in &mut plans {
        refuse(connection, plan).await?;
    }
    let rows: Vec<deliveries::NewRow<'_>> =
        plans.iter().filter(|plan| plan.end.is_none()).flat_map(|plan| new_rows(plan, now)).collect();
    deliveries::insert(connection, &rows).await?;
    Ok(plans.into_iter().map(|plan| plan.end.unwrap_or(Outcome::Stored(plan.outcomes))).collect())
}

/// Claims the requests' keys; those who lose end here.
async fn claim_requests(connection: &mut SqliteConnection, now: i64, plans: &mut [Plan<'_>]) -> Result<()> {
    let mut new = Vec::new();
    for plan in &*plans {
        if let Some(claim) = &plan.request.claim {
            new.push(request_claim(plan.request, claim, plan.answer.clone(), now)?);
        }
    }
    let mut won = Vec::new();
    claims::insert(connection, &new, &mut won).await?;
    if won.len() == new.len() {
        return Ok(());
    }
    let won: HashSet<ClaimKey> = won.into_iter().collect();
    for plan in plans {
        let Some(claim) = plan.request.claim.as_ref().filter(|claim| !won.contains(&claim.key)) else {
            continue;
        };
        let held = held(connection, claim.key, &claim.scope, &claim.id, now).await?;
        plan.end = Some(match held.fingerprint == Some(claim.fingerprint) {
            true => Outcome::Replay(held),
            false => Outcome::KeyReused(held),
        });
    }
    Ok(())
}

/// Claims the work that the messages ask for, and corrects the outcomes and answers of those who lose.
async fn claim_work(connection: &mut SqliteConnection, now: i64, plans: &mut [Plan<'_>]) -> Result<()> {
    let mut new = Vec::new();
    for plan in plans.iter().filter(|plan| plan.end.is_none()) {
        for message in &plan.request.messages {
            if let Some(claim) = message.claim.as_ref().filter(|_| message.same_as.is_none()) {
                new.push(work_claim(plan.request, message, claim, now)?);
            }
        }
    }
    let mut won = Vec::new();
    claims::insert(connection, &new, &mut won).await?;
    if won.len() == new.len() {
        return Ok(());
    }
    let won: HashSet<ClaimKey> = won.into_iter().collect();
    for plan in plans.iter_mut().filter(|plan| plan.end.is_none()) {
        let mut lost: Vec<Option<Duplicate>> = Vec::new();
        for message in &plan.request.messages {
            lost.push(match &message.claim {
                Some(claim) if message.same_as.is_none() && !won.contains(&claim.key) => {
                    let claim = held(connection, claim.key, &claim.scope, &claim.id, now).await?;
                    let state = deliveries::state_of(connection, claim.row_id).await?;
                    Some(Duplicate { claim, state })
                }
                _ => None,
            });
        }
        if lost.iter().any(Option::is_some) {
            plan.outcomes = outcomes(plan.request, now, &|at| lost[at].clone())?;
            plan.answer = plan.request.answer.render(&plan.outcomes);
            if let (Some(claim), Some(answer)) = (&plan.request.claim, &plan.answer) {
                claims::set_answer(connection, claim.key, plan.request.token, answer).await?;
            }
        }
    }
    Ok(())
}

/// Takes back what a request claimed whose answer refuses the outcomes.
async fn refuse(connection: &mut SqliteConnection, plan: &mut Plan<'_>) -> Result<()> {
    if plan.end.is_some() || plan.answer.is_some() {
        return Ok(());
    }
    let request = plan.request;
    let work = request.messages.iter().filter_map(|message| message.claim.as_ref().map(|claim| claim.key));
    for key in request.claim.iter().map(|claim| claim.key).chain(work) {
        claims::discard(connection, key, request.token).await?;
    }
    plan.end = Some(Outcome::Refused(std::mem::take(&mut plan.outcomes)));
    Ok(())
}

/// The claim under a key that was lost.
async fn held(
    connection: &mut SqliteConnection,
    key: ClaimKey,
    scope: &str,
    id: &str,
    now: i64,
) -> Result<Claim> {
    let claim = claims::find(connection, key, now).await?;
    let claim = claim.ok_or_else(|| Error::new(ErrorKind::Internal, "a claim that was lost is not there"))?;
    if claim.scope != scope || claim.id != id {
        return Err(Error::new(ErrorKind::Corrupt, format!("two identities have the key {}", key.0)));
    }
    Ok(claim)
}

/// What becomes of a request's messages, given which of them lost their claims.
fn outcomes(
    request: &Request,
    now: i64,
    lost: &dyn Fn(usize) -> Option<Duplicate>,
) -> Result<Vec<MessageOutcome>> {
    let mut outcomes: Vec<MessageOutcome> = Vec::with_capacity(request.messages.len());
    for (at, message) in request.messages.iter().enumerate() {
        let outcome = match (message.same_as, lost(at)) {
            (Some(earlier), _) => match (outcomes.get(earlier), request.messages.get(earlier)) {
                (Some(MessageOutcome::Duplicate(first)), _) => MessageOutcome::Duplicate(first.clone()),
                (Some(MessageOutcome::Accepted { .. }), Some(first)) => {
                    MessageOutcome::Duplicate(Box::new(duplicate_of(request, first, now)?))
                }
                _ => return Err(Error::new(ErrorKind::Internal, "a message is the same as a later one")),
            },
            (None, Some(duplicate)) => MessageOutcome::Duplicate(Box::new(duplicate)),
            (None, None) => {
                let claim = message.claim.as_ref();
                let expires_at = claim.map(|claim| moment(expiry(message, claim, now))).transpose()?;
                MessageOutcome::Accepted { expires_at }
            }
        };
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// What a message duplicates that asks for the same work as an earlier one of its own request.
fn duplicate_of(request: &Request, first: &Message, now: i64) -> Result<Duplicate> {
    let Some(claim) = &first.claim else {
        return Err(Error::new(ErrorKind::Internal, "a message is the same as one without a claim"));
    };
    let state = match first.targets.is_empty() {
        true => MessageState::Sent,
        false if is_scheduled(first, now) => MessageState::Scheduled,
        false => MessageState::Pending,
    };
    Ok(Duplicate { claim: work_claim(request, first, claim, now)?, state })
}

fn is_scheduled(message: &Message, now: i64) -> bool {
    message.message.deliver_at.is_some_and(|at| micros(at) > now)
}

fn expiry(message: &Message, claim: &WorkClaim, now: i64) -> i64 {
    later(message.message.deliver_at.map_or(now, micros).max(now), claim.window)
}

fn request_claim(request: &Request, claim: &RequestClaim, answer: Option<Bytes>, now: i64) -> Result<Claim> {
    let tenant = request.messages.first().map(|message| message.message.tenant.clone());
    let expires_at = later(now, claim.window);
    Ok(Claim {
        key: claim.key,
        kind: ClaimKind::Request,
        scope: claim.scope.clone(),
        id: claim.id.clone(),
        token: request.token,
        state: ClaimState::Confirmed,
        message_id: None,
        row_id: None,
        tenant: tenant.unwrap_or_default(),
        first_seen_at: moment(now)?,
        expires_at: moment(expires_at)?,
        expires_in: until(expires_at, now),
        fingerprint: Some(claim.fingerprint),
        answer,
    })
}

fn work_claim(request: &Request, message: &Message, claim: &WorkClaim, now: i64) -> Result<Claim> {
    let expires_at = expiry(message, claim, now);
    Ok(Claim {
        key: claim.key,
        kind: ClaimKind::Work,
        scope: claim.scope.clone(),
        id: claim.id.clone(),
        token: request.token,
        state: ClaimState::Confirmed,
        message_id: Some(message.message.id.clone()),
        row_id: Some(message.row_id),
        tenant: message.message.tenant.clone(),
        first_seen_at: moment(now)?,
        expires_at: moment(expires_at)?,
        expires_in: until(expires_at, now),
        fingerprint: None,
        answer: None,
    })
}

/// The rows of what was accepted of a request.
fn new_rows<'a>(plan: &'a Plan<'_>, now: i64) -> impl Iterator<Item = deliveries::NewRow<'a>> {
    let token = plan.request.token;
    let accepted = plan.request.messages.iter().zip(&plan.outcomes);
    let accepted = accepted.filter(|(_, outcome)| matches!(outcome, MessageOutcome::Accepted { .. }));
    accepted.flat_map(move |(message, _)| {
        let envelope: Arc<str> =
            serde_json::to_string(&message.message.envelope).unwrap_or_else(|_| "{}".into()).into();
        message.targets.iter().zip(0_i16..).map(move |(new, target_no)| deliveries::NewRow {
            id: message.row_id,
            target_no,
            target: &new.target,
            order: new.order,
            // One in an order is never leased from the start.
            due: match (
                new.hold.filter(|_| new.order.is_none()),
                message.message.deliver_at.map(micros).filter(|&at| at > now),
            ) {
                (_, Some(at)) => deliveries::Due::Scheduled(at),
                (Some(hold), None) => deliveries::Due::Leased(later(now, hold), token),
                (None, None) => deliveries::Due::Waiting(now),
            },
            claim_key: message.claim.as_ref().map(|claim| claim.key),
            message_id: stored_id(message.row_id, &message.message.id),
            message: &message.message,
            envelope: Arc::clone(&envelope),
        })
    })
}

/// SQLite takes a NUL within a text, but its own functions and most readers stop there, and other engines
/// refuse it.
fn storable(request: &Request) -> Result<()> {
    let mut texts: Vec<&str> = Vec::new();
    if let Some(claim) = &request.claim {
        texts.extend([claim.scope.as_str(), claim.id.as_str()]);
    }
    for Message { message, claim, targets, .. } in &request.messages {
        texts.extend([message.id.as_str(), &message.kind, &message.tenant]);
        let envelope = &message.envelope;
        let optional = [
            &message.deduplication_id,
            &message.partition_key,
            &message.correlation_id,
            &envelope.source,
            &envelope.subject,
            &envelope.content_type,
            &envelope.causation_id,
            &envelope.traceparent,
            &envelope.tracestate,
        ];
        texts.extend(optional.into_iter().flatten().map(String::as_str));
        texts.extend(envelope.headers.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]));
        texts.extend(claim.iter().flat_map(|claim| [claim.scope.as_str(), claim.id.as_str()]));
        texts.extend(targets.iter().map(|new| &*new.target.name));
    }
    match texts.iter().any(|text| text.contains('\0')) {
        true => Err(Error::new(ErrorKind::InvalidData, "a text has a NUL in it")),
        false => Ok(()),
    }
}
