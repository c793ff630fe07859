//! Deliveries into events.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::is_attribute_name;
use crate::domain::delivery::Delivery;
use crate::domain::fields::format_time;
use crate::domain::{json, media, wire};

/// The `source` of messages that have none.
pub const DEFAULT_SOURCE: &str = "/oncegate";

/// The event's attributes in order, without `datacontenttype`.
fn attributes(delivery: &Delivery) -> Vec<(&str, Cow<'_, str>)> {
    let message = &*delivery.message;
    let envelope = &message.envelope;
    let mut attributes: Vec<(&str, Cow<'_, str>)> = vec![
        ("specversion", Cow::Borrowed("1.0")),
        ("id", Cow::Borrowed(message.id.as_str())),
        ("source", Cow::Borrowed(envelope.source.as_deref().unwrap_or(DEFAULT_SOURCE))),
        ("type", Cow::Borrowed(message.kind.as_str())),
    ];
    if !envelope.headers.contains_key("ce-time") {
        attributes.push(("time", Cow::Owned(format_time(message.accepted_at))));
    }
    let tenant = Some(&message.tenant).filter(|tenant| !tenant.is_empty());
    for (name, value) in [
        ("subject", envelope.subject.as_ref()),
        ("deduplicationid", message.deduplication_id.as_ref()),
        ("partitionkey", message.partition_key.as_ref()),
        ("correlationid", message.correlation_id.as_ref()),
        ("causationid", envelope.causation_id.as_ref()),
        ("tenantid", tenant),
        ("traceparent", envelope.traceparent.as_ref()),
        ("tracestate", envelope.tracestate.as_ref()),
    ] {
        if let Some(value) = value {
            attributes.push((name, Cow::Borrowed(value.as_str())));
        }
    }
    if let Some(by) = message.deliver_by {
        attributes.push(("deliverby", Cow::Owned(format_time(by))));
    }
    attributes.push(("attempts", Cow::Owned((u64::from(delivery.attempts) + 1).to_string())));
    attributes.extend(wire::own_headers(delivery).filter_map(|(name, value)| {
        let attribute = name.strip_prefix("ce-")?;
        is_attribute_name(attribute).then_some((attribute, value))
    }));
    attributes
}

/// The message's own headers that are no attributes.
fn plain_headers(delivery: &Delivery) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
    wire::own_headers(delivery).filter(|(name, _)| !name.starts_with("ce-"))
}

/// The headers of an event in the binary mode of the HTTP binding, `content-type` and the trace context's own
/// two headers among them. The body is the message's.
pub fn http_headers(delivery: &Delivery) -> Vec<(String, String)> {
    let envelope = &delivery.message.envelope;
    let mut headers: Vec<(String, String)> = attributes(delivery)
        .into_iter()
        .map(|(name, value)| (format!("ce-{name}"), wire::encode(&value)))
        .collect();
    for (name, value) in [
        (wire::CONTENT_TYPE, &envelope.content_type),
        (wire::TRACEPARENT, &envelope.traceparent),
        (wire::TRACESTATE, &envelope.tracestate),
    ] {
        if let Some(value) = value {
            headers.push((name.to_owned(), value.clone()));
        }
    }
    headers.extend(plain_headers(delivery).map(|(name, value)| (name.to_owned(), wire::encode(&value))));
    headers
}

/// The application properties (headers, in AMQP 0.9.1) of an event in the binary mode of the AMQP binding. The
/// content type is the property of that name, and the body the message's.
pub fn amqp_properties(delivery: &Delivery) -> Vec<(String, String)> {
    let properties = attributes(delivery)
        .into_iter()
        .map(|(name, value)| (format!("cloudEvents:{name}"), value.into_owned()));
    properties
        .chain(plain_headers(delivery).map(|(name, value)| (name.to_owned(), value.into_owned())))
        .collect()
}

/// The event in the JSON format (the structured mode), on one line.
pub fn to_json(delivery: &Delivery) -> String {
    let message = &*delivery.message;
    let content_type = message.envelope.content_type.as_deref();
    let mut object = json::ObjectWriter::new();
    for (name, value) in attributes(delivery) {
        match name {
            "attempts" => object.raw(name, &value),
            _ => object.text(name, &value),
        };
    }
    object.text_if("datacontenttype", content_type);
    if message.body.is_empty() {
        return object.finish();
    }
    match content_type.is_none_or(media::is_json).then(|| json::document(&message.body)) {
        Some(Ok(raw)) => object.raw("data", &json::compact(raw.get())),
        _ => object.text("data_base64", &STANDARD.encode(&message.body)),
    };
    object.finish()
}
