//! Golden vectors: messages with the signatures that they have to have.

use super::certificate::{VerifyError, Version};
use super::*;
use crate::domain::Timestamp;

const CERTIFICATE: &[u8] = include_bytes!("../../../tests/push/keys/sns-test-cert.pem");
const CONFIRMATION: &[u8] =
    include_bytes!("../../../tests/push/samples/sns-01-subscription-confirmation.http");
const V1: &[u8] = include_bytes!("../../../tests/push/samples/sns-02-notification-v1.http");
const V2: &[u8] =
    include_bytes!("../../../tests/push/samples/sns-03-notification-v2-no-subject-attributes.http");

fn now() -> Timestamp {
    chrono::DateTime::from_timestamp(1_760_000_000, 0).unwrap()
}

fn body(request: &[u8]) -> &[u8] {
    let head = request.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    &request[head + 4..]
}

fn verified(envelope: &Envelope) -> Result<(), VerifyError> {
    let signature = envelope.signature().unwrap();
    let certificate = Certificate::from_pem(CERTIFICATE).unwrap();
    certificate.verify(signature.version, envelope.signed().as_bytes(), &signature.bytes, now())
}

#[test]
fn the_signature_covers_the_canonical_string_to_the_byte() {
    for request in [CONFIRMATION, V1, V2] {
        let envelope = Envelope::read(body(request), 64).unwrap();
        assert_eq!(verified(&envelope), Ok(()), "{envelope:?}");
        for tampered in [
            Envelope { message: format!("{} ", envelope.message), ..envelope.clone() },
            Envelope { message_id: "x".to_owned(), ..envelope.clone() },
            Envelope { topic: format!("{}x", envelope.topic), ..envelope.clone() },
            Envelope { timestamp: "2025-10-09T08:53:18.102Z".to_owned(), ..envelope.clone() },
        ] {
            assert_eq!(verified(&tampered), Err(VerifyError::NoMatch));
        }
    }
    let envelope = Envelope::read(body(V1), 64).unwrap();
    let renamed = Envelope { subject: Some("Other".to_owned()), ..envelope.clone() };
    assert_eq!(verified(&renamed), Err(VerifyError::NoMatch));
    let without = Envelope { subject: None, ..envelope };
    assert_eq!(verified(&without), Err(VerifyError::NoMatch));
}

#[test]
fn the_canonical_strings_of_the_documentation() {
    let notification = Envelope::read(
        br#"{"Type":"Notification","MessageId":"m","TopicArn":"t","Subject":"My\nsubject","Message":"a\u00e9",
            "Timestamp":"now","Signature":"AAAA","SignatureVersion":"1","SigningCertURL":"https://x"}"#,
        64,
    )
    .unwrap();
    assert_eq!(
        notification.signed(),
        "Message\naé\nMessageId\nm\nSubject\nMy\nsubject\nTimestamp\nnow\nTopicArn\nt\nType\nNotification\n"
    );
    let confirmation = Envelope::read(
        br#"{"Type":"UnsubscribeConfirmation","MessageId":"m","TopicArn":"t","Message":"a","Timestamp":"now",
            "Token":"k","SubscribeURL":"https://s"}"#,
        64,
    )
    .unwrap();
    assert_eq!(
        confirmation.signed(),
        "Message\na\nMessageId\nm\nSubscribeURL\nhttps://s\nTimestamp\nnow\nToken\nk\nTopicArn\nt\nType\nUnsubscribeConfirmation\n"
    );
}

#[test]
fn a_version_is_not_taken_for_the_other() {
    let v1 = Envelope::read(body(V1), 64).unwrap();
    let certificate = Certificate::from_pem(CERTIFICATE).unwrap();
    let signature = v1.signature().unwrap();
    assert_eq!(signature.version, Version::Sha1);
    let as_other = certificate.verify(Version::Sha256, v1.signed().as_bytes(), &signature.bytes, now());
    assert_eq!(as_other, Err(VerifyError::NoMatch));
}

#[test]
fn certificates_end_and_not_every_key_will_do() {
    let read = |name: &str| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/push/keys/");
        Certificate::from_pem(&std::fs::read(format!("{path}{name}")).unwrap()).unwrap()
    };
    let v1 = Envelope::read(body(V1), 64).unwrap();
    let signature = v1.signature().unwrap();
    let verify = |certificate: &Certificate| {
        certificate.verify(signature.version, v1.signed().as_bytes(), &signature.bytes, now())
    };
    assert_eq!(verify(&read("sns-expired-cert.pem")), Err(VerifyError::Expired));
    for other in ["sns-signing-cert.pem", "sns-weak-cert.pem", "sns-ec-cert.pem"] {
        assert_eq!(verify(&read(other)), Err(VerifyError::NoMatch), "{other}");
    }
    for none in [&b""[..], b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", b"<html>"] {
        assert!(Certificate::from_pem(none).is_err());
    }
    assert!(Certificate::from_pem(&vec![b' '; certificate::LARGEST_BYTES + 1]).is_err());
}

#[test]
fn what_is_no_envelope_says_why() {
    for (body, expected) in [
        ("", "not valid JSON"),
        ("[]", "no JSON object"),
        ("{}", "no `Type`"),
        (r#"{"Type":"Notification"}"#, "`MessageId`"),
        (r#"{"Type":"Notification","MessageId":7}"#, "`MessageId` must be a string"),
        (r#"{"Type":"Notification","Type":"Notification"}"#, "`Type` more than once"),
        (r#"{"Type":"SubscriptionConfirmation","MessageId":"m"}"#, "`Token`"),
        (
            r#"{"Type":"Notification","MessageId":"m","TopicArn":"t","Message":"a","Timestamp":"n","MessageAttributes":[]}"#,
            "MessageAttributes",
        ),
        (r#"{"Type":"Notification","Message":"\ud800"}"#, "MessageId"),
    ] {
        let error = Envelope::read(body.as_bytes(), 64).unwrap_err();
        assert!(error.contains(expected), "{body}: {error}");
    }
    let deep = format!("{{\"Type\":{}1{}}}", "[".repeat(70), "]".repeat(70));
    assert!(Envelope::read(deep.as_bytes(), 64).unwrap_err().contains("64 levels"));
    // The casing of Lambda's events is not that of HTTP.
    let lambda = include_bytes!("../../../tests/push/samples/sns-09-lambda-casing.json");
    assert!(Envelope::read(lambda, 64).is_err());
}

#[test]
fn a_notification_becomes_a_message() {
    let draft = message(Envelope::read(body(V2), 64).unwrap());
    assert_eq!(draft.envelope.source.as_deref(), Some("arn:aws:sns:us-east-1:111122223333:orders"));
    assert_eq!(&draft.body[..], br#"{"order":1}"#);
    assert_eq!(draft.envelope.content_type.as_deref(), Some("application/json"));
    assert_eq!(draft.envelope.headers["kind"], "order.created");
    assert_eq!(draft.envelope.headers["blob"], "AAH/");
    let confirmation = Envelope::read(body(CONFIRMATION), 64).unwrap();
    assert!(matches!(confirmation.kind, Type::SubscriptionConfirmation(_)));
}

#[test]
fn text_is_taken_for_text() {
    for (body, expected) in
        [("{}", JSON), (" [1]", JSON), ("7", TEXT), ("true", TEXT), ("{not json", TEXT), ("", TEXT)]
    {
        let draft = draft("m", "t", Bytes::from(body));
        assert_eq!(draft.envelope.content_type.as_deref(), Some(expected), "{body}");
    }
}
