//! What every transport has to hold, each against the real thing.
//!
//! A transport joins with a [`Peer`]: how it is configured, and how what the target has stored is read back.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::future::join_all;
use oncegate::domain::delivery::Delivery;
use oncegate::domain::message::Message;
use oncegate::domain::wire;
use oncegate::transport::Shared;

use crate::support::deliveries::{self, message, of};
use crate::support::rabbitmq::{self, RabbitMq};
use crate::support::receiver::Receiver;

/// A message as the target has it.
struct Stored {
    id: String,
    body: Vec<u8>,
    /// Those of the wire; `None` where the transport writes the native form instead.
    headers: Option<BTreeMap<String, String>>,
}

/// The real thing at the other end.
#[async_trait]
trait Peer: Send + Sync {
    fn transport(&self) -> Shared;
    /// Everything that is there now, without waiting for more.
    async fn stored(&self) -> Vec<Stored>;
}

struct Webhook(Receiver);

#[async_trait]
impl Peer for Webhook {
    fn transport(&self) -> Shared {
        deliveries::transport("webhook", &format!("url = '{}'\nallow_private = true", self.0.url("/")))
    }

    async fn stored(&self) -> Vec<Stored> {
        self.0
            .received()
            .into_iter()
            .filter(|received| received.answered.is_some())
            .map(|received| Stored {
                id: wire::decode(received.header("id").as_bytes()).unwrap(),
                body: received.body.to_vec(),
                headers: Some(
                    received
                        .headers
                        .iter()
                        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
                        .filter(|(name, _)| {
                            !["host", "user-agent", "accept", "content-length"].contains(&name.as_str())
                        })
                        .collect(),
                ),
            })
            .collect()
    }
}

struct Queue(RabbitMq, String);

#[async_trait]
impl Peer for Queue {
    fn transport(&self) -> Shared {
        let toml = format!("url = '{}'\nrouting_key = '{}'", self.0.url(), self.1);
        deliveries::transport("rabbitmq", &toml)
    }

    async fn stored(&self) -> Vec<Stored> {
        let probe = self.0.open().await;
        let mut stored = Vec::new();
        for _ in 0..probe.depth(&self.1).await {
            let got = probe.get(&self.1).await.unwrap();
            let table = got.properties.headers().as_ref().unwrap().inner();
            let headers = table
                .iter()
                .map(|(name, value)| (name.to_string(), value.as_long_string().unwrap().to_string()))
                .collect();
            stored.push(Stored { id: rabbitmq::message_id(&got), body: got.data, headers: Some(headers) });
        }
        stored
    }
}

/// Runs a case over every transport that can be looked into from here.
async fn over_each<F: AsyncFn(&dyn Peer)>(case: F) {
    case(&Webhook(Receiver::start().await)).await;
    let Some(broker) = rabbitmq::shared().await else { return };
    let queue = broker.fresh_queue().await;
    case(&Queue(broker, queue)).await;
}

fn with_body(id: &str, content_type: &str, body: impl Into<Bytes>) -> Message {
    let mut message = message(id);
    message.body = body.into();
    message.envelope.content_type = Some(content_type.to_owned());
    message
}

/// Bodies that somebody might re-encode, cut, or read as text.
fn bodies() -> Vec<Message> {
    vec![
        with_body("json", "application/json", "{\"b\": 1,  \"a\":1.0e2}"),
        with_body("unicode", "text/plain; charset=utf-8", "\u{feff}gr\u{fc}\u{df}e \u{1f600}\r\n"),
        with_body("binary", "application/octet-stream", (0..=255).collect::<Vec<u8>>()),
        with_body("zeros", "application/x-zeros", vec![0; 3]),
        with_body("empty", "text/plain", ""),
        with_body("large", "application/octet-stream", vec![7; 8 * 1024 * 1024]),
    ]
}

#[tokio::test]
async fn what_is_acknowledged_is_there() {
    over_each(async |peer| {
        let transport = peer.transport();
        transport.send(&deliveries::delivery("m")).await.unwrap();
        let stored = peer.stored().await;
        assert_eq!(stored.len(), 1);
        assert_eq!(stored[0].id, "m");
    })
    .await;
}

#[tokio::test]
async fn bodies_arrive_byte_for_byte() {
    over_each(async |peer| {
        let transport = peer.transport();
        for message in bodies() {
            transport.send(&of(message)).await.unwrap();
        }
        let stored = peer.stored().await;
        for (sent, stored) in bodies().iter().zip(&stored) {
            assert_eq!(stored.id, sent.id);
            assert!(stored.body == sent.body, "{} was changed", sent.id);
        }
        assert_eq!(stored.len(), bodies().len());
    })
    .await;
}

/// The same names and the same values, whatever the transport.
#[tokio::test]
async fn wire_headers_are_the_same_everywhere() {
    let mut sent = message("m-\u{e9} %");
    sent.tenant = "acme".to_owned();
    sent.deduplication_id = Some("a b|\u{20ac}".to_owned());
    sent.partition_key = Some("p".to_owned());
    sent.correlation_id = Some("c".to_owned());
    sent.deliver_by = Some(sent.accepted_at + Duration::from_secs(60));
    sent.envelope.source = Some("/shop".to_owned());
    sent.envelope.subject = Some("order \u{1f600}".to_owned());
    sent.envelope.causation_id = Some("before".to_owned());
    sent.envelope.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    sent.envelope.tracestate = Some("a=1,b=2".to_owned());
    sent.envelope.headers.insert("x-own".to_owned(), "v \u{e9}".to_owned());
    sent.envelope.headers.insert("x-empty".to_owned(), String::new());
    let delivery = Delivery { attempts: 4, ..of(sent) };
    let expected: BTreeMap<String, String> = wire::http_headers(&delivery)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into_owned()))
        .collect();
    over_each(async |peer| {
        peer.transport().send(&delivery).await.unwrap();
        let headers = peer.stored().await.remove(0).headers.unwrap();
        assert_eq!(headers, expected);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_arrive_once_each() {
    over_each(async |peer| {
        let transport = peer.transport();
        let attempts = (0..500).map(|n| {
            let transport = transport.clone();
            tokio::spawn(async move { transport.send(&deliveries::delivery(&format!("m{n}"))).await })
        });
        for sent in join_all(attempts).await {
            sent.unwrap().unwrap();
        }
        let mut ids: Vec<String> = peer.stored().await.into_iter().map(|stored| stored.id).collect();
        assert_eq!(ids.len(), 500);
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 500);
    })
    .await;
}

/// An attempt that nobody waits for any more disturbs no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_that_are_given_up_on_disturb_no_other() {
    over_each(async |peer| {
        let transport = peer.transport();
        transport.send(&deliveries::delivery("first")).await.unwrap();
        for n in 0..200_u64 {
            let given_up = transport.send(&deliveries::delivery("given-up")).await;
            drop(given_up);
            let late = deliveries::delivery("late");
            let _ = tokio::time::timeout(Duration::from_micros(n * 5), transport.send(&late)).await;
        }
        transport.send(&deliveries::delivery("last")).await.unwrap();
        let ids: Vec<String> = peer.stored().await.into_iter().map(|stored| stored.id).collect();
        assert_eq!(ids.iter().filter(|id| *id == "given-up").count(), 200);
        assert!(ids.iter().any(|id| id == "last"));
    })
    .await;
}

#[tokio::test]
async fn closing_ends() {
    over_each(async |peer| {
        let transport = peer.transport();
        transport.send(&deliveries::delivery("m")).await.unwrap();
        for _ in 0..2 {
            tokio::time::timeout(Duration::from_secs(5), transport.close()).await.expect("it ends");
        }
    })
    .await;
}

/// Standard output is the process's, so it takes another process to look at it: this one, told to run
/// [`prints_for_its_parent`].
#[test]
fn standard_output_has_a_whole_line_of_each_message() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "transport_conformance::prints_for_its_parent"])
        .env("ONCEGATE_TEST_PRINTS", "1")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let mut expected: Vec<Message> = bodies();
    expected.extend((0..500).map(|n| message(&format!("m{n}"))));
    // What the test's runner prints around them is no JSON.
    let mut lines: Vec<serde_json::Value> = text
        .lines()
        .filter_map(|line| line.find('{').map(|at| &line[at..]))
        .map(|line| serde_json::from_str(line).expect("a whole object"))
        .collect();
    assert_eq!(lines.len(), expected.len());
    for sent in expected {
        let at = lines.iter().position(|line| line["id"] == sent.id.as_str()).unwrap();
        let line = lines.swap_remove(at);
        assert_eq!(line["type"], "order.created");
        match line.get("dataBase64") {
            Some(encoded) => assert!(STANDARD.decode(encoded.as_str().unwrap()).unwrap() == sent.body),
            None => {
                let body: serde_json::Value = serde_json::from_slice(&sent.body).unwrap();
                assert_eq!(line["data"], body, "{}", sent.id);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by standard_output_has_a_whole_line_of_each_message"]
async fn prints_for_its_parent() {
    if std::env::var_os("ONCEGATE_TEST_PRINTS").is_none() {
        return;
    }
    let transport = deliveries::transport("stdout", "");
    for message in bodies() {
        transport.send(&of(message)).await.unwrap();
    }
    let attempts = (0..500).map(|n| {
        let transport = transport.clone();
        tokio::spawn(async move { transport.send(&deliveries::delivery(&format!("m{n}"))).await })
    });
    for sent in join_all(attempts).await {
        sent.unwrap().unwrap();
    }
}
