//! Push receivers: what senders (brokers, webhooks) send, turned into messages. A file or folder per format,
//! all of them pure: bytes and headers in; messages, a handshake's answer or a refusal out. They verify what can
//! be verified without asking anybody; what has to be asked for (a certificate, a confirmation) they only name,
//! once they have decided that it may be asked for at all.
//!
//! To add a format: a file with a [`Kind`] (its name, its keys, its defaults) and a [`Format`] (how a request is
//! read), and a line in [`registry`]. What follows from a push (which messages are run or published, what is
//! answered when) is the gateway's.

pub mod cloudevents;
pub mod eventbridge;
pub mod eventgrid;
pub mod github;
mod handshake;
mod headers;
pub mod native;
pub mod pubsub;
pub mod qstash;
pub mod registry;
pub mod signature;
pub mod sns;
pub mod standard_webhooks;
pub mod stripe;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use url::Url;

use crate::config::{Receiver, Secret, Secrets};
use crate::domain::message::Draft;
use crate::domain::{Limits, Place, Timestamp, forms};

/// A request that was read whole, as it came but for its `Content-Encoding`, which is undone.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub method: &'a Method,
    pub headers: &'a HeaderMap,
    /// The query of its URL as it was sent, without the `?`.
    pub query: Option<&'a str>,
    pub body: &'a Bytes,
    pub now: Timestamp,
    pub limits: &'a Limits,
    /// Whether its sender has proved itself before the body was read.
    pub sender: Sender,
}

/// Whether a sender has proved itself, by a token or a shared secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// It has, or it is anybody by the operator's word.
    Known,
    /// The receiver asks for nothing of the kind: the request's signature has to prove it.
    Unknown,
}

/// How the requests of one receiver are read.
pub trait Format: Send + Sync + 'static {
    /// Whether [`read`](Self::read) refuses what its sender has not signed. Where it does not, the receiver has to
    /// ask for a token or a secret, or say that anybody may send.
    fn verifies(&self) -> bool;

    /// Reads a POST. `fetched`: the document that an earlier call with the same request said it needs.
    ///
    /// # Errors
    /// Why nothing comes of it.
    fn read(&self, request: &Request<'_>, fetched: Option<&[u8]>) -> Result<Push, Refusal>;

    /// Reads an OPTIONS: whether the receiver may be sent to at all.
    ///
    /// # Errors
    /// [`Refusal::Method`] where the format has no such question.
    fn options(&self, _request: &Request<'_>) -> Result<Handshake, Refusal> {
        Err(Refusal::Method)
    }
}

/// What a request is.
#[derive(Debug, PartialEq)]
pub struct Push {
    /// The name that it carries of where it comes from (a topic, a subscription): settings and the allow-list of a
    /// receiver go by it. It is looked at before anything else is done.
    pub source: Option<String>,
    pub what: What,
}

impl Push {
    /// A first attempt at one message, in the trace that the request is part of.
    fn of_one(request: &Request<'_>, source: Option<String>, mut draft: Draft, identity: Identity) -> Self {
        headers::trace(&mut draft, request.headers);
        let messages = vec![Message { draft, identity }];
        Self { source, what: What::Messages { messages, attempts: 1 } }
    }
}

#[derive(Debug, PartialEq)]
pub enum What {
    /// In order; none at all is no error.
    Messages {
        messages: Vec<Message>,
        /// The sender's count, this attempt included: 1 at first.
        attempts: u32,
    },
    /// Nothing is handled, and what happened is logged.
    Notice(String),
    Handshake(Handshake),
    /// The document at this URL is needed: it is asked for (GET), and the request is read again with it.
    Needs(Url),
    /// This URL is to be asked for (GET); a 2xx acknowledges the push.
    Confirm(Url),
}

/// A message, and what its id is worth.
#[derive(Debug, PartialEq)]
pub struct Message {
    /// `id` is what the sender calls it. Where `kind` is empty, it is the one that the receiver is configured with.
    /// Own headers are as they came: names that no header can have, and reserved ones, are the gateway's to drop.
    pub draft: Draft,
    pub identity: Identity,
}

/// What a sender's id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The message's own.
    Message,
    /// The message's own, within its source (CloudEvents).
    Event,
    /// The sender's: the message's is derived from it and the push's source.
    Sender,
}

/// The answer that a sender's question has, with status 200.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Bytes,
}

/// Why nothing comes of a request. The texts are sentences for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its sender has not proved itself.
    #[error("{0}")]
    Unproven(String),
    /// It is not for this receiver.
    #[error("{0}")]
    Forbidden(String),
    #[error("{detail}")]
    Malformed { detail: String, places: Vec<Place> },
    #[error("more than {limit} messages in one request")]
    TooMany { limit: usize },
    #[error("{0}")]
    UnsupportedMediaType(String),
    /// The method has no meaning in this format.
    #[error("not in this format")]
    Method,
}

impl Refusal {
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::Malformed { detail: detail.into(), places: Vec::new() }
    }
}

impl From<forms::Error> for Refusal {
    fn from(error: forms::Error) -> Self {
        match error {
            forms::Error::Malformed { detail, places } => Self::Malformed { detail, places },
            forms::Error::TooMany { limit } => Self::TooMany { limit },
        }
    }
}

/// A format, as the registry knows it.
pub struct Kind {
    /// As in `format = "NAME"`.
    pub name: &'static str,
    /// The keys that it reads beside those that every receiver has ([`COMMON_KEYS`]).
    pub keys: &'static [&'static str],
    /// Those of [`COMMON_KEYS`] that a receiver of this format needs beside `publish`: for the example.
    pub needs: &'static [&'static str],
    pub defaults: Defaults,
    /// Whether its sender takes this status (200 to 299) for "done".
    pub acknowledges: fn(u16) -> bool,
    /// Whether its sender takes this status (400 to 599) for "send it again".
    pub retries: fn(u16) -> bool,
    /// # Errors
    /// What is wrong with the receiver's settings.
    pub make: fn(&Receiver) -> Made,
}

/// What fits a sender, where the receiver says nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// Of a request's body.
    pub body_bytes: usize,
    /// How long the sender waits for an answer, or a little less.
    pub deadline: Duration,
}

/// Keys that mean the same in every format.
pub const COMMON_KEYS: [&str; 13] = [
    "format",
    "handler",
    "publish",
    "type",
    "tenant",
    "authorize",
    "oidc",
    "api_key",
    "deduplicate_with_inbox",
    "success_status",
    "retry_status",
    "deadline",
    "body",
];

/// What is wrong with a receiver: the key below it, and why.
pub type Problem = (&'static str, String);

pub type Made = Result<Box<dyn Format>, Vec<Problem>>;

/// That a receiver has no type for messages that say none.
fn lacks_type(receiver: &Receiver) -> Option<Problem> {
    let by_source = receiver
        .sources
        .as_ref()
        .is_some_and(|sources| !sources.is_empty() && sources.values().all(|source| source.kind.is_some()));
    let text = "is needed for this format: what is pushed does not say its message type";
    (receiver.kind.is_none() && !by_source).then(|| ("type", text.to_owned()))
}

/// What requests are signed with, where the receiver says it.
fn secrets(receiver: &Receiver) -> Vec<Secret> {
    receiver.secrets.iter().flat_map(Secrets::iter).cloned().collect()
}

/// How far a signature's time may be off, either way.
fn tolerance(receiver: &Receiver) -> Duration {
    receiver.tolerance.map_or(standard_webhooks::TOLERANCE, crate::config::Duration::get)
}
