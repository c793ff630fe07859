//! Whatever is sent, every format answers: it never panics, never takes for signed what is not, and never wants to
//! ask for anything but SNS's own hosts.
//!
//! A short run with every test run. `ONCEGATE_FUZZ_SECONDS=600 cargo nextest run -E 'test(push::fuzz::NAME)'` makes a
//! long one of the format NAME.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use oncegate::domain::fields::Limits;
use oncegate::push::{Push, Refusal, What};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestError, TestRunner};

use super::{Asked, receiver};
use crate::support::push::{Sample, confirmation, notification, path, signed, subscribe_url};

/// A change of a request.
#[derive(Clone, Debug)]
enum Change {
    Flip(Index, u8),
    Cut(Index, usize),
    Repeat(Index, usize),
    Insert(Index, Vec<u8>),
    Truncate(Index),
    RemoveHeader(Index),
    SetHeader(Index, Vec<u8>),
    AddHeader(&'static str, Vec<u8>),
    Replace(Vec<u8>),
}

/// Pieces that formats are made of.
const PIECES: [&str; 30] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "null",
    "true",
    "-1",
    "1e400",
    "0.1",
    "\"\\ud800\"",
    "\"\\u0000\"",
    "\\",
    "\"data\"",
    "\"type\"",
    "\"id\"",
    "\"message\"",
    "\"attributes\"",
    "\"Type\":\"Notification\",",
    "\"MessageAttributes\":{\"a\":{\"Type\":\"String\",\"Value\":\"\\n\"}},",
    "\"data_base64\":\"!\",",
    "\"eventType\":\"Microsoft.EventGrid.SubscriptionValidationEvent\",",
    "é😀",
    "\u{feff}",
    "%00",
    "=",
    "&payload=",
    "AAAA",
];

const HEADERS: [&str; 25] = [
    "ce-specversion",
    "ce-id",
    "ce-type",
    "ce-source",
    "ce-time",
    "ce-data",
    "ce-x",
    "content-type",
    "aeg-event-type",
    "aeg-delivery-count",
    "aeg-subscription-name",
    "x-amz-sns-rawdelivery",
    "x-amz-sns-message-id",
    "x-amz-sns-topic-arn",
    "x-github-event",
    "x-github-delivery",
    "x-hub-signature-256",
    "stripe-signature",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    "x-goog-pubsub-message-id",
    "traceparent",
    "webhook-request-origin",
    "upstash-signature",
];

const VALUES: [&str; 16] = [
    "",
    "1.0",
    "true",
    "Notification",
    "SubscriptionValidation",
    "application/cloudevents+json",
    "application/cloudevents-batch+json",
    "application/x-www-form-urlencoded",
    "application/json",
    "sha256=00",
    "t=1760000000,v1=00",
    "v1,AAAA",
    "99999999999999999999",
    "-1",
    "%e2%82",
    "\"a\\\"b\"",
];

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..64),
        proptest::sample::select(&PIECES[..]).prop_map(|piece| piece.as_bytes().to_vec()),
        (proptest::sample::select(&PIECES[..]), 1..200_usize)
            .prop_map(|(piece, times)| piece.repeat(times).into_bytes()),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::sample::select(&VALUES[..]).prop_map(|value| value.as_bytes().to_vec()),
        proptest::collection::vec(prop_oneof![0x20..0x7f_u8, 0x80..=0xff_u8, Just(9)], 0..48),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Flip(at, byte)),
        2 => (any::<Index>(), 1..40_usize).prop_map(|(at, count)| Change::Cut(at, count)),
        2 => (any::<Index>(), 1..40_usize).prop_map(|(at, count)| Change::Repeat(at, count)),
        4 => (any::<Index>(), bytes()).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        1 => any::<Index>().prop_map(Change::Truncate),
        1 => any::<Index>().prop_map(Change::RemoveHeader),
        2 => (any::<Index>(), value()).prop_map(|(at, value)| Change::SetHeader(at, value)),
        2 => (proptest::sample::select(&HEADERS[..]), value())
            .prop_map(|(name, value)| Change::AddHeader(name, value)),
        1 => proptest::collection::vec(any::<u8>(), 0..2048).prop_map(Change::Replace),
    ]
}

fn apply(sample: &Sample, changes: &[Change]) -> Sample {
    let mut sample = sample.clone();
    let mut body = sample.body.to_vec();
    for change in changes {
        let length = body.len();
        let place = |at: &Index| at.index(length + 1);
        match change {
            Change::Flip(at, byte) => {
                if let Some(found) = body.get_mut(at.index(length.max(1))) {
                    *found ^= byte;
                }
            }
            Change::Cut(at, count) => {
                let from = place(at);
                body.drain(from..(from + count).min(body.len()));
            }
            Change::Repeat(at, count) => {
                let from = place(at);
                let piece = body[from..(from + count).min(body.len())].to_vec();
                body.splice(from..from, piece);
            }
            Change::Insert(at, bytes) => {
                let from = place(at);
                body.splice(from..from, bytes.iter().copied());
            }
            Change::Truncate(at) => body.truncate(place(at)),
            Change::Replace(bytes) => body.clone_from(bytes),
            Change::RemoveHeader(at) | Change::SetHeader(at, _) => {
                let names: Vec<HeaderName> = sample.headers.keys().cloned().collect();
                if !names.is_empty() {
                    let name = &names[at.index(names.len())];
                    match change {
                        Change::SetHeader(_, value) => {
                            if let Ok(value) = HeaderValue::from_bytes(value) {
                                sample.headers.insert(name, value);
                            }
                        }
                        _ => drop(sample.headers.remove(name)),
                    }
                }
            }
            Change::AddHeader(name, value) => {
                if let Ok(value) = HeaderValue::from_bytes(value) {
                    sample.headers.append(*name, value);
                }
            }
        }
    }
    sample.body = Bytes::from(body);
    sample
}

/// What holds of everything that is read.
fn holds(read: &Result<Push, Refusal>, now: oncegate::domain::Timestamp) -> Result<(), TestCaseError> {
    match read.as_ref().map(|push| &push.what) {
        Ok(What::Needs(url) | What::Confirm(url)) => {
            let host = url.host_str().unwrap_or_default();
            let sns = host.starts_with("sns.")
                && (host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn"));
            prop_assert!(url.scheme() == "https" && sns && url.port().is_none(), "{url}");
        }
        Ok(What::Messages { messages, .. }) => {
            for message in messages {
                // Refusing what it holds is the gateway's; it must not be beyond that.
                let _ = message.draft.check(&Limits::default(), now);
            }
        }
        Err(refusal) => prop_assert!(!refusal.to_string().is_empty()),
        Ok(_) => {}
    }
    Ok(())
}

/// Runs one format: `open` takes requests without proof, `closed` wants them signed as the seeds are.
fn run(open: &Asked, closed: Option<&Asked>, seeds: &[Sample]) {
    let now = chrono::DateTime::from_timestamp(super::SIGNED_S, 0).unwrap();
    let strategy = (any::<Index>(), proptest::collection::vec(change(), 0..12));
    let long = std::env::var("ONCEGATE_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let began = Instant::now();
    let (mut cases, batch) = (0_u64, 512);
    loop {
        let config = Config { cases: batch, failure_persistence: None, ..Config::default() };
        let outcome = TestRunner::new(config).run(&strategy, |(seed, changes)| {
            let seed = &seeds[seed.index(seeds.len())];
            let sample = apply(seed, &changes);
            let read = open.read(&sample);
            holds(&read, now)?;
            let _ = open.read_with(&sample, Some(&sample.body));
            let _ = open.options(&sample);
            if let Some(closed) = closed {
                let read = closed.read(&sample);
                holds(&read, now)?;
                if sample.body != seed.body && !seeds.iter().any(|other| other.body == sample.body) {
                    let taken =
                        matches!(&read, Ok(Push { what: What::Messages { .. } | What::Confirm(_), .. }));
                    prop_assert!(!taken, "taken for signed: {:?}", sample);
                }
            }
            Ok(())
        });
        match outcome {
            Ok(()) => {}
            Err(TestError::Fail(why, (_, changes))) => panic!("{why}: {changes:?}"),
            Err(TestError::Abort(why)) => panic!("{why}"),
        }
        cases += u64::from(batch);
        if began.elapsed() >= Duration::from_secs(long.unwrap_or(0)) {
            break;
        }
    }
    eprintln!("{cases} requests in {:?}", began.elapsed());
}

fn all(names: &[&str]) -> Vec<Sample> {
    names.iter().map(|name| Sample::read(name)).collect()
}

fn open(format: &str) -> Asked {
    receiver(&format!(
        "format = '{format}'\nhandler = 'h'\ntype = 't'\nauthorize = 'anonymous'\ntypes = ['*']\n\
         sources = {{ 'arn:aws:sns:us-east-1:111122223333:orders' = {{}} }}"
    ))
    .known()
}

#[test]
fn cloudevents() {
    let seeds = all(&[
        "ce-01-binary-percent-encoded",
        "ce-04-structured-data-base64",
        "ce-07-structured-bare-string",
        "ce-08-batch-mixed",
        "ce-10-batch-empty",
        "ce-11-extension-bad-names",
        "dapr-01-cloudevent",
        "knative-01-trigger-prefer-reply",
    ]);
    run(&open("cloudevents"), None, &seeds);
}

#[test]
fn eventbridge() {
    run(&open("eventbridge"), None, &all(&["eventbridge-01-api-destination"]));
}

#[test]
fn eventgrid() {
    let mut seeds = all(&["eventgrid-01-validation", "eventgrid-03-ce-options", "eventgrid-04-ce-single"]);
    let event = r#"[{"id":"e-1","topic":"/t","subject":"s","eventType":"order.created","eventTime":"2025-10-09T08:53:18Z","data":{"order":1},"dataVersion":"1.0"}]"#;
    seeds.push(seeds[0].clone().header("aeg-event-type", "Notification").body(event));
    run(&open("eventgrid"), None, &seeds);
}

#[test]
fn github() {
    let closed = receiver("format = 'github'\nhandler = 'h'\nsecrets = [\"It's a Secret to Everybody\"]");
    run(&open("github"), Some(&closed), &all(&["github-01-public-vector"]));
}

#[test]
fn native() {
    let json = Sample::read("github-01-public-vector").header("content-type", "application/json");
    let one = r#"{"id":"a","type":"order.created","data":{"n":1},"headers":{"x":"y"},"deliverAt":"2026-01-01T00:00:00Z"}"#;
    let seeds = [json.clone().body(one), json.body(format!("[{one},{one}]"))];
    run(&open("native"), None, &seeds);
}

#[test]
fn pubsub() {
    let seeds = all(&[
        "pubsub-01-wrapped-basic",
        "pubsub-02-attributes-only",
        "pubsub-03-camel-case-only",
        "pubsub-05-ordering-and-attempt",
        "pubsub-09-eventarc-binary-ce",
    ]);
    run(&open("pubsub"), None, &seeds);
    let unwrapped =
        receiver("format = 'pubsub'\nhandler = 'h'\ntype = 't'\nauthorize = 'anonymous'\nunwrapped = true");
    run(&unwrapped.known(), None, &all(&["pubsub-07-unwrapped-metadata"]));
}

#[test]
fn qstash() {
    let closed = receiver("format = 'qstash'\ntype = 't'\nhandler = 'h'\nsecrets = 'sig_current_test'");
    run(&open("qstash"), Some(&closed), &all(&["qstash-01-signed"]));
}

#[test]
fn sns() {
    let post =
        |envelope: &serde_json::Value| Sample::read("sns-02-notification-v1").body(envelope.to_string());
    let mut seeds = all(&["sns-06-raw-delivery", "sns-07-forged-cert-url-s3"]);
    seeds.push(post(&signed(notification("m", "{\"order\":1}"))));
    seeds.push(post(&signed(confirmation("SubscriptionConfirmation", "t", &subscribe_url("t")))));
    let closed = format!(
        "format = 'sns'\nhandler = 'h'\ntype = 't'\ncertificate = '{}'\n\
         sources = {{ 'arn:aws:sns:us-east-1:111122223333:orders' = {{}} }}",
        path("keys/sns-signing-cert.pem").display()
    );
    // What is not signed (attributes, white space between members, members nobody knows) may change.
    run(&open("sns"), None, &seeds);
    let fetching =
        closed.lines().filter(|line| !line.starts_with("certificate")).collect::<Vec<_>>().join("\n");
    run(&receiver(&fetching), None, &seeds);
    run(&receiver(&closed), None, &seeds);
}

#[test]
fn standard_webhooks() {
    let closed = receiver(
        "format = 'standard-webhooks'\ntype = 't'\nhandler = 'h'\nsecrets = 'whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD'",
    );
    let seeds = all(&["stdwebhooks-01-public-vector", "stdwebhooks-03-stale-timestamp"]);
    run(&open("standard-webhooks"), Some(&closed.at(1_649_367_553)), &seeds);
}

#[test]
fn stripe() {
    let closed = receiver("format = 'stripe'\nhandler = 'h'\nsecrets = ['whsec_test']");
    let event = r#"{"id":"evt_1","object":"event","type":"invoice.paid","data":{"object":{"id":"in_1"}}}"#;
    // printf '%s' "1760000000.$event" | openssl dgst -sha256 -hmac whsec_test
    let seed = Sample::read("github-01-public-vector").body(event).header(
        "stripe-signature",
        "t=1760000000,v1=809a1b43cfda11d40fcf477f7675796364baa6e0b9eb032a699e250eeb33deff",
    );
    run(&open("stripe"), Some(&closed), &[seed]);
}
