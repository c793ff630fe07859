//! Ordered targets and processes: two nodes, a target that fails at random, a node that is killed.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::ordering::assert_in_order;
use crate::support::gateway::Gateway;
use crate::support::receiver::{Answer, Receiver};
use crate::support::tables::Tables;
use crate::support::{eventually, postgres, when};

const LONG: Duration = Duration::from_secs(150);
const KEYS: usize = 50;
const EACH: usize = 200;
/// Messages of a key in one request.
const BATCH: usize = 10;

fn config(store: &str, receiver: &Receiver) -> String {
    let target = "ordered = true\ntimeout = '2s'\nbreaker = { failures = 100000, open = '100ms' }\n\
                  retry = { initial = '5ms', max = '50ms', max_attempts = 1000 }\n";
    format!(
        "[stores.main]\nurl = '{store}'\n[durability]\noutbox_stale_time = '2s'\ninbox_stale_time = '3s'\n\
         [destinations.hook]\ntransport = 'webhook'\nurl = '{}'\nallow_private = true\nmax_in_flight = 64\n{target}\
         [[routes]]\ntypes = ['step']\ndestinations = ['hook']\n\
         [handlers.work]\ntypes = ['step']\nurl = '{}'\nconcurrency = 64\n{target}",
        receiver.url("/hook"),
        receiver.url("/work"),
    )
}

/// 50 keys × 200 messages, to a destination and to a handler, published through two nodes in turn; a tenth of the
/// attempts fails, and one node is killed in the middle. Every key arrives in order, and nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_every_key_keeps_its_order_through_two_nodes_failures_and_a_kill() {
    let Some(postgres) = postgres::shared().await else { return };
    let store = postgres.fresh_database().await;
    let receiver = Receiver::scripted(|n, _| match n.wrapping_mul(2_654_435_761) % 40 {
        0 | 1 => Answer::status(500),
        2 => Answer::status(429).header("retry-after", "0"),
        3 => Answer::status(204).after(Duration::from_millis(100)),
        _ => Answer::status(204),
    })
    .await;
    let config = config(&store, &receiver);
    let (first, mut second) = (Gateway::start(&config).await, Gateway::start(&config).await);
    let (client, urls) = (first.client().clone(), [&first, &second].map(|g| g.url("/v1/publish-batch")));
    let began = Instant::now();
    let publishers: Vec<_> =
        (0..KEYS).map(|key| tokio::spawn(publish(client.clone(), urls.clone(), key))).collect();
    // Killed while much is on its way from both, and not started again.
    eventually(LONG, "a third has arrived", async || when(receiver.count() >= KEYS * EACH * 2 / 3)).await;
    second.kill9();
    for publisher in publishers {
        publisher.await.unwrap();
    }
    let tables = Tables::of(&store);
    tables.drained(LONG).await;
    assert_eq!(tables.dead_letters().await, 0);
    eprintln!("{} deliveries in {:?}, {} attempts", 2 * KEYS * EACH, began.elapsed(), receiver.count());
    assert_in_order(&receiver.received(), &["/hook", "/work"], KEYS, EACH);
}

/// Publishes the messages of a key, one request after the other, each again until it is answered.
async fn publish(client: reqwest::Client, urls: [String; 2], key: usize) {
    for batch in 0..EACH / BATCH {
        let messages: Vec<_> = (0..BATCH)
            .map(|n| json!({"type": "step", "partitionKey": format!("k{key}"), "data": batch * BATCH + n}))
            .collect();
        let started = Instant::now();
        for attempt in batch.. {
            // The key makes a repeated request one request.
            let request = client
                .post(&urls[attempt % 2])
                .header("Idempotency-Key", format!("{key}-{batch}"))
                .timeout(Duration::from_secs(10))
                .json(&messages);
            if request.send().await.is_ok_and(|answer| answer.status() == 202) {
                break;
            }
            assert!(started.elapsed() < LONG, "nobody takes the messages");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
