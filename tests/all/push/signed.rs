//! Senders that sign with a shared secret: Standard Webhooks, GitHub, Stripe.

use hmac::{Hmac, KeyInit, Mac};
use oncegate::domain::standard_webhooks::Key;
use sha2::Sha256;

use super::{Asked, SIGNED_S, problems, receiver};
use crate::support::push::Sample;

const STANDARD: &str = "format = 'standard-webhooks'\ntype = 'fallback'\nhandler = 'h'\n";
const GITHUB: &str = "format = 'github'\nhandler = 'h'\nsecrets = [\"It's a Secret to Everybody\"]";
const STRIPE: &str = "format = 'stripe'\nhandler = 'h'\nsecrets = ['whsec_test']";

fn hex_mac(secret: &str, text: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

// --- Standard Webhooks ---

fn standard(secrets: &str) -> Asked {
    receiver(&format!("{STANDARD}secrets = {secrets}"))
}

#[test]
fn standard_webhooks_sample_01_is_the_public_vector() {
    let sample = Sample::read("stdwebhooks-01-public-vector");
    let asked = standard("'whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD'").at(1_649_367_553);
    let draft = asked.message(&sample);
    assert_eq!(draft.id.as_deref(), Some("msg_27UH4WbU6Z5A5EzD8u03UvzRbpk"));
    assert_eq!(draft.kind, "", "the body says no type: the receiver's counts");
    assert_eq!(draft.body, sample.body);
    let late = standard("'whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD'").at(1_649_367_553 + 301);
    assert!(late.refuses_as_unproven(&sample).contains("too long ago"));
}

#[test]
fn standard_webhooks_sample_03_is_a_second_too_old() {
    let sample = Sample::read("stdwebhooks-03-stale-timestamp");
    // 0123456789abcdef01234567
    let secret = "'whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3'";
    assert!(standard(secret).refuses_as_unproven(&sample).contains("too long ago"));
    let draft = standard(secret).at(SIGNED_S - 1).message(&sample);
    assert_eq!(draft.kind, "contact.created");
    let patient = receiver(&format!("{STANDARD}secrets = {secret}\ntolerance = '10m'"));
    assert_eq!(patient.message(&sample).id.as_deref(), Some("msg_old1"));
}

fn standard_signed(secret: &str, id: &str, body: &str) -> Sample {
    let signature = Key::parse(secret).unwrap().sign(id, SIGNED_S, body.as_bytes());
    Sample::read("stdwebhooks-03-stale-timestamp")
        .header("webhook-id", "placeholder")
        .header("webhook-timestamp", &SIGNED_S.to_string())
        .header("webhook-signature", &signature)
        .header("webhook-id", id)
        .body(body.to_owned())
}

#[test]
fn standard_webhooks_rotate_secrets_and_signatures() {
    let body = r#"{"type":"a.b","data":{"é":1}}"#;
    let new = standard_signed("whsec_bmV3bmV3bmV3bmV3bmV3bmV3", "msg_1", body);
    let asked = standard("['whsec_b2xkb2xkb2xkb2xkb2xkb2xk', 'whsec_bmV3bmV3bmV3bmV3bmV3bmV3']");
    assert_eq!(asked.message(&new).kind, "a.b");
    let old = standard_signed("whsec_b2xkb2xkb2xkb2xkb2xkb2xk", "msg_1", body);
    asked.message(&old);
    let both = format!(
        "v1a,AAAA {} {}",
        old.headers["webhook-signature"].to_str().unwrap(),
        new.headers["webhook-signature"].to_str().unwrap()
    );
    standard("'whsec_bmV3bmV3bmV3bmV3bmV3bmV3'").message(&old.header("webhook-signature", &both));
}

#[test]
fn standard_webhooks_cover_id_time_and_body() {
    let secret = "whsec_bmV3bmV3bmV3bmV3bmV3bmV3";
    let asked = standard(&format!("'{secret}'"));
    let good = standard_signed(secret, "msg_1", "{}");
    asked.message(&good);
    for changed in [
        good.clone().header("webhook-id", "msg_2"),
        good.clone().header("webhook-timestamp", &(SIGNED_S + 1).to_string()),
        good.clone().body("{} "),
        good.clone().without("webhook-signature"),
        good.clone().without("webhook-timestamp"),
        good.clone().without("webhook-id"),
        good.clone().header("webhook-signature", "v1,"),
        good.clone().header("webhook-timestamp", "now"),
        good.clone().header("webhook-timestamp", "99999999999999999999"),
    ] {
        asked.refuses_as_unproven(&changed);
    }
}

#[test]
fn standard_webhooks_take_bodies_that_are_no_json() {
    let secret = "whsec_bmV3bmV3bmV3bmV3bmV3bmV3";
    let text = standard_signed(secret, "msg_1", "plain text").header("content-type", "text/plain");
    let asked = standard(&format!("'{secret}'"));
    assert_eq!(&asked.message(&text).body[..], b"plain text");
    let lying = text.header("content-type", "application/json");
    assert!(asked.refuses_as_malformed(&lying).contains("not valid JSON"));
}

#[test]
fn standard_webhooks_secrets_have_their_form() {
    assert_eq!(problems(&format!("{STANDARD}secrets = 'secret'")), ["secrets"]);
    assert_eq!(problems(&format!("{STANDARD}secrets = ['whsec_AAAA', 'whsec_!']")), ["secrets"]);
}

// --- GitHub ---

#[test]
fn github_sample_01_is_signed_and_no_json() {
    let asked = receiver(GITHUB);
    let sample = Sample::read("github-01-public-vector");
    assert!(asked.refuses_as_malformed(&sample).contains("not valid JSON"));
    let forged = sample.clone().body("Hello, World");
    asked.refuses_as_unproven(&forged);
}

fn github_signed(event: &str, body: &str) -> Sample {
    let code = hex_mac("It's a Secret to Everybody", body);
    Sample::read("github-01-public-vector")
        .header("x-github-event", event)
        .header("x-hub-signature-256", &format!("sha256={code}"))
        .body(body.to_owned())
}

#[test]
fn github_says_type_and_id_in_headers() {
    let body = r#"{"action":"opened","number":1}"#;
    let draft = receiver(GITHUB).message(&github_signed("pull_request", body));
    assert_eq!(draft.kind, "pull_request");
    assert_eq!(draft.id.as_deref(), Some("00000000-0000-4000-8000-000000000071"));
    assert_eq!(&draft.body[..], body.as_bytes());
    assert_eq!(draft.envelope.headers["x-github-hook-installation-target-type"], "repository");
}

#[test]
fn github_forms_hold_the_payload() {
    let form = "payload=%7B%22zen%22%3A%22a%20b+c%22%7D";
    let sample = github_signed("ping", form).header("content-type", "application/x-www-form-urlencoded");
    assert_eq!(&receiver(GITHUB).message(&sample).body[..], br#"{"zen":"a b c"}"#);
}

#[test]
fn github_rotates_secrets() {
    let asked =
        receiver("format = 'github'\nhandler = 'h'\nsecrets = ['new', \"It's a Secret to Everybody\"]");
    asked.message(&github_signed("push", "{}"));
    receiver("format = 'github'\nhandler = 'h'\nsecrets = 'new'")
        .refuses_as_unproven(&github_signed("push", "{}"));
}

#[test]
fn github_signatures_of_the_older_kind_count_for_nothing() {
    let sample = github_signed("push", "{}");
    let code = sample.headers["x-hub-signature-256"].clone();
    let old = sample.without("x-hub-signature-256").header("x-hub-signature", code.to_str().unwrap());
    assert!(receiver(GITHUB).refuses_as_unproven(&old).contains("missing"));
}

#[test]
fn github_needs_its_headers() {
    for name in ["x-github-event", "x-github-delivery"] {
        let sample = github_signed("push", "{}").without(name);
        assert!(receiver(GITHUB).refuses_as_malformed(&sample).contains(name));
    }
}

// --- Stripe ---

const EVENT: &str =
    r#"{"id":"evt_1","object":"event","type":"invoice.paid","data":{"object":{"id":"in_1"}}}"#;

fn stripe_signed(secrets: &[&str], at: i64, body: &str) -> Sample {
    let codes: String =
        secrets.iter().map(|secret| format!(",v1={}", hex_mac(secret, &format!("{at}.{body}")))).collect();
    Sample::read("github-01-public-vector")
        .header(
            "stripe-signature",
            &format!("t={at}{codes},v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39"),
        )
        .body(body.to_owned())
}

#[test]
fn stripe_events_say_type_and_id() {
    let draft = receiver(STRIPE).message(&stripe_signed(&["whsec_test"], SIGNED_S, EVENT));
    assert_eq!((draft.kind.as_str(), draft.id.as_deref()), ("invoice.paid", Some("evt_1")));
    assert_eq!(&draft.body[..], EVENT.as_bytes(), "whole, and to the byte");
}

#[test]
fn stripe_rotates_secrets_on_either_side() {
    let both_there = stripe_signed(&["whsec_new", "whsec_test"], SIGNED_S, EVENT);
    receiver(STRIPE).message(&both_there);
    let both_here = receiver("format = 'stripe'\nhandler = 'h'\nsecrets = ['whsec_new', 'whsec_test']");
    both_here.message(&stripe_signed(&["whsec_test"], SIGNED_S, EVENT));
}

/// stripe-node looks at old signatures only.
#[test]
fn stripe_signatures_end_both_ways() {
    for (off, fresh) in [(300, true), (-300, true), (301, false), (-301, false)] {
        let sample = stripe_signed(&["whsec_test"], SIGNED_S + off, EVENT);
        let read = receiver(STRIPE).read(&sample);
        assert_eq!(read.is_ok(), fresh, "{off}: {read:?}");
    }
    let patient = receiver(&format!("{STRIPE}\ntolerance = '1h'"));
    patient.message(&stripe_signed(&["whsec_test"], SIGNED_S - 3600, EVENT));
}

#[test]
fn stripe_pretty_printed_events_are_signed_as_they_stand() {
    let pretty = "{\n  \"id\": \"evt_2\",\n  \"type\": \"charge.refunded\"\n}";
    assert_eq!(
        receiver(STRIPE).message(&stripe_signed(&["whsec_test"], SIGNED_S, pretty)).kind,
        "charge.refunded"
    );
    let compact = pretty.replace(['\n', ' '], "");
    let changed = stripe_signed(&["whsec_test"], SIGNED_S, pretty).body(compact);
    receiver(STRIPE).refuses_as_unproven(&changed);
}

#[test]
fn stripe_thin_events_have_the_same_members() {
    let thin = r#"{"id":"evt_test_65","object":"v2.core.event","type":"v1.billing.meter.error_report_triggered","livemode":false}"#;
    let draft = receiver(STRIPE).message(&stripe_signed(&["whsec_test"], SIGNED_S, thin));
    assert_eq!(draft.kind, "v1.billing.meter.error_report_triggered");
}

#[test]
fn stripe_requests_without_an_event_are_malformed() {
    for body in ["", "[]", "{}", r#"{"id":"evt_1"}"#, r#"{"type":"a"}"#, "not json"] {
        receiver(STRIPE).refuses_as_malformed(&stripe_signed(&["whsec_test"], SIGNED_S, body));
    }
}
