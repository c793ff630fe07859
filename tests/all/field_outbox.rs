//! Failures that users of comparable systems reported about outboxes and relays, each named after what must
//! hold here. `docs/field-reports.md` lists them all.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::{Connection, Row};

use crate::support::gateway::Gateway;
use crate::support::postgres::{self, Postgres};
use crate::support::rabbitmq::{self, message_id};
use crate::support::receiver::{Answer, Receiver};
use crate::support::tables::Tables;
use crate::support::{eventually, when};

const SOON: Duration = Duration::from_secs(30);

/// A gateway on a database of its own, with these destinations for every type.
async fn gateway(postgres: &Postgres, destinations: &[(&str, String)]) -> (Gateway, Tables) {
    let store = postgres.fresh_database().await;
    (Gateway::start(&config(&store, destinations)).await, Tables::of(&store))
}

fn config(store: &str, destinations: &[(&str, String)]) -> String {
    let names: Vec<&str> = destinations.iter().map(|(name, _)| *name).collect();
    let tables: String =
        destinations.iter().map(|(name, settings)| format!("[destinations.{name}]\n{settings}\n")).collect();
    format!(
        "[stores.main]\nurl = \"{store}\"\n{tables}\n[[routes]]\ntypes = [\"*\"]\ndestinations = {names:?}\n"
    )
}

/// The settings of a webhook that fails fast and comes back fast.
fn hook(receiver: &Receiver) -> String {
    format!(
        "transport = \"webhook\"\nurl = \"{}\"\nallow_private = true\ntimeout = \"2s\"\n\
         breaker = {{ failures = 1000, open = \"500ms\" }}\nretry = {{ initial = \"100ms\", max = \"1s\" }}",
        receiver.url("/hook")
    )
}

/// wolverine#3173, #689: a delivered row was never deleted and was sent for ever.
#[tokio::test]
async fn a_delivered_row_is_gone_and_the_message_is_not_sent_again() {
    let Some(postgres) = postgres::shared().await else { return };
    let receiver = Receiver::failing_first(3, 500).await;
    let (gateway, tables) = gateway(&postgres, &[("hook", hook(&receiver))]).await;
    for n in 0..20 {
        let (status, _) = gateway.publish(json!({"id": format!("m{n}"), "type": "t", "data": n})).await;
        assert_eq!(status, 202);
    }
    tables.drained(SOON).await;
    assert_eq!(tables.receipts().await, 20);
    let sent = receiver.count();
    assert_eq!(sent, 23, "three attempts failed");
    // Longer than a node ever sleeps.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(receiver.count(), sent, "sent again after it was delivered");
    let (status, message) = gateway.get("/v1/messages/m7").await;
    assert_eq!((status, message["destinations"][0]["state"].as_str()), (200, Some("sent")), "{message}");
}

/// wolverine#1686, kafka-rest#1413: an oversized message was retried for ever.
#[tokio::test]
async fn what_a_target_will_never_take_is_a_dead_letter_at_once() {
    let Some(postgres) = postgres::shared().await else { return };
    let receiver = Receiver::scripted(|_, request| match request.header("message-type") {
        "large" => Answer::status(413),
        "odd" => Answer::status(422),
        _ => Answer::status(204),
    })
    .await;
    let (gateway, tables) = gateway(&postgres, &[("hook", hook(&receiver))]).await;
    for kind in ["large", "odd", "fine"] {
        assert_eq!(gateway.publish(json!({"id": kind, "type": kind, "data": 1})).await.0, 202);
    }
    tables.drained(SOON).await;
    let mut kinds = tables.dead_kinds().await;
    kinds.sort();
    assert_eq!(kinds, ["Refused", "TooLarge"]);
    assert_eq!(receiver.count(), 3, "one attempt each");
    let (_, message) = gateway.get("/v1/messages/large").await;
    assert_eq!(message["destinations"][0]["state"], "dead", "{message}");
}

/// The same of a broker, which closes the channel over it: its neighbours on the channel are delivered.
#[tokio::test]
async fn a_message_too_large_for_the_broker_is_a_dead_letter_and_its_neighbours_arrive() {
    let Some(postgres) = postgres::shared().await else { return };
    let Some(broker) = rabbitmq::private_with("max_message_size = 100000\n").await else { return };
    let queue = broker.fresh_queue().await;
    let settings = format!(
        "transport = \"rabbitmq\"\nurl = \"{}\"\nrouting_key = \"{queue}\"\nbreaker = {{ open = \"500ms\" }}\n\
         retry = {{ initial = \"100ms\", max = \"1s\" }}",
        broker.url()
    );
    let (gateway, tables) = gateway(&postgres, &[("orders", settings)]).await;
    let large = "x".repeat(100_001);
    let neighbours = async {
        for n in 0..50 {
            assert_eq!(gateway.publish(json!({"id": format!("m{n}"), "type": "t", "data": n})).await.0, 202);
        }
    };
    let too_large = gateway.publish(json!({"id": "large", "type": "t", "data": large}));
    let ((), (status, _)) = tokio::join!(neighbours, too_large);
    assert_eq!(status, 202);
    tables.drained(SOON).await;
    assert_eq!(tables.dead_kinds().await, ["TooLarge"]);
    let arrived = broker.open().await.drain(&queue, Duration::from_millis(500)).await;
    let ids: std::collections::BTreeSet<String> = arrived.iter().map(message_id).collect();
    assert_eq!(ids.len(), 50);
}

/// wolverine#1650: published to a queue that does not exist: lost.
#[tokio::test]
async fn a_message_for_a_queue_that_does_not_exist_waits_for_it() {
    let Some(postgres) = postgres::shared().await else { return };
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = crate::support::run::unique("late");
    let settings = format!(
        "transport = \"rabbitmq\"\nurl = \"{}\"\nrouting_key = \"{queue}\"\nbreaker = {{ open = \"500ms\" }}",
        broker.url()
    );
    let (gateway, tables) = gateway(&postgres, &[("orders", settings)]).await;
    assert_eq!(gateway.publish(json!({"id": "early", "type": "t", "data": 1})).await.0, 202);
    eventually(SOON, "a failure that the operator can see", async || {
        let (_, targets) = gateway.get("/v1/targets").await;
        when(targets["items"][0]["lastError"].is_string())
    })
    .await;
    assert_eq!((tables.deliveries().await, tables.dead_letters().await), (1, 0));
    let probe = broker.open().await;
    probe.declare(&queue).await;
    tables.drained(SOON).await;
    let arrived = probe.drain(&queue, Duration::from_millis(500)).await;
    assert_eq!(arrived.iter().map(message_id).collect::<Vec<_>>(), ["early"]);
}

/// wolverine#2510: a message that could not be read was acknowledged and lost.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_a_dead_letter_with_its_bytes() {
    let Some(postgres) = postgres::shared().await else { return };
    let receiver = Receiver::start().await;
    let (gateway, tables) = gateway(&postgres, &[("hook", hook(&receiver))]).await;
    let (status, _) =
        gateway.publish(json!({"id": "torn", "type": "t", "data": "the bytes", "delay": "1s"})).await;
    assert_eq!(status, 202);
    let mut connection = tables.connect().await;
    sqlx::query("UPDATE oncegate.deliveries SET envelope = '\"no envelope\"'")
        .execute(&mut connection)
        .await
        .unwrap();
    assert_eq!(gateway.publish(json!({"id": "whole", "type": "t", "data": 1})).await.0, 202);
    tables.drained(SOON).await;
    let row = sqlx::query("SELECT error_kind, body FROM oncegate.dead_letters")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(row.get::<String, _>("error_kind"), "Unreadable");
    assert_eq!(row.get::<Vec<u8>, _>("body"), b"\"the bytes\"");
    let received = receiver.received();
    assert_eq!(received.iter().map(|request| request.header("id")).collect::<Vec<_>>(), ["whole"]);
}

/// wolverine#1846: scheduled in the past: ran twice. CAP#1429: 10k delayed became 22k.
#[tokio::test]
async fn scheduled_messages_are_sent_once_by_whichever_node_and_those_of_the_past_at_once() {
    let Some(postgres) = postgres::shared().await else { return };
    let receiver = Receiver::start().await;
    let store = postgres.fresh_database().await;
    let config = config(&store, &[("hook", hook(&receiver))]);
    let (first, second) = tokio::join!(Gateway::start(&config), Gateway::start(&config));
    let (status, _) = first
        .publish(json!({"id": "past", "type": "t", "data": 0, "deliverAt": "2020-01-01T00:00:00Z"}))
        .await;
    assert_eq!(status, 202);
    receiver.wait_for(1, SOON).await;
    let begun = Instant::now();
    for n in 0..300 {
        let node = if n % 2 == 0 { &first } else { &second };
        let (status, answer) =
            node.publish(json!({"id": format!("m{n}"), "type": "t", "data": n, "delay": "3s"})).await;
        assert_eq!(status, 202, "{answer}");
    }
    let published = begun.elapsed();
    Tables::of(&store).drained(SOON).await;
    let received = receiver.received();
    let mut times: HashMap<&str, u32> = HashMap::new();
    for request in &received {
        *times.entry(request.header("id")).or_default() += 1;
    }
    assert_eq!(times.len(), 301);
    assert!(times.values().all(|count| *count == 1), "sent more than once: {times:?}");
    let early = received.iter().skip(1).filter(|request| request.at < begun + Duration::from_secs(3)).count();
    assert_eq!(early, 0, "sent before their time (published within {published:?})");
}

/// wolverine#3898: a batch dropped the expiry of its members.
#[tokio::test]
async fn every_member_of_a_batch_keeps_its_own_expiry() {
    let Some(postgres) = postgres::shared().await else { return };
    let receiver = Receiver::scripted(|_, _| Answer::status(503)).await;
    let (gateway, tables) = gateway(&postgres, &[("hook", hook(&receiver))]).await;
    let soon = (oncegate::domain::Clock::default().now() + Duration::from_secs(2)).to_rfc3339();
    let (status, answer) = gateway
        .post(
            "/v1/publish-batch",
            json!([
                {"id": "short", "type": "t", "data": 1, "deliverBy": soon},
                {"id": "long", "type": "t", "data": 2},
                {"id": "later", "type": "t", "data": 3, "deliverBy": "9000-01-01T00:00:00Z"},
            ]),
        )
        .await;
    assert_eq!(status, 202, "{answer}");
    // What expired is swept whatever the breaker says.
    eventually(SOON, "the expired member among the dead letters", async || {
        when(tables.dead_kinds().await == ["Expired"])
    })
    .await;
    receiver.script(|_, _| Answer::status(204));
    tables.drained(SOON).await;
    let sent = receiver.received();
    let mut delivered: Vec<&str> = sent
        .iter()
        .filter(|request| request.answered == Some(http::StatusCode::NO_CONTENT))
        .map(|request| request.header("id"))
        .collect();
    delivered.sort_unstable();
    assert_eq!(delivered, ["later", "long"]);
}

/// wolverine#5276: a batch answered 200 and dropped messages.
#[tokio::test]
async fn a_batch_is_stored_all_or_nothing() {
    let Some(postgres) = postgres::shared().await else { return };
    let receiver = Receiver::start().await;
    let (gateway, tables) = gateway(&postgres, &[("hook", hook(&receiver))]).await;
    let mut batch: Vec<serde_json::Value> =
        (0..100).map(|n| json!({"id": format!("m{n}"), "type": "t", "data": n})).collect();
    batch[57]["destinations"] = json!(["nowhere"]);
    let (status, problem) = gateway.post("/v1/publish-batch", json!(batch)).await;
    assert_eq!((status, problem["type"].as_str()), (422, Some("/problems/unroutable")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("57"), "{problem}");
    assert_eq!((tables.deliveries().await, tables.receipts().await), (0, 0));
    batch.remove(57);
    let (status, answer) = gateway.post("/v1/publish-batch", json!(batch)).await;
    assert_eq!((status, answer["messages"].as_array().map(Vec::len)), (202, Some(99)));
    tables.drained(SOON).await;
    assert_eq!(receiver.count(), 99);
}

/// convoy#2746: 201 for an event with no target, dropped silently.
#[tokio::test]
async fn a_message_that_nobody_takes_is_refused() {
    let receiver = Receiver::start().await;
    let config = format!(
        "[destinations.hook]\n{}\n[[routes]]\ntypes = [\"order.*\"]\ndestinations = [\"hook\"]\n",
        hook(&receiver)
    );
    let gateway = Gateway::start(&config).await;
    let (status, problem) = gateway.publish(json!({"type": "invoice.created", "data": 1})).await;
    assert_eq!((status, problem["type"].as_str()), (422, Some("/problems/unroutable")), "{problem}");
}

/// dapr#7533, #7699: the caller's trace was replaced.
#[tokio::test]
async fn the_callers_trace_arrives_with_the_gateways_span_as_parent() {
    let receiver = Receiver::start().await;
    let config = format!(
        "[destinations.hook]\n{}\n[[routes]]\ntypes = [\"*\"]\ndestinations = [\"hook\"]\n",
        hook(&receiver)
    );
    let gateway = Gateway::start(&config).await;
    let answer = gateway
        .client()
        .post(gateway.url("/v1/publish/t"))
        .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
        .header("tracestate", "vendor=opaque,other=1")
        .body("x")
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 202);
    let received = receiver.wait_for(1, SOON).await;
    let parent: Vec<&str> = received[0].header("traceparent").split('-').collect();
    assert_eq!(parent.len(), 4, "{parent:?}");
    assert_eq!((parent[0], parent[1], parent[3]), ("00", "4bf92f3577b34da6a3ce929d0e0e4736", "01"));
    assert_ne!(parent[2], "00f067aa0ba902b7", "the gateway's span is the parent");
    assert_eq!(parent[2].len(), 16);
    assert_eq!(received[0].header("tracestate"), "vendor=opaque,other=1");
}

/// sequin#2154: one bad sink stopped all, and the pod stayed Ready.
#[tokio::test]
async fn a_bad_destination_holds_back_no_other_and_is_told_of() {
    let Some(postgres) = postgres::shared().await else { return };
    let good = Receiver::start().await;
    let hanging = Receiver::scripted(|_, _| Answer::status(204).after(Duration::from_secs(60))).await;
    let nobody = format!(
        "transport = \"webhook\"\nurl = \"http://127.0.0.1:{}/\"\nallow_private = true",
        crate::support::run::free_port()
    );
    let (gateway, tables) =
        gateway(&postgres, &[("good", hook(&good)), ("hanging", hook(&hanging)), ("nobody", nobody)]).await;
    let begun = Instant::now();
    for n in 0..500 {
        assert_eq!(gateway.publish(json!({"type": "t", "data": n})).await.0, 202);
    }
    good.wait_for(500, SOON).await;
    eprintln!("the good destination got all within {:?}", begun.elapsed());
    assert!(gateway.ready().await, "a failing destination does not change readiness");
    let (status, targets) = gateway.get("/v1/targets").await;
    assert_eq!(status, 200);
    let items = targets["items"].as_array().unwrap();
    let item = |name: &str| items.iter().find(|item| item["name"] == name).unwrap();
    assert_eq!(item("nobody")["breaker"], "open", "{targets}");
    assert!(item("nobody")["lastError"].is_string(), "{targets}");
    assert_eq!(tables.dead_letters().await, 0);
}

/// watermill#311: rows read by increasing id: a slow transaction's rows were skipped.
#[tokio::test]
async fn the_rows_of_a_slow_transaction_are_not_skipped() {
    let Some(postgres) = postgres::shared().await else { return };
    let receiver = Receiver::start().await;
    let (gateway, tables) = gateway(&postgres, &[("hook", hook(&receiver))]).await;
    assert_eq!(gateway.publish(json!({"id": "model", "type": "t", "data": 0, "delay": "1h"})).await.0, 202);
    let mut connection = tables.connect().await;
    let mut slow = connection.begin().await.unwrap();
    sqlx::query(
        "INSERT INTO oncegate.deliveries SELECT (jsonb_populate_record(d, jsonb_build_object(\
           'row_id', '01900000-0000-7000-8000-000000000001', 'message_id', 'slow', 'state', 1, 'due_at', now(), \
           'deliver_at', null))).* FROM oncegate.deliveries d",
    )
    .execute(&mut *slow)
    .await
    .unwrap();
    for n in 0..10 {
        assert_eq!(gateway.publish(json!({"type": "t", "data": n})).await.0, 202);
    }
    receiver.wait_for(10, SOON).await;
    slow.commit().await.unwrap();
    let received = receiver.wait_for(11, SOON).await;
    assert_eq!(received[10].header("id"), "slow");
}

/// outpost#1021, #1026: idle connections and 130M idle commands a month. que-rb#395, Recall.ai's report: NOTIFY
/// per row, a queue that fills and a global commit lock.
#[tokio::test]
async fn an_idle_node_is_quiet_and_nobodys_transaction_notifies() {
    let Some(postgres) = postgres::private(&[("log_statement", "all")]).await else { return };
    let receiver = Receiver::start().await;
    let store = postgres.fresh_database().await;
    // House is kept at every look: where nothing is over, that asks for nothing more.
    let rest = "[deduplication]\ncleanup_interval = \"1s\"\n";
    let gateway = Gateway::start(&format!("{}{rest}", config(&store, &[("hook", hook(&receiver))]))).await;
    let tables = Tables::of(&store);
    // The schema, which says how to notify where that is asked for, is written by now.
    let migrated = postgres.log().len();
    for n in 0..50 {
        assert_eq!(gateway.publish(json!({"type": "t", "data": n})).await.0, 202);
    }
    tables.drained(SOON).await;
    let statements = || {
        postgres.log().lines().filter(|line| line.contains("execute") || line.contains("statement:")).count()
    };
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = statements();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let idle = statements() - before;
    // One a second: a look at everything every five, and four at the intake between two of them.
    assert!(idle <= 22, "{idle} statements in 20 idle seconds");
    let log = postgres.log()[migrated..].to_uppercase();
    assert!(!log.contains("PG_NOTIFY(") && !log.contains(": NOTIFY "), "a transaction notifies");
    let mut connection = tables.connect().await;
    let connections: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert!(connections <= 20, "{connections} connections while idle");
}
