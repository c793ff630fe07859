//! `[telemetry]`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

/// Logs and traces.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// How log lines are written, on standard error: `text` or `json`.
    pub log_format: LogFormat,
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or directives such as `info,oncegate=debug`.
    pub log_level: String,
    /// Where traces are sent (OTLP over HTTP). Left out: nowhere.
    #[schemars(extend("examples" = ["http://localhost:4318"]))]
    pub otlp_endpoint: Option<Url>,
    /// Who may read `/metrics`: `anonymous`, or `grant` for whoever has `operate:read`.
    pub metrics_authorize: Authorize,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            log_format: LogFormat::Text,
            log_level: "info".into(),
            otlp_endpoint: None,
            metrics_authorize: Authorize::Anonymous,
        }
    }
}

/// Whether callers have to prove who they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Authorize {
    /// Everybody who reaches the port.
    #[default]
    Anonymous,
    /// Who has the grant.
    Grant,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}
