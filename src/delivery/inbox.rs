//! What is particular to handlers: whether the work was done before, and what their replies publish.
//!
//! A delivery whose work has an id claims it before the handler runs. The claim is confirmed in the commit that
//! settles the delivery, and released in the one that records a failure. A message without an id costs no
//! round trip.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::engine::{Held, Shared};
use super::worker::Worker;
use crate::domain::claim::{ClaimKey, ClaimKind};
use crate::domain::delivery::{DeadKind, Delivery};
use crate::domain::identity::HandlerDeduplication;
use crate::domain::policy::Policy;
use crate::domain::{Message, Random, Token};
use crate::store::accept;
use crate::store::claims::{Claim, ClaimState, Claimed, NewClaim};
use crate::store::deliveries::{Counted, DeadNote, ErrorNote, Settle};
use crate::store::inbox::{Handling, HeldClaim};
use crate::transport::Reply;
use crate::{store, transport};

/// The longest wait for somebody else's claim before it is asked for again.
const BUSY: Duration = Duration::from_secs(2);
const BUSY_LEAST: Duration = Duration::from_millis(200);

/// Turns a handler's reply into messages. Implemented where messages are prepared.
pub trait Cascade: Send + Sync + 'static {
    /// The messages that the reply of `handler` to `handled` publishes.
    ///
    /// # Errors
    /// Why the reply cannot be read, routed or accepted, for operators.
    fn read(&self, handler: &str, handled: &Message, reply: &Reply) -> Result<Vec<accept::Message>, String>;
}

/// How a target of the kind handler is run.
#[derive(Clone)]
pub struct HandlerOptions {
    pub deduplicate: Option<HandlerDeduplication>,
    /// How long a message that has its id from its publisher is recognised.
    pub keep_handled: Duration,
    pub cascade: Arc<dyn Cascade>,
    /// What becomes of failures; the first that is about one decides.
    pub policies: Arc<[Policy]>,
}

/// How an attempt at a handler ended.
pub(super) enum Ended {
    /// It ran.
    Ran(Result<transport::Ack, crate::domain::delivery::Failure>),
    /// The work was done before.
    Duplicate(Box<Claim>),
    /// Somebody else is at it.
    Busy(Duration),
    /// It needs an id, and has none.
    NoId,
    /// The store did not say.
    Unclaimed(store::Error),
}

/// What the work's identity asks for.
enum Identity {
    None,
    Missing,
    Claim(NewClaim, Duration),
}

impl HandlerOptions {
    fn identity(&self, delivery: &Delivery, lease: Duration, token: Token) -> Identity {
        let message = &*delivery.message;
        let comes_again = is_publishers(delivery) && !self.keep_handled.is_zero();
        let (space, id, window) = match &self.deduplicate {
            Some(deduplicate) => match deduplicate.id(message) {
                Some(id) => ("work", id, deduplicate.window),
                None if deduplicate.required => return Identity::Missing,
                None if comes_again => ("message", message.id.clone(), self.keep_handled),
                None => return Identity::None,
            },
            None if comes_again => ("message", message.id.clone(), self.keep_handled),
            None => return Identity::None,
        };
        let scope = [message.tenant.as_str(), &*delivery.target.name, space];
        let claim = NewClaim {
            key: ClaimKey::new(ClaimKind::Handler, &scope, &id),
            kind: ClaimKind::Handler,
            scope: scope.join(" "),
            id,
            tenant: message.tenant.clone(),
            token,
            lease,
            message_id: Some(message.id.clone()).filter(|_| is_publishers(delivery)),
            fingerprint: None,
        };
        Identity::Claim(claim, window)
    }

    /// Claims the work, where it has an identity.
    pub(super) async fn claim(
        &self,
        store: &store::Shared,
        held: &Held,
        lease: Duration,
        random: Random,
    ) -> Result<Option<HeldClaim>, Ended> {
        let delivery = &held.delivery;
        let (claim, window) = match self.identity(delivery, lease, random.token()) {
            Identity::None => return Ok(None),
            Identity::Missing => return Err(Ended::NoId),
            Identity::Claim(claim, window) => (claim, window),
        };
        let (key, token) = (claim.key, claim.token);
        let handling = Handling { claim, row: delivery.row, row_token: held.token };
        match store.claim_handling(&handling).await {
            Ok(Claimed::Granted(_)) => Ok(Some(HeldClaim { key, token, window, answer: None })),
            Ok(Claimed::Held(claim)) if claim.state == ClaimState::Confirmed => {
                if held.forced {
                    tracing::info!(
                        handler = %delivery.target.name, message = %delivery.message.id, id = %claim.id,
                        first_message = ?claim.message_id,
                        "replayed with force: the handler runs though it has done this work"
                    );
                    return Ok(None);
                }
                Err(Ended::Duplicate(Box::new(claim)))
            }
            Ok(Claimed::Held(claim)) => Err(Ended::Busy(claim.expires_in.clamp(BUSY_LEAST, BUSY))),
            Err(error) => Err(Ended::Unclaimed(error)),
        }
    }
}

/// The handler did not run.
pub(super) fn not_run(worker: &Worker, shared: &Shared, held: &Held, why: Ended, now: Instant) -> Settle {
    let message = &*held.delivery.message;
    let later = |after, text: &str| Settle::Retry {
        after,
        counted: Counted::No,
        error: ErrorNote { kind: "Target", text: text.to_owned() },
    };
    match why {
        Ended::Ran(_) => later(Duration::ZERO, "it ran"),
        Ended::Duplicate(first) => {
            shared.metrics.duplicate(&message.kind);
            tracing::info!(
                handler = %worker.options.target.name, message_type = %message.kind,
                message = %message.id, id = %first.id, first_message = ?first.message_id,
                first_seen_at = %first.first_seen_at, expires_at = %first.expires_at,
                "duplicate: the handler has done this work; acknowledged"
            );
            Settle::Done { receipt: shared.options.receipt }
        }
        Ended::Busy(after) => later(after, "the same work is being done for another delivery"),
        Ended::NoId => {
            let kind = DeadKind::MissingDeduplicationId;
            let text = "the handler needs an id of the work, and the message has none".to_owned();
            Settle::Dead { error: DeadNote { kind, text }, counted: Counted::No }
        }
        Ended::Unclaimed(error) => {
            shared.store_failed("claim", &error);
            worker.note_due(now + Duration::from_secs(1));
            later(Duration::from_secs(1), "the store did not take the claim")
        }
    }
}

/// Whether the message's id is its publisher's, so that it may come again.
fn is_publishers(delivery: &Delivery) -> bool {
    let mut buffer = uuid::Uuid::encode_buffer();
    let own: &str = delivery.row.id.hyphenated().encode_lower(&mut buffer);
    own != delivery.message.id
}
