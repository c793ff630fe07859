//! The schema, and the plans of what runs on it.

use oncegate::store::status::Readiness;
use oncegate::store::{self, ErrorKind, registry};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row, SqlSafeStr};

use super::build::*;
use crate::support::postgres;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_nodes_migrate_an_empty_database_at_once() {
    let Some(server) = postgres::shared().await else { return };
    let url = server.fresh_database().await;
    let mut tasks = Vec::new();
    for _ in 0..12 {
        let url = url.clone();
        tasks.push(tokio::spawn(async move {
            let store = open(&url).await;
            let applied = store.migrate().await.expect("migrate");
            assert_eq!(store.readiness().await.unwrap(), Readiness::Ready);
            store.close().await;
            applied.len()
        }));
    }
    let mut applied = Vec::new();
    for task in tasks {
        applied.push(task.await.unwrap());
    }
    applied.sort_unstable();
    let steps = store::migration_sql(&url).unwrap().len() - 1; // the first makes the place to remember them
    assert_eq!((applied[10], applied[11]), (0, steps), "one node applied all, the others nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_printed_is_the_whole_schema() {
    let Some(server) = postgres::shared().await else { return };
    let url = server.fresh_database().await;
    let store = open(&url).await;
    assert_eq!(store.readiness().await.unwrap(), Readiness::NotMigrated);
    assert_eq!(accept(&store, request(vec![message()])).await.unwrap_err().kind, ErrorKind::NotMigrated);
    assert_eq!(accept(&store, request(vec![work("a")])).await.unwrap_err().kind, ErrorKind::NotMigrated);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    for (name, sql) in store::migration_sql(&url).unwrap() {
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(sql));
        sql.execute(&mut connection).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    assert_eq!(store.readiness().await.unwrap(), Readiness::Ready);
    assert!(store.migrate().await.unwrap().is_empty());
    assert!(is_stored(&accept(&store, request(vec![message()])).await));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_fits_the_schema() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, url) = fresh(&server).await;
    let statements = registry::statements(&url);
    assert!(statements.len() > 30);
    for (name, sql) in statements {
        let prepared = (&mut connection).prepare((*sql).into_sql_str()).await;
        prepared.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    store.close().await;
}

/// wolverine#3971, #3116, #4316: sweeps scanned and locked the whole inbox.
#[tokio::test(flavor = "multi_thread")]
async fn no_sweep_scans_a_filled_table() {
    /// Statement, its parameters as literals, and the index that it has to use.
    const SWEEPS: &[(&str, &str, &str)] = &[
        ("deliveries::TAKE", "0, 'target-7', NULL, 64, 1, '15s'", "deliveries_due"),
        ("deliveries::TAKE", "0, 'target-7', now() - interval '1 minute', 64, 1, '15s'", "deliveries_due"),
        ("deliveries::DUE_IN", "'{0,0}', '{target-1,target-2}', '{NULL,NULL}'", "deliveries_due"),
        ("deliveries::EXPIRE", "100", "deliveries_deliver_by"),
        ("look::LOOK", "'{0,0}', '{target-1,target-2}', '{NULL,NULL}', NULL, NULL", "deliveries_deliver_by"),
        ("look::LOOK", "'{0,0}', '{target-1,target-2}', '{NULL,NULL}', '1 day', '30 days'", "deliveries_due"),
        ("look::LOOK", "'{}', '{}', '{}', '1 day', '30 days'", "deduplication_expires_at"),
        ("look::LOOK", "'{}', '{}', '{}', '1 day', '30 days'", "dead_letters_failed_at"),
        (
            "lanes::HEADS",
            "0, 'target-7', '00000000-0000-0000-0000-000000000000', 64, 2000, true",
            "deliveries_in_order",
        ),
        (
            "lanes::HEADS",
            "0, 'target-7', '00000000-0000-0000-0000-000000000000', 64, 2000, false",
            "deliveries_to_come",
        ),
        (
            "lanes::LEASE",
            "0, 'target-7', ARRAY(SELECT row_id FROM picked), true, 1, '15s'",
            "deliveries_in_order",
        ),
        ("lanes::JOIN", "0, 'target-7', 1000, 1048576", "deliveries_to_come"),
        ("lanes::STRAYS", "0, 'target-7', 1000", "deliveries_due"),
        (
            "lanes::ADOPT",
            "ARRAY(SELECT row_id FROM picked), '{0,0,0}', ARRAY(SELECT row_id FROM picked), '{1,2,3}'",
            "deliveries_pkey",
        ),
        ("lanes::AHEAD", "ARRAY(SELECT row_id FROM picked), '{0,0,0}'", "deliveries_in_order"),
        (
            "deliveries::GIVE_BACK",
            "ARRAY(SELECT row_id FROM picked), '{0,0,0}', '{1,2,3}'",
            "deliveries_pkey",
        ),
        (
            "inbox::RENEW_ROWS",
            "ARRAY(SELECT row_id FROM picked), '{0,0,0}', '{1,2,3}', '15s'",
            "deliveries_pkey",
        ),
        (
            "settle::DONE",
            "ARRAY(SELECT row_id FROM picked), '{0,0,0}', '{1,2,3}', '{t,t,f}'",
            "deliveries_pkey",
        ),
        (
            "settle::DONE_WITHOUT_RECEIPT",
            "ARRAY(SELECT row_id FROM picked), '{0,0,0}', '{1,2,3}'",
            "deliveries_pkey",
        ),
        (
            "settle::RETRY",
            "ARRAY(SELECT row_id FROM picked), '{0,0,0}', '{1,2,3}', '{1s,1s,1s}', '{1,1,1}', '{a,b,c}', '{a,b,c}'",
            "deliveries_pkey",
        ),
        ("inbox::LEASED_FOR", "(SELECT row_id FROM picked LIMIT 1)", "deliveries_pkey"),
        ("settle::WITHDRAW", "ARRAY(SELECT row_id FROM picked), '{0,0,0}', '{1,2,3}'", "deliveries_pkey"),
        (
            "settle::DEAD",
            "ARRAY(SELECT row_id FROM picked), '{0,0,0}', '{1,2,3}', ARRAY(SELECT row_id FROM picked), '{1,1,1}', '{a,b,c}', '{a,b,c}'",
            "deliveries_pkey",
        ),
        ("accept::EVIDENCE", "ARRAY(SELECT row_id FROM picked), '{}', '{}'", "deliveries_pkey"),
        ("accept::LOSERS", "ARRAY(SELECT key FROM oncegate.deduplication LIMIT 3)", "deliveries_pkey"),
        ("purge::CLAIMS", "1000", "deduplication_expires_at"),
        ("purge::DEAD_LETTERS", "1000, '30 days'", "dead_letters_failed_at"),
        (
            "dead_letters::LIST",
            "'', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 101, 1000",
            "dead_letters_",
        ),
        (
            "dead_letters::LIST",
            "'', NULL, NULL, NULL, NULL, NULL, NULL, NULL, now() - interval '9 days', gen_random_uuid(), 101, 1000",
            "dead_letters_",
        ),
        (
            "dead_letters::REPLAY",
            "'', NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{0}', '{a}', false, 1000, '1024'::smallint",
            "dead_letters_accepted",
        ),
        (
            "dead_letters::REPLAY",
            "'', NULL, NULL, NULL, NULL, NULL, NULL, ARRAY(SELECT row_id FROM picked), '{0}', '{a}', false, 1000, '1024'::smallint",
            "dead_letters_pkey",
        ),
        (
            "dead_letters::DISCARD",
            "'', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1000, true",
            "dead_letters_",
        ),
        ("dead_letters::SUMMARY", "''", "dead_letters_summary"),
        ("status::PAGE_OF_DEAD", "'', NULL, NULL, NULL, NULL, 100", "dead_letters_row_id"),
        ("status::MESSAGE", "'', 'order-17', NULL", "deliveries_message_id"),
        ("status::MESSAGE", "'', 'x', (SELECT row_id FROM picked LIMIT 1)", "deliveries_pkey"),
        ("status::CANCEL", "'', 'order-17', NULL", "deliveries_message_id"),
        ("status::PAGE", "'', NULL, NULL, NULL, NULL, NULL, 100", "deliveries_pkey"),
        ("status::PAGE", "'', NULL, NULL, NULL, 'c-17', NULL, 100", "deliveries_correlation_id"),
        ("status::PAGE", "'', NULL, NULL, 'd-17', NULL, NULL, 100", "deliveries_deduplication_id"),
    ];
    const FILL: &str = "
        INSERT INTO oncegate.deliveries (row_id, target_no, kind, target, state, due_at, token, tenant, message_id,
            type, deduplication_id, correlation_id, deliver_by, accepted_at, order_key, turn, envelope, body)
        SELECT gen_random_uuid(), 0, 0, 'target-' || n % 20, CASE WHEN n % 20 = 7 AND n % 7 = 0 THEN 0 ELSE 1 END, now() - n * interval '1 second', 0, '',
            CASE WHEN n % 100 = 17 THEN 'order-' || n END, 'order.created',
            CASE WHEN n % 100 = 17 THEN 'd-' || n END, CASE WHEN n % 100 = 17 THEN 'c-' || n END,
            CASE WHEN n % 500 = 0 THEN now() - interval '1 hour' END, now(),
            CASE WHEN n % 20 = 7 THEN md5((n % 500)::text)::uuid END, CASE WHEN n % 20 = 7 THEN n END, '{}',
            repeat('x', 200)::bytea
        FROM generate_series(1, 60000) n;
        INSERT INTO oncegate.deduplication (key, kind, scope, id, tenant, token, confirmed, row_id, first_seen_at, expires_at)
        SELECT gen_random_uuid(), n % 3, 's', 'i', '', 1, true, gen_random_uuid(), now(), now() + (n - 500) * interval '1 second'
        FROM generate_series(1, 30000) n;
        INSERT INTO oncegate.dead_letters (id, row_id, target_no, kind, target, attempts, tenant, type, accepted_at,
            error_kind, error_text, failed_at, order_key, turn, envelope, body)
        SELECT gen_random_uuid(), gen_random_uuid(), 0, 0, CASE WHEN n % 9 = 0 THEN 'target-7' ELSE 'a' END, 1, CASE WHEN n % 4 = 0 THEN '' ELSE 'acme' END, 't',
            now() - n * interval '2 minutes', 'Refused', '', now() - n * interval '1 minute',
            CASE WHEN n % 9 = 0 THEN md5((n % 500)::text)::uuid END, CASE WHEN n % 9 = 0 THEN n END, '{}',
            repeat('x', 200)::bytea
        FROM generate_series(1, 50000) n;
        CREATE TEMPORARY TABLE picked AS SELECT row_id FROM oncegate.deliveries LIMIT 3;
        ANALYZE";
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, url) = fresh(&server).await;
    sqlx::raw_sql(FILL).execute(&mut connection).await.unwrap();
    // So that an index alone can answer.
    sqlx::raw_sql("VACUUM oncegate.dead_letters").execute(&mut connection).await.unwrap();
    sqlx::raw_sql("SET plan_cache_mode = force_custom_plan").execute(&mut connection).await.unwrap();
    let statements = registry::statements(&url);
    for (name, parameters, index) in SWEEPS {
        let sql = statements.iter().find(|(other, _)| other == name).expect(name).1;
        // Parameters of EXECUTE may not hold subqueries; a constant is what they come to.
        let parameters = literal(&mut connection, parameters).await;
        let sql = format!("PREPARE sweep AS {sql}");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
        let explain = format!("EXPLAIN EXECUTE sweep({parameters})");
        let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut connection).await;
        let rows = rows.unwrap_or_else(|error| panic!("{name}: {error}"));
        let plan: Vec<String> = rows.iter().map(|row| row.get::<String, _>(0)).collect();
        let plan = plan.join("\n");
        for table in ["deliveries", "deduplication", "dead_letters"] {
            assert!(!plan.contains(&format!("Seq Scan on {table}")), "{name} scans {table}:\n{plan}");
        }
        assert!(plan.contains(index), "{name} does not use {index}:\n{plan}");
        sqlx::raw_sql("DEALLOCATE sweep").execute(&mut connection).await.unwrap();
    }
    store.close().await;
}

async fn literal(connection: &mut PgConnection, parameters: &str) -> String {
    let mut text = parameters.to_owned();
    for subquery in [
        "ARRAY(SELECT row_id FROM picked)",
        "ARRAY(SELECT key FROM oncegate.deduplication LIMIT 3)",
        "(SELECT row_id FROM picked LIMIT 1)",
    ] {
        if text.contains(subquery) {
            let sql = format!("SELECT quote_literal(({subquery})::text)");
            let value: String =
                sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut *connection).await.unwrap();
            text = text.replace(subquery, &value);
        }
    }
    text
}
