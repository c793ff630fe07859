//! Amazon EventBridge, API destinations ("API destinations as targets", "Event structure").
//!
//! The message's type is `detail-type`, its body `detail` as it was sent, its source `source`; `time` goes on as
//! `ce-time`, the account, the region and the resources as headers `aws-account`, `aws-region` and `aws-resources`
//! (a JSON array). Where a rule's input transformer makes another shape, the body goes on whole: its type is then the
//! one that the receiver is configured with, and it has no id of its own.
//!
//! EventBridge signs nothing: its connection's API key (or user and password) is what proves it. It asks for a range
//! of bytes, which means nothing here.

use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::{Defaults, Format, Identity, Kind, Made, Message, Push, Refusal, Request, What, headers};
use crate::config::Receiver;
use crate::domain::json;
use crate::domain::message::Draft;

pub const KIND: Kind = Kind {
    name: "eventbridge",
    keys: &[],
    needs: &["authorize"],
    defaults: Defaults { body_bytes: 2 << 20, deadline: Duration::from_millis(4_500) },
    acknowledges: |_| true,
    // What else is answered is given up on.
    retries: |status| status == 429 || status >= 500,
    make,
};

struct EventBridge;

fn make(_: &Receiver) -> Made {
    Ok(Box::new(EventBridge))
}

impl Format for EventBridge {
    fn verifies(&self) -> bool {
        false
    }

    fn read(&self, request: &Request<'_>, _: Option<&[u8]>) -> Result<Push, Refusal> {
        let Request { body, limits, .. } = *request;
        if body.trim_ascii().is_empty() {
            return Err(Refusal::malformed("The body is empty; EventBridge sends an event."));
        }
        if json::is_deeper_than(body, limits.json_depth.saturating_add(1)) {
            return Err(Refusal::malformed(format!(
                "The event nests objects and arrays deeper than {} levels.",
                limits.json_depth
            )));
        }
        let root =
            json::document(body).map_err(|detail| Refusal::malformed(format!("The body is {detail}.")))?;
        let event = Event::read(root).map_err(Refusal::malformed)?;
        let mut message = match event {
            Some(event) => event.into_message(),
            None => {
                let mut draft = Draft { body: Bytes::clone(body), ..Draft::default() };
                draft.envelope.content_type = Some("application/json".to_owned());
                Message { draft, identity: Identity::Message }
            }
        };
        headers::trace(&mut message.draft, request.headers);
        Ok(Push { source: None, what: What::Messages { messages: vec![message], attempts: 1 } })
    }
}

/// An event as EventBridge has it.
struct Event<'a> {
    id: String,
    kind: String,
    source: Option<String>,
    time: Option<String>,
    account: Option<String>,
    region: Option<String>,
    resources: Option<&'a RawValue>,
    detail: &'a RawValue,
}

impl<'a> Event<'a> {
    /// `None`: it has another shape.
    fn read(root: &'a RawValue) -> Result<Option<Self>, String> {
        let Some(members) = json::members(root) else { return Ok(None) };
        let find = |name: &str| -> Result<Option<&'a RawValue>, String> {
            let mut found = members.iter().filter(|(member, _)| member == name).map(|(_, raw)| *raw);
            match (found.next(), found.next()) {
                (_, Some(_)) => Err(format!("`{name}` is there more than once.")),
                (first, None) => Ok(first.filter(|raw| json::kind(raw) != json::Kind::Null)),
            }
        };
        let text = |name: &str| -> Result<Option<String>, String> {
            let Some(raw) = find(name)? else { return Ok(None) };
            let text = json::text(raw).ok_or_else(|| format!("`{name}` is no string."))?;
            Ok(Some(text).filter(|text| !text.is_empty()))
        };
        let (Some(raw), Some(detail)) = (find("detail-type")?, find("detail")?) else { return Ok(None) };
        let kind = json::text(raw).filter(|kind| !kind.is_empty()).ok_or("`detail-type` is no text.")?;
        Ok(Some(Self {
            id: text("id")?.ok_or("The event has no `id`.")?,
            kind,
            source: text("source")?,
            time: text("time")?.filter(|time| chrono::DateTime::parse_from_rfc3339(time).is_ok()),
            account: text("account")?,
            region: text("region")?,
            resources: find("resources")?,
            detail,
        }))
    }

    fn into_message(self) -> Message {
        let mut draft = Draft { id: Some(self.id), kind: self.kind, ..Draft::default() };
        draft.body = Bytes::copy_from_slice(self.detail.get().as_bytes());
        draft.envelope.content_type = Some("application/json".to_owned());
        draft.envelope.source = self.source;
        let resources = self.resources.map(|raw| json::compact(raw.get())).filter(|text| text != "[]");
        for (name, value) in [
            ("ce-time", self.time),
            ("aws-account", self.account),
            ("aws-region", self.region),
            ("aws-resources", resources),
        ] {
            if let Some(value) = value {
                draft.envelope.headers.insert(name.to_owned(), value);
            }
        }
        Message { draft, identity: Identity::Sender }
    }
}
