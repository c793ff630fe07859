//! Transports: how a delivery reaches a destination or a handler.
//!
//! To add one: a folder with its configuration, its connection and its `send`, and one line in [`registry`].
//! The configuration is a struct of the folder's own, read from what a destination's table holds besides the
//! keys that all destinations have: nothing outside the folder knows it.
//! The conformance suite in `tests/` runs over every transport and says what is missing.
//!
//! A transport makes exactly one attempt per call, decides nothing about retries, and never touches a store.
//! Many calls run at once (up to the destination's `max_in_flight`); each ends within the destination's
//! `timeout`, which the caller enforces as well.

mod answer;
pub mod guard;
mod handler;
mod headers;
mod rabbitmq;
pub mod registry;
mod settings;
mod stdout;
mod webhook;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::delivery::{Delivery, Failure, Format};
use crate::domain::{Clock, Random};

pub use handler::{CallError, Handler, REPLY_JSON, content_type, publishes};
pub use settings::ConfigError;

/// A way to a target. Shared by all attempts.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// One attempt. `Ok` only when the target has *acknowledged* the message (a broker's confirm, a 2xx):
    /// the row is deleted on it.
    async fn send(&self, delivery: &Delivery) -> Result<Ack, Failure>;

    /// How many messages [`send_all`](Self::send_all) gets there in one round trip.
    fn batch(&self) -> usize {
        1
    }

    /// One attempt for each, in this order, in as few round trips as it takes. One answer for each.
    async fn send_all(&self, deliveries: &[Delivery]) -> Vec<Result<Ack, Failure>> {
        let mut answers = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            answers.push(self.send(delivery).await);
        }
        answers
    }

    /// How many attempts may usefully run at once when the configuration does not say.
    fn default_in_flight(&self) -> usize {
        64
    }

    /// Ends connections. Attempts still running may fail.
    async fn close(&self) {}
}

/// A target's acknowledgement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// What a handler answered, where it may publish messages.
    pub reply: Option<Reply>,
}

/// A handler's answer, in one of the forms that publish messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// As it stands, with its parameters.
    pub content_type: String,
    pub body: bytes::Bytes,
}

/// A transport, ready to be shared.
pub type Shared = Arc<dyn Transport>;

/// What every destination has, whatever its transport.
#[derive(Clone, Debug)]
pub struct Common {
    /// The longest that one attempt may take.
    pub timeout: Duration,
    pub format: Format,
    /// How many attempts may run at once, where the configuration says so.
    pub max_in_flight: Option<usize>,
}

impl Default for Common {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(15), format: Format::Plain, max_in_flight: None }
    }
}

/// When a broker is connected to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connect {
    /// At start, and for good.
    #[default]
    AtOnce,
    /// When there is something to send. A connection that is not used is closed after a while.
    WhenNeeded,
}

/// What transports share with the process.
#[derive(Clone, Debug, Default)]
pub struct Context {
    pub clock: Clock,
    pub random: Random,
    /// When brokers are connected to.
    pub connect: Connect,
    /// The proxies through which the outside is reached; [`guard::Proxies::from_env`] in a running node.
    pub proxies: guard::Proxies,
}
