//! `[[routes]]` and `[routing]`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::domain::routing::{Pattern, Unroutable};

/// These message types go to these destinations.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Patterns of message types: `*` for every type, `prefix.*` for those that begin with `prefix.`, else exact.
    #[schemars(extend("examples" = [["order.*"]]))]
    pub types: Vec<Pattern>,
    /// Names of destinations.
    #[schemars(extend("examples" = [["orders"]]))]
    pub destinations: Vec<String>,
}

/// What routing does beyond the routes.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Routing {
    /// What happens to a message that no route takes: `refuse` (422 `unroutable`, nothing stored) or `accept`
    /// (202 with empty lists, and counted).
    pub unroutable: Unroutable,
}
