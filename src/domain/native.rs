//! The native form: a message as one JSON object.
//!
//! `data` is carried as the bytes it was written with, never re-encoded; its content type is
//! `application/json` unless said. Where `contentType` is not JSON and `data` is a string, the string's text is
//! the body (as in CloudEvents). `dataBase64` gives any bytes; their content type is
//! `application/octet-stream` unless said. A member that is null is absent, except for `data` without
//! `dataBase64`: that is the JSON value null. An empty `deduplicationId` opts the message out of all rules.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::value::RawValue;

use super::fields::{self, FieldError, format_time};
use super::forms::{self, Context, Error, Reader};
use super::message::{BodyAt, Draft, DraftDeduplication, Message};
use super::{Limits, Place, Timestamp, duration, json, media};

pub(super) const JSON: &str = "application/json";
pub(super) const OCTETS: &str = "application/octet-stream";

/// Reads one message.
///
/// # Errors
/// Everything that is wrong with it.
pub fn one(body: &Bytes, limits: &Limits, now: Timestamp) -> Result<Draft, Error> {
    forms::single(body, limits, now, read)
}

/// Reads a JSON array of messages; an empty one is no error.
///
/// # Errors
/// Everything that is wrong with any of them, or that there are too many.
pub fn batch(body: &Bytes, limits: &Limits, now: Timestamp) -> Result<Vec<Draft>, Error> {
    forms::array(body, limits, now, read)
}

/// Reads newline-delimited JSON: a message a line. Empty lines are skipped, and are not counted.
///
/// # Errors
/// Everything that is wrong with any of them, or that there are too many.
pub fn ndjson(body: &Bytes, limits: &Limits, now: Timestamp) -> Result<Vec<Draft>, Error> {
    let lines: Vec<&[u8]> =
        body.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).collect();
    let read_line = |line: &[u8]| {
        if json::is_deeper_than(line, limits.json_depth) {
            return Err(format!("nests objects and arrays deeper than {} levels", limits.json_depth));
        }
        Ok(())
    };
    let elements = lines.into_iter().map(|line| {
        read_line(line)?;
        json::document(line).map_err(|detail| format!("is {detail}"))
    });
    forms::all(elements, limits, now, read)
}

fn read(raw: &RawValue, prefix: &str, context: Context<'_>) -> Result<Draft, Vec<Place>> {
    let Some(members) = json::members(raw) else {
        return Err(vec![Place::new(prefix, "must be a JSON object")]);
    };
    let mut reader = Reader::new(prefix);
    let mut draft = Draft::default();
    let (mut data, mut base64) = (None, None);
    for (index, (name, value)) in members.iter().enumerate() {
        if reader.is_full() {
            break; // so that the comparisons with what was before stay few
        }
        let value: &RawValue = value;
        let path = format!("/{}", json::escape(name));
        if members[..index].iter().any(|(earlier, _)| earlier == name) {
            reader.wrong(&path, "is there more than once");
            continue;
        }
        let mut text = || reader.text(&path, value).map(String::from);
        match name.as_ref() {
            "id" => draft.id = text(),
            "type" => draft.kind = text().unwrap_or_default(),
            "source" => draft.envelope.source = text(),
            "subject" => draft.envelope.subject = text(),
            "contentType" => draft.envelope.content_type = text(),
            "partitionKey" => draft.partition_key = text(),
            "correlationId" => draft.correlation_id = text(),
            "causationId" => draft.envelope.causation_id = text(),
            "deduplicationId" => draft.deduplication = DraftDeduplication::said(text()),
            "deliverAt" => draft.deliver_at = reader.parsed(&path, value, fields::time),
            "delay" => draft.delay = reader.parsed(&path, value, duration::parse),
            "deliverBy" => draft.deliver_by = reader.parsed(&path, value, fields::time),
            "headers" => own_headers(&mut reader, value, &mut draft),
            "destinations" => draft.destinations = destinations(&mut reader, value),
            "data" => data = Some(value),
            "dataBase64" => base64 = reader.parsed(&path, value, forms::base64),
            _ => reader.wrong(&path, "is not a member of a message"),
        }
    }
    match (data, base64) {
        (Some(data), Some(_)) if json::kind(data) != json::Kind::Null => {
            reader.wrong("/dataBase64", "and data cannot both be there");
        }
        (_, Some(bytes)) => {
            draft.envelope.content_type.get_or_insert_with(|| OCTETS.to_owned());
            draft.body = bytes;
            draft.body_at = BodyAt::Encoded("/dataBase64");
        }
        (Some(data), None) => {
            let content_type = draft.envelope.content_type.get_or_insert_with(|| JSON.to_owned());
            draft.body = forms::data(&mut reader, data, content_type, context.carry).unwrap_or_default();
            draft.body_at = BodyAt::Member("/data");
        }
        (None, None) => {}
    }
    reader.finish(draft, context, FieldError::in_native)
}

impl DraftDeduplication {
    /// What a form says: nothing, an empty text, or an id.
    pub fn said(id: Option<String>) -> Self {
        match id {
            None => Self::Derive,
            Some(id) if id.is_empty() => Self::OptOut,
            Some(id) => Self::Id(id),
        }
    }
}

fn own_headers(reader: &mut Reader<'_>, raw: &RawValue, draft: &mut Draft) {
    if json::kind(raw) == json::Kind::Null {
        return;
    }
    let Some(members) = json::members(raw) else {
        return reader.wrong("/headers", "must be an object of strings");
    };
    for (name, value) in members {
        let path = format!("/headers/{}", json::escape(&name));
        if let Some(text) = reader.text(&path, value)
            && draft.envelope.headers.insert(name.to_ascii_lowercase(), text.into_owned()).is_some()
        {
            reader.wrong(&path, "is there more than once (upper and lower case are the same)");
        }
    }
}

fn destinations(reader: &mut Reader<'_>, raw: &RawValue) -> Option<Vec<String>> {
    if json::kind(raw) == json::Kind::Null {
        return None;
    }
    let names = json::elements(raw, usize::MAX).and_then(|elements| {
        elements.into_iter().map(|element| json::string(element).map(String::from)).collect()
    });
    if names.is_none() {
        reader.wrong("/destinations", "must be an array of strings");
    }
    names
}

/// Writes a message in the native form, on one line without a newline at its end.
pub fn to_json(message: &Message) -> String {
    let mut object = json::ObjectWriter::new();
    write_members(&mut object, message);
    object.finish()
}

/// Writes a message's members into an object that may have others beside them.
///
/// Its body is `data` where its content type is JSON (or it has none) and it can be read as JSON, else
/// `dataBase64`; white space between the JSON's tokens is left out.
pub fn write_members(object: &mut json::ObjectWriter, message: &Message) {
    let envelope = &message.envelope;
    object.text("id", &message.id).text("type", &message.kind);
    object.text_if("source", envelope.source.as_deref()).text_if("subject", envelope.subject.as_deref());
    write_body(object, message);
    object.text_if("contentType", envelope.content_type.as_deref());
    if !envelope.headers.is_empty() {
        let mut headers = json::ObjectWriter::new();
        for (name, value) in &envelope.headers {
            headers.text(name, value);
        }
        object.raw("headers", &headers.finish());
    }
    object
        .text_if("deduplicationId", message.deduplication_id.as_deref())
        .text_if("partitionKey", message.partition_key.as_deref())
        .text_if("correlationId", message.correlation_id.as_deref())
        .text_if("causationId", envelope.causation_id.as_deref())
        .text_if("deliverAt", message.deliver_at.map(format_time).as_deref())
        .text_if("deliverBy", message.deliver_by.map(format_time).as_deref());
}

fn write_body(object: &mut json::ObjectWriter, message: &Message) {
    if message.body.is_empty() && message.envelope.content_type.is_none() {
        return;
    }
    match json_body(message) {
        Some(json) => object.raw("data", &json),
        None => object.text("dataBase64", &STANDARD.encode(&message.body)),
    };
}

/// The body as JSON without white space between its tokens; `None` where it is none, or is not to be read as
/// such.
pub fn json_body(message: &Message) -> Option<String> {
    if !message.envelope.content_type.as_deref().is_none_or(media::is_json) {
        return None;
    }
    json::document(&message.body).ok().map(|raw| json::compact(raw.get()))
}

#[cfg(test)]
mod tests;
