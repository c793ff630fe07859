//! `oncegate listen`: a receiver on this machine that prints what webhooks bring.
//!
//! For trying the gateway out and for looking at what a destination sends. It answers anybody on this machine
//! and keeps nothing.

mod print;

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tokio::net::TcpListener;

use crate::domain::standard_webhooks::{self as signing, Key};
use crate::domain::{Clock, duration};

pub use print::{Received, Verdict};

/// Bodies larger than this are answered 413.
const LARGEST_BODY_BYTES: usize = 64 * 1024 * 1024;
/// What `--fail-first` answers.
const FAILED: StatusCode = StatusCode::INTERNAL_SERVER_ERROR;

/// Receive webhooks on this machine and print them.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The port on 127.0.0.1 to listen on; 0 takes a free one and says which.
    #[arg(long, default_value_t = 9000)]
    pub port: u16,
    /// Verify Standard Webhooks signatures with this secret (`whsec_…`), and answer 401 to what is not signed
    /// with it. Give it twice while rotating.
    #[arg(long, value_parser = parse_key, value_name = "WHSEC")]
    pub secret: Vec<Key>,
    /// The status to answer.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(200..=599))]
    pub status: u16,
    /// How long to wait before answering, such as `500ms` or `12s`.
    #[arg(long, default_value = "0s", value_parser = duration::parse)]
    pub delay: Duration,
    /// Answer 500 to the first N requests.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub fail_first: u64,
    /// Print one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

fn parse_key(text: &str) -> Result<Key, String> {
    Key::parse(text).map_err(|error| format!("the secret {error}"))
}

/// Listens until it is interrupted.
///
/// # Errors
/// When the port is taken or standard output is gone.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}; choose another port with --port"))?;
    let address = listener.local_addr()?;
    writeln!(
        io::stderr(),
        "Listening on http://{address}. A webhook destination for it needs `allow_private = true`."
    )?;
    let stop = async {
        // Without a handler for the signal there is only the default one, which ends the process just as well.
        let _ = tokio::signal::ctrl_c().await;
    };
    let app = router(args, Box::new(io::stdout()));
    axum::serve(listener, app).with_graceful_shutdown(stop).await.context("the receiver stopped")
}

/// The receiver, printing to `out`.
pub fn router(args: Args, out: Box<dyn Write + Send>) -> Router {
    let receiver =
        Receiver { args, clock: Clock::system(), count: AtomicU64::new(0), out: Arc::new(Mutex::new(out)) };
    Router::new()
        .fallback(any(receive))
        .layer(DefaultBodyLimit::max(LARGEST_BODY_BYTES))
        .with_state(Arc::new(receiver))
}

struct Receiver {
    args: Args,
    clock: Clock,
    count: AtomicU64,
    out: Arc<Mutex<Box<dyn Write + Send>>>,
}

async fn receive(State(receiver): State<Arc<Receiver>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, LARGEST_BODY_BYTES).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let number = receiver.count.fetch_add(1, Ordering::Relaxed) + 1;
    let verdict = receiver.verify(&parts.headers, &body);
    let status = receiver.status(number, &verdict);
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let received = Received {
        number,
        at: receiver.clock.now(),
        method: parts.method.to_string(),
        path,
        headers: parts.headers,
        body,
        verdict,
        status: status.as_u16(),
    };
    let text = if receiver.args.json { received.json_line() } else { received.readable() };
    let out = Arc::clone(&receiver.out);
    // Whoever reads standard output may be slow: that holds back this thread, not the server's.
    let printed = tokio::task::spawn_blocking(move || {
        let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(text.as_bytes()).and_then(|()| out.flush())
    });
    if !matches!(printed.await, Ok(Ok(()))) {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    tokio::time::sleep(receiver.args.delay).await;
    status.into_response()
}

impl Receiver {
    fn verify(&self, headers: &HeaderMap, body: &Bytes) -> Verdict {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let signed = signing::Headers {
            id: text(signing::ID_HEADER),
            timestamp: text(signing::TIMESTAMP_HEADER),
            signature: text(signing::SIGNATURE_HEADER),
        };
        if self.args.secret.is_empty() {
            return if signed.signature.is_some() { Verdict::NotChecked } else { Verdict::Unsigned };
        }
        match signing::verify(&self.args.secret, signed, body, self.clock.now(), signing::TOLERANCE) {
            Ok(()) => Verdict::Valid,
            Err(error) => Verdict::Invalid(error.to_string()),
        }
    }

    fn status(&self, number: u64, verdict: &Verdict) -> StatusCode {
        match verdict {
            Verdict::Invalid(_) => StatusCode::UNAUTHORIZED,
            _ if number <= self.args.fail_first => FAILED,
            // The range was checked when it was read.
            _ => StatusCode::from_u16(self.args.status).unwrap_or(StatusCode::OK),
        }
    }
}
