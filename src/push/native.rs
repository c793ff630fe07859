//! The native form of this gateway, pushed: one message, an array of them, or a line each.
//!
//! What a sender may decide is what happened, not where it goes: only the types of the receiver's allow-list pass
//! (one that is not on it refuses the whole request), and members and headers that name a destination or ask for a
//! reply are dropped.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::headers;
use super::{Defaults, Format, Identity, Kind, Made, Message, Push, Refusal, Request, What};
use crate::config::Receiver;
use crate::domain::message::Draft;
use crate::domain::routing::Pattern;
use crate::domain::{json, media, native};

pub const KIND: Kind = Kind {
    name: "native",
    keys: &["types"],
    needs: &["authorize"],
    defaults: Defaults { body_bytes: 4 << 20, deadline: Duration::from_secs(30) },
    acknowledges: |_| true,
    retries: |_| true,
    make,
};

const NDJSON: &str = "application/x-ndjson";
/// Dropped, as members of a message and as headers of its own.
const STEERING: [&str; 6] =
    ["destination", "destinations", "replyTo", "replyUri", "replyDestination", "replyRequested"];
const STEERING_HEADERS: [&str; 6] =
    ["destination", "destinations", "reply-to", "reply-uri", "reply-destination", "reply-requested"];

struct Native {
    types: Vec<Pattern>,
}

fn make(receiver: &Receiver) -> Made {
    match &receiver.types {
        Some(types) if !types.is_empty() => Ok(Box::new(Native { types: types.clone() })),
        _ => Err(vec![(
            "types",
            "is needed for this format: the message types that may be sent, such as [\"order.*\"]".to_owned(),
        )]),
    }
}

impl Format for Native {
    fn verifies(&self) -> bool {
        false
    }

    fn read(&self, request: &Request<'_>, _: Option<&[u8]>) -> Result<Push, Refusal> {
        let mut drafts = drafts(request)?;
        for (index, draft) in drafts.iter_mut().enumerate() {
            if !self.types.iter().any(|pattern| pattern.matches(&draft.kind)) {
                return Err(Refusal::Forbidden(format!(
                    "Message {index}, counted from 0, is of type `{}`, which this receiver does not take; nothing of \
                     the request was handled.",
                    draft.kind
                )));
            }
            draft.destinations = None;
            draft.envelope.headers.retain(|name, _| !STEERING_HEADERS.contains(&name.as_str()));
        }
        let message = |draft| Message { draft, identity: Identity::Message };
        let attempts = headers::attempts_after(request.headers, "upstash-retried");
        let messages = drafts.into_iter().map(message).collect();
        Ok(Push { source: None, what: What::Messages { messages, attempts } })
    }
}

fn drafts(request: &Request<'_>) -> Result<Vec<Draft>, Refusal> {
    let Request { limits, now, .. } = *request;
    let content_type = headers::text(request.headers, "content-type").map_err(Refusal::malformed)?;
    let lines = content_type.is_some_and(|content_type| media::is(content_type, NDJSON));
    if !lines && content_type.is_some_and(|content_type| !media::is(content_type, "application/json")) {
        return Err(Refusal::UnsupportedMediaType(format!(
            "Messages in the native form are `application/json` (one, or an array) or `{NDJSON}`."
        )));
    }
    let depth = limits.json_depth.saturating_add(1);
    if lines {
        let kept: Vec<_> =
            request.body.split(|byte| *byte == b'\n').map(|line| unsteered(line, depth)).collect();
        return Ok(native::ndjson(&Bytes::from(kept.join(&b'\n')), limits, now)?);
    }
    let body = match unsteered(request.body, depth) {
        Cow::Borrowed(_) => request.body.clone(),
        Cow::Owned(body) => Bytes::from(body),
    };
    match body.trim_ascii_start().first() {
        Some(b'[') => Ok(native::batch(&body, limits, now)?),
        _ => Ok(vec![native::one(&body, limits, now)?]),
    }
}

/// The body without the members that steer; as it is where there are none, or where it cannot be read (which is
/// told by whoever reads it next).
fn unsteered(body: &[u8], depth: usize) -> Cow<'_, [u8]> {
    let Some(root) = (!json::is_deeper_than(body, depth)).then(|| json::document(body).ok()).flatten() else {
        return Cow::Borrowed(body);
    };
    match json::kind(root) {
        json::Kind::Object => match without_steering(root) {
            Some(text) => Cow::Owned(text.into_bytes()),
            None => Cow::Borrowed(body),
        },
        json::Kind::Array => {
            let Some(elements) = json::elements(root, usize::MAX) else { return Cow::Borrowed(body) };
            let kept: Vec<_> = elements.iter().map(|element| without_steering(element)).collect();
            if kept.iter().all(Option::is_none) {
                return Cow::Borrowed(body);
            }
            let texts = elements.iter().zip(&kept);
            let texts: Vec<_> = texts.map(|(raw, kept)| kept.as_deref().unwrap_or(raw.get())).collect();
            Cow::Owned(format!("[{}]", texts.join(",")).into_bytes())
        }
        _ => Cow::Borrowed(body),
    }
}

/// An object without the members that steer; `None`: it has none, or is no object.
fn without_steering(raw: &RawValue) -> Option<String> {
    let members = json::members(raw)?;
    if !members.iter().any(|(name, _)| STEERING.contains(&name.as_ref())) {
        return None;
    }
    let mut object = json::ObjectWriter::new();
    for (name, value) in members.iter().filter(|(name, _)| !STEERING.contains(&name.as_ref())) {
        object.raw(name, value.get());
    }
    Some(object.finish())
}
