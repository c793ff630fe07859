//! The accept loop: HTTP/1.1 and HTTP/2 without TLS, bounded connections and times, an orderly end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::edge::Edge;
use super::linger::Linger;

/// The head of a request (its line and headers) may be this long.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// How many requests one HTTP/2 connection may have running.
const MAX_STREAMS: u32 = 256;
/// Pings that find out whether an HTTP/2 peer is still there.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long to wait after a failed `accept` (usually: no file descriptor is left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits on connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once; further ones wait in the listener's backlog.
    pub connections: usize,
    /// How long a connection may take to send a request's whole head, idle time before it included.
    pub header_timeout: Duration,
}

/// Accepts connections until `stop`, then lets running requests end for up to `drain`; idle connections are
/// closed at once. What still runs after that is cut off, and the number of such connections returned.
pub async fn serve(
    listener: TcpListener,
    edge: Arc<Edge>,
    limits: Limits,
    stop: CancellationToken,
    drain: Duration,
) -> usize {
    let permits = Arc::new(Semaphore::new(limits.connections));
    let builder = Arc::new(builder(limits.header_timeout));
    let graceful = GracefulShutdown::new();
    let cut_off = CancellationToken::new();
    loop {
        let Some(accepted) = stop.run_until_cancelled(accept(&listener, &permits)).await else { break };
        let (stream, peer, permit) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let connection = Connection {
            edge: Arc::clone(&edge),
            builder: Arc::clone(&builder),
            header_timeout: limits.header_timeout,
            watcher: graceful.watcher(),
        };
        let cut_off = cut_off.clone();
        tokio::spawn(async move {
            cut_off.run_until_cancelled(connection.run(stream, peer)).await;
            drop(permit);
        });
    }
    drop(listener);
    if tokio::time::timeout(drain, graceful.shutdown()).await.is_ok() {
        return 0;
    }
    let running = limits.connections - permits.available_permits();
    cut_off.cancel();
    running
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, permit))
}

fn builder(header_timeout: Duration) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // On an idle connection the timeout runs as well, so it also ends those that nobody uses any more.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(header_timeout).max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX))
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(PING_INTERVAL);
    builder
}

struct Connection {
    edge: Arc<Edge>,
    builder: Arc<auto::Builder<TokioExecutor>>,
    header_timeout: Duration,
    watcher: hyper_util::server::graceful::Watcher,
}

impl Connection {
    async fn run(self, stream: TcpStream, peer: SocketAddr) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "could not set TCP_NODELAY");
        }
        let begun = Arc::new(AtomicBool::new(false));
        let unread = Arc::new(AtomicBool::new(false));
        let stream = Linger::new(stream, Arc::clone(&unread));
        let (edge, seen) = (self.edge, Arc::clone(&begun));
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            seen.store(true, Ordering::Relaxed);
            let (edge, unread) = (Arc::clone(&edge), Arc::clone(&unread));
            async move {
                let has_body = !request.body().is_end_stream();
                let response = edge.answer(request.map(Body::new)).await;
                unread.store(has_body && !response.status().is_success(), Ordering::Relaxed);
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        let connection = self.builder.serve_connection(TokioIo::new(stream), service).into_owned();
        let mut connection = std::pin::pin!(self.watcher.watch(connection));
        // Telling HTTP/1 from HTTP/2 has no timeout of its own: a connection that never gets as far as a
        // request is closed here.
        let ended = tokio::select! {
            ended = &mut connection => ended,
            () = tokio::time::sleep(self.header_timeout) => {
                if !begun.load(Ordering::Relaxed) {
                    tracing::debug!(%peer, "closed a connection that sent no request in time");
                    return;
                }
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "a connection ended early");
        }
    }
}
