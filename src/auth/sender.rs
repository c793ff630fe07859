//! The tokens that senders of pushes prove themselves with (OpenID Connect): Google's for Pub/Sub, Microsoft
//! Entra's for Event Grid.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use serde_json::Value;

use super::credentials::bearer;
use super::jwks::Jwks;
use super::signed::{self, Claims, Expected, Fault};
use crate::domain::Clock;

/// By how much a sender's clock and this one may differ.
const LEEWAY: Duration = Duration::from_secs(60);

/// What a sender's token has to claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claimed {
    /// `iss`, to the letter.
    pub issuer: String,
    /// `aud`, or one of several.
    pub audience: String,
    /// `email`, which the issuer has to have verified (`email_verified`).
    pub email: Option<String>,
    /// Others that have to have this text, or to be a list with it.
    pub others: BTreeMap<String, String>,
}

/// Recognises a sender by its token.
pub struct Sender {
    claimed: Claimed,
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
    /// `jwks` is the key set's URL, or the path of a file.
    ///
    /// # Errors
    /// The HTTP client for the key set could not be set up.
    pub fn new(claimed: Claimed, jwks: &str, clock: Clock) -> Result<Self, reqwest::Error> {
        let jwks = Arc::new(Jwks::new(jwks, clock.clone(), None)?);
        Ok(Self { claimed, jwks, clock })
    }

    /// # Errors
    /// Why the request is not this sender's, or that nobody can tell just now.
    pub async fn verify(&self, headers: &HeaderMap) -> Result<(), Unproven> {
        let token = bearer(headers).map_err(|refusal| Unproven::NotAccepted(refusal.reason))?;
        let token = token.ok_or(Unproven::Missing)?;
        let claims = signed::claims(token, &self.jwks).await?;
        let Claimed { issuer, audience, .. } = &self.claimed;
        signed::check(&claims, Expected { issuer, audience, leeway: LEEWAY }, self.clock.now())?;
        self.claimed.check(&claims)
    }
}

impl Claimed {
    fn check(&self, claims: &Claims) -> Result<(), Unproven> {
        let refused = |claim: &str| Err(Unproven::NotAccepted(format!("the token's `{claim}`")));
        if let Some(email) = &self.email {
            if claims.get("email").and_then(Value::as_str) != Some(email) {
                return refused("email");
            }
            if claims.get("email_verified") != Some(&Value::Bool(true)) {
                return refused("email_verified");
            }
        }
        for (claim, expected) in &self.others {
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

    fn check(claimed: &Claimed, claims: Value) -> Result<(), Unproven> {
        claimed.check(claims.as_object().unwrap())
    }

    #[test]
    fn an_address_counts_only_when_its_issuer_has_verified_it() {
        let claimed = Claimed { email: Some("pusher@x.test".into()), ..Claimed::default() };
        assert!(check(&claimed, json!({ "email": "pusher@x.test", "email_verified": true })).is_ok());
        for claims in [
            json!({ "email": "Pusher@x.test", "email_verified": true }),
            json!({ "email": "pusher@x.test", "email_verified": false }),
            json!({ "email": "pusher@x.test", "email_verified": "true" }),
            json!({ "email": "pusher@x.test" }),
            json!({ "email_verified": true }),
            json!({ "email": ["pusher@x.test"], "email_verified": true }),
        ] {
            assert!(check(&claimed, claims.clone()).is_err(), "{claims}");
        }
        assert!(check(&Claimed::default(), json!({})).is_ok());
    }

    #[test]
    fn other_claims_have_the_text_or_a_list_with_it() {
        let others = BTreeMap::from([("appid".to_owned(), "grid".to_owned())]);
        let claimed = Claimed { others, ..Claimed::default() };
        assert!(check(&claimed, json!({ "appid": "grid" })).is_ok());
        assert!(check(&claimed, json!({ "appid": ["other", "grid"] })).is_ok());
        for claims in [json!({}), json!({ "appid": "gri" }), json!({ "appid": [] }), json!({ "appid": 7 })] {
            assert!(check(&claimed, claims.clone()).is_err(), "{claims}");
        }
    }
}
