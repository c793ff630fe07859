//! Intake: what the users' own transactions committed is accepted as a publish would be.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::prepare::{Batch, By, Way};
use super::{Error, Gateway, Preparer, StoreNode};
use crate::auth::Principal;
use crate::domain::delivery::{DeadKind, Target};
use crate::domain::{Clock, Limits, Timestamp};
use crate::durability;
use crate::store;
use crate::store::accept::MessageOutcome;
use crate::store::deliveries::Receipt;
use crate::store::intake::{Dead, Judge, Judged, Moved, Notifying, Row};

/// How much is moved in one commit: small enough that a publish over HTTP hardly waits for it.
const GROUP: store::intake::Limits = store::intake::Limits { rows: 500, bytes: 4 << 20 };
/// After a row had to be left because somebody holds its claim.
const LEFT_PAUSE: Duration = Duration::from_millis(250);
/// Before another try to listen, or to switch what is listened to.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);

/// When rows are looked for.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How often, when idle.
    pub poll: Duration,
    pub notify: Notifying,
    /// A longer body is given up on.
    pub body_bytes: usize,
    /// Whether a duplicate leaves a receipt.
    pub receipts: Receipt,
}

/// Moves the rows of one store on until `stop`.
pub async fn run(gateway: Arc<Gateway>, node: Arc<StoreNode>, options: Options, stop: CancellationToken) {
    let heard = Arc::new(Notify::new());
    let listening = tokio::spawn(listen(Arc::clone(&node), options.notify, Arc::clone(&heard)));
    let judge = gateway.judge(options.body_bytes, options.receipts);
    let mut looks = node.engine.looks();
    // A little more, so that a look which is about to be made anyway comes first.
    let idle = options.poll + options.poll / 50;
    let mut failing = false;
    loop {
        let wait = match gateway.move_some(&node, &judge).await {
            Ok(wait) => {
                failing = false;
                wait.unwrap_or(idle)
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(store = %node.name, %error, "the intake is not moved on; its rows wait");
                }
                options.poll.max(Duration::from_secs(1))
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = heard.notified() => {}
            () = nothing_seen_for(wait, &mut looks) => {}
        }
    }
    listening.abort();
}

/// Ends when somebody saw that rows wait, or when nobody has looked for `wait`.
async fn nothing_seen_for(wait: Duration, looks: &mut watch::Receiver<bool>) {
    while let Ok(Ok(())) = tokio::time::timeout(wait, looks.changed()).await {
        if *looks.borrow_and_update() {
            return;
        }
    }
}

/// Keeps listening, where that is wanted.
async fn listen(node: Arc<StoreNode>, notify: Notifying, heard: Arc<Notify>) {
    while let Err(error) = node.store.set_intake_notify(notify).await {
        tracing::debug!(store = %node.name, %error, "the NOTIFY of the intake could not be switched yet");
        tokio::time::sleep(LISTEN_PAUSE).await;
    }
    if notify == Notifying::Off {
        return;
    }
    loop {
        if let Err(error) = node.store.listen_intake(Arc::clone(&heard)).await {
            tracing::warn!(store = %node.name, %error, "not listening; the intake is polled until this works again");
        }
        tokio::time::sleep(LISTEN_PAUSE).await;
    }
}

/// How passes over a store see its intake.
struct OfStore {
    node: Arc<StoreNode>,
    judge: store::intake::Shared,
    clock: Clock,
}

impl durability::Intake for OfStore {
    fn judge(&self) -> store::intake::Shared {
        Arc::clone(&self.judge)
    }

    fn moved(&self, moved: Moved) {
        say_moved(&self.node, moved, self.clock.now());
    }
}

impl Gateway {
    fn judge(&self, body_bytes: usize, receipts: Receipt) -> store::intake::Shared {
        Arc::new(Judging {
            preparer: self.preparer.clone(),
            limits: self.settings.limits,
            clock: self.clock.clone(),
            body_bytes,
            receipts,
        })
    }

    /// The intake of a store, for passes.
    pub(super) fn intake_of(&self, node: &Arc<StoreNode>, body_bytes: usize) -> Arc<dyn durability::Intake> {
        let kept = self.settings.pass.retention.receipts;
        let judge = self.judge(body_bytes, if kept.is_zero() { Receipt::Drop } else { Receipt::Keep });
        Arc::new(OfStore { node: Arc::clone(node), judge, clock: self.clock.clone() })
    }

    /// Moves one group, if there is one. When the next is to be looked for; `None`: not before the next poll.
    async fn move_some(
        &self,
        node: &StoreNode,
        judge: &store::intake::Shared,
    ) -> store::Result<Option<Duration>> {
        if !node.store.intake_waits().await? {
            return Ok(None);
        }
        let moved = node.store.move_intake(GROUP, Arc::clone(judge)).await?;
        let wait = match (moved.rows(), moved.left) {
            (0, 0) => None,
            (_, 0) => Some(Duration::ZERO),
            (_, _) => Some(LEFT_PAUSE),
        };
        say_moved(node, moved, self.clock.now());
        Ok(wait)
    }
}

fn say_moved(node: &StoreNode, moved: Moved, now: Timestamp) {
    let mut accepted = 0;
    for (stored, outcome) in moved.accepted {
        let message = &stored.message;
        match outcome {
            MessageOutcome::Accepted { .. } => {
                accepted += 1;
                let wait =
                    message.deliver_at.map_or(Duration::ZERO, |at| (at - now).to_std().unwrap_or_default());
                for row in &stored.targets {
                    node.engine.note_due(&row.target, wait);
                }
            }
            MessageOutcome::Duplicate(first) => {
                node.metrics.duplicate(&message.kind);
                tracing::info!(
                    message_type = %message.kind, message = %message.id,
                    deduplication_id = ?message.deduplication_id, first_message = ?first.claim.message_id,
                    first_seen_at = %first.claim.first_seen_at, expires_at = %first.claim.expires_at,
                    "duplicate in the intake: the work is taken by an earlier message"
                );
            }
        }
    }
    node.metrics.accepted(accepted);
    for dead in moved.dead {
        let named = dead.row.draft.destinations.iter().flatten().next().cloned().unwrap_or_default();
        node.metrics.dead(&Target::destination(&named), dead.kind, 1);
        tracing::warn!(
            message_type = %dead.row.draft.kind, message = ?dead.row.draft.id, reason = dead.kind.as_str(),
            text = %dead.text, "a message of the intake cannot be accepted: dead letter"
        );
    }
}

/// Derives, claims and routes, as a publish.
struct Judging {
    preparer: Preparer,
    limits: Limits,
    clock: Clock,
    body_bytes: usize,
    receipts: Receipt,
}

impl Judge for Judging {
    fn judge(&self, rows: Vec<Row>) -> Judged {
        let now = self.clock.now();
        let mut batch = Batch::default();
        let mut dead = Vec::new();
        for row in rows {
            match self.one(&row, now) {
                Ok(prepared) => batch.add(prepared),
                Err((kind, text)) => dead.push(Dead { row, kind, text }),
            }
        }
        Judged { messages: batch.messages, dead, receipts: self.receipts }
    }
}

impl Judging {
    fn one(&self, row: &Row, now: Timestamp) -> Result<super::prepare::Prepared, (DeadKind, String)> {
        if let Some(problem) = &row.problem {
            return Err((DeadKind::Unreadable, problem.clone()));
        }
        let draft = &row.draft;
        if draft.body.len() > self.body_bytes {
            let text = format!("{} bytes are more than server.limits.body", draft.body.len());
            return Err((DeadKind::TooLarge, text));
        }
        if draft.deliver_by.is_some_and(|by| by < now) {
            return Err((DeadKind::Expired, "its deliver-by passed before it was accepted".into()));
        }
        draft.check(&self.limits, now).map_err(|errors| {
            let say = |error: &crate::domain::fields::FieldError| {
                format!("{} {}", error.field.name(), error.detail)
            };
            (DeadKind::Unreadable, errors.iter().map(say).collect::<Vec<_>>().join("; "))
        })?;
        // Whoever may write to the intake may publish whatever is routed, within the tenant of its role.
        let principal =
            Principal { name: "intake".into(), tenant: row.tenant.clone(), ..Principal::anonymous() };
        let by = By { principal: &principal, idempotency_key: None, way: Way::Intake };
        let prepared = self.preparer.prepare(&by, draft.clone(), now).map_err(|error| match error {
            Error::Unroutable { detail } => (DeadKind::Unroutable, detail),
            Error::DeduplicationIdMissing { detail } => (DeadKind::MissingDeduplicationId, detail),
            other => (DeadKind::Refused, other.to_string()),
        })?;
        let nul = "a text has a NUL in it".to_owned();
        if prepared.stored.is_storable() { Ok(prepared) } else { Err((DeadKind::Unreadable, nul)) }
    }
}
