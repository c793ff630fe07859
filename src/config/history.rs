//! `[history]`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Duration;

/// What is remembered of deliveries that were made.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct History {
    /// How long the receipt of a delivery is kept, so that the message can still be found. `0s`: no receipts.
    pub keep: Duration,
}

impl Default for History {
    fn default() -> Self {
        Self { keep: Duration::from_hours(24) }
    }
}
