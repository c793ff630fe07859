//! Requests share commits; they must not notice it. One that is bad, or blocked, or hung up on, is answered for
//! itself alone.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::Connection;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::gateway::Gateway;
use crate::support::postgres::{self, Postgres};
use crate::support::tables::Tables;
use crate::support::{eventually, when};

const NEIGHBOURS: usize = 60;

/// A gateway that stores and sends nothing, so that what is stored can be counted.
async fn gateway(postgres: &Postgres) -> (Gateway, Tables) {
    let store = postgres.fresh_database().await;
    let config = format!(
        "[stores.main]\nurl = \"{store}\"\n[destinations.hook]\ntransport = \"webhook\"\n\
         url = \"http://127.0.0.1:9/\"\nallow_private = true\npaused = true\n\
         [[routes]]\ntypes = [\"*\"]\ndestinations = [\"hook\"]\n\
         [messages.keyed]\ndeduplicate = {{ window = \"1h\" }}\n"
    );
    (Gateway::start(&config).await, Tables::of(&store))
}

/// Publishes `bad` among its neighbours, all at once; its answer. The neighbours are all accepted.
async fn among_neighbours(gateway: &Gateway, round: usize, bad: Value) -> (u16, Value) {
    let neighbours = (0..NEIGHBOURS)
        .map(|n| gateway.publish(json!({"id": format!("neighbour {round}/{n}"), "type": "fine", "data": n})));
    let begun = Instant::now();
    let (answers, bad) = tokio::join!(futures::future::join_all(neighbours), gateway.publish(bad));
    for (status, answer) in answers {
        assert_eq!(status, 202, "a neighbour suffered: {answer}");
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "the neighbours waited {:?}", begun.elapsed());
    bad
}

/// A NUL, a field too long, a time beyond what is taken: the one gets its 400, the sixty are accepted.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_message_gets_its_error_alone() {
    let Some(postgres) = postgres::shared().await else { return };
    let (gateway, tables) = gateway(&postgres).await;
    let long = "x".repeat(100_000);
    let bad = [
        json!({"type": "t", "data": 1, "subject": "a\u{0}b"}),
        json!({"type": "t", "data": 1, "subject": long}),
        json!({"type": "t\u{0}", "data": 1}),
        json!({"type": long, "data": 1}),
        json!({"type": "t", "data": 1, "id": long}),
        json!({"type": "t", "data": 1, "id": "a\u{0}b"}),
        json!({"type": "t", "data": 1, "partitionKey": "a\u{0}b"}),
        json!({"type": "t", "data": 1, "correlationId": long}),
        json!({"type": "t", "data": 1, "source": "a\u{0}b"}),
        json!({"type": "t", "data": 1, "headers": {"x": "a\u{0}b"}}),
        json!({"type": "t", "data": 1, "deliverAt": "+99999-01-01T00:00:00Z"}),
        json!({"type": "t", "data": 1, "deliverBy": "0001-01-01T00:00:00Z"}),
    ];
    let rounds = bad.len();
    for (round, bad) in bad.into_iter().enumerate() {
        let shown: String = bad.to_string().chars().take(80).collect();
        let (status, problem) = among_neighbours(&gateway, round, bad).await;
        assert_eq!(
            (status, problem["type"].as_str()),
            (400, Some("/problems/malformed-request")),
            "{shown}: {problem}"
        );
    }
    let stored = i64::try_from(rounds * NEIGHBOURS).unwrap();
    assert_eq!(tables.deliveries().await, stored, "exactly the neighbours are stored");
}

/// A claim's key is held by a transaction that stands still: the one that needs it is answered 503, and the sixty
/// are accepted as if it were not there. When it is known who has the key, so is what was answered first.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_a_frozen_transaction_holds_delays_nobody_else() {
    let Some(postgres) = postgres::shared().await else { return };
    let (gateway, tables) = gateway(&postgres).await;
    let keyed = json!({"type": "keyed", "data": 1, "deduplicationId": "held"});
    let (status, first) = gateway.publish(keyed.clone()).await;
    assert_eq!(status, 202, "{first}");

    // The first one's claim, put there by somebody who neither commits nor goes away.
    let mut connection = tables.connect().await;
    for statement in [
        "CREATE TABLE public.claim AS SELECT * FROM oncegate.deduplication",
        "DELETE FROM oncegate.deduplication",
    ] {
        sqlx::query(statement).execute(&mut connection).await.unwrap();
    }
    let mut frozen = connection.begin().await.unwrap();
    let held = sqlx::query("INSERT INTO oncegate.deduplication SELECT * FROM public.claim");
    assert_eq!(held.execute(&mut *frozen).await.unwrap().rows_affected(), 1);
    for round in 0..3 {
        let (status, problem) = among_neighbours(&gateway, round, keyed.clone()).await;
        assert_eq!(
            (status, problem["type"].as_str()),
            (503, Some("/problems/store-unavailable")),
            "{problem}"
        );
    }
    frozen.commit().await.unwrap();
    let (status, answer) = gateway.publish(keyed).await;
    assert_eq!(
        (status, &answer["outcome"], &answer["id"]),
        (200, &json!("duplicate"), &first["id"]),
        "{answer}"
    );
    assert_eq!(tables.deliveries().await, i64::try_from(1 + 3 * NEIGHBOURS).unwrap());
}

/// NUL bytes are no matter where bytes are meant: in the body.
#[tokio::test]
async fn a_body_is_bytes_whatever_they_are() {
    let Some(postgres) = postgres::shared().await else { return };
    let (gateway, tables) = gateway(&postgres).await;
    let bytes: Vec<u8> = (0..=255).collect();
    let answer =
        gateway.client().post(gateway.url("/v1/publish/t")).body(bytes.clone()).send().await.unwrap();
    assert_eq!(answer.status(), 202);
    let mut connection = tables.connect().await;
    let stored: Vec<u8> =
        sqlx::query_scalar("SELECT body FROM oncegate.deliveries").fetch_one(&mut connection).await.unwrap();
    assert_eq!(stored, bytes);
}

/// A client that hangs up cancels nothing, and leaves no connection of the pool inside a stale transaction.
///
/// transact-rs/sqlx#4385: dropping a `begin()` in flight poisons the pooled connection. caura#1629: the client
/// hung up, the recording was cancelled, the retry wrote twice.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_hang_up_cancel_nothing_and_poison_nothing() {
    let Some(postgres) = postgres::shared().await else { return };
    let (gateway, tables) = gateway(&postgres).await;
    for n in 0..200_u64 {
        let body = json!({"id": format!("gone {n}"), "type": "t", "data": n}).to_string();
        let request = format!(
            "POST /v1/publish HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(("127.0.0.1", gateway.port())).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        // At all sorts of moments of the request's life.
        tokio::time::sleep(Duration::from_micros(n * 50)).await;
        drop(stream);
    }
    for n in 0..100 {
        let (status, answer) =
            gateway.publish(json!({"id": format!("after {n}"), "type": "t", "data": n})).await;
        assert_eq!(status, 202, "{answer}");
    }
    // A transaction left open would hide its rows from others, or hold locks, for as long as it stands.
    let mut connection = tables.connect().await;
    eventually(Duration::from_secs(10), "no transaction left open", async || {
        let open: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
        )
        .fetch_one(&mut connection)
        .await
        .unwrap();
        when(open == 0)
    })
    .await;
    assert!(tables.deliveries().await >= 100);
    let stored: i64 = sqlx::query_scalar("SELECT count(DISTINCT message_id) FROM oncegate.deliveries")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(stored, tables.deliveries().await, "each at most once");
}
