//! Upstash QStash.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use oncegate::push::What;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{SIGNED_S, receiver};
use crate::support::push::Sample;

const SETTINGS: &str =
    "format = 'qstash'\ntype = 'job.run'\nhandler = 'h'\nsecrets = ['sig_current_test', 'sig_next_test']";

fn claims(body: &str) -> Value {
    json!({
        "iss": "Upstash", "sub": "https://gateway.example.com/push/qstash", "exp": SIGNED_S + 300, "nbf": SIGNED_S,
        "iat": SIGNED_S, "jti": "jwt_1", "body": BASE64.encode(Sha256::digest(body.as_bytes())),
    })
}

fn signed(secret: &str, header: &Value, claims: &Value, body: &str) -> Sample {
    let text = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(text.as_bytes());
    let token = format!("{text}.{}", BASE64.encode(mac.finalize().into_bytes()));
    Sample::read("qstash-01-signed").header("upstash-signature", &token).body(body.to_owned())
}

fn hs256() -> Value {
    json!({ "alg": "HS256", "typ": "JWT" })
}

#[test]
fn sample_01_is_signed_by_the_current_key() {
    let sample = Sample::read("qstash-01-signed");
    let push = receiver(SETTINGS).read(&sample).unwrap();
    assert_eq!(push.source.as_deref(), Some("https://gateway.example.com/push/qstash"));
    let What::Messages { messages, attempts } = push.what else { panic!() };
    let draft = &messages[0].draft;
    assert_eq!((draft.id.as_deref(), attempts), (Some("msg_1"), 1));
    assert_eq!(
        (&draft.body, draft.envelope.content_type.as_deref()),
        (&sample.body, Some("application/json"))
    );
    receiver(SETTINGS).refuses_as_unproven(&sample.clone().body("{\"hello\": \"world\"}"));
    receiver(SETTINGS).at(SIGNED_S + 300 + 30).refuses_as_unproven(&sample);
    receiver(SETTINGS).at(SIGNED_S + 300 + 29).message(&sample);
    receiver(SETTINGS).at(SIGNED_S - 31).refuses_as_unproven(&sample);
}

#[test]
fn the_next_key_signs_as_well() {
    let asked = receiver(SETTINGS);
    asked.message(&signed("sig_next_test", &hs256(), &claims("{}"), "{}"));
    asked.refuses_as_unproven(&signed("sig_other", &hs256(), &claims("{}"), "{}"));
}

#[test]
fn attempts_are_counted_from_the_senders_count() {
    for (retried, expected) in [("0", 1), ("3", 4), ("x", 1)] {
        let sample = Sample::read("qstash-01-signed").header("upstash-retried", retried);
        let What::Messages { attempts, .. } = receiver(SETTINGS).read(&sample).unwrap().what else {
            panic!()
        };
        assert_eq!(attempts, expected);
    }
}

#[test]
fn tokens_that_say_something_else_are_refused() {
    let asked = receiver(SETTINGS);
    for (name, value) in [
        ("iss", json!("Somebody")),
        ("iss", Value::Null),
        ("body", json!("")),
        ("body", Value::Null),
        ("exp", json!(SIGNED_S - 31)),
        ("exp", Value::Null),
        ("nbf", json!(SIGNED_S + 31)),
        ("sub", Value::Null),
    ] {
        let mut changed = claims("{}");
        changed[name] = value.clone();
        asked.refuses_as_unproven(&signed("sig_current_test", &hs256(), &changed, "{}"));
    }
    // Padded, as the sample's and the documentation's is.
    let mut padded = claims("{}");
    padded["body"] = json!(format!("{}=", padded["body"].as_str().unwrap()));
    asked.message(&signed("sig_current_test", &hs256(), &padded, "{}"));
}

#[test]
fn no_other_algorithm_is_taken() {
    for algorithm in ["none", "HS512", "RS256", "hs256"] {
        let header = json!({ "alg": algorithm });
        receiver(SETTINGS).refuses_as_unproven(&signed("sig_current_test", &header, &claims("{}"), "{}"));
    }
    for token in ["", "a", "a.b", "a.b.c", "e30.e30.", "..", "!.!.!"] {
        let sample = Sample::read("qstash-01-signed").header("upstash-signature", token);
        receiver(SETTINGS).refuses_as_unproven(&sample);
    }
    receiver(SETTINGS).refuses_as_unproven(&Sample::read("qstash-01-signed").without("upstash-signature"));
}

#[test]
fn it_needs_an_id_and_a_type() {
    let sample = Sample::read("qstash-01-signed").without("upstash-message-id");
    assert!(receiver(SETTINGS).refuses_as_malformed(&sample).contains("upstash-message-id"));
    assert_eq!(super::problems("format = 'qstash'\nhandler = 'h'\nsecrets = 's'"), ["type"]);
}
