//! Ordered destinations and handlers, with the real binary, over both stores.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

use crate::support::gateway::Gateway;
use crate::support::receiver::{Answer, Received, Receiver};
use crate::support::{eventually, run, when};

const SOON: Duration = Duration::from_secs(60);

/// A store of its own, and a way into it past the gateway.
struct Store {
    url: String,
}

impl Store {
    fn config(&self) -> String {
        format!("[stores.main]\nurl = '{}'\n", self.url)
    }

    /// Runs these statements in one transaction of the user's.
    async fn transact(&self, statements: &[String]) {
        let sql = AssertSqlSafe(format!("BEGIN; {}; COMMIT", statements.join("; ")));
        if self.url.starts_with("sqlite:") {
            let mut connection = SqliteConnection::connect(&self.url).await.unwrap();
            sqlx::raw_sql("PRAGMA busy_timeout = 30000").execute(&mut connection).await.unwrap();
            sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
            connection.close().await.unwrap();
        } else {
            let mut connection = PgConnection::connect(&self.url).await.unwrap();
            sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
            connection.close().await.unwrap();
        }
    }

    /// The statement that publishes message `n` of a key.
    fn publish(&self, key: &str, n: usize) -> String {
        if self.url.starts_with("sqlite:") {
            format!(
                "INSERT INTO oncegate_intake (type, content_type, data, partition_key)
                 VALUES ('step', 'application/json', '{n}', '{key}')"
            )
        } else {
            format!("SELECT oncegate.publish('step', '{n}', partition_key => '{key}')")
        }
    }
}

macro_rules! on_both_stores {
    ($($test:ident)*) => {
        mod sqlite { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let path = crate::support::run::fresh_dir("ordering").join("store.db");
                super::$test(&super::Store { url: format!("sqlite:{}", path.display()) }).await;
            }
        )* }
        mod postgres { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let Some(server) = crate::support::postgres::shared().await else { return };
                super::$test(&super::Store { url: server.fresh_database().await }).await;
            }
        )* }
    };
}

on_both_stores! {
    each_key_arrives_in_order_through_failures
    a_failing_message_holds_up_its_key_alone_and_says_so
    a_dead_letter_frees_its_key
    a_dead_letter_blocks_its_key_until_it_is_replayed_or_discarded
    a_restart_keeps_the_order
    a_schedule_holds_up_nothing
    what_a_transaction_and_what_a_handler_publishes_keeps_its_order
    rows_from_before_the_order_are_delivered_in_order
}

/// An ordered destination `hook` and an ordered handler `work` for messages of the type `step`, on one receiver.
fn config(store: &Store, receiver: &Receiver, more: &str) -> String {
    format!(
        "{store}[durability]\noutbox_stale_time = '2s'\ninbox_stale_time = '3s'\n\
         [destinations.hook]\ntransport = 'webhook'\nurl = '{hook}'\nallow_private = true\nordered = true\n\
         timeout = '2s'\nretry = {{ initial = '5ms', max = '20ms', max_attempts = 1000 }}\n\
         breaker = {{ failures = 100000, open = '100ms' }}\n{more}\n\
         [[routes]]\ntypes = ['step']\ndestinations = ['hook']\n\
         [handlers.work]\ntypes = ['step']\nurl = '{work}'\nordered = true\n\
         timeout = '2s'\nretry = {{ initial = '5ms', max = '20ms', max_attempts = 1000 }}\n\
         breaker = {{ failures = 100000, open = '100ms' }}\n{more}\n",
        store = store.config(),
        hook = receiver.url("/hook"),
        work = receiver.url("/work"),
    )
}

/// The number of a message is its data.
fn message(key: &str, n: usize) -> Value {
    json!({"id": format!("{key}-{n}"), "type": "step", "partitionKey": key, "data": n})
}

async fn publish(gateway: &Gateway, message: Value) {
    let (status, body) = gateway.publish(message).await;
    assert_eq!(status, 202, "{body}");
}

fn number(received: &Received) -> usize {
    received.text().parse().expect("a number")
}

/// What arrived, by way and key: numbers, and whether they were acknowledged.
fn arrivals(received: &[Received]) -> BTreeMap<(String, String), Vec<(usize, bool)>> {
    let mut by_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for one in received {
        let way = one.uri.path().to_owned();
        let acknowledged = one.answered.is_some_and(|status| status.is_success());
        let key = (way, one.header("partition-key").to_owned());
        by_key.entry(key).or_default().push((number(one), acknowledged));
    }
    by_key
}

/// The promise: each key's messages arrive for the first time in their order, each after the one before it was
/// acknowledged, and what comes again is the latest one. (Stricter than what consumers may rely on: an
/// acknowledgement that was lost is one that the receiver gave.)
pub fn assert_in_order(received: &[Received], ways: &[&str], keys: usize, each: usize) {
    let by_key = arrivals(received);
    assert_eq!(by_key.len(), ways.len() * keys, "{:?}", by_key.keys().collect::<Vec<_>>());
    for ((way, key), numbers) in by_key {
        let mut last: Option<(usize, bool)> = None;
        for &(number, acknowledged) in &numbers {
            let (latest, was_acknowledged) = last.unwrap_or((usize::MAX, true));
            let is_next = number == latest.wrapping_add(1) && was_acknowledged;
            let is_again = number == latest;
            assert!(is_next || is_again, "{way} {key}: {number} after {latest}: {numbers:?}");
            last = Some((number, acknowledged || (is_again && was_acknowledged)));
        }
        assert_eq!(last, Some((each - 1, true)), "{way} {key}: something is lost: {numbers:?}");
    }
}

async fn depth(gateway: &Gateway) -> u64 {
    let (_, targets) = gateway.get("/v1/targets").await;
    targets["items"].as_array().unwrap().iter().map(|item| item["depth"].as_u64().unwrap()).sum()
}

async fn drained(gateway: &Gateway) {
    eventually(SOON, "everything is delivered", async || when(depth(gateway).await == 0)).await;
}

/// Every third or so fails, in all the ways that are tried again.
fn moody(n: usize, received: &Received) -> Answer {
    // Not a function of the message alone, so that it succeeds some time; nor of the place alone.
    let mood = n.wrapping_mul(2_654_435_761) ^ received.text().len();
    match mood % 7 {
        0 => Answer::status(500),
        1 => Answer::status(503).header("retry-after", "0"),
        2 => Answer::status(429).header("retry-after", "0"),
        3 => Answer::status(204).after(Duration::from_millis(15)),
        _ => Answer::status(204),
    }
}

async fn each_key_arrives_in_order_through_failures(store: &Store) {
    let receiver = Receiver::scripted(moody).await;
    let gateway = Gateway::start(&config(store, &receiver, "")).await;
    // Half in batches, half one after the other.
    for n in 0..5 {
        let batch: Vec<Value> =
            (0..6).flat_map(|key| [2 * n, 2 * n + 1].map(|n| message(&format!("k{key}"), n))).collect();
        let (status, body) = gateway.post("/v1/publish-batch", json!(batch)).await;
        assert_eq!(status, 202, "{body}");
    }
    for n in 10..20 {
        for key in 0..6 {
            publish(&gateway, message(&format!("k{key}"), n)).await;
        }
    }
    drained(&gateway).await;
    assert_in_order(&receiver.received(), &["/hook", "/work"], 6, 20);
}

async fn waits_for(gateway: &Gateway, id: &str) -> Value {
    let (status, message) = gateway.get(&format!("/v1/messages/{id}")).await;
    assert_eq!(status, 200, "{message}");
    message["destinations"][0]["waitsFor"].clone()
}

async fn a_failing_message_holds_up_its_key_alone_and_says_so(store: &Store) {
    let receiver = Receiver::scripted(|_, received| {
        Answer::status(if received.header("partition-key") == "bad" { 500 } else { 204 })
    })
    .await;
    let gateway = Gateway::start(&config(store, &receiver, "")).await;
    for n in 0..4 {
        publish(&gateway, message("bad", n)).await;
        publish(&gateway, message("good", n)).await;
    }
    eventually(SOON, "the other key is through", async || {
        let arrivals = arrivals(&receiver.received());
        let through =
            |way: &str| arrivals.get(&(way.into(), "good".into())).is_some_and(|all| all.len() == 4);
        when(through("/hook") && through("/work"))
    })
    .await;
    let numbers = |way: &str| arrivals(&receiver.received())[&(way.to_owned(), "bad".to_owned())].clone();
    assert!(numbers("/hook").iter().chain(&numbers("/work")).all(|(number, _)| *number == 0));
    assert_eq!(waits_for(&gateway, "bad-3").await, json!({"messageId": "bad-0", "state": "retrying"}));
    assert_eq!(waits_for(&gateway, "bad-0").await, Value::Null);
    let (_, targets) = gateway.get("/v1/targets").await;
    let ordered = targets["items"].as_array().unwrap().iter().all(|item| item["ordered"] == true);
    assert!(ordered, "{targets}");
    receiver.script(|_, _| Answer::status(204));
    drained(&gateway).await;
    assert_in_order(&receiver.received(), &["/hook", "/work"], 2, 4);
}

/// Refuses message 0 of `k` for good.
fn refuses_the_first(_: usize, received: &Received) -> Answer {
    Answer::status(if number(received) == 0 { 400 } else { 204 })
}

async fn a_dead_letter_frees_its_key(store: &Store) {
    let receiver = Receiver::scripted(refuses_the_first).await;
    let gateway = Gateway::start(&config(store, &receiver, "")).await;
    for n in 0..3 {
        publish(&gateway, message("k", n)).await;
    }
    drained(&gateway).await;
    for numbers in arrivals(&receiver.received()).into_values() {
        assert_eq!(numbers, [(0, false), (1, true), (2, true)]);
    }
    let (_, dead) = gateway.get("/v1/dead-letters").await;
    assert_eq!(dead["items"].as_array().unwrap().len(), 2, "{dead}");
}

async fn a_dead_letter_blocks_its_key_until_it_is_replayed_or_discarded(store: &Store) {
    let receiver = Receiver::scripted(refuses_the_first).await;
    let gateway = Gateway::start(&config(store, &receiver, "on_dead_letter = 'block'")).await;
    for n in 0..3 {
        publish(&gateway, message("replayed", n)).await;
        publish(&gateway, message("discarded", n)).await;
    }
    let dead = async || gateway.get("/v1/dead-letters").await.1["items"].as_array().unwrap().clone();
    eventually(SOON, "the first ones are dead letters", async || when(dead().await.len() == 4)).await;
    // Later messages of other keys are not held up, and those of these keys are.
    publish(&gateway, message("other", 1)).await;
    eventually(SOON, "another key is through", async || when(depth(&gateway).await == 8)).await;
    let all = dead().await;
    let of = |id: &str| -> Vec<Value> {
        all.iter().filter(|dead| dead["messageId"] == id).map(|dead| dead["id"].clone()).collect()
    };
    let blocked = waits_for(&gateway, "replayed-1").await;
    assert_eq!((&blocked["messageId"], &blocked["state"]), (&json!("replayed-0"), &json!("dead")));
    assert!(of("replayed-0").contains(&blocked["deadLetter"]), "{blocked}");
    let seen = receiver.count();
    receiver.script(|_, _| Answer::status(204));

    let (_, replayed) = gateway.post("/v1/dead-letters/replay", json!({"ids": of("replayed-0")})).await;
    assert_eq!(replayed["replayed"], 2, "{replayed}");
    eventually(SOON, "the replayed key is through", async || when(depth(&gateway).await == 4)).await;
    let (_, discarded) = gateway.post("/v1/dead-letters/discard", json!({"ids": of("discarded-0")})).await;
    assert_eq!(discarded["discarded"], 2, "{discarded}");
    drained(&gateway).await;
    for ((way, key), numbers) in arrivals(&receiver.received()[seen..]) {
        let expected = if key == "replayed" { vec![0, 1, 2] } else { vec![1, 2] };
        assert_eq!(numbers.iter().map(|(n, _)| *n).collect::<Vec<_>>(), expected, "{way} {key}");
    }
}

async fn a_restart_keeps_the_order(store: &Store) {
    let receiver = Receiver::scripted(|_, _| Answer::status(503)).await;
    let mut gateway = Gateway::start(&config(store, &receiver, "")).await;
    for n in 0..15 {
        for key in ["a", "b"] {
            publish(&gateway, message(key, n)).await;
        }
    }
    receiver.wait_for(4, SOON).await;
    assert!(gateway.term(SOON).await.success());
    receiver.script(|n, _| Answer::status(if n % 3 == 0 { 500 } else { 204 }));
    gateway.restart().await;
    for key in ["a", "b"] {
        publish(&gateway, message(key, 15)).await;
    }
    drained(&gateway).await;
    assert_in_order(&receiver.received(), &["/hook", "/work"], 2, 16);
}

async fn a_schedule_holds_up_nothing(store: &Store) {
    let receiver = Receiver::start().await;
    let gateway = Gateway::start(&config(store, &receiver, "")).await;
    let mut later = message("k", 3);
    later["delay"] = json!("2s");
    publish(&gateway, later).await;
    for n in 0..3 {
        publish(&gateway, message("k", n)).await;
    }
    drained(&gateway).await;
    assert_in_order(&receiver.received(), &["/hook", "/work"], 1, 4);
}

async fn what_a_transaction_and_what_a_handler_publishes_keeps_its_order(store: &Store) {
    let receiver = Receiver::scripted(|n, received| {
        if received.uri.path() != "/split" {
            return moody(n, received);
        }
        let messages: Vec<Value> =
            (0..20).map(|n| json!({"type": "step", "partitionKey": "cascade", "data": n})).collect();
        Answer::status(200)
            .header("content-type", "application/vnd.oncegate.reply+json")
            .body(&json!({"messages": messages}).to_string())
    })
    .await;
    let split = format!("[handlers.split]\ntypes = ['split']\nurl = '{}'\n", receiver.url("/split"));
    let gateway = Gateway::start(&format!("{}{split}", config(store, &receiver, ""))).await;
    let statements: Vec<String> = (0..20).map(|n| store.publish("transaction", n)).collect();
    store.transact(&statements).await;
    publish(&gateway, json!({"type": "split", "data": {}})).await;
    eventually(SOON, "all have arrived", async || {
        let arrivals = arrivals(&without_split(&receiver));
        let full = arrivals.values().filter(|all| all.iter().filter(|(n, ok)| *n == 19 && *ok).count() > 0);
        when(full.count() == 4)
    })
    .await;
    assert_in_order(&without_split(&receiver), &["/hook", "/work"], 2, 20);
}

fn without_split(receiver: &Receiver) -> Vec<Received> {
    receiver.received().into_iter().filter(|received| received.uri.path() != "/split").collect()
}

/// Order is switched on while messages wait.
async fn rows_from_before_the_order_are_delivered_in_order(store: &Store) {
    let receiver = Receiver::start().await;
    let ordered = config(store, &receiver, "");
    let (down, up) = (run::free_port(), receiver.port());
    let before = ordered
        .replace("ordered = true", "ordered = false")
        .replace(&format!(":{up}/"), &format!(":{down}/"));
    let mut gateway = Gateway::start(&before).await;
    for n in 0..12 {
        publish(&gateway, message("k", n)).await;
    }
    assert!(gateway.term(SOON).await.success());
    let gateway = Gateway::start(&ordered).await;
    publish(&gateway, message("k", 12)).await;
    drained(&gateway).await;
    assert_in_order(&receiver.received(), &["/hook", "/work"], 1, 13);
}
