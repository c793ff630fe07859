use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::domain::delivery::{Delivery, Target};
use crate::domain::fields::time;
use crate::domain::forms::Error;
use crate::domain::message::{BodyAt, Draft, DraftDeduplication, Message};
use crate::domain::{Limits, RowKey, Timestamp};

fn now() -> Timestamp {
    time("2026-01-02T03:04:05Z").unwrap()
}

fn event(text: &str) -> Result<Draft, Error> {
    structured(&Bytes::copy_from_slice(text.as_bytes()), &Limits::default(), now())
}

/// A structured event with these members beside the required ones.
fn with(members: &str) -> Result<Draft, Error> {
    event(&format!(r#"{{"specversion":"1.0","type":"order.created","source":"/shop","id":"s-1",{members}}}"#))
}

fn headers(headers: &[(&str, &str)], content_type: Option<&str>, body: &'static str) -> Result<Draft, Error> {
    let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
    binary(headers, content_type, Bytes::from_static(body.as_bytes()), &Limits::default(), now())
}

const REQUIRED: [(&str, &str); 4] = [
    ("ce-specversion", "1.0"),
    ("ce-type", "com.example.someevent"),
    ("ce-source", "/ctx"),
    ("ce-id", "b-1"),
];

fn with_headers(more: &[(&str, &str)]) -> Result<Draft, Error> {
    headers(&[&REQUIRED, more].concat(), Some("application/json"), "{\"a\":1}")
}

fn pointers<T: std::fmt::Debug>(result: Result<T, Error>) -> Vec<String> {
    match result.unwrap_err() {
        Error::Malformed { places, .. } => places.into_iter().map(|place| place.pointer).collect(),
        other => panic!("{other}"),
    }
}

#[test]
fn the_content_type_says_the_mode() {
    assert_eq!(mode("Application/CloudEvents+JSON; charset=UTF-8"), Some(Mode::Structured));
    assert_eq!(mode("application/cloudevents-batch+json"), Some(Mode::Batch));
    assert_eq!(mode("application/cloudevents+avro"), Some(Mode::Unsupported));
    assert_eq!(mode("application/json"), None);
}

/// HTTP binding, 3.1.3.2.
#[test]
fn binary_values_are_percent_decoded() {
    let draft = with_headers(&[
        ("ce-subject", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
        ("CE-Pct", "100%25"),
        ("ce-lower", "%e2%82%ac"),
        ("host", "gateway.example.com"),
    ])
    .unwrap();
    assert_eq!(draft.id.as_deref(), Some("b-1"));
    assert_eq!(draft.kind, "com.example.someevent");
    assert_eq!(draft.envelope.source.as_deref(), Some("/ctx"));
    assert_eq!(draft.envelope.subject.as_deref(), Some("Euro \u{20ac} \u{1f600}"));
    assert_eq!(draft.envelope.headers["ce-pct"], "100%");
    assert_eq!(draft.envelope.headers["ce-lower"], "\u{20ac}");
    assert_eq!(draft.envelope.headers.len(), 2);
    assert_eq!(draft.envelope.content_type.as_deref(), Some("application/json"));
    assert_eq!(draft.body, "{\"a\":1}");
}

#[test]
fn what_is_wrong_with_a_binary_event_is_told() {
    assert_eq!(
        pointers(with_headers(&[("ce-datacontenttype", "text/plain")])),
        ["header ce-datacontenttype"]
    );
    assert_eq!(pointers(with_headers(&[("ce-x", "%C0%A0")])), ["header ce-x"]);
    assert_eq!(pointers(with_headers(&[("ce-x-y", "1")])), ["header ce-x-y"]);
    assert_eq!(pointers(with_headers(&[("ce-x", "1"), ("ce-x", "2")])), ["header ce-x"]);
    assert_eq!(pointers(with_headers(&[("ce-deliverat", "soon")])), ["header ce-deliverat"]);
    assert_eq!(pointers(with_headers(&[("ce-subject", "a%00b")])), ["header ce-subject"]);
    let none = [("ce-specversion", "0.3")];
    let found = pointers(headers(&none, None, ""));
    assert_eq!(found, ["header ce-specversion", "header ce-id", "header ce-source", "header ce-type"]);
}

/// JSON format, 3.1.2 and 3.2.
#[test]
fn structured_data() {
    for (members, body, content_type) in [
        (
            r#""data_base64":"AP8Q","datacontenttype":"application/vnd.apache.thrift.binary""#,
            b"\x00\xff\x10".as_slice(),
            Some("application/vnd.apache.thrift.binary"),
        ),
        (r#""data_base64":"AP8Q""#, b"\x00\xff\x10", Some("application/octet-stream")),
        (
            r#""data":"{\"looks\":\"like json\"}""#,
            br#""{\"looks\":\"like json\"}""#,
            Some("application/json"),
        ),
        (
            r#""data":"<much wow=\"xml\"/>","datacontenttype":"text/xml""#,
            b"<much wow=\"xml\"/>",
            Some("text/xml"),
        ),
        (r#""data":null"#, b"null", Some("application/json")),
        (r#""data":null,"data_base64":"AQ==""#, b"\x01", Some("application/octet-stream")),
        (r#""data": { "a" : 1.0 },"datacontenttype":null"#, br#"{ "a" : 1.0 }"#, Some("application/json")),
        (r#""subject":"s""#, b"", None),
    ] {
        let draft = with(members).unwrap();
        assert_eq!(draft.body, body, "{members}");
        assert_eq!(draft.envelope.content_type.as_deref(), content_type, "{members}");
    }
    assert_eq!(pointers(with(r#""data":1,"data_base64":"AQ==""#)), ["/data_base64"]);
    assert_eq!(pointers(with(r#""data_base64":"?""#)), ["/data_base64"]);
}

#[test]
fn structured_attributes() {
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let draft = with(&format!(
        r#""time":"2025-10-09T08:53:18.123456789Z","dataschema":"https://a/b","comexampleothervalue":5,"flag":true,
            "absent":null,"deduplicationid":"d","partitionkey":"p","correlationid":"c","causationid":"b","tenantid":"x",
            "deliverat":"2026-02-01T00:00:00Z","deliverby":"2026-03-01T00:00:00Z","attempts":4,
            "traceparent":"{trace}","tracestate":"\u00e9""#
    ))
    .unwrap();
    let own: Vec<_> =
        draft.envelope.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        own,
        [
            ("ce-comexampleothervalue", "5"),
            ("ce-dataschema", "https://a/b"),
            ("ce-flag", "true"),
            ("ce-time", "2025-10-09T08:53:18.123456789Z"),
        ]
    );
    assert_eq!(draft.deduplication, DraftDeduplication::Id("d".into()));
    assert_eq!(draft.partition_key.as_deref(), Some("p"));
    assert_eq!(draft.correlation_id.as_deref(), Some("c"));
    assert_eq!(draft.envelope.causation_id.as_deref(), Some("b"));
    assert_eq!(draft.deliver_at, Some(time("2026-02-01T00:00:00Z").unwrap()));
    assert_eq!(draft.deliver_by, Some(time("2026-03-01T00:00:00Z").unwrap()));
    assert_eq!(draft.envelope.traceparent.as_deref(), Some(trace));
    assert_eq!(draft.envelope.tracestate, None);
    assert_eq!(with(r#""deduplicationid":"""#).unwrap().deduplication, DraftDeduplication::OptOut);
}

#[test]
fn what_is_wrong_with_a_structured_event_is_told() {
    for (members, place) in [
        (r#""traceParent":"x""#, "/traceParent"),
        (r#""example-extension":"123""#, "/example-extension"),
        (r#""time":"yesterday""#, "/time"),
        (r#""subject":"""#, "/subject"),
        (r#""subject":5"#, "/subject"),
        (r#""n":2147483648"#, "/n"),
        (r#""n":1.5"#, "/n"),
        (r#""o":{}"#, "/o"),
        (r#""id":"again""#, "/id"),
        (r#""deliverby":"2020-01-01T00:00:00Z""#, "/deliverby"),
        (r#""datacontenttype":"?""#, "/datacontenttype"),
    ] {
        assert_eq!(pointers(with(members)), [place], "{members}");
    }
    let found = pointers(event(r#"{"specversion":null,"type":"","source":"","id":"x"}"#));
    assert_eq!(found, ["/specversion", "/type", "/source"]);
    assert!(event("[]").is_err());
}

/// JSON format, 4.
#[test]
fn a_batch() {
    let body = Bytes::from_static(
        br#"[{"specversion":"1.0","type":"order.created","source":"/shop","id":"m-1","data":{"a":1}},
            {"specversion":"1.0","type":"other.type","source":"/shop","id":"m-2","data_base64":"AQ=="},
            {"specversion":"1.0","type":"order.created","source":"/shop","id":"m-3","data":null},
            {"specversion":"1.0","type":"order.created","source":"/shop","id":"m-4"}]"#,
    );
    let drafts = batch(&body, &Limits::default(), now()).unwrap();
    let bodies: Vec<&[u8]> = drafts.iter().map(|draft| draft.body.as_ref()).collect();
    assert_eq!(bodies, [br#"{"a":1}"#.as_slice(), b"\x01", b"null", b""]);
    assert_eq!(batch(&Bytes::from_static(b"[]"), &Limits::default(), now()), Ok(vec![]));
    let limits = Limits { batch: 3, ..Limits::default() };
    assert_eq!(batch(&body, &limits, now()), Err(Error::TooMany { limit: 3 }));
}

fn delivery(draft: Draft) -> Delivery {
    let deduplication_id = match draft.deduplication {
        DraftDeduplication::Id(id) => Some(id),
        _ => None,
    };
    let message = Message {
        id: draft.id.unwrap_or_default(),
        kind: draft.kind,
        tenant: "acme".into(),
        body: draft.body,
        deduplication_id,
        partition_key: draft.partition_key,
        correlation_id: draft.correlation_id,
        deliver_at: draft.deliver_at,
        deliver_by: draft.deliver_by,
        accepted_at: now(),
        envelope: draft.envelope,
    };
    let row = RowKey { id: uuid::Uuid::nil(), target_no: 0 };
    Delivery { row, target: Target::destination("d"), message: Arc::new(message), attempts: 0 }
}

#[test]
fn a_delivery_as_an_event() {
    let mut draft = with(r#""comexample":"a b","data":{"n": 1.10}"#).unwrap();
    draft.envelope.headers.insert("x-region".into(), "eu west".into());
    draft.envelope.headers.insert("ce-no-attribute".into(), "x".into());
    draft.envelope.source = None;
    let delivery = delivery(draft);
    assert_eq!(
        to_json(&delivery),
        r#"{"specversion":"1.0","id":"s-1","source":"/oncegate","type":"order.created","time":"2026-01-02T03:04:05Z","tenantid":"acme","attempts":1,"comexample":"a b","datacontenttype":"application/json","data":{"n":1.10}}"#
    );
    let headers = http_headers(&delivery);
    let value = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    for (name, expected) in [
        ("ce-specversion", Some("1.0")),
        ("ce-source", Some("/oncegate")),
        ("ce-comexample", Some("a%20b")),
        ("ce-attempts", Some("1")),
        ("ce-no-attribute", None),
        ("content-type", Some("application/json")),
        ("ce-datacontenttype", None),
        ("x-region", Some("eu%20west")),
        ("ce-x-region", None),
    ] {
        assert_eq!(value(name), expected, "{name}");
    }
    let properties = amqp_properties(&delivery);
    assert!(properties.contains(&("cloudEvents:comexample".into(), "a b".into())));
    assert!(properties.contains(&("x-region".into(), "eu west".into())));
}

prop_compose! {
    fn any_event()(
        id in "[^\\p{Cc}]{1,30}",
        kind in "[a-z.]{1,20}",
        source in "[^\\p{Cc}]{1,30}",
        subject in proptest::option::of("[^\\p{Cc}]{1,30}"),
        extensions in proptest::collection::btree_map("x[a-z0-9]{0,10}", "[^\\p{Cc}]{0,20}", 0..5),
        deduplication in proptest::option::of("[^\\p{Cc}]{1,30}"),
        body in proptest::collection::vec(any::<u8>(), 0..40),
        time in any::<bool>(),
    ) -> Draft {
        let mut draft = Draft { id: Some(id), kind, body: body.into(), ..Draft::default() };
        draft.deduplication = DraftDeduplication::said(deduplication);
        draft.envelope.source = Some(source);
        draft.envelope.subject = subject;
        draft.envelope.content_type = Some("image/png".into());
        draft.envelope.headers = extensions.into_iter().map(|(name, value)| (format!("ce-{name}"), value)).collect();
        let moment = if time { "2025-10-09T08:53:18.123456789Z" } else { "2026-01-02T03:04:05Z" };
        draft.envelope.headers.insert("ce-time".into(), moment.into());
        draft
    }
}

proptest! {
    #[test]
    fn an_event_goes_through_in_both_modes(draft in any_event()) {
        let delivery = delivery(draft.clone());
        let read = structured(&Bytes::from(to_json(&delivery)), &Limits::default(), now()).unwrap();
        let at = if draft.body.is_empty() { BodyAt::Root } else { BodyAt::Encoded("/data_base64") };
        prop_assert_eq!(&read, &Draft { body_at: at, ..draft.clone() });
        let headers = http_headers(&delivery);
        let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let read = binary(pairs, Some("image/png"), draft.body.clone(), &Limits::default(), now()).unwrap();
        prop_assert_eq!(&read, &draft);
    }
}
