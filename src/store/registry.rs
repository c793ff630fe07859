//! The one place that names the engines.

use std::time::Duration;

use super::{Error, ErrorKind, Result, Shared, postgres, sqlite};
use crate::domain::Clock;

/// What opening a store needs beside its URL. An engine ignores what does not concern it.
#[derive(Clone, Debug)]
pub struct Options {
    /// What stands between this program and the database server.
    pub pooler: Pooler,
    /// The most connections that this node opens to the store.
    pub max_connections: u32,
    /// How long to wait for a free connection before the store counts as unavailable.
    pub acquire_timeout: Duration,
    /// How long to wait for a write lock that another process holds on an embedded store.
    pub busy_timeout: Duration,
    /// The clock of engines that have none of their own. Servers are asked for theirs.
    pub clock: Clock,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pooler: Pooler::None,
            max_connections: 10,
            acquire_timeout: Duration::from_secs(3),
            busy_timeout: Duration::from_secs(5),
            clock: Clock::system(),
        }
    }
}

/// A proxy between this program and the database server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooler {
    /// None, or one that gives each client a session of its own.
    #[default]
    None,
    /// One that gives a session for the length of a transaction: no named statements, no SET, no LISTEN.
    Transaction,
}

/// Opens the store at `url`, chosen by its scheme. Connects lazily where the engine is a server, so that a
/// node starts while its database is down.
///
/// # Errors
/// [`ErrorKind::Internal`] for a URL that no engine reads (configuration checks it first with [`scheme`]).
pub async fn open(url: &str, options: &Options) -> Result<Shared> {
    match scheme(url) {
        "sqlite" => sqlite::open(url, options).await,
        "postgres" | "postgresql" => postgres::open(url, options),
        _ => Err(unknown(url)),
    }
}

/// As [`open`], and touches no file of an embedded store yet, so that a node starts while it cannot be opened:
/// [`Store::migrate`](super::Store::migrate) makes it.
///
/// # Errors
/// [`ErrorKind::Internal`] for a URL that no engine reads.
pub fn open_lazily(url: &str, options: &Options) -> Result<Shared> {
    match scheme(url) {
        "sqlite" => sqlite::open_lazily(url, options),
        "postgres" | "postgresql" => postgres::open(url, options),
        _ => Err(unknown(url)),
    }
}

/// The file of an embedded store; `None` where the engine is a server.
pub fn embedded_file(url: &str) -> Option<std::path::PathBuf> {
    if scheme(url) == "sqlite" { sqlite::file(url) } else { None }
}

/// The migrations of the engine that `url` names, in order, as (name, SQL), for those who migrate by hand.
///
/// # Errors
/// [`ErrorKind::Internal`] for a URL that no engine reads.
pub fn migration_sql(url: &str) -> Result<Vec<(&'static str, String)>> {
    match scheme(url) {
        "sqlite" => Ok(sqlite::migration_sql()),
        "postgres" | "postgresql" => Ok(postgres::migration_sql()),
        _ => Err(unknown(url)),
    }
}

/// Every statement of the engine that `url` names, by name. For tests, which prepare and explain them.
#[doc(hidden)]
pub fn statements(url: &str) -> &'static [(&'static str, &'static str)] {
    match scheme(url) {
        "postgres" | "postgresql" => postgres::STATEMENTS,
        _ => &[],
    }
}

/// The URL's scheme. Both `sqlite:PATH` and `sqlite://PATH` are in use.
pub fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

fn unknown(url: &str) -> Error {
    // The URL itself may hold a password.
    Error::new(ErrorKind::Internal, format!("no store engine for the scheme `{}`", scheme(url)))
}

/// The schemes that [`open`] knows.
pub const SCHEMES: [&str; 3] = ["sqlite", "postgres", "postgresql"];
