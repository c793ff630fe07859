//! Several stores, one of them down: at start, in mid-run, and over a kill.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::stores::{ACME, Database, OTHER, ROOT, call, config, get, order, publish, to_receiver};
use super::support::gateway::Gateway;
use super::support::postgres::{self, Postgres, Stop};
use super::support::receiver::{Answer, Receiver};
use super::support::{eventually, run, when};

const LONG: Duration = Duration::from_secs(50);

/// What was accepted and has not arrived.
fn missing(accepted: &BTreeSet<String>, receiver: &Receiver) -> Vec<String> {
    let arrived: BTreeSet<_> = receiver.received().iter().map(|one| one.header("id").to_owned()).collect();
    accepted.difference(&arrived).cloned().collect()
}

async fn all_arrive(accepted: &BTreeSet<String>, receiver: &Receiver) {
    eventually(LONG, "everything accepted arrives", async || when(missing(accepted, receiver).is_empty()))
        .await;
}

/// How `/readyz` tells of a store: its status, that of the node, and the store's detail.
async fn standing(gateway: &Gateway, store: &str) -> (u16, Value, Option<String>) {
    let (status, told) = get(gateway, ROOT, "/readyz").await;
    let stores = told["stores"].as_array().cloned().unwrap_or_default();
    let store = stores.into_iter().find(|one| one["store"] == store);
    let detail = store.and_then(|one| one["detail"].as_str().map(str::to_owned));
    (status, told["status"].clone(), detail)
}

/// `down`: the key whose store is not there; `up`: one whose store is. `raise` brings it back.
async fn starts_without(
    config: &str,
    receiver: &Receiver,
    (down, name): (&str, &str),
    up: &str,
    raise: impl AsyncFnOnce(),
) {
    let gateway = Gateway::start(config).await;
    let (status, node, detail) = standing(&gateway, name).await;
    assert_eq!((status, node), (200, json!("degraded")));
    assert!(detail.is_some());
    let mut accepted = BTreeSet::new();
    for number in 0..5 {
        let id = format!("{name}-down-{number}");
        assert_eq!(publish(&gateway, up, order(&id)).await.0, 202);
        accepted.insert(id);
    }
    all_arrive(&accepted, receiver).await;
    let (status, problem) = publish(&gateway, down, order("refused")).await;
    assert_eq!((status, &problem["type"]), (503, &json!("/problems/store-unavailable")), "{problem}");
    assert_eq!(get(&gateway, down, "/v1/messages/refused").await.0, 503);

    // The operator of all stores sees those that answer, and which does not.
    let (status, targets) = get(&gateway, ROOT, "/v1/targets").await;
    assert_eq!((status, &targets["unavailableStores"]), (200, &json!([name])), "{targets}");
    let (status, problem) = call(&gateway, "POST", "/v1/targets/out/pause", ROOT, None).await;
    assert_eq!(status, 503, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains(name), "{problem}");
    let (_, own) = get(&gateway, up, "/v1/targets").await;
    assert!(own["items"].as_array().unwrap().iter().all(|item| item["paused"] == true), "{own}");

    raise().await;
    eventually(LONG, "the store is taken up", async || {
        when(standing(&gateway, name).await == (200, json!("ok"), None))
    })
    .await;
    assert_eq!(call(&gateway, "POST", "/v1/targets/out/resume", ROOT, None).await.0, 204);
    let id = format!("{name}-up");
    assert_eq!(publish(&gateway, down, order(&id)).await.0, 202);
    all_arrive(&BTreeSet::from([id]), receiver).await;
}

/// A node starts while a store is down, serves the tenants of the others, says which one is missing, and takes it up,
/// schema and all, when it is there: whichever it is, a server or a file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_a_store_that_is_down_at_start_holds_up_no_other() {
    let receiver = Receiver::start().await;
    let rest = to_receiver(&receiver);
    if let Some(server) = postgres::private(&[]).await {
        let down = Database::at(server.fresh_database().await);
        server.stop(Stop::Fast);
        let config = config(&Database::sqlite(), &down, &rest);
        starts_without(&config, &receiver, (ACME, "acme"), ROOT, async || server.start().await).await;
    }
    if let Some(server) = postgres::private(&[]).await {
        let down = Database::at(server.fresh_database().await);
        server.stop(Stop::Fast);
        let config = config(&down, &Database::sqlite(), &rest);
        starts_without(&config, &receiver, (OTHER, "main"), ACME, async || server.start().await).await;
    }
    let folder = run::fresh_dir("blocked");
    std::fs::write(folder.join("data"), "no folder").unwrap();
    let down = Database::at(format!("sqlite:{}", folder.join("data/store.db").display()));
    let config = config(&down, &Database::sqlite(), &rest);
    let raise = async || std::fs::remove_file(folder.join("data")).unwrap();
    starts_without(&config, &receiver, (OTHER, "main"), ACME, raise).await;
}

/// Publishes for a tenant until told to stop; the ids of what was accepted, and the longest that one took.
async fn keep_publishing(
    gateway: &Gateway,
    key: &str,
    prefix: &str,
    stop: &tokio_util::sync::CancellationToken,
) -> (BTreeSet<String>, Duration) {
    let (mut accepted, mut slowest) = (BTreeSet::new(), Duration::ZERO);
    let mut number = 0;
    while !stop.is_cancelled() {
        number += 1;
        let id = format!("{prefix}-{number}");
        let began = Instant::now();
        match publish(gateway, key, order(&id)).await.0 {
            202 => {
                accepted.insert(id);
                slowest = slowest.max(began.elapsed());
            }
            503 => {}
            status => panic!("{status}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (accepted, slowest)
}

/// A store freezes in mid-run (connections stay, nothing answers), then dies, then comes back. The other tenants are
/// served and delivered to all the while, and nothing that was accepted is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_a_store_that_fails_in_mid_run_holds_up_no_other() {
    let Some(server) = postgres::private(&[]).await else { return };
    let receiver = Receiver::start().await;
    let down = Database::at(server.fresh_database().await);
    let gateway = Gateway::start(&config(&Database::sqlite(), &down, &to_receiver(&receiver))).await;
    let stop = tokio_util::sync::CancellationToken::new();
    let meanwhile = async {
        let begun = async || {
            let arrived: Vec<_> = receiver.received().iter().map(|one| one.header("id").to_owned()).collect();
            let of = |prefix: &str| arrived.iter().filter(|id| id.starts_with(prefix)).count();
            when(of("acme") > 10 && of("main") > 10)
        };
        eventually(LONG, "both are delivered", begun).await;
        server.freeze();
        fails(&gateway, &receiver).await;
        server.kill9();
        fails(&gateway, &receiver).await;
        server.start().await;
        eventually(LONG, "it is back", async || {
            when(standing(&gateway, "acme").await == (200, json!("ok"), None))
        })
        .await;
        stop.cancel();
    };
    let (of_main, of_acme, ()) = tokio::join!(
        keep_publishing(&gateway, ROOT, "main", &stop),
        keep_publishing(&gateway, ACME, "acme", &stop),
        meanwhile
    );
    assert!(of_main.1 < Duration::from_secs(10), "a publish to a store that works took {:?}", of_main.1);
    all_arrive(&of_main.0, &receiver).await;
    all_arrive(&of_acme.0, &receiver).await;
    eventually(LONG, "nothing is left", async || when(down.count("deliveries").await == 0)).await;
}

/// The store is told to be down, in the report and in the metrics, and the others' messages arrive.
async fn fails(gateway: &Gateway, receiver: &Receiver) {
    eventually(LONG, "it is told", async || {
        let (status, node, detail) = standing(gateway, "acme").await;
        when(status == 200 && node == "degraded" && detail.is_some())
    })
    .await;
    let metrics = gateway.client().get(gateway.url("/metrics")).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains(r#"oncegate_store_up{store="acme"} 0"#), "{metrics}");
    assert!(metrics.contains(r#"oncegate_store_up{store="main"} 1"#), "{metrics}");
    let of_main = || receiver.received().iter().filter(|one| one.header("id").starts_with("main")).count();
    let before = of_main();
    eventually(LONG, "the others' messages arrive", async || when(of_main() > before + 20)).await;
}

/// `kill -9` with rows in both stores: a restart delivers all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_a_restart_after_a_kill_drains_every_store() {
    let Some(server): Option<Postgres> = postgres::shared().await else { return };
    let receiver = Receiver::start().await;
    receiver.script(|_, _| Answer::status(503).header("retry-after", "1"));
    let (main, acme) = (Database::at(server.fresh_database().await), Database::sqlite());
    let rest = format!("{}\n[durability]\noutbox_stale_time = \"1s\"\n", to_receiver(&receiver));
    let mut gateway = Gateway::start(&config(&main, &acme, &rest)).await;
    let mut accepted = BTreeSet::new();
    for number in 0..30 {
        for (key, prefix) in [(ROOT, "root"), (ACME, "acme"), (OTHER, "other")] {
            let id = format!("{prefix}-{number}");
            assert_eq!(publish(&gateway, key, order(&id)).await.0, 202);
            accepted.insert(id);
        }
    }
    gateway.kill9();
    assert_eq!((main.count("deliveries").await, acme.count("deliveries").await), (60, 30));
    receiver.script(|_, _| Answer::status(200));
    gateway.restart().await;
    all_arrive(&accepted, &receiver).await;
    eventually(LONG, "both stores are empty", async || {
        when(main.count("deliveries").await + acme.count("deliveries").await == 0)
    })
    .await;
}
