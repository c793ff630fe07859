use super::*;

fn now() -> Timestamp {
    time("2026-01-02T03:04:05Z").unwrap()
}

fn draft() -> Draft {
    Draft { kind: "order.created".into(), ..Draft::default() }
}

fn fields(draft: &Draft, limits: &Limits) -> Vec<Field> {
    draft.check(limits, now()).err().unwrap_or_default().into_iter().map(|error| error.field).collect()
}

#[test]
fn a_type_is_enough() {
    assert_eq!(draft().check(&Limits::default(), now()), Ok(()));
    assert_eq!(fields(&Draft::default(), &Limits::default()), [Field::Type]);
    assert_eq!(fields(&Draft { kind: "a b".into(), ..draft() }, &Limits::default()), [Field::Type]);
}

#[test]
fn an_id_has_1_to_255_printable_characters() {
    for (id, good) in [
        ("a".to_owned(), true),
        ("\u{e9}".repeat(255), true),
        ("a b/c?".to_owned(), true),
        (String::new(), false),
        ("a".repeat(256), false),
        ("a\0".to_owned(), false),
        ("a\nb".to_owned(), false),
        ("a\u{85}".to_owned(), false),
    ] {
        let found = fields(&Draft { id: Some(id.clone()), ..draft() }, &Limits::default());
        assert_eq!(found.is_empty(), good, "{id:?}");
    }
}

#[test]
fn every_text_is_bounded_and_free_of_control_characters() {
    for value in ["\0".to_owned(), "x".repeat(5000)] {
        let mut all = draft();
        all.partition_key = Some(value.clone());
        all.correlation_id = Some(value.clone());
        all.deduplication = DraftDeduplication::Id(value.clone());
        all.envelope.source = Some(value.clone());
        all.envelope.subject = Some(value.clone());
        all.envelope.causation_id = Some(value.clone());
        all.envelope.content_type = Some(value.clone());
        all.envelope.headers.insert("x".into(), value.clone());
        all.destinations = Some(vec![value]);
        assert_eq!(fields(&all, &Limits::default()).len(), 9);
    }
}

#[test]
fn reserved_names_and_what_is_no_name_are_refused_as_own_headers() {
    for name in
        ["tenant-id", "attempts", "content-length", "ce-id", "webhook-signature", "", "a b", "\u{e9}", "a:"]
    {
        let mut bad = draft();
        bad.envelope.headers.insert(name.into(), "v".into());
        assert_eq!(fields(&bad, &Limits::default()), [Field::Header(name.into())], "{name}");
    }
    let mut good = draft();
    good.envelope.headers.insert("x-region".into(), String::new());
    good.envelope.headers.insert("ce-comexampleother".into(), "\u{20ac}".into());
    assert!(fields(&good, &Limits::default()).is_empty());
}

#[test]
fn times_are_checked_against_now_and_each_other() {
    let limits = Limits { deliver_horizon: Some(Duration::from_secs(3600)), ..Limits::default() };
    let at = |text| Some(time(text).unwrap());
    let past = at("2026-01-02T03:04:04Z");
    let soon = at("2026-01-02T03:30:00Z");
    let late = at("2026-01-02T05:00:00Z");
    assert!(fields(&Draft { deliver_at: past, ..draft() }, &limits).is_empty());
    assert!(fields(&Draft { deliver_at: soon, ..draft() }, &limits).is_empty());
    assert_eq!(fields(&Draft { deliver_at: late, ..draft() }, &limits), [Field::DeliverAt]);
    let delay = Some(Duration::from_secs(3601));
    assert_eq!(fields(&Draft { delay, ..draft() }, &limits), [Field::Delay]);
    assert_eq!(fields(&Draft { delay: Some(Duration::MAX), ..draft() }, &Limits::default()), [Field::Delay]);
    assert_eq!(fields(&Draft { deliver_by: past, ..draft() }, &limits), [Field::DeliverBy]);
    let crossed = Draft { deliver_at: soon, deliver_by: at("2026-01-02T03:29:00Z"), ..draft() };
    assert_eq!(fields(&crossed, &limits), [Field::DeliverBy]);
    let both = Draft { deliver_at: soon, delay: Some(Duration::from_secs(1)), ..draft() };
    assert_eq!(fields(&both, &limits), [Field::Delay]);
}

#[test]
fn times_have_any_offset_and_microseconds() {
    assert_eq!(
        format_time(time("2026-01-02T04:04:05.1234567+01:00").unwrap()),
        "2026-01-02T03:04:05.123456Z"
    );
    assert_eq!(format_time(time("2016-12-31T23:59:60Z").unwrap()), "2017-01-01T00:00:00Z");
    for text in
        ["", "2026-01-02", "2026-01-02T03:04:05", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00", "1"]
    {
        assert!(time(text).is_err(), "{text}");
    }
}

#[test]
fn places_are_named_as_the_form_names_them() {
    let error = || FieldError::new(Field::DeliverAt, "x");
    assert_eq!(error().in_native("/3").pointer, "/3/deliverAt");
    assert_eq!(error().in_headers().pointer, "header Deliver-At");
    assert_eq!(error().in_cloudevent("").pointer, "/deliverat");
    assert_eq!(error().in_cloudevent_headers().pointer, "header ce-deliverat");
    let own = || FieldError::new(Field::Header("ce-a~b".into()), "x");
    assert_eq!(own().in_native("").pointer, "/headers/ce-a~0b");
    assert_eq!(own().in_cloudevent("").pointer, "/a~0b");
    assert_eq!(own().in_headers().pointer, "header Message-Header-ce-a~b");
}
