//! Targets that take their time.

use std::collections::HashMap;
use std::time::Duration;

use crate::support::gateway::Gateway;
use crate::support::postgres;
use crate::support::receiver::{Answer, Receiver};
use crate::support::tables::Tables;

/// A webhook answers every request after 12 s, its timeout being 15 s and the lease 20 s; the backlog is a
/// minute. No delivery is sent twice: rows wait where they are stored, not in memory under a lease that ends.
///
/// wolverine#585, #1019, CAP#1429: recovery ran a message that was still being handled; 10k became 22k.
#[tokio::test(flavor = "multi_thread")]
async fn slow_webhook_under_a_backlog_of_a_minute_gets_nothing_twice() {
    let Some(postgres) = postgres::shared().await else { return };
    let store = postgres.fresh_database().await;
    let receiver = Receiver::scripted(|_, _| Answer::status(204).after(Duration::from_secs(12))).await;
    let config = format!(
        r#"
        [stores.main]
        url = "{store}"

        [destinations.hook]
        transport = "webhook"
        url = "{}"
        allow_private = true
        timeout = "15s"
        max_in_flight = 4

        [[routes]]
        types = ["*"]
        destinations = ["hook"]
        "#,
        receiver.url("/hook")
    );
    // Two nodes, so that one could take what the other still holds.
    let (gateway, _other) = tokio::join!(Gateway::start(&config), Gateway::start(&config));
    // Five rounds and a bit for the two nodes' eight at a time.
    let messages = 42;
    for n in 0..messages {
        let answer =
            gateway.client().post(gateway.url("/v1/publish/slow")).body(format!("{n}")).send().await.unwrap();
        assert_eq!(answer.status(), 202);
    }
    let tables = Tables::of(&store);
    tables.drained(Duration::from_secs(180)).await;
    // A copy sent late would still be on its way for a lease's time.
    tokio::time::sleep(Duration::from_secs(2)).await;

    let mut times: HashMap<String, u32> = HashMap::new();
    for request in receiver.received() {
        *times.entry(request.text()).or_default() += 1;
    }
    assert_eq!(times.len(), messages, "every message was sent");
    let twice: Vec<_> = times.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "sent more than once: {twice:?}");
    assert_eq!(tables.dead_letters().await, 0);
}
