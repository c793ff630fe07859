//! A gateway with a receiver behind it, and requests to it in few words.

use std::time::Duration;

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::support::gateway::Gateway;
use crate::support::postgres;
use crate::support::receiver::Receiver;
use crate::support::run;

/// On a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Sqlite,
    Postgres,
}

pub struct Bench {
    pub gateway: Gateway,
    pub receiver: Receiver,
    pub config: String,
}

/// An answer, read.
#[derive(Clone, Debug)]
pub struct Told {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub bytes: bytes::Bytes,
}

impl Told {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or(Value::Null)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    pub fn slug(&self) -> String {
        self.json()["type"].as_str().unwrap_or_default().trim_start_matches("/problems/").to_owned()
    }

    #[track_caller]
    pub fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.bytes));
        self
    }
}

const RULES: &str = r#"
[deduplication]
cleanup_interval = "1s"

[[routes]]
types = ["*"]
destinations = ["out"]

[auth.keys.shop]
secrets = ["shop-secret-000000000000000000000001", "shop-secret-000000000000000000000002"]
tenant = "acme"
grants = ["publish:*", "publish:*@*", "claim:*", "operate"]

[auth.keys.desk]
secrets = ["desk-secret-000000000000000000000001"]
tenant = "acme"
grants = ["publish:*", "claim:*", "operate"]

[auth.keys.other]
secrets = ["other-secret-00000000000000000000001"]
tenant = "globex"
grants = ["publish:*", "claim:*", "operate"]

[[deduplication.rules]]
types = ["projection.*"]
template = "{projectionName}|{occurrenceUtc}"

[messages."projection.rebuild"]
deduplicate = { window = "24h" }

[messages."work.acknowledge"]
deduplicate = { required = true }

[messages."work.conflict"]
deduplicate = { required = false, on_duplicate = "conflict" }

[messages."work.everywhere"]
deduplicate = { required = false, scope = "store" }

[messages."work.keyed"]
idempotency = "required"
"#;

pub const SHOP: &str = "shop-secret-000000000000000000000001";
pub const SHOP_ROTATED: &str = "shop-secret-000000000000000000000002";
pub const DESK: &str = "desk-secret-000000000000000000000001";
pub const OTHER: &str = "other-secret-00000000000000000000001";

impl Bench {
    pub async fn on(engine: Engine) -> Option<Self> {
        let url = match engine {
            Engine::Sqlite => None,
            Engine::Postgres => Some(postgres::shared().await?.fresh_database().await),
        };
        Some(Self::with(url).await)
    }

    /// On this PostgreSQL database, else on a file of its own.
    pub async fn with(url: Option<String>) -> Self {
        let receiver = Receiver::start().await;
        let schema = run::fresh_dir("schema").join("checked.json");
        std::fs::write(
            &schema,
            r#"{"type":"object","required":["order"],"properties":{"order":{"type":"object","properties":{"id":{"type":"integer"}}}}}"#,
        )
        .unwrap();
        let mut config = RULES.to_owned();
        config.push_str(&format!(
            "\n[messages.\"work.checked\"]\nschema = {:?}\n\n[destinations.out]\ntransport = \"webhook\"\n\
             url = {:?}\nallow_private = true\n",
            schema.display().to_string(),
            receiver.url("/"),
        ));
        if let Some(url) = &url {
            config.push_str(&format!("\n[stores.main]\nurl = {url:?}\n"));
        }
        let gateway = Gateway::start(&config).await;
        Self { gateway, receiver, config }
    }

    /// A message of this type by its path.
    pub fn post(&self, kind: &str, body: &Value) -> RequestBuilder {
        let request = self.gateway.client().post(self.gateway.url(&format!("/v1/publish/{kind}")));
        request.bearer_auth(SHOP).header("Content-Type", "application/json").body(body.to_string())
    }

    /// A JSON document to a path.
    pub fn send(&self, path: &str, body: &Value) -> RequestBuilder {
        let request = self.gateway.client().post(self.gateway.url(path));
        request.bearer_auth(SHOP).header("Content-Type", "application/json").body(body.to_string())
    }

    /// A message with this deduplication id.
    pub async fn work(&self, kind: &str, id: &str) -> Told {
        tell(self.send("/v1/publish", &json!({"type": kind, "deduplicationId": id, "data": 1}))).await
    }

    /// Waits until every one of these messages was delivered, and says how often each was.
    pub async fn delivered(&self, count: usize) -> std::collections::HashMap<String, usize> {
        self.receiver.wait_for(count, SOON).await;
        let mut times = std::collections::HashMap::new();
        for received in self.receiver.received() {
            *times.entry(received.header("id").to_owned()).or_default() += 1;
        }
        times
    }
}

/// Sends it, whoever the caller was told to be last.
pub async fn tell(request: RequestBuilder) -> Told {
    let response = request.timeout(SOON).send().await.expect("an answer");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Told { status, headers, bytes: response.bytes().await.expect("a body") }
}

/// The same request by another caller.
pub fn by(request: RequestBuilder, secret: &str) -> RequestBuilder {
    let (client, request) = request.build_split();
    let mut request = request.expect("a request");
    let value = format!("Bearer {secret}").parse().expect("a header");
    request.headers_mut().insert(http::header::AUTHORIZATION, value);
    RequestBuilder::from_parts(client, request)
}
