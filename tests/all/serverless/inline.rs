//! `serverless`, and `mode = "inline"`: sent before the answer, stored nowhere.

use std::time::Duration;

use serde_json::{Value, json};

use super::{SOON, route, webhook};
use crate::support::bed::{Bed, on_every_store_and_a_pooler};
use crate::support::gateway::Gateway;
use crate::support::receiver::{Answer, Receiver};
use crate::support::{eventually, when};

on_every_store_and_a_pooler! {
    a_publish_is_answered_when_it_is_sent_and_stored_nowhere
    a_failed_send_is_told_and_frees_key_and_claim
    a_duplicate_is_not_sent
    of_a_batch_that_failed_only_the_rest_is_sent_again
    what_only_a_later_moment_or_a_handler_could_take_is_refused
    a_handler_is_invoked_and_what_it_publishes_is_sent
    a_killed_publish_leaves_no_duplicate_of_itself
    an_inline_destination_is_sent_to_before_the_others_are_stored
}

fn serverless(bed: &Bed, more: &str) -> String {
    format!("{}migrate = true\n[durability]\nmode = 'serverless'\n{more}", bed.config())
}

const DEDUPLICATED: &str = "[messages.t]\ndeduplicate = { window = '1h', required = false }\n";

async fn a_publish_is_answered_when_it_is_sent_and_stored_nowhere(bed: &Bed) {
    let receiver = Receiver::start().await;
    let config = serverless(bed, &(webhook("out", &receiver, "/") + &route("*", &["out"])));
    let gateway = Gateway::start(&config).await;
    let (status, answer) = gateway.publish(json!({"type": "t", "data": 1})).await;
    assert_eq!(
        (status, &answer["outcome"], &answer["destinations"]),
        (202, &json!("accepted"), &json!(["out"]))
    );
    assert_eq!(answer.get("outcomes"), None);
    assert_eq!(receiver.count(), 1, "sent before the answer");
    let batch: Vec<Value> = (0..20).map(|n| json!({"type": "t", "data": n})).collect();
    assert_eq!(gateway.post("/v1/publish-batch", json!(batch)).await.0, 202);
    let bodies: Vec<String> =
        receiver.received()[1..].iter().map(crate::support::receiver::Received::text).collect();
    assert_eq!(bodies, (0..20).map(|n| n.to_string()).collect::<Vec<_>>(), "in order");
    for table in ["deliveries", "receipts", "dead_letters", "deduplication"] {
        assert_eq!(bed.count(table).await, 0, "{table}");
    }
}

async fn a_failed_send_is_told_and_frees_key_and_claim(bed: &Bed) {
    let receiver = Receiver::scripted(|_, _| Answer::status(503).header("retry-after", "7")).await;
    let out = webhook("out", &receiver, "/").replace("open = '1s'", "open = '10ms'");
    let config = serverless(bed, &(out + &route("*", &["out"]) + DEDUPLICATED));
    let gateway = Gateway::start(&config).await;
    let send = async || {
        let request = gateway.client().post(gateway.url("/v1/publish")).header("Idempotency-Key", "k");
        let answer = request.json(&json!({"type": "t", "deduplicationId": "d"})).send().await.unwrap();
        let retry_after = answer.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        (answer.status().as_u16(), retry_after, answer.json::<Value>().await.unwrap())
    };
    let (status, retry_after, problem) = send().await;
    assert_eq!((status, retry_after.as_deref()), (502, Some("7")), "{problem}");
    assert_eq!(problem["type"], "/problems/destination-failed");
    assert!(problem["detail"].as_str().unwrap().contains("`out`"), "{problem}");
    assert_eq!(bed.count("deduplication").await, 0, "free before the answer");
    // The message's fault: no repeating helps.
    receiver.script(|_, _| Answer::status(400));
    let refused = async || {
        let (status, retry_after, problem) = send().await;
        // While the breaker is open nothing is asked.
        when(status == 502 && retry_after.is_none()).map(|()| problem)
    };
    let problem = eventually(SOON, "the destination refuses it", refused).await;
    assert_eq!(problem["type"], "/problems/destination-failed");
    assert_eq!(bed.count("deduplication").await, 0);
    receiver.script(|_, _| Answer::status(204));
    assert_eq!(send().await.0, 202, "the key and the id are free");
    let asked = receiver.count();
    assert_eq!(send().await.0, 202, "replayed");
    assert_eq!(receiver.count(), asked);
}

async fn a_duplicate_is_not_sent(bed: &Bed) {
    let receiver = Receiver::start().await;
    let config = serverless(bed, &(webhook("out", &receiver, "/") + &route("*", &["out"]) + DEDUPLICATED));
    let gateway = Gateway::start(&config).await;
    let message = json!({"type": "t", "id": "first", "deduplicationId": "d"});
    let (status, answer) = gateway.publish(message.clone()).await;
    assert_eq!(status, 202, "{answer}");
    assert!(answer["expiresAt"].is_string(), "{answer}");
    let (status, answer) = gateway.publish(json!({"type": "t", "deduplicationId": "d"})).await;
    assert_eq!(
        (status, &answer["outcome"], &answer["id"]),
        (200, &json!("duplicate"), &json!("first")),
        "{answer}"
    );
    assert_eq!(answer["state"], "sent");
    let (status, answer) = gateway.post("/v1/publish-batch", json!([message, {"type": "t"}])).await;
    assert_eq!(status, 202, "{answer}");
    assert_eq!(answer["messages"][0]["outcome"], "duplicate");
    assert_eq!(answer["messages"][1]["outcome"], "accepted");
    assert_eq!(receiver.count(), 2);
    // While the first is on its way, a second one is not acknowledged: the first may fail.
    receiver.script(|_, _| Answer::status(500).after(Duration::from_secs(2)));
    let url = gateway.url("/v1/publish");
    let slow = gateway.client().post(&url).json(&json!({"type": "t", "deduplicationId": "e"})).send();
    let slow = tokio::spawn(slow);
    receiver.wait_for(3, SOON).await;
    let (status, problem) = gateway.publish(json!({"type": "t", "deduplicationId": "e"})).await;
    assert_eq!((status, &problem["type"]), (409, &json!("/problems/duplicate")), "{problem}");
    assert_eq!(slow.await.unwrap().unwrap().status(), 502);
}

async fn of_a_batch_that_failed_only_the_rest_is_sent_again(bed: &Bed) {
    let receiver =
        Receiver::scripted(|_, request| Answer::status(if request.text() == "1" { 500 } else { 204 })).await;
    let config = serverless(bed, &(webhook("out", &receiver, "/") + &route("*", &["out"]) + DEDUPLICATED));
    let gateway = Gateway::start(&config).await;
    let batch: Vec<Value> =
        (0..3).map(|n| json!({"type": "t", "data": n, "deduplicationId": format!("d{n}")})).collect();
    let (status, problem) = gateway.post("/v1/publish-batch", json!(batch)).await;
    assert_eq!(status, 502, "{problem}");
    assert!(problem["detail"].as_str().unwrap().starts_with("Element 1:"), "{problem}");
    receiver.script(|_, _| Answer::status(204));
    let (status, answer) = gateway.post("/v1/publish-batch", json!(batch)).await;
    assert_eq!(status, 202, "{answer}");
    assert_eq!(answer["messages"][0]["outcome"], "duplicate", "it was sent: {answer}");
    let bodies: Vec<String> =
        receiver.received().iter().map(crate::support::receiver::Received::text).collect();
    assert_eq!(bodies, ["0", "1", "1", "2"]);
}

async fn what_only_a_later_moment_or_a_handler_could_take_is_refused(bed: &Bed) {
    let receiver = Receiver::start().await;
    let handler = format!("[handlers.h]\ntypes = ['do', 'both']\nurl = '{}'\n", receiver.url("/h"));
    let routes = route("t", &["out"]) + &route("both", &["out"]);
    let config = serverless(bed, &(webhook("out", &receiver, "/") + &routes + &handler));
    let gateway = Gateway::start(&config).await;
    let tomorrow = oncegate::domain::Clock::system().now() + chrono::Duration::days(1);
    for message in [json!({"type": "t", "delay": "1s"}), json!({"type": "t", "deliverAt": tomorrow})] {
        let (status, problem) = gateway.publish(message).await;
        assert_eq!(
            (status, &problem["type"]),
            (422, &json!("/problems/scheduling-unavailable")),
            "{problem}"
        );
    }
    let (status, problem) = gateway.publish(json!({"type": "do"})).await;
    assert_eq!((status, &problem["type"]), (422, &json!("/problems/unroutable")), "{problem}");
    let mixed = json!([{"type": "t"}, {"type": "do"}]);
    let (status, problem) = gateway.post("/v1/publish-batch", mixed).await;
    assert_eq!(status, 422);
    assert!(problem["detail"].as_str().unwrap().starts_with("Element 1:"), "{problem}");
    assert_eq!(receiver.count(), 0, "nothing was sent");
    // A moment that has passed is now.
    assert_eq!(gateway.publish(json!({"type": "t", "deliverAt": "2020-01-01T00:00:00Z"})).await.0, 202);
    let (status, answer) = gateway.publish(json!({"type": "both"})).await;
    assert_eq!((status, &answer["handlers"], &answer["destinations"]), (202, &json!([]), &json!(["out"])));
    assert!(gateway.stderr().contains("handlers.h: in durability.mode"), "{}", gateway.stderr());
}

async fn a_handler_is_invoked_and_what_it_publishes_is_sent(bed: &Bed) {
    let receiver = Receiver::scripted(|_, request| match request.uri.path() {
        "/h" => Answer::status(200)
            .header("content-type", "application/vnd.oncegate.reply+json")
            .body(r#"{"response":{"done":true},"messages":[{"type":"t","data":7}]}"#),
        _ => Answer::status(503),
    })
    .await;
    let handler = format!("[handlers.h]\ntypes = ['do']\nurl = '{}'\n", receiver.url("/h"));
    let out = webhook("out", &receiver, "/").replace("open = '1s'", "open = '10ms'");
    let config = serverless(bed, &(out + &route("t", &["out"]) + &handler));
    let gateway = Gateway::start(&config).await;
    let invoke = async || {
        let request = gateway.client().post(gateway.url("/v1/invoke/do")).header("Idempotency-Key", "k");
        let answer = request.json(&json!({})).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let (status, problem) = invoke().await;
    assert_eq!((status, &problem["type"]), (502, &json!("/problems/destination-failed")), "{problem}");
    receiver.script(|_, request| match request.uri.path() {
        "/h" => Answer::status(200)
            .header("content-type", "application/vnd.oncegate.reply+json")
            .body(r#"{"response":{"done":true},"messages":[{"type":"t","data":7}]}"#),
        _ => Answer::status(204),
    });
    eventually(SOON, "it runs again", async || when(invoke().await.0 == 200)).await;
    assert_eq!(bed.count("deliveries").await, 0);
    let sent = receiver.received();
    assert_eq!(sent.iter().filter(|r| r.text() == "7" && r.answered.is_some_and(|s| s == 204)).count(), 1);
}

/// wolverine (6.51.3 notes): a crash after the claim made the message its own duplicate.
async fn a_killed_publish_leaves_no_duplicate_of_itself(bed: &Bed) {
    let receiver = Receiver::scripted(|_, _| Answer::status(204).after(Duration::from_secs(30))).await;
    let config = serverless(
        bed,
        &(webhook("out", &receiver, "/")
            + &route("*", &["out"])
            + DEDUPLICATED
            + "[idempotency]\nlease = '2s'\n"),
    );
    let mut gateway = Gateway::start(&config).await;
    let message = json!({"type": "t", "deduplicationId": "d"});
    let (client, url) = (gateway.client().clone(), gateway.url("/v1/publish"));
    let request = client.post(url).header("Idempotency-Key", "k").json(&message);
    let dying = tokio::spawn(request.try_clone().unwrap().send());
    receiver.wait_for(1, SOON).await;
    assert_eq!(bed.count("deduplication").await, 2, "claimed before it is sent");
    gateway.kill9();
    assert!(dying.await.unwrap().is_err());
    receiver.script(|_, _| Answer::status(204));
    gateway.restart().await;
    eventually(SOON, "the leases end, and it is sent", async || {
        let status = request.try_clone().unwrap().send().await.unwrap().status().as_u16();
        assert_ne!(status, 200, "its own duplicate");
        when(status == 202)
    })
    .await;
    assert_eq!(receiver.count(), 2);
}

async fn an_inline_destination_is_sent_to_before_the_others_are_stored(bed: &Bed) {
    let receiver = Receiver::scripted(|_, request| {
        Answer::status(if request.uri.path() == "/inline" { 500 } else { 204 })
    })
    .await;
    let inline = webhook("inline", &receiver, "/inline") + "mode = 'inline'\n";
    let config = bed.config()
        + &inline
        + &webhook("out", &receiver, "/out")
        + &route("*", &["inline", "out"])
        + DEDUPLICATED;
    let gateway = Gateway::start(&config).await;
    let message = json!({"type": "t", "deduplicationId": "d"});
    let (status, problem) = gateway.publish(message.clone()).await;
    assert_eq!((status, &problem["type"]), (502, &json!("/problems/destination-failed")), "{problem}");
    assert_eq!(bed.count("deliveries").await, 0, "nothing is stored for the others");
    receiver.script(|_, _| Answer::status(204));
    let (status, answer) = gateway.publish(message.clone()).await;
    assert_eq!((status, &answer["destinations"]), (202, &json!(["inline", "out"])), "{answer}");
    assert_eq!(receiver.received().iter().filter(|r| r.uri.path() == "/inline").count(), 2);
    eventually(SOON, "the other one is sent in the background", async || {
        when(receiver.received().iter().any(|r| r.uri.path() == "/out"))
    })
    .await;
    assert_eq!(gateway.publish(message).await.0, 200, "a duplicate");
    // What is scheduled is sent from the outbox.
    let (status, _) = gateway.publish(json!({"type": "t", "delay": "1s"})).await;
    assert_eq!(status, 202);
    eventually(SOON, "it is sent when it is due", async || {
        when(receiver.received().iter().filter(|r| r.uri.path() == "/inline").count() == 3)
    })
    .await;
}
