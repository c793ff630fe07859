//! Deliveries to handlers: over both stores, with the real binary.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::gateway::Gateway;
use crate::support::receiver::{Answer, Receiver};
use crate::support::{eventually, when};

const SOON: Duration = Duration::from_secs(20);

/// Every test, once per store.
macro_rules! on_both_stores {
    ($($test:ident)*) => {
        mod sqlite { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test("").await;
            }
        )* }
        mod postgres { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let Some(server) = crate::support::postgres::shared().await else { return };
                let url = server.fresh_database().await;
                super::$test(&format!("[stores.main]\nurl = '{url}'\n")).await;
            }
        )* }
    };
}

on_both_stores! {
    a_handler_gets_what_a_webhook_gets_and_its_id_as_the_key
    the_rebuild_story
    a_failed_handler_is_tried_again_and_its_claim_is_free
    two_handlers_of_one_type_run_once_each
    a_handler_slower_than_its_lease_does_not_run_twice
    a_message_without_a_needed_id_is_given_up_on
    a_message_that_comes_again_under_its_id_is_recognised
    what_was_handled_is_recognised_for_as_long_as_it_is_kept
    a_message_is_not_handled_after_its_deliver_by
    a_killed_node_leaves_nothing_undone_and_nothing_claimed
    a_reply_publishes_in_the_commit_that_settles
    a_reply_that_cannot_be_published_publishes_nothing
}

/// A handler `rebuild` of the type `projection.rebuild`, with these lines more.
fn config(store: &str, receiver: &Receiver, more: &str) -> String {
    format!(
        "{store}[durability]\ninbox_stale_time = '2s'\n[routing]\nunroutable = 'refuse'\n\
         [handlers.rebuild]\ntypes = ['projection.rebuild']\nurl = '{}'\n\
         retry = {{ initial = '50ms', max = '100ms' }}\n{more}\n",
        receiver.url("/rebuild")
    )
}

async fn publish(gateway: &Gateway, message: &Value) -> Value {
    let request = gateway.client().post(gateway.url("/v1/publish")).json(message);
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let body: Value = answer.json().await.unwrap();
    assert_eq!(status, 202, "{body}");
    body
}

async fn depth(gateway: &Gateway, name: &str) -> u64 {
    let answer = gateway.client().get(gateway.url("/v1/targets")).send().await.unwrap();
    let targets: Value = answer.json().await.unwrap();
    let items = targets["items"].as_array().unwrap();
    items.iter().filter(|item| item["name"] == name).map(|item| item["depth"].as_u64().unwrap()).sum()
}

async fn settled(gateway: &Gateway, name: &str) {
    eventually(SOON, "every delivery is settled", async || when(depth(gateway, name).await == 0)).await;
}

async fn state(gateway: &Gateway, id: &Value) -> Value {
    let path = format!("/v1/messages/{}", id.as_str().unwrap());
    gateway.client().get(gateway.url(&path)).send().await.unwrap().json().await.unwrap()
}

async fn metrics(gateway: &Gateway) -> String {
    gateway.client().get(gateway.url("/metrics")).send().await.unwrap().text().await.unwrap()
}

async fn a_handler_gets_what_a_webhook_gets_and_its_id_as_the_key(store: &str) {
    let receiver = Receiver::start().await;
    let secret = "secret = 'whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD'";
    let gateway = Gateway::start(&config(store, &receiver, secret)).await;
    let answer = publish(
        &gateway,
        &json!({"id": "m 1", "type": "projection.rebuild", "data": {"a": 1}, "deduplicationId": "d",
                "headers": {"x-own": "h"}, "correlationId": "c"}),
    )
    .await;
    assert_eq!((&answer["handlers"], &answer["destinations"]), (&json!(["rebuild"]), &json!([])));
    let received = &receiver.wait_for(1, SOON).await[0];
    assert_eq!((received.method.as_str(), received.uri.path()), ("POST", "/rebuild"));
    for (name, value) in [
        ("id", "m%201"),
        ("idempotency-key", "m%201"),
        ("message-type", "projection.rebuild"),
        ("content-type", "application/json"),
        ("deduplication-id", "d"),
        ("correlation-id", "c"),
        ("attempts", "1"),
        ("x-own", "h"),
        ("webhook-id", "m%201"),
    ] {
        assert_eq!(received.header(name), value, "{name}");
    }
    assert_eq!(received.text(), "{\"a\":1}");
    assert!(received.header("webhook-signature").starts_with("v1,"));
    settled(&gateway, "rebuild").await;
    let told = state(&gateway, &json!("m 1")).await;
    assert_eq!(
        (&told["handlers"][0]["state"], &told["handlers"][0]["attempts"]),
        (&json!("handled"), &json!(1))
    );
}

/// An operator's double click, a console's republish after a timeout, and a scheduler that had published the
/// occurrence before: four deliveries that ask for the same work.
async fn the_rebuild_story(store: &str) {
    let receiver = Receiver::scripted(|_, _| Answer::status(204).after(Duration::from_millis(300))).await;
    let more = "deduplicate = { from = 'deduplicationId' }\n[[deduplication.rules]]\n\
                types = ['projection.rebuild']\ntemplate = '{projectionName}|{occurrenceUtc}'";
    let gateway = Gateway::start(&config(store, &receiver, more)).await;
    let data = json!({"projectionName": "orders", "occurrenceUtc": "2026-01-01T02:00:00Z"});
    let message = json!({"type": "projection.rebuild", "data": data});
    let mut ahead = message.clone();
    ahead["delay"] = json!("1s");
    let mut ids = vec![publish(&gateway, &ahead).await["id"].clone()];
    let (one, other) = tokio::join!(publish(&gateway, &message), publish(&gateway, &message));
    assert_eq!(one["deduplicationId"], "orders|2026-01-01T02:00:00Z");
    ids.extend([one["id"].clone(), other["id"].clone(), publish(&gateway, &message).await["id"].clone()]);
    settled(&gateway, "rebuild").await;
    assert_eq!(receiver.count(), 1, "the handler runs once");
    for id in &ids {
        assert_eq!(state(&gateway, id).await["handlers"][0]["state"], "handled");
    }
    let said = gateway.stderr().matches("the handler has done this work").count();
    assert_eq!(said, 3, "{}", gateway.stderr());
    let counted = metrics(&gateway).await;
    assert!(
        counted.contains("oncegate_messages_duplicates_total{store=\"main\",type=\"projection.rebuild\"} 3"),
        "{counted}"
    );
    // Other work of the same type runs.
    let mut other = message.clone();
    other["data"]["projectionName"] = json!("invoices");
    publish(&gateway, &other).await;
    receiver.wait_for(2, SOON).await;
}

async fn a_failed_handler_is_tried_again_and_its_claim_is_free(store: &str) {
    let receiver = Receiver::failing_first(2, 500).await;
    let gateway =
        Gateway::start(&config(store, &receiver, "deduplicate = { from = { member = 'sku' } }")).await;
    let message = json!({"type": "projection.rebuild", "data": {"sku": "A"}});
    let id = publish(&gateway, &message).await["id"].clone();
    settled(&gateway, "rebuild").await;
    let attempts: Vec<_> = receiver.received().iter().map(|one| one.header("attempts").to_owned()).collect();
    assert_eq!(attempts, ["1", "2", "3"]);
    assert_eq!(state(&gateway, &id).await["handlers"][0]["state"], "handled");
    // Given up on: the claim is free for the next message that asks for the work.
    receiver.script(|_, _| Answer::status(500));
    let message = json!({"type": "projection.rebuild", "data": {"sku": "B"}});
    let id = publish(&gateway, &message).await["id"].clone();
    settled(&gateway, "rebuild").await;
    assert_eq!(state(&gateway, &id).await["handlers"][0]["errorKind"], "AttemptsExhausted");
    receiver.script(|_, _| Answer::status(204));
    publish(&gateway, &message).await;
    receiver.wait_for(7, SOON).await;
}

async fn two_handlers_of_one_type_run_once_each(store: &str) {
    let receiver = Receiver::start().await;
    let more = format!(
        "deduplicate = {{}}\n[handlers.audit]\ntypes = ['projection.*']\nurl = '{}'\ndeduplicate = {{}}",
        receiver.url("/audit")
    );
    let gateway = Gateway::start(&config(store, &receiver, &more)).await;
    let message = json!({"type": "projection.rebuild", "data": 1, "deduplicationId": "d"});
    let answer = publish(&gateway, &message).await;
    assert_eq!(answer["handlers"], json!(["audit", "rebuild"]));
    publish(&gateway, &message).await;
    settled(&gateway, "rebuild").await;
    settled(&gateway, "audit").await;
    let mut paths: Vec<_> = receiver.received().iter().map(|one| one.uri.path().to_owned()).collect();
    paths.sort();
    assert_eq!(paths, ["/audit", "/rebuild"]);
}

/// wolverine#585, #1019: recovery ran a message that was still being handled.
async fn a_handler_slower_than_its_lease_does_not_run_twice(store: &str) {
    let receiver = Receiver::scripted(|_, _| Answer::status(204).after(Duration::from_secs(6))).await;
    let config = config(store, &receiver, "timeout = '30s'\ndeduplicate = { required = false }");
    let one = Gateway::start(&config).await;
    // A second node on the same database takes what the first lets go of.
    let other = if store.is_empty() { None } else { Some(Gateway::start(&config).await) };
    publish(&one, &json!({"type": "projection.rebuild", "data": 1})).await;
    publish(&one, &json!({"type": "projection.rebuild", "data": 1, "deduplicationId": "d"})).await;
    settled(&one, "rebuild").await;
    assert_eq!(receiver.count(), 2, "each ran once");
    drop(other);
}

async fn a_message_without_a_needed_id_is_given_up_on(store: &str) {
    let receiver = Receiver::start().await;
    let gateway =
        Gateway::start(&config(store, &receiver, "deduplicate = { from = { header = 'X-Work' } }")).await;
    let id = publish(&gateway, &json!({"type": "projection.rebuild", "data": 1})).await["id"].clone();
    settled(&gateway, "rebuild").await;
    let told = state(&gateway, &id).await;
    assert_eq!(told["handlers"][0]["errorKind"], "MissingDeduplicationId", "{told}");
    assert_eq!(receiver.count(), 0);
    publish(&gateway, &json!({"type": "projection.rebuild", "data": 1, "headers": {"x-work": "7"}})).await;
    receiver.wait_for(1, SOON).await;
}

async fn a_message_that_comes_again_under_its_id_is_recognised(store: &str) {
    let receiver = Receiver::start().await;
    let more = "[handlers.other]\ntypes = ['other']\nurl = 'http://127.0.0.1:1/'";
    let gateway = Gateway::start(&config(store, &receiver, more)).await;
    for _ in 0..3 {
        publish(&gateway, &json!({"id": "m-1", "type": "projection.rebuild", "data": 1})).await;
        publish(&gateway, &json!({"type": "projection.rebuild", "data": 1})).await;
    }
    settled(&gateway, "rebuild").await;
    let with_id = receiver.received().iter().filter(|one| one.header("id") == "m-1").count();
    assert_eq!((with_id, receiver.count()), (1, 4), "without an id of its own each is another message");
}

async fn what_was_handled_is_recognised_for_as_long_as_it_is_kept(store: &str) {
    const KEPT: Duration = Duration::from_secs(3);
    let receiver = Receiver::start().await;
    let config =
        config(store, &receiver, "").replace("[durability]\n", "[durability]\nkeep_handled = '3s'\n");
    let gateway = Gateway::start(&config).await;
    let message = json!({"id": "m-1", "type": "projection.rebuild", "data": 1});
    // Again and again, until it is run a second time.
    let received = eventually(SOON, "it is forgotten", async || {
        publish(&gateway, &message).await;
        settled(&gateway, "rebuild").await;
        let received = receiver.received();
        (received.len() > 1).then_some(received)
    })
    .await;
    let apart = received[1].at.duration_since(received[0].at);
    assert!(apart >= KEPT, "{apart:?}");
    assert!(gateway.stderr().contains("the handler has done this work"));
}

async fn a_message_is_not_handled_after_its_deliver_by(store: &str) {
    let receiver = Receiver::start().await;
    let gateway = Gateway::start(&config(store, &receiver, "")).await;
    let paused = gateway.client().post(gateway.url("/v1/targets/rebuild/pause")).send().await.unwrap();
    assert_eq!(paused.status(), 204);
    let by = oncegate::domain::Clock::system().now() + chrono::Duration::seconds(3);
    let late = publish(&gateway, &json!({"type": "projection.rebuild", "deliverBy": by})).await["id"].clone();
    let other = publish(&gateway, &json!({"type": "projection.rebuild"})).await["id"].clone();
    // However long nobody may handle it.
    eventually(SOON, "it has expired", async || {
        when(state(&gateway, &late).await["handlers"][0]["state"] == "dead")
    })
    .await;
    assert_eq!(state(&gateway, &late).await["handlers"][0]["errorKind"], "Expired");
    let resumed = gateway.client().post(gateway.url("/v1/targets/rebuild/resume")).send().await.unwrap();
    assert_eq!(resumed.status(), 204);
    settled(&gateway, "rebuild").await;
    let received = receiver.received();
    assert_eq!((received.len(), received[0].header("id")), (1, other.as_str().unwrap()));
}

/// Before, during and after the handler's run: never zero times, and once where the handler uses its key.
async fn a_killed_node_leaves_nothing_undone_and_nothing_claimed(store: &str) {
    let receiver = Receiver::scripted(|n, _| {
        Answer::status(204).after(if n == 0 { Duration::from_secs(60) } else { Duration::ZERO })
    })
    .await;
    let mut gateway = Gateway::start(&config(store, &receiver, "timeout = '90s'\ndeduplicate = {}")).await;
    let message = |id: &str| json!({"type": "projection.rebuild", "data": 1, "deduplicationId": id});
    // During.
    publish(&gateway, &message("during")).await;
    receiver.wait_for(1, SOON).await;
    gateway.kill9();
    gateway.restart().await;
    let received = receiver.wait_for(2, SOON).await;
    assert_eq!(received[0].header("idempotency-key"), received[1].header("idempotency-key"));
    // Right after the answer, before or after its commit.
    publish(&gateway, &message("after")).await;
    receiver.wait_for(3, SOON).await;
    gateway.kill9();
    gateway.restart().await;
    settled(&gateway, "rebuild").await;
    // Before: accepted, and killed at once.
    for n in 0..5 {
        publish(&gateway, &message(&format!("before-{n}"))).await;
    }
    gateway.kill9();
    gateway.restart().await;
    settled(&gateway, "rebuild").await;
    let received = receiver.received();
    for id in ["during", "after", "before-0", "before-1", "before-2", "before-3", "before-4"] {
        let keys: Vec<_> = received
            .iter()
            .filter(|one| one.header("deduplication-id") == id)
            .map(|one| one.header("idempotency-key"))
            .collect();
        assert!(!keys.is_empty() && keys.iter().all(|key| *key == keys[0]), "{id}: {keys:?}");
    }
    // All is confirmed: none of it runs again.
    let before = receiver.count();
    for id in ["during", "after", "before-0"] {
        publish(&gateway, &message(id)).await;
    }
    settled(&gateway, "rebuild").await;
    assert_eq!(receiver.count(), before);
}

async fn a_reply_publishes_in_the_commit_that_settles(store: &str) {
    let receiver = Receiver::scripted(|_, received| {
        let event =
            |id: &str| json!({"specversion": "1.0", "id": id, "source": "/h", "type": "step", "data": id});
        match received.header("subject") {
            "one" => Answer::status(200)
                .header("content-type", "application/cloudevents+json; charset=utf-8")
                .body(&event("e1").to_string()),
            "two" => Answer::status(200)
                .header("content-type", "application/cloudevents-batch+json")
                .body(&json!([event("e2"), event("e3")]).to_string()),
            "reply" => Answer::status(200)
                .header("content-type", "application/vnd.oncegate.reply+json")
                .body(
                &json!({"response": 1, "messages": [{"id": "e4", "type": "step", "correlationId": "own"}]})
                    .to_string(),
            ),
            _ => Answer::status(204),
        }
    })
    .await;
    let more = format!("[handlers.step]\ntypes = ['step']\nurl = '{}'", receiver.url("/step"));
    let gateway = Gateway::start(&config(store, &receiver, &more)).await;
    for subject in ["one", "two", "reply"] {
        let message = json!({"id": format!("m-{subject}"), "type": "projection.rebuild", "subject": subject, "correlationId": "c"});
        publish(&gateway, &message).await;
    }
    receiver.wait_for(7, SOON).await;
    settled(&gateway, "rebuild").await;
    settled(&gateway, "step").await;
    let mut steps: Vec<_> = receiver
        .received()
        .iter()
        .filter(|one| one.uri.path() == "/step")
        .map(|one| ["id", "causation-id", "correlation-id"].map(|name| one.header(name).to_owned()).join(" "))
        .collect();
    steps.sort();
    assert_eq!(steps, ["e1 m-one c", "e2 m-two c", "e3 m-two c", "e4 m-reply own"]);
}

async fn a_reply_that_cannot_be_published_publishes_nothing(store: &str) {
    let receiver = Receiver::scripted(|_, received| {
        let reply = |body: &Value| {
            let answer = Answer::status(200).header("content-type", "application/vnd.oncegate.reply+json");
            answer.body(&body.to_string())
        };
        match received.header("subject") {
            "unroutable" => reply(&json!({"messages": [{"type": "step"}, {"type": "nowhere"}]})),
            "malformed" => reply(&json!({"messages": [{"type": "step"}, {"typ": "step"}]})),
            "unknown" => reply(&json!({"respond": 1})),
            "text" => {
                Answer::status(200).header("content-type", "application/cloudevents+json").body("nothing")
            }
            _ => Answer::status(204),
        }
    })
    .await;
    let more =
        format!("deduplicate = {{}}\n[handlers.step]\ntypes = ['step']\nurl = '{}'", receiver.url("/step"));
    let gateway = Gateway::start(&config(store, &receiver, &more)).await;
    for subject in ["unroutable", "malformed", "unknown", "text"] {
        let message = json!({"type": "projection.rebuild", "subject": subject, "deduplicationId": subject});
        let id = publish(&gateway, &message).await["id"].clone();
        settled(&gateway, "rebuild").await;
        let told = state(&gateway, &id).await;
        assert_eq!(told["handlers"][0]["errorKind"], "InvalidReply", "{subject}: {told}");
    }
    assert_eq!(depth(&gateway, "step").await, 0);
    assert_eq!(receiver.count(), 4, "nothing of a reply was published, and none was asked for again");
}
