//! `Idempotency-Key`: the identity of a request.

use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::bench::{Bench, DESK, OTHER, SHOP, SHOP_ROTATED, by, tell};
use crate::support::raw;

const KEY: &str = "Idempotency-Key";

/// useplunk/plunk#484: a retry could not learn whether the first had worked. concerns_on_rails#47: `Location` was
/// lost. granit-dotnet#1151: headers were replayed that were nobody else's business.
pub async fn a_request_is_replayed_to_the_letter(bench: &Bench) {
    let request = || bench.post("order.created", &json!({"n": 1}));
    let first = tell(request().header(KEY, "\"k-1\"")).await.is(202);
    assert!(!first.replayed());
    let again = tell(request().header(KEY, "k-1").header("traceparent", TRACE)).await.is(202);
    assert!(again.replayed());
    assert_eq!((&again.bytes, again.header("location")), (&first.bytes, first.header("location")));
    assert_eq!(again.header("content-type"), first.header("content-type"));
    let names: Vec<&str> = again.headers.keys().map(http::HeaderName::as_str).collect();
    assert!(!names.contains(&"set-cookie"), "{names:?}");

    // A batch is one request; each of its messages has its own identity, the same one twice included.
    let work = |id: &str| json!({"type": "work.acknowledge", "deduplicationId": id, "data": id});
    let batch =
        || bench.send("/v1/publish-batch", &json!([work("a"), work("a"), work("b")])).header(KEY, "k-2");
    let first = tell(batch()).await.is(202);
    let outcomes = |told: &super::bench::Told| {
        let messages = told.json()["messages"].as_array().unwrap().clone();
        messages.iter().map(|message| message["outcome"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(outcomes(&first), ["accepted", "duplicate", "accepted"]);
    let again = tell(batch()).await.is(202);
    assert!(again.replayed());
    assert_eq!(again.bytes, first.bytes);

    // The key of a duplicate of the work is a key as well: the answer that it got is the one replayed.
    let duplicate = || bench.send("/v1/publish", &work("a")).header(KEY, "k-3");
    let first = tell(duplicate()).await.is(200);
    let again = tell(duplicate()).await.is(200);
    assert_eq!((again.replayed(), &again.bytes), (true, &first.bytes));

    let times = bench.delivered(3).await;
    assert_eq!(times.len(), 3, "{times:?}");
    assert!(times.values().all(|count| *count == 1), "{times:?}");
}

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// titen#37, facility#196: the route's template was hashed, or the query ignored.
pub async fn another_request_under_the_same_key_is_refused(bench: &Bench) {
    let first = tell(bench.post("order.created", &json!({"n": 1})).header(KEY, "k")).await.is(202);
    for (what, request) in [
        ("body", bench.post("order.created", &json!({"n": 2}))),
        ("query", bench.send("/v1/publish/order.created?", &json!({"n": 1}))),
        ("member", bench.post("order.created", &json!({"n": 1})).header("Partition-Key", "p")),
        ("own header", bench.post("order.created", &json!({"n": 1})).header("Message-Header-X", "1")),
    ] {
        let told = tell(request.header(KEY, "k")).await.is(422);
        assert_eq!(told.slug(), "idempotency-key-reused", "{what}");
    }
    let plain = bench.gateway.client().post(bench.gateway.url("/v1/publish/order.created")).bearer_auth(SHOP);
    let plain = plain.header("Content-Type", "text/plain").body(json!({"n": 1}).to_string());
    assert_eq!(tell(plain.header(KEY, "k")).await.is(422).slug(), "idempotency-key-reused");

    let event = |kind: &str| {
        let request = bench.send("/v1/publish", &json!({"n": 1})).header("ce-specversion", "1.0");
        request.header("ce-id", "e").header("ce-source", "/s").header("ce-type", kind).header(KEY, "ce")
    };
    tell(event("order.created")).await.is(202);
    assert_eq!(tell(event("order.deleted")).await.is(422).slug(), "idempotency-key-reused");
    assert!(tell(event("order.created")).await.is(202).replayed());

    // Another concrete path is another scope.
    let other = tell(bench.post("order.deleted", &json!({"n": 1})).header(KEY, "k")).await.is(202);
    assert!(!other.replayed());
    assert_ne!(other.json()["id"], first.json()["id"]);
}

/// trigger.dev#3560: a long key overflowed the index. enkan#139: a malformed header was ignored.
pub async fn a_key_that_cannot_be_read_is_refused(bench: &Bench) {
    let (long, longest) = ("k".repeat(256), "k".repeat(255));
    for line in ["", "\"\"", "\"open", "inside\"quote", "\"a\" b", &long, &format!("\"{long}\"")] {
        let told = tell(bench.post("order.created", &json!(1)).header(KEY, line)).await.is(400);
        assert_eq!(told.slug(), "idempotency-key-malformed", "{line:?}");
    }
    let twice = bench.post("order.created", &json!(1)).header(KEY, "k").header(KEY, "k");
    assert_eq!(tell(twice).await.is(400).slug(), "idempotency-key-malformed");
    tell(bench.post("order.created", &json!(1)).header(KEY, &longest)).await.is(202);
    assert!(
        tell(bench.post("order.created", &json!(1)).header(KEY, format!("\"{longest}\""))).await.replayed()
    );
    let times = bench.delivered(1).await;
    assert_eq!(times.len(), 1, "{times:?}");
}

/// wolverine#4501: an endpoint answered 404 once; the retry was told "already done". GH-4547: a prompt retry was
/// refused, the claim being released after the answer had left.
pub async fn what_failed_leaves_no_key(bench: &Bench) {
    for (n, (bad, status)) in [
        (json!({"type": "order.created", "destinations": ["nowhere"]}), 422),
        (json!({"type": "work.checked", "data": {}}), 422),
        (json!({"type": "work.acknowledge", "data": 1}), 400),
        (json!({"type": "order.created", "unknown": 1}), 400),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("failed-{n}");
        for _ in 0..3 {
            let told = tell(bench.send("/v1/publish", &bad).header(KEY, &key)).await.is(status);
            assert!(!told.replayed());
        }
        let good = json!({"type": "order.created", "data": n});
        assert!(!tell(bench.send("/v1/publish", &good).header(KEY, &key)).await.is(202).replayed());
    }
}

/// C-Address-Onboarding-Bridge#379, devlink#773: a global key returned another tenant's response. svix: rotating a
/// token forgot the keys. microsoft-agentic-harness#127: the stored answer was given before authorisation.
pub async fn keys_of_others_are_independent(bench: &Bench) {
    let request = || bench.post("order.created", &json!({"n": 1})).header(KEY, "shared");
    let mine = tell(request()).await.is(202);
    for secret in [DESK, OTHER] {
        let theirs = tell(by(request(), secret)).await.is(202);
        assert!(!theirs.replayed(), "{secret}");
        assert_ne!(theirs.json()["id"], mine.json()["id"]);
    }
    let rotated = tell(by(request(), SHOP_ROTATED)).await.is(202);
    assert_eq!((rotated.replayed(), &rotated.bytes), (true, &mine.bytes));

    tell(by(request(), "no-such-secret-0000000000000000000001")).await.is(401);
    // The same caller, whose grant is taken away: no stored answer for it.
    let fewer = bench.config.replacen(
        r#"grants = ["publish:*", "publish:*@*", "claim:*", "operate"]"#,
        r#"grants = ["publish:elsewhere.*"]"#,
        1,
    );
    assert_ne!(fewer, bench.config);
    std::fs::write(bench.gateway.dir().join("oncegate.toml"), fewer).unwrap();
    bench.gateway.signal("HUP");
    crate::support::eventually(super::bench::SOON, "the grant is gone", async || {
        let told = tell(request()).await;
        crate::support::when(told.status == 403 && told.slug() == "forbidden" && !told.replayed())
    })
    .await;
}

/// wolverine GH-4757: `Abc` and `abc` were the same key on MySQL.
pub async fn keys_that_differ_in_a_byte_never_meet_and_quotes_do_not_matter(bench: &Bench) {
    let keys = [
        "Abc",
        "abc",
        "ABC",
        "abc ",
        " abc",
        "ábc",
        "a\u{301}bc",
        "äbc",
        "abc\u{a0}",
        "abç",
        "ａbc",
        "ß",
        "ss",
    ];
    let mut ids = std::collections::HashSet::new();
    for (n, key) in keys.iter().enumerate() {
        let quoted = format!("\"{key}\"");
        let request = || bench.post("order.created", &json!(1));
        let told = tell(request().header(KEY, quoted.as_bytes())).await.is(202);
        assert!(!told.replayed(), "{key:?} met another one");
        assert!(ids.insert(told.json()["id"].as_str().unwrap().to_owned()));
        assert_eq!(ids.len(), n + 1);
        if key.trim() == *key {
            let bare = tell(request().header(KEY, key.as_bytes())).await.is(202);
            assert_eq!((bare.replayed(), bare.bytes), (true, told.bytes), "{key:?}");
        }
    }
}

pub async fn a_type_may_need_a_key(bench: &Bench) {
    let told = tell(bench.post("work.keyed", &json!(1))).await.is(400);
    assert_eq!(told.slug(), "idempotency-key-missing");
    let batch = json!([{"type": "order.created", "data": 1}, {"type": "work.keyed", "data": 1}]);
    let told = tell(bench.send("/v1/publish-batch", &batch)).await.is(400);
    assert_eq!(told.slug(), "idempotency-key-missing");
    assert!(told.json()["detail"].as_str().unwrap().contains("Element 1"), "{}", told.json());
    tell(bench.post("work.keyed", &json!(1)).header(KEY, "k")).await.is(202);
    tell(bench.send("/v1/publish-batch", &batch).header(KEY, "k")).await.is(202);
}

/// caura#1629: the client hung up, the recording was cancelled, the retry wrote twice.
pub async fn a_client_that_hangs_up_cancels_nothing(bench: &Bench) {
    const COUNT: usize = 20;
    for n in 0..COUNT {
        let body = json!({"n": n}).to_string();
        let request = format!(
            "POST /v1/publish/order.created HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SHOP}\r\nContent-Type: application/json\r\n\
             Idempotency-Key: gone-{n}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(("127.0.0.1", bench.gateway.port())).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_micros(700 * (n as u64 % 5))).await;
        drop(stream);
        let told = raw::send(bench.gateway.port(), request.as_bytes()).await;
        assert_eq!(told.status, 202, "{}", told.text());
        let again = raw::send(bench.gateway.port(), request.as_bytes()).await;
        assert_eq!((again.header("idempotent-replayed"), &again.body), (Some("true"), &told.body));
    }
    let times = bench.delivered(COUNT).await;
    assert_eq!(times.len(), COUNT, "{times:?}");
}
