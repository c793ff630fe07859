//! What PostgreSQL alone can get wrong. What every store promises is in `store_conformance`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use oncegate::domain::claim::{ClaimKey, ClaimKind};
use oncegate::domain::delivery::Target;
use oncegate::domain::message::Envelope;
use oncegate::domain::{self, Clock, Random};
use oncegate::store::accept::{
    Answer, Message, MessageOutcome, NewDelivery, NoAnswer, Outcome, Request, RequestClaim, WorkClaim,
};
use oncegate::store::deliveries::Take;
use oncegate::store::status::{Readiness, Retention};
use oncegate::store::{self, ErrorKind, Options, Pooler, Shared, registry};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row, SqlSafeStr};

use crate::support::postgres::{self, Postgres};
use crate::support::proxy::{Mode, Proxy};

const HOUR: Duration = Duration::from_secs(3_600);

// --- what is asked of a store, in few words ---

async fn open(url: &str) -> Shared {
    store::open(url, &Options::default()).await.expect("a URL of PostgreSQL")
}

async fn migrated(url: &str) -> Shared {
    let store = open(url).await;
    store.migrate().await.expect("migrate");
    store
}

/// A store on a database of its own, and a connection beside it.
async fn fresh(server: &Postgres) -> (Shared, PgConnection, String) {
    let url = server.fresh_database().await;
    (migrated(&url).await, PgConnection::connect(&url).await.expect("connect"), url)
}

fn message() -> Message {
    message_with(|_| {})
}

fn message_with(change: impl FnOnce(&mut domain::Message)) -> Message {
    let now = Clock::system().now();
    let row_id = Random.uuid_v7(now);
    let mut message = domain::Message {
        id: row_id.to_string(),
        kind: "order.created".into(),
        tenant: String::new(),
        body: Bytes::from_static(b"{}"),
        deduplication_id: None,
        partition_key: None,
        correlation_id: None,
        deliver_at: None,
        deliver_by: None,
        accepted_at: now,
        envelope: Envelope::default(),
    };
    change(&mut message);
    let targets = vec![NewDelivery { target: orders(), hold: None }];
    Message { row_id, message: Arc::new(message), claim: None, same_as: None, targets }
}

fn work(id: &str) -> Message {
    Message {
        claim: Some(WorkClaim { key: work_key(id), scope: "t".into(), id: id.into(), window: HOUR }),
        ..message()
    }
}

fn work_key(id: &str) -> ClaimKey {
    ClaimKey::new(ClaimKind::Work, &["t"], id)
}

fn request(messages: Vec<Message>) -> Request {
    Request { claim: None, messages, answer: Arc::new(NoAnswer), token: Random.token() }
}

fn keyed(key: &str, messages: Vec<Message>) -> Request {
    let claim = RequestClaim {
        key: ClaimKey::new(ClaimKind::Request, &["t"], key),
        scope: "t".into(),
        id: key.into(),
        fingerprint: [7; 32],
        window: HOUR,
    };
    Request { claim: Some(claim), answer: Arc::new(Words), ..request(messages) }
}

/// Tells of each message whether it was accepted.
#[derive(Debug)]
struct Words;

impl Answer for Words {
    fn render(&self, outcomes: &[MessageOutcome]) -> Option<Bytes> {
        let word = |outcome: &MessageOutcome| match outcome {
            MessageOutcome::Accepted { .. } => "accepted",
            MessageOutcome::Duplicate(_) => "duplicate",
        };
        Some(outcomes.iter().map(word).collect::<Vec<_>>().join(" ").into())
    }
}

fn orders() -> Target {
    Target::destination("orders")
}

async fn accept(store: &Shared, request: Request) -> store::Result<Outcome> {
    store.accept(&[request]).await.pop().expect("an outcome")
}

async fn count(connection: &mut PgConnection, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM oncegate.{table}");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await.expect("count")
}

fn is_stored(outcome: &store::Result<Outcome>) -> bool {
    matches!(outcome, Ok(Outcome::Stored(_)))
}

// --- schema ---

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
        (
            "deliveries::GIVE_BACK",
            "ARRAY(SELECT row_id FROM picked), '{0,0,0}', '{1,2,3}'",
            "deliveries_pkey",
        ),
        ("settle::DONE", "ARRAY(SELECT row_id FROM picked), '{0,0,0}', '{t,t,f}'", "deliveries_pkey"),
        ("settle::DONE_WITHOUT_RECEIPT", "ARRAY(SELECT row_id FROM picked), '{0,0,0}'", "deliveries_pkey"),
        (
            "settle::RETRY",
            "ARRAY(SELECT row_id FROM picked), '{0,0,0}', '{1,2,3}', '{1s,1s,1s}', '{1,1,1}', '{a,b,c}', '{a,b,c}'",
            "deliveries_pkey",
        ),
        (
            "settle::DEAD",
            "ARRAY(SELECT row_id FROM picked), '{0,0,0}', '{1,2,3}', ARRAY(SELECT row_id FROM picked), '{1,1,1}', '{a,b,c}', '{a,b,c}'",
            "deliveries_pkey",
        ),
        ("accept::EVIDENCE", "ARRAY(SELECT row_id FROM picked), '{}', '{}'", "deliveries_pkey"),
        ("accept::LOSERS", "ARRAY(SELECT key FROM oncegate.deduplication LIMIT 3)", "deliveries_pkey"),
        ("purge::CLAIMS", "1000", "deduplication_expires_at"),
        ("purge::DEAD_LETTERS", "1000, '30 days'", "dead_letters_failed_at"),
        ("status::MESSAGE", "'', 'order-17', NULL", "deliveries_message_id"),
        ("status::MESSAGE", "'', 'x', (SELECT row_id FROM picked LIMIT 1)", "deliveries_pkey"),
        ("status::CANCEL", "'', 'order-17', NULL", "deliveries_message_id"),
        ("status::PAGE", "'', NULL, NULL, NULL, NULL, NULL, 100", "deliveries_pkey"),
        ("status::PAGE", "'', NULL, NULL, NULL, 'c-17', NULL, 100", "deliveries_correlation_id"),
        ("status::PAGE", "'', NULL, NULL, 'd-17', NULL, NULL, 100", "deliveries_deduplication_id"),
    ];
    const FILL: &str = "
        INSERT INTO oncegate.deliveries (row_id, target_no, kind, target, state, due_at, token, tenant, message_id,
            type, deduplication_id, correlation_id, deliver_by, accepted_at, envelope, body)
        SELECT gen_random_uuid(), 0, 0, 'target-' || n % 20, 1, now() - n * interval '1 second', 0, '',
            CASE WHEN n % 100 = 17 THEN 'order-' || n END, 'order.created',
            CASE WHEN n % 100 = 17 THEN 'd-' || n END, CASE WHEN n % 100 = 17 THEN 'c-' || n END,
            CASE WHEN n % 500 = 0 THEN now() - interval '1 hour' END, now(), '{}', repeat('x', 200)::bytea
        FROM generate_series(1, 60000) n;
        INSERT INTO oncegate.deduplication (key, kind, scope, id, tenant, token, confirmed, row_id, first_seen_at, expires_at)
        SELECT gen_random_uuid(), n % 3, 's', 'i', '', 1, true, gen_random_uuid(), now(), now() + (n - 500) * interval '1 second'
        FROM generate_series(1, 30000) n;
        INSERT INTO oncegate.dead_letters (id, row_id, target_no, kind, target, attempts, tenant, type, accepted_at,
            error_kind, error_text, failed_at, envelope, body)
        SELECT gen_random_uuid(), gen_random_uuid(), 0, 0, 'a', 1, '', 't', now(), 'Refused', '',
            now() - n * interval '1 minute', '{}', ''
        FROM generate_series(1, 50000) n;
        CREATE TEMPORARY TABLE picked AS SELECT row_id FROM oncegate.deliveries LIMIT 3;
        ANALYZE";
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, url) = fresh(&server).await;
    sqlx::raw_sql(FILL).execute(&mut connection).await.unwrap();
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

// --- groups ---

/// What a check of ours lets through and an index does not take.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_database_refuses_fails_alone() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, _) = fresh(&server).await;
    let long: String = (0..400).map(|_| Random.uuid_v7(Clock::system().now()).to_string()).collect();
    let mut group: Vec<Request> =
        (0..60).map(|n| keyed(&n.to_string(), vec![work(&n.to_string())])).collect();
    group.insert(30, request(vec![message_with(|message| message.id = long)]));
    let outcomes = store.accept(&group).await;
    for (at, outcome) in outcomes.iter().enumerate() {
        match at {
            30 => assert_eq!(outcome.as_ref().unwrap_err().kind, ErrorKind::InvalidData),
            _ => assert!(is_stored(outcome), "{at}: {outcome:?}"),
        }
    }
    assert_eq!(count(&mut connection, "deliveries").await, 60);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_a_frozen_transaction_holds_fails_its_request_alone() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, _) = fresh(&server).await;
    let mut frozen = connection.begin().await.unwrap();
    let hold = "INSERT INTO oncegate.deduplication (key, kind, scope, id, tenant, token, confirmed, first_seen_at, expires_at)
                VALUES ($1, 1, '', '', '', 1, true, now(), now() + interval '1 hour')";
    sqlx::query(hold).bind(work_key("held").0).execute(&mut *frozen).await.unwrap();

    let mut group: Vec<Request> = (0..60)
        .map(|n| match n % 3 {
            0 => keyed(&n.to_string(), vec![work(&n.to_string())]),
            1 => request(vec![work(&n.to_string())]),
            _ => request(vec![message()]),
        })
        .collect();
    group.insert(30, keyed("held", vec![work("held")]));
    let started = Instant::now();
    let outcomes = store.accept(&group).await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    for (at, outcome) in outcomes.iter().enumerate() {
        match at {
            30 => assert_eq!(outcome.as_ref().unwrap_err().kind, ErrorKind::Locked),
            _ => assert!(is_stored(outcome), "{at}: {outcome:?}"),
        }
    }
    frozen.rollback().await.unwrap();
    assert_eq!(count(&mut connection, "deliveries").await, 60);
    assert!(is_stored(&accept(&store, group.swap_remove(30)).await));
    store.close().await;
}

/// Overlapping keys in any order, over two nodes: nobody waits for the other for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_groups_do_not_deadlock() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, url) = fresh(&server).await;
    let other = open(&url).await;
    let mut tasks = Vec::new();
    for n in 0..8_usize {
        let store = Arc::clone(if n % 2 == 0 { &store } else { &other });
        tasks.push(tokio::spawn(async move {
            for round in 0..10 {
                let mut keys: Vec<usize> = (0..40).collect();
                keys.rotate_left(n * 5);
                let group: Vec<Request> = keys
                    .iter()
                    .map(|key| keyed(&format!("r{round}-{key}"), vec![work(&format!("w{round}-{key}"))]))
                    .collect();
                for outcome in store.accept(&group).await {
                    assert!(matches!(outcome, Ok(Outcome::Stored(_) | Outcome::Replay(_))), "{outcome:?}");
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(count(&mut connection, "deliveries").await, 400);
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let deadlocks: i64 = sqlx::query_scalar(deadlocks).fetch_one(&mut connection).await.unwrap();
    assert_eq!(deadlocks, 0);
    store.close().await;
    other.close().await;
}

// --- lost replies ---

async fn through_proxy(server: &Postgres) -> (Shared, PgConnection, Proxy) {
    let (store, connection, url) = fresh(server).await;
    store.close().await;
    let proxy = Proxy::start(server.port()).await;
    let url = url.replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()));
    (open(&url).await, connection, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_to_a_commit_is_made_good() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, proxy) = through_proxy(&server).await;
    accept(&store, request(vec![work("taken")])).await.unwrap();
    // Both identities: the group is a transaction.
    proxy.lose_answer_to(b"COMMIT");
    let group = [keyed("k", vec![work("a"), work("taken")]), request(vec![message()])];
    let outcomes = store.accept(&group).await;
    assert!(!proxy.loss_pending());
    let Ok(Outcome::Stored(first)) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(matches!(first[0], MessageOutcome::Accepted { expires_at: Some(_) }));
    assert!(matches!(first[1], MessageOutcome::Duplicate(_)));
    assert!(is_stored(&outcomes[1]));
    assert_eq!(count(&mut connection, "deliveries").await, 3);
    let Ok(Outcome::Replay(claim)) = accept(&store, keyed("k", vec![work("a")])).await else { panic!() };
    assert_eq!(claim.answer.unwrap(), "accepted duplicate");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_was_delivered_before_the_lost_reply_is_made_good_is_not_stored_again() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, proxy) = through_proxy(&server).await;
    // Warm, so that the mark is in the statement's parameters and not in its preparation.
    accept(&store, request(vec![message()])).await.unwrap();
    sqlx::raw_sql(
        "CREATE FUNCTION delivered() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO oncegate.receipts (row_id, target_no, kind, target, attempts, tenant, type, accepted_at, sent_at)
            VALUES (NEW.row_id, NEW.target_no, NEW.kind, NEW.target, 1, '', NEW.type, now(), now());
            RETURN NULL; END $$;
         CREATE TRIGGER delivered BEFORE INSERT ON oncegate.deliveries FOR EACH ROW
            WHEN (NEW.type = 'delivered-at-once') EXECUTE FUNCTION delivered()",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    proxy.lose_answer_to(b"delivered-at-once");
    let quick = message_with(|message| message.kind = "delivered-at-once".into());
    assert!(is_stored(&accept(&store, request(vec![quick])).await));
    assert!(!proxy.loss_pending());
    assert_eq!(count(&mut connection, "receipts").await, 1, "stored once");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_cannot_be_had_again_leaves_the_outcome_unknown() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, proxy) = through_proxy(&server).await;
    accept(&store, request(vec![message()])).await.unwrap();
    proxy.lose_answer_to(b"the-marked-one");
    let marked = message_with(|message| message.kind = "the-marked-one".into());
    let accepting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { accept(&store, request(vec![marked])).await }
    });
    while proxy.loss_pending() {
        tokio::task::yield_now().await;
    }
    proxy.set(Mode::Refuse);
    let error = accepting.await.unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutcomeUnknown);
    // It was stored, as it happens.
    assert_eq!(count(&mut connection, "deliveries").await, 2);
    // Nothing was sent of this one.
    let error = accept(&store, request(vec![message()])).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    proxy.set(Mode::Pass);
    assert!(is_stored(&accept(&store, request(vec![message()])).await));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_died_while_idle_are_not_noticed() {
    let Some(server) = postgres::shared().await else { return };
    let (store, _, proxy) = through_proxy(&server).await;
    accept(&store, request(vec![message()])).await.unwrap();
    proxy.cut();
    assert!(is_stored(&accept(&store, keyed("k", vec![work("a")])).await));
    proxy.cut();
    assert!(is_stored(&accept(&store, request(vec![message()])).await));
    store.close().await;
}

// --- servers that are not as they should be ---

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

// --- connections ---

/// No named statements, no settings of the session: every transaction may meet another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_transaction_pooler_nothing_is_left_in_the_session() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, url) = fresh(&server).await;
    store.close().await;
    let options = Options { pooler: Pooler::Transaction, max_connections: 1, ..Options::default() };
    let store = store::open(&url, &options).await.unwrap();
    assert!(store.migrate().await.unwrap().is_empty());
    let group = [keyed("k", vec![work("a"), message()]), request(vec![message()]), request(vec![work("b")])];
    for outcome in store.accept(&group).await {
        assert!(is_stored(&outcome));
    }
    let take = Take { target: orders(), limit: 10, lease: HOUR, token: Random.token() };
    assert_eq!(store.take(&take).await.unwrap().len(), 4);
    assert_eq!(store.due_in(&[orders()]).await.unwrap().len(), 1);
    // What was said over the one connection.
    let said = "SELECT query, state, current_setting('lock_timeout') FROM pg_stat_activity WHERE application_name = 'oncegate' AND datname = current_database()";
    let rows = sqlx::query(said).fetch_all(&mut connection).await.unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].get::<String, _>("query"), "COMMIT");
    assert_eq!(rows[0].get::<String, _>("state"), "idle");
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

// --- receipts ---

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
