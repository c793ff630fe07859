//! Amazon SNS over HTTP ("Fanout Amazon SNS notifications to HTTPS endpoints").
//!
//! - [`envelope`]: the JSON object that is posted (as `text/plain`), and what of it is signed.
//! - [`address`]: which certificate and confirmation URLs may be asked for.
//! - [`certificate`]: the key that verifies.
//!
//! The message's body is `Message`, its source the topic's ARN, its subject `Subject`; message attributes
//! become headers (they are not signed: whoever changes a message on its way can change them). Where a
//! subscription has raw message delivery, the body is the message itself, without attributes and without a
//! signature.

pub mod address;
pub mod certificate;
pub mod envelope;

use bytes::Bytes;
use http::HeaderMap;

use super::headers;
use crate::domain::json;
use crate::domain::message::Draft;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// A message, and the topic that it says it is from.
#[derive(Clone, Debug, PartialEq)]
pub struct FromTopic {
    pub topic: String,
    pub draft: Draft,
}

/// Whether the request is a message as it is, without an envelope.
pub fn is_raw(headers: &HeaderMap) -> bool {
    headers.get("x-amz-sns-rawdelivery").is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
}

/// Reads a message that comes without an envelope.
///
/// # Errors
/// What is wrong with the request.
pub fn raw(headers: &HeaderMap, body: &Bytes, kind: &str) -> Result<FromTopic, String> {
    match headers::text(headers, "x-amz-sns-message-type")? {
        None | Some("Notification") => {}
        Some(_) => return Err("Raw delivery is for notifications only.".to_owned()),
    }
    let id = headers::needed(headers, "x-amz-sns-message-id")?;
    let topic = headers::needed(headers, "x-amz-sns-topic-arn")?;
    Ok(FromTopic { topic: topic.to_owned(), draft: draft(id, topic, kind, body.clone()) })
}

impl envelope::Envelope {
    /// The message of a notification.
    pub fn into_message(self, kind: &str) -> FromTopic {
        let mut draft = draft(&self.message_id, &self.topic, kind, Bytes::from(self.message));
        draft.envelope.subject = self.subject.filter(|subject| !subject.is_empty());
        for (name, value) in self.attributes {
            draft.envelope.headers.insert(name.to_ascii_lowercase(), value);
        }
        if chrono::DateTime::parse_from_rfc3339(&self.timestamp).is_ok() {
            draft.envelope.headers.insert("ce-time".to_owned(), self.timestamp);
        }
        FromTopic { topic: self.topic, draft }
    }
}

fn draft(id: &str, topic: &str, kind: &str, body: Bytes) -> Draft {
    let content_type = if is_json_container(&body) { JSON } else { TEXT };
    let mut draft = Draft { id: Some(id.to_owned()), kind: kind.to_owned(), body, ..Draft::default() };
    draft.envelope.source = Some(topic.to_owned());
    draft.envelope.content_type = Some(content_type.to_owned());
    draft
}

/// SNS says of no message what it is. An object or an array is taken for what it looks like; a number or a
/// word is text.
fn is_json_container(body: &[u8]) -> bool {
    matches!(body.trim_ascii_start().first(), Some(b'{' | b'[')) && json::document(body).is_ok()
}

#[cfg(test)]
mod tests;
