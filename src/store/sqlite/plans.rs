//! Every statement is prepared against the migrated schema, and none may scan a table that grows.

use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection, Row};

use super::{claims, dead_letters, deliveries, inbox, intake, lanes, look, migrate, purge, settle, status};

/// What a statement brings along, and what never grows: these may be read from end to end.
const SMALL: [&str; 11] = [
    "CONSTANT ROW",
    "VALUES CLAUSE",
    "(subquery-",
    "asked",
    "head", // a step at a time through an index
    "picked",
    "json_each",
    "ids",
    "oncegate_targets",
    "oncegate_migrations",
    "sqlite_schema",
];

/// Counting every row is what the backlog is for; over an index, without touching the rows.
const BACKLOG: &str = "SCAN row USING COVERING INDEX oncegate_deliveries_due";

/// 20,000 deliveries in five targets, every twentieth with what few rows have; as many claims, receipts and
/// dead letters.
const FILL: &str = "
    WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 20000)
    INSERT INTO oncegate_deliveries
    SELECT randomblob(16), 0, 0, 'target-' || (n % 5), CASE WHEN n % 20 = 0 THEN 0 ELSE 1 END, n * 1000, 0, 0, 0,
           NULL, CASE WHEN n % 20 = 1 THEN n * 1000 END, NULL, '', CASE WHEN n % 20 = 2 THEN 'm' || n END, 'type',
           CASE WHEN n % 20 = 3 THEN 'd' || n END, NULL, CASE WHEN n % 20 = 4 THEN 'c' || n END, n * 1000,
           NULL, CASE WHEN n % 20 = 5 THEN 'failed' END, '{}', randomblob(100), 0,
           CASE WHEN n % 20 > 9 THEN randomblob(16) END, CASE WHEN n % 20 > 9 THEN n END
    FROM n;
    INSERT INTO oncegate_deduplication
    SELECT row_id, 1, 'scope', hex(row_id), 1, 1, '', row_id, NULL, due_at, due_at + 1000, NULL, NULL
    FROM oncegate_deliveries;
    INSERT INTO oncegate_receipts
    SELECT row_id, 0, 0, target, '', message_id, type, NULL, 1, due_at, due_at, NULL, NULL FROM oncegate_deliveries;
    INSERT INTO oncegate_dead_letters
    SELECT randomblob(16), row_id, 0, 0, target, 1, NULL, NULL, NULL, '', message_id, type, NULL, NULL, NULL,
           due_at, due_at, 'Refused', '', envelope, body, order_key, turn
    FROM oncegate_deliveries;";

async fn filled() -> SqliteConnection {
    let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    for (_, sql) in migrate::migration_sql() {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    }
    sqlx::raw_sql(FILL).execute(&mut connection).await.unwrap();
    connection
}

fn statements() -> Vec<String> {
    [
        claims::statements(),
        dead_letters::statements(),
        deliveries::statements(),
        inbox::statements(),
        intake::statements(),
        lanes::statements(),
        look::statements(),
        migrate::statements(),
        purge::statements(),
        settle::statements(),
        status::statements(),
    ]
    .concat()
}

/// wolverine#3971: sweeps scanned the whole inbox.
#[tokio::test]
async fn no_statement_scans_a_table_that_grows() {
    let mut connection = filled().await;
    // With what SQLite knows of an unanalysed file, and with what it knows after an operator's ANALYZE.
    for analysed in ["SELECT 1", "ANALYZE"] {
        sqlx::raw_sql(analysed).execute(&mut connection).await.unwrap();
        for sql in statements() {
            let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
            let plan = sqlx::query(explain).fetch_all(&mut connection).await.unwrap_or_else(|error| {
                panic!("{error}: {sql:.300}");
            });
            for step in plan {
                let step: String = step.get("detail");
                let scans = step.starts_with("SCAN") && step != BACKLOG;
                let small = SMALL.iter().any(|small| step.contains(small));
                assert!(!scans || small, "{analysed}: {step}: {sql:.300}");
                assert!(!step.contains("AUTOMATIC"), "{analysed}: {step}: {sql:.300}");
            }
        }
    }
}

/// The sweeps read in the order of their index and stop at their limit, so nothing is sorted.
#[tokio::test]
async fn no_sweep_sorts() {
    let mut connection = filled().await;
    let sweeps =
        [dead_letters::sweeps(), deliveries::statements(), purge::statements(), settle::statements()]
            .concat();
    for sql in sweeps.iter().filter(|sql| sql.contains("LIMIT")) {
        let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
        for step in sqlx::query(explain).fetch_all(&mut connection).await.unwrap() {
            let step: String = step.get("detail");
            assert!(!step.contains("TEMP B-TREE"), "{step}: {sql:.300}");
        }
    }
}
