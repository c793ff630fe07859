//! `[durability]`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Duration;

/// No pass takes more rows per step.
pub const MOST_ROWS: u32 = 1_000;
/// No pass takes longer.
pub const LONGEST_PASS: Duration = Duration::from_secs(5 * 60);

/// When and by whom deliveries are made, and what is kept.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Durability {
    /// Who makes the deliveries. `balanced`: every node, in the background. `serverless`: nobody, a publish sends
    /// before it is answered, and nothing is stored but claims. `serverless-with-outbox`: a publish is stored, then
    /// sent by the request itself; durability passes do the rest. In the serverless modes nothing runs in the
    /// background.
    pub mode: Mode,
    /// How long a delivery to a destination that a node has begun is left to it before another node may take it.
    /// Never less than the destination's `timeout` and 5 seconds. In `serverless-with-outbox` also how long a
    /// delivery that failed waits at least. Left out: `15s`, `60s` in the serverless modes.
    #[schemars(extend("examples" = ["15s"]))]
    pub outbox_stale_time: Option<Duration>,
    /// How long a delivery to a handler is left to the node that runs it. It is renewed while the handler runs,
    /// so it may be shorter than the handler's `timeout`; a node that dies is noticed after it. Left out: `30s`,
    /// `5m` in `serverless-with-outbox`, where it is also how long a delivery that failed waits at least.
    #[schemars(extend("examples" = ["30s"]))]
    pub inbox_stale_time: Option<Duration>,
    /// How long a handler that has handled a message recognises the same message, by the id that its publisher
    /// gave it.
    pub keep_handled: Duration,
    /// How long dead letters are kept.
    pub keep_dead_letters: Duration,
    /// How many rows each step of a durability pass takes when the pass is not told.
    pub batch_size: u32,
    /// What a pass can be told at most; more is lowered to it. At most 1000.
    pub max_batch_size: u32,
    /// How long a durability pass goes on when it is not told.
    pub pass_duration: Duration,
    /// What a pass can be told at most; more is lowered to it. At most `5m`.
    pub max_pass_duration: Duration,
}

impl Default for Durability {
    fn default() -> Self {
        Self {
            mode: Mode::Balanced,
            outbox_stale_time: None,
            inbox_stale_time: None,
            keep_handled: Duration::from_secs(5 * 60),
            keep_dead_letters: Duration::from_hours(30 * 24),
            batch_size: 500,
            max_batch_size: MOST_ROWS,
            pass_duration: Duration::from_secs(30),
            max_pass_duration: LONGEST_PASS,
        }
    }
}

impl Durability {
    /// What counts where `outbox_stale_time` is left out, too.
    pub fn outbox_stale_time(&self) -> std::time::Duration {
        let default = if self.mode.is_serverless() { 60 } else { 15 };
        self.outbox_stale_time.unwrap_or(Duration::from_secs(default)).get()
    }

    /// What counts where `inbox_stale_time` is left out, too.
    pub fn inbox_stale_time(&self) -> std::time::Duration {
        let default = if self.mode == Mode::ServerlessWithOutbox { 5 * 60 } else { 30 };
        self.inbox_stale_time.unwrap_or(Duration::from_secs(default)).get()
    }
}

/// Who makes the deliveries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Every node, in the background.
    #[default]
    Balanced,
    /// Publishes send before they are answered; nothing is stored but claims.
    Serverless,
    /// Publishes are stored, then sent by the request itself; durability passes do the rest.
    ServerlessWithOutbox,
}

impl Mode {
    /// Whether nothing runs in the background.
    pub fn is_serverless(self) -> bool {
        self != Self::Balanced
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::Serverless => "serverless",
            Self::ServerlessWithOutbox => "serverless-with-outbox",
        }
    }
}
