//! The RabbitMQ transport against a real broker, which is stopped, frozen and cut off.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use oncegate::domain::delivery::{DeadKind, Failure, Fault, Format};
use oncegate::transport::{Common, Shared};

use crate::support::deliveries::{self, build, check, common, delivery, message, of};
use crate::support::proxy::Proxy;
use crate::support::rabbitmq::{self, message_id};
use crate::support::{eventually, run, when};

const PATIENCE: Duration = Duration::from_secs(60);

/// To the default exchange: the routing key is a queue's name.
fn to_queue(url: &str, queue: &str) -> Shared {
    deliveries::transport("rabbitmq", &format!("url = '{url}'\nrouting_key = '{queue}'"))
}

async fn failure(transport: &Shared) -> Failure {
    transport.send(&delivery("m")).await.expect_err("an attempt that fails")
}

async fn until_sent(transport: &Shared, id: &str) {
    eventually(PATIENCE, "a message is sent", async || when(transport.send(&delivery(id)).await.is_ok()))
        .await;
}

#[tokio::test]
async fn properties_and_headers_of_a_message() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.fresh_queue().await;
    let mut sent = message("m \u{e9}");
    sent.correlation_id = Some("c1".to_owned());
    sent.tenant = "acme".to_owned();
    let accepted_at = sent.accepted_at;
    to_queue(&broker.url(), &queue).send(&of(sent)).await.unwrap();
    let got = broker.open().await.get(&queue).await.unwrap();
    let properties = &got.properties;
    assert_eq!(message_id(&got), "m \u{e9}");
    let text = |value: &Option<lapin::types::ShortString>| value.as_ref().map(ToString::to_string);
    assert_eq!(text(properties.kind()).as_deref(), Some("order.created"));
    assert_eq!(text(properties.content_type()).as_deref(), Some("application/json"));
    assert_eq!(text(properties.correlation_id()).as_deref(), Some("c1"));
    assert_eq!(text(properties.app_id()).as_deref(), Some("oncegate"));
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert_eq!(*properties.timestamp(), Some(u64::try_from(accepted_at.timestamp()).unwrap()));
    let headers = properties.headers().as_ref().unwrap().inner();
    assert_eq!(headers["tenant-id"], AMQPValue::LongString("acme".into()));
    assert_eq!(headers["attempts"], AMQPValue::LongString("1".into()));
    assert_eq!(&*got.data, b"{\"sku\":\"A-1\"}");
}

#[tokio::test]
async fn as_cloudevents_it_is_the_binary_mode_of_the_amqp_binding() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.fresh_queue().await;
    let toml = format!("url = '{}'\nrouting_key = '{queue}'", broker.url());
    let common = Common { format: Format::CloudEvents, ..common(Duration::from_secs(10)) };
    let transport = build("rabbitmq", &toml, &common).unwrap();
    transport.send(&delivery("m1")).await.unwrap();
    let got = broker.open().await.get(&queue).await.unwrap();
    let headers = got.properties.headers().as_ref().unwrap().inner();
    for (name, value) in
        [("cloudEvents:specversion", "1.0"), ("cloudEvents:id", "m1"), ("cloudEvents:type", "order.created")]
    {
        assert_eq!(headers[name], AMQPValue::LongString(value.into()), "{name}");
    }
    assert!(!headers.contains_key("message-type"));
    assert_eq!(got.properties.content_type().as_ref().unwrap().as_str(), "application/json");
    assert_eq!(message_id(&got), "m1");
}

/// wolverine#1650: a message to a queue that does not exist must not count as sent.
#[tokio::test]
async fn what_no_queue_takes_is_not_sent() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let nowhere = run::unique("nowhere");
    let transport = to_queue(&broker.url(), &nowhere);
    let failure = failure(&transport).await;
    assert_eq!(failure.fault, Fault::Target);
    assert!(failure.text.contains("312 NO_ROUTE") && failure.text.contains(&nowhere), "{failure}");
    broker.open().await.declare(&nowhere).await;
    transport.send(&delivery("m")).await.unwrap();
}

/// A returned message and the confirm that it belongs to must be told from those around it, at any speed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_comes_back_is_told_from_its_neighbours() {
    let Some(broker) = rabbitmq::shared().await else { return };
    // A queue that is not durable confirms at once, and so together with what comes back.
    let (queue, probe) = (run::unique("q"), broker.open().await);
    let options = QueueDeclareOptions::default();
    probe.channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await.unwrap();
    let transport = deliveries::transport("rabbitmq", &format!("url = '{}'", broker.url()));
    for round in 0..4 {
        let attempts = (0..1000).map(|n| {
            let mut sent = message(&format!("r{round}-{n}"));
            let routed = n % 3 != round % 3;
            sent.kind = if routed { queue.clone() } else { format!("{queue}-not") };
            let (delivery, transport) = (of(sent), transport.clone());
            tokio::spawn(async move { (routed, transport.send(&delivery).await) })
        });
        for attempt in join_all(attempts).await {
            let (routed, outcome) = attempt.unwrap();
            assert_eq!(outcome.is_ok(), routed, "{outcome:?}");
        }
    }
    let arrived = probe.drain(&queue, Duration::from_millis(500)).await;
    let routed = (0..4).flat_map(|round| (0..1000).filter(move |n| n % 3 != round % 3)).count();
    assert_eq!(arrived.len(), routed);
}

#[tokio::test]
async fn an_exchange_that_is_not_there_is_the_targets_fault_until_it_is() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let exchange = run::unique("x");
    let toml = format!("url = '{}'\nexchange = '{exchange}'\nrouting_key = '{{@type}}'", broker.url());
    let transport = deliveries::transport("rabbitmq", &toml);
    for _ in 0..3 {
        let failure = failure(&transport).await;
        assert_eq!(failure.fault, Fault::Target);
        assert!(failure.text.contains("NOT_FOUND - no exchange"), "{failure}");
    }
    let (probe, queue) = (broker.open().await, broker.fresh_queue().await);
    probe.declare_exchange(&exchange).await;
    probe.bind(&queue, &exchange, "order.*").await;
    until_sent(&transport, "m").await;
    assert_eq!(probe.depth(&queue).await, 1);
}

#[tokio::test]
async fn what_is_to_be_declared_is_there_before_the_first_message() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let (exchange, queue) = (run::unique("x"), run::unique("q"));
    let declare = format!(
        "url = '{}'\nexchange = '{exchange}'\nrouting_key = '{{@tenant}}.{{@type}}'\n\
         declare = {{ exchange = 'topic', queue = '{queue}', bindings = ['acme.#'] }}",
        broker.url()
    );
    let transport = deliveries::transport("rabbitmq", &declare);
    let mut sent = message("m");
    sent.tenant = "acme".to_owned();
    transport.send(&of(sent)).await.unwrap();
    let probe = broker.open().await;
    assert_eq!(probe.get(&queue).await.unwrap().routing_key.as_str(), "acme.order.created");

    // It is there already, and otherwise.
    let other = deliveries::transport("rabbitmq", &declare.replace("topic", "fanout"));
    let failure = failure(&other).await;
    assert_eq!(failure.fault, Fault::Target);
    assert!(failure.text.contains("`declare`") && failure.text.contains("inequivalent"), "{failure}");
}

#[tokio::test]
async fn what_is_too_large_is_the_messages_fault_and_its_neighbours_go_on() {
    let Some(broker) = rabbitmq::private_with("max_message_size = 100000\n").await else { return };
    let queue = broker.fresh_queue().await;
    let transport = to_queue(&broker.url(), &queue);
    let mut large = message("large");
    large.body = Bytes::from(vec![b'x'; 100_001]);
    let large = of(large);
    let (large, neighbours) = tokio::join!(
        transport.send(&large),
        join_all((0..50).map(async |n| transport.send(&delivery(&format!("m{n}"))).await))
    );
    assert_eq!(large.unwrap_err().fault, Fault::Message(DeadKind::TooLarge));
    for lost in neighbours.into_iter().filter_map(Result::err) {
        assert_eq!(lost.fault, Fault::Attempt, "{lost}");
    }
    until_sent(&transport, "after").await;

    let mut headers = message("headers");
    for n in 0..64 {
        headers.envelope.headers.insert(format!("x-{n}"), "v".repeat(4000));
    }
    let refused = transport.send(&of(headers)).await.unwrap_err();
    assert_eq!(refused.fault, Fault::Message(DeadKind::TooLarge));
    transport.send(&delivery("after")).await.unwrap();
}

/// wolverine#1430, outpost#999: what waits must not wait for a restart of the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_broker_was_killed_it_goes_on_by_itself() {
    let Some(broker) = rabbitmq::private().await else { return };
    let queue = broker.fresh_queue().await;
    let transport = to_queue(&broker.url(), &queue);
    transport.send(&delivery("before")).await.unwrap();
    // Under load: nothing that is confirmed may be missing later.
    let sender = {
        let transport = transport.clone();
        tokio::spawn(async move {
            let mut confirmed = Vec::new();
            for n in 0.. {
                let id = format!("m{n}");
                match transport.send(&delivery(&id)).await {
                    Ok(_) => confirmed.push(id),
                    Err(failure) => return (confirmed, failure),
                }
            }
            unreachable!("the broker is killed")
        })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    broker.kill9();
    let killed = Instant::now();
    let (confirmed, lost) = sender.await.unwrap();
    assert!(killed.elapsed() < Duration::from_secs(3), "told only after {:?}", killed.elapsed());
    assert_eq!(lost.fault, Fault::Target, "{lost}");
    let down = failure(&transport).await;
    assert_eq!(down.fault, Fault::Target, "{down}");
    assert!(down.retry_after.is_some_and(|after| after <= Duration::from_secs(5)), "{down:?}");

    broker.start().await;
    let started = Instant::now();
    until_sent(&transport, "after").await;
    assert!(started.elapsed() < Duration::from_secs(10), "back only after {:?}", started.elapsed());
    let arrived = broker.open().await.drain(&queue, Duration::from_secs(1)).await;
    let ids: Vec<String> = arrived.iter().map(message_id).collect();
    for id in confirmed.iter().map(String::as_str).chain(["before", "after"]) {
        assert!(ids.iter().any(|arrived| arrived == id), "{id} was confirmed and is not there");
    }
}

#[tokio::test]
async fn a_node_may_start_before_its_broker() {
    let Some(broker) = rabbitmq::private().await else { return };
    let queue = broker.fresh_queue().await;
    broker.stop();
    let transport = to_queue(&broker.url(), &queue);
    let failure = failure(&transport).await;
    assert_eq!(failure.fault, Fault::Target);
    assert!(failure.text.contains("cannot connect"), "{failure}");
    assert!(!failure.text.contains("guest:guest"), "{failure}");
    broker.start().await;
    until_sent(&transport, "m").await;
}

/// A confirm that does not come ends the attempt; what is sent again is recognisable.
#[tokio::test]
async fn a_frozen_broker_ends_attempts_and_a_duplicate_has_the_same_id() {
    let Some(broker) = rabbitmq::private().await else { return };
    let queue = broker.fresh_queue().await;
    let toml = format!("url = '{}'\nrouting_key = '{queue}'", broker.url());
    let transport = build("rabbitmq", &toml, &common(Duration::from_millis(500))).unwrap();
    until_sent(&transport, "first").await;
    broker.freeze();
    let started = Instant::now();
    let sent = delivery("twice");
    let timed_out = transport.send(&sent).await.unwrap_err();
    assert_eq!(timed_out.fault, Fault::Attempt, "{timed_out}");
    assert!(timed_out.text.contains("did not confirm"), "{timed_out}");
    assert!(started.elapsed() < Duration::from_secs(3));
    broker.thaw();
    eventually(PATIENCE, "the message is sent again", async || when(transport.send(&sent).await.is_ok()))
        .await;
    let ids: Vec<String> =
        broker.open().await.drain(&queue, Duration::from_secs(1)).await.iter().map(message_id).collect();
    let twice = ids.iter().filter(|id| *id == "twice").count();
    assert!(twice >= 2, "{ids:?}");
    assert!(ids.iter().all(|id| id == "first" || id == "twice"), "{ids:?}");
}

#[tokio::test]
async fn what_is_pending_when_a_connection_is_cut_fails_at_once() {
    let Some(broker) = rabbitmq::private().await else { return };
    let queue = broker.fresh_queue().await;
    let proxy = Proxy::start(broker.port()).await;
    let url = format!("amqp://guest:guest@127.0.0.1:{}", proxy.port());
    let transport = to_queue(&url, &queue);
    transport.send(&delivery("m")).await.unwrap();
    broker.freeze();
    let pending = {
        let transport = transport.clone();
        tokio::spawn(async move { transport.send(&delivery("m")).await })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    let cut = Instant::now();
    proxy.cut();
    let lost = pending.await.unwrap().unwrap_err();
    assert_eq!(lost.fault, Fault::Target, "{lost}");
    assert!(cut.elapsed() < Duration::from_secs(2), "told only after {:?}", cut.elapsed());
    broker.thaw();
    until_sent(&transport, "m").await;
}

#[tokio::test]
async fn closing_lets_what_is_on_its_way_arrive() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.fresh_queue().await;
    let transport = to_queue(&broker.url(), &queue);
    transport.send(&delivery("m")).await.unwrap();
    let attempts: Vec<_> = (0..100)
        .map(|n| {
            let transport = transport.clone();
            tokio::spawn(async move { transport.send(&delivery(&format!("m{n}"))).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(2)).await;
    tokio::time::timeout(Duration::from_secs(5), transport.close()).await.unwrap();
    let sent = join_all(attempts).await.into_iter().filter(|sent| matches!(sent, Ok(Ok(_)))).count();
    assert_eq!(failure(&transport).await.fault, Fault::Target);
    let arrived = broker.open().await.drain(&queue, Duration::from_millis(500)).await.len();
    assert_eq!(arrived, sent + 1);
}

#[tokio::test]
async fn a_wrong_password_says_so() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let url = format!("amqp://guest:hunter2@127.0.0.1:{}", broker.port());
    let failure = failure(&to_queue(&url, "q")).await;
    assert_eq!(failure.fault, Fault::Target);
    assert!(failure.text.contains("ACCESS_REFUSED") || failure.text.contains("ACCESS-REFUSED"), "{failure}");
    assert!(!failure.text.contains("hunter2"), "{failure}");
}

#[test]
fn what_is_wrong_in_the_settings_is_told_by_its_key() {
    let good = "url = 'amqp://localhost'";
    assert_eq!(check("rabbitmq", good), Ok(()));
    for (toml, key) in [
        ("", "url"),
        ("url = 'http://localhost'", "url"),
        (&*format!("{good}\ncolour = 'red'"), "colour"),
        (&*format!("{good}\nrouting_key = '{{type}}'"), "routing_key"),
        (&*format!("{good}\nexchange = '{}'", "x".repeat(256)), "exchange"),
        (&*format!("{good}\ndeclare = {{ queues = 'q' }}"), "declare.queues"),
        (&*format!("{good}\ndeclare = {{ exchange = 'tropic' }}"), "declare.exchange"),
        (&*format!("{good}\ndeclare = {{ exchange = 'topic' }}"), "declare.exchange"),
        (&*format!("{good}\ndeclare = {{ queue = 'q', bindings = ['a'] }}"), "declare.bindings"),
        (&*format!("{good}\nexchange = 'x'\ndeclare = {{ bindings = ['a'] }}"), "declare.bindings"),
        (
            &*format!("{good}\ndeclare = {{ queue = 'q', queue_type = 'quorum', durable = false }}"),
            "declare.durable",
        ),
    ] {
        let error = check("rabbitmq", toml).expect_err(toml);
        assert_eq!(error.key, key, "{toml}: {error}");
    }
}
