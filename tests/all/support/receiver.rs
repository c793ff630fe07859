//! An HTTP server that records what arrives and answers as it is told.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Uri};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Received {
    pub at: Instant,
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The status it was answered with; `None` while the answer is held.
    pub answered: Option<StatusCode>,
}

impl Received {
    /// A header's text; empty where it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// What is answered, and when.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: Vec<(String, String)>,
    pub body: String,
    /// How long the request is held before it is answered.
    pub delay: Duration,
}

impl Answer {
    pub fn status(status: u16) -> Self {
        Self {
            status: StatusCode::from_u16(status).expect("a status"),
            headers: Vec::new(),
            body: String::new(),
            delay: Duration::ZERO,
        }
    }

    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn body(mut self, body: &str) -> Self {
        body.clone_into(&mut self.body);
        self
    }
}

/// Chooses the answer from the request's place (from 0) and the request.
type Script = Box<dyn Fn(usize, &Received) -> Answer + Send>;

struct Shared {
    script: Mutex<Script>,
    received: Mutex<Vec<Received>>,
}

/// The server. Ends on drop.
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Receiver {
    /// Answers everything with 204.
    pub async fn start() -> Self {
        Self::scripted(|_, _| Answer::status(204)).await
    }

    /// Answers the first `count` requests with `status` and the others with 204.
    pub async fn failing_first(count: usize, status: u16) -> Self {
        Self::scripted(move |n, _| Answer::status(if n < count { status } else { 204 })).await
    }

    /// Answers as `script` says.
    pub async fn scripted(script: impl Fn(usize, &Received) -> Answer + Send + 'static) -> Self {
        Self::start_on(super::run::free_port(), script).await
    }

    /// As [`scripted`](Self::scripted), on a port that was chosen before.
    pub async fn start_on(port: u16, script: impl Fn(usize, &Received) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("bind the receiver");
        let address = listener.local_addr().expect("the receiver's address");
        let shared =
            Arc::new(Shared { script: Mutex::new(Box::new(script)), received: Mutex::new(Vec::new()) });
        let app = Router::new().fallback(receive).with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move { axum::serve(listener, app).await.expect("serve") });
        Self { address, shared, task }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Answers differently from now on.
    pub fn script(&self, script: impl Fn(usize, &Received) -> Answer + Send + 'static) {
        *self.shared.script.lock().expect("the script") = Box::new(script);
    }

    /// Everything that arrived so far.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().expect("the requests").clone()
    }

    pub fn count(&self) -> usize {
        self.shared.received.lock().expect("the requests").len()
    }

    /// Waits until `count` requests have arrived, and returns all.
    pub async fn wait_for(&self, count: usize, deadline: Duration) -> Vec<Received> {
        super::eventually(deadline, &format!("{count} requests at the receiver"), async || {
            super::when(self.count() >= count)
        })
        .await;
        self.received()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn receive(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, 64 * 1024 * 1024).await.unwrap_or_default();
    let received = Received {
        at: Instant::now(),
        method: head.method,
        uri: head.uri,
        headers: head.headers,
        body,
        answered: None,
    };
    let (place, answer) = {
        let mut all = shared.received.lock().expect("the requests");
        let answer = shared.script.lock().expect("the script")(all.len(), &received);
        all.push(received);
        (all.len() - 1, answer)
    };
    if !answer.delay.is_zero() {
        tokio::time::sleep(answer.delay).await;
    }
    shared.received.lock().expect("the requests")[place].answered = Some(answer.status);
    let mut response = (answer.status, answer.body).into_response();
    for (name, value) in answer.headers {
        let name = http::HeaderName::try_from(name).expect("a header's name");
        response.headers_mut().insert(name, value.try_into().expect("a header's value"));
    }
    response
}
