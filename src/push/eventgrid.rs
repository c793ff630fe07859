//! Azure Event Grid: its own schema (an array of events) and CloudEvents 1.0, with both handshakes.
//!
//! In its own schema the message's type is `eventType`, its body `data`, its source `topic`, its subject
//! `subject`; `eventTime` goes on as `ce-time`, so that an event that leaves as a CloudEvent has its own time.
//!
//! | `aeg-event-type` | answer |
//! |---|---|
//! | `SubscriptionValidation` | 200 with the event's code, for a subscription that the receiver takes; its `validationUrl` is never asked for |
//! | `SubscriptionDeletion` | 200; nothing is handled |
//! | `Notification` | the messages, in order |
//!
//! `aeg-delivery-count` counts from 0.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, header};
use serde_json::value::RawValue;

use super::{
    Defaults, Format, Handshake, Identity, Kind, Made, Message, Push, Refusal, Request, What, cloudevents,
    handshake, headers,
};
use crate::config::Receiver;
use crate::domain::message::Draft;
use crate::domain::{Limits, json};

pub const KIND: Kind = Kind {
    name: "eventgrid",
    keys: &["sources"],
    needs: &["authorize"],
    // An event has 1 MB at most. Event Grid waits for 30 s.
    defaults: Defaults { body_bytes: 4 << 20, deadline: Duration::from_secs(28) },
    acknowledges: |status| matches!(status, 200..=204),
    retries: |status| !matches!(status, 400 | 401 | 403 | 404 | 413),
    make,
};

/// Events in one delivery; a subscription can be told to send as many.
const BATCH: usize = 5_000;

const VALIDATION: &str = "Microsoft.EventGrid.SubscriptionValidationEvent";
const DELETION: &str = "Microsoft.EventGrid.SubscriptionDeletedEvent";

fn make(_: &Receiver) -> Made {
    Ok(Box::new(EventGrid))
}

struct EventGrid;

impl Format for EventGrid {
    fn verifies(&self) -> bool {
        false
    }

    fn read(&self, request: &Request<'_>, _: Option<&[u8]>) -> Result<Push, Refusal> {
        let text = |name: &str| headers::text(request.headers, name).map_err(Refusal::malformed);
        let source = text("aeg-subscription-name")?.map(str::to_owned);
        let limits = Limits { batch: request.limits.batch.max(BATCH), ..*request.limits };
        let request = &Request { limits: &limits, ..*request };
        if let Some(drafts) = cloudevents::events(request)? {
            return Ok(Push { source, what: messages(request, drafts, Identity::Event) });
        }
        let events = events(request.body, &limits)?;
        let asked = match text("aeg-event-type")? {
            Some(kind) if kind.eq_ignore_ascii_case("SubscriptionValidation") => VALIDATION,
            Some(kind) if kind.eq_ignore_ascii_case("SubscriptionDeletion") => DELETION,
            Some(kind) if !kind.eq_ignore_ascii_case("Notification") => {
                let detail = format!("`{kind}` is no `aeg-event-type` that is known here.");
                return Err(Refusal::malformed(detail));
            }
            // The header may have been lost on the way; the types are Event Grid's own.
            _ => match events.as_slice() {
                [event] => event.kind.as_str(),
                _ => "",
            },
        };
        let what = match asked {
            VALIDATION => What::Handshake(validation(&events)?),
            DELETION => What::Notice("the subscription was deleted".to_owned()),
            _ => {
                let drafts = events.into_iter().map(Event::into_draft).collect();
                messages(request, drafts, Identity::Sender)
            }
        };
        Ok(Push { source, what })
    }

    fn options(&self, request: &Request<'_>) -> Result<Handshake, Refusal> {
        handshake::answer(request)
    }
}

fn messages(request: &Request<'_>, drafts: Vec<Draft>, identity: Identity) -> What {
    let message = |mut draft: Draft| {
        headers::trace(&mut draft, request.headers);
        Message { draft, identity }
    };
    What::Messages {
        messages: drafts.into_iter().map(message).collect(),
        attempts: headers::attempts_after(request.headers, "aeg-delivery-count"),
    }
}

/// The answer to a validation: its code, in a body whose length is told.
fn validation(events: &[Event<'_>]) -> Result<Handshake, Refusal> {
    let [Event { data: Some(data), .. }] = events else {
        return Err(Refusal::malformed("A validation is one event with `data`."));
    };
    let code = json::members(data)
        .and_then(|members| members.into_iter().find(|(name, _)| name == "validationCode"))
        .and_then(|(_, value)| json::text(value))
        .filter(|code| !code.is_empty())
        .ok_or_else(|| Refusal::malformed("The validation has no `validationCode`."))?;
    let mut body = json::ObjectWriter::new();
    body.text("validationResponse", &code);
    Ok(Handshake {
        headers: vec![(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))],
        body: Bytes::from(body.finish()),
    })
}

/// An event in Event Grid's own schema.
#[derive(Default)]
struct Event<'a> {
    id: String,
    kind: String,
    topic: Option<String>,
    subject: Option<String>,
    time: Option<String>,
    data_version: Option<String>,
    data: Option<&'a RawValue>,
}

fn events<'a>(body: &'a Bytes, limits: &Limits) -> Result<Vec<Event<'a>>, Refusal> {
    let depth = limits.json_depth.saturating_add(1);
    if json::is_deeper_than(body, depth) {
        return Err(Refusal::malformed(format!(
            "The body nests objects and arrays deeper than {depth} levels."
        )));
    }
    let raw = json::document(body).map_err(|detail| Refusal::malformed(format!("The body is {detail}.")))?;
    let all = json::elements(raw, limits.batch).ok_or_else(|| {
        Refusal::malformed("The body must be a JSON array of events, as Event Grid sends it.")
    })?;
    if all.len() > limits.batch {
        return Err(Refusal::TooMany { limit: limits.batch });
    }
    let of_element = |(index, raw): (usize, &'a RawValue)| {
        Event::read(raw)
            .map_err(|detail| Refusal::malformed(format!("Event {index}, counted from 0, {detail}.")))
    };
    all.into_iter().enumerate().map(of_element).collect()
}

impl<'a> Event<'a> {
    fn read(raw: &'a RawValue) -> Result<Self, String> {
        let members = json::members(raw).ok_or("is no JSON object")?;
        let mut event = Self::default();
        let mut seen = Vec::new();
        for (name, value) in members {
            if !matches!(
                &*name,
                "id" | "eventType" | "topic" | "subject" | "eventTime" | "dataVersion" | "data"
            ) {
                continue;
            }
            if seen.contains(&name) {
                return Err(format!("has `{name}` more than once"));
            }
            if name == "data" {
                event.data = Some(value);
            } else if json::kind(value) != json::Kind::Null {
                let text = json::text(value).ok_or_else(|| format!("has a `{name}` that is no string"))?;
                match &*name {
                    "id" => event.id = text,
                    "eventType" => event.kind = text,
                    "topic" => event.topic = Some(text),
                    "subject" => event.subject = Some(text),
                    "eventTime" => event.time = Some(text),
                    _ => event.data_version = Some(text),
                }
            }
            seen.push(name);
        }
        match (event.id.is_empty(), event.kind.is_empty()) {
            (true, _) => Err("has no `id`".to_owned()),
            (_, true) => Err("has no `eventType`".to_owned()),
            _ => Ok(event),
        }
    }

    fn into_draft(self) -> Draft {
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let mut draft = Draft { id: Some(self.id), kind: self.kind, ..Draft::default() };
        draft.envelope.source = filled(self.topic);
        draft.envelope.subject = filled(self.subject);
        if let Some(data) = self.data {
            draft.body = Bytes::copy_from_slice(data.get().as_bytes());
            draft.envelope.content_type = Some("application/json".to_owned());
        }
        let time = filled(self.time).filter(|time| chrono::DateTime::parse_from_rfc3339(time).is_ok());
        let data_version = filled(self.data_version);
        for (name, value) in [("ce-time", time), ("aeg-data-version", data_version)] {
            if let Some(value) = value {
                draft.envelope.headers.insert(name.to_owned(), value);
            }
        }
        draft
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::domain::Timestamp;
    use crate::push::Sender;

    const EVENTS: &str = r#"[{"id":"e-1","topic":"/t","subject":"s","eventType":"order.created","eventTime":
        "2025-10-09T08:53:18.1647262Z","data":{"n": 1.10},"dataVersion":"1","metadataVersion":"1"},
        {"id":"e-2","eventType":"order.paid","subject":"","data":null,"dataVersion":""},
        {"id":"e-3","eventType":"order.gone"}]"#;

    fn read_with(headers: &[(&'static str, &str)], body: &str) -> Result<What, Refusal> {
        let headers =
            headers.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap())).collect();
        let request = Request {
            method: &Method::POST,
            headers: &headers,
            query: None,
            body: &Bytes::copy_from_slice(body.as_bytes()),
            now: Timestamp::default(),
            limits: &Limits::default(),
            sender: Sender::Known,
        };
        EventGrid.read(&request, None).map(|push| push.what)
    }

    fn drafts(what: Result<What, Refusal>) -> (Vec<Draft>, u32) {
        let Ok(What::Messages { messages, attempts }) = what else { panic!("{what:?}") };
        (messages.into_iter().map(|message| message.draft).collect(), attempts)
    }

    #[test]
    fn a_batch_gives_its_messages_in_order() {
        let json = ("content-type", "application/json; charset=utf-8");
        let headers = [json, ("aeg-event-type", "Notification"), ("aeg-delivery-count", "2")];
        let (all, attempts) = drafts(read_with(&headers, EVENTS));
        assert_eq!(attempts, 3);
        let bodies: Vec<_> = all.iter().map(|draft| (draft.kind.as_str(), &draft.body[..])).collect();
        let expected =
            [("order.created", &b"{\"n\": 1.10}"[..]), ("order.paid", b"null"), ("order.gone", b"")];
        assert_eq!(bodies, expected);
        let first = &all[0].envelope;
        assert_eq!((first.source.as_deref(), first.subject.as_deref()), (Some("/t"), Some("s")));
        assert_eq!(first.headers["ce-time"], "2025-10-09T08:53:18.1647262Z");
        assert_eq!(first.headers["aeg-data-version"], "1");
        assert_eq!(all[1].envelope.subject, None);
        assert!(all[1].envelope.headers.is_empty());
        let (none, attempts) = drafts(read_with(&[], "[]"));
        assert_eq!((none.len(), attempts), (0, 1));
    }

    #[test]
    fn a_validation_stands_alone_and_has_a_code() {
        let event = |kind: &str, data: &str| format!(r#"{{"id":"v","eventType":"{kind}","data":{data}}}"#);
        let asked = event(VALIDATION, r#"{"validationCode":"c-1","validationUrl":"https://x"}"#);
        let header = [("aeg-event-type", "SubscriptionValidation")];
        for headers in [&header[..], &[]] {
            let what = read_with(headers, &format!("[{asked}]")).unwrap();
            let What::Handshake(answer) = what else { panic!("{what:?}") };
            assert_eq!(answer.body, r#"{"validationResponse":"c-1"}"#);
        }
        for body in [
            "[]".to_owned(),
            format!("[{asked},{asked}]"),
            format!("[{}]", event(VALIDATION, "{}")),
            format!("[{}]", event(VALIDATION, r#"{"validationCode":7}"#)),
            format!("[{}]", event(VALIDATION, r#"{"validationCode":""}"#)),
            format!("[{}]", event(VALIDATION, "null")),
        ] {
            assert!(read_with(&header, &body).is_err(), "{body}");
        }
        let deletion = format!("[{}]", event(DELETION, "{}"));
        for headers in [&[("aeg-event-type", "SubscriptionDeletion")][..], &[]] {
            assert!(matches!(read_with(headers, &deletion), Ok(What::Notice(_))));
        }
    }

    #[test]
    fn cloudevents_come_in_every_mode() {
        let event = r#"{"specversion":"1.0","type":"a","source":"/s","id":"c-1","data":1}"#;
        let count = |headers: &[_], body: &str| drafts(read_with(headers, body)).0.len();
        assert_eq!(count(&[("content-type", "application/cloudevents+json; charset=utf-8")], event), 1);
        let batch = [("content-type", "application/cloudevents-batch+json")];
        assert_eq!(count(&batch, &format!("[{event},{event}]")), 2);
        let binary = [("ce-specversion", "1.0"), ("ce-type", "a"), ("ce-source", "/s"), ("ce-id", "c-1")];
        assert_eq!(count(&binary, "1"), 1);
        let avro = read_with(&[("content-type", "application/cloudevents+avro")], event);
        assert!(matches!(avro, Err(Refusal::UnsupportedMediaType(_))));
    }

    #[test]
    fn what_is_none_of_event_grids_says_why() {
        for (headers, body, expected) in [
            (&[][..], "{}", "array of events"),
            (&[], "[1]", "no JSON object"),
            (&[], "[{}]", "has no `id`"),
            (&[], r#"[{"id":"a"}]"#, "has no `eventType`"),
            (&[], r#"[{"id":"a","id":"b"}]"#, "`id` more than once"),
            (&[], r#"[{"id":7}]"#, "`id` that is no string"),
            (&[], "[", "not valid JSON"),
            (&[("aeg-event-type", "Surprise")], "[]", "`Surprise`"),
        ] {
            let error = read_with(headers, body).unwrap_err().to_string();
            assert!(error.contains(expected), "{body}: {error}");
        }
        let many = format!("[{}1]", "1,".repeat(5000));
        assert_eq!(read_with(&[], &many), Err(Refusal::TooMany { limit: 5000 }));
        let deep = format!("{}1{}", "[".repeat(70), "]".repeat(70));
        assert!(read_with(&[], &deep).unwrap_err().to_string().contains("levels"));
    }
}
