//! `[intake]`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Duration;

/// Messages that are published in your own SQL transactions.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Intake {
    /// Whether this node moves them on.
    pub enabled: bool,
    /// How often an idle node looks for them.
    pub poll: Duration,
    /// Whether a commit tells the nodes at once (PostgreSQL). Takes milliseconds instead of up to `poll`, and makes
    /// the commits of all who publish wait for each other. Write the same for all nodes.
    pub notify: bool,
}

impl Default for Intake {
    fn default() -> Self {
        Self { enabled: true, poll: Duration::from_secs(1), notify: false }
    }
}
