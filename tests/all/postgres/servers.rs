//! Servers that are not as they should be, what stands before them, and housekeeping.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate::domain::{Clock, Random};
use oncegate::store::accept::{MessageOutcome, Outcome};
use oncegate::store::deliveries::Take;
use oncegate::store::status::{Readiness, Retention};
use oncegate::store::{self, ErrorKind, Options, Pooler};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use super::build::*;
use crate::support::pgbouncer::Pgbouncer;
use crate::support::postgres;
use crate::support::proxy::Mode;

#[tokio::test(flavor = "multi_thread")]
async fn a_store_opens_while_its_server_is_down() {
    let store = open("postgres://postgres@127.0.0.1:1/none").await;
    let started = Instant::now();
    assert_eq!(accept(&store, request(vec![message()])).await.unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(store.readiness().await.unwrap_err().kind, ErrorKind::Unavailable);
    assert!(started.elapsed() < Duration::from_secs(2));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_server_only_reads_is_discarded() {
    let Some(server) = postgres::private(&[]).await else { return };
    let (store, mut connection, url) = fresh(&server).await;
    assert!(is_stored(&accept(&store, request(vec![message()])).await));
    set_read_only(&mut connection, "on").await;
    let error = accept(&store, request(vec![message()])).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oncegate' AND datname = current_database()";
    tokio::time::sleep(Duration::from_millis(200)).await;
    let left: i64 = sqlx::query_scalar(ours).fetch_one(&mut connection).await.unwrap();
    assert_eq!(left, 0, "connections to what is no longer the primary");
    set_read_only(&mut connection, "off").await;
    assert!(is_stored(&accept(&store, request(vec![message()])).await), "{url}");
    store.close().await;
}

async fn set_read_only(connection: &mut PgConnection, value: &str) {
    for sql in [
        format!("ALTER SYSTEM SET default_transaction_read_only = {value}"),
        "SELECT pg_reload_conf()".into(),
    ] {
        connection.execute(AssertSqlSafe(sql)).await.unwrap();
    }
    loop {
        let now: String = sqlx::query_scalar("SELECT current_setting('default_transaction_read_only')")
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        if now == value {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await; // the other sessions read it when they are next spoken to
}

/// wolverine#2639, #2648: a duplicate was recognised by English error text; another locale froze the partition.
#[tokio::test(flavor = "multi_thread")]
async fn errors_are_understood_in_any_language() {
    let Some(server) = postgres::private(&[("lc_messages", "de_DE.UTF-8")]).await else { return };
    let url = server.fresh_database().await;
    let store = open(&url).await;
    assert_eq!(store.readiness().await.unwrap(), Readiness::NotMigrated);
    store.migrate().await.unwrap();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let error = sqlx::query("SELECT 1 FROM nothing").execute(&mut connection).await.unwrap_err();
    assert!(error.to_string().contains("existiert nicht"), "the server speaks German: {error}");

    assert!(is_stored(&accept(&store, keyed("k", vec![work("a")])).await));
    assert!(matches!(accept(&store, keyed("k", vec![work("a")])).await, Ok(Outcome::Replay(_))));
    let Ok(Outcome::Stored(outcomes)) = accept(&store, request(vec![work("a")])).await else { panic!() };
    assert!(matches!(outcomes[0], MessageOutcome::Duplicate(_)));
    let long: String = (0..400).map(|_| Random.uuid_v7(Clock::system().now()).to_string()).collect();
    let group = [request(vec![message_with(|message| message.id = long)]), request(vec![message()])];
    let outcomes = store.accept(&group).await;
    assert_eq!(outcomes[0].as_ref().unwrap_err().kind, ErrorKind::InvalidData);
    assert!(is_stored(&outcomes[1]));
    store.close().await;
}

/// No named statements, no settings of the session: every transaction may meet another server process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_pooler_may_stand_in_front() {
    let Some(server) = postgres::shared().await else { return };
    let (direct, mut connection, url) = fresh(&server).await;
    direct.close().await;
    let Some(pooler) = Pgbouncer::start(&server, &url).await else { return };
    let options = Options { pooler: Pooler::Transaction, ..Options::default() };
    let store = store::open(&pooler.url, &options).await.unwrap();
    assert!(store.migrate().await.unwrap().is_empty());
    assert_eq!(store.readiness().await.unwrap(), Readiness::Ready);
    let mut tasks = Vec::new();
    for n in 0..20 {
        let store = Arc::clone(&store);
        tasks.push(tokio::spawn(async move {
            for m in 0..5 {
                let key = format!("{n}-{m}");
                let group = [
                    keyed(&key, vec![work(&key), message()]),
                    request(vec![message()]),
                    request(vec![work("same")]),
                ];
                for outcome in store.accept(&group).await {
                    assert!(is_stored(&outcome), "{outcome:?}");
                }
                store.due_in(&[orders()]).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(count(&mut connection, "deliveries").await, 301);
    let take = Take { target: orders(), limit: 1_000, lease: HOUR, token: Random.token() };
    assert_eq!(store.take(&take).await.unwrap().len(), 301);
    let keep = Retention { receipts: HOUR, dead_letters: HOUR };
    store.purge(100, &keep).await.unwrap();

    // The limits hold here too.
    let mut frozen = connection.begin().await.unwrap();
    sqlx::raw_sql("UPDATE oncegate.deduplication SET expires_at = expires_at")
        .execute(&mut *frozen)
        .await
        .unwrap();
    let group = [request(vec![work("same")]), request(vec![work("free")])];
    let outcomes = store.accept(&group).await;
    assert!(is_stored(&outcomes[0]), "looked up without a lock: {outcomes:?}");
    assert!(is_stored(&outcomes[1]));
    store.close().await;
}

/// The server is there and says nothing: callers get an answer, and all is well when it wakes up.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_holds_nobody_for_ever() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, proxy) = through_proxy(&server).await;
    assert!(is_stored(&accept(&store, request(vec![message()])).await));
    proxy.set(Mode::Hold);
    let started = Instant::now();
    let error = accept(&store, request(vec![message()])).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutcomeUnknown);
    assert!(started.elapsed() < Duration::from_secs(25), "{:?}", started.elapsed());
    let error = accept(&store, request(vec![message()])).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "nothing was sent");
    proxy.set(Mode::Pass);
    assert!(is_stored(&accept(&store, request(vec![message()])).await));
    assert!((2..=3).contains(&count(&mut connection, "deliveries").await));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_connections_are_made_than_allowed() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, url) = fresh(&server).await;
    store.close().await;
    let options = Options { max_connections: 3, ..Options::default() };
    let store = store::open(&url, &options).await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..60 {
        let store = Arc::clone(&store);
        tasks.push(tokio::spawn(async move { accept(&store, request(vec![message()])).await }));
    }
    for task in tasks {
        assert!(is_stored(&task.await.unwrap()));
    }
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oncegate' AND datname = current_database()";
    let open: i64 = sqlx::query_scalar(ours).fetch_one(&mut connection).await.unwrap();
    assert!((1..=3).contains(&open), "{open}");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_go_a_day_at_a_time_and_the_default_partition_is_no_trap() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, _) = fresh(&server).await;
    sqlx::raw_sql(
        "DROP TABLE oncegate.receipts_default;
         CREATE TABLE oncegate.receipts_20200101 PARTITION OF oncegate.receipts
            FOR VALUES FROM ('2020-01-01 00:00:00+00') TO ('2020-01-02 00:00:00+00');
         CREATE TABLE oncegate.receipts_default PARTITION OF oncegate.receipts DEFAULT;
         DO $$ BEGIN EXECUTE format('DROP TABLE oncegate.receipts_%s', to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')); END $$;
         INSERT INTO oncegate.receipts (row_id, target_no, kind, target, attempts, tenant, type, accepted_at, sent_at)
         SELECT gen_random_uuid(), 0, 0, 'a', 1, '', 't', at, at
         FROM unnest(ARRAY['2020-01-01 12:00+00', '2020-03-03 12:00+00', now()]::timestamptz[]) at;
         ANALYZE oncegate.receipts_20200101",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let keep = Retention { receipts: 24 * HOUR, dead_letters: 24 * HOUR };
    // Of the three, one lies in a day that is over, one is over in the default partition, one is of today
    // and keeps today's partition from being made.
    let purged = store.purge(100, &keep).await.unwrap();
    assert_eq!(purged.receipts, 2);
    assert_eq!(count(&mut connection, "receipts").await, 1);
    let partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'oncegate.receipts'::regclass";
    let number: i64 = sqlx::query_scalar(partitions).fetch_one(&mut connection).await.unwrap();
    assert_eq!(number, 3, "the default one and the next two days");
    assert_eq!(store.purge(100, &keep).await.unwrap().receipts, 0);
    store.close().await;
}
