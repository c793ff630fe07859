//! Receive: what is pushed is verified, read, and run by a handler or published.
//!
//! What the sender is told is all that it learns: done (handled, discarded, or a dead letter that is stored with its
//! bytes), or to push again. Several messages of one request are run in their order; the first that is to come again
//! stops the rest. [`run`] is one message.

mod identity;
mod run;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};

use super::documents::Documents;
use super::proof::{Denied, Proof};
use super::publish::{Call as Publish, Form};
use super::{Error, Gateway, Result};
use crate::auth::Principal;
use crate::config::receivers::{Source, Way};
use crate::config::{self};
use crate::domain::Timestamp;
use crate::push::{Format, Handshake, Kind, Message, Push, Refusal, Request, Sender, What};

/// Every receiver, by its name.
#[derive(Default)]
pub struct Receivers {
    all: BTreeMap<String, Arc<Receiver>>,
    documents: Option<Documents>,
}

/// A receiver, ready to be pushed to.
pub struct Receiver {
    name: String,
    config: config::Receiver,
    format: Box<dyn Format>,
    proof: Proof,
    pub body_bytes: usize,
    deadline: Duration,
    keep_handled: Duration,
    lease: Duration,
}

/// What it needs to know besides its own settings.
pub struct Common {
    pub keep_handled: Duration,
    /// Of a delivery to a handler.
    pub lease: Duration,
}

impl Receiver {
    pub fn new(
        name: &str,
        config: config::Receiver,
        (kind, format): (&'static Kind, Box<dyn Format>),
        proof: Proof,
        common: &Common,
    ) -> Self {
        Self {
            name: name.to_owned(),
            body_bytes: config.body.map_or(kind.defaults.body_bytes, config::ByteSize::bytes),
            deadline: config.deadline.map_or(kind.defaults.deadline, config::Duration::get),
            format,
            proof,
            keep_handled: common.keep_handled,
            lease: common.lease,
            config,
        }
    }

    fn principal(&self) -> Principal {
        Principal {
            name: format!("receiver:{}", self.name),
            tenant: self.config.tenant.clone().unwrap_or_default(),
            ..Principal::anonymous()
        }
    }

    fn retry_status(&self) -> u16 {
        self.config.retry_status.unwrap_or(500)
    }
}

impl Receivers {
    pub fn new(all: impl IntoIterator<Item = (String, Receiver)>, documents: Documents) -> Self {
        Self {
            all: all.into_iter().map(|(name, one)| (name, Arc::new(one))).collect(),
            documents: Some(documents),
        }
    }

    fn documents(&self) -> Result<&Documents> {
        self.documents.as_ref().ok_or(Error::Internal)
    }
}

/// A request to a receiver, read whole.
pub struct Call {
    pub receiver: Arc<Receiver>,
    pub method: Method,
    pub headers: HeaderMap,
    pub query: Option<String>,
    pub body: Bytes,
}

/// What the sender is answered.
#[derive(Debug)]
pub enum Answer {
    /// With this status and nothing else.
    Done(u16),
    Handshake(Handshake),
}

/// Settings by the name that a push carries.
struct Settings<'a> {
    way: Way<'a>,
    kind: Option<&'a str>,
    deduplicate: bool,
}

impl Gateway {
    /// The receiver with this name.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn receiver(&self, name: &str) -> Result<Arc<Receiver>> {
        self.receivers.all.get(name).cloned().ok_or_else(|| Error::NotFound {
            detail: format!(
                "There is no receiver `{name}`. Check the URL that the sender is configured with."
            ),
        })
    }

    /// Whether a request is its sender's, as far as its head shows it.
    ///
    /// # Errors
    /// `Unauthenticated`, or `PushAgain` where nobody can tell just now.
    pub async fn prove(&self, receiver: &Receiver, headers: &HeaderMap, query: Option<&str>) -> Result<()> {
        receiver.proof.check(headers, query).await.map_err(|denied| {
            tracing::info!(receiver = %receiver.name, reason = %denied, "a push was not taken");
            match denied {
                Denied::Unproven(_) => unproven(
                    "What proves the sender is missing, or is not what this receiver asks for.".to_owned(),
                ),
                Denied::NotVerifiable => Error::PushAgain { status: receiver.retry_status() },
            }
        })
    }

    /// Answers whether a sender may push here at all.
    ///
    /// # Errors
    /// `MethodNotAllowed`: it was not asked; `Malformed`.
    pub fn receive_options(&self, call: &Call) -> Result<Handshake> {
        let request = call.request(self, self.clock.now());
        call.receiver.format.options(&request).map_err(refused)
    }

    /// Takes what is pushed. To be run to its end, whether or not the sender still waits.
    ///
    /// # Errors
    /// Why nothing was taken; `PushAgain`, or an error of the store: it is to be pushed again.
    pub async fn receive(self: &Arc<Self>, call: Call) -> Result<Answer> {
        let began = self.clock.monotonic();
        let receiver = Arc::clone(&call.receiver);
        let push = self.read(&call).await?;
        let settings = settings(&receiver, push.source.as_deref())?;
        let done = Answer::Done(receiver.config.success_status.unwrap_or(200));
        let (messages, attempts) = match push.what {
            What::Messages { messages, attempts } => (messages, attempts),
            What::Handshake(handshake) => return Ok(Answer::Handshake(handshake)),
            What::Notice(text) => {
                tracing::info!(receiver = %receiver.name, source = ?push.source, "{text}");
                return Ok(done);
            }
            What::Confirm(url) => {
                return match self.receivers.documents()?.ask(&url).await {
                    Ok(_) => {
                        tracing::info!(receiver = %receiver.name, source = ?push.source, "confirmed a subscription");
                        Ok(done)
                    }
                    Err(error) => {
                        tracing::warn!(receiver = %receiver.name, %error, "a subscription could not be confirmed");
                        Err(Error::PushAgain { status: receiver.retry_status() })
                    }
                };
            }
            What::Needs(_) => return Err(Error::Internal),
        };
        let now = self.clock.now();
        let mut drafts = Vec::with_capacity(messages.len());
        for message in messages {
            drafts.push(self.draft(&receiver, push.source.as_deref(), settings.kind, message, now)?);
        }
        if settings.way == Way::Publish {
            self.publish_pushed(&receiver, drafts).await?;
            return Ok(done);
        }
        let Way::Handler(handler) = settings.way else { return Err(Error::Internal) };
        let run = run::Run {
            receiver: Arc::clone(&receiver),
            handler: handler.to_owned(),
            deduplicate: settings.deduplicate,
            attempts,
            until: began + receiver.deadline,
        };
        // In a task of its own: what runs at the deadline goes on, and is answered as to be pushed again.
        let gateway = Arc::clone(self);
        let running = tokio::spawn(async move { run.all(&gateway, drafts).await });
        match tokio::time::timeout(receiver.deadline, running).await {
            Ok(Ok(ended)) => ended.map(|()| done),
            Ok(Err(_panic)) => Err(Error::Internal),
            Err(_elapsed) => {
                tracing::warn!(receiver = %receiver.name, "a push still runs at its deadline; it goes on");
                Err(Error::PushAgain { status: receiver.retry_status() })
            }
        }
    }

    /// Reads the request, with the documents that it needs.
    async fn read(&self, call: &Call) -> Result<Push> {
        let receiver = &*call.receiver;
        let request = call.request(self, self.clock.now());
        let push = receiver.format.read(&request, None).map_err(refused)?;
        let What::Needs(url) = &push.what else { return Ok(push) };
        settings(receiver, push.source.as_deref())?;
        let document = self.receivers.documents()?.get(url).await.map_err(|error| {
            tracing::warn!(receiver = %receiver.name, %error, "what a push needs could not be fetched");
            Error::PushAgain { status: receiver.retry_status() }
        })?;
        receiver.format.read(&request, Some(&document)).map_err(refused)
    }

    async fn publish_pushed(&self, receiver: &Receiver, drafts: Vec<identity::Pushed>) -> Result<()> {
        if drafts.is_empty() {
            return Ok(());
        }
        let principal = receiver.principal();
        let drafts = drafts.into_iter().map(|pushed| self.with_fallback(&principal, pushed)).collect();
        let call = Publish { principal, form: Form::Batch, drafts, key: None };
        match self.publish_by(call, super::prepare::Way::Push).await {
            // The work is taken: there is nothing to push again.
            Ok(_) | Err(Error::Duplicate { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Call {
    fn request<'a>(&'a self, gateway: &'a Gateway, now: Timestamp) -> Request<'a> {
        let receiver = &self.receiver;
        let known =
            receiver.proof.is_asked() || receiver.config.authorize == config::receivers::Authorize::Anonymous;
        Request {
            method: &self.method,
            headers: &self.headers,
            query: self.query.as_deref(),
            body: &self.body,
            now,
            limits: &gateway.settings.limits,
            sender: if known { Sender::Known } else { Sender::Unknown },
        }
    }
}

/// The settings for what comes from `source`.
///
/// # Errors
/// `Forbidden` where it is not listed.
fn settings<'a>(receiver: &'a Receiver, source: Option<&str>) -> Result<Settings<'a>> {
    let config = &receiver.config;
    let listed: Option<&Source> = match &config.sources {
        None => None,
        Some(sources) => match source.and_then(|name| sources.get(name)) {
            Some(found) => Some(found),
            None => {
                tracing::info!(receiver = %receiver.name, ?source, "a push from a name that is not listed");
                let detail = match source {
                    Some(name) => format!("`{name}` is not among those that may push here."),
                    None => "The request does not say from where it comes.".to_owned(),
                };
                return Err(Error::Forbidden { detail });
            }
        },
    };
    let way = listed.and_then(Source::way).or(config.way()).ok_or(Error::Internal)?;
    Ok(Settings {
        way,
        kind: listed.and_then(|source| source.kind.as_deref()).or(config.kind.as_deref()),
        deduplicate: listed
            .and_then(|source| source.deduplicate_with_inbox)
            .unwrap_or(config.deduplicate_with_inbox),
    })
}

fn unproven(detail: String) -> Error {
    Error::Unauthenticated { detail }
}

fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Unproven(detail) => unproven(detail),
        Refusal::Forbidden(detail) => Error::Forbidden { detail },
        Refusal::Malformed { detail, places } => Error::malformed_at(detail, places),
        Refusal::TooMany { limit } => {
            Error::TooLarge { detail: format!("More than {limit} messages in one request.") }
        }
        Refusal::UnsupportedMediaType(detail) => Error::UnsupportedMediaType { detail },
        Refusal::Method => Error::MethodNotAllowed { allow: "POST" },
    }
}
