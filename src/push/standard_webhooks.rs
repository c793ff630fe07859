//! Webhooks that are signed as Standard Webhooks say (standardwebhooks.com, version 1.0.0).
//!
//! The body goes on whole and as it was sent; the message's type is the member `type` of a JSON body, else the
//! one that the receiver is configured with. `webhook-id` is the message's id: what is sent again has the same.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use super::{Defaults, Format, Identity, Kind, Made, Push, Refusal, Request, headers};
use crate::config::{Receiver, Secret};
use crate::domain::message::Draft;
use crate::domain::standard_webhooks::{self as signing, Headers, Key};
use crate::domain::{Timestamp, json, media};

pub use crate::domain::standard_webhooks::TOLERANCE;

pub const KIND: Kind = Kind {
    name: "standard-webhooks",
    keys: &["secrets", "tolerance"],
    needs: &[],
    // Senders are told to wait for 15 to 30 s, and to keep payloads below 20 kB.
    defaults: Defaults { body_bytes: 4 << 20, deadline: Duration::from_secs(14) },
    acknowledges: |_| true,
    // 410 ends the subscription.
    retries: |status| status != 410,
    make,
};

fn make(receiver: &Receiver) -> Made {
    let secrets = super::secrets(receiver);
    for secret in &secrets {
        if let Err(problem) = Key::parse(&secret.expose()) {
            return Err(vec![("secrets", format!("a secret {problem}"))]);
        }
    }
    Ok(Box::new(StandardWebhooks { secrets, tolerance: super::tolerance(receiver) }))
}

struct StandardWebhooks {
    /// None: the sender proves itself otherwise.
    secrets: Vec<Secret>,
    tolerance: Duration,
}

impl Format for StandardWebhooks {
    fn verifies(&self) -> bool {
        !self.secrets.is_empty()
    }

    fn read(&self, request: &Request<'_>, _: Option<&[u8]>) -> Result<Push, Refusal> {
        if self.verifies() {
            verify(&self.secrets, request.headers, request.body, request.now, self.tolerance)
                .map_err(Refusal::Unproven)?;
        }
        let draft =
            read(request.headers, request.body, request.limits.json_depth).map_err(Refusal::malformed)?;
        Ok(Push::of_one(request, None, draft, Identity::Message))
    }
}

/// Whether one of the secrets made one of the request's signatures, at most `tolerance` from `now`. A secret that
/// is none any more (its file was changed) makes none.
///
/// # Errors
/// Why not.
pub fn verify(
    secrets: &[Secret],
    headers: &HeaderMap,
    body: &[u8],
    now: Timestamp,
    tolerance: Duration,
) -> Result<(), String> {
    let keys: Vec<Key> = secrets.iter().filter_map(|secret| Key::parse(&secret.expose()).ok()).collect();
    let found = Headers {
        id: headers::text(headers, signing::ID_HEADER)?,
        timestamp: headers::text(headers, signing::TIMESTAMP_HEADER)?,
        signature: headers::text(headers, signing::SIGNATURE_HEADER)?,
    };
    signing::verify(&keys, found, body, now, tolerance).map_err(|error| error.to_string())
}

/// The message; its type is empty where the body says none.
///
/// # Errors
/// What is wrong with the request.
pub fn read(headers: &HeaderMap, body: &Bytes, json_depth: usize) -> Result<Draft, String> {
    let id = headers::needed(headers, signing::ID_HEADER)?;
    let content_type = headers::text(headers, "content-type")?;
    if json::is_deeper_than(body, json_depth) {
        return Err(format!("The body nests objects and arrays deeper than {json_depth} levels."));
    }
    let document = json::document(body);
    if let (Some(content_type), Err(detail)) = (content_type, &document)
        && media::is_json(content_type)
    {
        return Err(format!("The body is {detail}."));
    }
    let said = document.ok().and_then(json::members).and_then(|members| {
        let mut found = members.iter().filter(|(member, _)| member == "type");
        found.next().filter(|_| found.next().is_none()).and_then(|(_, raw)| json::text(raw))
    });
    let kind = said.unwrap_or_default();
    let mut draft = Draft { id: Some(id.to_owned()), kind, body: body.clone(), ..Draft::default() };
    draft.envelope.content_type = content_type.map(str::to_owned);
    Ok(draft)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_with(content_type: Option<&str>, body: &'static str) -> Result<Draft, String> {
        let mut headers = HeaderMap::new();
        headers.insert(signing::ID_HEADER, "msg_1".parse().unwrap());
        if let Some(content_type) = content_type {
            headers.insert("content-type", content_type.parse().unwrap());
        }
        read(&headers, &Bytes::from(body), 64)
    }

    #[test]
    fn the_type_is_the_bodys_if_it_says_one() {
        let json = Some("application/json");
        let kind = |content_type, body| read_with(content_type, body).map(|draft| draft.kind);
        assert_eq!(kind(json, r#"{"type":"a.b","data":{}}"#).unwrap(), "a.b");
        assert_eq!(kind(None, r#"{"type":"a.b"}"#).unwrap(), "a.b");
        for untyped in
            [r#"{"data":{}}"#, r#"{"type":7}"#, r#"{"type":""}"#, r#"{"type":"a","type":"b"}"#, "[]"]
        {
            assert_eq!(kind(json, untyped).unwrap(), "", "{untyped}");
        }
        assert_eq!(kind(Some("text/plain"), "hello").unwrap(), "");
        assert!(kind(json, "hello").unwrap_err().contains("not valid JSON"));
    }

    #[test]
    fn the_body_goes_on_whole() {
        let draft = read_with(Some("application/json; charset=utf-8"), " {\"type\":\"a\"}\n").unwrap();
        assert_eq!((draft.id.as_deref(), &draft.body[..]), (Some("msg_1"), &b" {\"type\":\"a\"}\n"[..]));
        assert_eq!(draft.envelope.content_type.as_deref(), Some("application/json; charset=utf-8"));
        assert!(read(&HeaderMap::new(), &Bytes::new(), 64).unwrap_err().contains("webhook-id"));
    }
}
