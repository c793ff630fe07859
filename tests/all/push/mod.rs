//! What senders push: every format's samples and further cases of its sender's documentation, at a fixed clock.

mod eventgrid;
mod fuzz;
mod qstash;
mod signed;
mod sns;

use bytes::Bytes;
use http::HeaderMap;
use oncegate::config::Receiver;
use oncegate::domain::fields::Limits;
use oncegate::domain::message::Draft;
use oncegate::push::{Format, Handshake, Push, Refusal, Request, Sender, What, registry};

use crate::support::push::Sample;

/// The moment at which the samples were signed.
pub const SIGNED_S: i64 = 1_760_000_000;

/// A receiver, and when it is asked.
pub struct Asked {
    format: Box<dyn Format>,
    now_s: i64,
    sender: Sender,
}

/// A receiver with these settings (TOML), at the samples' moment, whose sender nothing but its signature proves.
pub fn receiver(settings: &str) -> Asked {
    match made(settings) {
        Ok(format) => Asked { format, now_s: SIGNED_S, sender: Sender::Unknown },
        Err(problems) => panic!("{settings}: {problems:?}"),
    }
}

/// The keys that are wrong in a receiver's settings.
pub fn problems(settings: &str) -> Vec<&'static str> {
    made(settings).err().unwrap_or_default().into_iter().map(|(key, _)| key).collect()
}

fn made(settings: &str) -> oncegate::push::Made {
    let receiver: Receiver = toml::from_str(settings).unwrap_or_else(|error| panic!("{settings}: {error}"));
    let kind = registry::find(&receiver.format).expect("a format");
    (kind.make)(&receiver)
}

impl Asked {
    pub fn at(mut self, now_s: i64) -> Self {
        self.now_s = now_s;
        self
    }

    /// The sender has proved itself by a token or a secret.
    pub fn known(mut self) -> Self {
        self.sender = Sender::Known;
        self
    }

    pub fn read(&self, sample: &Sample) -> Result<Push, Refusal> {
        self.read_with(sample, None)
    }

    pub fn read_with(&self, sample: &Sample, fetched: Option<&[u8]>) -> Result<Push, Refusal> {
        self.with(&sample.headers, &sample.body, |request| self.format.read(request, fetched))
    }

    pub fn options(&self, sample: &Sample) -> Result<Handshake, Refusal> {
        self.with(&sample.headers, &sample.body, |request| self.format.options(request))
    }

    fn with<T>(&self, headers: &HeaderMap, body: &Bytes, ask: impl FnOnce(&Request<'_>) -> T) -> T {
        let method = http::Method::POST;
        let request = Request {
            method: &method,
            headers,
            query: None,
            body,
            now: chrono::DateTime::from_timestamp(self.now_s, 0).expect("a moment"),
            limits: &Limits::default(),
            sender: self.sender,
        };
        ask(&request)
    }

    /// The one message of a request.
    pub fn message(&self, sample: &Sample) -> Draft {
        match self.read(sample).map(|push| push.what) {
            Ok(What::Messages { mut messages, .. }) if messages.len() == 1 => messages.remove(0).draft,
            other => panic!("not one message: {other:?}"),
        }
    }

    pub fn refuses_as_unproven(&self, sample: &Sample) -> String {
        match self.read(sample) {
            Err(Refusal::Unproven(text)) => text,
            other => panic!("accepted without proof: {other:?}"),
        }
    }

    pub fn refuses_as_malformed(&self, sample: &Sample) -> String {
        match self.read(sample) {
            Err(Refusal::Malformed { detail, .. }) => detail,
            other => panic!("not malformed: {other:?}"),
        }
    }
}
