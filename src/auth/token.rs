//! Tokens of an identity provider: JSON Web Tokens (RFC 7519), signed by a key of its set.

use std::sync::Arc;

use serde_json::Value;

use super::jwks::Jwks;
use super::principal::Via;
use super::signed::{self, Claims, Expected, Fault};
use super::{Grant, Principal, Refusal};
use crate::config;
use crate::domain::Clock;

/// Names longer than this are refused.
const LONGEST_NAME_BYTES: usize = 255;

/// Verifies tokens and reads who they are for.
pub(super) struct Tokens {
    settings: config::auth::Jwt,
    pub jwks: Arc<Jwks>,
    clock: Clock,
}

impl Tokens {
    pub fn new(
        settings: &config::auth::Jwt,
        clock: Clock,
        before: Option<&Self>,
    ) -> Result<Self, reqwest::Error> {
        let jwks = Jwks::new(&settings.jwks, clock.clone(), before.map(|tokens| &*tokens.jwks))?;
        Ok(Self { settings: settings.clone(), jwks: Arc::new(jwks), clock })
    }

    /// The principal that a token is for.
    ///
    /// # Errors
    /// Why it is not accepted.
    pub async fn verify(&self, token: &str) -> Result<Principal, Refusal> {
        let claims = signed::claims(token, &self.jwks).await?;
        signed::check(&claims, expected(&self.settings), self.clock.now())?;
        principal(&claims, &self.settings)
    }
}

fn expected(settings: &config::auth::Jwt) -> Expected<'_> {
    Expected { issuer: &settings.issuer, audience: &settings.audience, leeway: settings.leeway.get() }
}

const NOT_ACCEPTED: &str = "The token is not accepted: it has to be signed by the identity provider that this gateway trusts. Get a new one.";
const NOT_VERIFIABLE: &str =
    "The token cannot be verified just now, because the identity provider's keys cannot be had. Try again.";
const EXPIRED: &str = "The token has expired. Get a new one.";
const NOT_YET: &str = "The token is not valid yet.";
const FOR_ANOTHER: &str = "The token is not for this gateway: its issuer or audience is another.";

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        let detail = match fault {
            Fault::NotAccepted(_) => NOT_ACCEPTED,
            Fault::NotVerifiable => NOT_VERIFIABLE,
            Fault::Expired => EXPIRED,
            Fault::NotYet => NOT_YET,
            Fault::ForAnother(_) => FOR_ANOTHER,
        };
        Self::new(detail, fault.to_string())
    }
}

fn principal(claims: &Claims, settings: &config::auth::Jwt) -> Result<Principal, Refusal> {
    let name = |claim: &str| match at(claims, claim) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(name)) if sound(name) => Ok(Some(name.clone())),
        Some(_) => Err(Refusal::new(NOT_ACCEPTED, format!("the token's `{claim}` is no name"))),
    };
    let subject = name("sub")?.ok_or_else(|| Refusal::new(NOT_ACCEPTED, "the token has no `sub`"))?;
    let tenant = match &settings.tenant_claim {
        // A token that should name its tenant and does not must not fall into the tenant of all others.
        Some(claim) => {
            name(claim)?.ok_or_else(|| Refusal::new(NOT_ACCEPTED, format!("the token has no `{claim}`")))?
        }
        None => String::new(),
    };
    let mut grants = settings.grants.clone();
    grants.extend(written_grants(at(claims, &settings.grants_claim)));
    Ok(Principal { name: subject, tenant, grants, via: Via::Token })
}

fn sound(name: &str) -> bool {
    !name.is_empty() && name.len() <= LONGEST_NAME_BYTES && !name.chars().any(char::is_control)
}

/// The grants among an array's texts, or among the words of a text. Such claims hold other things too.
fn written_grants(claim: Option<&Value>) -> Vec<Grant> {
    let words: Vec<&str> = match claim {
        Some(Value::String(text)) => text.split(' ').collect(),
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    words.into_iter().filter_map(|word| word.parse().ok()).collect()
}

/// A claim by its whole name (names such as `https://example.com/tenant` hold dots), else by dotted path.
fn at<'a>(claims: &'a Claims, path: &str) -> Option<&'a Value> {
    if let Some(value) = claims.get(path) {
        return Some(value);
    }
    let (first, rest) = path.split_once('.')?;
    at(claims.get(first)?.as_object()?, rest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Duration;
    use crate::domain::Timestamp;

    fn settings() -> config::auth::Jwt {
        config::auth::Jwt {
            issuer: "https://id/".into(),
            audience: "oncegate".into(),
            jwks: "unused".into(),
            tenant_claim: Some("org.name".into()),
            grants_claim: "scope".into(),
            grants: vec!["operate:read".parse().unwrap()],
            leeway: Duration::from_secs(30),
        }
    }

    fn now() -> Timestamp {
        chrono::DateTime::from_timestamp(1_000_000, 0).unwrap()
    }

    fn checked(change: Value) -> Result<Principal, &'static str> {
        let mut claims = json!({
            "iss": "https://id/", "aud": "oncegate", "exp": 1_000_060, "sub": "alice",
            "org": { "name": "acme" }, "scope": "openid publish:order.* profile",
        });
        for (name, value) in change.as_object().unwrap() {
            if value == "absent" {
                claims.as_object_mut().unwrap().remove(name);
            } else {
                claims[name] = value.clone();
            }
        }
        let claims = claims.as_object().unwrap();
        signed::check(claims, expected(&settings()), now())
            .map_err(Refusal::from)
            .and_then(|()| principal(claims, &settings()))
            .map_err(|refusal| refusal.detail)
    }

    #[test]
    fn a_token_gives_its_principal() {
        let alice = checked(json!({})).unwrap();
        assert_eq!((alice.name.as_str(), alice.tenant.as_str()), ("alice", "acme"));
        assert!(alice.may_publish("order.created") && alice.may_read() && !alice.may_write());
        let listed =
            checked(json!({ "aud": ["other", "oncegate"], "scope": ["claim:mail", 7, "nonsense"] })).unwrap();
        assert!(listed.may_claim("mail") && !listed.publishes_anything());
    }

    #[test]
    fn times_are_compared_with_a_small_leeway() {
        assert!(checked(json!({ "exp": 999_971 })).is_ok());
        assert_eq!(checked(json!({ "exp": 999_970 })).unwrap_err(), EXPIRED);
        assert_eq!(checked(json!({ "exp": "absent" })).unwrap_err(), NOT_ACCEPTED);
        assert_eq!(checked(json!({ "exp": "soon" })).unwrap_err(), NOT_ACCEPTED);
        assert!(checked(json!({ "nbf": 1_000_030 })).is_ok());
        assert_eq!(checked(json!({ "nbf": 1_000_031 })).unwrap_err(), NOT_YET);
        assert_eq!(checked(json!({ "nbf": "soon" })).unwrap_err(), NOT_ACCEPTED);
    }

    #[test]
    fn what_is_for_somebody_else_is_refused() {
        for change in [
            json!({ "iss": "https://id" }),
            json!({ "iss": "absent" }),
            json!({ "iss": ["https://id/"] }),
            json!({ "aud": "other" }),
            json!({ "aud": [] }),
            json!({ "aud": "absent" }),
        ] {
            assert_eq!(checked(change.clone()).unwrap_err(), FOR_ANOTHER, "{change}");
        }
    }

    #[test]
    fn a_token_without_its_names_is_refused() {
        for change in [
            json!({ "sub": "absent" }),
            json!({ "sub": "" }),
            json!({ "sub": 7 }),
            json!({ "sub": "a\nb" }),
            json!({ "org": {} }),
            json!({ "org": { "name": 7 } }),
        ] {
            assert_eq!(checked(change.clone()).unwrap_err(), NOT_ACCEPTED, "{change}");
        }
    }

    #[test]
    fn claims_are_found_by_name_or_path() {
        let claims = json!({ "https://x.y/tenant": 1, "a": { "b": { "c": 2 } } });
        let claims = claims.as_object().unwrap();
        assert_eq!(at(claims, "https://x.y/tenant"), Some(&json!(1)));
        assert_eq!(at(claims, "a.b.c"), Some(&json!(2)));
        assert_eq!(at(claims, "a.x"), None);
    }
}
