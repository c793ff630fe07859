//! Many at once: on one node, and over two nodes of one database.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::bench::{Bench, SHOP, SOON, Told, tell};
use crate::support::gateway::Gateway;
use crate::support::{eventually, postgres, when};

const KEY: &str = "Idempotency-Key";

/// One of them had the effect; all others were told the same to the letter.
#[track_caller]
fn one_won(all: &[Told]) {
    let first: Vec<&Told> = all.iter().filter(|told| !told.replayed()).collect();
    assert_eq!(first.len(), 1, "{} were not replayed", first.len());
    for told in all {
        assert_eq!((told.status, &told.bytes), (202, &first[0].bytes));
        assert_eq!(told.header("location"), first[0].header("location"));
    }
}

/// mastodon#37879, square1-io/laravel-idempotency#1: the same key while the first still ran: both ran.
/// margince#423: a settled key was reported "in progress".
pub async fn of_twenty_requests_with_one_key_one_has_an_effect(bench: &Bench) {
    for round in 0..5 {
        let key = format!("raced-{round}");
        let request = || tell(bench.post("order.created", &json!({"round": round})).header(KEY, &key));
        one_won(&futures::future::join_all((0..20).map(|_| request())).await);
        // And twenty requests of their own for the same work.
        let work = format!("work-{round}");
        let all = futures::future::join_all((0..20).map(|_| bench.work("work.acknowledge", &work))).await;
        assert_eq!(all.iter().filter(|told| told.status == 202).count(), 1);
        assert_eq!(all.iter().filter(|told| told.status == 200).count(), 19);
        let id = all[0].json()["id"].clone();
        assert!(all.iter().all(|told| told.json()["id"] == id));
    }
    let times = bench.delivered(10).await;
    assert_eq!(times.len(), 10, "{times:?}");
    assert!(times.values().all(|count| *count == 1), "{times:?}");
}

/// wolverine#2375: ids of many equal containers collided.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_twenty_requests_to_two_nodes_one_has_an_effect() {
    let Some(server) = postgres::shared().await else { return };
    let bench = Bench::with(Some(server.fresh_database().await)).await;
    let second = Gateway::start(&bench.config).await;
    for round in 0..10 {
        let key = format!("raced-{round}");
        let request = |n: usize| {
            let url =
                if n.is_multiple_of(2) { &bench.gateway } else { &second }.url("/v1/publish/order.created");
            let request =
                second.client().post(url).bearer_auth(SHOP).header("Content-Type", "application/json");
            tell(request.header(KEY, &key).body(json!({"round": round}).to_string()))
        };
        one_won(&futures::future::join_all((0..20).map(request)).await);
    }
    let times = bench.delivered(10).await;
    assert_eq!(times.len(), 10, "{times:?}");
    assert!(times.values().all(|count| *count == 1), "{times:?}");
}

/// NServiceBus.Persistence.Sql#778, svix#869: cleaning deadlocked with inserts. Two nodes purge without a leader
/// while 64 connections insert.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purging_and_inserting_do_not_meet() {
    let Some(server) = postgres::private(&[("deadlock_timeout", "50ms")]).await else { return };
    let url = server.fresh_database().await;
    let config = format!(
        "[stores.main]\nurl = {url:?}\nmax_connections = 40\n\n[deduplication]\ncleanup_interval = \"1s\"\nwindow = \"1s\"\n\n\
         [idempotency]\nwindow = \"1s\"\n\n[messages.\"w\"]\ndeduplicate = {{ required = true }}\n\n\
         [destinations.out]\ntransport = \"stdout\"\npaused = true\n\n[[routes]]\ntypes = [\"*\"]\ndestinations = [\"out\"]\n"
    );
    let nodes = [Gateway::start(&config).await, Gateway::start(&config).await];
    let started = Instant::now();
    let writers = (0..64_usize).map(|writer| {
        let (client, url) =
            (reqwest::Client::builder().no_proxy().build().unwrap(), nodes[writer % 2].url("/v1/publish"));
        tokio::spawn(async move {
            let mut count = 0;
            while started.elapsed() < Duration::from_secs(8) {
                let id = format!("{writer}-{count}");
                let body = json!({"type": "w", "deduplicationId": id, "data": 1}).to_string();
                let request = client.post(&url).header("Content-Type", "application/json").header(KEY, &id);
                let told = tell(request.body(body)).await;
                assert_eq!(told.status, 202, "{}", String::from_utf8_lossy(&told.bytes));
                count += 1;
            }
            count
        })
    });
    let mut inserted = 0;
    for writer in futures::future::join_all(writers).await {
        inserted += writer.unwrap();
    }
    assert!(inserted > 64);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let left = "SELECT count(*) FROM oncegate.deduplication";
    let mut claims = async || sqlx::query_scalar::<_, i64>(left).fetch_one(&mut connection).await.unwrap();
    let began = Instant::now();
    while claims().await > 0 {
        assert!(began.elapsed() < SOON, "the claims are not purged");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for node in &nodes {
        eventually(SOON, "each node logs how many it purged", async || {
            when(
                node.stderr()
                    .lines()
                    .any(|line| line.contains("purged what expired") && line.contains("claims=")),
            )
        })
        .await;
    }
    let log = server.log();
    assert!(!log.contains("deadlock"), "{log}");
}
