//! Whether a push is its sender's, as far as a request's head shows it: by a token, or by a secret. Decided before
//! the body is read. What the body proves (its signature) is the format's to say.

use http::HeaderMap;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use url::form_urlencoded;

use crate::auth::{self, Unproven};
use crate::config::proof::{ApiKey, Oidc, Place};
use crate::domain::Clock;

/// What a receiver asks of its sender. All of it has to hold.
pub struct Proof {
    token: Option<auth::Sender>,
    secret: Option<ApiKey>,
}

/// Why a request is not taken for its sender's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The text is for the log.
    #[error("{0}")]
    Unproven(String),
    /// Nobody can tell just now; nothing is known against it.
    #[error("the identity provider's keys could not be fetched")]
    NotVerifiable,
}

impl Proof {
    /// # Errors
    /// The HTTP client for the key set could not be set up.
    pub fn new(oidc: Option<Oidc>, api_key: Option<ApiKey>, clock: &Clock) -> Result<Self, reqwest::Error> {
        let token = oidc.map(|oidc| auth::Sender::new(oidc, clock.clone())).transpose()?;
        Ok(Self { token, secret: api_key })
    }

    /// Whether anything is asked for.
    pub fn is_asked(&self) -> bool {
        self.token.is_some() || self.secret.is_some()
    }

    /// `query` is the URL's as it was sent, without the `?`.
    ///
    /// # Errors
    /// Why the request is not its sender's, or that nobody can tell just now.
    pub async fn check(&self, headers: &HeaderMap, query: Option<&str>) -> Result<(), Denied> {
        if let Some(secret) = &self.secret
            && !presents(secret, headers, query)
        {
            return Err(Denied::Unproven("the secret is missing, or is another".to_owned()));
        }
        if let Some(token) = &self.token {
            token.verify(headers).await.map_err(|unproven| match unproven {
                Unproven::NotVerifiable => Denied::NotVerifiable,
                other => Denied::Unproven(other.to_string()),
            })?;
        }
        Ok(())
    }
}

/// Whether the request has one of the secrets, once, at its place.
fn presents(secret: &ApiKey, headers: &HeaderMap, query: Option<&str>) -> bool {
    let found: Vec<Vec<u8>> = match &secret.place {
        Place::Header(name) => headers.get_all(name).iter().map(|value| value.as_bytes().to_vec()).collect(),
        Place::Query(name) => form_urlencoded::parse(query.unwrap_or_default().as_bytes())
            .filter(|(found, _)| found == name)
            .map(|(_, value)| value.into_owned().into_bytes())
            .collect(),
    };
    let [found] = found.as_slice() else { return false };
    // Digests have one length, so that the time it takes says nothing of a secret's.
    let digest = Sha256::digest(found);
    secret.value.iter().fold(false, |matches, secret| {
        let expected = Sha256::digest(secret.expose().as_bytes());
        bool::from(expected.ct_eq(&digest)) | matches
    })
}
