//! Connections: their limits, their timeouts, their end. Over real sockets, with a router of the test's own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use oncegate::domain::{Clock, Random};
use oncegate::http::edge::Edge;
use oncegate::http::serve::{Limits, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::raw;

const LIMITS: Limits = Limits { connections: 16, header_timeout: Duration::from_millis(400) };
const SOON: Duration = Duration::from_secs(5);

struct Server {
    port: u16,
    stop: CancellationToken,
    ended: JoinHandle<usize>,
    /// Lets the requests of `/waits` end.
    release: Arc<Notify>,
}

async fn start(limits: Limits, drain: Duration) -> Server {
    let release = Arc::new(Notify::new());
    let waits = Arc::clone(&release);
    let router = Router::new().route("/ok", get(async || "fine")).route(
        "/waits",
        get(async move || {
            waits.notified().await;
            "done"
        }),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let stop = CancellationToken::new();
    let edge = Edge::new(router, Clock::system(), Random);
    let ended = tokio::spawn(serve(listener, edge, limits, stop.clone(), drain));
    Server { port, stop, ended, release }
}

async fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).await.unwrap()
}

/// Sends `bytes` and waits for the server to close the connection; gives what it answered before.
async fn closed_after(port: u16, bytes: &[u8]) -> (Vec<u8>, Duration) {
    let mut stream = connect(port).await;
    let started = Instant::now();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await;
    read.expect("the server closes the connection").unwrap();
    (answer, started.elapsed())
}

#[tokio::test]
async fn a_connection_that_sends_no_whole_head_is_closed_in_time() {
    let server = start(LIMITS, SOON).await;
    for bytes in ["", "GET /ok HT", "GET /ok HTTP/1.1\r\nHost: x\r\n", "PRI * HTTP/2.0\r\n"] {
        let (_, elapsed) = closed_after(server.port, bytes.as_bytes()).await;
        assert!(
            elapsed >= Duration::from_millis(300) && elapsed < Duration::from_secs(2),
            "{bytes:?} {elapsed:?}"
        );
    }
}

#[tokio::test]
async fn a_request_that_takes_longer_than_the_head_may_is_not_closed() {
    let server = start(LIMITS, SOON).await;
    let mut stream = connect(server.port).await;
    stream.write_all(b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    tokio::time::sleep(LIMITS.header_timeout * 2).await;
    server.release.notify_one();
    assert_eq!(raw::read(&mut stream).await.text(), "done");
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let server = start(LIMITS, SOON).await;
    let head = format!("GET /ok HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(100 * 1024));
    let answer = raw::send(server.port, head.as_bytes()).await;
    assert_eq!(answer.status, 431);
}

#[tokio::test]
async fn both_versions_of_http_are_served() {
    let server = start(LIMITS, SOON).await;
    let url = format!("http://127.0.0.1:{}/ok", server.port);
    let one = reqwest::Client::builder().no_proxy().build().unwrap();
    let two = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    for (client, version) in [(one, reqwest::Version::HTTP_11), (two, reqwest::Version::HTTP_2)] {
        let answer = client.get(&url).send().await.unwrap();
        assert_eq!((answer.version(), answer.status().as_u16()), (version, 200));
    }
}

#[tokio::test]
async fn connections_over_the_limit_wait_for_their_turn() {
    let server = start(Limits { connections: 1, ..LIMITS }, SOON).await;
    let mut first = connect(server.port).await;
    first.write_all(b"GET /ok HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert_eq!(raw::read(&mut first).await.status, 200);
    let mut second = connect(server.port).await;
    second.write_all(b"GET /ok HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(100), raw::read(&mut second)).await;
    assert!(early.is_err(), "the first connection is still open");
    drop(first);
    assert_eq!(tokio::time::timeout(SOON, raw::read(&mut second)).await.unwrap().status, 200);
}

#[tokio::test]
async fn stopping_lets_requests_end_and_closes_idle_connections() {
    let limits = Limits { header_timeout: Duration::from_secs(60), ..LIMITS };
    let server = start(limits, Duration::from_secs(60)).await;
    let mut idle = connect(server.port).await;
    idle.write_all(b"GET /ok HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert_eq!(raw::read(&mut idle).await.status, 200);
    let mut silent = connect(server.port).await;
    let mut running = connect(server.port).await;
    running.write_all(b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;

    server.stop.cancel();
    let mut rest = Vec::new();
    tokio::time::timeout(SOON, silent.read_to_end(&mut rest)).await.expect("the silent one closes").unwrap();
    tokio::time::timeout(SOON, idle.read_to_end(&mut rest))
        .await
        .expect("the idle connection closes")
        .unwrap();
    assert!(TcpStream::connect(("127.0.0.1", server.port)).await.is_err(), "nothing is accepted any more");
    assert!(!server.ended.is_finished(), "a request still runs");
    server.release.notify_one();
    assert_eq!(raw::read(&mut running).await.text(), "done");
    assert_eq!(tokio::time::timeout(SOON, server.ended).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn draining_ends_at_its_deadline() {
    let server = start(LIMITS, Duration::from_millis(200)).await;
    let mut running = connect(server.port).await;
    running.write_all(b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.stop.cancel();
    assert_eq!(tokio::time::timeout(SOON, server.ended).await.unwrap().unwrap(), 1);
    let mut rest = Vec::new();
    tokio::time::timeout(SOON, running.read_to_end(&mut rest)).await.expect("it is cut off").unwrap();
    assert!(rest.is_empty());
}
