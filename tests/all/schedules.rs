//! Messages for later, through the real binary, over every store.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use oncegate::domain::{Clock, Timestamp};
use serde_json::{Value, json};

use crate::support::bed::{Bed, on_every_store};
use crate::support::gateway::Gateway;
use crate::support::receiver::{Received, Receiver};

const SOON: Duration = Duration::from_secs(60);

on_every_store! {
    what_is_scheduled_is_listed_and_can_be_cancelled
    an_idle_node_sends_within_a_second_of_the_time
    of_many_each_is_sent_once_and_none_early
}

async fn start(bed: &Bed, receiver: &Receiver) -> Gateway {
    let text = format!(
        "{}[destinations.out]\ntransport = \"webhook\"\nurl = \"{}\"\nallow_private = true\n\
         [[routes]]\ntypes = [\"*\"]\ndestinations = [\"out\"]\n\
         [messages.work]\ndeduplicate = {{ required = false, window = \"1h\" }}\n",
        bed.config(),
        receiver.url("/")
    );
    Gateway::start(&text).await
}

async fn publish(gateway: &Gateway, message: &Value) -> (u16, Value) {
    let answer = gateway.client().post(gateway.url("/v1/publish")).json(message).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

async fn what_is_scheduled_is_listed_and_can_be_cancelled(bed: &Bed) {
    let receiver = Receiver::start().await;
    let gateway = start(bed, &receiver).await;
    let list = async || {
        let answer = gateway.client().get(gateway.url("/v1/messages?state=scheduled")).send().await.unwrap();
        let items = answer.json::<Value>().await.unwrap()["items"].as_array().unwrap().clone();
        items.into_iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let later = |id: &str| json!({"type": "work", "id": id, "deduplicationId": "tonight", "delay": "2h"});
    let (status, answer) = publish(&gateway, &later("first")).await;
    assert_eq!(status, 202);
    assert!(answer["deliverAt"].is_string());
    assert_eq!(list().await, ["first"]);
    let (status, answer) = publish(&gateway, &later("second")).await;
    assert_eq!((status, &answer["id"], &answer["state"]), (200, &json!("first"), &json!("scheduled")));
    let delete = async |id: &str| {
        let request = gateway.client().delete(gateway.url(&format!("/v1/messages/{id}")));
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(delete("second").await, 404);
    assert_eq!(delete("first").await, 204);
    assert_eq!(delete("first").await, 404);
    assert!(list().await.is_empty());
    // Its deduplication id is free.
    assert_eq!(publish(&gateway, &later("second")).await.0, 202);
    assert_eq!(list().await, ["second"]);
    assert_eq!(publish(&gateway, &json!({"type": "t", "id": "now"})).await.0, 202);
    receiver.wait_for(1, SOON).await;
    assert_eq!(delete("now").await, 409);
    assert_eq!(receiver.count(), 1);
}

/// How long after its time a message came; negative: before.
fn lateness(request: &Received, start: (Instant, Timestamp)) -> chrono::Duration {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let due: Timestamp = body["due"].as_str().unwrap().parse().unwrap();
    let came = start.1 + request.at.duration_since(start.0);
    came - due
}

fn at(due: Timestamp, id: &str) -> Value {
    json!({"type": "t", "id": id, "deliverAt": due, "data": {"due": due}})
}

/// A clock and a stopwatch, read together: the wall clock is never ahead of the stopwatch by this.
fn now() -> (Instant, Timestamp) {
    let wall = Clock::system().now();
    (Instant::now(), wall)
}

async fn an_idle_node_sends_within_a_second_of_the_time(bed: &Bed) {
    let receiver = Receiver::start().await;
    let gateway = start(bed, &receiver).await;
    let start = now();
    for n in 0..3_i64 {
        let due = start.1 + chrono::Duration::milliseconds(2_500 + n * 2_300);
        assert_eq!(publish(&gateway, &at(due, &format!("m-{n}"))).await.0, 202);
    }
    let late: Vec<i64> =
        receiver.wait_for(3, SOON).await.iter().map(|one| lateness(one, start).num_milliseconds()).collect();
    eprintln!("idle, on {}: late by {late:?} ms", bed.engine());
    // A millisecond for the two clocks that are not read at the same time.
    assert!(late.iter().all(|ms| *ms >= -1), "none before its time: {late:?}");
    // One of three may have met a busy machine.
    assert!(late.iter().filter(|ms| **ms < 1_000).count() >= 2, "within a second: {late:?}");
}

/// 1,000 over a minute with `ONCEGATE_FULL=1`, else 300 over ten seconds.
async fn of_many_each_is_sent_once_and_none_early(bed: &Bed) {
    let (many, over_ms) =
        if std::env::var_os("ONCEGATE_FULL").is_some() { (1_000, 60_000) } else { (300, 10_000) };
    let receiver = Receiver::start().await;
    let gateway = start(bed, &receiver).await;
    let start = now();
    let first = start.1 + chrono::Duration::seconds(3);
    let messages: Vec<Value> = (0..many)
        .map(|n: i64| at(first + chrono::Duration::milliseconds(n * 7_919 % over_ms), &format!("m-{n}")))
        .collect();
    for batch in messages.chunks(100) {
        let request = gateway.client().post(gateway.url("/v1/publish-batch")).json(&batch);
        assert_eq!(request.send().await.unwrap().status(), 202);
    }
    let deadline = SOON + Duration::from_millis(over_ms.unsigned_abs());
    receiver.wait_for(messages.len(), deadline).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let received = receiver.received();
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for request in &received {
        *times.entry(request.header("id")).or_default() += 1;
    }
    assert_eq!(times.len(), messages.len());
    assert!(times.values().all(|times| *times == 1), "each once");
    let mut late: Vec<i64> = received.iter().map(|one| lateness(one, start).num_milliseconds()).collect();
    late.sort_unstable();
    let (p50, p99) = (late[late.len() / 2], late[late.len() * 99 / 100]);
    eprintln!("{many} scheduled messages on {}: late by {p50} ms (median), {p99} ms (p99)", bed.engine());
    assert!(late[0] >= -1, "none before its time: {} ms", late[0]);
}
