//! `[messages."TYPE"]`

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Duration;

/// What is known about one message type.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MessageType {
    /// The path of a JSON Schema that the data must satisfy; what does not is refused with 422.
    #[schemars(extend("examples" = ["schemas/order-created.json"]))]
    pub schema: Option<PathBuf>,
    /// Where the identity of the work is found in the data: a dotted path, a JSON Pointer, or a template such as
    /// `{order.id}|{@type}`. The schema may say the same as `x-deduplication-identity`.
    #[schemars(extend("examples" = ["order.id"]))]
    pub deduplication_identity: Option<String>,
    /// Makes a second message of the same identity a duplicate. Left out: nothing is deduplicated, unless a
    /// policy says so.
    pub deduplicate: Option<Deduplicate>,
    /// Whether a request with this type needs an `Idempotency-Key`: `optional`, or `required` (400 without).
    pub idempotency: IdempotencyKey,
}

/// How duplicates of the work are found and answered.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Deduplicate {
    /// Whether a message without an identity is refused (400). If not, it passes as it is.
    pub required: bool,
    /// How long an identity is remembered, from when the message is due. Left out: `deduplication.window`.
    #[schemars(extend("examples" = ["24h"]))]
    pub window: Option<Duration>,
    /// How a duplicate is answered: `acknowledge` (200) or `conflict` (409). In a batch always the former.
    pub on_duplicate: OnDuplicate,
    /// Within what an identity is unique: `type` (the tenant and the message type) or `store` (everywhere).
    pub scope: Scope,
}

impl Default for Deduplicate {
    fn default() -> Self {
        Self { required: true, window: None, on_duplicate: OnDuplicate::default(), scope: Scope::default() }
    }
}

/// How a duplicate is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnDuplicate {
    /// 200, with the first message's id and state.
    #[default]
    Acknowledge,
    /// 409 `duplicate`.
    Conflict,
}

/// Within what an identity is unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// The tenant and the message type.
    #[default]
    Type,
    /// The whole store.
    Store,
}

/// Whether an `Idempotency-Key` is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IdempotencyKey {
    /// It is honoured where it is there.
    #[default]
    Optional,
    /// Without it a request is answered 400.
    Required,
}
