//! The schema: `migrations/postgres`, applied in order under a row lock.

use std::time::Duration;

use sqlx::Row;

use super::Postgres;
use super::error::Fault;
use super::pool::{Mode, Session};
use crate::store::status::Readiness;
use crate::store::{ErrorKind, Result};

/// A migration: its file, and the line that remembers it, so that what is printed is all there is to do.
macro_rules! migration {
    ($number:literal, $name:literal) => {
        (
            $name,
            concat!(
                include_str!(concat!("../../../migrations/postgres/", $name, ".sql")),
                "\nINSERT INTO oncegate.migrations (number, name) VALUES (",
                $number,
                ", '",
                $name,
                "');\n"
            ),
        )
    };
}

/// In order; the number is the place, from 1.
const MIGRATIONS: [(&str, &str); 7] = [
    migration!(1, "0001_initial"),
    migration!(2, "0002_dead_letter_indexes"),
    migration!(3, "0003_intake"),
    migration!(4, "0004_handlers"),
    migration!(5, "0005_receipt_indexes"),
    migration!(6, "0006_order"),
    migration!(7, "0007_order_indexes"),
];

/// Where applied migrations are remembered; the row 0 is the lock.
const BOOTSTRAP: &str = "\
CREATE SCHEMA IF NOT EXISTS oncegate;
CREATE TABLE IF NOT EXISTS oncegate.migrations (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO oncegate.migrations (number, name) VALUES (0, 'lock') ON CONFLICT DO NOTHING;
";

/// Asked first: `CREATE SCHEMA IF NOT EXISTS` needs a privilege that a node of a prepared database may lack.
pub(super) const BOOTSTRAPPED: &str = "SELECT to_regclass('oncegate.migrations') IS NOT NULL";

/// Another node's migrations may take their time, and so may ours.
const PATIENCE: &str = "SET LOCAL lock_timeout = '10min'; SET LOCAL statement_timeout = 0; \
     SET LOCAL idle_in_transaction_session_timeout = '60s'";

const MIGRATION_TIMEOUT: Duration = Duration::from_secs(3_600);

pub(super) const LOCK: &str = "SELECT number FROM oncegate.migrations WHERE number = 0 FOR UPDATE";

pub(super) const APPLIED: &str = "SELECT number FROM oncegate.migrations WHERE number > 0 ORDER BY number";

/// The whole schema as SQL, in order, as (name, SQL): what [`migrate`] does to an empty database.
pub(in crate::store) fn migration_sql() -> Vec<(&'static str, String)> {
    let all = std::iter::once(("0000_migrations", BOOTSTRAP)).chain(MIGRATIONS);
    all.map(|(name, sql)| (name, sql.to_owned())).collect()
}

pub(super) async fn migrate(store: &Postgres) -> Result<Vec<String>> {
    bootstrap(store).await?;
    let mut session = store.pool.session(Mode::Transaction).await?;
    session.timeout = MIGRATION_TIMEOUT;
    let result = apply_missing(&mut session).await;
    Ok(session.finish(result).await?)
}

/// Nodes that do this at once get in each other's way, with several errors: "if not exists" is no lock.
async fn bootstrap(store: &Postgres) -> Result<()> {
    const TRIES: u32 = 20;
    for attempt in 1.. {
        let mut session = store.pool.session(Mode::Transaction).await?;
        let result = create_if_missing(&mut session).await;
        match session.finish(result).await {
            Ok(()) => return Ok(()),
            Err(fault) if attempt == TRIES || !is_race(&fault) => return Err(fault.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(20 * u64::from(attempt))).await,
        }
    }
    Ok(())
}

async fn create_if_missing(session: &mut Session<'_>) -> Result<(), Fault> {
    let rows = session.rows(sqlx::query(BOOTSTRAPPED)).await?;
    if !rows[0].try_get::<bool, _>(0)? {
        session.command(BOOTSTRAP).await?;
    }
    Ok(())
}

/// Two who create the same thing: a key of the catalogue (23505), duplicate schema, table or type (42P06,
/// 42P07, 42710), a catalogue row updated under one's hands (XX000), or a lock not had in time.
fn is_race(fault: &Fault) -> bool {
    fault.error.kind == ErrorKind::Locked
        || ["23505", "42P06", "42P07", "42710", "XX000"]
            .iter()
            .any(|code| fault.code.as_deref() == Some(*code))
}

async fn apply_missing(session: &mut Session<'_>) -> Result<Vec<String>, Fault> {
    session.command(PATIENCE).await?;
    session.rows(sqlx::query(LOCK)).await?;
    let mut applied = Vec::new();
    for row in session.rows(sqlx::query(APPLIED)).await? {
        applied.push(row.try_get::<i32, _>(0)?);
    }
    let mut names = Vec::new();
    for (number, (name, sql)) in (1_i32..).zip(MIGRATIONS) {
        if !applied.contains(&number) {
            session.command(sql).await?;
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

pub(super) const NEWEST: &str = "SELECT max(number) FROM oncegate.migrations";

pub(super) async fn readiness(store: &Postgres) -> Result<Readiness> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = session.rows(sqlx::query(NEWEST)).await;
    let rows = match session.finish(result).await {
        Ok(rows) => rows,
        Err(fault) if fault.error.kind == ErrorKind::NotMigrated => return Ok(Readiness::NotMigrated),
        Err(fault) => return Err(fault.into()),
    };
    let newest = rows[0].try_get::<Option<i32>, _>(0).map_err(Fault::from)?.unwrap_or_default();
    // A newer schema still serves this program: migrations expand before they contract.
    let needed = i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX);
    Ok(if newest >= needed { Readiness::Ready } else { Readiness::NotMigrated })
}
