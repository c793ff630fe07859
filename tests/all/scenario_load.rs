//! Under load: nothing lost, and exactly once when nothing fails; through kills, with two nodes, through a drain.

use std::time::{Duration, Instant};

use crate::support::gateway::Gateway;
use crate::support::load::{Arrivals, Plan};
use crate::support::rabbitmq::RabbitMq;
use crate::support::receiver::Receiver;
use crate::support::tables::Tables;
use crate::support::{eventually, postgres, rabbitmq, when};

const LONG: Duration = Duration::from_secs(120);

/// A lease is the longest of this and the destination's timeout and five seconds.
const STALE_S: u64 = 5;

fn config(store: &str, broker: &RabbitMq, queue: &str) -> String {
    format!(
        r#"
        [stores.main]
        url = "{store}"

        [durability]
        outbox_stale_time = "{STALE_S}s"

        [destinations.orders]
        transport = "rabbitmq"
        url = "{broker}"
        routing_key = "{queue}"
        timeout = "5s"

        [[routes]]
        types = ["order.*"]
        destinations = ["orders"]
        "#,
        broker = broker.url()
    )
}

/// 10,000 messages from 64 connections over PostgreSQL to RabbitMQ: each in the queue once.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_ten_thousand_messages_arrive_exactly_once() {
    let Some(postgres) = postgres::shared().await else { return };
    let Some(broker) = rabbitmq::shared().await else { return };
    let (store, queue) = (postgres.fresh_database().await, broker.fresh_queue().await);
    let gateway = Gateway::start(&config(&store, &broker, &queue)).await;

    let report = Plan::new(&[&gateway], 10_000).start().finish(LONG).await;
    assert_eq!(report.accepted.len(), 10_000);
    assert_eq!(report.statuses.keys().collect::<Vec<_>>(), [&202], "{:?}", report.statuses);
    eprintln!("10,000 accepted in {:?}, the slowest in {:?}", report.took, report.slowest);

    let tables = Tables::of(&store);
    tables.drained(LONG).await;
    assert_eq!(tables.dead_letters().await, 0);
    assert_eq!(tables.receipts().await, 10_000);
    let arrived = broker.open().await.drain(&queue, Duration::from_secs(1)).await;
    Arrivals::of_queue(&arrived).assert_exactly_once(&report);
}

/// The same with five kills in mid-run. svix, `message.rs`: commit, then enqueue in a second system, and a
/// crash in between lost the dispatch. Here the row is the queue.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_five_kills_lose_nothing_that_was_answered() {
    let Some(postgres) = postgres::shared().await else { return };
    let Some(broker) = rabbitmq::shared().await else { return };
    let (store, queue) = (postgres.fresh_database().await, broker.fresh_queue().await);
    let mut gateway = Gateway::start(&config(&store, &broker, &queue)).await;

    let crowd = Plan::new(&[&gateway], 10_000).start();
    for kill in 1..=5 {
        crowd.reach(kill * 1_600, LONG).await;
        gateway.kill9();
        gateway.restart().await;
    }
    let report = crowd.finish(LONG).await;
    assert!(report.accepted.len() >= 10_000, "every message was answered 2xx in the end");

    let tables = Tables::of(&store);
    tables.drained(LONG).await;
    assert_eq!(tables.dead_letters().await, 0);
    let arrivals = Arrivals::of_queue(&broker.open().await.drain(&queue, Duration::from_secs(1)).await);
    arrivals.assert_nothing_lost(&report);
    eprintln!("{} unanswered, {} copies", report.unanswered, arrivals.duplicates());
}

/// The embedded store keeps the same promise.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_kills_lose_nothing_on_the_embedded_store() {
    let receiver = Receiver::start().await;
    let mut gateway = Gateway::start(&format!(
        r#"
        [durability]
        outbox_stale_time = "2s"

        [destinations.hook]
        transport = "webhook"
        url = "{}"
        allow_private = true
        timeout = "2s"

        [[routes]]
        types = ["*"]
        destinations = ["hook"]
        "#,
        receiver.url("/hook")
    ))
    .await;

    let crowd = Plan::new(&[&gateway], 2_000).connections(16).start();
    for kill in 1..=3 {
        crowd.reach(kill * 500, LONG).await;
        gateway.kill9();
        gateway.restart().await;
    }
    let report = crowd.finish(LONG).await;
    eventually(LONG, "every accepted message at the webhook", async || {
        let arrivals = Arrivals::of_webhook(&receiver.received());
        when(report.accepted.keys().all(|key| arrivals.0.contains_key(key)))
    })
    .await;
    Arrivals::of_webhook(&receiver.received()).assert_nothing_lost(&report);
}

/// Two nodes share the work of one PostgreSQL. One is killed: nothing stays stuck, and the last of its rows is
/// sent within its lease and five seconds.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_two_nodes_share_the_work_and_one_may_die() {
    let Some(postgres) = postgres::shared().await else { return };
    let store = postgres.fresh_database().await;
    // Slow enough that a kill finds rows in the dead node's hands.
    let receiver = Receiver::scripted(|_, _| {
        crate::support::receiver::Answer::status(204).after(Duration::from_millis(100))
    })
    .await;
    let config = format!(
        r#"
        [stores.main]
        url = "{store}"

        [durability]
        outbox_stale_time = "{STALE_S}s"

        [destinations.hook]
        transport = "webhook"
        url = "{}"
        allow_private = true
        timeout = "2s"
        max_in_flight = 16

        [[routes]]
        types = ["*"]
        destinations = ["hook"]
        "#,
        receiver.url("/hook")
    );
    // Both at once, on an empty database.
    let (mut dying, staying) = tokio::join!(Gateway::start(&config), Gateway::start(&config));

    let crowd = Plan::new(&[&dying, &staying], 2_000).connections(32).start();
    crowd.reach(1_000, LONG).await;
    dying.kill9();
    let killed = Instant::now();
    let report = crowd.finish(LONG).await;
    let tables = Tables::of(&store);
    tables.drained(LONG).await;
    let arrivals = Arrivals::of_webhook(&receiver.received());
    arrivals.assert_nothing_lost(&report);
    assert_eq!(tables.dead_letters().await, 0);

    // The lease: the longest of the stale time and the timeout and five seconds. Rows that the dead node held
    // are free when it ends; the last of them has to be on its way five seconds later.
    let lease = Duration::from_secs(STALE_S.max(2 + 5));
    let last = receiver.received().iter().map(|request| request.at).max().expect("requests");
    let after = last.saturating_duration_since(killed);
    assert!(after <= lease + Duration::from_secs(5), "the last row was sent {after:?} after the kill");
    eprintln!("the last row was sent {after:?} after the kill; {} copies", arrivals.duplicates());
}

/// wolverine#4213: a shutdown dead-lettered work that had not run. SIGTERM under load ends with 0, dead-letters
/// nothing and loses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_sigterm_under_load_drains_and_loses_nothing() {
    let Some(postgres) = postgres::shared().await else { return };
    let Some(broker) = rabbitmq::shared().await else { return };
    let (store, queue) = (postgres.fresh_database().await, broker.fresh_queue().await);
    let mut gateway = Gateway::start(&config(&store, &broker, &queue)).await;

    let crowd = Plan::new(&[&gateway], 20_000).start();
    for term in 1..=2 {
        crowd.reach(term * 1_500, LONG).await;
        let status = gateway.term(Duration::from_secs(30)).await;
        assert_eq!(status.code(), Some(0), "{}", gateway.stderr());
        gateway.restart().await;
    }
    let report = crowd.stop(LONG).await;
    let status = gateway.term(Duration::from_secs(30)).await;
    assert_eq!(status.code(), Some(0), "{}", gateway.stderr());
    gateway.restart().await;

    let tables = Tables::of(&store);
    tables.drained(LONG).await;
    assert_eq!(tables.dead_letters().await, 0);
    let arrivals = Arrivals::of_queue(&broker.open().await.drain(&queue, Duration::from_secs(1)).await);
    arrivals.assert_nothing_lost(&report);
    // A drain that waits for what is under way repeats nothing.
    assert_eq!(arrivals.duplicates(), 0, "an orderly end makes no copies");
}
