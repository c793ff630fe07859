//! Publishing in one's own transaction, on both stores, through the real binary: `docs/outbox.md`.

#[path = "outbox/duplicates.rs"]
mod duplicates;
#[path = "outbox/fallback.rs"]
mod fallback;
#[path = "outbox/languages.rs"]
mod languages;
#[path = "outbox/nodes.rs"]
mod nodes;
#[path = "outbox/pooled.rs"]
mod pooled;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

use crate::support::gateway::{Gateway, command};
use crate::support::receiver::{Answer, Receiver};
use crate::support::{eventually, postgres, when};

const SOON: Duration = Duration::from_secs(60);

/// Messages wait where they can be counted; nobody takes `nobody.*`.
const PAUSED: &str = r#"
[destinations.out]
transport = "stdout"
paused = true

[[routes]]
types = ["order.*", "strict", "bulk"]
destinations = ["out"]

[messages."strict"]
deduplicate = { window = "1h" }
"#;

fn hook(receiver: &Receiver) -> String {
    format!(
        "[destinations.hook]\ntransport = \"webhook\"\nurl = \"{}\"\nallow_private = true\nmax_in_flight = 64\n\
         [[routes]]\ntypes = [\"*\"]\ndestinations = [\"hook\"]\n",
        receiver.url("/hook")
    )
}

/// A store, and a way into it that is the user's own.
enum Engine {
    Sqlite(String),
    Postgres(String),
}

async fn engines() -> Vec<Engine> {
    let folder = crate::support::run::fresh_dir("outbox");
    let mut engines = vec![Engine::Sqlite(folder.join("shop.db").display().to_string())];
    if let Some(postgres) = postgres::shared().await {
        engines.push(Engine::Postgres(postgres.fresh_database().await));
    }
    engines
}

impl Engine {
    fn name(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
        }
    }

    fn config(&self, rest: &str) -> String {
        match self {
            Self::Sqlite(path) => format!("[stores.main]\nurl = \"sqlite:{path}\"\n{rest}"),
            Self::Postgres(url) => format!("[stores.main]\nurl = \"{url}\"\n{rest}"),
        }
    }

    /// Brings the schema up to date, while no gateway runs.
    fn migrate(&self) {
        let output = command(&["storage", "migrate"], Some(&self.config("")));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The statement that publishes, with its parameters written in.
    fn publish(&self, kind: &str, data: &str, deduplication_id: Option<&str>) -> String {
        let id = deduplication_id.map_or("NULL".to_owned(), |id| format!("'{id}'"));
        match self {
            Self::Sqlite(_) => format!(
                "INSERT INTO oncegate_intake (type, content_type, data, deduplication_id)
                 VALUES ('{kind}', 'application/json', '{data}', {id})"
            ),
            Self::Postgres(_) => {
                format!("SELECT oncegate.publish('{kind}', '{data}', deduplication_id => {id})")
            }
        }
    }

    /// Runs these statements on a connection of their own.
    async fn run(&self, sql: &str) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(path) => {
                let options = sqlx::sqlite::SqliteConnectOptions::new()
                    .filename(path)
                    .busy_timeout(Duration::from_secs(30));
                let mut connection = SqliteConnection::connect_with(&options).await?;
                let result = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await;
                connection.close().await?;
                result.map(|_| ())
            }
            Self::Postgres(url) => {
                let mut connection = PgConnection::connect(url).await?;
                let result = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await;
                connection.close().await?;
                result.map(|_| ())
            }
        }
    }

    async fn number(&self, sql: &str) -> i64 {
        match self {
            Self::Sqlite(path) => {
                let mut connection = SqliteConnection::connect(&format!("sqlite:{path}")).await.unwrap();
                sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await.unwrap()
            }
            Self::Postgres(url) => {
                let mut connection = PgConnection::connect(url).await.unwrap();
                sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await.unwrap()
            }
        }
    }

    fn table(&self, name: &str) -> String {
        match self {
            Self::Sqlite(_) => format!("oncegate_{name}"),
            Self::Postgres(_) => format!("oncegate.{name}"),
        }
    }

    async fn count(&self, table: &str) -> i64 {
        self.number(&format!("SELECT count(*) FROM {}", self.table(table))).await
    }

    async fn count_of(&self, reason: &str) -> i64 {
        let table = self.table("dead_letters");
        self.number(&format!("SELECT count(*) FROM {table} WHERE error_kind = '{reason}'")).await
    }

    async fn intake_is_empty(&self) {
        eventually(SOON, "the intake is empty", async || when(self.count("intake").await == 0)).await;
    }
}

/// Rolled back: never sent. Committed while no gateway ran: sent when one starts.
#[tokio::test]
async fn a_commit_is_sent_by_a_gateway_that_starts_later_and_a_rollback_never() {
    for engine in engines().await {
        engine.migrate();
        let receiver = Receiver::start().await;
        let publish = |n: u32| engine.publish("order.created", &format!("{{\"n\": {n}}}"), None);
        engine.run(&format!("BEGIN; {}; ROLLBACK", publish(1))).await.unwrap();
        engine.run(&format!("BEGIN; {}; {}; COMMIT", publish(2), publish(3))).await.unwrap();
        let gateway = Gateway::start(&engine.config(&hook(&receiver))).await;
        receiver.wait_for(2, SOON).await;
        engine.run(&format!("BEGIN; {}; ROLLBACK", publish(4))).await.unwrap();
        engine.run(&publish(5)).await.unwrap();
        receiver.wait_for(3, SOON).await;
        engine.intake_is_empty().await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let mut numbers: Vec<u64> = receiver
            .received()
            .iter()
            .map(|request| serde_json::from_slice::<Value>(&request.body).unwrap()["n"].as_u64().unwrap())
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [2, 3, 5], "{}: {}", engine.name(), gateway.stderr());
    }
}

/// A number that was given early and becomes visible late is not passed over.
#[tokio::test]
async fn a_slow_transaction_that_commits_after_later_ones_loses_nothing() {
    let Some(server) = postgres::shared().await else { return };
    let url = server.fresh_database().await;
    let engine = Engine::Postgres(url.clone());
    let receiver = Receiver::start().await;
    let _gateway = Gateway::start(&engine.config(&hook(&receiver))).await;
    let mut slow = PgConnection::connect(&url).await.unwrap();
    let mut transaction = slow.begin().await.unwrap();
    sqlx::raw_sql("SELECT oncegate.publish('order.slow', '{}')").execute(&mut *transaction).await.unwrap();
    engine.run(&engine.publish("order.quick", "{}", None)).await.unwrap();
    receiver.wait_for(1, SOON).await;
    // Long enough for several looks, all of which go past the gap.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    transaction.commit().await.unwrap();
    let received = receiver.wait_for(2, SOON).await;
    let kinds: Vec<&str> = received.iter().map(|request| request.header("message-type")).collect();
    assert_eq!(kinds, ["order.quick", "order.slow"]);
}

/// The promise: the set of orders is the set of messages, wherever the gateway dies.
#[tokio::test]
async fn scenario_orders_and_messages_are_one_set_though_the_gateway_is_killed_at_random() {
    for engine in engines().await {
        engine.migrate();
        engine.run("CREATE TABLE orders (id integer PRIMARY KEY)").await.unwrap();
        let receiver = Receiver::start().await;
        let mut gateway = Gateway::start(&engine.config(&hook(&receiver))).await;
        let writers: Vec<_> = (0..8_u64)
            .map(|writer| {
                let engine = match &engine {
                    Engine::Sqlite(path) => Engine::Sqlite(path.clone()),
                    Engine::Postgres(url) => Engine::Postgres(url.clone()),
                };
                tokio::spawn(async move {
                    for n in 0..40 {
                        let id = writer * 1_000 + n;
                        let publish = engine.publish("order.created", &format!("{{\"n\": {id}}}"), None);
                        let end = if n % 5 == 4 { "ROLLBACK" } else { "COMMIT" };
                        // Taken at once, as SQLite asks of a transaction that will write.
                        let begin = if engine.name() == "sqlite" { "BEGIN IMMEDIATE" } else { "BEGIN" };
                        let sql = format!("{begin}; INSERT INTO orders VALUES ({id}); {publish}; {end}");
                        engine.run(&sql).await.unwrap();
                        tokio::time::sleep(Duration::from_millis(n * 7 % 60)).await;
                    }
                })
            })
            .collect();
        for n in 0..10_u64 {
            tokio::time::sleep(Duration::from_millis(50 + n * 97 % 400)).await;
            gateway.kill9();
            gateway.restart().await;
        }
        for writer in writers {
            writer.await.unwrap();
        }
        engine.intake_is_empty().await;
        let expected = engine.number("SELECT count(*) FROM orders").await;
        assert_eq!(expected, 8 * 32, "{}", engine.name());
        eventually(SOON, "every delivery is made", async || when(engine.count("deliveries").await == 0))
            .await;
        let mut by_order: BTreeMap<u64, std::collections::BTreeSet<String>> = BTreeMap::new();
        for request in receiver.received() {
            let n = serde_json::from_slice::<Value>(&request.body).unwrap()["n"].as_u64().unwrap();
            by_order.entry(n).or_default().insert(request.header("id").to_owned());
        }
        let wanted: Vec<u64> = (0..8)
            .flat_map(|writer| (0..40).filter(|n| n % 5 != 4).map(move |n| writer * 1_000 + n))
            .collect();
        assert_eq!(by_order.keys().copied().collect::<Vec<_>>(), wanted, "{}", engine.name());
        // A kill may send a message again, but accepts it once: each order has one message.
        assert!(by_order.values().all(|ids| ids.len() == 1), "{}", engine.name());
        assert_eq!(engine.count("receipts").await, expected, "{}", engine.name());
        assert_eq!(engine.count("dead_letters").await, 0, "{}", engine.name());
    }
}

/// Moved in bounded groups, so that whoever publishes over HTTP meanwhile is answered.
#[tokio::test]
async fn fifty_thousand_rows_of_one_transaction_are_moved_while_http_goes_on() {
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(PAUSED)).await;
        let sql = match &engine {
            Engine::Sqlite(_) => {
                "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 50000)
                 INSERT INTO oncegate_intake (type, content_type, data)
                 SELECT 'bulk', 'application/json', '{\"n\": ' || n || '}' FROM n"
            }
            Engine::Postgres(_) => {
                "SELECT count(oncegate.publish('bulk', jsonb_build_object('n', n))) FROM generate_series(1, 50000) n"
            }
        };
        engine.run(sql).await.unwrap();
        let (mut slowest, mut during) = (Duration::ZERO, 0);
        let began = Instant::now();
        while engine.count("intake").await > 0 {
            assert!(began.elapsed() < Duration::from_secs(180), "{}: {}", engine.name(), gateway.stderr());
            let asked = Instant::now();
            let (status, answer) = gateway.publish(json!({ "type": "order.http", "data": 1 })).await;
            assert_eq!(status, 202, "{}: {answer}", engine.name());
            slowest = slowest.max(asked.elapsed());
            during += 1;
        }
        println!("{}: {during} publishes meanwhile, the slowest took {slowest:?}", engine.name());
        assert!(during > 10 && slowest < Duration::from_secs(5), "{}: {slowest:?}", engine.name());
        assert_eq!(engine.count("deliveries").await, 50_000 + during, "{}", engine.name());
        assert_eq!(engine.count("dead_letters").await, 0, "{}", engine.name());
    }
}

/// One identity, whichever way it comes in.
#[tokio::test]
async fn an_identity_published_by_sql_and_by_http_is_one() {
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(PAUSED)).await;
        let http = |id: &str| gateway.publish(json!({ "type": "strict", "data": 1, "deduplicationId": id }));
        assert_eq!(http("http-first").await.0, 202);
        let sql = |id: &str| engine.publish("strict", "1", Some(id));
        // In one transaction: a duplicate of HTTP's, a fresh one, and that one again.
        let all = format!("BEGIN; {}; {}; {}; COMMIT", sql("http-first"), sql("sql-first"), sql("sql-first"));
        engine.run(&all).await.unwrap();
        engine.intake_is_empty().await;
        let (status, answer) = http("sql-first").await;
        assert_eq!((status, answer["outcome"].as_str()), (200, Some("duplicate")), "{}", engine.name());
        assert_eq!(engine.count("deliveries").await, 2, "{}", engine.name());
        assert_eq!(engine.count("dead_letters").await, 0, "{}", engine.name());
        assert_eq!(gateway.stderr().matches("duplicate in the intake").count(), 2, "{}", engine.name());
        let metrics =
            gateway.client().get(gateway.url("/metrics")).send().await.unwrap().text().await.unwrap();
        assert!(
            metrics.contains("oncegate_messages_duplicates_total{store=\"main\",type=\"strict\"} 3"),
            "{metrics}"
        );
    }
}

/// What cannot be accepted goes alone, with its bytes and the reason; its neighbours go on.
#[tokio::test]
async fn what_cannot_be_accepted_goes_alone_to_the_dead_letters() {
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(PAUSED)).await;
        let odd = match &engine {
            Engine::Sqlite(_) => {
                "INSERT INTO oncegate_intake (type, data, headers) VALUES ('order.odd', x'00ff', '{\"a\": 1}')"
            }
            // A row that no function lets through; the owner may write the table.
            Engine::Postgres(_) => {
                "INSERT INTO oncegate.intake (type, data, headers) VALUES ('order.odd', '\\x00ff', '{\"a\": 1}')"
            }
        };
        let late = match &engine {
            Engine::Sqlite(_) => {
                "INSERT INTO oncegate_intake (type, data, deliver_by) VALUES ('order.late', '{}', '2020-01-01T00:00:00Z')"
            }
            Engine::Postgres(_) => {
                "INSERT INTO oncegate.intake (type, data, deliver_by) VALUES ('order.late', '{}', '2020-01-01Z')"
            }
        };
        let all = [
            engine.publish("order.created", "{}", None),
            engine.publish("nobody.listens", "{\"kept\": true}", None),
            engine.publish("strict", "1", None),
            odd.to_owned(),
            late.to_owned(),
            engine.publish("order.created", "{}", None),
        ];
        engine.run(&format!("BEGIN; {}; COMMIT", all.join("; "))).await.unwrap();
        engine.intake_is_empty().await;
        assert_eq!(engine.count("deliveries").await, 2, "{}", engine.name());
        for reason in ["Unroutable", "MissingDeduplicationId", "Unreadable", "Expired"] {
            assert_eq!(engine.count_of(reason).await, 1, "{} {reason}: {}", engine.name(), gateway.stderr());
        }
        let dead = engine.table("dead_letters");
        let kept = match &engine {
            Engine::Sqlite(_) => format!(
                "SELECT count(*) FROM {dead} WHERE type = 'order.odd' AND body = x'00ff' AND error_text LIKE '%headers%'"
            ),
            Engine::Postgres(_) => format!(
                "SELECT count(*) FROM {dead} WHERE type = 'order.odd' AND body = '\\x00ff' AND error_text LIKE '%headers%'"
            ),
        };
        assert_eq!(engine.number(&kept).await, 1, "{}", engine.name());
    }
}

/// A table's constraints refuse what could never be a message.
#[tokio::test]
async fn sqlite_refuses_nonsense() {
    let Some(engine) = engines().await.into_iter().next() else { return };
    engine.migrate();
    for (columns, values) in [
        ("type, data", "'', '{}'"),
        ("type, data", "'two words', '{}'"),
        ("type, data", "'a', 7"),
        ("type", "'a'"),
        ("type, data, headers", "'a', '{}', '[]'"),
        ("type, data, destinations", "'a', '{}', '[]'"),
        ("type, data, deliver_at", "'a', '{}', 'tomorrow'"),
        ("type, data, deliver_at, deliver_by", "'a', '{}', '2030-01-02T00:00:00Z', '2030-01-01T00:00:00Z'"),
    ] {
        let refused = engine.run(&format!("INSERT INTO oncegate_intake ({columns}) VALUES ({values})")).await;
        assert!(refused.is_err(), "({columns}) VALUES ({values})");
    }
    assert_eq!(engine.count("intake").await, 0);
}

/// Every bad argument is named.
#[tokio::test]
async fn bad_arguments_raise_clear_errors() {
    let Some(server) = postgres::shared().await else { return };
    let engine = Engine::Postgres(server.fresh_database().await);
    engine.migrate();
    for (call, says) in [
        ("publish(NULL, '{}')", "type is needed"),
        ("publish('', '{}')", "type is needed"),
        ("publish('two words', '{}')", "white space"),
        ("publish('a', NULL)", "data must not be null"),
        ("publish('a', '{}', headers => '[]')", "headers"),
        ("publish('a', '{}', headers => '{\"a\": 1}')", "headers"),
        ("publish('a', '{}', deduplication_id => repeat('x', 513))", "deduplication_id"),
        ("publish('a', '{}', subject => '')", "subject"),
        ("publish('a', '{}', content_type => 'json')", "content_type"),
        ("publish('a', '{}', source => E'a\\nb')", "control character"),
        ("publish('a', '{}', deliver_by => '2020-01-01Z')", "deliver_by"),
        ("publish('a', '{}', deliver_at => 'infinity')", "deliver_at"),
        ("publish('a', '{}', deliver_at => '2031-01-01Z', deliver_by => '2030-01-01Z')", "deliver_by"),
        ("publish('a', '{}', destinations => '{}')", "destinations"),
        ("publish_bytes('a', NULL)", "data must not be null"),
        ("publish_many('{}')", "must be a JSON array"),
        ("publish_many('[{\"type\": \"a\"}, 7]')", "message 1 of the array"),
        ("publish_many('[{\"type\": \"a\", \"typo\": 1}]')", "typo is not a member"),
        ("publish_many('[{\"type\": \"a\", \"dataBase64\": \"?\"}]')", "message 0 of the array"),
    ] {
        let error = engine.run(&format!("SELECT oncegate.{call}")).await.expect_err(call);
        let error = error.as_database_error().expect(call);
        assert_eq!(error.code().as_deref(), Some("22023"), "{call}: {error}");
        assert!(error.message().contains(says), "{call}: {error}");
    }
    assert_eq!(engine.count("intake").await, 0);
}

/// What a role may, for which tenant; also by SET ROLE, as behind a pooler.
#[tokio::test]
async fn a_role_may_publish_for_its_tenant_and_read_nothing() {
    let Some(server) = postgres::private(&[]).await else { return };
    let engine = Engine::Postgres(server.fresh_database().await);
    engine.migrate();
    engine
        .run("CREATE ROLE shop; CREATE ROLE till; CREATE ROLE plain; GRANT oncegate_publisher TO plain")
        .await
        .unwrap();
    for (role, tenant) in [("shop", "acme"), ("till", "globex")] {
        let granted =
            command(&["storage", "grant", "--role", role, "--tenant", tenant], Some(&engine.config("")));
        assert!(granted.status.success(), "{}", String::from_utf8_lossy(&granted.stderr));
    }
    for role in ["shop", "till", "plain"] {
        engine.run(&format!("SET ROLE {role}; SELECT oncegate.publish('order.created', '1')")).await.unwrap();
        engine.run(&format!("SET ROLE {role}; SELECT oncegate.publish_many('[]')")).await.unwrap();
        for forbidden in [
            "SELECT count(*) FROM oncegate.intake",
            "SELECT count(*) FROM oncegate.outbox",
            "SELECT count(*) FROM oncegate.deliveries",
            "SELECT count(*) FROM oncegate.publishers",
            "INSERT INTO oncegate.intake (type, tenant, data) VALUES ('a', 'globex', '')",
            "SELECT oncegate.intake_put('a', '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'a/b', NULL, NULL, NULL)",
        ] {
            let refused = engine.run(&format!("SET ROLE {role}; {forbidden}")).await.expect_err(forbidden);
            assert_eq!(refused.as_database_error().unwrap().code().as_deref(), Some("42501"), "{forbidden}");
        }
    }
    let refused = engine.run("CREATE ROLE nobody; SET ROLE nobody; SELECT oncegate.publish('a', '1')").await;
    assert!(refused.is_err(), "a role without the grant");
    for (tenant, count) in [("acme", 1), ("globex", 1), ("", 1)] {
        let sql = format!("SELECT count(*) FROM oncegate.intake WHERE tenant = '{tenant}'");
        assert_eq!(engine.number(&sql).await, count, "{tenant}");
    }
    let missing = command(&["storage", "grant", "--role", "ghost"], Some(&engine.config("")));
    assert!(!missing.status.success() && String::from_utf8_lossy(&missing.stderr).contains("ghost"));
}

/// From a trigger, from PL/pgSQL, by COPY, many at once, as bytes.
#[tokio::test]
async fn every_way_in_of_postgres_leads_to_the_same_message() {
    let Some(server) = postgres::shared().await else { return };
    let url = server.fresh_database().await;
    let engine = Engine::Postgres(url.clone());
    let receiver = Receiver::start().await;
    let _gateway = Gateway::start(&engine.config(&hook(&receiver))).await;
    engine
        .run(
            "CREATE TABLE orders (id integer PRIMARY KEY);
             CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 PERFORM oncegate.publish('order.trigger', to_jsonb(NEW), subject => 'order/' || NEW.id,
                     headers => '{\"X-Shop\": \"7\"}', correlation_id => 'c-1');
                 RETURN NULL;
             END $$;
             CREATE TRIGGER tell AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION tell();
             INSERT INTO orders VALUES (1);
             SELECT oncegate.publish_bytes('order.bytes', '\\x00ff', content_type => 'image/png');
             SELECT oncegate.publish_many('[{\"type\": \"order.many\", \"data\": {\"n\": 1}, \"delay\": \"PT0.1S\"},
                 {\"type\": \"order.text\", \"data\": \"plain\", \"contentType\": \"text/plain\"},
                 {\"type\": \"order.base64\", \"dataBase64\": \"AP8=\"}]');
             INSERT INTO oncegate.outbox (type, data) VALUES ('order.insert', '{\"n\": 2}')",
        )
        .await
        .unwrap();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let mut copy = connection.copy_in_raw("COPY oncegate.outbox (type, data) FROM STDIN").await.unwrap();
    copy.send(&b"order.copy\t{\"n\": 3}\norder.copy\t{\"n\": 4}\n"[..]).await.unwrap();
    copy.finish().await.unwrap();
    let received = receiver.wait_for(8, SOON).await;
    let of = |kind: &str| {
        let found: Vec<_> =
            received.iter().filter(|request| request.header("message-type") == kind).collect();
        assert!(!found.is_empty(), "{kind}");
        found
    };
    let trigger = of("order.trigger")[0];
    assert_eq!(trigger.text(), "{\"id\": 1}");
    assert_eq!((trigger.header("subject"), trigger.header("x-shop")), ("order/1", "7"));
    assert_eq!(trigger.header("correlation-id"), "c-1");
    assert_eq!(of("order.bytes")[0].body[..], [0, 0xff]);
    assert_eq!(of("order.bytes")[0].header("content-type"), "image/png");
    assert_eq!(of("order.text")[0].text(), "plain");
    assert_eq!(of("order.base64")[0].body[..], [0, 0xff]);
    assert_eq!(of("order.many")[0].text(), "{\"n\": 1}");
    assert_eq!(of("order.insert")[0].text(), "{\"n\": 2}");
    assert_eq!(of("order.copy").len(), 2);
}

/// The users' transactions lock nothing: two that publish the same identity do not wait for each other.
#[tokio::test]
async fn publishing_takes_no_lock_in_the_users_transaction() {
    let Some(server) = postgres::shared().await else { return };
    let url = server.fresh_database().await;
    let engine = Engine::Postgres(url.clone());
    let gateway = Gateway::start(&engine.config(PAUSED)).await;
    let mut one = PgConnection::connect(&url).await.unwrap();
    let mut open = one.begin().await.unwrap();
    let publish = engine.publish("strict", "1", Some("same"));
    sqlx::raw_sql(AssertSqlSafe(publish.clone())).execute(&mut *open).await.unwrap();
    let began = Instant::now();
    engine.run(&format!("SET lock_timeout = '1s'; {publish}")).await.unwrap();
    let (status, _) =
        gateway.publish(json!({ "type": "strict", "data": 1, "deduplicationId": "http" })).await;
    assert_eq!(status, 202);
    engine.intake_is_empty().await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    open.commit().await.unwrap();
    engine.intake_is_empty().await;
    assert_eq!(engine.count("deliveries").await, 2);
}

/// With `intake.notify` a commit is found at once, without it within a second.
#[tokio::test]
async fn a_commit_is_told_where_that_is_wanted() {
    let Some(server) = postgres::shared().await else { return };
    let engine = Engine::Postgres(server.fresh_database().await);
    let receiver = Receiver::scripted(|_, _| Answer::status(204)).await;
    let told = format!("[intake]\nnotify = true\npoll = \"30s\"\n{}", hook(&receiver));
    let mut gateway = Gateway::start(&engine.config(&told)).await;
    let enabled = "SELECT count(*) FROM pg_trigger WHERE tgname = 'intake_notify' AND tgenabled <> 'D'";
    eventually(SOON, "the trigger is on", async || when(engine.number(enabled).await == 1)).await;
    // The connection that listens may still be on its way.
    tokio::time::sleep(Duration::from_secs(1)).await;
    // A node looks every five seconds at least, so those that were found by looking would take longer.
    let began = Instant::now();
    for n in 1..=12 {
        engine.run(&engine.publish("order.created", "{}", None)).await.unwrap();
        receiver.wait_for(n, SOON).await;
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    gateway.term(SOON).await;
    let _polled = Gateway::start(&engine.config(&hook(&receiver))).await;
    eventually(SOON, "the trigger is off", async || when(engine.number(enabled).await == 0)).await;
    engine.run(&engine.publish("order.created", "{}", None)).await.unwrap();
    receiver.wait_for(13, SOON).await;
}

/// The statements of `docs/outbox.md`, as they stand there.
#[tokio::test]
async fn the_statements_of_the_document_publish() {
    let text = include_str!("../../docs/outbox.md");
    let blocks: Vec<&str> =
        text.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    for engine in engines().await {
        let receiver = Receiver::start().await;
        let _gateway = Gateway::start(&engine.config(&hook(&receiver))).await;
        match &engine {
            Engine::Postgres(_) => {
                engine.run("CREATE TABLE orders (id integer, total numeric)").await.unwrap();
                engine.run(blocks[0]).await.unwrap();
            }
            Engine::Sqlite(path) => {
                let mut connection = SqliteConnection::connect(&format!("sqlite:{path}")).await.unwrap();
                // The driver of this test has no parameters by name.
                let sql = blocks[1].replace(":type", "?1").replace(":data", "?2");
                sqlx::query(AssertSqlSafe(sql))
                    .bind("order.created")
                    .bind("{\"orderId\": 42}")
                    .execute(&mut connection)
                    .await
                    .unwrap();
            }
        }
        let received = receiver.wait_for(1, SOON).await;
        assert_eq!(received[0].header("message-type"), "order.created", "{}", engine.name());
        assert_eq!(received[0].text(), "{\"orderId\": 42}", "{}", engine.name());
        assert_eq!(received[0].header("content-type"), "application/json", "{}", engine.name());
    }
}

/// `oncegate::publish_in`, on both engines: rolled back and committed.
#[tokio::test]
async fn users_of_the_crate_publish_in_their_transaction() {
    let draft = |n: u32| oncegate::Draft {
        kind: "order.created".into(),
        body: format!("{{\"n\": {n}}}").into(),
        correlation_id: Some("c-1".into()),
        deliver_at: "2026-01-01T00:00:00Z".parse().ok(),
        envelope: oncegate::domain::message::Envelope {
            headers: [("x-shop".to_owned(), "7".to_owned())].into(),
            ..Default::default()
        },
        ..Default::default()
    };
    for engine in engines().await {
        let receiver = Receiver::start().await;
        let _gateway = Gateway::start(&engine.config(&hook(&receiver))).await;
        let id = match &engine {
            Engine::Postgres(url) => {
                let mut connection = PgConnection::connect(url).await.unwrap();
                let mut transaction = connection.begin().await.unwrap();
                oncegate::publish_in(&mut *transaction, draft(1)).await.unwrap();
                transaction.rollback().await.unwrap();
                let mut transaction = connection.begin().await.unwrap();
                let id = oncegate::publish_in(&mut *transaction, draft(2)).await.unwrap();
                transaction.commit().await.unwrap();
                id
            }
            Engine::Sqlite(path) => {
                let mut connection = SqliteConnection::connect(&format!("sqlite:{path}")).await.unwrap();
                let mut transaction = connection.begin().await.unwrap();
                oncegate::publish_in(&mut *transaction, draft(1)).await.unwrap();
                transaction.rollback().await.unwrap();
                let mut transaction = connection.begin().await.unwrap();
                let id = oncegate::publish_in(&mut *transaction, draft(2)).await.unwrap();
                transaction.commit().await.unwrap();
                id
            }
        };
        let received = receiver.wait_for(1, SOON).await;
        assert_eq!(received[0].header("id"), id.to_string(), "{}", engine.name());
        assert_eq!(received[0].text(), "{\"n\": 2}", "{}", engine.name());
        assert_eq!((received[0].header("x-shop"), received[0].header("correlation-id")), ("7", "c-1"));
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let wrong = oncegate::publish_in(&mut connection, oncegate::Draft::default()).await.unwrap_err();
        assert_eq!(wrong.kind, oncegate::store::ErrorKind::InvalidData);
    }
}
