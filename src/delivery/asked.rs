//! What requests and passes ask of an engine that does nothing by itself.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::Engine;
use super::breaker::Admission;
use super::engine::Held;
use super::inbox::Ended;
use super::lot::{Fate, Lot, Order, Refused, send_all};
use super::verdict::means;
use super::worker::{Worker, lock};
use crate::domain::delivery::{DeadKind, Delivery, Target, TargetKind};
use crate::domain::{RowKey, Token};
use crate::store;
use crate::store::deliveries::{Counted, DeadNote, Settle, Take, Taken};

/// For how long it is believed which targets are paused.
const PAUSES_FOR: Duration = Duration::from_secs(5);
/// Rows that are taken at once: their bodies are in memory until they are sent.
const SLICE: usize = 200;

/// What became of the due rows of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Rows that the store handed out and that were not given back.
    pub rows: u32,
    pub sent: u64,
    pub failed: u64,
    pub dead: u64,
    /// Of these rows, those that had been scheduled and are done.
    pub scheduled: u64,
    /// Not all rows that were taken could be dealt with in time.
    pub cut_short: bool,
    /// The store had no more that were due.
    pub emptied: bool,
    /// By row.
    pub fates: Vec<(RowKey, Fate)>,
}

/// What came of a message that was sent without being stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inline {
    Sent,
    /// `text` is for operators. `retry_after`: it may work after so long; `None`: it never will.
    Failed {
        text: String,
        retry_after: Option<Duration>,
    },
}

impl Engine {
    /// For how long the row of a request that will send it by itself is to be written as leased; `None`: it is
    /// stored and waits, because its target is paused or the node drains.
    pub fn lease_for_request(&self, target: &Target) -> Option<Duration> {
        let worker = self.shared.workers.get(target)?;
        // Whose turn it is in an order, the store knows.
        if worker.options.order.is_some() {
            return None;
        }
        if target.kind == TargetKind::Handler || self.shared.draining.is_cancelled() || worker.is_paused() {
            return None;
        }
        Some(worker.options.lease)
    }

    /// Learns which targets are paused, if that was not asked within the last seconds.
    ///
    /// # Errors
    /// The store does not say. Targets of which it never was known are not attempted.
    pub async fn learn_pauses(&self) -> store::Result<()> {
        let now = self.shared.clock.monotonic();
        {
            let mut asked = self.shared.pauses_asked.lock().unwrap_or_else(PoisonError::into_inner);
            if asked.is_some_and(|asked| now.saturating_duration_since(asked) < PAUSES_FOR) {
                return Ok(());
            }
            *asked = Some(now);
        }
        let learnt = self.ask_pauses().await;
        if learnt.is_err() {
            *self.shared.pauses_asked.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        learnt
    }

    async fn ask_pauses(&self) -> store::Result<()> {
        let paused = self.shared.store.paused().await?;
        for worker in self.shared.workers.values() {
            worker.set_paused(paused.iter().any(|pause| pause.target == worker.options.target));
        }
        Ok(())
    }

    /// Sends rows that this request stored, leased under `token` since `leased_at`, in order. What is not begun in
    /// time is due again, now.
    pub async fn send_now(
        &self,
        target: &Target,
        deliveries: Vec<Delivery>,
        token: Token,
        leased_at: Instant,
    ) -> Vec<(RowKey, Fate)> {
        let Some(worker) = self.shared.workers.get(target) else { return Vec::new() };
        let lease_until = leased_at + worker.options.lease;
        let held = |delivery| Held { delivery, token, lease_until, takes: 1, forced: false, _permit: None };
        let rows = deliveries.into_iter().map(held).collect();
        // Not while it is paused, nor until that is known.
        let until = if worker.holds() { leased_at } else { lease_until };
        self.direct(worker, Order::Kept, Refused::Stay, until).run(rows, Vec::new()).await.fates
    }

    fn direct(&self, worker: &Arc<Worker>, order: Order, refused: Refused, until: Instant) -> Lot {
        Lot {
            worker: Arc::clone(worker),
            shared: Arc::clone(&self.shared),
            tasks: self.workers.clone(),
            order,
            refused,
            until,
        }
    }

    /// Sends messages that are stored nowhere, in order; stops at the first that fails.
    pub async fn send_inline(&self, target: &Target, deliveries: Vec<Delivery>) -> Vec<Inline> {
        let mut told = Vec::with_capacity(deliveries.len());
        let Some(worker) = self.shared.workers.get(target) else { return told };
        let mut rest = deliveries.as_slice();
        while !rest.is_empty() {
            let now = self.shared.clock.monotonic();
            let size = match worker.admit(now) {
                Admission::Yes => worker.options.transport.batch().max(1),
                Admission::Probe => 1,
                Admission::No(until) => {
                    let wait = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
                    let text = worker.told_last().unwrap_or_default();
                    let failed = Inline::Failed { text, retry_after: Some(wait) };
                    told.extend(rest.iter().map(|_| failed.clone()));
                    return told;
                }
            };
            let (size, turn) = paced(worker, size.min(rest.len()), now);
            if size == 0 {
                worker.gate.probe_abandoned(now);
                let wait = turn.map_or(Duration::ZERO, |turn| turn.saturating_duration_since(now));
                let failed = Inline::Failed { text: "over its rate".to_owned(), retry_after: Some(wait) };
                told.extend(rest.iter().map(|_| failed.clone()));
                return told;
            }
            let (chunk, after) = rest.split_at(size);
            rest = after;
            let failed = self.send_chunk(worker, chunk, &mut told).await;
            if let Some(failed) = failed {
                told.extend(rest.iter().map(|_| failed.clone()));
                return told;
            }
        }
        told
    }

    /// The last failure, if there was one.
    async fn send_chunk(
        &self,
        worker: &Arc<Worker>,
        chunk: &[Delivery],
        told: &mut Vec<Inline>,
    ) -> Option<Inline> {
        let began = self.shared.clock.monotonic();
        let answers = send_all(worker, chunk).await;
        let now = self.shared.clock.monotonic();
        let mut last = None;
        for (delivery, answer) in chunk.iter().zip(answers) {
            let text = answer.as_ref().err().map(ToString::to_string).unwrap_or_default();
            let held = Held {
                delivery: delivery.clone(),
                token: Token(0),
                lease_until: now,
                takes: 1,
                forced: false,
                _permit: None,
            };
            let took = now.saturating_duration_since(began);
            let one = match means(worker, &self.shared, &held, Ended::Ran(answer), took, now) {
                Settle::Done { .. } => Inline::Sent,
                Settle::Retry { after, .. } => Inline::Failed { text, retry_after: Some(after) },
                Settle::Dead { error, .. } if error.kind == DeadKind::AttemptsExhausted => {
                    Inline::Failed { text, retry_after: Some(worker.options.retry.initial) }
                }
                Settle::Dead { .. } | Settle::Discard { .. } | Settle::Withdrawn => {
                    Inline::Failed { text, retry_after: None }
                }
            };
            if one != Inline::Sent {
                last = Some(one.clone());
            }
            told.push(one);
        }
        last
    }

    /// The configured targets of a kind that are not paused.
    ///
    /// # Errors
    /// The store does not say which are paused.
    pub async fn passable(&self, kind: TargetKind) -> store::Result<Vec<Target>> {
        self.learn_pauses().await?;
        let workers = self.shared.workers.values().filter(|worker| !worker.is_paused());
        let mut targets: Vec<Target> = workers
            .map(|worker| worker.options.target.clone())
            .filter(|target| target.kind == kind)
            .collect();
        targets.sort();
        Ok(targets)
    }

    /// What is due: of an ordered target, of each key the row whose turn it is.
    async fn take(
        &self,
        worker: &Arc<Worker>,
        take: Take,
        asked_at: Instant,
        passed: &mut Passed,
    ) -> store::Result<Vec<Taken>> {
        let Some(on_dead_letter) = worker.options.order else {
            let wanted = take.limit;
            let taken = self.shared.store.take(&take).await?;
            passed.emptied = taken.len() < wanted as usize;
            return Ok(taken);
        };
        let step = worker.rounds.step(take, on_dead_letter);
        let looked = match step.make(&self.shared.store).await {
            Ok(looked) => looked,
            Err(error) => {
                worker.rounds.failed(&step);
                return Err(error);
            }
        };
        let next = worker.rounds.stepped(&looked, asked_at);
        passed.emptied = looked.taken.is_empty() && looked.resume.is_none();
        *lock(&worker.passed) = passed.emptied.then_some(next);
        Ok(looked.taken)
    }

    /// How long until something is due for each target (zero: now), as far as it can be had: of an ordered target
    /// that a pass has just been through, what is behind the first of its keys is not.
    ///
    /// # Errors
    /// The store's.
    pub async fn due_after_pass(&self, targets: &[Target]) -> store::Result<Vec<Option<Duration>>> {
        let now = self.shared.clock.monotonic();
        let mut due = self.shared.store.due_in(targets).await?;
        for (target, due) in targets.iter().zip(&mut due) {
            let Some(worker) = self.shared.workers.get(target) else { continue };
            if let Some(next) = *lock(&worker.passed)
                && *due == Some(Duration::ZERO)
            {
                *due = next.map(|next| next.saturating_duration_since(now)).filter(|wait| !wait.is_zero());
            }
        }
        Ok(due)
    }

    /// Whether the messages of a key come one after the other.
    pub fn is_ordered(&self, target: &Target) -> bool {
        self.shared.workers.get(target).is_some_and(|worker| worker.options.order.is_some())
    }

    /// Sends rows of an ordered target that this request stored, and what comes before them, as far as it is their
    /// turn. What it cannot send waits.
    pub async fn send_in_order(
        &self,
        target: &Target,
        rows: &BTreeSet<RowKey>,
        until: Instant,
    ) -> Vec<(RowKey, Fate)> {
        let mut told = Vec::new();
        let Some(worker) = self.shared.workers.get(target).filter(|worker| !worker.holds()) else {
            return told;
        };
        let mut left = rows.len();
        let limit = u32::try_from(worker.options.max_in_flight).unwrap_or(u32::MAX);
        while left > 0 {
            let passed = match self.pass_over(target, limit, until).await {
                Ok(passed) => passed,
                Err(error) => {
                    self.shared.store_failed("take", &error);
                    break;
                }
            };
            let (progress, cut_short) = (passed.sent + passed.dead > 0, passed.cut_short);
            let own = passed.fates.into_iter().filter(|(row, _)| rows.contains(row));
            let before = told.len();
            told.extend(own);
            left = left.saturating_sub(told.len() - before);
            if !progress || cut_short {
                break;
            }
        }
        told
    }

    /// Takes up to `limit` due rows of a target and attempts them. Nothing begins after `until`.
    ///
    /// # Errors
    /// The store did not hand rows out.
    pub async fn pass_over(&self, target: &Target, limit: u32, until: Instant) -> store::Result<Passed> {
        let mut passed = Passed::default();
        let Some(worker) = self.shared.workers.get(target) else { return Ok(passed) };
        *lock(&worker.passed) = None;
        while passed.rows < limit && !passed.cut_short && !passed.emptied {
            let asked_at = self.shared.clock.monotonic();
            if asked_at >= until || self.shared.draining.is_cancelled() {
                passed.cut_short = true;
                break;
            }
            let wanted = (limit - passed.rows).min(u32::try_from(SLICE).unwrap_or(u32::MAX));
            let take = Take {
                target: target.clone(),
                limit: wanted,
                lease: worker.options.lease,
                token: self.shared.random.token(),
            };
            let token = take.token;
            let taken = self.take(worker, take, asked_at, &mut passed).await?;
            let lease_until = asked_at + worker.options.lease;
            let (mut rows, mut decided, mut scheduled) = (Vec::new(), Vec::new(), Vec::new());
            for taken in taken {
                if taken.was_scheduled {
                    scheduled.push(taken.delivery.row);
                }
                let held = Held {
                    delivery: taken.delivery,
                    token,
                    lease_until,
                    takes: taken.takes,
                    forced: taken.forced,
                    _permit: None,
                };
                if taken.expired {
                    let error =
                        DeadNote { kind: DeadKind::Expired, text: "its deliver-by has passed".to_owned() };
                    decided.push((held, Settle::Dead { error, counted: Counted::No }));
                } else {
                    rows.push(held);
                }
            }
            let made = self.direct(worker, Order::Free, Refused::Fail, until).run(rows, decided).await;
            passed.cut_short |= made.left + made.under_way > 0;
            passed.rows += u32::try_from(made.fates.len() + made.under_way).unwrap_or(u32::MAX);
            passed.fates.extend(made.fates.iter().copied());
            for (row, fate) in made.fates {
                match fate {
                    Fate::Sent => passed.sent += 1,
                    Fate::Failed => passed.failed += 1,
                    Fate::Dead => passed.dead += 1,
                }
                if fate == Fate::Sent && scheduled.contains(&row) {
                    passed.scheduled += 1;
                }
            }
        }
        Ok(passed)
    }
}

/// How many of so many attempts may begin now, and when the next one may.
fn paced(worker: &Worker, wanted: usize, now: Instant) -> (usize, Option<Instant>) {
    let Some(pace) = &worker.options.pace else { return (wanted, None) };
    for begun in 0..wanted {
        if let Err(turn) = pace.begin(now) {
            return (begun, Some(turn));
        }
    }
    (wanted, None)
}
