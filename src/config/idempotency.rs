//! `[idempotency]`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ByteSize, Duration};

/// The identity of requests: `Idempotency-Key`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Idempotency {
    /// How long a key, and the answer to replay for it, is remembered; from when the request was completed.
    pub window: Duration,
    /// How long the key of an invoke is held without being renewed. It is renewed while the handler runs; after a
    /// node died, its keys are free when this has passed.
    pub lease: Duration,
    /// How large the response of an invoke may be that is kept for replay. A larger one passes through once; the
    /// same key is then answered 409 `response-not-kept`.
    pub max_response: ByteSize,
}

impl Default for Idempotency {
    fn default() -> Self {
        Self {
            window: Duration::from_hours(24),
            lease: Duration::from_secs(60),
            max_response: ByteSize(256 << 10),
        }
    }
}
