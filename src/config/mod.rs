//! The configuration: a file per section, whose doc comments are its reference.
//!
//! The doc comments end up, word for word, in `oncegate config schema` and `oncegate config example`; they are
//! written for operators. [`load()`] reads a file, lays the environment over it, and checks what a type cannot
//! say. It reports every mistake with the whole path of its key.
//!
//! To add a key: a field with a doc comment, a default in the section's `Default`, and, where a type cannot
//! say what is wrong with a value, a line in `check`; without a default also an example,
//! `#[schemars(extend("examples" = [...]))]`. A key exists only when it works. The settings of a
//! transport are declared beside the transport; they come in through [`Backends`].

mod check;
mod document;
mod env;
mod errors;
mod example;
mod key;
mod load;
mod read;
mod schema;
#[cfg(test)]
mod tests;

pub mod auth;
pub mod deduplication;
pub mod destinations;
pub mod durability;
pub mod endpoints;
pub mod handlers;
pub mod history;
pub mod idempotency;
pub mod identity;
pub mod intake;
pub mod messages;
pub mod on_error;
pub mod proof;
pub mod rate;
pub mod receivers;
pub mod routes;
pub mod secret;
pub mod secrets;
pub mod server;
pub mod stores;
pub mod telemetry;
pub mod value;

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use auth::Auth;
pub use check::durability::overridden;
pub use deduplication::Deduplication;
pub use destinations::Destination;
pub use durability::Durability;
pub use endpoints::Endpoints;
pub use errors::{Errors, Place, Problem};
pub use example::example;
pub use handlers::Handler;
pub use history::History;
pub use idempotency::Idempotency;
pub use intake::Intake;
pub use key::Key;
pub use load::{Backends, DEFAULT_FILE, FILE_VARIABLE, Format, load, process_environment};
pub use messages::MessageType;
pub use rate::Rate;
pub use receivers::Receiver;
pub use routes::{Route, Routing};
pub use schema::schema;
pub use secret::Secret;
pub use secrets::Secrets;
pub use server::Server;
pub use stores::Store;
pub use telemetry::Telemetry;
pub use value::{ByteSize, Duration};

/// Durations are written `500ms`, `30s`, `5m`, `24h`, `30d`, or as ISO 8601 (`PT30S`); sizes `256KiB`, `1MiB`.
/// A secret is a string, `{ env = "NAME" }` or `{ file = "PATH" }`. Relative paths of files are relative to this
/// file. Every value can be set from outside as `ONCEGATE__SECTION__KEY`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The HTTP server.
    pub server: Server,
    /// The stores, by name. `main` is always there; more may hold the messages of some tenants.
    #[schemars(extend("x-name" = "main"))]
    pub stores: BTreeMap<String, Store>,
    /// When and by whom deliveries are made, and what is kept.
    pub durability: Durability,
    /// Who may call, and what they may do.
    pub auth: Auth,
    /// Decisions about single endpoints.
    pub endpoints: Endpoints,
    /// Where messages can go, by name. Without any destination, route and handler, a destination named
    /// `stdout` takes every type.
    #[schemars(extend("x-name" = "orders"))]
    pub destinations: BTreeMap<String, Destination>,
    /// HTTP endpoints of yours that handle message types, by name. A type that has a handler needs no route.
    #[schemars(extend("x-name" = "rebuild"))]
    pub handlers: BTreeMap<String, Handler>,
    /// Endpoints to which brokers and webhook senders push, by name: `POST /v1/push/NAME`.
    #[schemars(extend("x-name" = "incoming"))]
    pub receivers: BTreeMap<String, Receiver>,
    /// Which message types go where. Routes that match add up, each destination once.
    pub routes: Vec<Route>,
    /// What routing does beyond the routes.
    pub routing: Routing,
    /// What is known about message types, by type.
    #[schemars(extend("x-name" = "order.created"))]
    pub messages: BTreeMap<String, MessageType>,
    /// The identity of the work that messages ask for.
    pub deduplication: Deduplication,
    /// The identity of requests: `Idempotency-Key`.
    pub idempotency: Idempotency,
    /// Messages that are published in your own SQL transactions.
    pub intake: Intake,
    /// What is remembered of deliveries that were made.
    pub history: History,
    /// Logs and traces.
    pub telemetry: Telemetry,

    /// The file that this was read from.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server: Server::default(),
            stores: BTreeMap::from([("main".to_owned(), Store::default())]),
            durability: Durability::default(),
            auth: Auth::default(),
            endpoints: Endpoints::default(),
            destinations: BTreeMap::new(),
            handlers: BTreeMap::new(),
            receivers: BTreeMap::new(),
            routes: Vec::new(),
            routing: Routing::default(),
            messages: BTreeMap::new(),
            deduplication: Deduplication::default(),
            idempotency: Idempotency::default(),
            intake: Intake::default(),
            history: History::default(),
            telemetry: Telemetry::default(),
            file: None,
        }
    }
}
