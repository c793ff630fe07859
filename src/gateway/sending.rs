//! Sending what was just stored, before the answer: `serverless-with-outbox`.
//!
//! The rows are written as leased by this request. After the commit it sends them, destinations side by side and
//! each in order; what it cannot send waits for a durability pass, and so does what its process did not live to send:
//! the leases end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{FutureExt, join_all};

use super::answer::{Renderer, keep};
use super::publish::{Accept, Answer, Publish, SendOutcome, Stored, say_duplicates};
use super::{Gateway, Result, StoreNode};
use crate::config::durability::Mode;
use crate::delivery::Fate;
use crate::domain::delivery::{Delivery, Target, TargetKind};
use crate::domain::{RowKey, Timestamp, Token};
use crate::store::accept::{self, MessageOutcome};

/// How long a request goes on with an ordered destination, where other messages may be before its own.
const ORDERED: Duration = Duration::from_secs(15);

/// What became of each message at its destinations.
type Outcomes = Vec<BTreeMap<String, SendOutcome>>;

impl Gateway {
    /// Accepts, and sends what was accepted.
    pub(super) async fn publish_and_send(&self, publish: Publish<'_>) -> Result<Answer> {
        let Publish { node, form, mut elements, mut messages, claim, token, now } = publish;
        for element in &mut elements {
            element.tell_outcomes();
        }
        let leased_at = self.clock.monotonic();
        let holds = hold(node, &mut messages, now);
        let renderer = Arc::new(Renderer { form, elements });
        let key = claim.as_ref().map(|claim| claim.key);
        let request = Accept { node, renderer: &renderer, messages: &messages, claim, token };
        // Side by side: a pause is to be known before anything is sent.
        let sends = holds > 0
            || messages.iter().flat_map(|m| &m.targets).any(|row| node.engine.is_ordered(&row.target));
        let (stored, ()) = tokio::join!(self.accept(request), self.learn_pauses(node, sends));
        let outcomes = match stored? {
            Stored::Now(outcomes) => outcomes,
            Stored::Before(answer) => return Ok(answer),
        };
        let accepted = outcomes.iter().filter(|outcome| matches!(outcome, MessageOutcome::Accepted { .. }));
        node.metrics.accepted(accepted.count() as u64);
        say_duplicates(node, &renderer, &outcomes);
        let told = self.send_stored(node, &messages, &outcomes, token, leased_at).await;
        let mut renderer = Renderer::clone(&renderer);
        for (element, told) in renderer.elements.iter_mut().zip(told) {
            if let Some(all) = &mut element.outcomes {
                all.extend(told);
            }
        }
        let answer = renderer.answer(&outcomes);
        if let Some(key) = key
            && let Err(error) = node.store.keep_answer(key, token, &keep(&answer)).await
        {
            // The one that is kept says that it waits, as it did.
            tracing::warn!(store = %node.name, %error, "what became of a request's messages is not in its kept answer");
        }
        Ok(answer)
    }

    async fn learn_pauses(&self, node: &StoreNode, sends: bool) {
        if sends && let Err(error) = node.engine.learn_pauses().await {
            tracing::debug!(store = %node.name, %error, "which targets are paused is not known");
        }
    }

    /// Holds the rows of what a handler publishes, where this request will send them.
    pub(super) fn hold_published(&self, node: &StoreNode, messages: &mut [accept::Message], now: Timestamp) {
        if self.settings.mode == Mode::ServerlessWithOutbox {
            hold(node, messages, now);
        }
    }

    /// Sends the rows that are held, and says what became of them.
    pub(super) async fn send_stored(
        &self,
        node: &StoreNode,
        messages: &[accept::Message],
        outcomes: &[MessageOutcome],
        token: Token,
        leased_at: Instant,
    ) -> Outcomes {
        let now = self.clock.now();
        let mut in_order: BTreeMap<Target, BTreeSet<RowKey>> = BTreeMap::new();
        let mut by_target: BTreeMap<Target, Vec<Delivery>> = BTreeMap::new();
        let mut places: BTreeMap<RowKey, usize> = BTreeMap::new();
        for (place, (stored, outcome)) in messages.iter().zip(outcomes).enumerate() {
            if matches!(outcome, MessageOutcome::Duplicate(_)) {
                continue;
            }
            let later = stored.message.deliver_at.is_some_and(|at| at > now);
            for (target_no, row) in (0_i16..).zip(&stored.targets) {
                let key = RowKey { id: stored.row_id, target_no };
                let destination = row.target.kind == TargetKind::Destination;
                if destination && !later && node.engine.is_ordered(&row.target) {
                    places.insert(key, place);
                    in_order.entry(row.target.clone()).or_default().insert(key);
                }
                if row.hold.is_none() {
                    continue;
                }
                places.insert(key, place);
                by_target.entry(row.target.clone()).or_default().push(Delivery {
                    row: key,
                    target: row.target.clone(),
                    message: Arc::clone(&stored.message),
                    attempts: 0,
                });
            }
        }
        let mut sending = Vec::new();
        for (target, deliveries) in by_target {
            let one = async move {
                let fates = node.engine.send_now(&target, deliveries, token, leased_at).await;
                (target, fates)
            };
            sending.push(one.boxed());
        }
        let until = leased_at + ORDERED;
        for (target, rows) in in_order {
            let one = async move {
                let fates = node.engine.send_in_order(&target, &rows, until).await;
                (target, fates)
            };
            sending.push(one.boxed());
        }
        let mut told: Outcomes = messages.iter().map(|_| BTreeMap::new()).collect();
        for (target, fates) in join_all(sending).await {
            for (row, fate) in fates {
                let Some(place) = places.get(&row) else { continue };
                let outcome = match fate {
                    Fate::Sent => SendOutcome::Sent,
                    Fate::Failed => SendOutcome::Pending,
                    Fate::Dead => SendOutcome::Dead,
                };
                told[*place].insert(target.name.to_string(), outcome);
            }
        }
        told
    }
}

/// Writes into the rows that this request will send for how long they are leased; how many there are.
fn hold(node: &StoreNode, messages: &mut [accept::Message], now: Timestamp) -> usize {
    let mut holds = 0;
    for stored in messages {
        let later = stored.same_as.is_some() || stored.message.deliver_at.is_some_and(|at| at > now);
        for row in stored.targets.iter_mut().filter(|_| !later) {
            row.hold = node.engine.lease_for_request(&row.target);
            holds += usize::from(row.hold.is_some());
        }
    }
    holds
}
