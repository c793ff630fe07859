//! `[handlers.NAME]`

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use url::Url;

use super::destinations::{Breaker, OnDeadLetter, Retry};
use super::on_error::OnError;
use super::{Duration, Rate, Secret, Secrets};
use crate::domain::identity::{HandlerDeduplication, IdFrom, Path};
use crate::domain::routing::Pattern;
use crate::domain::standard_webhooks::Key;

/// An endpoint of yours that handles messages: each is a POST to it, and a 2xx says that it is handled.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Handler {
    /// The message types that it handles: exact, `prefix.*`, or `*`.
    #[schemars(extend("examples" = [["projection.rebuild"]]))]
    pub types: Vec<Pattern>,
    /// Where it is. It is yours, so it may be a private address. May be given as a secret.
    #[serde(skip_serializing)]
    #[schemars(extend("examples" = ["http://localhost:9000/rebuild"]))]
    pub url: Secret,
    /// Signs every request as Standard Webhooks say: `whsec_` and base64, or a list while it is being replaced.
    /// Left out: requests are not signed.
    #[serde(default, skip_serializing)]
    #[schemars(extend("examples" = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]))]
    pub secret: Option<Secrets>,
    /// How long it may run.
    #[serde(default = "timeout")]
    pub timeout: Duration,
    /// How many messages it handles at the same time, on each node.
    #[serde(default = "concurrency")]
    pub concurrency: u32,
    /// How many messages are handed to it in a time at most, on each node: `10/s`, `600/1m`. They may come all at once;
    /// what is over the rate waits. Left out: as many as it takes.
    #[serde(default)]
    #[schemars(extend("examples" = ["10/s"]))]
    pub rate: Option<Rate>,
    /// Whether it gets the messages of one partition key one after the other, in the order in which they were
    /// published: the next one only when the one before it was handled. A message that fails holds up its key until
    /// it is handled or is a dead letter; other keys go on. Messages without a partition key are one key.
    #[serde(default)]
    pub ordered: bool,
    /// What a dead letter does to the later messages of its key: `continue` (they go on; it is out of order when it
    /// is replayed) or `block` (they wait until it is replayed, discarded or purged; needs `ordered`).
    #[serde(default)]
    pub on_dead_letter: OnDeadLetter,
    /// How often, and how far apart, a message that it failed on is handed to it again.
    #[serde(default)]
    pub retry: HandlerRetry,
    /// What else becomes of messages that it failed on, by the kind of the failure. The first policy that is about a
    /// failure decides; where none is, the answer does (docs/handlers.md).
    #[serde(default)]
    pub on_error: Vec<OnError>,
    /// When a handler that fails is left alone for a while. No attempt is counted against its messages then.
    #[serde(default)]
    pub breaker: Breaker,
    /// Makes a second message that asks for the same work a duplicate: it is acknowledged, and the handler does
    /// not run. Left out: only a message that comes again under its publisher's id is recognised.
    #[serde(default)]
    pub deduplicate: Option<HandlerDeduplicate>,
    /// What becomes of an invoke's Idempotency-Key when it is not known whether the handler did its work (no
    /// answer in time, or the connection was lost): `release` (it may run again, once this run can no longer go
    /// on) or `keep` (it does not run again within `idempotency.window`).
    #[serde(default)]
    pub on_ambiguous: OnAmbiguous,
}

/// What becomes of an invoke's key when it is not known whether the handler did its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnAmbiguous {
    /// It is given back when the handler's connection has ended, or after twice its timeout.
    #[default]
    Release,
    /// It is kept, and answered 409 `response-not-kept`.
    Keep,
}

fn timeout() -> Duration {
    Duration::from_secs(30)
}

fn concurrency() -> u32 {
    32
}

impl Handler {
    /// What dead letters do to its keys, where it is ordered.
    pub fn order(&self) -> Option<OnDeadLetter> {
        self.ordered.then_some(self.on_dead_letter)
    }

    /// The address as it is now.
    ///
    /// # Errors
    /// Why it is none.
    pub fn url(&self) -> Result<Url, String> {
        let url = Url::parse(&self.url.expose()).map_err(|error| format!("is not an address: {error}"))?;
        match url.scheme() {
            "http" | "https" if url.has_host() => Ok(url),
            other => Err(format!("`{other}` is no scheme for this: use `https` or `http`")),
        }
    }

    /// The keys that requests are signed with.
    ///
    /// # Errors
    /// What is wrong with a secret, without a part of it.
    pub fn keys(&self) -> Result<Vec<Key>, String> {
        let secrets = self.secret.iter().flat_map(Secrets::iter);
        secrets.map(|secret| Key::parse(&secret.expose()).map_err(str::to_owned)).collect()
    }

    /// Its deduplication, where it has one; `window` is what counts where it says nothing.
    ///
    /// # Errors
    /// Why `from` can never give an id.
    pub fn deduplication(&self, window: Duration) -> Result<Option<HandlerDeduplication>, String> {
        let Some(said) = &self.deduplicate else { return Ok(None) };
        Ok(Some(HandlerDeduplication {
            from: said.from.compile()?,
            required: said.required,
            window: said.window.unwrap_or(window).get(),
        }))
    }
}

/// How often, and how far apart, a message that a handler failed on is handed to it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HandlerRetry {
    /// Attempts in all, the first included. After the last the message is a dead letter (`AttemptsExhausted`).
    pub max_attempts: u32,
    /// The longest wait after the first failed attempt; it doubles with each further one. The wait itself is
    /// random, between nothing and that (full jitter), and never less than the handler asks for.
    pub initial: Duration,
    /// What the longest wait never exceeds.
    pub max: Duration,
}

impl Default for HandlerRetry {
    fn default() -> Self {
        let Retry { initial, max, .. } = Retry::default();
        Self { max_attempts: 3, initial, max }
    }
}

impl From<HandlerRetry> for Retry {
    fn from(retry: HandlerRetry) -> Self {
        Self { max_attempts: retry.max_attempts, initial: retry.initial, max: retry.max }
    }
}

/// How a handler recognises work that it has done.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HandlerDeduplicate {
    /// Whether a message without an id becomes a dead letter (`MissingDeduplicationId`). If not, it is handled as
    /// it is.
    pub required: bool,
    /// Where the id of the work stands: `"deduplicationId"`, `{ member = "order.id" }` (a dotted path or JSON
    /// Pointer into the data) or `{ header = "x-request" }` (one of the message's own headers).
    #[schemars(extend("examples" = ["deduplicationId"]))]
    pub from: IdPlace,
    /// How long work that was done is remembered, from then. Left out: `deduplication.window`.
    #[schemars(extend("examples" = ["24h"]))]
    pub window: Option<Duration>,
}

impl Default for HandlerDeduplicate {
    fn default() -> Self {
        Self { required: true, from: IdPlace::default(), window: None }
    }
}

/// Where the id of the work stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum IdPlace {
    #[default]
    DeduplicationId,
    Member(String),
    Header(String),
}

impl IdPlace {
    /// For use on messages.
    ///
    /// # Errors
    /// Why it can never give an id.
    pub fn compile(&self) -> Result<IdFrom, String> {
        match self {
            Self::DeduplicationId => Ok(IdFrom::DeduplicationId),
            Self::Member(path) => Path::parse(path).map(IdFrom::Member),
            Self::Header(name) if name.is_empty() => Err("names no header".to_owned()),
            Self::Header(name) => Ok(IdFrom::Header(name.to_ascii_lowercase())),
        }
    }
}

impl<'de> Deserialize<'de> for IdPlace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Name(String),
            Member(Member),
            Header(Header),
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Member {
            member: String,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Header {
            header: String,
        }
        match Written::deserialize(deserializer) {
            Ok(Written::Name(name)) if name == "deduplicationId" => Ok(Self::DeduplicationId),
            Ok(Written::Member(Member { member })) => Ok(Self::Member(member)),
            Ok(Written::Header(Header { header })) => Ok(Self::Header(header)),
            _ => Err(serde::de::Error::custom(
                "write \"deduplicationId\", { member = \"NAME\" } or { header = \"NAME\" }",
            )),
        }
    }
}

impl JsonSchema for IdPlace {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "IdPlace".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let one = |name: &str| {
            json_schema!({
                "type": "object",
                "properties": { name: { "type": "string", "minLength": 1 } },
                "required": [name],
                "additionalProperties": false,
            })
        };
        json_schema!({ "anyOf": [{ "const": "deduplicationId" }, one("member"), one("header")] })
    }
}
