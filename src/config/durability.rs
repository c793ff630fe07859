//! `[durability]`

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::Duration;

/// When and by whom deliveries are made, and what is kept.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Durability {
    /// Who makes the deliveries. `balanced`: every node, in the background.
    pub mode: Mode,
    /// How long a delivery to a destination that a node has begun is left to it before another node may take it.
    /// Never less than the destination's `timeout` and 5 seconds.
    pub outbox_stale_time: Duration,
    /// How long a delivery to a handler is left to the node that runs it. It is renewed while the handler runs,
    /// so it may be shorter than the handler's `timeout`; a node that dies is noticed after it.
    pub inbox_stale_time: Duration,
    /// How long a handler that has handled a message recognises the same message, by the id that its publisher
    /// gave it.
    pub keep_handled: Duration,
    /// How long dead letters are kept.
    pub keep_dead_letters: Duration,
}

impl Default for Durability {
    fn default() -> Self {
        Self {
            mode: Mode::Balanced,
            outbox_stale_time: Duration::from_secs(15),
            inbox_stale_time: Duration::from_secs(30),
            keep_handled: Duration::from_secs(5 * 60),
            keep_dead_letters: Duration::from_hours(30 * 24),
        }
    }
}

/// Who makes the deliveries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Every node, in the background.
    #[default]
    Balanced,
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "balanced" => Ok(Self::Balanced),
            mode @ ("serverless" | "serverless-with-outbox") => Err(serde::de::Error::custom(format!(
                "the mode `{mode}` is not part of this version: write \"balanced\", or leave the key out"
            ))),
            other => Err(serde::de::Error::custom(format!(
                "`{other}` is not a durability mode: write \"balanced\", or leave the key out"
            ))),
        }
    }
}
