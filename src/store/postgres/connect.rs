//! How a connection is made: its settings, and what is looked at before it is used.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions, Row};

use super::clock::ServerClock;
use super::error::{Class, Fault};
use crate::domain::Timestamp;
use crate::store::{Error, ErrorKind, Pooler, Result};

/// No statement waits longer for a lock: one frozen transaction must not hold up a group.
const LOCK_TIMEOUT: &str = "250ms";
/// No transaction stays open longer without a statement: a node that froze in one must not hold its locks.
const IDLE_IN_TRANSACTION_TIMEOUT: &str = "1s";
/// What a client gave up on does not run on for ever.
const SERVER_STATEMENT_TIMEOUT: &str = "30s";
/// After this, a connection that does not answer counts as lost, unless a statement is known to take long.
pub(super) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// For statements that read whole tables.
pub(super) const LONG_STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes connections to one server.
#[derive(Debug)]
pub(super) struct Connector {
    options: PgConnectOptions,
    timeout: Duration,
    warned: AtomicBool,
}

impl Connector {
    /// # Errors
    /// [`ErrorKind::Internal`] when the URL cannot be read. Nothing is connected yet.
    pub fn new(url: &str, pooler: Pooler, timeout: Duration) -> Result<Self> {
        // The parser's error may quote the URL, password and all.
        let options = PgConnectOptions::from_str(url)
            .map_err(|_| Error::new(ErrorKind::Internal, "the store's URL is not one of PostgreSQL"))?;
        let options = if options.get_application_name().is_none() {
            options.application_name("oncegate")
        } else {
            options
        };
        let options = match pooler {
            Pooler::None => options.options([
                ("lock_timeout", LOCK_TIMEOUT),
                ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_TIMEOUT),
                ("statement_timeout", SERVER_STATEMENT_TIMEOUT),
                // A plan made while a table was empty is a sequential scan, and would be kept.
                ("plan_cache_mode", "force_custom_plan"),
            ]),
            // Such a proxy refuses start-up settings, and a named statement may be another session's.
            Pooler::Transaction => options.extra_float_digits(None).statement_cache_capacity(0),
        };
        Ok(Self { options: options.disable_statement_logging(), timeout, warned: AtomicBool::new(false) })
    }

    /// Connects, and hears the server's time. A server that only reads is refused: after a failover the old
    /// primary would otherwise stay in the pool.
    pub async fn connect(&self, clock: &ServerClock) -> Result<PgConnection, Fault> {
        tokio::time::timeout(self.timeout, self.connect_and_look(clock)).await.unwrap_or_else(|_| {
            Err(Fault::new(Class::NotSent, ErrorKind::Unavailable, "the server did not answer in time"))
        })
    }

    /// A connection that only listens, outside of the pool.
    pub async fn listener(&self) -> Result<PgListener, Fault> {
        let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(self.timeout);
        let mut listener = PgListener::connect_with(&pool.connect_lazy_with(self.options.clone())).await?;
        listener.ignore_pool_close_event(true);
        Ok(listener)
    }

    async fn connect_and_look(&self, clock: &ServerClock) -> Result<PgConnection, Fault> {
        /// By the simple protocol, which needs no prepared statement: hence texts.
        const LOOK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text, \
             current_setting('synchronous_commit'), current_setting('transaction_read_only')";
        let not_sent = |error: sqlx::Error| Fault { class: Class::NotSent, ..Fault::from(error) };
        let mut connection = self.options.connect().await.map_err(not_sent)?;
        let row = sqlx::raw_sql(LOOK).fetch_one(&mut connection).await.map_err(not_sent)?;
        let time = row.try_get::<&str, _>(0).map_err(not_sent)?.parse().unwrap_or_default();
        if let Some(time) = Timestamp::from_timestamp_micros(time) {
            clock.hear(time);
        }
        if row.try_get::<&str, _>(2).map_err(not_sent)? == "on" {
            return Err(Fault::new(Class::NotSent, ErrorKind::Unavailable, "the server is read-only"));
        }
        if row.try_get::<&str, _>(1).map_err(not_sent)? == "off" && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "PostgreSQL runs with synchronous_commit = off: what was answered 2xx may be lost in its crash"
            );
        }
        Ok(connection)
    }
}
