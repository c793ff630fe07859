//! Identity at publish, through the real binary, on both stores: one effect, whatever the client repeats.

use std::time::Duration;

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::support::gateway::Gateway;
use crate::support::postgres;
use crate::support::receiver::Receiver;
use crate::support::{eventually, when};

const SOON: Duration = Duration::from_secs(30);

/// Messages wait where they can be counted.
const PAUSED: &str = r#"
[destinations.out]
transport = "stdout"
paused = true

[[routes]]
types = ["*"]
destinations = ["out"]

[messages."projection.rebuild"]
deduplication_identity = "{projectionName}|{occurrenceUtc}"
deduplicate = { window = "24h" }

[messages."strict"]
deduplicate = { window = "1h", on_duplicate = "conflict" }

[messages."global"]
deduplicate = { window = "1h", scope = "store" }

[messages."careful"]
idempotency = "required"
"#;

/// One of the two engines, with a fresh database.
struct Engine {
    name: &'static str,
    store: String,
}

/// Both engines; PostgreSQL is skipped loudly where it is not installed.
async fn engines() -> Vec<Engine> {
    let mut engines = vec![Engine { name: "sqlite", store: String::new() }];
    if let Some(postgres) = postgres::shared().await {
        let url = postgres.fresh_database().await;
        engines.push(Engine { name: "postgres", store: format!("[stores.main]\nurl = \"{url}\"\n") });
    }
    engines
}

impl Engine {
    fn config(&self, rest: &str) -> String {
        format!("{}{rest}", self.store)
    }
}

struct Answer {
    status: u16,
    body: Value,
    text: String,
    replayed: bool,
    location: Option<String>,
}

async fn send(request: RequestBuilder) -> Answer {
    let response = request.send().await.expect("an answer");
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let (status, replayed, location) = (
        response.status().as_u16(),
        header("idempotent-replayed").as_deref() == Some("true"),
        header("location"),
    );
    let text = response.text().await.unwrap();
    Answer { status, body: serde_json::from_str(&text).unwrap_or_default(), text, replayed, location }
}

fn publish(gateway: &Gateway, kind: &str, body: &Value) -> RequestBuilder {
    gateway.client().post(gateway.url(&format!("/v1/publish/{kind}"))).json(body)
}

async fn depth(gateway: &Gateway) -> u64 {
    let targets = send(gateway.client().get(gateway.url("/v1/targets"))).await.body;
    targets["items"].as_array().unwrap().iter().map(|item| item["depth"].as_u64().unwrap()).sum()
}

/// The occurrence of tonight is published yesterday by the scheduler and tonight by an operator: one message.
/// Cancelled, it may be published again.
#[tokio::test]
async fn the_occurrence_of_tonight_published_yesterday_and_tonight_is_one_message() {
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(PAUSED)).await;
        let tonight = chrono::DateTime::from_timestamp(gateway_now() + 20 * 3600, 0).unwrap();
        let body = json!({ "projectionName": "sales", "occurrenceUtc": tonight.to_rfc3339() });
        let kind = "projection.rebuild";
        let first = send(publish(&gateway, kind, &body).header("Deliver-At", tonight.to_rfc3339())).await;
        assert_eq!(first.status, 202, "{}: {}", engine.name, first.text);
        assert_eq!(first.body["deduplicationSource"], "contract");
        let until: chrono::DateTime<chrono::Utc> = first.body["expiresAt"].as_str().unwrap().parse().unwrap();
        assert!(until >= tonight + chrono::Duration::hours(24), "remembered from when it is due: {until}");
        let again = send(publish(&gateway, kind, &body)).await;
        assert_eq!(again.status, 200, "{}: {}", engine.name, again.text);
        assert_eq!(again.body["outcome"], "duplicate");
        assert_eq!(again.body["id"], first.body["id"]);
        assert_eq!(again.body["state"], "scheduled");
        assert_eq!(again.body["expiresAt"], first.body["expiresAt"]);
        assert!(again.body["firstSeenAt"].is_string());
        assert_eq!(depth(&gateway).await, 1);
        assert!(gateway.stderr().contains("duplicate"), "a duplicate is logged");
        let cancelled = gateway.client().delete(gateway.url(first.location.as_deref().unwrap())).send().await;
        assert_eq!(cancelled.unwrap().status(), 204);
        let third = send(publish(&gateway, kind, &body)).await;
        assert_eq!(
            (third.status, third.body["outcome"].as_str()),
            (202, Some("accepted")),
            "{}",
            engine.name
        );
        assert_eq!(depth(&gateway).await, 1);
    }
}

#[allow(clippy::disallowed_methods)]
fn gateway_now() -> i64 {
    chrono::Utc::now().timestamp()
}

/// mastodon#37879, convoy#2747, square1-io/laravel-idempotency#1: of many requests with one key, one runs.
#[tokio::test]
async fn of_twenty_requests_with_one_key_one_has_an_effect_and_the_others_replay_it() {
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(PAUSED)).await;
        one_effect(&engine, &[&gateway]).await;
    }
}

/// The same over two nodes on one store.
#[tokio::test]
async fn of_twenty_requests_with_one_key_over_two_nodes_one_has_an_effect() {
    for engine in engines().await.into_iter().filter(|engine| engine.name != "sqlite") {
        let one = Gateway::start(&engine.config(PAUSED)).await;
        let other = Gateway::start(&engine.config(PAUSED)).await;
        one_effect(&engine, &[&one, &other]).await;
    }
}

async fn one_effect(engine: &Engine, nodes: &[&Gateway]) {
    for round in 0..5 {
        let key = format!("\"order-{round}\"");
        let requests = (0..20).map(|n| {
            let node = nodes[n % nodes.len()];
            send(publish(node, "order.created", &json!({ "order": round })).header("Idempotency-Key", &key))
        });
        let answers = futures::future::join_all(requests).await;
        for answer in &answers {
            assert_eq!(answer.status, 202, "{}: {}", engine.name, answer.text);
            assert_eq!(answer.text, answers[0].text, "{}: the same bytes", engine.name);
            assert_eq!(answer.location, answers[0].location);
        }
        let fresh = answers.iter().filter(|answer| !answer.replayed).count();
        assert_eq!(fresh, 1, "{}: one ran, the others are replayed", engine.name);
        assert_eq!(depth(nodes[0]).await, round + 1, "{}", engine.name);
    }
}

/// wolverine (6.51.3 notes): a crash at any moment of a keyed publish, then the same request: one message.
#[tokio::test]
async fn scenario_a_kill_at_any_moment_of_a_keyed_publish_leaves_one_message() {
    let kills = std::env::var("ONCEGATE_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    let mut engines = engines().await.into_iter();
    // Most of them where a start is quick; some where the commit is another process's.
    for (engine, kills) in engines.by_ref().zip([kills, kills / 5]) {
        let mut gateway = Gateway::start(&engine.config(PAUSED)).await;
        let mut unanswered = 0;
        for n in 0..kills {
            let request = |gateway: &Gateway| {
                publish(gateway, "strict", &json!({ "n": n }))
                    .header("Idempotency-Key", format!("key-{n}"))
                    .header("Deduplication-Id", format!("work-{n}"))
            };
            let first = tokio::spawn(request(&gateway).send());
            // From before the request arrives to after it was answered.
            tokio::time::sleep(Duration::from_micros((n * 197) % 12_000)).await;
            gateway.kill9();
            let answered = first.await.unwrap().ok().map(|response| response.status().as_u16());
            assert!(answered.is_none_or(|status| status == 202), "{}: {answered:?}", engine.name);
            unanswered += u64::from(answered.is_none());
            gateway.restart().await;
            let again = send(request(&gateway)).await;
            assert_eq!(again.status, 202, "{}, kill {n}: {}", engine.name, again.text);
            assert!(again.replayed || answered.is_none(), "{}: what was answered is replayed", engine.name);
            if n % 20 == 19 || n + 1 == kills {
                assert_eq!(depth(&gateway).await, n + 1, "{}: one message per key", engine.name);
            }
        }
        println!("{}: {kills} kills, {unanswered} of them before the answer", engine.name);
        assert!(unanswered > 0 && unanswered < kills, "{}: kills before and after the answer", engine.name);
    }
}

/// wolverine GH-4757: identity is compared as bytes; the same key quoted and bare is the same.
#[tokio::test]
async fn byte_different_identities_never_meet_and_quotes_are_no_part_of_a_key() {
    let ids = ["Abc", "abc", "abc ", "a\u{301}bc", "\u{e1}bc", "ａbc", "abc\u{200b}", "ABC"];
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(PAUSED)).await;
        for id in ids {
            let body = json!({ "type": "strict", "data": {}, "deduplicationId": id });
            let answer = send(gateway.client().post(gateway.url("/v1/publish")).json(&body)).await;
            assert_eq!(answer.status, 202, "{} {id:?}: {}", engine.name, answer.text);
        }
        for key in ["Abc", "abc", "aBc", "a%62c"] {
            let answer = send(publish(&gateway, "x", &json!({})).header("Idempotency-Key", key)).await;
            assert!(answer.status == 202 && !answer.replayed, "{} {key}", engine.name);
            let quoted =
                send(publish(&gateway, "x", &json!({})).header("Idempotency-Key", format!("\"{key}\"")))
                    .await;
            assert!(quoted.replayed && quoted.text == answer.text, "{} {key}", engine.name);
        }
        assert_eq!(depth(&gateway).await, ids.len() as u64 + 4, "{}", engine.name);
    }
}

/// titen#37, facility#196: everything of the request that is input is in the fingerprint.
#[tokio::test]
async fn another_request_under_the_same_key_is_refused() {
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(PAUSED)).await;
        let base = || {
            gateway
                .client()
                .post(gateway.url("/v1/publish"))
                .header("Idempotency-Key", "k")
                .header("ce-specversion", "1.0")
                .header("ce-id", "1")
                .header("ce-source", "/test")
        };
        let first = send(base().header("ce-type", "a").header("content-type", "text/plain").body("x")).await;
        assert_eq!(first.status, 202, "{}: {}", engine.name, first.text);
        let others = [
            base().header("ce-type", "b").header("content-type", "text/plain").body("x"),
            base().header("ce-type", "a").header("content-type", "text/html").body("x"),
            base().header("ce-type", "a").header("content-type", "text/plain").body("y"),
            base()
                .header("ce-type", "a")
                .header("ce-ext", "1")
                .header("content-type", "text/plain")
                .body("x"),
        ];
        for other in others {
            let refused = send(other).await;
            assert_eq!(refused.status, 422, "{}: {}", engine.name, refused.text);
            assert_eq!(refused.body["type"], "/problems/idempotency-key-reused");
        }
        // The trace is no input: a retry has another.
        let traced = base()
            .header("ce-type", "a")
            .header("content-type", "text/plain")
            .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        assert!(send(traced.body("x")).await.replayed, "{}", engine.name);
        assert_eq!(depth(&gateway).await, 1);
    }
}

/// enkan#139, trigger.dev#3560: a key that cannot be read never counts as none.
#[tokio::test]
async fn malformed_keys_are_refused_and_a_required_one_is_asked_for() {
    let gateway = Gateway::start(PAUSED).await;
    let long = "k".repeat(256);
    for bad in ["", "\"", "\"a\"b", "\"\"", long.as_str(), "\"tab\\t\""] {
        let answer = send(publish(&gateway, "x", &json!({})).header("Idempotency-Key", bad)).await;
        assert_eq!(answer.status, 400, "{bad:?}: {}", answer.text);
        assert_eq!(answer.body["type"], "/problems/idempotency-key-malformed", "{bad:?}");
    }
    let twice =
        publish(&gateway, "x", &json!({})).header("Idempotency-Key", "a").header("Idempotency-Key", "a");
    assert_eq!(send(twice).await.body["type"], "/problems/idempotency-key-malformed");
    let missing = send(publish(&gateway, "careful", &json!({}))).await;
    assert_eq!(
        (missing.status, missing.body["type"].as_str()),
        (400, Some("/problems/idempotency-key-missing"))
    );
    assert_eq!(
        send(publish(&gateway, "x", &json!({})).header("Idempotency-Key", &long[1..])).await.status,
        202
    );
    assert_eq!(depth(&gateway).await, 1);
}

/// wolverine#4501: what was refused leaves no claim; the same key runs again.
#[tokio::test]
async fn after_a_refusal_the_same_key_runs() {
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(PAUSED)).await;
        let strict = |key: &str| {
            publish(&gateway, "strict", &json!({}))
                .header("Deduplication-Id", "w")
                .header("Idempotency-Key", key.to_owned())
        };
        assert_eq!(send(strict("one")).await.status, 202);
        for _ in 0..2 {
            let conflict = send(strict("two")).await;
            assert_eq!(
                (conflict.status, conflict.replayed),
                (409, false),
                "{}: {}",
                engine.name,
                conflict.text
            );
            assert_eq!(conflict.body["type"], "/problems/duplicate");
            assert!(conflict.body["expiresAt"].is_string() && conflict.body["state"].is_string());
        }
        // Another body under the freed key is no reuse.
        let free = publish(&gateway, "strict", &json!({ "other": 1 }))
            .header("Deduplication-Id", "w2")
            .header("Idempotency-Key", "two");
        assert_eq!(send(free).await.status, 202, "{}", engine.name);
    }
}

/// C-Address-Onboarding-Bridge#379, devlink#773, microsoft-agentic-harness#127: a key is its principal's own,
/// and nothing is replayed to whom it is not.
#[tokio::test]
async fn a_key_is_its_principals_and_tenants_own() {
    let auth = r#"
[auth.keys.shop]
secrets = ["shop-secret-0123456789", "shop-secret-rotated-9"]
tenant = "acme"
grants = ["publish:*"]

[auth.keys.till]
secrets = ["till-secret-0123456789"]
tenant = "acme"
grants = ["publish:*", "operate:read"]

[auth.keys.other]
secrets = ["other-secret-012345678"]
tenant = "globex"
grants = ["publish:*", "operate:read"]
"#;
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(&format!("{PAUSED}{auth}"))).await;
        let keyed = |secret: &str, kind: &str| {
            publish(&gateway, kind, &json!({})).bearer_auth(secret).header("Idempotency-Key", "k")
        };
        let shop = send(keyed("shop-secret-0123456789", "x")).await;
        assert!(shop.status == 202 && !shop.replayed, "{}: {}", engine.name, shop.text);
        for secret in ["till-secret-0123456789", "other-secret-012345678"] {
            let answer = send(keyed(secret, "x")).await;
            assert!(answer.status == 202 && !answer.replayed, "{}: {}", engine.name, answer.text);
            assert_ne!(answer.body["id"], shop.body["id"]);
        }
        // svix: rotating a secret forgets nothing.
        assert!(send(keyed("shop-secret-rotated-9", "x")).await.replayed, "{}", engine.name);
        assert_eq!(send(keyed("nobody", "x")).await.status, 401);
        let forbidden = gateway.client().get(gateway.url(shop.location.as_deref().unwrap()));
        assert_eq!(
            send(forbidden.bearer_auth("other-secret-012345678")).await.status,
            404,
            "another tenant's"
        );
        // An id that is unique in the whole store is told to other tenants without the message's id.
        let global = |secret: &str| {
            publish(&gateway, "global", &json!({})).bearer_auth(secret).header("Deduplication-Id", "g")
        };
        assert_eq!(send(global("shop-secret-0123456789")).await.status, 202);
        let duplicate = send(global("other-secret-012345678")).await;
        assert_eq!((duplicate.status, duplicate.body.get("id")), (200, None), "{}", duplicate.text);
        let same_tenant = send(global("till-secret-0123456789")).await;
        assert!(same_tenant.status == 200 && same_tenant.body["id"].is_string());
    }
}

/// A batch is one request; each of its messages has its own identity, twice the same one included.
#[tokio::test]
async fn a_batch_has_one_key_and_each_message_its_own_identity() {
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(PAUSED)).await;
        let element = |id: &str| json!({ "type": "strict", "data": 1, "deduplicationId": id });
        let batch = |ids: &[&str], key: &str| {
            let body: Vec<Value> = ids.iter().map(|id| element(id)).collect();
            gateway
                .client()
                .post(gateway.url("/v1/publish-batch"))
                .header("Idempotency-Key", key.to_owned())
                .json(&body)
        };
        let first = send(batch(&["a", "b", "a"], "one")).await;
        assert_eq!(first.status, 202, "{}: {}", engine.name, first.text);
        let outcomes = |answer: &Answer| -> Vec<String> {
            let messages = answer.body["messages"].as_array().unwrap().clone();
            messages.iter().map(|message| message["outcome"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(outcomes(&first), ["accepted", "accepted", "duplicate"], "{}", engine.name);
        assert_eq!(first.body["messages"][2]["id"], first.body["messages"][0]["id"]);
        let replay = send(batch(&["a", "b", "a"], "one")).await;
        assert!(replay.replayed && replay.text == first.text, "{}", engine.name);
        let next = send(batch(&["b", "c"], "two")).await;
        assert_eq!(outcomes(&next), ["duplicate", "accepted"], "{}", engine.name);
        // The answer that was corrected before the commit is the one that is replayed.
        assert_eq!(send(batch(&["b", "c"], "two")).await.text, next.text, "{}", engine.name);
        let reused = send(batch(&["d"], "two")).await;
        assert_eq!(reused.status, 422, "{}", engine.name);
        assert_eq!(depth(&gateway).await, 3, "{}", engine.name);
    }
}

/// caura#1629: a client that hangs up cancels nothing; its retry is answered with what was done.
#[tokio::test]
async fn a_client_that_hangs_up_cancels_nothing() {
    use tokio::io::AsyncWriteExt as _;
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(PAUSED)).await;
        for n in 0..10_u64 {
            let head = format!(
                "POST /v1/publish/x HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Length: 2\r\nIdempotency-Key: k{n}\r\n\r\n{{}}"
            );
            let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", gateway.port())).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            // Every other one hangs up at once, perhaps before its request was read; the others while they
            // could have read the answer and did not.
            if n % 2 == 1 {
                stream.readable().await.unwrap();
            }
            drop(stream);
        }
        for n in 0..10_u64 {
            let retry = gateway
                .client()
                .post(gateway.url("/v1/publish/x"))
                .header("content-type", "application/json");
            let answer = send(retry.header("Idempotency-Key", format!("k{n}")).body("{}")).await;
            assert_eq!(answer.status, 202, "{}: {}", engine.name, answer.text);
            assert!(answer.replayed || n % 2 == 0, "{}: what was done is replayed", engine.name);
        }
        eventually(SOON, "nothing is under way", || async { when(depth(&gateway).await >= 10) }).await;
        assert_eq!(depth(&gateway).await, 10, "{}", engine.name);
    }
}

/// The whole way: published twice, delivered once.
#[tokio::test]
async fn what_is_published_twice_is_delivered_once() {
    for engine in engines().await {
        let receiver = Receiver::start().await;
        let config = format!(
            "[destinations.hook]\ntransport = \"webhook\"\nurl = \"{}\"\nallow_private = true\n\
             [[routes]]\ntypes = [\"*\"]\ndestinations = [\"hook\"]\n\
             [messages.\"pay\"]\ndeduplication_identity = \"/invoice\"\ndeduplicate = {{ window = \"1h\" }}\n",
            receiver.url("/hook")
        );
        let gateway = Gateway::start(&engine.config(&config)).await;
        for _ in 0..3 {
            let answer = send(publish(&gateway, "pay", &json!({ "invoice": 1.50 }))).await;
            assert!(matches!(answer.status, 200 | 202), "{}", answer.text);
            assert_eq!(answer.body["deduplicationId"], "1.5");
        }
        send(publish(&gateway, "pay", &json!({ "invoice": 2 }))).await;
        let received = receiver.wait_for(2, SOON).await;
        eventually(SOON, "nothing is left", || async { when(depth(&gateway).await == 0) }).await;
        assert_eq!(receiver.count(), 2, "{}", engine.name);
        assert_eq!(received[0].header("deduplication-id"), "1.5");
    }
}

/// acemq: any database error counted as "duplicate", and an outage silently lost messages. Only the violation of a
/// claim's own key means duplicate.
#[tokio::test]
async fn a_database_error_is_never_a_duplicate() {
    use sqlx::Connection as _;
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(PAUSED)).await;
        let keyed =
            |id: &str| publish(&gateway, "strict", &json!({})).header("Deduplication-Id", id.to_owned());
        assert_eq!(send(keyed("a")).await.status, 202, "{}", engine.name);
        // The claims cannot be written, for a reason that has nothing to do with any claim.
        let (away, back) = match engine.name {
            "sqlite" => (
                "ALTER TABLE oncegate_deduplication RENAME TO away",
                "ALTER TABLE away RENAME TO oncegate_deduplication",
            ),
            _ => (
                "ALTER TABLE oncegate.deduplication RENAME TO away",
                "ALTER TABLE oncegate.away RENAME TO deduplication",
            ),
        };
        let run = async |statement: &'static str| {
            if engine.name == "sqlite" {
                let file = gateway.dir().join("oncegate-data/oncegate.db");
                let mut connection =
                    sqlx::SqliteConnection::connect(&format!("sqlite:{}", file.display())).await.unwrap();
                sqlx::query(statement).execute(&mut connection).await.unwrap();
            } else {
                let url = engine.store.split('"').nth(1).unwrap();
                let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
                sqlx::query(statement).execute(&mut connection).await.unwrap();
            }
        };
        run(away).await;
        for id in ["a", "b"] {
            let failed = send(keyed(id)).await;
            assert!(failed.status >= 500, "{} {id}: {}", engine.name, failed.text);
            assert!(failed.body["type"].as_str().unwrap().starts_with("/problems/"), "{}", failed.text);
        }
        run(back).await;
        assert_eq!(send(keyed("b")).await.status, 202, "{}: it was not lost", engine.name);
        assert_eq!(send(keyed("a")).await.status, 409, "{}: this one is a duplicate", engine.name);
        assert_eq!(depth(&gateway).await, 2, "{}", engine.name);
    }
}

/// wolverine#1725: after a long downtime everything was "new" again. The window is the claims' own, whatever else has
/// been forgotten meanwhile.
#[tokio::test]
async fn what_was_done_before_a_downtime_is_known_after_it() {
    let forgetful = "[history]\nkeep = \"0s\"\n\n[destinations.out]\ntransport = \"stdout\"\n\n[[routes]]\ntypes = \
                     [\"*\"]\ndestinations = [\"out\"]\n\n[messages.\"pay\"]\ndeduplicate = { window = \"30d\" }\n";
    for engine in engines().await {
        let mut gateway = Gateway::start(&engine.config(forgetful)).await;
        let pay =
            |gateway: &Gateway| publish(gateway, "pay", &json!({})).header("Deduplication-Id", "invoice-1");
        let first = send(pay(&gateway)).await;
        assert_eq!(first.status, 202, "{}: {}", engine.name, first.text);
        let status = gateway.url(first.location.as_deref().unwrap());
        eventually(SOON, "nothing else remembers it", || async {
            when(gateway.client().get(&status).send().await.unwrap().status() == 404)
        })
        .await;
        assert!(gateway.term(SOON).await.success());
        gateway.restart().await;
        let again = send(pay(&gateway)).await;
        assert_eq!(again.status, 200, "{}: {}", engine.name, again.text);
        assert_eq!((&again.body["id"], &again.body["state"]), (&first.body["id"], &json!("sent")));
    }
}
