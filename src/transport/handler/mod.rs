//! Calling a handler: the message's body in a POST, its members as headers, `Idempotency-Key` its id.
//!
//! The address is the operator's own and is not guarded. A 2xx says that the message is handled; where its
//! content type is one that publishes messages, its body comes back with the acknowledgement.

use std::borrow::Cow;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use reqwest::Response;

use super::guard::{Client, Reach, describe};
use super::headers::{sign, written};
use super::{Ack, Context, Reply, Transport, answer};
use crate::config;
use crate::domain::delivery::{DeadKind, Delivery, Failure, Fault};
use crate::domain::policy::Cause;
use crate::domain::{Clock, cloudevents, media, wire};

/// A handler's answer with a response for the caller, and messages to be published.
pub const REPLY_JSON: &str = "application/vnd.oncegate.reply+json";

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Connecting gets this share of an attempt, so that a host that is not there is told from a slow answer.
const CONNECT_SHARE: f64 = 0.6;
/// And never more than this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Calls one handler.
pub struct Handler {
    client: Client,
    config: config::Handler,
    max_reply_bytes: usize,
    clock: Clock,
}

/// Why there is no answer. The texts are for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The request was not sent.
    NotSent(Failure),
    /// It was sent, and what became of it is unknown.
    Lost(String),
}

impl Handler {
    /// A handler whose replies are read up to `max_reply_bytes` where they publish messages.
    ///
    /// # Errors
    /// Why there is no client.
    pub fn new(config: config::Handler, max_reply_bytes: usize, context: &Context) -> Result<Self, String> {
        let connect_timeout = config.timeout.mul_f64(CONNECT_SHARE).min(CONNECT_TIMEOUT);
        let client = Client::new(Reach::Any, connect_timeout, &context.proxies)?;
        Ok(Self { client, config, max_reply_bytes, clock: context.clock.clone() })
    }

    /// How long it may run.
    pub fn timeout(&self) -> Duration {
        self.config.timeout.get()
    }

    /// Calls it, and returns when the head of its answer is there. Has no time limit of its own but for
    /// connecting.
    ///
    /// # Errors
    /// What is known of the request when there is no answer.
    pub async fn call(&self, delivery: &Delivery) -> Result<Response, CallError> {
        let headers = self.headers(delivery).map_err(CallError::NotSent)?;
        let not_sent =
            |text: String| CallError::NotSent(Failure::new(Fault::Target, text).cause(Cause::Unreachable));
        let url = self.config.url().map_err(not_sent)?;
        let request = self.client.post(url).await.map_err(|refused| not_sent(refused.to_string()))?;
        let sent = request.headers(headers).body(delivery.message.body.clone()).send().await;
        sent.map_err(|error| {
            let connecting = error.is_connect();
            let text = describe(error);
            if connecting { not_sent(text) } else { CallError::Lost(text) }
        })
    }

    fn headers(&self, delivery: &Delivery) -> Result<HeaderMap, Failure> {
        let named = wire::http_headers(delivery).into_iter();
        let named = named.map(|(name, value)| (Cow::Borrowed(name), value)).collect();
        let mut headers = written(named)?;
        let id = wire::encode(&delivery.message.id);
        if let Ok(id) = HeaderValue::try_from(id) {
            headers.insert(IDEMPOTENCY_KEY, id);
        }
        sign(&mut headers, delivery, self.config.keys(), &self.clock)?;
        Ok(headers)
    }

    /// The messages of a 2xx, where its content type publishes any.
    ///
    /// # Errors
    /// The body did not come whole, or is too large.
    pub async fn reply(&self, response: &mut Response) -> Result<Option<Reply>, Failure> {
        let Some(content_type) = content_type(response.headers()) else { return Ok(None) };
        if !publishes(&content_type) {
            return Ok(None);
        }
        let body = self.read(response).await?;
        Ok(Some(Reply { content_type, body }))
    }

    async fn read(&self, response: &mut Response) -> Result<Bytes, Failure> {
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() > self.max_reply_bytes => {
                    let text = format!("its reply is larger than {} bytes", self.max_reply_bytes);
                    let failure = Failure::new(Fault::Message(DeadKind::InvalidReply), text);
                    return Err(failure.cause(Cause::InvalidReply));
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => return Ok(body.into()),
                Err(error) => {
                    let text = format!("its reply did not come whole: {}", describe(error));
                    return Err(Failure::new(Fault::Attempt, text).cause(Cause::Lost));
                }
            }
        }
    }
}

/// The content type of an answer, as far as it is text.
pub fn content_type(headers: &HeaderMap) -> Option<String> {
    headers.get(http::header::CONTENT_TYPE)?.to_str().ok().map(str::to_owned)
}

/// Whether an answer of this content type publishes messages.
pub fn publishes(content_type: &str) -> bool {
    cloudevents::mode(content_type).is_some() || media::is(content_type, REPLY_JSON)
}

#[async_trait]
impl Transport for Handler {
    async fn send(&self, delivery: &Delivery) -> Result<Ack, Failure> {
        let attempt = async {
            let mut response = match self.call(delivery).await {
                Ok(response) => response,
                Err(CallError::NotSent(failure)) => return Err(failure),
                Err(CallError::Lost(text)) => {
                    return Err(Failure::new(Fault::Attempt, text).cause(Cause::Lost));
                }
            };
            if !response.status().is_success() {
                return Err(answer::failure(response, &self.clock).await);
            }
            match self.reply(&mut response).await? {
                Some(reply) => Ok(Ack { reply: Some(reply) }),
                None => answer::read(response, &self.clock).await,
            }
        };
        tokio::time::timeout(self.timeout(), attempt).await.unwrap_or_else(|_| {
            let text = format!("no answer within {:?}", self.timeout());
            Err(Failure::new(Fault::Attempt, text).cause(Cause::Timeout))
        })
    }

    fn default_in_flight(&self) -> usize {
        self.config.concurrency as usize
    }
}
