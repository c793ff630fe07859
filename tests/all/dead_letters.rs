//! Dead letters through the real binary, over every store: the rows of the field reports, and what an operator
//! relies on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::bed::{Bed, on_every_store};
use crate::support::gateway::{self, Gateway};
use crate::support::receiver::{Answer, Receiver};
use crate::support::{eventually, when};

const SOON: Duration = Duration::from_secs(60);

on_every_store! {
    what_is_given_up_on_during_a_replay_is_not_lost
    pages_neither_repeat_nor_skip_while_rows_come_and_go
    a_replay_is_not_swallowed_by_deduplication
    a_replay_goes_to_the_right_destination
    the_interface_keeps_to_the_letter
    a_dead_letter_is_mended_and_replayed
    a_discard_frees_the_deduplication_id_unless_told_not_to
    what_has_no_target_any_more_is_told_and_stays
    those_of_another_tenant_are_not_found
    killed_in_the_middle_of_a_replay_nothing_is_lost_and_nothing_twice
    many_dead_letters_hold_nobody_up
    the_command_line_does_the_same
}

/// A destination for each of these, at a path of the receiver's of the same name; all types go to all.
fn config(bed: &Bed, receiver: &Receiver, names: &[&str]) -> String {
    let mut text = bed.config();
    for name in names {
        text.push_str(&format!(
            "[destinations.{name}]\ntransport = \"webhook\"\nurl = \"{}\"\nallow_private = true\n",
            receiver.url(&format!("/{name}"))
        ));
    }
    text.push_str(&format!("[[routes]]\ntypes = [\"*\"]\ndestinations = {names:?}\n"));
    text.push_str("[messages.work]\ndeduplicate = { required = false, window = \"1h\" }\n");
    text
}

async fn publish(gateway: &Gateway, message: Value) -> (StatusCode, Value) {
    let answer = gateway.client().post(gateway.url("/v1/publish")).json(&message).send().await.unwrap();
    (answer.status(), answer.json().await.unwrap())
}

async fn accepted(gateway: &Gateway, message: Value) {
    let (status, answer) = publish(gateway, message).await;
    assert_eq!(status, 202, "{answer}");
}

async fn get(gateway: &Gateway, path: &str) -> Value {
    let answer = gateway.client().get(gateway.url(path)).send().await.unwrap();
    let status = answer.status();
    let body = answer.json().await.unwrap();
    assert_eq!(status, 200, "{path}: {body}");
    body
}

async fn post(gateway: &Gateway, path: &str, body: Value) -> Value {
    let answer = gateway.client().post(gateway.url(path)).json(&body).send().await.unwrap();
    let status = answer.status();
    let answer = answer.json().await.unwrap();
    assert_eq!(status, 200, "{path} {body}: {answer}");
    answer
}

async fn replay(gateway: &Gateway, body: Value) -> Value {
    post(gateway, "/v1/dead-letters/replay", body).await
}

async fn items(gateway: &Gateway) -> Vec<Value> {
    get(gateway, "/v1/dead-letters?limit=1000").await["items"].as_array().unwrap().clone()
}

/// Waits until there are so many dead letters, and returns them.
async fn dead(gateway: &Gateway, count: usize) -> Vec<Value> {
    eventually(SOON, &format!("{count} dead letters"), async || {
        let items = items(gateway).await;
        (items.len() == count).then_some(items)
    })
    .await
}

/// How often each message was acknowledged at this path.
fn acknowledged(receiver: &Receiver, path: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in receiver.received() {
        if request.uri.path() == path && request.answered.is_some_and(|status| status.is_success()) {
            *counts.entry(request.header("id").to_owned()).or_insert(0) += 1;
        }
    }
    counts
}

/// Wolverine 6.29 replayed by INSERT…SELECT and then DELETE: a row flagged in between was lost.
async fn what_is_given_up_on_during_a_replay_is_not_lost(bed: &Bed) {
    const MESSAGES: usize = 150;
    let refusing = Arc::new(AtomicBool::new(true));
    let refuses = Arc::clone(&refusing);
    let receiver = Receiver::scripted(move |n, _| {
        // Also while it refuses, some are taken.
        Answer::status(if refuses.load(Ordering::Relaxed) && n % 3 != 0 { 400 } else { 204 })
    })
    .await;
    let gateway = Gateway::start(&config(bed, &receiver, &["out"])).await;
    let publishing = async {
        for n in 0..MESSAGES {
            accepted(&gateway, json!({"type": "t", "id": format!("m-{n}"), "data": n})).await;
        }
    };
    let replaying = async {
        for _ in 0..40 {
            replay(&gateway, json!({"filter": {}})).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::join!(publishing, replaying);
    refusing.store(false, Ordering::Relaxed);
    eventually(SOON, "every message is acknowledged", async || {
        replay(&gateway, json!({"filter": {}})).await;
        when(acknowledged(&receiver, "/out").len() == MESSAGES)
    })
    .await;
    let counts = acknowledged(&receiver, "/out");
    assert!(counts.values().all(|count| *count == 1), "each is acknowledged once: {counts:?}");
    assert!(items(&gateway).await.is_empty());
}

/// Wolverine 6.29: pages 0 and 1 were the same; the sort key was often null.
async fn pages_neither_repeat_nor_skip_while_rows_come_and_go(bed: &Bed) {
    let receiver = Receiver::scripted(|_, _| Answer::status(400)).await;
    let gateway = Gateway::start(&config(bed, &receiver, &["out"])).await;
    for n in 0..40 {
        accepted(&gateway, json!({"type": "t", "id": format!("m-{n}")})).await;
    }
    let before: BTreeSet<String> =
        dead(&gateway, 40).await.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect();
    let (mut seen, mut path) = (Vec::new(), "/v1/dead-letters?limit=7".to_owned());
    for round in 0..100 {
        let page = get(&gateway, &path).await;
        let shown = page["items"].as_array().unwrap();
        seen.extend(shown.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
        post(&gateway, "/v1/dead-letters/discard", json!({"ids": [shown[0]["id"]]})).await;
        accepted(&gateway, json!({"type": "t", "id": format!("new-{round}")})).await;
        let Some(cursor) = page["nextCursor"].as_str() else { break };
        path = format!("/v1/dead-letters?limit=7&cursor={cursor}");
    }
    let once: BTreeSet<String> = seen.iter().cloned().collect();
    assert_eq!(once.len(), seen.len(), "none twice");
    assert!(before.is_subset(&once), "none skipped");
}

/// outpost#670: a manual replay was swallowed by deduplication.
async fn a_replay_is_not_swallowed_by_deduplication(bed: &Bed) {
    let receiver = Receiver::failing_first(1, 400).await;
    let short = "[messages.short]\ndeduplicate = { window = \"1s\" }\n";
    let gateway = Gateway::start(&(config(bed, &receiver, &["out"]) + short)).await;
    let work = json!({"type": "work", "id": "first", "deduplicationId": "invoice-7"});
    accepted(&gateway, work.clone()).await;
    dead(&gateway, 1).await;
    // The dead letter keeps the claim: the work is not asked for a second time.
    let (status, answer) = publish(&gateway, work.clone()).await;
    assert_eq!(
        (status.as_u16(), &answer["outcome"], &answer["state"]),
        (200, &json!("duplicate"), &json!("dead"))
    );
    let answer = replay(&gateway, json!({"filter": {}})).await;
    assert_eq!(answer, json!({"replayed": 1, "remaining": 0}));
    let received = receiver.wait_for(2, SOON).await;
    assert_eq!((received[1].header("id"), received[1].header("attempts")), ("first", "1"));
    eventually(SOON, "it is told as sent", async || {
        let (_, answer) = publish(&gateway, work.clone()).await;
        when(answer["outcome"] == "duplicate" && answer["state"] == "sent")
    })
    .await;
    assert_eq!(receiver.count(), 2);

    // Work that another message has taken meanwhile is a duplicate, and told.
    receiver.script(|_, request| Answer::status(if request.header("id") == "old" { 400 } else { 204 }));
    accepted(&gateway, json!({"type": "short", "id": "old", "deduplicationId": "d"})).await;
    let id = dead(&gateway, 1).await[0]["id"].clone();
    tokio::time::sleep(Duration::from_millis(1_300)).await;
    let again = Instant::now();
    accepted(&gateway, json!({"type": "short", "id": "new", "deduplicationId": "d"})).await;
    let answer = replay(&gateway, json!({"ids": [id]})).await;
    if again.elapsed() < Duration::from_millis(900) {
        assert_eq!((&answer["replayed"], &answer["remaining"]), (&json!(0), &json!(0)));
        assert_eq!(answer["errors"][0]["id"], id);
        assert_eq!(items(&gateway).await.len(), 1);
        let forced = replay(&gateway, json!({"ids": [id], "force": true})).await;
        assert_eq!(forced, json!({"replayed": 1, "remaining": 0}));
    }
    dead(&gateway, 1).await; // it is refused again
}

/// wolverine#2318, #1594: a replay went to the wrong store or destination.
async fn a_replay_goes_to_the_right_destination(bed: &Bed) {
    let receiver = Receiver::scripted(|_, request| {
        Answer::status(if request.uri.path() == "/good" { 204 } else { 400 })
    })
    .await;
    let gateway = Gateway::start(&config(bed, &receiver, &["bad", "good", "other"])).await;
    for n in 0..3 {
        accepted(&gateway, json!({"type": "t", "id": format!("m-{n}"), "data": n})).await;
    }
    let letters = dead(&gateway, 6).await;
    let to: BTreeSet<_> = letters.iter().map(|item| item["destination"].as_str().unwrap()).collect();
    assert_eq!(to, BTreeSet::from(["bad", "other"]));
    let path = "/v1/messages?state=dead";
    assert_eq!(get(&gateway, path).await["items"].as_array().unwrap().len(), 3);
    receiver.script(|_, _| Answer::status(204));
    let answer = replay(&gateway, json!({"filter": {"destination": "other"}})).await;
    assert_eq!(answer["replayed"], 3);
    eventually(SOON, "the other one has them", async || when(acknowledged(&receiver, "/other").len() == 3))
        .await;
    assert!(acknowledged(&receiver, "/bad").is_empty());
    eventually(SOON, "the message tells where it stands", async || {
        let message = get(&gateway, "/v1/messages/m-1").await;
        let state = |n: usize| message["destinations"][n]["state"].as_str().unwrap().to_owned();
        when(
            ["dead", "sent", "sent"] == [state(0), state(1), state(2)]
                && message["destinations"][0]["errorKind"] == "Refused",
        )
    })
    .await;
    let one = &dead(&gateway, 3).await[1];
    replay(&gateway, json!({"ids": [one["id"]]})).await;
    eventually(SOON, "it has the one", async || when(acknowledged(&receiver, "/bad").len() == 1)).await;
    let id = one["messageId"].as_str().unwrap();
    assert_eq!(acknowledged(&receiver, "/bad"), BTreeMap::from([(id.to_owned(), 1)]));
    assert_eq!(acknowledged(&receiver, "/good").values().sum::<usize>(), 3);
}

async fn the_interface_keeps_to_the_letter(bed: &Bed) {
    let receiver = Receiver::scripted(|_, _| Answer::status(400)).await;
    let gateway = Gateway::start(&config(bed, &receiver, &["out"])).await;
    assert_eq!(get(&gateway, "/v1/dead-letters").await, json!({"items": []}));
    assert_eq!(get(&gateway, "/v1/dead-letters/summary").await, json!({"items": []}));
    let message = r#"{
        "type": "order.created", "id": "m-1", "source": "/shop", "subject": "7", "data": {"a": 1.50},
        "headers": {"x-region": "eu"}, "deduplicationId": "d", "partitionKey": "p", "correlationId": "c",
        "causationId": "k", "deliverBy": "2999-01-01T00:00:00Z"
    }"#;
    let request =
        gateway.client().post(gateway.url("/v1/publish")).header("content-type", "application/json");
    assert_eq!(request.body(message).send().await.unwrap().status(), 202);
    let one = dead(&gateway, 1).await.remove(0);
    let raw =
        gateway.client().get(gateway.url("/v1/dead-letters")).send().await.unwrap().text().await.unwrap();
    assert!(raw.contains(r#""data":{"a":1.50}"#), "data as it stands: {raw}");
    let mut expected = json!({
        "messageId": "m-1", "type": "order.created", "destination": "out", "errorKind": "Refused", "attempts": 1,
        "source": "/shop", "subject": "7", "data": {"a": 1.5}, "contentType": "application/json",
        "headers": {"x-region": "eu"}, "deduplicationId": "d", "partitionKey": "p", "correlationId": "c",
        "causationId": "k", "deliverBy": "2999-01-01T00:00:00Z",
    });
    for member in ["id", "errorText", "failedAt"] {
        assert!(one[member].as_str().is_some_and(|text| !text.is_empty()), "{member}");
        expected[member] = one[member].clone();
    }
    assert_eq!(one, expected);
    assert_eq!(get(&gateway, &format!("/v1/dead-letters/{}", one["id"].as_str().unwrap())).await, one);
    let summary = get(&gateway, "/v1/dead-letters/summary").await;
    let at = &one["failedAt"];
    assert_eq!(
        summary,
        json!({"items": [{
            "type": "order.created", "destination": "out", "errorKind": "Refused", "count": 1, "oldestAt": at,
            "newestAt": at,
        }]})
    );
    for (query, found) in [
        ("type=order.created&destination=out&errorKind=Refused&limit=99999", 1),
        ("type=order", 0),
        ("handler=out", 0),
        ("errorKind=Expired", 0),
        ("from=2999-01-01T00:00:00Z", 0),
        ("until=2999-01-01T00:00:00Z", 1),
    ] {
        let page = get(&gateway, &format!("/v1/dead-letters?{query}")).await;
        assert_eq!(page["items"].as_array().unwrap().len(), found, "{query}");
    }
    let status = async |request: reqwest::RequestBuilder| request.send().await.unwrap().status().as_u16();
    let client = gateway.client();
    for query in [
        "cursor=x",
        "cursor=",
        "limit=0",
        "errorKind=refused",
        "from=soon",
        "page=2",
        "destination=a&handler=b",
    ] {
        let request = client.get(gateway.url(&format!("/v1/dead-letters?{query}")));
        assert_eq!(status(request).await, 400, "{query}");
    }
    for operation in ["replay", "discard"] {
        let url = gateway.url(&format!("/v1/dead-letters/{operation}"));
        for body in [json!({}), json!({"ids": [], "filter": {}}), json!({"filter": {"kind": "x"}}), json!([])]
        {
            assert_eq!(status(client.post(&url).json(&body)).await, 400, "{operation} {body}");
        }
        let done = if operation == "replay" { "replayed" } else { "discarded" };
        let unknown = json!({"ids": ["01930e6c-5a7d-7c3e-9d2b-6f1a2b3c4d5e", "m-1"]});
        let answer = post(&gateway, &format!("/v1/dead-letters/{operation}"), unknown).await;
        assert_eq!(answer, json!({done: 0, "remaining": 0}));
    }
    for id in ["01930e6c-5a7d-7c3e-9d2b-6f1a2b3c4d5e", "m-1"] {
        assert_eq!(status(client.get(gateway.url(&format!("/v1/dead-letters/{id}")))).await, 404);
    }
    assert_eq!(dead(&gateway, 1).await.remove(0), expected, "nothing has changed it");
}

async fn a_dead_letter_is_mended_and_replayed(bed: &Bed) {
    let receiver = Receiver::failing_first(2, 400).await;
    let gateway = Gateway::start(&config(bed, &receiver, &["out"])).await;
    accepted(&gateway, json!({"type": "t", "id": "json", "data": {"n": "one"}, "headers": {"x-a": "1"}}))
        .await;
    accepted(&gateway, json!({"type": "t", "id": "bytes", "dataBase64": "AAEC"})).await;
    let letters = dead(&gateway, 2).await;
    let id_of = |name: &str| {
        let item = letters.iter().find(|item| item["messageId"] == name).unwrap();
        item["id"].as_str().unwrap().to_owned()
    };
    let patch = async |id: &str, body: &str| {
        let request = gateway.client().patch(gateway.url(&format!("/v1/dead-letters/{id}")));
        let answer = request.header("content-type", "application/json").body(body.to_owned()).send();
        let answer = answer.await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let (status, document) = patch(&id_of("json"), r#"{"data":{"n":1.0},"headers":{"X-B":"2"}}"#).await;
    assert_eq!(status, 200, "{document}");
    assert_eq!((&document["messageId"], &document["headers"]), (&json!("json"), &json!({"x-b": "2"})));
    let (status, document) = patch(&id_of("bytes"), r#"{"contentType":"text/plain","data":"plain"}"#).await;
    assert_eq!((status, &document["dataBase64"]), (200, &json!("cGxhaW4=")));
    for (body, place) in [
        (r#"{"type":"other"}"#, "/type"),
        (r#"{"headers":{"Message-Type":"x"}}"#, "/headers/message-type"),
        (r#"{"contentType":"no"}"#, "/contentType"),
        (r#"{"data":1,"dataBase64":"AA=="}"#, "/dataBase64"),
    ] {
        let (status, problem) = patch(&id_of("json"), body).await;
        assert_eq!((status, &problem["errors"][0]["pointer"]), (400, &json!(place)), "{body}: {problem}");
    }
    assert_eq!(patch(&id_of("json"), "[]").await.0, 400);
    assert_eq!(patch("01930e6c-5a7d-7c3e-9d2b-6f1a2b3c4d5e", "{}").await.0, 404);
    replay(&gateway, json!({"filter": {"type": "t"}})).await;
    let received = receiver.wait_for(4, SOON).await;
    let last = |id: &str| received[2..].iter().find(|request| request.header("id") == id).unwrap();
    let (mended, bytes) = (last("json"), last("bytes"));
    assert_eq!(
        (mended.text().as_str(), mended.header("x-b"), mended.header("x-a")),
        (r#"{"n":1.0}"#, "2", "")
    );
    assert_eq!((bytes.text().as_str(), bytes.header("content-type")), ("plain", "text/plain"));
    // Who did what is on record.
    let log = gateway.stderr();
    for line in ["dead letter edited", "dead letters replayed"] {
        assert!(log.lines().any(|logged| logged.contains(line) && logged.contains("anonymous")), "{line}");
    }
}

async fn a_discard_frees_the_deduplication_id_unless_told_not_to(bed: &Bed) {
    let receiver = Receiver::scripted(|_, _| Answer::status(400)).await;
    let gateway = Gateway::start(&config(bed, &receiver, &["out"])).await;
    for (release, status) in [(json!({"releaseDeduplication": false}), 200), (json!({}), 202)] {
        let work = json!({"type": "work", "deduplicationId": format!("d-{status}")});
        accepted(&gateway, work.clone()).await;
        dead(&gateway, 1).await;
        let mut request = release;
        request["filter"] = json!({"type": "work"});
        let answer = post(&gateway, "/v1/dead-letters/discard", request).await;
        assert_eq!(answer, json!({"discarded": 1, "remaining": 0}));
        assert_eq!(publish(&gateway, work).await.0, status);
    }
}

async fn what_has_no_target_any_more_is_told_and_stays(bed: &Bed) {
    let receiver = Receiver::scripted(|_, _| Answer::status(400)).await;
    let mut before = Gateway::start(&config(bed, &receiver, &["gone", "out"])).await;
    accepted(&before, json!({"type": "t"})).await;
    dead(&before, 2).await;
    before.term(SOON).await;
    let gateway = Gateway::start(&config(bed, &receiver, &["out"])).await;
    let letters = items(&gateway).await;
    let gone = letters.iter().find(|item| item["destination"] == "gone").unwrap();
    receiver.script(|_, _| Answer::status(204));
    let answer = replay(&gateway, json!({"filter": {}})).await;
    assert_eq!((&answer["replayed"], &answer["remaining"]), (&json!(1), &json!(0)));
    assert_eq!(answer["errors"].as_array().unwrap().len(), 1);
    assert_eq!(answer["errors"][0]["id"], gone["id"]);
    assert_eq!(dead(&gateway, 1).await[0]["id"], gone["id"]);
}

async fn those_of_another_tenant_are_not_found(bed: &Bed) {
    let receiver = Receiver::scripted(|_, _| Answer::status(400)).await;
    let auth = r#"
[auth.keys.acme]
secrets = ["acme-0123456789abcdef"]
tenant = "acme"
grants = ["publish:*", "operate"]
[auth.keys.evil]
secrets = ["evil-0123456789abcdef"]
tenant = "evil"
grants = ["operate"]
[auth.keys.reader]
secrets = ["reader-0123456789abcdef"]
tenant = "acme"
grants = ["operate:read"]
"#;
    let gateway = Gateway::start(&(config(bed, &receiver, &["out"]) + auth)).await;
    let (client, url) = (gateway.client(), |path: &str| gateway.url(path));
    let answer =
        client.post(url("/v1/publish/t")).bearer_auth("acme-0123456789abcdef").body("x").send().await;
    assert_eq!(answer.unwrap().status(), 202);
    let list = async |key: &str| -> Vec<Value> {
        let answer = client.get(url("/v1/dead-letters")).bearer_auth(key).send().await.unwrap();
        answer.json::<Value>().await.unwrap()["items"].as_array().unwrap().clone()
    };
    let id = eventually(SOON, "a dead letter", async || {
        list("acme-0123456789abcdef").await.first().map(|item| item["id"].as_str().unwrap().to_owned())
    })
    .await;
    assert!(list("evil-0123456789abcdef").await.is_empty());
    let one = url(&format!("/v1/dead-letters/{id}"));
    for (key, read, write) in [("evil-0123456789abcdef", 404, 404), ("reader-0123456789abcdef", 200, 403)] {
        assert_eq!(client.get(&one).bearer_auth(key).send().await.unwrap().status(), read);
        let patch = client.patch(&one).bearer_auth(key).json(&json!({}));
        assert_eq!(patch.send().await.unwrap().status(), write);
    }
    for operation in ["replay", "discard"] {
        let request = client.post(url(&format!("/v1/dead-letters/{operation}"))).json(&json!({"ids": [id]}));
        let answer = request.try_clone().unwrap().bearer_auth("evil-0123456789abcdef").send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        assert_eq!((&answer["remaining"], answer.get("errors")), (&json!(0), None));
        let refused = request.bearer_auth("reader-0123456789abcdef").send().await.unwrap();
        assert_eq!(refused.status(), 403);
    }
    assert_eq!(list("reader-0123456789abcdef").await.len(), 1);
}

async fn killed_in_the_middle_of_a_replay_nothing_is_lost_and_nothing_twice(bed: &Bed) {
    const MANY: usize = 8_000;
    let receiver = Receiver::start().await;
    let mut gateway = Gateway::start(&config(bed, &receiver, &["out", "many"])).await;
    pause(&gateway, "many").await;
    bed.fill_dead_letters(MANY, "many").await;
    let url = gateway.url("/v1/dead-letters/replay");
    let request = gateway.client().post(url).json(&json!({"filter": {"destination": "many"}}));
    let call = tokio::spawn(request.send());
    eventually(SOON, "some of it has been moved", async || when(bed.count("deliveries").await > 0)).await;
    gateway.kill9();
    let _ = call.await;
    // The commit that the server was at when its client died may end between the two counts.
    let (moved, left) = eventually(SOON, "each of them is in one of the two tables", async || {
        let counts = (bed.count("deliveries").await, bed.count("dead_letters").await);
        (counts.0 + counts.1 == MANY as u64).then_some(counts)
    })
    .await;
    eprintln!("killed with {moved} moved and {left} left");
    assert_eq!(moved % 1_000, 0, "whole commits");
    gateway.restart().await;
    replay_all(&gateway, "many").await;
    assert_eq!((bed.count("dead_letters").await, bed.distinct_messages().await), (0, MANY as u64));
    // A node that has just started may have sent a few before it knew of the pause.
    assert_eq!(bed.count("deliveries").await + bed.count("receipts").await, MANY as u64);
    // And what was moved is delivered.
    let answer = gateway.client().post(gateway.url("/v1/targets/many/resume")).send().await.unwrap();
    assert_eq!(answer.status(), 204);
    let received = receiver.wait_for(200, SOON).await;
    let ids: BTreeSet<&str> = received.iter().map(|request| request.header("id")).collect();
    assert_eq!(ids.len(), received.len(), "none of them twice");
}

async fn pause(gateway: &Gateway, target: &str) {
    let url = gateway.url(&format!("/v1/targets/{target}/pause"));
    assert_eq!(gateway.client().post(url).send().await.unwrap().status(), 204);
}

/// Repeats until nothing remains; how long the longest call took.
async fn replay_all(gateway: &Gateway, target: &str) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..100 {
        let started = Instant::now();
        let answer = replay(gateway, json!({"filter": {"destination": target}})).await;
        longest = longest.max(started.elapsed());
        if answer["remaining"] == 0 {
            return longest;
        }
    }
    panic!("there is no end to it");
}

/// 100,000 with `ONCEGATE_FULL=1`, else 20,000.
async fn many_dead_letters_hold_nobody_up(bed: &Bed) {
    let many = if std::env::var_os("ONCEGATE_FULL").is_some() { 100_000 } else { 20_000 };
    let receiver = Receiver::start().await;
    let text = config(bed, &receiver, &["out", "many"]).replace("[\"out\", \"many\"]", "[\"out\"]");
    let gateway = Gateway::start(&text).await;
    pause(&gateway, "many").await;
    bed.fill_dead_letters(many, "many").await;
    let timed = async |path: &str| {
        let started = Instant::now();
        let body = get(&gateway, path).await;
        (started.elapsed(), body)
    };
    let (list, page) = timed("/v1/dead-letters?limit=100").await;
    assert_eq!(page["items"].as_array().unwrap().len(), 100);
    let middle = "/v1/dead-letters?limit=100&type=type-7&errorKind=TooLarge";
    let (filtered, _) = timed(middle).await;
    let (summary, groups) = timed("/v1/dead-letters/summary").await;
    let counted: u64 =
        groups["items"].as_array().unwrap().iter().map(|group| group["count"].as_u64().unwrap()).sum();
    assert_eq!(counted, many as u64);

    let over = AtomicBool::new(false);
    let replaying = async {
        let longest = replay_all(&gateway, "many").await;
        over.store(true, Ordering::Relaxed);
        longest
    };
    let publishing = async {
        let mut published = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let started = Instant::now();
            accepted(&gateway, json!({"type": "t", "data": published.len()})).await;
            published.push(started.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        published
    };
    let (longest, mut published) = tokio::join!(replaying, publishing);
    published.sort_unstable();
    let slowest = *published.last().unwrap();
    eprintln!(
        "{many} dead letters on {}: list {list:?}, filtered {filtered:?}, summary {summary:?}, longest replay call \
         {longest:?}; meanwhile {} published, the slowest in {slowest:?}",
        bed.engine(),
        published.len(),
    );
    // Bounds for two busy cores and a build without optimisation.
    for (what, took) in [("list", list), ("filtered", filtered), ("summary", summary), ("publish", slowest)] {
        assert!(took < Duration::from_secs(5), "{what}: {took:?}");
    }
    assert_eq!((bed.count("dead_letters").await, bed.distinct_of("many").await), (0, many as u64));
    receiver.wait_for(published.len(), SOON).await;
}

async fn the_command_line_does_the_same(bed: &Bed) {
    let receiver = Receiver::scripted(|_, _| Answer::status(400)).await;
    let text = config(bed, &receiver, &["out", "other"]);
    let gateway = Gateway::start(&text).await;
    for n in 0..3 {
        accepted(&gateway, json!({"type": "t", "id": format!("m-{n}"), "data": n})).await;
    }
    let letters = dead(&gateway, 6).await;
    let run = |args: &[&str]| {
        let output = gateway::command(&[&["dead-letters"], args].concat(), Some(&text));
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (status, table, stderr) = run(&["list", "--destination", "out"]);
    assert_eq!(status, 0, "{stderr}");
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.starts_with("ID ") && table.contains("Refused"), "{table}");
    let (_, document, _) = run(&["list", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&document).unwrap(), get(&gateway, "/v1/dead-letters").await);
    let (_, more, _) = run(&["list", "--limit", "4"]);
    assert!(more.contains("More: --cursor "), "{more}");
    let id = letters[0]["id"].as_str().unwrap();
    let (status, shown, _) = run(&["show", id, "--json"]);
    assert_eq!((status, serde_json::from_str::<Value>(&shown).unwrap()), (0, letters[0].clone()));
    let (status, shown, _) = run(&["show", id]);
    assert!(status == 0 && shown.contains("errorKind") && shown.contains(id), "{shown}");
    assert_eq!(run(&["show", "01930e6c-5a7d-7c3e-9d2b-6f1a2b3c4d5e"]).0, 1);
    // Never all because nothing was said.
    assert_eq!(run(&["replay"]).0, 2);
    assert_eq!(run(&["discard", id, "--all"]).0, 2);
    assert_eq!(run(&["list", "--error-kind", "nonsense"]).0, 1);
    let (status, answer, _) = run(&["discard", id, "--json"]);
    assert_eq!((status, answer.trim()), (0, r#"{"discarded":1,"remaining":0}"#));
    receiver.script(|_, _| Answer::status(204));
    let (status, answer, stderr) = run(&["replay", "--all"]);
    assert_eq!((status, answer.as_str()), (0, "5 replayed\n"), "{stderr}");
    eventually(SOON, "the node that runs has sent them", async || {
        let count = |path| acknowledged(&receiver, path).len();
        when(count("/out") + count("/other") == 5)
    })
    .await;
}
