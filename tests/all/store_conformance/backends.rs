//! A fresh database per test, and a look behind the store's back.

use std::path::PathBuf;
use std::time::Duration;

use oncegate::domain::{Clock, Timestamp};
use oncegate::store::{self, Options, Shared};
use sqlx::{AssertSqlSafe, PgPool, Row, SqlitePool};
use uuid::Uuid;

use crate::support::postgres::{self, Postgres};
use crate::support::run;

/// A store on a database of its own.
pub struct Bench {
    pub store: Shared,
    pub url: String,
    pub options: Options,
    behind: Behind,
    time: Time,
    folder: Option<PathBuf>,
}

/// The database, past the store.
enum Behind {
    Sqlite(SqlitePool),
    Postgres(PgPool, Postgres),
}

/// How time passes for the database.
enum Time {
    /// Its clock is the store's, and can be moved.
    Moved,
    /// It has its own clock: it is waited for.
    Waited,
}

/// A row of the dead letters as it stands in the table.
#[derive(Debug)]
pub struct DeadRow {
    pub id: Uuid,
    pub row_id: Uuid,
    pub target: String,
    pub attempts: i64,
    pub tenant: String,
    pub message_id: Option<String>,
    pub kind: String,
    pub deduplication_id: Option<String>,
    pub partition_key: Option<String>,
    pub correlation_id: Option<String>,
    pub has_claim_key: bool,
    pub has_times: bool,
    pub error_kind: String,
    pub error_text: String,
    pub envelope: String,
    pub body: Vec<u8>,
}

pub async fn sqlite() -> Option<Bench> {
    let folder = run::fresh_dir("sqlite");
    let url = format!("sqlite:{}", folder.join("store.db").display());
    let options = Options { clock: Clock::system(), ..Options::default() };
    let store = store::open(&url, &options).await.expect("open the store");
    let behind = SqlitePool::connect(&url).await.expect("open the file");
    Some(Bench {
        store,
        url,
        options,
        behind: Behind::Sqlite(behind),
        time: Time::Moved,
        folder: Some(folder),
    })
}

pub async fn postgres() -> Option<Bench> {
    let server = postgres::shared().await?;
    let url = server.fresh_database().await;
    let options = Options::default();
    let store = store::open(&url, &options).await.expect("open the store");
    store.migrate().await.expect("migrate");
    let behind = PgPool::connect_lazy(&url).expect("a URL of PostgreSQL");
    let behind = Behind::Postgres(behind, server);
    Some(Bench { store, url, options, behind, time: Time::Waited, folder: None })
}

impl Bench {
    /// Another node on the same database.
    pub async fn another(&self) -> Shared {
        store::open(&self.url, &self.options).await.expect("open the store again")
    }

    /// A database in which nothing is yet: its URL, and what to open it with.
    pub async fn empty_database(&self) -> (String, Options) {
        let url = match &self.behind {
            Behind::Sqlite(_) => format!("sqlite:{}", run::fresh_dir("sqlite").join("empty.db").display()),
            Behind::Postgres(_, server) => server.fresh_database().await,
        };
        (url, self.options.clone())
    }

    /// Now, by the database's clock (which other engines share with this machine).
    pub fn now(&self) -> Timestamp {
        self.options.clock.now()
    }

    /// Lets time go by.
    pub async fn pass(&self, by: Duration) {
        match self.time {
            Time::Moved => self.options.clock.advance(by),
            Time::Waited => tokio::time::sleep(by).await,
        }
    }

    /// A row of the intake, as a user's own transaction writes it.
    pub async fn publish_by_sql(&self) {
        match &self.behind {
            Behind::Sqlite(pool) => {
                let sql = "INSERT INTO oncegate_intake (type, data) VALUES ('order.created', '1')";
                sqlx::query(sql).execute(pool).await.map(|_| ())
            }
            Behind::Postgres(pool, _) => {
                let sql = "SELECT oncegate.publish('order.created', '1')";
                sqlx::query(sql).execute(pool).await.map(|_| ())
            }
        }
        .expect("publish");
    }

    /// How many rows a table has.
    pub async fn count(&self, table: &str) -> u64 {
        let sql = format!("SELECT count(*) FROM {}", self.table(table));
        let count: i64 = match &self.behind {
            Behind::Sqlite(pool) => sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await.unwrap(),
            Behind::Postgres(pool, _) => {
                sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await.unwrap()
            }
        };
        u64::try_from(count).unwrap()
    }

    /// The dead letters, oldest first.
    pub async fn dead_letters(&self) -> Vec<DeadRow> {
        let sql = format!("SELECT * FROM {} ORDER BY id", self.table("dead_letters"));
        match &self.behind {
            Behind::Sqlite(pool) => {
                let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(pool).await.unwrap();
                let read = |row: sqlx::sqlite::SqliteRow| DeadRow {
                    id: row.get("id"),
                    row_id: row.get("row_id"),
                    target: row.get("target"),
                    attempts: row.get("attempts"),
                    tenant: row.get("tenant"),
                    message_id: row.get("message_id"),
                    kind: row.get("type"),
                    deduplication_id: row.get("deduplication_id"),
                    partition_key: row.get("partition_key"),
                    correlation_id: row.get("correlation_id"),
                    has_claim_key: row.get::<Option<Uuid>, _>("claim_key").is_some(),
                    has_times: row.get::<Option<i64>, _>("deliver_at").is_some()
                        && row.get::<Option<i64>, _>("deliver_by").is_some(),
                    error_kind: row.get("error_kind"),
                    error_text: row.get("error_text"),
                    envelope: row.get("envelope"),
                    body: row.get("body"),
                };
                rows.into_iter().map(read).collect()
            }
            Behind::Postgres(pool, _) => {
                let sql = sql.replacen('*', "*, envelope::text AS envelope_text", 1);
                let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(pool).await.unwrap();
                let read = |row: sqlx::postgres::PgRow| DeadRow {
                    id: row.get("id"),
                    row_id: row.get("row_id"),
                    target: row.get("target"),
                    attempts: row.get::<i32, _>("attempts").into(),
                    tenant: row.get("tenant"),
                    message_id: row.get("message_id"),
                    kind: row.get("type"),
                    deduplication_id: row.get("deduplication_id"),
                    partition_key: row.get("partition_key"),
                    correlation_id: row.get("correlation_id"),
                    has_claim_key: row.get::<Option<Uuid>, _>("claim_key").is_some(),
                    has_times: row.get::<Option<Timestamp>, _>("deliver_at").is_some()
                        && row.get::<Option<Timestamp>, _>("deliver_by").is_some(),
                    error_kind: row.get("error_kind"),
                    error_text: row.get("error_text"),
                    envelope: row.get("envelope_text"),
                    body: row.get("body"),
                };
                rows.into_iter().map(read).collect()
            }
        }
    }

    fn table(&self, name: &str) -> String {
        match &self.behind {
            Behind::Sqlite(_) => format!("oncegate_{name}"),
            Behind::Postgres(..) => format!("oncegate.{name}"),
        }
    }

    pub async fn end(self) {
        self.store.close().await;
        match self.behind {
            Behind::Sqlite(pool) => pool.close().await,
            Behind::Postgres(pool, _) => pool.close().await,
        }
        if let Some(folder) = self.folder {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}
