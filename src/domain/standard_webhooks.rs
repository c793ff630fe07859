//! Standard Webhooks signatures (standardwebhooks.com, version 1.0.0 of the specification): HMAC-SHA256 over
//! `id.timestamp.body`.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::Timestamp;

/// The header with the message's id. It is signed, and what a receiver deduplicates on.
pub const ID_HEADER: &str = "webhook-id";
/// The header with the moment of the attempt, in seconds of Unix time.
pub const TIMESTAMP_HEADER: &str = "webhook-timestamp";
/// The header with the signatures, separated by spaces.
pub const SIGNATURE_HEADER: &str = "webhook-signature";
/// How far a timestamp may be from the receiver's clock, either way.
pub const TOLERANCE: Duration = Duration::from_secs(5 * 60);

const SECRET_PREFIX: &str = "whsec_";

/// Secrets are in the wild with and without padding.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A symmetric signing key.
#[derive(Clone)]
pub struct Key(Vec<u8>);

impl Key {
    /// Reads a secret in its written form: `whsec_` and base64.
    ///
    /// # Errors
    /// What is wrong with it, without a part of it.
    pub fn parse(secret: &str) -> Result<Self, &'static str> {
        let encoded = secret.strip_prefix(SECRET_PREFIX).ok_or("is not `whsec_` followed by base64")?;
        match LENIENT.decode(encoded) {
            Ok(bytes) if bytes.is_empty() => Err("holds no key after `whsec_`"),
            Ok(bytes) => Ok(Self(bytes)),
            Err(_) => Err("holds no base64 after `whsec_`"),
        }
    }

    /// The signature of one message, with its scheme: `v1,` and base64.
    pub fn sign(&self, id: &str, timestamp_s: i64, body: &[u8]) -> String {
        let code = self.mac(id, &timestamp_s.to_string(), body).finalize().into_bytes();
        format!("v1,{}", STANDARD.encode(code))
    }

    fn mac(&self, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
        // HMAC takes keys of any length; the error is that of other algorithms' interface.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// What a request carries beside its body; `None`: the header is not there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers<'a> {
    pub id: Option<&'a str>,
    pub timestamp: Option<&'a str>,
    pub signature: Option<&'a str>,
}

/// Why a request is not taken for its sender's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    #[error("the header `{0}` is missing")]
    Missing(&'static str),
    #[error("the header `webhook-timestamp` is not a number of seconds")]
    Timestamp,
    #[error("it was signed too long ago, or the clocks differ")]
    TooOld,
    #[error("it was signed in the future: the clocks differ")]
    TooNew,
    #[error("no signature matches: another secret, or the body was changed on its way")]
    NoMatch,
}

/// Whether one of the request's signatures was made with one of `keys`, at most `tolerance` from `now`.
///
/// # Errors
/// Why not.
pub fn verify(
    keys: &[Key],
    headers: Headers<'_>,
    body: &[u8],
    now: Timestamp,
    tolerance: Duration,
) -> Result<(), VerifyError> {
    let id = headers.id.ok_or(VerifyError::Missing(ID_HEADER))?;
    let timestamp = headers.timestamp.ok_or(VerifyError::Missing(TIMESTAMP_HEADER))?;
    let signatures = headers.signature.ok_or(VerifyError::Missing(SIGNATURE_HEADER))?;
    let signed_s: i64 = timestamp.parse().map_err(|_| VerifyError::Timestamp)?;
    let tolerance_s = i64::try_from(tolerance.as_secs()).unwrap_or(i64::MAX);
    let age_s = now.timestamp().saturating_sub(signed_s);
    if age_s > tolerance_s {
        return Err(VerifyError::TooOld);
    }
    if age_s < tolerance_s.saturating_neg() {
        return Err(VerifyError::TooNew);
    }
    let matches = signatures
        .split(' ')
        .filter_map(|signature| signature.strip_prefix("v1,"))
        .filter_map(|encoded| STANDARD.decode(encoded).ok())
        .any(|code| keys.iter().any(|key| key.mac(id, timestamp, body).verify_slice(&code).is_ok()));
    if matches { Ok(()) } else { Err(VerifyError::NoMatch) }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The specification's own example.
    const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    const ID: &str = "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk";
    const AT: i64 = 1_649_367_553;
    const BODY: &[u8] = br#"{"email":"test@example.com","username":"test_user"}"#;
    const SIGNATURE: &str = "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=";

    fn at(seconds: i64) -> Timestamp {
        chrono::DateTime::from_timestamp(seconds, 0).unwrap()
    }

    fn check(signature: &str, body: &[u8], now: Timestamp) -> Result<(), VerifyError> {
        let key = Key::parse(SECRET).unwrap();
        let timestamp = AT.to_string();
        let headers = Headers { id: Some(ID), timestamp: Some(&timestamp), signature: Some(signature) };
        verify(&[key], headers, body, now, TOLERANCE)
    }

    #[test]
    fn the_public_vector() {
        assert_eq!(Key::parse(SECRET).unwrap().sign(ID, AT, BODY), SIGNATURE);
        assert_eq!(check(SIGNATURE, BODY, at(AT)), Ok(()));
    }

    #[test]
    fn one_of_several_signatures_is_enough() {
        let several = format!("v1a,AAAA v1,AAAA {SIGNATURE} v2,x");
        assert_eq!(check(&several, BODY, at(AT)), Ok(()));
    }

    #[test]
    fn one_of_several_keys_is_enough() {
        let keys = [Key::parse("whsec_AAAA").unwrap(), Key::parse(SECRET).unwrap()];
        let timestamp = AT.to_string();
        let headers = Headers { id: Some(ID), timestamp: Some(&timestamp), signature: Some(SIGNATURE) };
        assert_eq!(verify(&keys, headers, BODY, at(AT), TOLERANCE), Ok(()));
        assert_eq!(verify(&keys[..1], headers, BODY, at(AT), TOLERANCE), Err(VerifyError::NoMatch));
    }

    #[test]
    fn what_was_changed_or_is_stale_is_refused() {
        assert_eq!(check(SIGNATURE, b"{}", at(AT)), Err(VerifyError::NoMatch));
        assert_eq!(check("v1,AAAA", BODY, at(AT)), Err(VerifyError::NoMatch));
        assert_eq!(check(&SIGNATURE[3..], BODY, at(AT)), Err(VerifyError::NoMatch));
        assert_eq!(check(SIGNATURE, BODY, at(AT + 300)), Ok(()));
        assert_eq!(check(SIGNATURE, BODY, at(AT + 301)), Err(VerifyError::TooOld));
        assert_eq!(check(SIGNATURE, BODY, at(AT - 301)), Err(VerifyError::TooNew));
        let none = verify(&[], Headers::default(), BODY, at(AT), TOLERANCE);
        assert_eq!(none, Err(VerifyError::Missing(ID_HEADER)));
    }

    #[test]
    fn what_is_no_secret_says_why_without_telling_it() {
        for secret in ["", "C2FVsBQI", "whsec_", "whsec_!!"] {
            assert!(Key::parse(secret).is_err(), "{secret}");
        }
        assert!(Key::parse("whsec_YWI").is_ok() && Key::parse("whsec_YWI=").is_ok());
        assert!(!format!("{:?}", Key::parse(SECRET).unwrap()).contains("C2F"));
    }
}
