//! The use cases: what the HTTP edge, the command line and background work ask for.
//!
//! One rule serves all three. Nothing here knows a status code; an [`Error`] says what went wrong and what to
//! do, and `http::problem` maps it. A file per use case; [`Gateway`] holds what they share.

mod answer;
mod cascade;
pub mod claims;
pub mod dead_letters;
pub mod documents;
pub mod error;
pub mod explain;
mod inline;
pub mod intake;
pub mod invoke;
pub mod pass;
mod prepare;
pub mod proof;
pub mod publish;
pub mod readiness;
pub mod receive;
mod routing;
mod sending;
pub mod status;
mod stores;
pub mod targets;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub use cascade::Cascades;
pub use error::{Error, HandlerFailure, Place, Result};
pub use prepare::{Keeping, Preparer};
pub use routing::{Destinations, Handlers, Routing};
pub use stores::{StoreNode, Stores};

use crate::config::durability::Mode;
use crate::domain::delivery::Target;
use crate::domain::{Clock, Random};
use crate::telemetry::Metrics;
use crate::telemetry::trace::Traces;
use crate::{auth, store};

/// What every use case works with. Shared by all requests as `Arc<Gateway>`.
pub struct Gateway {
    pub(crate) stores: Stores,
    pub(crate) preparer: Preparer,
    pub(crate) invoker: invoke::Invoker,
    pub(crate) receivers: receive::Receivers,
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) metrics: Metrics,
    pub(crate) traces: Traces,
}

/// The limits and windows that the use cases keep.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who makes the deliveries.
    pub mode: Mode,
    /// Destinations whose messages are sent before the answer, and not stored. In the mode `balanced`; in
    /// `serverless` all are.
    pub inline: BTreeSet<Target>,
    /// The bounds of a durability pass that is not told.
    pub pass: pass::Settings,
    /// What a message's members may be.
    pub limits: crate::domain::fields::Limits,
    /// How long a confirmed claim of a consumer is remembered.
    pub claim_window: Duration,
    /// How long the answer to a request with an idempotency key is kept.
    pub idempotency_window: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::Balanced,
            inline: BTreeSet::new(),
            pass: pass::Settings::default(),
            limits: crate::domain::fields::Limits::default(),
            claim_window: DAY,
            idempotency_window: DAY,
        }
    }
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What a gateway is made of.
pub struct Parts {
    pub stores: Stores,
    pub preparer: Preparer,
    pub invoker: invoke::Invoker,
    pub receivers: receive::Receivers,
    pub settings: Settings,
    pub clock: Clock,
    pub random: Random,
    pub metrics: Metrics,
    pub traces: Traces,
}

impl Gateway {
    pub fn new(parts: Parts) -> Arc<Self> {
        Arc::new(Self {
            stores: parts.stores,
            preparer: parts.preparer,
            invoker: parts.invoker,
            receivers: parts.receivers,
            settings: parts.settings,
            clock: parts.clock,
            random: parts.random,
            metrics: parts.metrics,
            traces: parts.traces,
        })
    }

    /// The stores of this node.
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    pub fn random(&self) -> Random {
        self.random
    }

    /// The store of the principal's messages.
    fn store(&self, principal: &auth::Principal) -> &store::Shared {
        &self.stores.of(&principal.tenant).store
    }

    /// What a message's members may be.
    pub fn limits(&self) -> &crate::domain::fields::Limits {
        &self.settings.limits
    }

    /// Ends: what is queued is accepted, what has begun is delivered as far as `deadline` lets it, the rest
    /// stays in the store. To be called when no request comes in any more.
    pub async fn drain(&self, deadline: Duration) {
        // Side by side: a store that is down holds up no other.
        let drains = self.stores.iter().map(|node| async move {
            node.acceptor.close().await;
            node.engine.drain(deadline).await;
            node.store.close().await;
        });
        futures::future::join_all(drains).await;
        for node in self.stores.iter() {
            node.engine.close().await;
        }
        self.traces.shutdown();
        self.metrics.shutdown();
    }
}

/// The principal may look at what is the gateway's.
fn may_read(principal: &auth::Principal) -> Result<()> {
    if principal.may_read() {
        return Ok(());
    }
    Err(Error::Forbidden { detail: "This needs the grant `operate:read`.".into() })
}

/// The principal may change what is the gateway's.
fn may_write(principal: &auth::Principal) -> Result<()> {
    if principal.may_write() {
        return Ok(());
    }
    Err(Error::Forbidden { detail: "This needs the grant `operate:write`.".into() })
}
