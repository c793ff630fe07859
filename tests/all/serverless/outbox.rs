//! `serverless-with-outbox`: what the request itself sends, and what it leaves.

use std::time::Duration;

use serde_json::{Value, json};

use super::{SOON, pass, passes, route, webhook, with_outbox};
use crate::support::bed::{Bed, on_every_store_and_a_pooler};
use crate::support::gateway::Gateway;
use crate::support::receiver::{Answer, Receiver};
use crate::support::{eventually, when};

on_every_store_and_a_pooler! {
    a_publish_is_sent_by_its_request_and_tells_what_became_of_it
    destinations_are_sent_to_side_by_side_and_each_in_order
    an_ordered_destination_keeps_the_order_of_its_keys
    what_is_accepted_of_a_batch_goes_and_the_rest_stays
    a_client_that_hangs_up_changes_nothing
    a_killed_request_leaves_its_rows_to_a_pass
    a_paused_destination_keeps_its_messages_until_it_is_resumed
    what_an_invoked_handler_publishes_is_sent_by_the_invoke
}

/// Answers by the path: `/ok` takes, `/down` is overloaded, `/broken` fails, `/never` refuses.
async fn by_path() -> Receiver {
    Receiver::scripted(|_, request| {
        Answer::status(match request.uri.path() {
            "/ok" => 204,
            "/down" => 503,
            "/broken" => 500,
            _ => 400,
        })
    })
    .await
}

async fn a_publish_is_sent_by_its_request_and_tells_what_became_of_it(bed: &Bed) {
    let receiver = by_path().await;
    let destinations = ["ok", "down", "broken", "never"];
    let webhooks: String = destinations.map(|name| webhook(name, &receiver, &format!("/{name}"))).concat();
    let config = with_outbox(bed, &(webhooks + &route("*", &destinations)));
    let gateway = Gateway::start(&config).await;
    let send = async |key: &str| {
        let request = gateway.client().post(gateway.url("/v1/publish")).header("Idempotency-Key", key);
        let answer = request.json(&json!({"type": "order.created", "data": 1})).send().await.unwrap();
        let replayed = answer.headers().contains_key("idempotent-replayed");
        let location = answer.headers().get("location").unwrap().to_str().unwrap().to_owned();
        (answer.status().as_u16(), replayed, location, answer.text().await.unwrap())
    };
    let (status, replayed, location, body) = send("k").await;
    assert_eq!((status, replayed), (202, false), "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    let outcomes = json!({"ok": "sent", "down": "pending", "broken": "pending", "never": "dead"});
    assert_eq!(answer["outcomes"], outcomes);
    assert_eq!(answer["destinations"], json!(destinations));
    // Rows go on acknowledgement; what failed stays, what never works is a dead letter.
    assert_eq!(bed.count("deliveries").await, 2);
    assert_eq!(bed.count("receipts").await, 1);
    assert_eq!(bed.count("dead_letters").await, 1);
    assert_eq!(receiver.count(), 4);
    // The same request again: the same bytes, and nothing is sent.
    assert_eq!(send("k").await, (202, true, location.clone(), body));
    assert_eq!(receiver.count(), 4);
    let (_, message) = gateway.get(&location).await;
    let states: Vec<_> = message["destinations"].as_array().unwrap().iter().map(|d| &d["state"]).collect();
    assert!(states.contains(&&json!("sent")) && states.contains(&&json!("dead")), "{message}");
}

async fn destinations_are_sent_to_side_by_side_and_each_in_order(bed: &Bed) {
    // Two destinations that each wait for the other's first request: one after the other would never end in time.
    let receiver = Receiver::scripted(|_, _| Answer::status(204).after(Duration::from_millis(100))).await;
    let config = with_outbox(
        bed,
        &(webhook("one", &receiver, "/one")
            + &webhook("two", &receiver, "/two")
            + &route("*", &["one", "two"])),
    );
    let gateway = Gateway::start(&config).await;
    let batch: Vec<Value> = (0..8).map(|n| json!({"type": "t", "id": format!("m{n}"), "data": n})).collect();
    let (status, answer) = gateway.post("/v1/publish-batch", json!(batch)).await;
    assert_eq!(status, 202, "{answer}");
    for message in answer["messages"].as_array().unwrap() {
        assert_eq!(message["outcomes"], json!({"one": "sent", "two": "sent"}));
    }
    let received = receiver.received();
    for path in ["/one", "/two"] {
        let bodies: Vec<String> = received
            .iter()
            .filter(|r| r.uri.path() == path)
            .map(crate::support::receiver::Received::text)
            .collect();
        assert_eq!(bodies, ["0", "1", "2", "3", "4", "5", "6", "7"], "{path}");
    }
    let last_of_one = received.iter().rposition(|r| r.uri.path() == "/one").unwrap();
    let first_of_two = received.iter().position(|r| r.uri.path() == "/two").unwrap();
    assert!(first_of_two < last_of_one, "one destination waited for the other");
}

async fn an_ordered_destination_keeps_the_order_of_its_keys(bed: &Bed) {
    let receiver =
        Receiver::scripted(|_, request| Answer::status(if request.text() == "\"a1\"" { 500 } else { 204 }))
            .await;
    let out = webhook("out", &receiver, "/") + "ordered = true\n";
    let config = with_outbox(bed, &(out + &route("*", &["out"])));
    let gateway = Gateway::start(&config).await;
    let message = |text: &str| json!({"type": "t", "partitionKey": &text[..1], "data": text});
    let batch: Vec<Value> = ["a0", "b0", "a1", "b1", "a2", "b2"].map(message).into();
    let (status, answer) = gateway.post("/v1/publish-batch", json!(batch)).await;
    assert_eq!(status, 202, "{answer}");
    let outcomes: Vec<&Value> =
        answer["messages"].as_array().unwrap().iter().map(|message| &message["outcomes"]["out"]).collect();
    assert_eq!(outcomes, ["sent", "sent", "pending", "sent", "pending", "sent"]);
    // The one behind it waits, and so does one that comes later; nothing is to be done until it is due.
    let (_, answer) = gateway.publish(message("a3")).await;
    assert_eq!(answer["outcomes"]["out"], "pending", "{answer}");
    receiver.script(|_, _| Answer::status(204));
    eventually(SOON, "the key goes on", async || {
        passes(&gateway, "").await;
        when(bed.count("deliveries").await == 0)
    })
    .await;
    let of = |key: char| -> Vec<String> {
        let all = receiver.received();
        let bodies = all
            .iter()
            .filter(|r| r.answered.is_some_and(|s| s == 204))
            .map(crate::support::receiver::Received::text);
        bodies.filter(|text| text.contains(key)).collect()
    };
    assert_eq!(of('a'), ["\"a0\"", "\"a1\"", "\"a2\"", "\"a3\""]);
    assert_eq!(of('b'), ["\"b0\"", "\"b1\"", "\"b2\""]);
}

async fn what_is_accepted_of_a_batch_goes_and_the_rest_stays(bed: &Bed) {
    let receiver = Receiver::scripted(|_, request| {
        Answer::status(match request.text().as_str() {
            "2" => 500,
            "4" => 400,
            _ => 204,
        })
    })
    .await;
    let config = with_outbox(bed, &(webhook("out", &receiver, "/") + &route("*", &["out"])));
    let gateway = Gateway::start(&config).await;
    let batch: Vec<Value> = (0..6).map(|n| json!({"type": "t", "data": n})).collect();
    let (status, answer) = gateway.post("/v1/publish-batch", json!(batch)).await;
    assert_eq!(status, 202, "{answer}");
    let outcomes: Vec<&Value> =
        answer["messages"].as_array().unwrap().iter().map(|message| &message["outcomes"]["out"]).collect();
    assert_eq!(outcomes, ["sent", "sent", "pending", "sent", "dead", "sent"]);
    assert_eq!(bed.count("deliveries").await, 1, "only what was not taken");
    receiver.script(|_, _| Answer::status(204));
    eventually(SOON, "the rest is due and sent", async || {
        when(pass(&gateway, "").await.1["outgoingSent"] == 1)
    })
    .await;
    assert_eq!(receiver.count(), 7, "nothing was sent twice");
    assert_eq!(bed.count("deliveries").await, 0);
}

async fn a_client_that_hangs_up_changes_nothing(bed: &Bed) {
    let receiver = Receiver::scripted(|_, _| Answer::status(204).after(Duration::from_millis(800))).await;
    let config = with_outbox(bed, &(webhook("out", &receiver, "/") + &route("*", &["out"])));
    let gateway = Gateway::start(&config).await;
    let request = gateway.client().post(gateway.url("/v1/publish")).header("Idempotency-Key", "k");
    let request = request.json(&json!({"type": "t", "data": 1}));
    let hasty = tokio::spawn(request.try_clone().unwrap().send());
    receiver.wait_for(1, SOON).await;
    hasty.abort();
    eventually(SOON, "it was sent and settled all the same", async || {
        when(bed.count("receipts").await == 1 && bed.count("deliveries").await == 0)
    })
    .await;
    let answer = request.send().await.unwrap();
    assert!(answer.headers().contains_key("idempotent-replayed"));
    assert_eq!(receiver.count(), 1);
}

async fn a_killed_request_leaves_its_rows_to_a_pass(bed: &Bed) {
    let receiver = Receiver::scripted(|_, _| Answer::status(204).after(Duration::from_secs(30))).await;
    let timeout = "timeout = '2s'\n";
    let config = with_outbox(bed, &(webhook("out", &receiver, "/") + timeout + &route("*", &["out"])));
    let mut gateway = Gateway::start(&config).await;
    let url = gateway.url("/v1/publish");
    let client = gateway.client().clone();
    let publishing = tokio::spawn(async move { client.post(url).json(&json!({"type": "t"})).send().await });
    receiver.wait_for(1, SOON).await;
    gateway.kill9();
    assert!(publishing.await.unwrap().is_err());
    assert_eq!(bed.count("deliveries").await, 1, "it was stored before it was sent");
    receiver.script(|_, _| Answer::status(204));
    gateway.restart().await;
    // Leased to the request that died, for its timeout and five seconds; then a pass has it.
    eventually(SOON, "a pass sent it", async || when(pass(&gateway, "").await.1["outgoingSent"] == 1)).await;
    assert_eq!(bed.count("deliveries").await, 0);
}

async fn a_paused_destination_keeps_its_messages_until_it_is_resumed(bed: &Bed) {
    let receiver = Receiver::start().await;
    let config = with_outbox(bed, &(webhook("out", &receiver, "/") + &route("*", &["out"])));
    let gateway = Gateway::start(&config).await;
    let pausing = gateway.client().post(gateway.url("/v1/targets/out/pause")).send().await.unwrap();
    assert_eq!(pausing.status(), 204);
    let (_, answer) = gateway.publish(json!({"type": "t"})).await;
    assert_eq!(answer["outcomes"]["out"], "pending");
    let (_, report) = pass(&gateway, "").await;
    assert_eq!((&report["outgoingSent"], &report["hasMoreWork"]), (&json!(0), &json!(false)), "{report}");
    assert_eq!(receiver.count(), 0);
    gateway.client().post(gateway.url("/v1/targets/out/resume")).send().await.unwrap();
    assert_eq!(passes(&gateway, "").await, (1, 0));
}

async fn what_an_invoked_handler_publishes_is_sent_by_the_invoke(bed: &Bed) {
    let receiver = Receiver::scripted(|_, request| match request.uri.path() {
        "/handler" => Answer::status(200)
            .header("content-type", "application/vnd.oncegate.reply+json")
            .body(r#"{"response":{"done":true},"messages":[{"type":"done","data":7}]}"#),
        _ => Answer::status(204),
    })
    .await;
    let handler = format!("[handlers.h]\ntypes = ['do']\nurl = '{}'\n", receiver.url("/handler"));
    let config = with_outbox(bed, &(webhook("out", &receiver, "/out") + &route("done", &["out"]) + &handler));
    let gateway = Gateway::start(&config).await;
    let (status, answer) = gateway.post("/v1/invoke/do", json!({})).await;
    assert_eq!((status, &answer["done"]), (200, &json!(true)), "{answer}");
    let sent = receiver.received();
    assert_eq!(sent.iter().filter(|r| r.uri.path() == "/out" && r.text() == "7").count(), 1);
    assert_eq!(bed.count("deliveries").await, 0);
    // A delivery to the handler waits for a pass, and what it publishes for another one.
    let (_, answer) = gateway.publish(json!({"type": "do"})).await;
    assert_eq!((&answer["handlers"], &answer["outcomes"]), (&json!(["h"]), &json!({})), "{answer}");
    assert_eq!(bed.count("deliveries").await, 1);
    let (_, report) = pass(&gateway, "").await;
    assert_eq!((&report["incomingHandled"], &report["hasMoreWork"]), (&json!(1), &json!(true)), "{report}");
    assert_eq!(passes(&gateway, "").await, (1, 0));
}
