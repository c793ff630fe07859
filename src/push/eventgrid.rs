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

use bytes::Bytes;
use http::HeaderMap;
use serde_json::value::RawValue;

use super::headers;
use crate::domain::cloudevents::{self, Mode};
use crate::domain::forms;
use crate::domain::message::Draft;
use crate::domain::{Limits, Timestamp, json};

/// What a request is.
#[derive(Debug, PartialEq)]
pub enum Push {
    /// It asks whether the receiver wants this subscription: the code that says yes.
    Validation {
        code: String,
    },
    /// The subscription is gone.
    Deletion,
    Messages {
        drafts: Vec<Draft>,
        attempts: u32,
    },
}

const VALIDATION: &str = "Microsoft.EventGrid.SubscriptionValidationEvent";
const DELETION: &str = "Microsoft.EventGrid.SubscriptionDeletedEvent";

/// Reads a request.
///
/// # Errors
/// What is wrong with it.
pub fn read(
    headers: &HeaderMap,
    body: &Bytes,
    limits: &Limits,
    now: Timestamp,
) -> Result<Push, forms::Error> {
    let text = |name: &str| headers::text(headers, name).map_err(malformed);
    let content_type = text("content-type")?;
    let attempts = text("aeg-delivery-count")?.and_then(|count| count.trim().parse::<u32>().ok());
    let messages =
        |drafts: Vec<Draft>| Push::Messages { drafts, attempts: attempts.unwrap_or(0).saturating_add(1) };
    match content_type.and_then(cloudevents::mode) {
        Some(Mode::Structured) => {
            return cloudevents::structured(body, limits, now).map(|draft| messages(vec![draft]));
        }
        Some(Mode::Batch) => return cloudevents::batch(body, limits, now).map(messages),
        Some(Mode::Unsupported) => {
            return Err(malformed("CloudEvents are read in their JSON format only."));
        }
        None if headers.contains_key("ce-specversion") => {
            let all = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
            return cloudevents::binary(all, content_type, body.clone(), limits, now)
                .map(|draft| messages(vec![draft]));
        }
        None => {}
    }
    let events = events(body, limits)?;
    match text("aeg-event-type")? {
        Some(kind) if kind.eq_ignore_ascii_case("SubscriptionValidation") => validation(&events),
        Some(kind) if kind.eq_ignore_ascii_case("SubscriptionDeletion") => Ok(Push::Deletion),
        Some(kind) if !kind.eq_ignore_ascii_case("Notification") => {
            Err(malformed(format!("`{kind}` is no `aeg-event-type` that is known here.")))
        }
        _ => match events.as_slice() {
            // The header may have been lost on the way; the types are Event Grid's own.
            [event] if event.kind == VALIDATION => validation(&events),
            [event] if event.kind == DELETION => Ok(Push::Deletion),
            _ => Ok(messages(events.into_iter().map(Event::into_draft).collect())),
        },
    }
}

fn malformed(detail: impl Into<String>) -> forms::Error {
    forms::Error::Malformed { detail: detail.into(), places: Vec::new() }
}

fn validation(events: &[Event<'_>]) -> Result<Push, forms::Error> {
    let [Event { data: Some(data), .. }] = events else {
        return Err(malformed("A validation is one event with `data`."));
    };
    let code = json::members(data)
        .and_then(|members| members.into_iter().find(|(name, _)| name == "validationCode"))
        .and_then(|(_, value)| json::text(value))
        .filter(|code| !code.is_empty());
    code.map(|code| Push::Validation { code })
        .ok_or_else(|| malformed("The validation has no `validationCode`."))
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

fn events<'a>(body: &'a Bytes, limits: &Limits) -> Result<Vec<Event<'a>>, forms::Error> {
    let depth = limits.json_depth.saturating_add(1);
    if json::is_deeper_than(body, depth) {
        return Err(malformed(format!("The body nests objects and arrays deeper than {depth} levels.")));
    }
    let raw = json::document(body).map_err(|detail| malformed(format!("The body is {detail}.")))?;
    let all = json::elements(raw, limits.batch)
        .ok_or_else(|| malformed("The body must be a JSON array of events, as Event Grid sends it."))?;
    if all.len() > limits.batch {
        return Err(forms::Error::TooMany { limit: limits.batch });
    }
    let of_element = |(index, raw): (usize, &'a RawValue)| {
        Event::read(raw).map_err(|detail| malformed(format!("Event {index}, counted from 0, {detail}.")))
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
    use super::*;

    const EVENTS: &str = r#"[{"id":"e-1","topic":"/t","subject":"s","eventType":"order.created","eventTime":
        "2025-10-09T08:53:18.1647262Z","data":{"n": 1.10},"dataVersion":"1","metadataVersion":"1"},
        {"id":"e-2","eventType":"order.paid","subject":"","data":null,"dataVersion":""},
        {"id":"e-3","eventType":"order.gone"}]"#;

    fn read_with(headers: &[(&'static str, &str)], body: &str) -> Result<Push, forms::Error> {
        let headers =
            headers.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap())).collect();
        read(&headers, &Bytes::copy_from_slice(body.as_bytes()), &Limits::default(), Timestamp::default())
    }

    #[test]
    fn a_batch_gives_its_messages_in_order() {
        let json = ("content-type", "application/json; charset=utf-8");
        let headers = [json, ("aeg-event-type", "Notification"), ("aeg-delivery-count", "2")];
        let Push::Messages { drafts, attempts } = read_with(&headers, EVENTS).unwrap() else { panic!() };
        assert_eq!(attempts, 3);
        let bodies: Vec<_> = drafts.iter().map(|draft| (draft.kind.as_str(), &draft.body[..])).collect();
        let expected =
            [("order.created", &b"{\"n\": 1.10}"[..]), ("order.paid", b"null"), ("order.gone", b"")];
        assert_eq!(bodies, expected);
        let first = &drafts[0].envelope;
        assert_eq!((first.source.as_deref(), first.subject.as_deref()), (Some("/t"), Some("s")));
        assert_eq!(first.headers["ce-time"], "2025-10-09T08:53:18.1647262Z");
        assert_eq!(first.headers["aeg-data-version"], "1");
        assert_eq!(drafts[1].envelope.subject, None);
        assert!(drafts[1].envelope.headers.is_empty());
        let Push::Messages { drafts, attempts } = read_with(&[], "[]").unwrap() else { panic!() };
        assert_eq!((drafts.len(), attempts), (0, 1));
    }

    #[test]
    fn a_validation_stands_alone_and_has_a_code() {
        let event = |kind: &str, data: &str| format!(r#"{{"id":"v","eventType":"{kind}","data":{data}}}"#);
        let asked = event(VALIDATION, r#"{"validationCode":"c-1","validationUrl":"https://x"}"#);
        let header = [("aeg-event-type", "SubscriptionValidation")];
        for headers in [&header[..], &[]] {
            let read = read_with(headers, &format!("[{asked}]")).unwrap();
            assert_eq!(read, Push::Validation { code: "c-1".to_owned() });
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
        assert_eq!(
            read_with(&[("aeg-event-type", "SubscriptionDeletion")], &deletion).unwrap(),
            Push::Deletion
        );
        assert_eq!(read_with(&[], &deletion).unwrap(), Push::Deletion);
    }

    #[test]
    fn cloudevents_come_in_every_mode() {
        let event = r#"{"specversion":"1.0","type":"a","source":"/s","id":"c-1","data":1}"#;
        let count = |headers: &[_], body: &str| match read_with(headers, body) {
            Ok(Push::Messages { drafts, .. }) => Some(drafts.len()),
            _ => None,
        };
        assert_eq!(count(&[("content-type", "application/cloudevents+json; charset=utf-8")], event), Some(1));
        let batch = [("content-type", "application/cloudevents-batch+json")];
        assert_eq!(count(&batch, &format!("[{event},{event}]")), Some(2));
        let binary = [("ce-specversion", "1.0"), ("ce-type", "a"), ("ce-source", "/s"), ("ce-id", "c-1")];
        assert_eq!(count(&binary, "1"), Some(1));
        assert_eq!(count(&[("content-type", "application/cloudevents+avro")], event), None);
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
        let many = format!("[{}1]", "1,".repeat(1000));
        assert_eq!(read_with(&[], &many), Err(forms::Error::TooMany { limit: 1000 }));
        let deep = format!("{}1{}", "[".repeat(70), "]".repeat(70));
        assert!(read_with(&[], &deep).unwrap_err().to_string().contains("levels"));
    }
}
