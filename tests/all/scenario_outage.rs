//! Outages of the broker and of the database in mid-run.

use std::time::{Duration, Instant};

use crate::support::gateway::Gateway;
use crate::support::load::{Arrivals, Plan};
use crate::support::postgres::{self, Stop};
use crate::support::proxy::{Mode, Proxy};
use crate::support::rabbitmq;
use crate::support::receiver::Receiver;
use crate::support::tables::Tables;
use crate::support::{eventually, when};

const LONG: Duration = Duration::from_secs(120);

/// RabbitMQ is away for 20 s: publishing goes on, a webhook beside it is not slowed, all drains by itself and
/// nothing is lost. wolverine#1430, outpost#999: after a broker's restart stored rows waited for a restart of
/// the process. sequin#2154: one bad sink stopped all.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_rabbitmq_away_for_20_s() {
    let Some(postgres) = postgres::shared().await else { return };
    let Some(broker) = rabbitmq::private().await else { return };
    let (store, queue) = (postgres.fresh_database().await, broker.fresh_queue().await);
    let receiver = Receiver::start().await;
    let gateway = Gateway::start(&format!(
        r#"
        [stores.main]
        url = "{store}"

        [destinations.orders]
        transport = "rabbitmq"
        url = "{broker}"
        routing_key = "{queue}"
        timeout = "5s"
        breaker = {{ open = "2s" }}

        [destinations.hook]
        transport = "webhook"
        url = "{hook}"
        allow_private = true

        [[routes]]
        types = ["order.*"]
        destinations = ["orders", "hook"]
        "#,
        broker = broker.url(),
        hook = receiver.url("/hook"),
    ))
    .await;

    let crowd = Plan::new(&[&gateway], u64::MAX).connections(16).pace(Duration::from_millis(100)).start();
    crowd.reach(300, LONG).await;
    broker.stop();
    let (away, before) = (Instant::now(), crowd.accepted());
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(gateway.ready().await, "a destination's outage is not the gateway's");
    let during = crowd.accepted() - before;
    assert!(during > 500, "publishing stalled while the broker was away: {during} accepted in 20 s");
    broker.start().await;
    let outage = away.elapsed();
    let report = crowd.stop(LONG).await;
    assert_eq!(report.statuses.keys().collect::<Vec<_>>(), [&202], "{:?}", report.statuses);

    let tables = Tables::of(&store);
    let back = Instant::now();
    tables.drained(Duration::from_secs(60)).await;
    eprintln!(
        "{} accepted over an outage of {outage:?}; drained {:?} after it",
        report.accepted.len(),
        back.elapsed()
    );
    assert_eq!(tables.dead_letters().await, 0);
    let arrivals = Arrivals::of_queue(&broker.open().await.drain(&queue, Duration::from_secs(1)).await);
    arrivals.assert_nothing_lost(&report);

    // The webhook kept up: what it got while the broker was away did not wait for it.
    let received = receiver.received();
    Arrivals::of_webhook(&received).assert_exactly_once(&report);
    let during_outage = received
        .iter()
        .filter(|request| request.at > away && request.at < away + Duration::from_secs(20))
        .count();
    let wanted = usize::try_from(during).unwrap() * 9 / 10;
    assert!(during_outage >= wanted, "the webhook was slowed: {during_outage} of {during} in the outage");
}

/// PostgreSQL is away for 10 s: 503 with `Retry-After`, nothing answered 2xx that is not stored, and recovery by
/// itself. wolverine#1683, GH-4662, kafka-rest#387: 200 while the database was down.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_postgres_away_for_10_s() {
    let Some(postgres) = postgres::private(&[]).await else { return };
    let store = postgres.fresh_database().await;
    let receiver = Receiver::start().await;
    let mut gateway = Gateway::start(&hook_config(&store, &receiver, "10s")).await;

    let crowd = Plan::new(&[&gateway], u64::MAX).connections(16).pace(Duration::from_millis(50)).start();
    crowd.reach(300, LONG).await;
    postgres.stop(Stop::Immediate);
    // What was stored and not yet answered may still come in; then nothing more may be accepted.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let accepted = crowd.accepted();
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(crowd.accepted(), accepted, "answered 2xx while the store was away");
    assert!(!gateway.ready().await, "readiness tells the truth about the store");
    postgres.start().await;
    eventually(Duration::from_secs(20), "publishing again", async || when(crowd.accepted() > accepted + 100))
        .await;
    let report = crowd.stop(LONG).await;

    assert!(report.statuses.keys().all(|status| matches!(status, 202 | 503)), "{:?}", report.statuses);
    assert!(report.statuses[&503] > 0);
    assert_eq!(report.without_retry_after, 0, "503 without Retry-After");
    assert!(gateway.alive());
    let tables = Tables::of(&store);
    tables.drained(LONG).await;
    assert_eq!(tables.dead_letters().await, 0);
    Arrivals::of_webhook(&receiver.received()).assert_nothing_lost(&report);
    assert!(gateway.ready().await);
}

/// The network to PostgreSQL goes silent in mid-commit, and comes back. What is answered 2xx is stored; a
/// commit whose reply was lost is had again or answered 503; nobody waits for ever.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_the_way_to_postgres_is_cut_and_silent() {
    let Some(postgres) = postgres::shared().await else { return };
    let store = postgres.fresh_database().await;
    let proxy = Proxy::start(postgres.port()).await;
    let through = store.replace(&format!(":{}", postgres.port()), &format!(":{}", proxy.port()));
    let receiver = Receiver::start().await;
    let gateway = Gateway::start(&hook_config(&through, &receiver, "5s")).await;

    let crowd = Plan::new(&[&gateway], u64::MAX).connections(16).pace(Duration::from_millis(10)).start();
    for round in 1..=10 {
        crowd.reach(round * 150, LONG).await;
        proxy.cut();
    }
    crowd.reach(crowd.accepted() + 200, LONG).await;
    proxy.set(Mode::Hold);
    let silent = crowd.accepted();
    tokio::time::sleep(Duration::from_secs(3)).await;
    // What was on its way back when it went silent may still be counted.
    assert!(crowd.accepted() <= silent + 32, "answered 2xx without the commit's reply");
    proxy.set(Mode::Pass);
    proxy.cut();
    crowd.reach(crowd.accepted() + 200, LONG).await;
    let report = crowd.stop(LONG).await;
    assert!(report.statuses.keys().all(|status| matches!(status, 202 | 503)), "{:?}", report.statuses);
    assert_eq!(report.without_retry_after, 0, "503 without Retry-After");

    let tables = Tables::of(&store);
    tables.drained(LONG).await;
    assert_eq!(tables.dead_letters().await, 0);
    let arrivals = Arrivals::of_webhook(&receiver.received());
    arrivals.assert_nothing_lost(&report);
    eprintln!("{:?}, {} unanswered, {} copies", report.statuses, report.unanswered, arrivals.duplicates());
}

fn hook_config(store: &str, receiver: &Receiver, stale: &str) -> String {
    format!(
        r#"
        [stores.main]
        url = "{store}"

        [durability]
        outbox_stale_time = "{stale}"

        [destinations.hook]
        transport = "webhook"
        url = "{}"
        allow_private = true
        timeout = "3s"

        [[routes]]
        types = ["*"]
        destinations = ["hook"]
        "#,
        receiver.url("/hook")
    )
}
