//! Receivers over HTTP, with the real binary and on both stores: what a sender is answered, and what runs.

use std::time::Duration;

use serde_json::json;

use crate::support::gateway::Gateway;
use crate::support::push::Sample;
use crate::support::receiver::{Answer, Receiver};
use crate::support::{eventually, when};

const SOON: Duration = Duration::from_secs(30);

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
    what_is_pushed_again_is_run_once
    what_failed_is_taken_back_and_run_when_it_is_pushed_again
    what_was_killed_in_mid_request_is_run_by_the_next_taker
    what_a_handler_refuses_is_a_dead_letter_and_answered_as_done
    the_first_that_wants_a_retry_stops_the_rest
}

fn config(store: &str, handler: &Receiver, more: &str) -> String {
    format!(
        "{store}[durability]\ninbox_stale_time = '2s'\n[handlers.rebuild]\ntypes = ['none']\nurl = '{}'\n\
         breaker = {{ failures = 100 }}\n\
         [receivers.ce]\nformat = 'cloudevents'\nhandler = 'rebuild'\nauthorize = 'anonymous'\n{more}\n",
        handler.url("/rebuild")
    )
}

/// An event in the structured mode; the answer's status.
async fn event(gateway: &Gateway, id: &str) -> u16 {
    let event =
        json!({ "specversion": "1.0", "type": "order.created", "source": "/shop", "id": id, "data": 1 });
    events(gateway, "application/cloudevents+json", &event).await
}

async fn events(gateway: &Gateway, content_type: &str, body: &serde_json::Value) -> u16 {
    let request = gateway.client().post(gateway.url("/v1/push/ce")).header("content-type", content_type);
    request.body(body.to_string()).send().await.unwrap().status().as_u16()
}

const RECOGNISED: &str = "deduplicate_with_inbox = true";

async fn what_is_pushed_again_is_run_once(store: &str) {
    let handler = Receiver::start().await;
    let mut gateway = Gateway::start(&config(store, &handler, RECOGNISED)).await;
    handler.script(|n, _| Answer::status(200).after(Duration::from_secs(if n == 0 { 5 } else { 0 })));
    let first = tokio::spawn({
        let (client, url) = (gateway.client().clone(), gateway.url("/v1/push/ce"));
        async move {
            let event = json!({ "specversion": "1.0", "type": "t", "source": "/shop", "id": "1" });
            let request = client.post(url).header("content-type", "application/cloudevents+json");
            request.body(event.to_string()).send().await.unwrap().status().as_u16()
        }
    });
    eventually(SOON, "the handler runs", async || when(handler.count() == 1)).await;
    // The same while it runs: not run, and not acknowledged.
    assert_eq!(event(&gateway, "1").await, 500);
    assert_eq!(first.await.unwrap(), 200);
    assert_eq!(event(&gateway, "1").await, 200);
    assert_eq!(handler.count(), 1);
    assert_eq!(event(&gateway, "2").await, 200);
    assert_eq!(handler.count(), 2);
    gateway.kill9();
}

async fn what_failed_is_taken_back_and_run_when_it_is_pushed_again(store: &str) {
    let handler = Receiver::start().await;
    let mut gateway = Gateway::start(&config(store, &handler, RECOGNISED)).await;
    handler.script(|n, _| Answer::status(if n == 0 { 500 } else { 200 }));
    assert_eq!(event(&gateway, "1").await, 500);
    assert_eq!(event(&gateway, "1").await, 200);
    assert_eq!(event(&gateway, "1").await, 200);
    assert_eq!(handler.count(), 2);
    gateway.kill9();
}

async fn what_was_killed_in_mid_request_is_run_by_the_next_taker(store: &str) {
    let handler = Receiver::start().await;
    let mut gateway = Gateway::start(&config(store, &handler, RECOGNISED)).await;
    handler.script(|n, _| Answer::status(200).after(Duration::from_secs(if n == 0 { 600 } else { 0 })));
    let (client, url) = (gateway.client().clone(), gateway.url("/v1/push/ce"));
    let cut_off = tokio::spawn(async move {
        let event = json!({ "specversion": "1.0", "type": "order.created", "source": "/shop", "id": "1" });
        let request = client.post(url).header("content-type", "application/cloudevents+json");
        request.body(event.to_string()).send().await.is_err()
    });
    eventually(SOON, "the handler runs", async || when(handler.count() == 1)).await;
    gateway.kill9();
    gateway.restart().await;
    assert!(cut_off.await.unwrap());
    eventually(SOON, "the next taker runs it", async || when(handler.count() == 2)).await;
    eventually(SOON, "pushed again, it is known", async || when(event(&gateway, "1").await == 200)).await;
    assert_eq!(handler.count(), 2);
    gateway.kill9();
}

async fn what_a_handler_refuses_is_a_dead_letter_and_answered_as_done(store: &str) {
    let handler = Receiver::start().await;
    let mut gateway = Gateway::start(&config(store, &handler, "")).await;
    handler.script(|_, _| Answer::status(422));
    assert_eq!(event(&gateway, "1").await, 200);
    let letters = gateway.client().get(gateway.url("/v1/dead-letters")).send().await.unwrap();
    let letters: serde_json::Value = letters.json().await.unwrap();
    assert_eq!(letters["items"][0]["messageId"], "1", "{letters}");
    assert_eq!(letters["items"][0]["data"], 1, "{letters}");
    gateway.kill9();
}

async fn the_first_that_wants_a_retry_stops_the_rest(store: &str) {
    let handler = Receiver::start().await;
    let mut gateway = Gateway::start(&config(store, &handler, RECOGNISED)).await;
    handler.script(|n, _| Answer::status(if n == 1 { 500 } else { 200 }));
    let one = |id: &str| json!({ "specversion": "1.0", "type": "t", "source": "/shop", "id": id });
    let batch = json!([one("1"), one("2"), one("3")]);
    let batched = "application/cloudevents-batch+json";
    assert_eq!(events(&gateway, batched, &batch).await, 500);
    assert_eq!(handler.count(), 2);
    assert_eq!(events(&gateway, batched, &batch).await, 200);
    assert_eq!(handler.count(), 4, "the first is known, the others run");
    gateway.kill9();
}

/// The samples' requests, as they were recorded, and what they are answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_samples_are_answered_as_their_senders_expect() {
    let handler = Receiver::start().await;
    let anonymous = "handler = 'rebuild'\nauthorize = 'anonymous'\n";
    let more = format!(
        "[receivers.pubsub]\nformat = 'pubsub'\ntype = 'order.created'\n{anonymous}\
         [receivers.pubsub-raw]\nformat = 'pubsub'\ntype = 'order.created'\nunwrapped = true\n{anonymous}\
         [receivers.eventbridge]\nformat = 'eventbridge'\nhandler = 'rebuild'\n\
         api_key = {{ header = 'x-api-key', value = 'demo' }}\n"
    );
    let mut gateway = Gateway::start(&config("", &handler, &more)).await;
    for (name, receiver, status) in [
        ("pubsub-01-wrapped-basic", "pubsub", 200),
        ("pubsub-02-attributes-only", "pubsub", 200),
        ("pubsub-03-camel-case-only", "pubsub", 200),
        ("pubsub-05-ordering-and-attempt", "pubsub", 200),
        ("pubsub-07-unwrapped-metadata", "pubsub-raw", 200),
        ("pubsub-09-eventarc-binary-ce", "pubsub", 200),
        ("eventbridge-01-api-destination", "eventbridge", 200),
        ("ce-01-binary-percent-encoded", "ce", 200),
        ("ce-04-structured-data-base64", "ce", 200),
        ("ce-07-structured-bare-string", "ce", 200),
        ("ce-08-batch-mixed", "ce", 200),
        ("ce-10-batch-empty", "ce", 200),
        ("ce-11-extension-bad-names", "ce", 400),
        ("ce-13-binary-ce-datacontenttype", "ce", 400),
        ("knative-01-trigger-prefer-reply", "ce", 200),
        ("dapr-01-cloudevent", "ce", 200),
        ("pubsub-01-wrapped-basic", "eventbridge", 401),
        ("pubsub-01-wrapped-basic", "nobody", 404),
        ("pubsub-01-wrapped-basic", "ce", 400),
    ] {
        let Sample { mut headers, body, .. } = Sample::read(name);
        for own in ["host", "content-length", "connection"] {
            headers.remove(own);
        }
        let request = gateway.client().post(gateway.url(&format!("/v1/push/{receiver}")));
        let answer = request.headers(headers).body(body).send().await.unwrap();
        let (got, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        assert_eq!(got, status, "{name} to {receiver}: {text}");
        assert!(status != 200 || text.is_empty(), "{name}: nothing is echoed");
    }
    let asked = gateway
        .client()
        .request(reqwest::Method::OPTIONS, gateway.url("/v1/push/ce"))
        .header("webhook-request-origin", "eventgrid.azure.net")
        .header("webhook-request-rate", "120");
    let asked = asked.send().await.unwrap();
    assert_eq!(asked.status(), 200);
    assert_eq!(asked.headers()["webhook-allowed-origin"], "eventgrid.azure.net");
    assert_eq!(asked.headers()["webhook-allowed-rate"], "120");
    let not_asked = gateway.client().request(reqwest::Method::OPTIONS, gateway.url("/v1/push/pubsub"));
    assert_eq!(not_asked.send().await.unwrap().status(), 405);
    gateway.kill9();
}
