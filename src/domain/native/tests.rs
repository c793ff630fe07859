use super::*;
use crate::domain::fields::time;
use crate::domain::message::Envelope;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn now() -> Timestamp {
    time("2026-01-02T03:04:05Z").unwrap()
}

fn parse(text: &str) -> Result<Draft, Error> {
    one(&Bytes::copy_from_slice(text.as_bytes()), &Limits::default(), now())
}

/// The places of what is wrong.
fn pointers<T: std::fmt::Debug>(result: Result<T, Error>) -> Vec<String> {
    match result.unwrap_err() {
        Error::Malformed { places, .. } => places.into_iter().map(|place| place.pointer).collect(),
        other => panic!("{other}"),
    }
}

#[test]
fn every_member_is_read() {
    let draft = parse(
        r#"{"id":"m-1","type":"order.created","source":"/shop","subject":"o/1","data":{ "n" : 1.10 },
            "contentType":"application/vnd.order+json","headers":{"X-Region":"eu"},"deduplicationId":"d",
            "partitionKey":"p","correlationId":"c","causationId":"b","deliverAt":"2026-01-02T04:04:05+00:00",
            "deliverBy":"2026-01-03T00:00:00Z","destinations":["a","b"]}"#,
    )
    .unwrap();
    assert_eq!(draft.id.as_deref(), Some("m-1"));
    assert_eq!(draft.kind, "order.created");
    assert_eq!(draft.body, r#"{ "n" : 1.10 }"#);
    assert_eq!(draft.deduplication, DraftDeduplication::Id("d".into()));
    assert_eq!(draft.deliver_at, Some(time("2026-01-02T04:04:05Z").unwrap()));
    assert_eq!(draft.destinations, Some(vec!["a".into(), "b".into()]));
    assert_eq!(draft.envelope.headers["x-region"], "eu");
    assert_eq!(draft.envelope.content_type.as_deref(), Some("application/vnd.order+json"));
    assert_eq!(draft.envelope.causation_id.as_deref(), Some("b"));
}

#[test]
fn durations_have_two_ways_of_writing() {
    for text in ["30s", "PT30S"] {
        let draft = parse(&format!(r#"{{"type":"t","delay":"{text}"}}"#)).unwrap();
        assert_eq!(draft.delay, Some(Duration::from_secs(30)));
    }
}

#[test]
fn a_body_and_its_content_type() {
    for (members, body, content_type) in [
        (r#""data":null"#, b"null".as_slice(), Some(JSON)),
        (r#""data":"x\u0041""#, br#""x\u0041""#, Some(JSON)),
        (r#""data":"x\u0041","contentType":"text/plain""#, b"xA", Some("text/plain")),
        (r#""data":{"a":1},"contentType":"text/plain""#, br#"{"a":1}"#, Some("text/plain")),
        (r#""dataBase64":"AP8Q""#, b"\x00\xff\x10", Some(OCTETS)),
        (r#""dataBase64":"AP8","contentType":"image/png""#, b"\x00\xff", Some("image/png")),
        (r#""data":null,"dataBase64":"AQ==""#, b"\x01", Some(OCTETS)),
        (r#""data":1,"dataBase64":null"#, b"1", Some(JSON)),
        (r#""subject":null"#, b"", None),
        (r#""contentType":"text/plain""#, b"", Some("text/plain")),
    ] {
        let draft = parse(&format!(r#"{{"type":"t",{members}}}"#)).unwrap();
        assert_eq!(draft.body, body, "{members}");
        assert_eq!(draft.envelope.content_type.as_deref(), content_type, "{members}");
    }
}

#[test]
fn numbers_keep_every_digit() {
    let text = "[12345678901234567890123456789, 1.10, 1e400, -0]";
    let draft = parse(&format!(r#"{{"type":"t","data":{text}}}"#)).unwrap();
    assert_eq!(draft.body, text);
}

#[test]
fn an_empty_deduplication_id_opts_out_and_null_says_nothing() {
    assert_eq!(
        parse(r#"{"type":"t","deduplicationId":""}"#).unwrap().deduplication,
        DraftDeduplication::OptOut
    );
    assert_eq!(
        parse(r#"{"type":"t","deduplicationId":null}"#).unwrap().deduplication,
        DraftDeduplication::Derive
    );
}

#[test]
fn all_that_is_wrong_is_told_with_its_place() {
    let found = pointers(parse(
        r#"{"colour":"red","id":5,"deliverAt":"soon","delay":30,"deliverBy":"2020-01-01T00:00:00Z",
            "data":1,"dataBase64":"AQ==","headers":{"tenant-id":"x","a b":"y","n":1},"destinations":["a",2],
            "a/b":1,"deduplicationId":7}"#,
    ));
    for expected in [
        "/colour",
        "/id",
        "/type",
        "/deliverAt",
        "/delay",
        "/deliverBy",
        "/dataBase64",
        "/headers/tenant-id",
        "/headers/a b",
        "/headers/n",
        "/destinations",
        "/a~1b",
        "/deduplicationId",
    ] {
        assert!(found.iter().any(|pointer| pointer == expected), "{expected} in {found:?}");
    }
    assert_eq!(found.len(), 13, "{found:?}");
}

#[test]
fn what_stands_twice_is_refused() {
    assert_eq!(pointers(parse(r#"{"type":"t","type":"u"}"#)), ["/type"]);
    assert_eq!(pointers(parse(r#"{"type":"t","headers":{"A":"1","a":"2"}}"#)), ["/headers/a"]);
    assert_eq!(
        pointers(parse(r#"{"type":"t","delay":"1s","deliverAt":"2026-02-01T00:00:00Z"}"#)),
        ["/delay"]
    );
}

#[test]
fn an_object_of_very_many_members_is_refused_quickly() {
    let members: Vec<String> = (0..200_000).map(|n| format!("\"{n}\":0")).collect();
    let started = std::time::Instant::now();
    assert_eq!(pointers(parse(&format!("{{{}}}", members.join(",")))).len(), 50);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn what_is_no_object_is_refused() {
    for text in ["", "{", "[]", "1", "null", "\"x\"", "{\"type\":\"t\"}x", "{\"type\":\"\\ud800\"}"] {
        assert!(parse(text).is_err(), "{text}");
    }
    let deep = format!(r#"{{"type":"t","data":{}1{}}}"#, "[".repeat(100), "]".repeat(100));
    assert!(parse(&deep).unwrap_err().to_string().contains("deeper than 64"));
}

#[test]
fn a_batch_names_the_element() {
    let text = Bytes::from_static(br#"[{"type":"a"},{"type":"b","deliverAt":"x"},7]"#);
    let error = batch(&text, &Limits::default(), now()).unwrap_err();
    assert!(error.to_string().contains("Element 1 of the batch"), "{error}");
    assert_eq!(pointers::<()>(Err(error)), ["/1/deliverAt", "/2"]);
    let limits = Limits { batch: 2, ..Limits::default() };
    assert_eq!(batch(&text, &limits, now()), Err(Error::TooMany { limit: 2 }));
    assert_eq!(batch(&Bytes::from_static(b" [] "), &limits, now()), Ok(vec![]));
    assert!(batch(&Bytes::from_static(br#"{"type":"a"}"#), &limits, now()).is_err());
}

#[test]
fn newline_delimited_messages() {
    let limits = Limits { batch: 2, ..Limits::default() };
    let good = Bytes::from_static(b"{\"type\":\"a\"}\r\n\n  \n{\"type\":\"b\"}\n");
    let kinds: Vec<_> = ndjson(&good, &limits, now()).unwrap().into_iter().map(|draft| draft.kind).collect();
    assert_eq!(kinds, ["a", "b"]);
    let bad = Bytes::from_static(b"{\"type\":\"a\"}\n{\"type\":");
    assert_eq!(pointers(ndjson(&bad, &limits, now())), ["/1"]);
    let many = Bytes::from_static(b"1\n2\n3");
    assert_eq!(ndjson(&many, &limits, now()), Err(Error::TooMany { limit: 2 }));
    assert_eq!(ndjson(&Bytes::new(), &limits, now()), Ok(vec![]));
}

fn message(content_type: Option<&str>, body: &[u8]) -> Message {
    Message {
        id: "m".into(),
        kind: "t".into(),
        tenant: String::new(),
        body: Bytes::copy_from_slice(body),
        deduplication_id: None,
        partition_key: None,
        correlation_id: None,
        deliver_at: None,
        deliver_by: None,
        accepted_at: now(),
        envelope: Envelope { content_type: content_type.map(str::to_owned), ..Envelope::default() },
    }
}

#[test]
fn a_message_is_written_on_one_line() {
    for (content_type, body, expected) in [
        (
            Some(JSON),
            b"{\n \"a\" : [1.10,\t\"b c\"]\r\n}".as_slice(),
            r#""data":{"a":[1.10,"b c"]},"contentType":"application/json""#,
        ),
        (None, b"7", r#""data":7"#),
        (None, b"", ""),
        (Some(JSON), b"", r#""dataBase64":"","contentType":"application/json""#),
        (Some(JSON), b"{", r#""dataBase64":"ew==","contentType":"application/json""#),
        (Some("text/plain"), b"7", r#""dataBase64":"Nw==","contentType":"text/plain""#),
    ] {
        let comma = if expected.is_empty() { "" } else { "," };
        assert_eq!(
            to_json(&message(content_type, body)),
            format!(r#"{{"id":"m","type":"t"{comma}{expected}}}"#)
        );
    }
}

prop_compose! {
    fn any_message()(
        id in "[^\\p{Cc}]{1,40}",
        kind in "[a-z.]{1,20}",
        json_body in any::<bool>(),
        body in proptest::collection::vec(any::<u8>(), 0..40),
        texts in proptest::collection::vec(proptest::option::of("[^\\p{Cc}]{1,20}"), 6),
        headers in proptest::collection::btree_map("x-[a-z0-9]{1,8}", "[^\\p{Cc}]{0,20}", 0..4),
        micros in proptest::option::of(0_i64..1_000_000_000_000),
    ) -> Message {
        let mut texts = texts.into_iter();
        let mut next = move || texts.next().flatten();
        let content_type = if json_body { JSON } else { "text/plain; charset=utf-8" };
        let body = if json_body { json::quote(&format!("{body:?}")).into_bytes() } else { body };
        let mut message = message(Some(content_type), &body);
        message.id = id;
        message.kind = kind;
        message.deduplication_id = next();
        message.partition_key = next();
        message.correlation_id = next();
        message.envelope.causation_id = next();
        message.envelope.source = next();
        message.envelope.subject = next();
        message.envelope.headers = BTreeMap::from_iter(headers);
        message.deliver_at = micros.map(|micros| now() + chrono::Duration::microseconds(micros));
        message.deliver_by = message.deliver_at;
        message
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(message in any_message()) {
        let line = to_json(&message);
        prop_assert!(!line.contains('\n'));
        let draft = one(&Bytes::from(line), &Limits::default(), now()).unwrap();
        prop_assert_eq!(draft.id.as_ref(), Some(&message.id));
        prop_assert_eq!(&draft.kind, &message.kind);
        prop_assert_eq!(&draft.body, &message.body);
        prop_assert_eq!(draft.deduplication, DraftDeduplication::said(message.deduplication_id.clone()));
        prop_assert_eq!(&draft.partition_key, &message.partition_key);
        prop_assert_eq!(&draft.correlation_id, &message.correlation_id);
        prop_assert_eq!(draft.deliver_at, message.deliver_at);
        prop_assert_eq!(draft.deliver_by, message.deliver_by);
        prop_assert_eq!(&draft.envelope, &message.envelope);
    }

    #[test]
    fn reading_never_panics(text in "[\\[\\]{}\":,a-z0-9\\\\ ]{0,60}") {
        let body = Bytes::from(text);
        let _ = one(&body, &Limits::default(), now());
        let _ = batch(&body, &Limits::default(), now());
        let _ = ndjson(&body, &Limits::default(), now());
    }
}
