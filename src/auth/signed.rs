//! What every token (JWT, RFC 7519) has to pass, whoever it is from: the signature of its issuer, and the
//! claims that say for whom and until when.

use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::{Algorithm, Validation};
use serde_json::{Map, Value};

use super::jwks::Jwks;
use crate::domain::Timestamp;

pub(super) type Claims = Map<String, Value>;

/// Why a token is not accepted. The texts are for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("{0}")]
    NotAccepted(String),
    /// Nothing is known against it.
    #[error("the identity provider's keys could not be fetched")]
    NotVerifiable,
    #[error("the token's `exp`")]
    Expired,
    #[error("the token's `nbf`")]
    NotYet,
    #[error("the token's `{0}`")]
    ForAnother(&'static str),
}

/// For whom a token has to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected<'a> {
    pub issuer: &'a str,
    pub audience: &'a str,
    /// By how much the issuer's clock and this one may differ.
    pub leeway: Duration,
}

/// What a token may be signed with.
const ACCEPTED: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// Whether a credential has the outer form of a signed token: three parts, the first of them the base64 of a
/// JSON object.
pub(super) fn looks_like_one(credential: &str) -> bool {
    credential.starts_with("eyJ") && credential.split('.').count() == 3
}

/// The claims of a token that a key of the set has signed. Nothing of what they say is checked.
///
/// # Errors
/// `NotAccepted`, `NotVerifiable`.
pub(super) async fn claims(token: &str, jwks: &Arc<Jwks>) -> Result<Claims, Fault> {
    let refused = |reason: String| Err(Fault::NotAccepted(reason));
    let header = match jsonwebtoken::decode_header(token) {
        Ok(header) => header,
        Err(error) => return refused(format!("the token's header: {error}")),
    };
    if !ACCEPTED.contains(&header.alg) {
        return refused(format!("the token's algorithm {:?}", header.alg));
    }
    let Some(keys) = jwks.keys_for(header.kid.as_deref(), header.alg).await else {
        return Err(Fault::NotVerifiable);
    };
    let candidates = keys.candidates(header.kid.as_deref(), header.alg);
    if candidates.is_empty() {
        return refused(format!("no {:?} key with the id {:?} in the set", header.alg, header.kid));
    }
    let validation = signature_only(header.alg);
    candidates
        .into_iter()
        .find_map(|key| jsonwebtoken::decode::<Claims>(token, key, &validation).ok())
        .map(|token| token.claims)
        .ok_or_else(|| Fault::NotAccepted("the token's signature or form".to_owned()))
}

/// The library verifies the signature; the claims are compared here, against this program's clock.
fn signature_only(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.validate_aud = false;
    validation
}

/// RFC 7519, section 4.1: `iss`, `aud`, `exp`, `nbf`. A token without an end is refused.
pub(super) fn check(claims: &Claims, expected: Expected<'_>, now: Timestamp) -> Result<(), Fault> {
    let unreadable = |claim: &str| Err(Fault::NotAccepted(format!("the token's `{claim}`")));
    if claims.get("iss").and_then(Value::as_str) != Some(expected.issuer) {
        return Err(Fault::ForAnother("iss"));
    }
    let for_us = match claims.get("aud") {
        Some(Value::String(audience)) => audience == expected.audience,
        Some(Value::Array(all)) => all.iter().any(|audience| audience.as_str() == Some(expected.audience)),
        _ => false,
    };
    if !for_us {
        return Err(Fault::ForAnother("aud"));
    }
    let now = now.timestamp_micros() as f64 / 1e6;
    let leeway = expected.leeway.as_secs_f64();
    match claims.get("exp").map(Value::as_f64) {
        Some(Some(expires)) if now < expires + leeway => {}
        Some(Some(_)) => return Err(Fault::Expired),
        _ => return unreadable("exp"),
    }
    match claims.get("nbf").map(Value::as_f64) {
        None => {}
        Some(Some(begins)) if now >= begins - leeway => {}
        Some(Some(_)) => return Err(Fault::NotYet),
        Some(None) => return unreadable("nbf"),
    }
    Ok(())
}
