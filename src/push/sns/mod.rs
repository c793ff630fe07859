//! Amazon SNS over HTTP ("Fanout Amazon SNS notifications to HTTPS endpoints").
//!
//! - [`envelope`]: the JSON object that is posted (as `text/plain`), and what of it is signed.
//! - [`address`]: which certificate and confirmation URLs may be asked for.
//! - [`certificate`]: the key that verifies.
//!
//! The message's body is `Message`, its source the topic's ARN, its subject `Subject`; message attributes
//! become headers (they are not signed: whoever changes a message on its way can change them). Where a
//! subscription has raw message delivery, the body is the message itself, without attributes and without a
//! signature: its sender has to prove itself otherwise.

pub mod address;
pub mod certificate;
pub mod envelope;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use self::certificate::Certificate;
use self::envelope::{Confirmation, Envelope, Kind as Type};
use super::{Defaults, Format, Identity, Kind, Made, Push, Refusal, Request, Sender, What, headers};
use crate::config::Receiver;
use crate::config::receivers::{Authorize, Confirm};
use crate::domain::json;
use crate::domain::message::Draft;

pub const KIND: Kind = Kind {
    name: "sns",
    keys: &["certificate", "confirm", "sources"],
    needs: &["type"],
    // A message has 256 KiB, and six times as much where all of it is escaped. SNS waits for 15 s.
    defaults: Defaults { body_bytes: 2 << 20, deadline: Duration::from_secs(13) },
    acknowledges: |_| true,
    // What is answered 4xx is not sent again.
    retries: |status| status >= 500,
    make,
};

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

fn make(receiver: &Receiver) -> Made {
    let mut problems: Vec<_> = super::lacks_type(receiver).into_iter().collect();
    if receiver.sources.as_ref().is_none_or(std::collections::BTreeMap::is_empty) {
        let text = "list the ARNs of the topics that may push here: `sources = { \"arn:…\" = {} }`";
        problems.push(("sources", text.to_owned()));
    }
    let pinned = receiver.certificate.as_ref().and_then(|path| {
        let read = std::fs::read(path).map_err(|error| format!("cannot be read: {error}"));
        let certificate = read.and_then(|text| Certificate::from_pem(&text).map_err(str::to_owned));
        certificate.map_err(|text| problems.push(("certificate", text))).ok()
    });
    let signatures = match (&receiver.certificate, receiver.authorize) {
        (None, Authorize::Anonymous) => Signatures::Ignored,
        _ => Signatures::Verified,
    };
    if problems.is_empty() {
        Ok(Box::new(Sns { pinned, signatures, confirm: receiver.confirm.unwrap_or_default() }))
    } else {
        Err(problems)
    }
}

struct Sns {
    pinned: Option<Certificate>,
    signatures: Signatures,
    confirm: Confirm,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Signatures {
    Verified,
    /// Anybody may push, by the operator's word.
    Ignored,
}

impl Format for Sns {
    fn verifies(&self) -> bool {
        self.signatures == Signatures::Verified
    }

    fn read(&self, request: &Request<'_>, fetched: Option<&[u8]>) -> Result<Push, Refusal> {
        if is_raw(request.headers) {
            return self.raw(request);
        }
        let envelope = Envelope::read(request.body, request.limits.json_depth).map_err(Refusal::malformed)?;
        let source = Some(envelope.topic.clone());
        if self.signatures == Signatures::Verified
            && let Some(needed) = self.verify(&envelope, request, fetched)?
        {
            return Ok(Push { source, what: needed });
        }
        let what = match &envelope.kind {
            Type::Notification => {
                return Ok(Push::of_one(request, source, message(envelope), Identity::Sender));
            }
            Type::SubscriptionConfirmation(it) => self.confirmation(&envelope.topic, it)?,
            Type::UnsubscribeConfirmation(_) => {
                What::Notice(format!("a subscription of the topic `{}` has ended", envelope.topic))
            }
        };
        Ok(Push { source, what })
    }
}

impl Sns {
    /// Whether SNS signed the envelope; `Some`: what is needed to tell.
    fn verify(
        &self,
        envelope: &Envelope,
        request: &Request<'_>,
        fetched: Option<&[u8]>,
    ) -> Result<Option<What>, Refusal> {
        let refused = |text: &str| Refusal::Unproven(format!("The message is not signed by SNS: {text}."));
        let signature = envelope.signature().map_err(refused)?;
        // The rules for the URL stand even where nothing is asked for.
        let url = address::certificate(signature.certificate_url)
            .map_err(|error| refused(&format!("its `SigningCertURL` is refused: {error}")))?;
        let read;
        let certificate = match (&self.pinned, fetched) {
            (Some(pinned), _) => pinned,
            (None, Some(document)) => {
                read = Certificate::from_pem(document)
                    .map_err(|text| refused(&format!("what is at its `SigningCertURL` {text}")))?;
                &read
            }
            (None, None) => return Ok(Some(What::Needs(url))),
        };
        let signed = envelope.signed();
        certificate
            .verify(signature.version, signed.as_bytes(), &signature.bytes, request.now)
            .map_err(|error| refused(&error.to_string()))?;
        Ok(None)
    }

    fn confirmation(&self, topic: &str, it: &Confirmation) -> Result<What, Refusal> {
        let url = address::confirmation(&it.subscribe_url, topic, &it.token)
            .map_err(|error| Refusal::Unproven(format!("Its `SubscribeURL` is refused: {error}.")))?;
        Ok(match self.confirm {
            Confirm::Automatic => What::Confirm(url),
            Confirm::Operator => What::Notice(format!(
                "a subscription of the topic `{topic}` waits until somebody confirms it by opening {url}"
            )),
        })
    }

    fn raw(&self, request: &Request<'_>) -> Result<Push, Refusal> {
        if request.sender == Sender::Unknown {
            return Err(Refusal::Unproven(
                "Raw message delivery has no signature: configure `api_key` for this receiver, or turn it off for \
                 the subscription."
                    .to_owned(),
            ));
        }
        let (topic, draft) = raw(request.headers, request.body).map_err(Refusal::malformed)?;
        Ok(Push::of_one(request, Some(topic), draft, Identity::Sender))
    }
}

/// Whether the request is a message as it is, without an envelope.
fn is_raw(headers: &HeaderMap) -> bool {
    headers.get("x-amz-sns-rawdelivery").is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
}

/// Reads a message that comes without an envelope: its topic, and itself.
fn raw(headers: &HeaderMap, body: &Bytes) -> Result<(String, Draft), String> {
    match headers::text(headers, "x-amz-sns-message-type")? {
        None | Some("Notification") => {}
        Some(_) => return Err("Raw delivery is for notifications only.".to_owned()),
    }
    let id = headers::needed(headers, "x-amz-sns-message-id")?;
    let topic = headers::needed(headers, "x-amz-sns-topic-arn")?;
    Ok((topic.to_owned(), draft(id, topic, body.clone())))
}

/// The message of a notification.
fn message(envelope: Envelope) -> Draft {
    let mut draft = draft(&envelope.message_id, &envelope.topic, Bytes::from(envelope.message));
    draft.envelope.subject = envelope.subject.filter(|subject| !subject.is_empty());
    for (name, value) in envelope.attributes {
        draft.envelope.headers.insert(name.to_ascii_lowercase(), value);
    }
    if chrono::DateTime::parse_from_rfc3339(&envelope.timestamp).is_ok() {
        draft.envelope.headers.entry("ce-time".to_owned()).or_insert(envelope.timestamp);
    }
    draft
}

fn draft(id: &str, topic: &str, body: Bytes) -> Draft {
    let content_type = if is_json_container(&body) { JSON } else { TEXT };
    let mut draft = Draft { id: Some(id.to_owned()), body, ..Draft::default() };
    draft.envelope.source = Some(topic.to_owned());
    draft.envelope.content_type = Some(content_type.to_owned());
    draft
}

/// SNS says of no message what it is. An object or an array is taken for what it looks like; a number or a
/// word is text.
fn is_json_container(body: &[u8]) -> bool {
    matches!(body.trim_ascii_start().first(), Some(b'{' | b'[')) && json::document(body).is_ok()
}
