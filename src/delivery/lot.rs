//! Attempts for somebody who waits: a request that sends what it stored, a durability pass.
//!
//! Rows are attempted in order, in as few round trips as their transport takes; where that is one message at a
//! time and no order is to be kept, many at once. What an attempt means is what it means in the background (the
//! breaker, the backoff, the dead letters), and it is settled the same way, in commits that all who wait share.
//!
//! - An attempt begins only while its row's lease covers it, and before the time of who waits is up. What is not
//!   begun is given back: due again, now.
//! - What is begun ends by itself, in a task of its own: whoever stops waiting cancels nothing.
//! - A row that failed is due again after its target's stale time, or its backoff where that is longer.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use super::attempt::{self, Concluded};
use super::breaker::Admission;
use super::engine::{Held, Shared};
use super::inbox::Ended;
use super::settler::{Item, Work};
use super::verdict::means;
use super::worker::Worker;
use crate::domain::RowKey;
use crate::domain::delivery::{DeadKind, Delivery, Failure, Fault, MAX_TAKES};
use crate::store::deliveries::{Counted, DeadNote, ErrorNote, Settle, Settlement};
use crate::transport::Ack;

/// How long what is begun is waited for after the time is up.
const GRACE: Duration = Duration::from_secs(1);
/// How long an outcome's commit is waited for. It is written in any case.
const SETTLING: Duration = Duration::from_secs(5);

/// Whether the rows' order matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// One round trip after the other.
    Kept,
    /// Many at once.
    Free,
}

/// What becomes of rows whose target's breaker is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// They stay leased: they are due again when their leases end, which nothing has to be written for.
    Stay,
    /// They failed.
    Fail,
}

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its target acknowledged it, or an error policy says that it is done with.
    Sent,
    /// It is due again later.
    Failed,
    /// It was given up on.
    Dead,
}

/// What became of rows.
#[derive(Debug, Default)]
pub(super) struct Made {
    pub fates: Vec<(RowKey, Fate)>,
    /// Not begun, and given back.
    pub left: usize,
    /// Begun, and still under way.
    pub under_way: usize,
}

/// Attempts at one target.
pub(super) struct Lot {
    pub worker: Arc<Worker>,
    pub shared: Arc<Shared>,
    pub tasks: TaskTracker,
    pub order: Order,
    pub refused: Refused,
    /// Nothing begins after this.
    pub until: Instant,
}

type Flights = FuturesUnordered<JoinHandle<Vec<(RowKey, Fate)>>>;

/// What is to be done next.
enum Next {
    Attempt(Vec<Held>),
    /// Not while another attempt is under way.
    Wait,
    /// Not before this moment: the target's rate.
    At(Instant),
    /// Nothing more begins.
    Stop,
}

impl Lot {
    /// Attempts the rows; those that are `decided` already are only settled.
    pub async fn run(&self, rows: Vec<Held>, decided: Vec<(Held, Settle)>) -> Made {
        let mut made = Made::default();
        let mut ready = VecDeque::from(rows);
        let mut decided = decided;
        let Some(settlements) = self.shared.settler.sender() else {
            made.left = ready.len();
            self.give_back(ready).await;
            return made;
        };
        let at_once = self.attempts_at_once();
        let mut flights: Flights = FuturesUnordered::new();
        let mut in_flight = 0;
        loop {
            let mut turn = None;
            while flights.len() < at_once {
                match self.next(&mut ready, &mut decided, &mut made, flights.is_empty()) {
                    Next::Attempt(rows) => {
                        in_flight += rows.len();
                        let flight = fly(
                            Arc::clone(&self.worker),
                            Arc::clone(&self.shared),
                            rows,
                            settlements.clone(),
                        );
                        flights.push(self.tasks.spawn(flight));
                    }
                    Next::At(at) => {
                        turn = Some(at);
                        break;
                    }
                    Next::Wait | Next::Stop => break,
                }
            }
            if !decided.is_empty() {
                in_flight += decided.len();
                let settling = settle(
                    Arc::clone(&self.worker),
                    std::mem::take(&mut decided)
                        .into_iter()
                        .map(|(held, settle)| (held, settle, Work::default())),
                    settlements.clone(),
                );
                flights.push(self.tasks.spawn(settling));
            }
            if flights.is_empty() && turn.is_none() {
                break;
            }
            let now = self.shared.clock.monotonic();
            let left = (self.until + GRACE).saturating_duration_since(now);
            let left = turn.map_or(left, |turn| turn.saturating_duration_since(now).min(left));
            let flown = async {
                if flights.is_empty() { std::future::pending().await } else { flights.next().await }
            };
            match tokio::time::timeout(left, flown).await {
                Ok(Some(Ok(fates))) => {
                    in_flight -= fates.len();
                    made.fates.extend(fates);
                }
                // A defect, already logged: the rows' leases end.
                Ok(Some(Err(_)) | None) => {}
                Err(_elapsed) if turn.is_some() => {}
                Err(_time_is_up) => break,
            }
        }
        made.under_way = in_flight;
        made.left += ready.len();
        self.give_back(ready).await;
        made
    }

    fn attempts_at_once(&self) -> usize {
        match self.order {
            Order::Free if self.rows_at_once() == 1 => self.worker.options.max_in_flight,
            _ => 1,
        }
    }

    /// How many rows one round trip takes.
    fn rows_at_once(&self) -> usize {
        if self.worker.options.handler.is_some() { 1 } else { self.worker.options.transport.batch().max(1) }
    }

    fn next(
        &self,
        ready: &mut VecDeque<Held>,
        decided: &mut Vec<(Held, Settle)>,
        made: &mut Made,
        nothing_is_under_way: bool,
    ) -> Next {
        let now = self.shared.clock.monotonic();
        if now >= self.until || self.shared.draining.is_cancelled() {
            return Next::Stop;
        }
        let mut rows = Vec::new();
        let mut most = self.rows_at_once();
        while rows.len() < most {
            let Some(held) = ready.pop_front() else { break };
            if now + self.worker.options.needs_lease() > held.lease_until {
                made.left += 1;
                self.forget(held);
                continue;
            }
            if let Some(settle) = self.is_over(&held) {
                decided.push((held, settle));
                continue;
            }
            if let Some(pace) = &self.worker.options.pace
                && let Err(turn) = pace.begin(now)
            {
                let lease_until = held.lease_until;
                ready.push_front(held);
                let covered = turn + self.worker.options.needs_lease() < lease_until;
                let in_time = turn < self.until && covered;
                return match (rows.is_empty(), in_time) {
                    (false, _) => Next::Attempt(rows),
                    (true, true) => Next::At(turn),
                    (true, false) => Next::Stop,
                };
            }
            if rows.is_empty() {
                match self.worker.admit(now) {
                    Admission::Yes => {}
                    Admission::Probe => most = 1,
                    Admission::No(None) if !nothing_is_under_way => {
                        // A probe of our own.
                        ready.push_front(held);
                        return Next::Wait;
                    }
                    Admission::No(until) => {
                        self.refuse(held, until, now, decided, made);
                        continue;
                    }
                }
            }
            rows.push(held);
        }
        if rows.is_empty() { Next::Stop } else { Next::Attempt(rows) }
    }

    fn refuse(
        &self,
        held: Held,
        until: Option<Instant>,
        now: Instant,
        decided: &mut Vec<(Held, Settle)>,
        made: &mut Made,
    ) {
        if self.refused == Refused::Stay {
            made.fates.push((held.delivery.row, Fate::Failed));
            return;
        }
        let wait = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        let text = self.worker.told_last().unwrap_or_else(|| "the target takes no messages just now".into());
        let error = ErrorNote { kind: "Target", text };
        let after = wait.max(self.worker.options.stale);
        decided.push((held, Settle::Retry { after, counted: Counted::No, error }));
    }

    /// Why a row is not to be attempted at all.
    fn is_over(&self, held: &Held) -> Option<Settle> {
        let (kind, text) = if held.takes > MAX_TAKES {
            (DeadKind::NeverSettled, format!("taken {MAX_TAKES} times without ever being settled"))
        } else if held.delivery.message.deliver_by.is_some_and(|by| by <= self.shared.clock.now()) {
            (DeadKind::Expired, "its deliver-by has passed".to_owned())
        } else {
            return None;
        };
        Some(Settle::Dead { error: DeadNote { kind, text }, counted: Counted::No })
    }

    /// Its lease does not cover an attempt any more: it is due when that ends, if it has not.
    fn forget(&self, held: Held) {
        self.worker.note_due(held.lease_until);
    }

    async fn give_back(&self, rows: impl IntoIterator<Item = Held>) {
        let rows: Vec<_> = rows.into_iter().map(|held| (held.delivery.row, held.token)).collect();
        if rows.is_empty() {
            return;
        }
        if let Err(error) = self.shared.store.give_back(&rows).await {
            self.shared.store_failed("give back", &error);
        }
    }
}

/// Attempts what goes in one round trip, and has it settled.
async fn fly(
    worker: Arc<Worker>,
    shared: Arc<Shared>,
    rows: Vec<Held>,
    settlements: mpsc::Sender<Item>,
) -> Vec<(RowKey, Fate)> {
    let concluded = attempt_all(&worker, &shared, rows).await;
    let now = shared.clock.monotonic();
    let outcomes: Vec<_> = concluded
        .into_iter()
        .map(|Concluded { held, ended, took, work }| {
            let mut settle = means(&worker, &shared, &held, ended, took, now);
            if let Settle::Retry { after, .. } = &mut settle {
                *after = (*after).max(worker.options.stale);
            }
            (held, settle, work)
        })
        .collect();
    settle(worker, outcomes.into_iter(), settlements).await
}

async fn attempt_all(worker: &Arc<Worker>, shared: &Arc<Shared>, mut rows: Vec<Held>) -> Vec<Concluded> {
    if rows.len() == 1
        && let Some(held) = rows.pop()
    {
        return vec![attempt::attempt(Arc::clone(worker), Arc::clone(shared), held).await];
    }
    let began = shared.clock.monotonic();
    let deliveries: Vec<Delivery> = rows.iter().map(|held| held.delivery.clone()).collect();
    let answers = send_all(worker, &deliveries).await;
    let took = shared.clock.monotonic().saturating_duration_since(began);
    let concluded =
        |(held, answer)| Concluded { held, ended: Ended::Ran(answer), took, work: Work::default() };
    rows.into_iter().zip(answers).map(concluded).collect()
}

/// One round trip, with its time limit; one answer for each.
pub(super) async fn send_all(worker: &Worker, deliveries: &[Delivery]) -> Vec<Result<Ack, Failure>> {
    let timeout = worker.options.timeout;
    let sending = AssertUnwindSafe(worker.options.transport.send_all(deliveries)).catch_unwind();
    let failed = |text: String| {
        let failure = Failure::new(Fault::Attempt, text);
        deliveries.iter().map(|_| Err(failure.clone())).collect()
    };
    match tokio::time::timeout(timeout, sending).await {
        Ok(Ok(answers)) if answers.len() == deliveries.len() => answers,
        Ok(_) => failed("a defect in the transport; see the log".to_owned()),
        Err(_elapsed) => failed(format!("no answer within {timeout:?}")),
    }
}

/// Has outcomes written, and waits for that.
async fn settle(
    worker: Arc<Worker>,
    outcomes: impl Iterator<Item = (Held, Settle, Work)>,
    settlements: mpsc::Sender<Item>,
) -> Vec<(RowKey, Fate)> {
    let mut waiting = Vec::new();
    for (held, outcome, work) in outcomes {
        let row = held.delivery.row;
        let fate = match &outcome {
            Settle::Done { .. } | Settle::Discard { .. } => Fate::Sent,
            Settle::Retry { .. } | Settle::Withdrawn => Fate::Failed,
            Settle::Dead { .. } => Fate::Dead,
        };
        let (reply, written) = oneshot::channel();
        let item = Item {
            settlement: Settlement { row, token: held.token, outcome },
            target: worker.options.target.clone(),
            message_id: held.delivery.message.id.clone(),
            work,
            reply: Some(reply),
        };
        // The settler outlives whoever has its sender.
        drop(settlements.send(item).await);
        waiting.push((row, fate, written));
    }
    let settled = async {
        for (.., written) in &mut waiting {
            let _ = written.await;
        }
    };
    let _ = tokio::time::timeout(SETTLING, settled).await;
    waiting.into_iter().map(|(row, fate, _)| (row, fate)).collect()
}
