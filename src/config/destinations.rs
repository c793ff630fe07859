//! `[destinations.NAME]`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Duration, Rate};
pub use crate::domain::delivery::Format;
pub use crate::domain::ordering::OnDeadLetter;
use crate::domain::retry::Backoff;

/// A target of a transport. Beside these keys it takes those of its transport.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Destination {
    /// How messages get there: the transport's name.
    pub transport: String,
    /// How long one attempt may take.
    #[serde(default = "timeout")]
    pub timeout: Duration,
    /// Whether it gets the messages of one partition key one after the other, in the order in which they were
    /// published: the next one only when the one before it was acknowledged. A message that fails holds up its
    /// key until it succeeds or is a dead letter; other keys go on. Messages without a partition key are one key.
    #[serde(default)]
    pub ordered: bool,
    /// What a dead letter does to the later messages of its key: `continue` (they go on; it is out of order when it
    /// is replayed) or `block` (they wait until it is replayed, discarded or purged; needs `ordered`).
    #[serde(default)]
    pub on_dead_letter: OnDeadLetter,
    /// When its messages are sent: `outbox` (they are stored, and sent after the answer) or `inline` (the publish
    /// sends them before it is answered and stores nothing for this destination; it fails if that fails. What is
    /// scheduled, what handlers publish and what comes by the intake is sent from the outbox). The serverless modes
    /// override it. Left out: `outbox`.
    #[serde(default)]
    #[schemars(extend("examples" = ["outbox"]))]
    pub mode: Option<SendMode>,
    /// Whether the destination begins paused: messages for it are stored and not sent. (Pausing over the API
    /// needs no restart.)
    #[serde(default)]
    pub paused: bool,
    /// How a message is written: `plain` (the body as it came, the rest as headers) or `cloudevents` (the
    /// CloudEvents 1.0 binding of the transport, in binary mode).
    #[serde(default)]
    pub format: Format,
    /// How many attempts run at the same time. Left out: what suits the transport.
    #[serde(default)]
    #[schemars(extend("examples" = [64]))]
    pub max_in_flight: Option<u32>,
    /// How many messages are sent to it in a time at most, on each node: `10/s`, `600/1m`. They may come all at once;
    /// what is over the rate waits. Left out: as many as it takes.
    #[serde(default)]
    #[schemars(extend("examples" = ["100/s"]))]
    pub rate: Option<Rate>,
    /// How often, and how far apart, a failed delivery is attempted again.
    #[serde(default)]
    pub retry: Retry,
    /// When a destination that fails is left alone for a while. No attempt is counted against its messages then.
    #[serde(default)]
    pub breaker: Breaker,
    /// The keys of the transport, which reads and checks them.
    #[serde(flatten)]
    #[schemars(skip)]
    pub settings: toml::Table,
}

/// When a destination's messages are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SendMode {
    /// After they were stored.
    Outbox,
    /// Before the publish is answered; nothing is stored.
    Inline,
}

fn timeout() -> Duration {
    Duration::from_secs(15)
}

impl Destination {
    /// What dead letters do to its keys, where it is ordered.
    pub fn order(&self) -> Option<OnDeadLetter> {
        self.ordered.then_some(self.on_dead_letter)
    }

    /// A destination with the defaults of everything.
    pub fn new(transport: impl Into<String>) -> Self {
        Self {
            transport: transport.into(),
            timeout: timeout(),
            ordered: false,
            on_dead_letter: OnDeadLetter::default(),
            mode: None,
            paused: false,
            format: Format::default(),
            max_in_flight: None,
            rate: None,
            retry: Retry::default(),
            breaker: Breaker::default(),
            settings: toml::Table::new(),
        }
    }
}

/// How often, and how far apart, a failed delivery is attempted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Retry {
    /// Attempts in all, the first included. After the last the message is a dead letter (`AttemptsExhausted`).
    pub max_attempts: u32,
    /// The longest wait after the first failed attempt; it doubles with each further one. The wait itself is
    /// random, between nothing and that (full jitter), and never less than the target asks for.
    pub initial: Duration,
    /// What the longest wait never exceeds.
    pub max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_attempts: 20, initial: Duration::from_secs(1), max: Duration::from_hours(1) }
    }
}

impl From<Retry> for Backoff {
    fn from(retry: Retry) -> Self {
        Self { max_attempts: retry.max_attempts, initial: retry.initial.0, max: retry.max.0 }
    }
}

/// When a target that fails is left alone for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Breaker {
    /// After how many failed attempts in a row. What is the target's own fault (it is not reached, it refuses
    /// everybody) does it at once.
    pub failures: u32,
    /// For how long, where the target does not say. Then one delivery probes it.
    pub open: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { failures: 5, open: Duration::from_secs(30) }
    }
}
