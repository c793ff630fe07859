//! A bounded pool of connections, and [`Session`], one of them in use.
//!
//! A connection goes back to the pool only through [`Session::finish`], after the last statement was answered.
//! A session that is dropped on its way (its future was cancelled, it panicked) closes its connection, and
//! the server rolls back: whatever a caller does, nobody inherits a half-finished transaction. The price is a
//! new connection, so callers that may be cancelled often run in tasks of their own.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{Connection, Postgres};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::clock::ServerClock;
use super::connect::{Connector, STATEMENT_TIMEOUT};
use super::error::{Class, Fault};
use crate::store::{ErrorKind, Options, Pooler, Result};

/// A connection that was idle for longer is asked whether it still works before it is used.
const TRUST: Duration = Duration::from_secs(5);
/// A connection that was idle for longer is closed, when the pool is next used.
const MAX_IDLE: Duration = Duration::from_secs(600);
/// Connections are made anew after this long, so that nodes follow a changed address.
const MAX_AGE: Duration = Duration::from_secs(1_800);

/// Opens a transaction, whose statements each see what was committed before them, whatever the database's default
/// is; with the limits that a pooler does not let the connection carry.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
const BEGIN_LIMITED: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '250ms'; \
     SET LOCAL idle_in_transaction_session_timeout = '1s'; SET LOCAL statement_timeout = '30s'";

pub(super) struct Pool {
    connector: Connector,
    pooler: Pooler,
    acquire_timeout: Duration,
    permits: Semaphore,
    idle: Mutex<Vec<Pooled>>,
    pub clock: ServerClock,
}

struct Pooled {
    connection: PgConnection,
    born: Instant,
    idle_since: Instant,
}

/// Whether statements share a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Each statement commits by itself.
    Autocommit,
    Transaction,
}

impl Pool {
    pub fn new(url: &str, options: &Options) -> Result<Self> {
        Ok(Self {
            connector: Connector::new(url, options.pooler, options.acquire_timeout)?,
            pooler: options.pooler,
            acquire_timeout: options.acquire_timeout,
            permits: Semaphore::new(options.max_connections.max(1) as usize),
            idle: Mutex::default(),
            clock: ServerClock::new(options.clock.clone()),
        })
    }

    /// A connection, in a transaction if so wished. Behind a transaction pooler it always is in one: a
    /// statement takes two messages there, which must reach the same server.
    pub async fn session(&self, mode: Mode) -> Result<Session<'_>, Fault> {
        let unavailable = |text: &str| Fault::new(Class::NotSent, ErrorKind::Unavailable, text);
        let permit = tokio::time::timeout(self.acquire_timeout, self.permits.acquire())
            .await
            .map_err(|_| unavailable("no connection became free in time"))?
            .map_err(|_| unavailable("the store is closed"))?;
        let pooled = match self.checked_idle().await {
            Some(pooled) => pooled,
            None => {
                let connection = self.connector.connect(&self.clock).await?;
                let now = Instant::now();
                Pooled { connection, born: now, idle_since: now }
            }
        };
        let in_transaction = mode == Mode::Transaction || self.pooler == Pooler::Transaction;
        let mut session = Session {
            pool: self,
            pooled,
            in_transaction: false,
            timeout: STATEMENT_TIMEOUT,
            _permit: permit,
        };
        if in_transaction && let Err(fault) = session.begin().await {
            return session.finish(Err(fault)).await;
        }
        Ok(session)
    }

    /// The idle connection that was used last, if it still works.
    async fn checked_idle(&self) -> Option<Pooled> {
        let (mut pooled, old) = {
            let mut idle = self.idle();
            let now = Instant::now();
            let stale = |pooled: &Pooled| {
                now.duration_since(pooled.idle_since) > MAX_IDLE || now.duration_since(pooled.born) > MAX_AGE
            };
            let old: Vec<Pooled> = idle.extract_if(.., |pooled| stale(pooled)).collect();
            (idle.pop(), old)
        };
        if !old.is_empty() {
            // Said goodbye to beside the way.
            tokio::spawn(async move {
                for pooled in old {
                    let _ = pooled.connection.close().await;
                }
            });
        }
        let candidate = pooled.as_mut()?;
        if candidate.idle_since.elapsed() < TRUST {
            return pooled;
        }
        match tokio::time::timeout(Duration::from_secs(1), candidate.connection.ping()).await {
            Ok(Ok(())) => pooled,
            _ => {
                self.forget_idle();
                None
            }
        }
    }

    /// Drops the idle connections: one of their kind was found dead.
    fn forget_idle(&self) {
        let forgotten = std::mem::take(&mut *self.idle());
        drop(forgotten);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Pooled>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of its own, for LISTEN.
    pub async fn listener(&self) -> Result<sqlx::postgres::PgListener, Fault> {
        self.connector.listener().await
    }

    pub async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *self.idle());
        for pooled in idle {
            let _ = pooled.connection.close().await;
        }
    }
}

/// A connection in use.
pub(super) struct Session<'p> {
    pool: &'p Pool,
    pooled: Pooled,
    in_transaction: bool,
    /// After this, a statement that was not answered means that the connection is lost.
    pub timeout: Duration,
    _permit: SemaphorePermit<'p>,
}

impl Session<'_> {
    /// Begins a transaction, unless in one already.
    pub async fn begin(&mut self) -> Result<(), Fault> {
        if !self.in_transaction {
            let limited = self.pool.pooler == Pooler::Transaction;
            self.command(if limited { BEGIN_LIMITED } else { BEGIN }).await?;
            self.in_transaction = true;
        }
        Ok(())
    }

    pub fn is_in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// Runs a statement and reads all of its rows.
    pub async fn rows(&mut self, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>, Fault> {
        let query = query.persistent(self.pool.pooler == Pooler::None);
        limited(self.timeout, query.fetch_all(&mut self.pooled.connection)).await
    }

    /// Runs a statement; how many rows it changed.
    pub async fn execute(&mut self, query: Query<'_, Postgres, PgArguments>) -> Result<u64, Fault> {
        let query = query.persistent(self.pool.pooler == Pooler::None);
        Ok(limited(self.timeout, query.execute(&mut self.pooled.connection)).await?.rows_affected())
    }

    /// Runs statements without parameters, several if need be, by the simple protocol.
    pub async fn command(&mut self, sql: &'static str) -> Result<(), Fault> {
        limited(self.timeout, sqlx::raw_sql(sql).execute(&mut self.pooled.connection)).await?;
        Ok(())
    }

    /// Ends the transaction, if there is one: by a commit if `result` is `Ok`. Gives the connection back
    /// unless it is lost.
    ///
    /// # Errors
    /// That of `result`, or that of the commit; [`Class::Lost`] then means that the outcome is unknown.
    pub async fn finish<T>(mut self, result: Result<T, Fault>) -> Result<T, Fault> {
        let mut result = result;
        if self.in_transaction {
            match &result {
                Ok(_) => {
                    if let Err(fault) = self.command("COMMIT").await {
                        result = Err(fault);
                    }
                }
                Err(fault) if fault.spares_connection() => {
                    if self.command("ROLLBACK").await.is_err() {
                        return result;
                    }
                }
                Err(_) => {}
            }
        }
        match &result {
            Err(fault) if !fault.spares_connection() => self.pool.forget_idle(),
            _ => {
                self.pooled.idle_since = Instant::now();
                let Self { pool, pooled, .. } = self;
                if !pool.permits.is_closed() {
                    pool.idle().push(pooled);
                }
            }
        }
        result
    }
}

async fn limited<T>(
    timeout: Duration,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(timeout, statement).await {
        Ok(result) => result.map_err(Fault::from),
        Err(_) => Err(Fault::new(Class::Lost, ErrorKind::Unavailable, "the server did not answer in time")),
    }
}
