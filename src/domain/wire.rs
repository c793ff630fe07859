//! The names that a message's members have on the wire, the same on every transport, and how their values
//! are written where a transport takes visible ASCII only.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::delivery::Delivery;
use super::fields::format_time;

pub const ID: &str = "id";
pub const MESSAGE_TYPE: &str = "message-type";
pub const DEDUPLICATION_ID: &str = "deduplication-id";
pub const CORRELATION_ID: &str = "correlation-id";
pub const CAUSATION_ID: &str = "causation-id";
pub const TENANT_ID: &str = "tenant-id";
pub const PARTITION_KEY: &str = "partition-key";
pub const SOURCE: &str = "source";
pub const SUBJECT: &str = "subject";
pub const SENT_AT: &str = "sent-at";
pub const DELIVER_BY: &str = "deliver-by";
pub const ATTEMPTS: &str = "attempts";
pub const TRACEPARENT: &str = "traceparent";
pub const TRACESTATE: &str = "tracestate";
pub const CONTENT_TYPE: &str = "content-type";

/// The names that a message's own headers may not have: what the gateway sets itself, what belongs to the
/// connection (RFC 9110, 7.6.1), and the signature's (Standard Webhooks).
const RESERVED: [&str; 31] = [
    ID,
    MESSAGE_TYPE,
    DEDUPLICATION_ID,
    CORRELATION_ID,
    CAUSATION_ID,
    TENANT_ID,
    PARTITION_KEY,
    SOURCE,
    SUBJECT,
    SENT_AT,
    DELIVER_BY,
    ATTEMPTS,
    TRACEPARENT,
    TRACESTATE,
    CONTENT_TYPE,
    "idempotency-key",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "http2-settings",
];

/// CloudEvents attributes that are members of the message (so that they may not be headers of its own too).
/// `time` and `dataschema` are not among them: they travel as the headers `ce-time` and `ce-dataschema`.
pub(super) const CLOUDEVENTS_MEMBERS: [&str; 17] = [
    "id",
    "source",
    "specversion",
    "type",
    "subject",
    "data",
    "datacontenttype",
    "deduplicationid",
    "partitionkey",
    "correlationid",
    "causationid",
    "deliverat",
    "deliverby",
    "traceparent",
    "tracestate",
    "tenantid",
    "attempts",
];

/// Whether a message's own header may not have this name (in lower case).
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
        || name.strip_prefix("ce-").is_some_and(|attribute| CLOUDEVENTS_MEMBERS.contains(&attribute))
}

/// Whether `name` is a token (RFC 9110, 5.6.2), as a header's name must be.
pub fn is_token(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Names, in lower case, and values.
pub type Headers<'a> = Vec<(&'a str, Cow<'a, str>)>;

/// The headers of a delivery: its message's members, then the message's own headers. Values are plain text;
/// a transport that takes visible ASCII only uses [`http_headers`].
///
/// Own headers whose names are no tokens or are reserved stay in the message and are left off. `traceparent`
/// names the gateway's span already: it is put there when the message is accepted.
pub fn headers(delivery: &Delivery) -> Headers<'_> {
    let message = &*delivery.message;
    let envelope = &message.envelope;
    let mut headers: Headers<'_> = vec![
        (ID, Cow::Borrowed(message.id.as_str())),
        (MESSAGE_TYPE, Cow::Borrowed(message.kind.as_str())),
        (SENT_AT, Cow::Owned(format_time(message.accepted_at))),
        (ATTEMPTS, Cow::Owned((u64::from(delivery.attempts) + 1).to_string())),
    ];
    let tenant = Some(&message.tenant).filter(|tenant| !tenant.is_empty());
    for (name, value) in [
        (DEDUPLICATION_ID, message.deduplication_id.as_ref()),
        (CORRELATION_ID, message.correlation_id.as_ref()),
        (CAUSATION_ID, envelope.causation_id.as_ref()),
        (TENANT_ID, tenant),
        (PARTITION_KEY, message.partition_key.as_ref()),
        (SOURCE, envelope.source.as_ref()),
        (SUBJECT, envelope.subject.as_ref()),
        (TRACEPARENT, envelope.traceparent.as_ref()),
        (TRACESTATE, envelope.tracestate.as_ref()),
        (CONTENT_TYPE, envelope.content_type.as_ref()),
    ] {
        if let Some(value) = value {
            headers.push((name, Cow::Borrowed(value.as_str())));
        }
    }
    if let Some(by) = message.deliver_by {
        headers.push((DELIVER_BY, Cow::Owned(format_time(by))));
    }
    headers.extend(own_headers(delivery));
    headers
}

/// The message's own headers, as far as they may be sent.
pub(super) fn own_headers(delivery: &Delivery) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
    delivery
        .message
        .envelope
        .headers
        .iter()
        .filter(|(name, _)| is_token(name) && !is_reserved(name))
        .map(|(name, value)| (name.as_str(), Cow::Borrowed(value.as_str())))
}

/// [`headers`], with every value in visible ASCII. The content type and the trace context have a syntax of
/// their own, which is ASCII already, and are not encoded.
pub fn http_headers(delivery: &Delivery) -> Headers<'_> {
    headers(delivery).into_iter().map(|(name, value)| (name, encode_for(name, value))).collect()
}

pub(super) fn encode_for<'a>(name: &str, value: Cow<'a, str>) -> Cow<'a, str> {
    match name {
        CONTENT_TYPE | TRACEPARENT | TRACESTATE => value,
        _ => Cow::Owned(encode(&value)),
    }
}

/// What the CloudEvents HTTP binding (3.1.3.2) encodes: everything outside U+0021 to U+007E, `"` and `%`.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// Percent-encodes a value into visible ASCII.
pub fn encode(value: &str) -> String {
    utf8_percent_encode(value, ENCODED).to_string()
}

/// The text of a header's value, as the CloudEvents HTTP binding reads it: unquoted, then percent-decoded
/// once. A `%` that encodes nothing, and a space, stand for themselves, because senders in the field encode
/// nothing.
///
/// # Errors
/// The value is not UTF-8, before or after decoding.
pub fn decode(value: &[u8]) -> Result<String, String> {
    let invalid = || "is not valid UTF-8 once it is percent-decoded".to_owned();
    let text = std::str::from_utf8(value).map_err(|_| invalid())?;
    let text = unquote(text.trim_matches([' ', '\t']));
    percent_decode_str(&text).decode_utf8().map(Cow::into_owned).map_err(|_| invalid())
}

/// The inside of a quoted-string (RFC 9110, 5.6.4); anything else as it stands.
fn unquote(text: &str) -> Cow<'_, str> {
    let Some(inside) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return Cow::Borrowed(text);
    };
    if !inside.contains('\\') {
        return Cow::Borrowed(inside);
    }
    let mut out = String::with_capacity(inside.len());
    let mut characters = inside.chars();
    while let Some(character) = characters.next() {
        out.push(if character == '\\' { characters.next().unwrap_or('\\') } else { character });
    }
    Cow::Owned(out)
}

/// `value` if it is a well-formed `traceparent` (W3C Trace Context). One that is not is to be dropped: a bad
/// trace never fails a message.
pub fn traceparent(value: &str) -> Option<&str> {
    let hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let set = |text: &str| text.bytes().any(|b| b != b'0');
    let mut parts = value.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let good =
        hex(version, 2) && version != "ff" && hex(trace, 32) && set(trace) && hex(parent, 16) && set(parent);
    let ends = parts.next().is_none() || version != "00";
    (good && hex(flags, 2) && ends && value.len() <= 512 && value.is_ascii()).then_some(value)
}

/// `value` if it can be passed on as a `tracestate`: visible ASCII, spaces and tabs, of 512 characters at most
/// (what W3C Trace Context asks to be carried).
pub fn tracestate(value: &str) -> Option<&str> {
    let good = !value.trim().is_empty()
        && value.len() <= 512
        && value.bytes().all(|b| matches!(b, b'\t' | b' '..=b'~'));
    good.then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fields::time;
    use crate::domain::message::{Envelope, Message};
    use crate::domain::{RowKey, delivery::Target};
    use bytes::Bytes;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn delivery() -> Delivery {
        let mut headers = std::collections::BTreeMap::new();
        for name in ["x-note", "tenant-id", "no token", "ce-time"] {
            headers.insert(name.to_owned(), "a \u{20ac}".to_owned());
        }
        let message = Message {
            id: "m-1".into(),
            kind: "order.created".into(),
            tenant: "acme".into(),
            body: Bytes::from_static(b"{}"),
            deduplication_id: Some("d 1".into()),
            partition_key: None,
            correlation_id: Some("c".into()),
            deliver_at: None,
            deliver_by: Some(time("2026-01-03T00:00:00Z").unwrap()),
            accepted_at: time("2026-01-02T03:04:05.5Z").unwrap(),
            envelope: Envelope {
                content_type: Some("text/plain; charset=\"utf-8\"".into()),
                tracestate: Some("a=1, b=2".into()),
                headers,
                ..Envelope::default()
            },
        };
        let row = RowKey { id: uuid::Uuid::nil(), target_no: 0 };
        Delivery { row, target: Target::destination("d"), message: Arc::new(message), attempts: 2 }
    }

    fn value<'a>(headers: &'a Headers<'_>, name: &str) -> Option<&'a str> {
        headers.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_ref())
    }

    #[test]
    fn every_member_that_is_there_has_its_name() {
        let delivery = delivery();
        let headers = headers(&delivery);
        for (name, expected) in [
            (ID, Some("m-1")),
            (MESSAGE_TYPE, Some("order.created")),
            (SENT_AT, Some("2026-01-02T03:04:05.500Z")),
            (ATTEMPTS, Some("3")),
            (DEDUPLICATION_ID, Some("d 1")),
            (CORRELATION_ID, Some("c")),
            (CAUSATION_ID, None),
            (TENANT_ID, Some("acme")),
            (DELIVER_BY, Some("2026-01-03T00:00:00Z")),
            ("x-note", Some("a \u{20ac}")),
        ] {
            assert_eq!(value(&headers, name), expected, "{name}");
        }
        assert_eq!(headers.iter().filter(|(name, _)| *name == TENANT_ID).count(), 1);
        assert_eq!(value(&headers, "no token"), None);
    }

    #[test]
    fn on_http_values_are_visible_ascii() {
        let delivery = delivery();
        let headers = http_headers(&delivery);
        assert_eq!(value(&headers, "x-note"), Some("a%20%E2%82%AC"));
        assert_eq!(value(&headers, DEDUPLICATION_ID), Some("d%201"));
        assert_eq!(value(&headers, CONTENT_TYPE), Some("text/plain; charset=\"utf-8\""));
        assert_eq!(value(&headers, TRACESTATE), Some("a=1, b=2"));
    }

    #[test]
    fn the_vectors_of_the_cloudevents_http_binding() {
        assert_eq!(encode("Euro \u{20ac} \u{1f600}"), "Euro%20%E2%82%AC%20%F0%9F%98%80");
        assert_eq!(decode(b"Euro%20%E2%82%AC%20%F0%9F%98%80").unwrap(), "Euro \u{20ac} \u{1f600}");
        assert_eq!(decode(b"100%25").unwrap(), "100%");
        assert_eq!(decode(b"%e2%82%ac").unwrap(), "\u{20ac}");
        assert_eq!(decode(b"\"a \\\"b\\\" %41\"").unwrap(), "a \"b\" A");
        assert_eq!(decode(b"raw space, 5% off, %2541").unwrap(), "raw space, 5% off, %41");
        assert!(decode(b"%C0%A0").is_err());
        assert!(decode(b"\xff").is_err());
    }

    #[test]
    fn a_trace_parent_is_well_formed_or_nothing() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(traceparent(good), Some(good));
        assert!(traceparent("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more").is_some());
        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        ] {
            assert_eq!(traceparent(bad), None, "{bad}");
        }
        assert_eq!(tracestate("a=1, b=2"), Some("a=1, b=2"));
        assert_eq!(tracestate("a=\u{e9}"), None);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_visible_and_decodes_to_itself(text in ".*") {
            let encoded = encode(&text);
            prop_assert!(encoded.bytes().all(|b| (0x21..=0x7e).contains(&b)));
            prop_assert_eq!(decode(encoded.as_bytes()).unwrap(), text);
        }

        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode(&bytes);
        }
    }
}
