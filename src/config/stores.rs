//! `[stores.NAME]`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Secret;

/// A database with Oncegate's tables. `main` is always there; others hold the messages of the tenants that they name.
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
    /// The tenants whose messages are in this store. A tenant that no store names is in `main`, and so are messages
    /// without a tenant. Every store but `main` names at least one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("examples" = [["acme"]]))]
    pub tenants: Vec<String>,
    /// The most connections that this node opens to it.
    pub max_connections: u32,
    /// Whether the schema is brought up to date at start, under a lock. If not, `oncegate storage migrate` has to
    /// be run, and until then every write is answered 503. SQLite always is. Left out: `true`, `false` in the
    /// serverless modes.
    #[schemars(extend("examples" = [true]))]
    pub migrate: Option<bool>,
}

/// The store of tenants that no store names.
pub const MAIN: &str = "main";

/// Where the embedded store is when the configuration does not say.
pub const DEFAULT_URL: &str = "sqlite:oncegate-data/oncegate.db";

impl Default for Store {
    fn default() -> Self {
        Self {
            url: Secret::new(DEFAULT_URL),
            pooler: Pooler::None,
            tenants: Vec::new(),
            max_connections: 10,
            migrate: None,
        }
    }
}

impl Store {
    /// Whether its engine can tell of commits (`intake.notify`).
    pub fn can_notify(&self) -> bool {
        self.pooler == Pooler::None && !self.url.expose().starts_with("sqlite")
    }
}

impl super::Config {
    /// The name of the store of a tenant's messages.
    pub fn store_of(&self, tenant: &str) -> &str {
        let mut stores = self.stores.iter();
        stores
            .find(|(_, store)| store.tenants.iter().any(|name| name == tenant))
            .map_or(MAIN, |(name, _)| name.as_str())
    }

    /// The settings of a store; the defaults for one that is not configured.
    pub fn store(&self, name: &str) -> Store {
        self.stores.get(name).cloned().unwrap_or_default()
    }

    /// Whether a store's schema is brought up to date at start.
    pub fn migrates(&self, name: &str) -> bool {
        let store = self.store(name);
        store.migrate.unwrap_or(!self.durability.mode.is_serverless())
            || store.url.expose().starts_with("sqlite")
    }

    /// The names of all stores, `main` first.
    pub fn store_names(&self) -> impl Iterator<Item = &str> {
        let others = self.stores.keys().map(String::as_str).filter(|name| *name != MAIN);
        std::iter::once(MAIN).chain(others)
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
