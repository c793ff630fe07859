//! GitHub's webhooks ("Webhook events and payloads", "Validating webhook deliveries").
//!
//! The message's type is `X-GitHub-Event` (`push`, `pull_request`, …), its body the JSON payload as it was sent;
//! a hook that sends forms has it in the parameter `payload`. A delivery that somebody sends again has the same
//! `X-GitHub-Delivery`; GitHub sends nothing again by itself.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use super::{Defaults, Format, Identity, Kind, Made, Push, Refusal, Request, headers, signature};
use crate::config::{Receiver, Secret};
use crate::domain::message::Draft;
use crate::domain::{json, media};

pub const KIND: Kind = Kind {
    name: "github",
    keys: &["secrets"],
    needs: &[],
    // Payloads have 25 MB at most; GitHub waits for ten seconds, and sends nothing again by itself.
    defaults: Defaults { body_bytes: 26 << 20, deadline: Duration::from_secs(9) },
    acknowledges: |_| true,
    retries: |_| true,
    make,
};

fn make(receiver: &Receiver) -> Made {
    Ok(Box::new(GitHub { secrets: super::secrets(receiver) }))
}

struct GitHub {
    /// None: the sender proves itself otherwise.
    secrets: Vec<Secret>,
}

impl Format for GitHub {
    fn verifies(&self) -> bool {
        !self.secrets.is_empty()
    }

    fn read(&self, request: &Request<'_>, _: Option<&[u8]>) -> Result<Push, Refusal> {
        if self.verifies() {
            verify(&self.secrets, request.headers, request.body).map_err(Refusal::Unproven)?;
        }
        let draft =
            read(request.headers, request.body, request.limits.json_depth).map_err(Refusal::malformed)?;
        Ok(Push::of_one(request, None, draft, Identity::Sender))
    }
}

const SIGNATURE: &str = "x-hub-signature-256";
const FORM: &str = "application/x-www-form-urlencoded";

/// Headers that say whose hook it was; they go on as the message's own.
const HOOK: [&str; 3] =
    ["x-github-hook-id", "x-github-hook-installation-target-id", "x-github-hook-installation-target-type"];

/// Whether one of the secrets made the request's signature. The older SHA-1 signature counts for nothing.
///
/// # Errors
/// Why not.
pub fn verify(secrets: &[Secret], headers: &HeaderMap, body: &[u8]) -> Result<(), String> {
    let text = headers::needed(headers, SIGNATURE)?;
    let code = text.strip_prefix("sha256=").and_then(|digits| signature::hex(digits.as_bytes()));
    let code =
        code.ok_or_else(|| format!("The header `{SIGNATURE}` is not `sha256=` and hexadecimal digits."))?;
    if signature::matches(secrets, &[body], &[code]) {
        return Ok(());
    }
    Err(signature::NO_MATCH.to_owned())
}

/// The message.
///
/// # Errors
/// What is wrong with the request.
pub fn read(headers: &HeaderMap, body: &Bytes, json_depth: usize) -> Result<Draft, String> {
    let kind = headers::needed(headers, "x-github-event")?;
    let id = headers::needed(headers, "x-github-delivery")?;
    let form =
        headers::text(headers, "content-type")?.is_some_and(|content_type| media::is(content_type, FORM));
    let body = if form { payload(body)? } else { body.clone() };
    if json::is_deeper_than(&body, json_depth) {
        return Err(format!("The payload nests objects and arrays deeper than {json_depth} levels."));
    }
    json::document(&body).map_err(|detail| format!("The payload is {detail}."))?;
    let mut draft = Draft { id: Some(id.to_owned()), kind: kind.to_owned(), body, ..Draft::default() };
    draft.envelope.content_type = Some("application/json".to_owned());
    for name in HOOK {
        if let Some(value) = headers::text(headers, name)? {
            draft.envelope.headers.insert(name.to_owned(), value.to_owned());
        }
    }
    Ok(draft)
}

/// The parameter `payload` of a form.
fn payload(form: &[u8]) -> Result<Bytes, String> {
    url::form_urlencoded::parse(form)
        .find(|(name, _)| name == "payload")
        .map(|(_, value)| Bytes::from(value.into_owned()))
        .ok_or_else(|| "The form has no parameter `payload`.".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    // GitHub's own example, "Validating webhook deliveries".
    const SECRET: &str = "It's a Secret to Everybody";
    const EXAMPLE: &str = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    // printf … | openssl dgst -sha256 -hmac "$SECRET"
    const FORM_BODY: &str = "payload=%7B%22zen%22%3A%22a+b%22%7D";
    const FORM_CODE: &str = "sha256=427b05bda3a79bc7ef3bcf683ff0ee7fe749b134a1c9f826719acb4727547d9a";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn verified(signature: &str, body: &str) -> Result<(), String> {
        let secrets = [Secret::new("another"), Secret::new(SECRET)];
        verify(&secrets, &headers(&[(SIGNATURE, signature)]), body.as_bytes())
    }

    #[test]
    fn the_public_vector() {
        assert_eq!(verified(EXAMPLE, "Hello, World!"), Ok(()));
        assert_eq!(verified(&EXAMPLE.replace('e', "E"), "Hello, World!"), Ok(()));
        assert_eq!(verified(FORM_CODE, FORM_BODY), Ok(()));
    }

    #[test]
    fn what_is_no_signature_of_the_body_is_refused() {
        assert_eq!(verified(EXAMPLE, "Hello, World"), Err(signature::NO_MATCH.to_owned()));
        for wrong in
            ["", "sha256=", &EXAMPLE[7..], &EXAMPLE[..70], &EXAMPLE.replace("sha256", "sha1"), "sha256=zz"]
        {
            assert!(verified(wrong, "Hello, World!").is_err(), "{wrong}");
        }
        assert!(verify(&[Secret::new(SECRET)], &HeaderMap::new(), b"Hello, World!").is_err());
        let twice = [(SIGNATURE, EXAMPLE), (SIGNATURE, EXAMPLE)];
        let mut both = HeaderMap::new();
        for (name, value) in twice {
            both.append(name, value.parse().unwrap());
        }
        assert!(verify(&[Secret::new(SECRET)], &both, b"Hello, World!").is_err());
    }

    #[test]
    fn a_form_holds_the_payload_in_a_parameter() {
        let mut pairs = vec![
            ("x-github-event", "push"),
            ("x-github-delivery", "d-1"),
            ("x-github-hook-id", "7"),
            ("content-type", "application/x-www-form-urlencoded"),
        ];
        let read_with = |pairs: &[_], body: &'static str| read(&headers(pairs), &Bytes::from(body), 64);
        let draft = read_with(&pairs, FORM_BODY).unwrap();
        assert_eq!((draft.kind.as_str(), draft.id.as_deref()), ("push", Some("d-1")));
        assert_eq!(&draft.body[..], br#"{"zen":"a b"}"#);
        assert_eq!(draft.envelope.content_type.as_deref(), Some("application/json"));
        assert_eq!(draft.envelope.headers["x-github-hook-id"], "7");
        assert!(read_with(&pairs, "other=1").is_err());
        pairs[3].1 = "application/json";
        assert!(read_with(&pairs, FORM_BODY).unwrap_err().contains("not valid JSON"));
        assert!(read_with(&pairs[..1], "{}").unwrap_err().contains("x-github-delivery"));
        assert!(read_with(&pairs[1..], "{}").unwrap_err().contains("x-github-event"));
    }
}
