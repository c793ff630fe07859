//! The tokens that senders of pushes prove themselves with (OpenID Connect): Google's for Pub/Sub, Microsoft
//! Entra's for Event Grid.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use serde_json::Value;

use super::credentials::bearer;
use super::jwks::Jwks;
use super::signed::{self, Claims, Expected, Fault};
use crate::config::proof::Oidc;
use crate::domain::Clock;

/// By how much a sender's clock and this one may differ.
const LEEWAY: Duration = Duration::from_secs(60);

/// Recognises a sender by its token.
pub struct Sender {
    expected: Oidc,
    jwks: Arc<Jwks>,
    clock: Clock,
}

/// Why a request is not taken for its sender's. The texts are for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    #[error("no token")]
    Missing,
    #[error("{0}")]
    NotAccepted(String),
    /// Nothing is known against it: the same request may pass later.
    #[error("the identity provider's keys could not be fetched")]
    NotVerifiable,
}

impl Sender {
    /// # Errors
    /// The HTTP client for the key set could not be set up.
    pub fn new(expected: Oidc, clock: Clock) -> Result<Self, reqwest::Error> {
        let jwks = Arc::new(Jwks::new(&expected.jwks, clock.clone(), None)?);
        Ok(Self { expected, jwks, clock })
    }

    /// # Errors
    /// Why the request is not this sender's, or that nobody can tell just now.
    pub async fn verify(&self, headers: &HeaderMap) -> Result<(), Unproven> {
        let token = bearer(headers).map_err(|refusal| Unproven::NotAccepted(refusal.reason))?;
        let token = token.ok_or(Unproven::Missing)?;
        let claims = signed::claims(token, &self.jwks).await?;
        let Oidc { issuer, audience, .. } = &self.expected;
        signed::check(&claims, Expected { issuer, audience, leeway: LEEWAY }, self.clock.now())?;
        check(&self.expected, &claims)
    }
}

fn check(expected: &Oidc, claims: &Claims) -> Result<(), Unproven> {
    let refused = |claim: &str| Err(Unproven::NotAccepted(format!("the token's `{claim}`")));
    if let Some(email) = &expected.email {
        if claims.get("email").and_then(Value::as_str) != Some(email) {
            return refused("email");
        }
        if claims.get("email_verified") != Some(&Value::Bool(true)) {
            return refused("email_verified");
        }
    }
    for (claim, expected) in &expected.claims {
        let has = match claims.get(claim) {
            Some(Value::String(text)) => text == expected,
            Some(Value::Array(all)) => all.iter().any(|one| one.as_str() == Some(expected)),
            _ => false,
        };
        if !has {
            return refused(claim);
        }
    }
    Ok(())
}

impl From<Fault> for Unproven {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::NotVerifiable => Self::NotVerifiable,
            other => Self::NotAccepted(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(expected: &Oidc, claims: Value) -> Result<(), Unproven> {
        check(expected, claims.as_object().unwrap())
    }

    fn expecting(more: &str) -> Oidc {
        toml::from_str(&format!("issuer = 'i'\naudience = 'a'\njwks = 'unused'\n{more}")).unwrap()
    }

    #[test]
    fn an_address_counts_only_when_its_issuer_has_verified_it() {
        let expected = expecting("email = 'pusher@x.test'");
        assert!(checked(&expected, json!({ "email": "pusher@x.test", "email_verified": true })).is_ok());
        for claims in [
            json!({ "email": "Pusher@x.test", "email_verified": true }),
            json!({ "email": "pusher@x.test", "email_verified": false }),
            json!({ "email": "pusher@x.test", "email_verified": "true" }),
            json!({ "email": "pusher@x.test" }),
            json!({ "email_verified": true }),
            json!({ "email": ["pusher@x.test"], "email_verified": true }),
        ] {
            assert!(checked(&expected, claims.clone()).is_err(), "{claims}");
        }
        assert!(checked(&expecting(""), json!({})).is_ok());
    }

    #[test]
    fn other_claims_have_the_text_or_a_list_with_it() {
        let expected = expecting("claims = { appid = 'grid' }");
        assert!(checked(&expected, json!({ "appid": "grid" })).is_ok());
        assert!(checked(&expected, json!({ "appid": ["other", "grid"] })).is_ok());
        for claims in [json!({}), json!({ "appid": "gri" }), json!({ "appid": [] }), json!({ "appid": 7 })] {
            assert!(checked(&expected, claims.clone()).is_err(), "{claims}");
        }
    }
}
