//! Deduplication ids: the identity of the work.

use oncegate::domain::Clock;
use serde_json::{Value, json};

use super::bench::{Bench, OTHER, SOON, by, tell};
use crate::support::{eventually, when};

/// Published yesterday for tonight, and tonight again: handled once. Cancelled and published again: accepted.
/// qstash docs#441: nobody knew how long the window is.
pub async fn rebuilt_tonight_once(bench: &Bench) {
    let tonight = Clock::system().now() + chrono::Duration::hours(3);
    let at = tonight.format("%Y-%m-%dT%H:%M:%SZ").to_string();
    let data = json!({"projectionName": "orders", "occurrenceUtc": at});
    let ahead = || bench.post("projection.rebuild", &data).header("Deliver-At", &at);
    let first = tell(ahead()).await.is(202).json();
    assert_eq!(first["deduplicationId"], format!("orders|{at}"));
    assert_eq!(first["deduplicationSource"], "rule");
    let expires: chrono::DateTime<chrono::Utc> = first["expiresAt"].as_str().unwrap().parse().unwrap();
    let due: chrono::DateTime<chrono::Utc> = at.parse().unwrap();
    assert_eq!(expires, due + chrono::Duration::hours(24), "the window begins when the message is due");

    // From another client, by another form, for at once.
    let again =
        tell(bench.send("/v1/publish", &json!({"type": "projection.rebuild", "data": data}))).await.is(200);
    let again = again.json();
    assert_eq!(
        (&again["outcome"], &again["id"], &again["state"]),
        (&json!("duplicate"), &first["id"], &json!("scheduled"))
    );
    assert_eq!(again["expiresAt"], first["expiresAt"]);
    assert!(again["firstSeenAt"].is_string());

    let path = format!("/v1/messages/{}", first["id"].as_str().unwrap());
    let delete = bench.gateway.client().delete(bench.gateway.url(&path)).bearer_auth(super::bench::SHOP);
    tell(delete).await.is(204);
    let soon = (Clock::system().now() + chrono::Duration::seconds(2))
        .to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    let anew = tell(bench.post("projection.rebuild", &data).header("Deliver-At", &soon)).await.is(202).json();
    assert_ne!(anew["id"], first["id"]);
    for _ in 0..5 {
        assert_eq!(tell(ahead()).await.is(200).json()["id"], anew["id"]);
    }
    let times = bench.delivered(1).await;
    assert_eq!(times.get(anew["id"].as_str().unwrap()), Some(&1), "{times:?}");
    eventually(SOON, "the duplicate is told that it was sent", async || {
        when(tell(ahead()).await.is(200).json()["state"] == "sent")
    })
    .await;
    assert_eq!(bench.receiver.count(), 1);
}

pub async fn a_conflict_is_told_and_leaves_no_key(bench: &Bench) {
    let message = |id: &str| json!({"type": "work.conflict", "deduplicationId": id, "data": 1});
    let first = tell(bench.send("/v1/publish", &message("a"))).await.is(202).json();
    for _ in 0..2 {
        let told =
            tell(bench.send("/v1/publish", &message("a")).header("Idempotency-Key", "k")).await.is(409);
        assert_eq!(told.slug(), "duplicate");
        assert!(!told.replayed());
        let told = told.json();
        assert_eq!((&told["id"], &told["outcome"]), (&first["id"], &json!("duplicate")));
        assert_eq!(told["expiresAt"], first["expiresAt"]);
        assert!(told["state"].is_string() && told["firstSeenAt"].is_string(), "{told}");
    }
    // The key is free for another request.
    tell(bench.send("/v1/publish", &message("b")).header("Idempotency-Key", "k")).await.is(202);
    // In a batch a duplicate fails nobody.
    let told =
        tell(bench.send("/v1/publish-batch", &json!([message("a"), message("c")]))).await.is(202).json();
    assert_eq!(told["messages"][0]["outcome"], "duplicate");
    assert_eq!(told["messages"][0]["id"], first["id"]);
    assert_eq!(told["messages"][1]["outcome"], "accepted");
}

pub async fn an_id_of_another_tenant_is_told_without_its_message(bench: &Bench) {
    let first = bench.work("work.everywhere", "one").await.is(202).json();
    let mine = bench.work("work.everywhere", "one").await.is(200).json();
    assert_eq!(mine["id"], first["id"]);
    let request = bench.send("/v1/publish", &json!({"type": "work.everywhere", "deduplicationId": "one"}));
    let told = tell(by(request, OTHER)).await.is(200);
    assert_eq!(told.json()["outcome"], "duplicate");
    assert!(told.json().get("id").is_none() && told.header("location").is_none(), "{}", told.json());
    assert_eq!(told.json()["expiresAt"], first["expiresAt"]);
    // Where the id is the tenant's own, others do not meet it.
    bench.work("work.acknowledge", "one").await.is(202);
    let request = bench.send("/v1/publish", &json!({"type": "work.acknowledge", "deduplicationId": "one"}));
    tell(by(request, OTHER)).await.is(202);
}

/// wolverine GH-4757: `Abc` and `abc` were the same key on MySQL.
pub async fn ids_that_differ_in_a_byte_never_meet(bench: &Bench) {
    let ids = [
        "Abc",
        "abc",
        "ABC",
        "abc ",
        " abc",
        "ábc",
        "a\u{301}bc",
        "äbc",
        "abc\u{a0}",
        "ａbc",
        "ß",
        "ss",
        "ﬀ",
        "ff",
    ];
    for id in ids {
        let told = bench.work("work.acknowledge", id).await.is(202).json();
        assert_eq!(told["deduplicationId"], id);
    }
    for id in ids {
        assert_eq!(bench.work("work.acknowledge", id).await.is(200).json()["deduplicationId"], id);
    }
}

pub async fn ids_are_required_opted_out_of_and_passed(bench: &Bench) {
    let data = json!({"projectionName": "p", "occurrenceUtc": "o"});
    for request in [
        bench.post("projection.rebuild", &data).header("Deduplication-Id", ""),
        bench.post("projection.rebuild", &json!({"projectionName": "p"})),
        bench.post("projection.rebuild", &json!({"projectionName": "p", "occurrenceUtc": null})),
    ] {
        assert_eq!(tell(request).await.is(400).slug(), "deduplication-id-missing");
    }
    // Derived, but enforced nowhere: it travels and deduplicates nothing.
    for _ in 0..2 {
        let told = tell(bench.post("projection.other", &data)).await.is(202).json();
        assert_eq!(told["deduplicationId"], "p|o");
        assert!(told.get("expiresAt").is_none(), "{told}");
    }
    for _ in 0..2 {
        let told = tell(bench.post("work.conflict", &json!(1))).await.is(202).json();
        assert!(told.get("deduplicationId").is_none() && told.get("expiresAt").is_none(), "{told}");
    }
}

pub async fn a_duplicate_is_logged_and_counted(bench: &Bench) {
    bench.work("work.acknowledge", "seen-twice").await.is(202);
    bench.work("work.acknowledge", "seen-twice").await.is(200);
    let metrics =
        tell(bench.gateway.client().get(bench.gateway.url("/metrics")).bearer_auth(super::bench::SHOP)).await;
    let metrics = String::from_utf8_lossy(&metrics.bytes).into_owned();
    let line = metrics
        .lines()
        .find(|line| line.starts_with("oncegate_messages_duplicates") && line.contains("work.acknowledge"))
        .unwrap_or_else(|| panic!("no duplicates are counted:\n{metrics}"));
    assert!(line.trim_end().ends_with(" 1"), "{line}");
    eventually(SOON, "the duplicate is logged", async || {
        let log = bench.gateway.stderr();
        when(
            log.lines().any(|line| {
                line.contains("INFO") && line.contains("duplicate") && line.contains("seen-twice")
            }),
        )
    })
    .await;
}

/// Altinn #788: a logical key used as the message id broke the outbox's primary key.
pub async fn many_messages_share_a_logical_id(bench: &Bench) {
    let message =
        json!({"id": "the-same", "type": "order.created", "deduplicationId": "the-same-work", "data": 1});
    for _ in 0..3 {
        assert_eq!(tell(bench.send("/v1/publish", &message)).await.is(202).json()["id"], "the-same");
    }
    assert_eq!(bench.delivered(3).await.get("the-same"), Some(&3));
}

/// Every place is a JSON Pointer into the body of the request, whatever its form.
pub async fn what_violates_the_schema_is_led_to(bench: &Bench) {
    let bad = json!({"order": {"id": "x"}});
    let native = json!({"type": "work.checked", "data": bad});
    let good = json!({"type": "work.checked", "data": {"order": {"id": 1}}});
    let event = json!({"specversion": "1.0", "id": "e", "source": "/s", "type": "work.checked", "data": bad});
    let encoded = json!({"type": "work.checked", "dataBase64": "eyJvcmRlciI6eyJpZCI6IngifX0="});
    let structured = bench
        .gateway
        .client()
        .post(bench.gateway.url("/v1/publish"))
        .bearer_auth(super::bench::SHOP)
        .header("Content-Type", "application/cloudevents+json")
        .body(event.to_string());
    for (request, place) in [
        (bench.send("/v1/publish", &native), "/data/order/id"),
        (bench.send("/v1/publish", &encoded), "/dataBase64"),
        (bench.send("/v1/publish-batch", &json!([good, native])), "/1/data/order/id"),
        (bench.post("work.checked", &bad), "/order/id"),
        (structured, "/data/order/id"),
    ] {
        let told = tell(request).await.is(422);
        assert_eq!(told.slug(), "schema-violation");
        let places: Vec<Value> = told.json()["errors"].as_array().unwrap().clone();
        assert_eq!(places.len(), 1, "{places:?}");
        assert_eq!(places[0]["pointer"], place);
        assert!(!places[0]["detail"].as_str().unwrap().is_empty());
    }
    tell(bench.send("/v1/publish", &good)).await.is(202);
}
