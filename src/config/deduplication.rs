//! `[deduplication]`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Duration;
use super::messages::{Deduplicate, OnDuplicate, Scope};
use crate::domain::routing::Pattern;

/// The identity of the work that messages ask for.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Deduplication {
    /// How long an identity is remembered where a message type or policy does not say; from when the message is
    /// due.
    pub window: Duration,
    /// How often what is no longer remembered is deleted. (It stops counting at its time, whatever this is.)
    pub cleanup_interval: Duration,
    /// Rules that derive a deduplication id for messages whose publisher set none, in this order; the first that
    /// gives one wins. Deriving alone deduplicates nothing.
    pub rules: Vec<Rule>,
    /// Deduplication for message types that have no `deduplicate` of their own; the first that matches.
    pub policies: Vec<Policy>,
}

impl Default for Deduplication {
    fn default() -> Self {
        Self {
            window: Duration::from_hours(24),
            cleanup_interval: Duration::from_secs(60),
            rules: Vec::new(),
            policies: Vec::new(),
        }
    }
}

/// Derives a deduplication id: by a `template`, or from the first of `members_named` that is there.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Patterns of message types. May be left out with `members_named`: every type.
    #[serde(default)]
    #[schemars(extend("examples" = [["projection.*"]]))]
    pub types: Option<Vec<Pattern>>,
    /// A text with members of the data in braces, by dotted path or JSON Pointer; `{@type}`, `{@id}`, `{@source}`,
    /// `{@subject}`, `{@tenant}`, `{@header.NAME}`, `{@idempotencyKey}`, `{@body.sha256}` are of the message.
    #[serde(default)]
    #[schemars(extend("examples" = ["{projectionName}|{occurrenceUtc}"]))]
    pub template: Option<String>,
    /// Instead of a template: names of members of the data; the first of them that has a usable value is the id.
    /// Upper and lower case are the same.
    #[serde(default)]
    #[schemars(extend("x-instead-of" = "template", "examples" = [["IdempotencyKey", "DeduplicationId"]]))]
    pub members_named: Option<Vec<String>>,
}

/// Deduplicates at publish, as `deduplicate` of a message type does.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Patterns of message types.
    #[schemars(extend("examples" = [["projection.*"]]))]
    pub types: Vec<Pattern>,
    /// Whether a message without an identity is refused (400). If not, it passes as it is.
    #[serde(default = "yes")]
    pub required: bool,
    /// How long an identity is remembered, from when the message is due. Left out: `deduplication.window`.
    #[serde(default)]
    #[schemars(extend("examples" = ["24h"]))]
    pub window: Option<Duration>,
    /// How a duplicate is answered: `acknowledge` (200) or `conflict` (409). In a batch always the former.
    #[serde(default)]
    pub on_duplicate: OnDuplicate,
    /// Within what an identity is unique: `type` (the tenant and the message type) or `store` (everywhere).
    #[serde(default)]
    pub scope: Scope,
}

fn yes() -> bool {
    true
}

impl Policy {
    /// What it says, as a message type would.
    pub fn deduplicate(&self) -> Deduplicate {
        Deduplicate {
            required: self.required,
            window: self.window,
            on_duplicate: self.on_duplicate,
            scope: self.scope,
        }
    }
}
