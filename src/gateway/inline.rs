//! Sending before anything is stored: the mode `serverless`, and destinations with `mode = "inline"`.
//!
//! What identifies the request and its work is claimed first, with a lease that is renewed while it sends. Once
//! every destination has acknowledged, the claims are confirmed in the commit that stores whatever is left to
//! store (nothing, in `serverless`). A failed send frees them before the answer leaves; a process that dies frees
//! them when their leases end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{FutureExt, join_all};
use futures::stream::{self, StreamExt};

use super::answer::Renderer;
use super::publish::{Accept, Answer, Form, Publish, Stored, say_duplicates, taken};
use super::{Error, Gateway, Result, StoreNode};
use crate::config::durability::Mode;
use crate::delivery::Inline;
use crate::domain::claim::{ClaimKey, ClaimKind};
use crate::domain::delivery::{Delivery, Target, TargetKind};
use crate::domain::{RowKey, Timestamp, Token};
use crate::store::accept::{self, Duplicate, MessageOutcome, MessageState};
use crate::store::claims::{Claim, ClaimState, Claimed, NewClaim};
use crate::store::inbox::Held;

/// Claims that are taken at the same time.
const CLAIMING: usize = 8;
/// How often a request that waits for the first one with its key looks for the answer.
const LOOK: Duration = Duration::from_millis(50);
/// How long it waits.
const WAIT: Duration = Duration::from_secs(10);
/// How often a claim is tried to be freed.
const TRIES: u32 = 4;

/// By message: the places among its targets of those that are sent before anything is stored.
pub(super) type Places = Vec<BTreeSet<usize>>;

/// What a request has claimed, by message.
#[derive(Default)]
struct Works {
    own: BTreeMap<usize, (ClaimKey, Duration)>,
    duplicates: BTreeMap<usize, Claim>,
}

impl Works {
    /// The keys of the work of all messages but these.
    fn keys_but(&self, done: &BTreeSet<usize>) -> Vec<ClaimKey> {
        let rest = self.own.iter().filter(|(place, _)| !done.contains(place));
        rest.map(|(_, (key, _))| *key).collect()
    }
}

/// What became of the messages.
struct Failures {
    /// By message.
    places: BTreeSet<usize>,
    destinations: BTreeSet<String>,
    /// `None`: some of it never works.
    retry_after: Option<Duration>,
}

impl Gateway {
    /// What of the messages is sent before anything is stored; `None`: nothing.
    pub(super) fn inline_places(&self, messages: &[accept::Message], now: Timestamp) -> Option<Places> {
        let serverless = self.settings.mode == Mode::Serverless;
        if !serverless && self.settings.inline.is_empty() {
            return None;
        }
        let inline = |target: &Target| {
            target.kind == TargetKind::Destination && (serverless || self.settings.inline.contains(target))
        };
        let of_message = |stored: &accept::Message| {
            let later = stored.same_as.is_some() || stored.message.deliver_at.is_some_and(|at| at > now);
            let places = stored.targets.iter().enumerate().filter(|(_, row)| !later && inline(&row.target));
            places.map(|(place, _)| place).collect::<BTreeSet<_>>()
        };
        let places: Places = messages.iter().map(of_message).collect();
        places.iter().any(|places| !places.is_empty()).then_some(places)
    }

    /// Sends, then accepts what is left to be stored.
    pub(super) async fn send_and_publish(&self, publish: Publish<'_>, places: Places) -> Result<Answer> {
        let Publish { node, form, elements, mut messages, claim, token, now } = publish;
        let renderer = Arc::new(Renderer { form, elements });
        if let Some(claim) = &claim
            && let Some(answer) = self.claim_request_inline(node, claim, token).await?
        {
            return Ok(answer);
        }
        let request_key = claim.as_ref().map(|claim| claim.key);
        let claimed = self.claim_works(node, &messages, token).await;
        let works = match claimed {
            Ok(works) => works,
            Err((works, error)) => {
                free(
                    node,
                    [request_key.into_iter().collect(), works.keys_but(&BTreeSet::new())].concat(),
                    token,
                )
                .await;
                return Err(error);
            }
        };
        let request_key: Vec<ClaimKey> = request_key.into_iter().collect();
        let keys = [request_key.clone(), works.keys_but(&BTreeSet::new())].concat();
        if works.duplicates.values().any(|claim| claim.state == ClaimState::Claimed) {
            // Somebody is still at it, who may fail: to acknowledge it as a duplicate could lose it.
            free(node, keys, token).await;
            let outcomes = in_flight(&messages, &works);
            say_duplicates(node, &renderer, &outcomes);
            return Err(taken(&renderer, &outcomes));
        }
        let held = Held { row: None, claims: keys.iter().map(|key| (*key, token)).collect() };
        let renewal = (!held.claims.is_empty())
            .then(|| node.engine.renewals().keep(held, self.invoker.lease, self.clock.monotonic()));
        if let Some(failures) = send(node, &messages, &places, &works.duplicates).await {
            let done: BTreeSet<usize> = (works.own.keys())
                .filter(|place| !failures.places.contains(place))
                .filter(|place| messages[**place].targets.len() == places[**place].len())
                .copied()
                .collect();
            keep_done(node, &works, &done, token).await;
            free(node, [request_key, works.keys_but(&done)].concat(), token).await;
            return Err(failed(form, &failures));
        }
        for (stored, places) in messages.iter_mut().zip(&places) {
            let mut place = 0;
            stored.targets.retain(|_| {
                place += 1;
                !places.contains(&(place - 1))
            });
        }
        let left = messages.iter().any(|stored| !stored.targets.is_empty() || stored.claim.is_some());
        if !left && claim.is_none() {
            let accepted = |_: &accept::Message| MessageOutcome::Accepted { expires_at: None };
            let outcomes: Vec<_> = messages.iter().map(accepted).collect();
            node.metrics.accepted(outcomes.len() as u64);
            return Ok(renderer.answer(&outcomes));
        }
        let answer = self.store_rest(node, &renderer, messages, claim, token, now).await;
        drop(renewal);
        if answer.is_err() {
            free(node, keys, token).await;
        }
        answer
    }

    async fn store_rest(
        &self,
        node: &Arc<StoreNode>,
        renderer: &Arc<Renderer>,
        messages: Vec<accept::Message>,
        claim: Option<accept::RequestClaim>,
        token: Token,
        now: Timestamp,
    ) -> Result<Answer> {
        if messages.iter().any(|stored| !stored.targets.is_empty()) {
            let (form, elements) = (renderer.form, renderer.elements.clone());
            return self.store_and_offer(Publish { node, form, elements, messages, claim, token, now }).await;
        }
        let request = Accept { node, renderer, messages: &messages, claim, token };
        match self.accept(request).await? {
            Stored::Before(answer) => Ok(answer),
            Stored::Now(outcomes) => {
                let accepted =
                    outcomes.iter().filter(|outcome| matches!(outcome, MessageOutcome::Accepted { .. }));
                node.metrics.accepted(accepted.count() as u64);
                say_duplicates(node, renderer, &outcomes);
                Ok(renderer.answer(&outcomes))
            }
        }
    }

    /// Claims the request's key. The answer of an earlier request with it, where there is one; one that still runs
    /// is waited for.
    async fn claim_request_inline(
        &self,
        node: &StoreNode,
        claim: &accept::RequestClaim,
        token: Token,
    ) -> Result<Option<Answer>> {
        let new = NewClaim {
            key: claim.key,
            kind: ClaimKind::Request,
            scope: claim.scope.clone(),
            id: claim.id.clone(),
            tenant: String::new(),
            token,
            lease: self.invoker.lease,
            message_id: None,
            fingerprint: Some(claim.fingerprint),
        };
        let deadline = self.clock.monotonic() + WAIT;
        loop {
            let standing = match node.store.claim(&new).await? {
                Claimed::Granted(_) => return Ok(None),
                Claimed::Held(standing) => standing,
            };
            let runs = standing.state == ClaimState::Claimed && standing.fingerprint == new.fingerprint;
            if !runs || self.clock.monotonic() >= deadline {
                return self.replay(&standing, new.fingerprint).map(Some);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Claims the work of the messages. What is taken is told; with an error, what was claimed until then.
    async fn claim_works(
        &self,
        node: &StoreNode,
        messages: &[accept::Message],
        token: Token,
    ) -> std::result::Result<Works, (Works, Error)> {
        let mut claims = Vec::new();
        for (place, stored) in messages.iter().enumerate().filter(|(_, stored)| stored.same_as.is_none()) {
            let Some(work) = &stored.claim else { continue };
            let new = NewClaim {
                key: work.key,
                kind: ClaimKind::Work,
                scope: work.scope.clone(),
                id: work.id.clone(),
                tenant: stored.message.tenant.clone(),
                token,
                lease: self.invoker.lease,
                message_id: Some(stored.message.id.clone()),
                fingerprint: None,
            };
            claims.push(async move { (place, work.window, node.store.claim(&new).await) }.boxed());
        }
        let mut works = Works::default();
        let mut failure = None;
        let mut claims = stream::iter(claims).buffer_unordered(CLAIMING);
        while let Some((place, window, claimed)) = claims.next().await {
            match claimed {
                Ok(Claimed::Granted(claim)) => {
                    works.own.insert(place, (claim.key, window));
                }
                Ok(Claimed::Held(claim)) => {
                    works.duplicates.insert(place, claim);
                }
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            None => Ok(works),
            Some(error) => Err((works, error.into())),
        }
    }

    /// Sends what a handler published, where nothing is stored. The messages are left with nothing to send.
    ///
    /// # Errors
    /// `DestinationFailed`; `Duplicate` where somebody else is at the same work.
    pub(super) async fn send_published(
        &self,
        node: &StoreNode,
        messages: &mut [accept::Message],
        token: Token,
        now: Timestamp,
    ) -> Result<()> {
        let Some(places) =
            self.inline_places(messages, now).filter(|_| self.settings.mode == Mode::Serverless)
        else {
            return Ok(());
        };
        let works = match self.claim_works(node, messages, token).await {
            Ok(works) => works,
            Err((works, error)) => {
                free(node, works.keys_but(&BTreeSet::new()), token).await;
                return Err(error);
            }
        };
        if let Some(failures) = send(node, messages, &places, &works.duplicates).await {
            let done = works.own.keys().filter(|place| !failures.places.contains(place)).copied().collect();
            keep_done(node, &works, &done, token).await;
            free(node, works.keys_but(&done), token).await;
            return Err(failed(Form::Single, &failures));
        }
        for stored in messages {
            stored.targets.clear();
        }
        Ok(())
    }
}

/// Sends, destinations side by side and each in order. `None`: everything was acknowledged.
async fn send(
    node: &StoreNode,
    messages: &[accept::Message],
    places: &Places,
    duplicates: &BTreeMap<usize, Claim>,
) -> Option<Failures> {
    let mut by_target: BTreeMap<Target, Vec<(usize, Delivery)>> = BTreeMap::new();
    for (place, (stored, targets)) in messages.iter().zip(places).enumerate() {
        if duplicates.contains_key(&place) {
            continue;
        }
        for target_no in targets {
            let target = stored.targets[*target_no].target.clone();
            let row = RowKey { id: stored.row_id, target_no: i16::try_from(*target_no).unwrap_or(i16::MAX) };
            let message = Arc::clone(&stored.message);
            let delivery = Delivery { row, target: target.clone(), message, attempts: 0 };
            by_target.entry(target).or_default().push((place, delivery));
        }
    }
    let mut sending = Vec::new();
    for (target, deliveries) in by_target {
        let (places, deliveries): (Vec<_>, Vec<_>) = deliveries.into_iter().unzip();
        let one = async move {
            let told = node.engine.send_inline(&target, deliveries).await;
            (target, places, told)
        };
        sending.push(one.boxed());
    }
    let mut failures = Failures {
        places: BTreeSet::new(),
        destinations: BTreeSet::new(),
        retry_after: Some(Duration::from_secs(1)),
    };
    for (target, places, told) in join_all(sending).await {
        for (place, told) in places.into_iter().zip(told) {
            let Inline::Failed { text, retry_after } = told else { continue };
            tracing::warn!(
                message = %messages[place].message.id, target_name = %target.name, error = %text,
                "a destination did not take a message; nothing of it is stored"
            );
            failures.places.insert(place);
            failures.destinations.insert(target.name.to_string());
            let longer = failures.retry_after.zip(retry_after);
            failures.retry_after = longer.map(|(one, other)| one.max(other));
        }
    }
    (!failures.places.is_empty()).then_some(failures)
}

fn failed(form: Form, failures: &Failures) -> Error {
    let names: Vec<String> = failures.destinations.iter().map(|name| format!("`{name}`")).collect();
    let which = match (form, failures.places.first()) {
        (Form::Batch, Some(first)) => format!("Element {first}: "),
        _ => String::new(),
    };
    let what = match failures.retry_after {
        Some(_) => "Repeat the request after `Retry-After`",
        None => "It will not, so change it before you send it again",
    };
    let detail = format!(
        "{which}{} did not take the message; nothing of it was stored, and its key is free again. {what}.",
        names.join(", ")
    );
    Error::DestinationFailed { detail, retry_after: failures.retry_after }
}

/// The outcomes of a request some of whose work somebody else is at.
fn in_flight(messages: &[accept::Message], works: &Works) -> Vec<MessageOutcome> {
    let outcome = |(place, _): (usize, &accept::Message)| match works.duplicates.get(&place) {
        Some(claim) => MessageOutcome::Duplicate(Box::new(Duplicate {
            claim: claim.clone(),
            state: MessageState::Pending,
        })),
        None => MessageOutcome::Accepted { expires_at: None },
    };
    messages.iter().enumerate().map(outcome).collect()
}

/// Confirms the work that was sent, though the request as a whole failed: it is not to be sent again.
async fn keep_done(node: &StoreNode, works: &Works, done: &BTreeSet<usize>, token: Token) {
    for (place, (key, window)) in &works.own {
        if !done.contains(place) {
            continue;
        }
        if let Err(error) = node.store.confirm(*key, token, *window).await {
            tracing::warn!(store = %node.name, %error, "what was sent is not remembered: it may be sent again");
        }
    }
}

/// Gives claims back. What cannot be given back is free when its lease ends.
async fn free(node: &StoreNode, keys: Vec<ClaimKey>, token: Token) {
    for key in keys {
        let mut pause = Duration::from_millis(100);
        for attempt in 1..=TRIES {
            match node.store.release(key, token).await {
                Ok(_) => break,
                Err(error) if attempt == TRIES => {
                    tracing::warn!(store = %node.name, %error, "a claim could not be given back; it is free when its lease ends");
                }
                Err(_) => {
                    tokio::time::sleep(pause).await;
                    pause *= 4;
                }
            }
        }
    }
}
