//! Bringing the schema up to date. The write lock is what keeps many processes apart.

use std::collections::BTreeSet;
use std::sync::Arc;

use sqlx::SqliteConnection;

use super::{Inner, error};
use crate::store::status::Readiness;
use crate::store::{Error, ErrorKind, Result};

/// Number, name and SQL, in order. The same numbers and names on every engine.
const MIGRATIONS: &[(i64, &str, &str)] = &[
    (1, "0001_initial", include_str!("../../../migrations/sqlite/0001_initial.sql")),
    (2, "0002_dead_letter_indexes", include_str!("../../../migrations/sqlite/0002_dead_letter_indexes.sql")),
    (3, "0003_intake", include_str!("../../../migrations/sqlite/0003_intake.sql")),
    (4, "0004_handlers", include_str!("../../../migrations/sqlite/0004_handlers.sql")),
    (5, "0005_receipt_indexes", include_str!("../../../migrations/sqlite/0005_receipt_indexes.sql")),
    (6, "0006_order", include_str!("../../../migrations/sqlite/0006_order.sql")),
    (7, "0007_order_indexes", include_str!("../../../migrations/sqlite/0007_order_indexes.sql")),
];

/// Where applied migrations are remembered.
const BOOTSTRAP: &str = "
CREATE TABLE IF NOT EXISTS oncegate_migrations (
    number     INTEGER NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;
";

const TABLE_EXISTS: &str =
    "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'oncegate_migrations')";
const APPLIED: &str = "SELECT number FROM oncegate_migrations";
const RECORD: &str = "INSERT INTO oncegate_migrations (number, name, applied_at) VALUES (?, ?, ?)";

/// The whole schema as SQL, in order, as (name, SQL): what [`migrate`] does to an empty database.
pub(in crate::store) fn migration_sql() -> Vec<(&'static str, String)> {
    let mut all = vec![("0000_migrations", BOOTSTRAP.to_owned())];
    all.extend(MIGRATIONS.iter().map(|&(number, name, sql)| {
        let record = format!(
            "INSERT INTO oncegate_migrations (number, name, applied_at)\n\
             VALUES ({number}, '{name}', unixepoch() * 1000000);"
        );
        (name, format!("{sql}\n{record}\n"))
    }));
    all
}

pub(super) async fn migrate(store: &Arc<Inner>) -> Result<Vec<String>> {
    if readiness(store).await? == Readiness::Ready {
        return Ok(Vec::new());
    }
    store
        .write(|connection, now| {
            Box::pin(async move {
                sqlx::raw_sql(BOOTSTRAP).execute(&mut *connection).await.map_err(failed)?;
                let applied = applied(connection).await?;
                let mut names = Vec::new();
                for &(number, name, sql) in MIGRATIONS {
                    if applied.contains(&number) {
                        continue;
                    }
                    sqlx::raw_sql(sql).execute(&mut *connection).await.map_err(failed)?;
                    sqlx::query(RECORD)
                        .bind(number)
                        .bind(name)
                        .bind(now)
                        .execute(&mut *connection)
                        .await
                        .map_err(failed)?;
                    names.push(name.to_owned());
                }
                Ok(names)
            })
        })
        .await
}

/// A migration's statements fail by what is in the database already, not by a caller's data.
fn failed(error: sqlx::Error) -> Error {
    let mut error = error::of(error);
    if error.kind == ErrorKind::InvalidData {
        error.kind = ErrorKind::Internal;
    }
    error
}

pub(super) async fn readiness(store: &Inner) -> Result<Readiness> {
    let mut connection = store.reader().await?;
    let applied = applied(&mut connection).await?;
    // A newer schema still serves this program: migrations expand before they contract.
    let complete = MIGRATIONS.iter().all(|(number, ..)| applied.contains(number));
    Ok(if complete { Readiness::Ready } else { Readiness::NotMigrated })
}

async fn applied(connection: &mut SqliteConnection) -> Result<BTreeSet<i64>> {
    let exists: bool =
        sqlx::query_scalar(TABLE_EXISTS).fetch_one(&mut *connection).await.map_err(error::of)?;
    if !exists {
        return Ok(BTreeSet::new());
    }
    let numbers = sqlx::query_scalar(APPLIED).fetch_all(connection).await.map_err(error::of)?;
    Ok(numbers.into_iter().collect())
}

/// Every statement of this file, for the tests that prepare and explain them.
#[cfg(test)]
pub(super) fn statements() -> Vec<String> {
    [TABLE_EXISTS, APPLIED, RECORD].map(str::to_owned).into()
}
