//! What publishing in the user's own transaction costs that transaction, beside a plain INSERT of the same bytes,
//! and how long it takes from the commit to the delivery. `scripts/bench-outbox` runs it; the figures are in
//! `docs/outbox.md`.
//!
//! Everything shares this machine's processors: the database, the gateway and those who publish. What is compared
//! is taken in turns in the same run, so the ratios say more than the figures.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a program that measures this machine, by its clock, and says what it found"
)]

#[path = "../../tests/all/support/mod.rs"]
#[allow(unused_macros, unused_imports, reason = "the tests use the rest")]
mod support;

mod cost;
mod latency;
mod notify;

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use support::postgres::{self, Postgres};

/// A database as one would run it: nothing of its durability is switched off.
const POSTGRES: &[(&str, &str)] = &[
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    ("shared_buffers", "512MB"),
    ("max_wal_size", "4GB"),
    ("checkpoint_timeout", "15min"),
];

/// The users' own table, and the plain table that a message could go to instead.
const TABLES: &str = "
    CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text);
    CREATE TABLE plain (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id uuid NOT NULL, type text NOT NULL,
        deduplication_id text, data bytea NOT NULL, written_at timestamptz NOT NULL DEFAULT now())";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let server = postgres::private(POSTGRES).await.expect("PostgreSQL is installed");
        cost::measure(&server).await;
        latency::measure(&server).await;
        notify::measure(&server).await;
    });
}

/// A database with the schema and [`TABLES`].
async fn database(server: &Postgres) -> String {
    let url = server.fresh_database().await;
    let config = format!("[stores.main]\nurl = \"{url}\"\n");
    let migrated = support::gateway::command(&["storage", "migrate"], Some(&config));
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    run(&mut connect(&url).await, TABLES).await;
    url
}

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.expect("connect to PostgreSQL")
}

async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.expect("run a statement");
}

/// JSON of 512 bytes.
fn data() -> serde_json::Value {
    serde_json::json!({ "orderId": 4711, "note": "x".repeat(480) })
}

/// In the middle, and at 99 of 100.
fn percentiles(mut all: Vec<Duration>) -> (Duration, Duration) {
    all.sort_unstable();
    (all[all.len() / 2], all[all.len() * 99 / 100])
}

fn ms(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1e3)
}
