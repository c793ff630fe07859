//! The embedded store: one SQLite file in WAL mode, which other processes may read and write.
//!
//! One connection writes, and every write is one `BEGIN IMMEDIATE` transaction on it: whoever holds it sees
//! nothing change under it, so that a statement may rely on what the one before it read. A few connections
//! read beside it. Work is spawned, so that a caller who goes away cancels nothing and leaves no transaction
//! open. "The database's clock" is the clock in the options.

mod accept;
mod claims;
mod connect;
mod dead_letters;
mod deliveries;
mod error;
mod inbox;
mod intake;
mod lanes;
mod look;
mod migrate;
#[cfg(test)]
mod plans;
mod purge;
mod rows;
mod settle;
mod status;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePool};
use sqlx::{Connection, Sqlite as Engine};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::domain::claim::ClaimKey;
use crate::domain::delivery::Target;
use crate::domain::{Clock, Random, RowKey, Token};
use crate::store::dead_letters as dead;
use crate::store::status as asked;
use crate::store::{self, Error, ErrorKind, Options, Result, Shared};

pub(super) use migrate::migration_sql;

/// The file of the store at `url`, where it names one.
pub(super) fn file(url: &str) -> Option<PathBuf> {
    connect::path(url).ok()
}

/// Opens the file that `url` names, makes it where it is not there, and brings its schema up to date.
pub(super) async fn open(url: &str, options: &Options) -> Result<Shared> {
    let store = file_at(&connect::path(url)?, options);
    store.prepare().await?;
    Ok(Arc::new(Sqlite(store)))
}

/// Touches no file yet: [`store::Store::migrate`] does what [`open`] would have done.
pub(super) fn open_lazily(url: &str, options: &Options) -> Result<Shared> {
    Ok(Arc::new(Sqlite(file_at(&connect::path(url)?, options))))
}

fn file_at(path: &Path, options: &Options) -> Arc<Inner> {
    let connect = connect::options(path, options);
    Arc::new(Inner {
        path: path.to_owned(),
        readers: connect::readers(&connect, options),
        connect,
        writer: Mutex::new(Writer::Closed),
        busy_timeout: options.busy_timeout,
        patience: options.busy_timeout.max(options.acquire_timeout),
        clock: options.clock.clone(),
        random: Random,
    })
}

#[derive(Debug)]
struct Sqlite(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    connect: SqliteConnectOptions,
    readers: SqlitePool,
    writer: Mutex<Writer>,
    busy_timeout: Duration,
    /// How long a write waits for its turn.
    patience: Duration,
    clock: Clock,
    random: Random,
}

#[derive(Debug)]
enum Writer {
    /// Not open: at first, and after an error that leaves it unknown what the connection is in.
    Closed,
    Open(SqliteConnection),
    /// [`store::Store::close`] was called.
    Ended,
}

impl Inner {
    /// Makes the file where it is not there, puts it into WAL mode and brings its schema up to date. Returns the
    /// names of the migrations that this call applied.
    async fn prepare(self: &Arc<Self>) -> Result<Vec<String>> {
        connect::create(&self.path)?;
        connect::enable_log(&self.connect, self.busy_timeout).await?;
        migrate::migrate(self).await
    }

    fn now(&self) -> i64 {
        rows::micros(self.clock.now())
    }

    async fn reader(&self) -> Result<PoolConnection<Engine>> {
        self.readers.acquire().await.map_err(error::of)
    }

    /// Runs `work` in one write transaction, with the moment at which it began (in microseconds). It is
    /// committed when `work` succeeds, else rolled back.
    async fn write<T, W>(self: &Arc<Self>, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> BoxFuture<'c, Result<T>> + Send + 'static,
    {
        let store = Arc::clone(self);
        tokio::spawn(async move { store.transact(work).await })
            .await
            .map_err(|panic| Error::new(ErrorKind::Internal, panic.to_string()))?
    }

    async fn transact<T, W>(&self, work: W) -> Result<T>
    where
        W: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> BoxFuture<'c, Result<T>> + Send,
    {
        let mut writer = tokio::time::timeout(self.patience, self.writer.lock())
            .await
            .map_err(|_| Error::new(ErrorKind::Unavailable, "the writes before this one take too long"))?;
        // Taken out, so that only a connection that is known to be clean is put back: a panic in `work`, or
        // a failed rollback, drops it.
        let mut connection = match std::mem::replace(&mut *writer, Writer::Closed) {
            Writer::Open(connection) => connection,
            Writer::Closed => connect::writer(&self.connect).await?,
            Writer::Ended => {
                *writer = Writer::Ended;
                return Err(Error::new(ErrorKind::Unavailable, "the store is closed"));
            }
        };
        let (result, after) = self.run(&mut connection, work).await;
        if after == After::Clean {
            *writer = Writer::Open(connection);
        }
        result
    }

    async fn run<T, W>(&self, connection: &mut SqliteConnection, work: W) -> (Result<T>, After)
    where
        W: for<'c> FnOnce(&'c mut SqliteConnection, i64) -> BoxFuture<'c, Result<T>> + Send,
    {
        let mut transaction = match connection.begin_with("BEGIN IMMEDIATE").await {
            Ok(transaction) => transaction,
            Err(error) if error::is_busy(&error) => return (Err(error::of(error)), After::Clean),
            Err(error) => return (Err(error::of(error)), After::Unknown),
        };
        let now = self.now();
        match work(&mut transaction, now).await {
            Ok(value) => match transaction.commit().await {
                Ok(()) => (Ok(value), After::Clean),
                Err(error) => (Err(error::of_commit(error)), After::Unknown),
            },
            Err(error) => match transaction.rollback().await {
                Ok(()) => (Err(error), After::Clean),
                Err(_) => (Err(error), After::Unknown),
            },
        }
    }
}

/// What a connection is in after its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// No transaction is open on it.
    Clean,
    Unknown,
}

#[async_trait]
impl store::Store for Sqlite {
    fn engine(&self) -> &'static str {
        "sqlite"
    }

    /// There is one writer.
    fn writers(&self) -> usize {
        1
    }

    async fn migrate(&self) -> Result<Vec<String>> {
        self.0.prepare().await
    }

    async fn readiness(&self) -> Result<asked::Readiness> {
        migrate::readiness(&self.0).await
    }

    async fn checkup(&self) -> Result<asked::Checkup> {
        drop(self.0.reader().await?);
        // Every connection is opened with `synchronous = FULL`.
        Ok(asked::Checkup { now: self.0.clock.now(), durable: true })
    }

    async fn accept(&self, group: &[store::accept::Request]) -> Vec<Result<store::accept::Outcome>> {
        accept::accept(&self.0, group).await
    }

    async fn intake_waits(&self) -> Result<bool> {
        intake::waits(&self.0).await
    }

    async fn move_intake(
        &self,
        limits: store::intake::Limits,
        judge: store::intake::Shared,
    ) -> Result<store::intake::Moved> {
        intake::move_on(&self.0, limits, judge).await
    }

    /// Nobody can be told.
    async fn set_intake_notify(&self, _notify: store::intake::Notifying) -> Result<()> {
        Ok(())
    }

    async fn listen_intake(&self, _heard: Arc<tokio::sync::Notify>) -> Result<()> {
        std::future::pending().await
    }

    async fn grant_publisher(&self, _role: &str, _tenant: &str) -> Result<()> {
        Err(Error::new(ErrorKind::InvalidData, "SQLite has no roles: whoever may write the file may publish"))
    }

    async fn take(&self, take: &store::deliveries::Take) -> Result<Vec<store::deliveries::Taken>> {
        deliveries::take(&self.0, take).await
    }

    async fn take_in_order(&self, take: &store::lanes::Take) -> Result<store::lanes::Looked> {
        lanes::take(&self.0, take).await
    }

    async fn adopt(&self, target: &Target, limit: u32) -> Result<u64> {
        lanes::adopt(&self.0, target, limit).await
    }

    async fn settle(
        &self,
        batch: &[store::deliveries::Settlement],
    ) -> Result<Vec<store::deliveries::Settled>> {
        settle::settle(&self.0, batch).await
    }

    async fn give_back(&self, rows: &[(RowKey, Token)]) -> Result<u64> {
        deliveries::give_back(&self.0, rows).await
    }

    async fn due_in(&self, targets: &[Target]) -> Result<Vec<Option<Duration>>> {
        deliveries::due_in(&self.0, targets).await
    }

    async fn expire(&self, limit: u32) -> Result<Vec<(Target, u64)>> {
        settle::expire(&self.0, limit).await
    }

    async fn look(&self, targets: &[Target], keep: Option<&asked::Retention>) -> Result<store::look::Seen> {
        look::look(&self.0, targets, keep).await
    }

    async fn backlog(&self) -> Result<Vec<asked::Backlog>> {
        deliveries::backlog(&self.0).await
    }

    async fn message(&self, tenant: &str, id: &str) -> Result<Option<asked::MessageStatus>> {
        status::message(&self.0, tenant, id).await
    }

    async fn messages(&self, query: &asked::MessageQuery) -> Result<asked::MessagePage> {
        status::messages(&self.0, query).await
    }

    async fn cancel(&self, tenant: &str, id: &str) -> Result<asked::Cancelled> {
        status::cancel(&self.0, tenant, id).await
    }

    async fn paused(&self) -> Result<Vec<asked::Pause>> {
        status::paused(&self.0).await
    }

    async fn set_paused(&self, target: &Target, paused: asked::Paused) -> Result<()> {
        status::set_paused(&self.0, target, paused).await
    }

    async fn claim(&self, claim: &store::claims::NewClaim) -> Result<store::claims::Claimed> {
        claims::claim(&self.0, claim).await
    }

    async fn renew(
        &self,
        key: ClaimKey,
        token: Token,
        lease: Duration,
    ) -> Result<Option<store::claims::Claim>> {
        claims::renew(&self.0, key, token, lease).await
    }

    async fn confirm(
        &self,
        key: ClaimKey,
        token: Token,
        window: Duration,
    ) -> Result<Option<store::claims::Claim>> {
        claims::confirm(&self.0, key, token, window).await
    }

    async fn keep_answer(&self, key: ClaimKey, token: Token, answer: &Bytes) -> Result<()> {
        claims::keep_answer(&self.0, key, token, answer.clone()).await
    }

    async fn release(&self, key: ClaimKey, token: Token) -> Result<bool> {
        claims::release(&self.0, key, token).await
    }

    async fn claim_of(&self, key: ClaimKey) -> Result<Option<store::claims::Claim>> {
        claims::claim_of(&self.0, key).await
    }

    async fn claim_handling(&self, handling: &store::inbox::Handling) -> Result<store::claims::Claimed> {
        inbox::claim(&self.0, handling).await
    }

    async fn leased_for(&self, row_id: Uuid) -> Result<Option<Duration>> {
        inbox::leased_for(&self.0, row_id).await
    }

    async fn renew_held(&self, held: &[store::inbox::Held], lease: Duration) -> Result<()> {
        inbox::renew(&self.0, held, lease).await
    }

    async fn conclude(&self, conclusion: &store::inbox::Conclusion) -> Result<store::inbox::Concluded> {
        inbox::conclude(&self.0, conclusion).await
    }

    async fn conclude_all(
        &self,
        conclusions: &[store::inbox::Conclusion],
    ) -> Result<Vec<store::inbox::Concluded>> {
        inbox::conclude_all(&self.0, conclusions).await
    }

    async fn dead_letters(&self, query: &dead::Query) -> Result<dead::Page> {
        dead_letters::list(&self.0, query).await
    }

    async fn dead_letter(&self, tenant: &str, id: Uuid) -> Result<Option<dead::DeadLetter>> {
        dead_letters::one(&self.0, tenant, id).await
    }

    async fn edit_dead_letter(
        &self,
        tenant: &str,
        id: Uuid,
        edit: &dead::Edit,
    ) -> Result<Option<dead::DeadLetter>> {
        dead_letters::edit(&self.0, tenant, id, edit).await
    }

    async fn replay_dead_letters(&self, replay: &dead::Replay) -> Result<Vec<(Target, u64)>> {
        dead_letters::replay(&self.0, replay).await
    }

    async fn count_replayable(&self, replay: &dead::Replay) -> Result<u64> {
        dead_letters::count_replayable(&self.0, replay).await
    }

    async fn hindrances(&self, replay: &dead::Replay) -> Result<Vec<dead::Hindrance>> {
        dead_letters::hindrances(&self.0, replay).await
    }

    async fn discard_dead_letters(
        &self,
        selection: &dead::Selection,
        claims: dead::Claims,
        limit: u32,
    ) -> Result<u64> {
        dead_letters::discard(&self.0, selection, claims, limit).await
    }

    async fn count_dead_letters(&self, selection: &dead::Selection) -> Result<u64> {
        dead_letters::count(&self.0, selection).await
    }

    async fn summarise_dead_letters(&self, tenant: &str) -> Result<Vec<dead::Group>> {
        dead_letters::summarise(&self.0, tenant).await
    }

    async fn purge(&self, limit: u32, keep: &asked::Retention) -> Result<asked::Purged> {
        purge::purge(&self.0, limit, keep).await
    }

    async fn close(&self) {
        self.0.readers.close().await;
        let writer = std::mem::replace(&mut *self.0.writer.lock().await, Writer::Ended);
        if let Writer::Open(connection) = writer {
            // Nothing is lost with it: what was answered is committed.
            let _ = connection.close().await;
        }
    }
}
