//! The work of a pass over one store.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::future::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};

use super::lock::Lock;
use super::report::{Purged, Report, Step, StepName, StepOutcome, StoreSteps};
use super::{GRACE, Pass};
use crate::delivery::Passed;
use crate::domain::delivery::{Target, TargetKind};
use crate::store::{self, Error, ErrorKind, intake};

/// Rows of the intake that are moved in one commit.
const INTAKE_ROWS: u32 = 500;
const INTAKE_BYTES: u64 = 4 << 20;

/// What a step did.
#[derive(Default)]
struct Done {
    count: u64,
    more_work: bool,
    cut_short: bool,
    /// It failed in part.
    error: Option<ErrorKind>,
}

impl Pass<'_> {
    /// All steps, under the store's lock.
    pub async fn run(self) -> Report {
        let mut report = Report::default();
        let name = self.on.name.to_string();
        let asked = tokio::time::timeout(self.left(), Lock::try_take(self.on, self.options)).await;
        let lock = match asked.unwrap_or_else(|_| Err(silent())) {
            Ok(lock) => lock,
            Err(error) => {
                tracing::warn!(store = %name, %error, "no durability pass over a store that does not answer");
                report.has_more_work = true;
                let steps = StepName::ALL.map(|step| Step::failed(step, error.kind)).into();
                report.stores.push(StoreSteps { store: name, steps });
                return report;
            }
        };
        let Some(lock) = lock else {
            report.has_more_work = true;
            report.skipped_stores.push(name.clone());
            let steps = StepName::ALL.map(Step::skipped).into();
            report.stores.push(StoreSteps { store: name, steps });
            return report;
        };
        let mut steps = Vec::new();
        for step in StepName::ALL {
            steps.push(self.step(step, &mut report).await);
        }
        self.look_ahead(&mut steps, &mut report).await;
        // Within bounds as well: a store that hangs by now lets the lease end.
        let _ = tokio::time::timeout(GRACE, lock.release(self.on)).await;
        report.has_more_work = steps.iter().any(|step| step.more_work);
        report.stores.push(StoreSteps { store: name, steps });
        report
    }

    /// How long anything of this pass may take.
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(self.options.clock.monotonic()) + GRACE
    }

    fn time_is_up(&self) -> bool {
        self.options.clock.monotonic() >= self.until
    }

    /// One step, whatever becomes of it.
    async fn step(&self, step: StepName, report: &mut Report) -> Step {
        if self.time_is_up() {
            report.timed_out = true;
            return Step::skipped(step);
        }
        let work = async {
            match step {
                StepName::Intake => self.intake().await,
                StepName::Outgoing => self.deliver(TargetKind::Destination, report).await,
                StepName::Incoming => self.deliver(TargetKind::Handler, report).await,
                StepName::Purge => self.purge(&mut report.purged).await,
            }
        };
        let ended = tokio::time::timeout(self.left(), AssertUnwindSafe(work).catch_unwind()).await;
        let done = match ended {
            Ok(Ok(done)) => done,
            Ok(Err(_panic)) => Err(Error::new(ErrorKind::Internal, "a defect; see the log")),
            Err(_elapsed) => Err(silent()),
        };
        match done {
            Ok(Done { count, more_work, cut_short, error }) => {
                report.timed_out |= cut_short;
                let outcome = if error.is_some() { StepOutcome::Failed } else { StepOutcome::Succeeded };
                let error_kind = error.map(|kind| kind.as_str().to_owned());
                Step { step, outcome, count, more_work: more_work | cut_short | error.is_some(), error_kind }
            }
            Err(error) => {
                tracing::warn!(store = %self.on.name, step = step.as_str(), %error, "a step of a durability pass failed");
                Step::failed(step, error.kind)
            }
        }
    }

    /// Accepts what the users' transactions committed.
    async fn intake(&self) -> store::Result<Done> {
        let mut done = Done::default();
        let Some(way) = &self.on.intake else { return Ok(done) };
        let judge = way.judge();
        loop {
            let left = u64::from(self.options.batch_size).saturating_sub(done.count);
            done.more_work = self.on.store.intake_waits().await?;
            if !done.more_work || left == 0 {
                return Ok(done);
            }
            if self.time_is_up() {
                done.cut_short = true;
                return Ok(done);
            }
            let rows = u32::try_from(left).unwrap_or(u32::MAX).min(INTAKE_ROWS);
            let limits = intake::Limits { rows, bytes: INTAKE_BYTES };
            let moved = self.on.store.move_intake(limits, judge.clone()).await?;
            let count = moved.rows() as u64;
            way.moved(moved);
            done.count += count;
            if count == 0 {
                // Somebody else holds what is left.
                return Ok(done);
            }
        }
    }

    /// Makes due deliveries. The batch is shared out between the targets that have any, so that one with many
    /// rows leaves room for the others; what they leave is shared out again.
    async fn deliver(&self, kind: TargetKind, report: &mut Report) -> store::Result<Done> {
        let mut done = Done::default();
        if kind == TargetKind::Destination {
            self.expire(report, &mut done).await?;
        }
        let mut targets = self.on.engine.passable(kind).await?;
        while !targets.is_empty() {
            let left = u64::from(self.options.batch_size).saturating_sub(done.count);
            if left == 0 {
                break;
            }
            let due = self.on.store.due_in(&targets).await?;
            let mut due_targets: Vec<Target> = targets
                .iter()
                .zip(due)
                .filter(|(_, due)| *due == Some(Duration::ZERO))
                .map(|(target, _)| target.clone())
                .collect();
            if due_targets.is_empty() {
                break;
            }
            if self.time_is_up() {
                done.cut_short = true;
                break;
            }
            due_targets.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            let share = (left / due_targets.len() as u64).max(1);
            let passed = self.side_by_side(due_targets, u32::try_from(share).unwrap_or(u32::MAX)).await;
            let mut progress = false;
            for (target, passed) in passed {
                match passed {
                    Ok(passed) => {
                        progress |= passed.rows > 0;
                        done.count += u64::from(passed.rows);
                        done.cut_short |= passed.cut_short;
                        count(report, kind, &passed);
                        if passed.rows == 0 {
                            // Due, and not to be had: somebody else's transaction holds it.
                            targets.retain(|other| *other != target);
                        }
                    }
                    Err(error) => {
                        tracing::warn!(
                            store = %self.on.name, target_name = %target.name, %error,
                            "a durability pass could not take what is due for a target"
                        );
                        done.error = Some(error.kind);
                        targets.retain(|other| *other != target);
                    }
                }
            }
            if !progress || done.cut_short {
                break;
            }
        }
        Ok(done)
    }

    async fn side_by_side(&self, targets: Vec<Target>, share: u32) -> Vec<(Target, store::Result<Passed>)> {
        let mut passing = FuturesUnordered::new();
        for target in targets {
            let one = async move {
                let passed = self.on.engine.pass_over(&target, share, self.until).await;
                (target, passed)
            };
            passing.push(one.boxed());
        }
        let mut passed = Vec::new();
        while let Some(one) = passing.next().await {
            passed.push(one);
        }
        passed
    }

    /// What passed its deliver-by goes to the dead letters, whatever its target: one that is paused, or that no
    /// configuration names any more.
    async fn expire(&self, report: &mut Report, done: &mut Done) -> store::Result<()> {
        for (target, count) in self.on.store.expire(self.options.batch_size).await? {
            done.count += count;
            match target.kind {
                TargetKind::Destination => report.outgoing_dead_lettered += count,
                TargetKind::Handler => report.incoming_dead_lettered += count,
            }
            tracing::warn!(target_name = %target.name, count, "messages passed their deliver-by: dead letters");
        }
        Ok(())
    }

    async fn purge(&self, report: &mut Purged) -> store::Result<Done> {
        let purged = self.on.store.purge(self.options.batch_size, &self.options.retention).await?;
        report.handled += purged.handler_claims;
        report.dead_letters += purged.dead_letters;
        report.deduplications += purged.claims;
        let count = purged.handler_claims + purged.dead_letters + purged.claims + purged.receipts;
        Ok(Done { count, more_work: purged.more, ..Done::default() })
    }

    /// What is due by now (also what handlers published just now), and when the next delivery will be.
    async fn look_ahead(&self, steps: &mut [Step], report: &mut Report) {
        for (kind, name) in
            [(TargetKind::Destination, StepName::Outgoing), (TargetKind::Handler, StepName::Incoming)]
        {
            let Some(step) = steps.iter_mut().find(|step| step.step == name) else { continue };
            if step.outcome == StepOutcome::Failed && step.count == 0 {
                continue;
            }
            let looking = async {
                let targets = self.on.engine.passable(kind).await?;
                self.on.engine.due_after_pass(&targets).await
            };
            let looked = tokio::time::timeout(self.left(), looking).await.unwrap_or_else(|_| Err(silent()));
            match looked {
                Ok(due) => {
                    step.more_work =
                        due.contains(&Some(Duration::ZERO)) || step.outcome == StepOutcome::Failed;
                    let next = due.into_iter().flatten().filter(|wait| !wait.is_zero()).min();
                    let next = next.and_then(|wait| chrono::Duration::from_std(wait).ok());
                    let next = next.map(|wait| self.options.clock.now() + wait);
                    report.next_due_at = [report.next_due_at, next].into_iter().flatten().min();
                }
                Err(error) => {
                    tracing::warn!(store = %self.on.name, %error, "what is due next is not known");
                    step.more_work = true;
                }
            }
        }
    }
}

fn silent() -> Error {
    Error::new(ErrorKind::Unavailable, "the store did not answer within the time of the pass")
}

fn count(report: &mut Report, kind: TargetKind, passed: &Passed) {
    report.scheduled_released += passed.scheduled;
    match kind {
        TargetKind::Destination => {
            report.outgoing_sent += passed.sent;
            report.outgoing_failed += passed.failed;
            report.outgoing_dead_lettered += passed.dead;
        }
        TargetKind::Handler => {
            report.incoming_handled += passed.sent;
            report.incoming_failed += passed.failed;
            report.incoming_dead_lettered += passed.dead;
        }
    }
}
