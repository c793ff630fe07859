//! Amazon SNS.

use oncegate::push::{Refusal, What};
use serde_json::json;

use super::{problems, receiver};
use crate::support::push::{
    CERTIFICATE_URL, Sample, TOPIC, confirmation, notification, path, signed, subscribe_url,
};

fn pinned(certificate: &str) -> String {
    let certificate = path("keys").join(certificate);
    format!(
        "format = 'sns'\ntype = 'order.created'\nhandler = 'h'\nsources = {{ '{TOPIC}' = {{}} }}\ncertificate = '{}'",
        certificate.display()
    )
}

/// With the certificate of the samples.
fn samples() -> String {
    pinned("sns-test-cert.pem")
}

const FETCHING: &str = "format = 'sns'\ntype = 't'\nhandler = 'h'\n\
                        sources = { 'arn:aws:sns:us-east-1:111122223333:orders' = {} }";

/// As SNS posts it: JSON that says it is text.
fn posted(envelope: &serde_json::Value) -> Sample {
    Sample::read("sns-02-notification-v1").body(envelope.to_string())
}

#[test]
fn sample_01_a_subscription_is_confirmed_after_it_is_verified() {
    let push = receiver(&samples()).read(&Sample::read("sns-01-subscription-confirmation")).unwrap();
    assert_eq!(push.source.as_deref(), Some(TOPIC));
    assert!(
        matches!(&push.what, What::Confirm(url) if url.as_str() == subscribe_url("feedc0de")),
        "{push:?}"
    );
    let operator = receiver(&format!("{}\nconfirm = 'operator'", samples()));
    let what = operator.read(&Sample::read("sns-01-subscription-confirmation")).unwrap().what;
    assert!(matches!(&what, What::Notice(text) if text.contains(&subscribe_url("feedc0de"))), "{what:?}");
}

#[test]
fn samples_02_and_03_are_messages_by_either_signature() {
    for (name, id, subject) in [
        ("sns-02-notification-v1", "00000000-0000-4000-8000-000000000012", Some("Order")),
        ("sns-03-notification-v2-no-subject-attributes", "00000000-0000-4000-8000-000000000013", None),
    ] {
        let sample = Sample::read(name);
        assert_eq!(sample.headers["content-type"], "text/plain; charset=UTF-8", "read as bytes all the same");
        let draft = receiver(&samples()).message(&sample);
        assert_eq!(draft.id.as_deref(), Some(id));
        assert_eq!(&draft.body[..], br#"{"order":1}"#);
        let envelope = &draft.envelope;
        assert_eq!((envelope.source.as_deref(), envelope.subject.as_deref()), (Some(TOPIC), subject));
        assert_eq!(envelope.headers["ce-time"], "2025-10-09T08:53:18.101Z");
    }
    let with_attributes = Sample::read("sns-03-notification-v2-no-subject-attributes");
    let draft = receiver(&samples()).message(&with_attributes);
    assert_eq!(draft.envelope.headers["kind"], "order.created");
    assert_eq!(draft.envelope.headers["blob"], "AAH/");
}

#[test]
fn sample_06_raw_delivery_needs_another_proof() {
    let raw = Sample::read("sns-06-raw-delivery");
    assert!(receiver(&samples()).refuses_as_unproven(&raw).contains("api_key"));
    let draft = receiver(&samples()).known().message(&raw);
    assert_eq!(
        (draft.id.as_deref(), &draft.body[..]),
        (Some("00000000-0000-4000-8000-0000000000aa"), &b"{\"order\":1}"[..])
    );
    assert_eq!(draft.envelope.source.as_deref(), Some(TOPIC));
}

#[test]
fn sample_07_a_forged_certificate_url_is_refused_pinned_or_not() {
    let forged = Sample::read("sns-07-forged-cert-url-s3");
    for settings in [samples().as_str(), FETCHING] {
        assert!(receiver(settings).refuses_as_unproven(&forged).contains("SigningCertURL"));
    }
}

#[test]
fn sample_09_the_casing_of_lambda_is_no_push() {
    let lambda = std::fs::read(path("samples/sns-09-lambda-casing.json")).unwrap();
    let sample = Sample::read("sns-02-notification-v1").body(lambda);
    assert!(receiver(&samples()).refuses_as_malformed(&sample).contains("`Type`"));
    let mut other = signed(notification("m", "x"));
    let url = other.as_object_mut().unwrap().remove("SigningCertURL").unwrap();
    other["SigningCertUrl"] = url;
    let settings = pinned("sns-signing-cert.pem");
    assert!(receiver(&settings).refuses_as_unproven(&posted(&other)).contains("`SigningCertURL`"));
}

// Further cases of "Verifying the signatures of Amazon SNS messages" and "Parsing Amazon SNS message formats".

#[test]
fn without_a_pinned_certificate_the_one_that_is_named_is_needed() {
    let sample = posted(&signed(notification("m", "x")));
    let asked = receiver(FETCHING);
    let push = asked.read(&sample).unwrap();
    assert_eq!(
        push.source.as_deref(),
        Some(TOPIC),
        "so that the topic is looked at before anything is fetched"
    );
    assert!(matches!(&push.what, What::Needs(url) if url.as_str() == CERTIFICATE_URL), "{push:?}");
    let certificate = std::fs::read(path("keys/sns-signing-cert.pem")).unwrap();
    let push = asked.read_with(&sample, Some(&certificate)).unwrap();
    assert!(matches!(push.what, What::Messages { .. }));
    for other in [
        "sns-test-cert.pem",
        "sns-expired-cert.pem",
        "sns-weak-cert.pem",
        "sns-ec-cert.pem",
        "sns-signing-key.pem",
    ] {
        let document = std::fs::read(path("keys").join(other)).unwrap();
        let read = asked.read_with(&sample, Some(&document));
        assert!(matches!(read, Err(Refusal::Unproven(_))), "{other}: {read:?}");
    }
}

#[test]
fn every_signed_member_is_covered_and_no_other() {
    let asked = receiver(&pinned("sns-signing-cert.pem"));
    let mut whole = notification("m", "line one\nline \"two\" é 😀");
    whole["Subject"] = json!("A subject");
    let good = signed(whole);
    assert_eq!(&asked.message(&posted(&good)).body[..], "line one\nline \"two\" é 😀".as_bytes());
    for name in ["Message", "MessageId", "Subject", "Timestamp", "TopicArn"] {
        let mut changed = good.clone();
        changed[name] = json!("changed");
        asked.refuses_as_unproven(&posted(&changed));
    }
    let mut unsigned = good.clone();
    unsigned["UnsubscribeURL"] = json!("https://elsewhere.test/");
    unsigned["MessageAttributes"] = json!({ "kind": { "Type": "String", "Value": "x" } });
    assert_eq!(asked.message(&posted(&unsigned)).envelope.headers["kind"], "x");
}

#[test]
fn what_is_not_signed_is_refused() {
    let asked = receiver(&pinned("sns-signing-cert.pem"));
    let good = signed(notification("m", "x"));
    for (name, value) in [
        ("Signature", json!(null)),
        ("Signature", json!("")),
        ("Signature", json!("not base64!")),
        ("Signature", json!("AAAA")),
        ("SignatureVersion", json!(null)),
        ("SignatureVersion", json!("1")),
        ("SignatureVersion", json!("3")),
        ("SigningCertURL", json!(null)),
    ] {
        let mut changed = good.clone();
        changed[name] = value.clone();
        assert!(asked.refuses_as_unproven(&posted(&changed)).contains("not signed by SNS"), "{name} {value}");
    }
    assert!(matches!(asked.read(&posted(&good)).unwrap().what, What::Messages { .. }));
}

#[test]
fn the_content_type_does_not_matter() {
    let asked = receiver(&pinned("sns-signing-cert.pem"));
    let sample = posted(&signed(notification("m", "x")));
    for content_type in ["application/json", "text/plain", "application/octet-stream", "a b c"] {
        asked.message(&sample.clone().header("content-type", content_type));
    }
    asked.message(&sample.without("content-type"));
}

#[test]
fn a_confirmation_asks_for_nothing_but_the_confirmation_of_its_topic() {
    let asked = receiver(&pinned("sns-signing-cert.pem"));
    let post = |url: &str| asked.read(&posted(&signed(confirmation("SubscriptionConfirmation", "tok", url))));
    assert!(matches!(post(&subscribe_url("tok")).unwrap().what, What::Confirm(_)));
    for forged in [
        subscribe_url("another"),
        subscribe_url("tok").replace("us-east-1.amazonaws", "us-west-2.amazonaws"),
        subscribe_url("tok").replace("https", "http"),
        subscribe_url("tok").replace("ConfirmSubscription", "Unsubscribe"),
        subscribe_url("tok").replace(":orders", ":others"),
        subscribe_url("tok").replace("sns.us-east-1.amazonaws.com", "127.0.0.1"),
        subscribe_url("tok").replace("sns.us-east-1.amazonaws.com", "sns.us-east-1.amazonaws.com.evil.test"),
        subscribe_url("tok").replace("https://", "https://user@"),
    ] {
        assert!(matches!(post(&forged), Err(Refusal::Unproven(_))), "{forged}");
    }
}

#[test]
fn the_end_of_a_subscription_is_noted_and_nothing_is_asked_for() {
    let asked = receiver(&pinned("sns-signing-cert.pem"));
    let ended = confirmation("UnsubscribeConfirmation", "tok", &subscribe_url("tok"));
    assert!(matches!(asked.read(&posted(&signed(ended.clone()))).unwrap().what, What::Notice(_)));
    asked.refuses_as_unproven(&posted(&ended));
}

#[test]
fn by_the_operators_word_signatures_are_not_asked_for_but_urls_are_judged() {
    let anybody = receiver(&format!("{FETCHING}\nauthorize = 'anonymous'")).known();
    anybody.message(&posted(&notification("m", "x")));
    let post = |url: &str| anybody.read(&posted(&confirmation("SubscriptionConfirmation", "t", url)));
    assert!(matches!(post(&subscribe_url("t")).unwrap().what, What::Confirm(_)));
    assert!(matches!(post("https://elsewhere.test/"), Err(Refusal::Unproven(_))));
    // A pinned certificate is meant.
    let pinned = receiver(&format!("{}\nauthorize = 'anonymous'", pinned("sns-signing-cert.pem"))).known();
    pinned.refuses_as_unproven(&posted(&notification("m", "x")));
}

#[test]
fn settings_that_cannot_work_are_told_by_their_keys() {
    assert_eq!(problems("format = 'sns'\nhandler = 'h'"), ["type", "sources"]);
    assert_eq!(problems("format = 'sns'\nhandler = 'h'\ntype = 't'\nsources = {}"), ["sources"]);
    assert_eq!(problems(&format!("{FETCHING}\ncertificate = '/does/not/exist'")), ["certificate"]);
    assert_eq!(problems(&pinned("sns-signing-key.pem")), ["certificate"]);
    assert!(problems(FETCHING).is_empty());
}
