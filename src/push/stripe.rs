//! Stripe's webhooks ("Verify webhook signatures manually").
//!
//! `Stripe-Signature: t=SECONDS,v1=CODE[,v1=CODE…]`: each code is the HMAC-SHA256 of `SECONDS.BODY`, one per
//! secret that is in use at Stripe. The message's type and id are the event's `type` and `id`, its body the whole
//! event as it was sent. What is sent again has the same id and another signature.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use super::{Defaults, Format, Identity, Kind, Made, Push, Refusal, Request, headers, signature};
use crate::config::{Receiver, Secret};
use crate::domain::message::Draft;
use crate::domain::{Timestamp, json};

pub const KIND: Kind = Kind {
    name: "stripe",
    keys: &["secrets", "tolerance"],
    needs: &[],
    defaults: Defaults { body_bytes: 4 << 20, deadline: Duration::from_secs(9) },
    acknowledges: |_| true,
    retries: |_| true,
    make,
};

fn make(receiver: &Receiver) -> Made {
    Ok(Box::new(Stripe { secrets: super::secrets(receiver), tolerance: super::tolerance(receiver) }))
}

struct Stripe {
    /// None: the sender proves itself otherwise.
    secrets: Vec<Secret>,
    tolerance: Duration,
}

impl Format for Stripe {
    fn verifies(&self) -> bool {
        !self.secrets.is_empty()
    }

    fn read(&self, request: &Request<'_>, _: Option<&[u8]>) -> Result<Push, Refusal> {
        if self.verifies() {
            verify(&self.secrets, request.headers, request.body, request.now, self.tolerance)
                .map_err(Refusal::Unproven)?;
        }
        let draft = read(request.body, request.limits.json_depth).map_err(Refusal::malformed)?;
        Ok(Push::of_one(request, None, draft, Identity::Sender))
    }
}

const SIGNATURE: &str = "stripe-signature";
/// More codes than this are none of Stripe's.
const MOST_CODES: usize = 16;

/// Whether one of the secrets made one of the request's signatures, at most `tolerance` from `now`.
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
    let text = headers::needed(headers, SIGNATURE)?;
    let malformed = || format!("The header `{SIGNATURE}` is not `t=SECONDS,v1=CODE`.");
    let (mut signed_at, mut codes) = (None, Vec::new());
    for part in text.split(',').map(str::trim) {
        match part.split_once('=').ok_or_else(malformed)? {
            ("t", _) if signed_at.is_some() => return Err(malformed()),
            ("t", seconds) => signed_at = Some(seconds),
            ("v1", digits) => codes.extend(signature::hex(digits.as_bytes())),
            // Other schemes are Stripe's for tests.
            _ => {}
        }
    }
    let signed_at = signed_at.ok_or_else(malformed)?;
    if codes.len() > MOST_CODES {
        return Err(malformed());
    }
    let signed_s = signed_at.parse().map_err(|_| malformed())?;
    signature::fresh(signed_s, now, tolerance)?;
    if signature::matches(secrets, &[signed_at.as_bytes(), b".", body], &codes) {
        return Ok(());
    }
    Err(signature::NO_MATCH.to_owned())
}

/// The message.
///
/// # Errors
/// What is wrong with the request.
pub fn read(body: &Bytes, json_depth: usize) -> Result<Draft, String> {
    if json::is_deeper_than(body, json_depth) {
        return Err(format!("The body nests objects and arrays deeper than {json_depth} levels."));
    }
    let raw = json::document(body).map_err(|detail| format!("The body is {detail}."))?;
    let members = json::members(raw).ok_or("The body is no JSON object, as events are.")?;
    let text = |name: &str| {
        let mut found = members.iter().filter(|(member, _)| member == name);
        let value = found.next().filter(|_| found.next().is_none()).and_then(|(_, raw)| json::text(raw));
        value.filter(|text| !text.is_empty()).ok_or_else(|| format!("The event needs `{name}`, one text."))
    };
    let mut draft =
        Draft { id: Some(text("id")?), kind: text("type")?, body: body.clone(), ..Draft::default() };
    draft.envelope.content_type = Some("application/json".to_owned());
    Ok(draft)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str =
        r#"{"id":"evt_1","object":"event","type":"invoice.paid","data":{"object":{"id":"in_1"}}}"#;
    // printf '%s' "1760000000.$BODY" | openssl dgst -sha256 -hmac whsec_test (whsec_old)
    const BY_TEST: &str = "809a1b43cfda11d40fcf477f7675796364baa6e0b9eb032a699e250eeb33deff";
    const BY_OLD: &str = "b3a15c9e9c4f0c1ca1639647fa6fe9f333a41d47eab748cda79b4f88e7f7c4da";

    fn verified_at(now_s: i64, value: &str) -> Result<(), String> {
        let headers = [(SIGNATURE.parse().unwrap(), value.parse().unwrap())].into_iter().collect();
        let now = chrono::DateTime::from_timestamp(now_s, 0).unwrap();
        verify(&[Secret::new("whsec_test")], &headers, BODY.as_bytes(), now, Duration::from_secs(300))
    }

    #[test]
    fn one_of_several_codes_is_enough() {
        for value in [
            format!("t=1760000000,v1={BY_TEST}"),
            format!("t=1760000000,v1={BY_OLD},v1={BY_TEST},v0={BY_OLD}"),
            format!("v1={BY_TEST}, t=1760000000"),
        ] {
            assert_eq!(verified_at(1_760_000_000, &value), Ok(()), "{value}");
        }
    }

    #[test]
    fn what_is_no_signature_is_refused() {
        for value in [
            String::new(),
            BY_TEST.to_owned(),
            format!("t=1760000000,v1={BY_OLD}"),
            format!("t=1760000000,v0={BY_TEST}"),
            format!("t=1760000001,v1={BY_TEST}"),
            format!("t=+1760000000,v1={BY_TEST}"),
            format!("t=01760000000,v1={BY_TEST}"),
            format!("t=1760000000,t=1760000000,v1={BY_TEST}"),
            format!("t=soon,v1={BY_TEST}"),
            format!("v1={BY_TEST}"),
            "t=1760000000".to_owned(),
            "t=1760000000,v1=".to_owned(),
            format!("t=1760000000{}", format!(",v1={BY_TEST}").repeat(17)),
        ] {
            assert!(verified_at(1_760_000_000, &value).is_err(), "{value}");
        }
        let none = verify(&[], &HeaderMap::new(), b"", Timestamp::default(), Duration::ZERO);
        assert!(none.unwrap_err().contains("missing"));
    }

    #[test]
    fn the_tolerance_goes_both_ways() {
        let value = format!("t=1760000000,v1={BY_TEST}");
        for (now_s, fresh) in
            [(1_760_000_300, true), (1_759_999_700, true), (1_760_000_301, false), (1_759_999_699, false)]
        {
            assert_eq!(verified_at(now_s, &value).is_ok(), fresh, "{now_s}");
        }
    }

    #[test]
    fn the_event_says_its_type_and_id() {
        let draft = read(&Bytes::from(BODY), 64).unwrap();
        assert_eq!((draft.kind.as_str(), draft.id.as_deref()), ("invoice.paid", Some("evt_1")));
        assert_eq!(&draft.body[..], BODY.as_bytes());
        for body in [
            "",
            "[]",
            "{}",
            r#"{"id":"evt_1"}"#,
            r#"{"id":"","type":"a"}"#,
            r#"{"id":7,"type":"a"}"#,
            r#"{"id":"a","type":"a","type":"b"}"#,
        ] {
            assert!(read(&Bytes::from(body), 64).is_err(), "{body}");
        }
    }
}
