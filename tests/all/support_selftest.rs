//! The harness itself: what every other test rests on.

use std::time::Duration;

use sqlx::{Connection, PgConnection};

use crate::support::postgres::{self, Stop};
use crate::support::proxy::{Mode, Proxy};
use crate::support::receiver::{Answer, Receiver};
use crate::support::{rabbitmq, raw};

async fn one(url: &str) -> Result<i32, sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::query_scalar("SELECT 1").fetch_one(&mut connection).await
}

#[tokio::test]
async fn a_private_postgres_stops_dies_freezes_and_comes_back() {
    let Some(server) = postgres::private(&[]).await else { return };
    let url = server.fresh_database().await;
    assert_eq!(one(&url).await.unwrap(), 1);
    server.stop(Stop::Fast);
    assert!(one(&url).await.is_err());
    server.start().await;
    assert_eq!(one(&url).await.unwrap(), 1);
    server.kill9();
    assert!(one(&url).await.is_err());
    server.start().await;
    assert_eq!(one(&url).await.unwrap(), 1);
    server.freeze();
    assert!(tokio::time::timeout(Duration::from_millis(300), one(&url)).await.is_err());
    server.thaw();
    assert_eq!(one(&url).await.unwrap(), 1);
}

#[tokio::test]
async fn a_postgres_may_speak_another_language() {
    let Some(server) = postgres::private(&[("lc_messages", "de_DE.UTF-8")]).await else { return };
    let mut connection = PgConnection::connect(&server.url("postgres")).await.unwrap();
    let error = sqlx::query("SELECT 1/0").execute(&mut connection).await.unwrap_err().to_string();
    assert!(error.contains("Division durch Null"), "{error}");
}

#[tokio::test]
async fn the_shared_postgres_gives_every_test_a_database() {
    let Some(server) = postgres::shared().await else { return };
    let (first, second) = (server.fresh_database().await, server.fresh_database().await);
    assert_ne!(first, second);
    assert_eq!(one(&first).await.unwrap(), 1);
    let again = postgres::shared().await.expect("it runs");
    assert_eq!(again.port(), server.port());
}

#[tokio::test]
async fn the_shared_rabbitmq_takes_a_queue_and_a_private_one_keeps_it_over_a_restart() {
    let Some(broker) = rabbitmq::private().await else { return };
    let queue = broker.fresh_queue().await;
    broker.stop();
    broker.start().await;
    assert_eq!(broker.open().await.depth(&queue).await, 0);
    let shared = rabbitmq::shared().await.expect("it is installed");
    let queue = shared.fresh_queue().await;
    assert!(shared.open().await.drain(&queue, Duration::from_millis(100)).await.is_empty());
}

#[tokio::test]
async fn the_receiver_records_and_the_proxy_loses_one_answer() {
    let receiver = Receiver::scripted(|n, _| Answer::status(200).body(&format!("answer {n}"))).await;
    let proxy = Proxy::start(receiver.port()).await;
    let request = b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
    assert_eq!(raw::send(proxy.port(), request).await.text(), "answer 0");

    proxy.lose_answer_to(b"POST /hook");
    let url = format!("http://127.0.0.1:{}/hook", proxy.port());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    client.post(&url).body("hi").send().await.expect_err("the answer is lost");
    assert!(!proxy.loss_pending());
    let received = receiver.wait_for(2, Duration::from_secs(5)).await;
    assert_eq!(received[1].text(), "hi");

    proxy.set(Mode::Refuse);
    client.post(&url).send().await.expect_err("refused");
    proxy.set(Mode::Hold);
    let held = client.post(&url).timeout(Duration::from_millis(200)).send().await;
    assert!(held.expect_err("held").is_timeout());
    proxy.set(Mode::Delay(Duration::from_millis(1)));
    assert_eq!(client.post(&url).send().await.unwrap().status(), 200);
}
