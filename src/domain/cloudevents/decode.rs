//! Events into drafts.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::is_attribute_name;
use crate::domain::fields::{self, FieldError};
use crate::domain::forms::{self, Context, Error, Reader};
use crate::domain::message::{BodyAt, Draft, DraftDeduplication};
use crate::domain::native::{JSON, OCTETS};
use crate::domain::{Limits, Place, Timestamp, json, wire};

/// Reads an event in the structured mode.
///
/// # Errors
/// Everything that is wrong with it.
pub fn structured(body: &Bytes, limits: &Limits, now: Timestamp) -> Result<Draft, Error> {
    forms::single(body, limits, now, read)
}

/// Reads events in the batched mode; none at all is no error.
///
/// # Errors
/// Everything that is wrong with any of them, or that there are too many.
pub fn batch(body: &Bytes, limits: &Limits, now: Timestamp) -> Result<Vec<Draft>, Error> {
    forms::array(body, limits, now, read)
}

/// Reads an event in the binary mode: `headers` are all of the request's (those that do not begin with `ce-`
/// are passed over), `content_type` is its `Content-Type`.
///
/// # Errors
/// Everything that is wrong with it.
pub fn binary<'a>(
    headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    content_type: Option<&str>,
    body: Bytes,
    limits: &Limits,
    now: Timestamp,
) -> Result<Draft, Error> {
    let mut event = Event::default();
    let mut places = Vec::new();
    for (name, value) in headers {
        let name = name.to_ascii_lowercase();
        let Some(attribute) = name.strip_prefix("ce-") else { continue };
        let verdict = match attribute {
            "datacontenttype" => Err("must not be there: the request's Content-Type says it".to_owned()),
            "data" => Err("is not an attribute of an event".to_owned()),
            _ => wire::decode(value).and_then(|text| event.set(attribute, text)),
        };
        if let Err(detail) = verdict {
            places.push(Place::new(format!("header {name}"), detail));
        }
    }
    let mut draft = event.finish(|attribute| {
        places.push(Place::new(format!("header ce-{attribute}"), "is needed"));
    });
    draft.envelope.content_type = content_type.map(str::to_owned);
    draft.body = body;
    if let Err(errors) = draft.check(limits, now) {
        for found in errors.into_iter().map(FieldError::in_cloudevent_headers) {
            if !places.iter().any(|known: &Place| known.pointer == found.pointer) {
                places.push(found);
            }
        }
    }
    if places.is_empty() { Ok(draft) } else { Err(Error::at(places, forms::Form::Single)) }
}

/// Reads one event of the JSON format.
fn read(raw: &RawValue, prefix: &str, context: Context<'_>) -> Result<Draft, Vec<Place>> {
    let Some(members) = json::members(raw) else {
        return Err(vec![Place::new(prefix, "must be a JSON object")]);
    };
    let mut reader = Reader::new(prefix);
    let mut event = Event::default();
    let (mut data, mut base64, mut content_type) = (None, None, None);
    for (name, value) in members {
        if reader.is_full() {
            break;
        }
        let path = format!("/{}", json::escape(&name));
        match name.as_ref() {
            "data" if data.is_some() => reader.wrong(&path, "is there more than once"),
            "data" => data = Some(value),
            "data_base64" => base64 = reader.parsed(&path, value, forms::base64),
            "datacontenttype" => content_type = reader.text(&path, value).map(String::from),
            name => {
                if let Some(text) = scalar(&mut reader, &path, name, value)
                    && let Err(detail) = event.set(name, text)
                {
                    reader.wrong(&path, detail);
                }
            }
        }
    }
    let mut draft = event.finish(|attribute| reader.wrong(&format!("/{attribute}"), "is needed"));
    match (data, base64) {
        (Some(data), Some(_)) if json::kind(data) != json::Kind::Null => {
            reader.wrong("/data_base64", "and data cannot both be there");
        }
        (_, Some(bytes)) => {
            content_type.get_or_insert_with(|| OCTETS.to_owned());
            draft.body = bytes;
            draft.body_at = BodyAt::Encoded("/data_base64");
        }
        (Some(data), None) => {
            let content_type = content_type.get_or_insert_with(|| JSON.to_owned());
            draft.body = forms::data(&mut reader, data, content_type, context.carry).unwrap_or_default();
            draft.body_at = BodyAt::Member("/data");
        }
        (None, None) => {}
    }
    draft.envelope.content_type = content_type;
    reader.finish(draft, context, FieldError::in_cloudevent)
}

/// The text of an attribute (JSON format, 2.2): the attributes that the specification names are strings;
/// others may be booleans and integers of 32 bits as well. Null is absent.
fn scalar(reader: &mut Reader<'_>, path: &str, name: &str, raw: &RawValue) -> Option<String> {
    match json::kind(raw) {
        json::Kind::Null | json::Kind::String => reader.text(path, raw).map(String::from),
        json::Kind::Boolean if !is_core(name) => Some(raw.get().to_owned()),
        json::Kind::Number if !is_core(name) && raw.get().parse::<i32>().is_ok() => {
            Some(raw.get().to_owned())
        }
        json::Kind::Number if !is_core(name) => {
            reader.wrong(path, "must be an integer of 32 bits, or a string");
            None
        }
        _ if is_core(name) => {
            reader.wrong(path, "must be a string");
            None
        }
        _ => {
            reader.wrong(path, "must be a string, an integer or a boolean");
            None
        }
    }
}

fn is_core(name: &str) -> bool {
    matches!(name, "id" | "source" | "specversion" | "type" | "subject" | "time" | "dataschema")
}

/// An event's attributes as they come.
#[derive(Default)]
struct Event {
    draft: Draft,
    /// The names that were there, so that none counts twice.
    seen: std::collections::HashSet<String>,
}

impl Event {
    fn set(&mut self, name: &str, text: String) -> Result<(), String> {
        if !is_attribute_name(name) {
            return Err("is not the name of an attribute: lower-case letters and digits only".to_owned());
        }
        if !self.seen.insert(name.to_owned()) {
            return Err("is there more than once".to_owned());
        }
        let draft = &mut self.draft;
        let envelope = &mut draft.envelope;
        match name {
            "specversion" if text != "1.0" => return Err("must be 1.0".to_owned()),
            "specversion" => {}
            "id" => draft.id = Some(text),
            "type" => draft.kind = text,
            "source" => envelope.source = Some(text),
            "subject" => envelope.subject = Some(text),
            "deduplicationid" => draft.deduplication = DraftDeduplication::said(Some(text)),
            "partitionkey" => draft.partition_key = Some(text),
            "correlationid" => draft.correlation_id = Some(text),
            "causationid" => envelope.causation_id = Some(text),
            "deliverat" => draft.deliver_at = Some(fields::time(&text)?),
            "deliverby" => draft.deliver_by = Some(fields::time(&text)?),
            "traceparent" => envelope.traceparent = wire::traceparent(&text).map(str::to_owned),
            "tracestate" => envelope.tracestate = wire::tracestate(&text).map(str::to_owned),
            "tenantid" | "attempts" => {}
            "time" => {
                chrono::DateTime::parse_from_rfc3339(&text)
                    .map_err(|_| "must be an RFC 3339 time, such as 2026-01-31T03:00:00Z".to_owned())?;
                envelope.headers.insert("ce-time".to_owned(), text);
            }
            "dataschema" if text.is_empty() => {
                return Err("must not be empty; leave it out instead".to_owned());
            }
            other => {
                envelope.headers.insert(format!("ce-{other}"), text);
            }
        }
        Ok(())
    }

    /// The draft; `missing` is told the required attributes that were not there.
    fn finish(self, mut missing: impl FnMut(&str)) -> Draft {
        for name in ["specversion", "id", "source", "type"] {
            if !self.seen.contains(name) {
                missing(name);
            }
        }
        self.draft
    }
}
