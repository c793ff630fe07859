//! The libraries of those who push, as clients: what they send is read, and what they sign with another secret, or
//! too long ago, is not.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use http::StatusCode;
use oncegate::domain::Clock;
use oncegate::domain::message::Draft;
use oncegate::push::{Push, Refusal, What};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::push::receiver;
use crate::support::daemon::{Daemon, Life};
use crate::support::push::{self, Sample};
use crate::support::{eventually, missing, run, when};

const DEADLINE: Duration = Duration::from_secs(120);
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A receiver on a port of its own: it reads what comes, and keeps the messages.
struct Front {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    settings: String,
    known: bool,
    /// Where SNS is played, and has its certificates.
    sns: Option<u16>,
    messages: Mutex<Vec<Draft>>,
}

impl Front {
    async fn start(settings: &str) -> Self {
        Self::with(settings, None).await
    }

    async fn with(settings: &str, sns: Option<u16>) -> Self {
        let known = settings.contains("anonymous");
        let settings = settings.to_owned();
        let shared = Arc::new(Shared { settings, known, sns, messages: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let app = Router::new().fallback(take).with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { port, shared }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/push", self.port)
    }

    fn messages(&self) -> Vec<Draft> {
        self.shared.messages.lock().unwrap().clone()
    }
}

async fn take(State(shared): State<Arc<Shared>>, request: Request) -> StatusCode {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let sample = Sample { method: head.method, headers: head.headers, body };
    let asked = receiver(&shared.settings).at(Clock::system().now().timestamp());
    let asked = if shared.known { asked.known() } else { asked };
    let mut read = asked.read(&sample);
    let needed = match &read {
        Ok(Push { what: What::Needs(url), .. }) => Some(url.path().to_owned()),
        _ => None,
    };
    if let (Some(path), Some(port)) = (needed, shared.sns) {
        let fetched = tokio::task::spawn_blocking(move || push::asked_of(port, &path)).await.unwrap();
        read = asked.read_with(&sample, Some(&fetched));
    }
    match read.map(|push| push.what) {
        Ok(What::Messages { messages, .. }) => {
            let drafts = messages.into_iter().map(|message| message.draft);
            shared.messages.lock().unwrap().extend(drafts);
            StatusCode::OK
        }
        Err(Refusal::Unproven(_)) => StatusCode::UNAUTHORIZED,
        other => panic!("{other:?}"),
    }
}

/// What `scripts/test` installs below `target/tools`.
fn tool(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools").join(name);
    if path.exists() { Some(path) } else { missing(&path.display().to_string()) }
}

/// Runs `tests/push/clients/SCRIPT`, and gives the lines that it prints.
async fn send(program: &Path, script: &str, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("timeout");
    command.arg(DEADLINE.as_secs().to_string()).arg(program);
    command.arg(push::path("clients").join(script)).args(arguments);
    without_proxies(&mut command);
    command.env("NODE_PATH", Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/node_modules"));
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn without_proxies(command: &mut Command) {
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
        command.env_remove(name);
    }
}

async fn python(arguments: &[&str]) -> Option<Vec<String>> {
    let program = tool("senders/bin/python")?;
    Some(send(&program, "send.py", arguments).await)
}

async fn node(arguments: &[&str]) -> Option<Vec<String>> {
    tool("node_modules/cloudevents")?;
    Some(send(Path::new("node"), "send.cjs", arguments).await)
}

fn data(draft: &Draft) -> Value {
    serde_json::from_slice(&draft.body).unwrap()
}

fn ids(messages: &[Draft]) -> Vec<&str> {
    messages.iter().filter_map(|draft| draft.id.as_deref()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cloudevents_sdks_of_python() {
    let front = Front::start("format = 'cloudevents'\nhandler = 'h'\nauthorize = 'anonymous'").await;
    let Some(answers) = python(&["cloudevents", &front.url()]).await else { return };
    assert_eq!(answers, ["200", "200"]);
    let messages = front.messages();
    assert_eq!(ids(&messages), ["py-0", "py-1"]);
    for (number, draft) in messages.iter().enumerate() {
        assert_eq!(draft.envelope.subject.as_deref(), Some("Euro € 😀"));
        assert_eq!(draft.partition_key.as_deref(), Some("customer 7"));
        assert_eq!(data(draft), json!({ "order": number, "naïve": true }));
    }
    let Some(answers) = python(&["cloudevents-v1", &front.url()]).await else { return };
    assert_eq!(answers, ["200", "200"]);
    assert_eq!(ids(&front.messages())[2..], ["v1-0", "v1-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cloudevents_sdk_of_javascript() {
    let front = Front::start("format = 'cloudevents'\nhandler = 'h'\nauthorize = 'anonymous'").await;
    let Some(answers) = node(&["cloudevents", &front.url()]).await else { return };
    assert_eq!(answers, ["200", "200", "emitted"]);
    let messages = front.messages();
    assert_eq!(ids(&messages), ["js-0", "js-1", "js-2"]);
    for (number, draft) in messages.iter().enumerate() {
        assert_eq!(data(draft), json!({ "order": number, "naïve": true }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standard_webhooks_of_python_and_javascript() {
    let front =
        Front::start(&format!("format = 'standard-webhooks'\nhandler = 'h'\nsecrets = '{SECRET}'")).await;
    let Some(answers) = python(&["standard-webhooks", &front.url(), SECRET]).await else { return };
    assert_eq!(answers, ["200", "401"], "a changed body is refused");
    let Some(answers) = node(&["standard-webhooks", &front.url(), SECRET]).await else { return };
    assert_eq!(answers, ["200", "401"], "an old signature is refused");
    let messages = front.messages();
    assert_eq!(ids(&messages), ["msg_py", "msg_js"]);
    for draft in &messages {
        assert_eq!((draft.kind.as_str(), &data(draft)["data"]["name"]), ("order.created", &json!("Zoë")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn library_of_stripe() {
    let front = Front::start("format = 'stripe'\nhandler = 'h'\nsecrets = ['whsec_new', 'whsec_test']").await;
    let Some(answers) = python(&["stripe", &front.url(), "whsec_test"]).await else { return };
    assert_eq!(answers, ["200", "401"]);
    let messages = front.messages();
    assert_eq!((ids(&messages), messages[0].kind.as_str()), (vec!["evt_py"], "invoice.paid"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn library_of_github() {
    let secret = "It's a Secret to Everybody";
    let front = Front::start(&format!("format = 'github'\nhandler = 'h'\nsecrets = \"{secret}\"")).await;
    let Some(answers) = node(&["github", &front.url(), secret]).await else { return };
    assert_eq!(answers, ["200", "401"]);
    let messages = front.messages();
    assert_eq!((messages.len(), messages[0].kind.as_str()), (1, "pull_request"));
    assert_eq!(data(&messages[0])["title"], "Zoë");
}

/// SNS as moto plays it: it signs what it posts, and has the certificate that it signed with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sns_of_moto() {
    let Some(program) = tool("senders/bin/moto_server") else { return };
    let port = run::free_port();
    let mut command = Command::new(program);
    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    without_proxies(&mut command);
    let _moto = Daemon::start(command, &run::fresh_dir("moto").join("log"), Life::Handle);
    let endpoint = format!("http://127.0.0.1:{port}");
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    eventually(DEADLINE, "moto answers", async || when(client.get(&endpoint).send().await.is_ok())).await;
    let topic = "arn:aws:sns:us-east-1:123456789012:orders";
    let settings =
        format!("format = 'sns'\ntype = 'order.created'\nhandler = 'h'\nsources = {{ '{topic}' = {{}} }}");
    let front = Front::with(&settings, Some(port)).await;
    let Some(printed) = python(&["sns", &endpoint, &front.url()]).await else { return };
    eventually(DEADLINE, "a message", async || when(!front.messages().is_empty())).await;
    let messages = front.messages();
    assert_eq!(printed, [topic, messages[0].id.as_deref().unwrap()]);
    assert_eq!(messages[0].envelope.source.as_deref(), Some(topic));
    assert_eq!(data(&messages[0]), json!({ "order": 1, "name": "Zoë" }));
}
