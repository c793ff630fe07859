//! `[stores.NAME]`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Secret;

/// A database with Oncegate's tables.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Store {
    /// Where it is: `sqlite:PATH` (file and folder are made; the path is relative to the working directory) or
    /// `postgres://USER:PASSWORD@HOST/DATABASE`.
    #[serde(skip_serializing)]
    #[schemars(default, extend("default" = DEFAULT_URL))]
    pub url: Secret,
    /// What stands between this program and the database server: `none`, or `transaction` for a proxy that
    /// gives a session only for the length of a transaction (PgBouncer in transaction mode and the like).
    pub pooler: Pooler,
    /// The most connections that this node opens.
    pub max_connections: u32,
    /// Whether the schema is brought up to date at start, under a lock. If not, `oncegate storage migrate` has to
    /// be run, and until then every write is answered 503.
    pub migrate: bool,
}

/// Where the embedded store is when the configuration does not say.
pub const DEFAULT_URL: &str = "sqlite:oncegate-data/oncegate.db";

impl Default for Store {
    fn default() -> Self {
        Self { url: Secret::new(DEFAULT_URL), pooler: Pooler::None, max_connections: 10, migrate: true }
    }
}

/// A proxy between this program and the database server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pooler {
    /// None, or one that gives each client a session of its own.
    #[default]
    None,
    /// One that gives a session for the length of a transaction.
    Transaction,
}
