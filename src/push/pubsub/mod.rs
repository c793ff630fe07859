//! Google Cloud Pub/Sub, push subscriptions ("Push subscriptions", "Payload unwrapping").
//!
//! Wrapped, a message is the JSON object of [`wrapped`]; unwrapped (`unwrapped = true`), the body is the message and
//! its members are headers, where the subscription writes them (`--push-no-wrapper-write-metadata`). Attributes
//! become headers, the ordering key the partition key, the publish time `ce-time`. A request with `ce-` headers
//! (Eventarc) is an event whose data is what the envelope wraps.

mod wrapped;

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use super::{Defaults, Format, Identity, Kind, Made, Message, Push, Refusal, Request, What, headers};
use crate::config::Receiver;
use crate::domain::cloudevents;
use crate::domain::json;
use crate::domain::message::Draft;

pub const KIND: Kind = Kind {
    name: "pubsub",
    keys: &["unwrapped", "sources"],
    needs: &["type", "authorize"],
    // 10 MB of data are 13.4 MB in base64, with 100 attributes of 1,280 bytes beside them. An acknowledgement
    // deadline is 10 s unless the subscription says more.
    defaults: Defaults { body_bytes: 14_000_000, deadline: Duration::from_secs(9) },
    acknowledges: |status| matches!(status, 200..=202 | 204),
    retries: |_| true,
    make,
};

fn make(receiver: &Receiver) -> Made {
    if let Some(problem) = super::lacks_type(receiver) {
        return Err(vec![problem]);
    }
    let form = if receiver.unwrapped == Some(true) { Form::Unwrapped } else { Form::Wrapped };
    Ok(Box::new(PubSub { form }))
}

struct PubSub {
    form: Form,
}

#[derive(Clone, Copy)]
enum Form {
    Wrapped,
    Unwrapped,
}

/// What a message of Pub/Sub has, however it comes.
struct Received {
    data: Bytes,
    id: Option<String>,
    subscription: Option<String>,
    publish_time: Option<String>,
    ordering_key: Option<String>,
    content_type: Option<String>,
    attributes: Vec<(String, String)>,
    attempts: u32,
}

impl Format for PubSub {
    fn verifies(&self) -> bool {
        false
    }

    fn read(&self, request: &Request<'_>, _: Option<&[u8]>) -> Result<Push, Refusal> {
        let received = match self.form {
            Form::Wrapped => wrapped::read(request.body, request.limits.json_depth)?,
            Form::Unwrapped => unwrapped(request.headers, request.body).map_err(Refusal::malformed)?,
        };
        let (subscription, attempts) = (received.subscription.clone(), received.attempts);
        let message = match request.headers.contains_key("ce-specversion") {
            true => event(request, received)?,
            false => plain(request, received),
        };
        Ok(Push { source: subscription, what: What::Messages { messages: vec![message], attempts } })
    }
}

fn plain(request: &Request<'_>, received: Received) -> Message {
    let identity = if received.id.is_some() { Identity::Sender } else { Identity::Message };
    let mut draft = Draft { id: received.id, partition_key: received.ordering_key, ..Draft::default() };
    let guessed = || content_type_of(&received.data).map(str::to_owned);
    draft.envelope.content_type = received.content_type.or_else(guessed);
    let own = &mut draft.envelope.headers;
    own.extend(received.attributes.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)));
    let time = received.publish_time.filter(|time| chrono::DateTime::parse_from_rfc3339(time).is_ok());
    if let Some(time) = time {
        own.entry("ce-time".to_owned()).or_insert(time);
    }
    draft.body = received.data;
    headers::trace(&mut draft, request.headers);
    Message { draft, identity }
}

/// Pub/Sub says of no message what it is. An object or an array is taken for what it looks like.
fn content_type_of(data: &[u8]) -> Option<&'static str> {
    let container = matches!(data.trim_ascii_start().first(), Some(b'{' | b'['));
    match (data.is_empty(), container && json::document(data).is_ok()) {
        (true, _) => None,
        (_, true) => Some("application/json"),
        (_, false) => Some("application/octet-stream"),
    }
}

/// An event in the binary mode, whose data is the message's.
fn event(request: &Request<'_>, received: Received) -> Result<Message, Refusal> {
    let all = request.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let content_type = received.content_type.as_deref().or_else(|| content_type_of(&received.data));
    let data = received.data.clone();
    let mut draft = cloudevents::binary(all, content_type, data, request.limits, request.now)?;
    if draft.partition_key.is_none() {
        draft.partition_key = received.ordering_key;
    }
    for (name, value) in received.attributes {
        draft.envelope.headers.entry(name.to_ascii_lowercase()).or_insert(value);
    }
    headers::trace(&mut draft, request.headers);
    Ok(Message { draft, identity: Identity::Event })
}

/// Headers of the request that are no attributes: those of HTTP, of what stands in between, and of Pub/Sub itself.
const NO_ATTRIBUTES: [&str; 34] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "alt-used",
    "authorization",
    "baggage",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "date",
    "expect",
    "forwarded",
    "from",
    "host",
    "keep-alive",
    "pragma",
    "proxy-authorization",
    "proxy-connection",
    "referer",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-cloud-trace-context",
    "x-real-ip",
    "x-request-id",
];
const NO_ATTRIBUTE_PREFIXES: [&str; 5] = ["x-goog-pubsub-", "x-forwarded-", "x-envoy-", "sec-", "ce-"];

fn unwrapped(headers: &HeaderMap, body: &Bytes) -> Result<Received, String> {
    let meta = |name: &str| {
        let text = headers::text(headers, &format!("x-goog-pubsub-{name}"))?;
        Ok::<_, String>(text.filter(|text| !text.is_empty()).map(str::to_owned))
    };
    let is_attribute = |name: &str| {
        !NO_ATTRIBUTES.contains(&name) && !NO_ATTRIBUTE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    let attributes = headers.iter().filter(|(name, _)| is_attribute(name.as_str())).map(|(name, value)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    });
    Ok(Received {
        data: body.clone(),
        id: meta("message-id")?,
        subscription: meta("subscription-name")?,
        publish_time: meta("publish-time")?,
        ordering_key: meta("ordering-key")?,
        content_type: headers::text(headers, "content-type")?.map(str::to_owned),
        attributes: attributes.collect(),
        attempts: 1,
    })
}
