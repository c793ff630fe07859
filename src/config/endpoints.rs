//! `[endpoints.NAME]`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Decisions about single endpoints.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Endpoints {
    /// `POST /v1/durability/pass`. Needed in `serverless-with-outbox`; in the other modes the endpoint answers 409.
    pub durability: Option<DurabilityEndpoint>,
}

/// Who may run durability passes.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DurabilityEndpoint {
    /// `grant`: callers with the grant `durability`. `anonymous`: everybody who reaches it.
    #[schemars(extend("examples" = ["grant"]))]
    pub authorize: Authorize,
}

/// Who may call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Authorize {
    /// Callers with the endpoint's grant.
    #[default]
    Grant,
    /// Everybody.
    Anonymous,
}

impl Endpoints {
    /// Who may run durability passes.
    pub fn durability(&self) -> Authorize {
        self.durability.as_ref().map(|endpoint| endpoint.authorize).unwrap_or_default()
    }
}
