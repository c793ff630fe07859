//! `[idempotency]`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Duration;

/// The identity of requests: `Idempotency-Key`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Idempotency {
    /// How long a key, and the answer to replay for it, is remembered; from when the request was completed.
    pub window: Duration,
}

impl Default for Idempotency {
    fn default() -> Self {
        Self { window: Duration::from_hours(24) }
    }
}
