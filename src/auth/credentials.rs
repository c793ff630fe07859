//! Recognising callers by the credentials of the configuration.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::keys::Keys;
use super::signed;
use super::token::Tokens;
use super::{Authenticator, Principal, Refusal};
use crate::config;
use crate::domain::Clock;

/// The API keys and tokens that `[auth]` accepts. [`Credentials::reload`] replaces them while requests run.
pub struct Credentials {
    accepted: ArcSwap<Accepted>,
    clock: Clock,
    /// One reload at a time.
    reloading: Mutex<()>,
}

struct Accepted {
    keys: Keys,
    tokens: Option<Tokens>,
    anonymous: Anonymous,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Anonymous {
    Allowed,
    Refused,
}

impl Accepted {
    fn new(auth: &config::Auth, clock: &Clock, before: Option<&Self>) -> Result<Self, reqwest::Error> {
        let before = before.and_then(|before| before.tokens.as_ref());
        Ok(Self {
            keys: Keys::new(auth),
            tokens: auth.jwt.as_ref().map(|jwt| Tokens::new(jwt, clock.clone(), before)).transpose()?,
            anonymous: if auth.anonymous == Some(true) { Anonymous::Allowed } else { Anonymous::Refused },
        })
    }
}

impl Credentials {
    /// # Errors
    /// The HTTP client for the identity provider's keys could not be set up.
    pub fn new(auth: &config::Auth, clock: Clock) -> Result<Self, reqwest::Error> {
        let accepted = ArcSwap::from_pointee(Accepted::new(auth, &clock, None)?);
        Ok(Self { accepted, clock, reloading: Mutex::new(()) })
    }

    /// Accepts what `auth` says from now on. Requests that were let in already go on.
    ///
    /// # Errors
    /// As [`Credentials::new`]; nothing has changed then.
    pub fn reload(&self, auth: &config::Auth) -> Result<(), reqwest::Error> {
        let _one = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.accepted.load_full();
        let accepted = Arc::new(Accepted::new(auth, &self.clock, Some(&before))?);
        self.accepted.store(Arc::clone(&accepted));
        // The kept keys of an identity provider go on being used until new ones are there.
        if let Some(tokens) = &accepted.tokens
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let jwks = Arc::clone(&tokens.jwks);
            runtime.spawn(async move { jwks.refresh().await });
        }
        Ok(())
    }
}

const MISSING: &str =
    "This gateway has to know who calls. Send `Authorization: Bearer SECRET` with an API key or a token.";
const UNKNOWN: &str = "The key is not one of this gateway's. Send `Authorization: Bearer SECRET` with an API key or a token that it accepts.";
const UNREADABLE: &str =
    "The Authorization header cannot be read. Send it once, as `Authorization: Bearer SECRET`.";

#[async_trait]
impl Authenticator for Credentials {
    async fn authenticate(&self, headers: &HeaderMap) -> Result<Principal, Refusal> {
        let accepted = self.accepted.load_full();
        let anonymous = accepted.anonymous == Anonymous::Allowed;
        if anonymous && accepted.keys.is_empty() && accepted.tokens.is_none() {
            // There is nothing that a credential could be compared with.
            return Ok(Principal::anonymous());
        }
        let Some(credential) = bearer(headers)? else {
            let missing = || Refusal::new(MISSING, "no credentials");
            return if anonymous { Ok(Principal::anonymous()) } else { Err(missing()) };
        };
        if let Some(principal) = accepted.keys.find(credential) {
            return Ok(principal.clone());
        }
        match &accepted.tokens {
            Some(tokens) if signed::looks_like_one(credential) => tokens.verify(credential).await,
            _ => Err(Refusal::new(UNKNOWN, "an unknown API key")),
        }
    }
}

/// The bearer credential (RFC 6750, section 2.1; the scheme's case does not matter); `None` without one.
pub(super) fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let unreadable = |reason: &str| Err(Refusal::new(UNREADABLE, reason));
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return unreadable("two Authorization headers");
    }
    let Ok(text) = value.to_str() else { return unreadable("an Authorization header that is not ASCII") };
    match text.split_once(' ') {
        Some((scheme, credential)) if scheme.eq_ignore_ascii_case("bearer") => {
            let credential = credential.trim();
            if credential.is_empty() {
                unreadable("an empty bearer credential")
            } else {
                Ok(Some(credential))
            }
        }
        _ => unreadable("an Authorization header of another scheme"),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::config::Secret;
    use crate::config::auth::Key;

    fn auth(secrets: &[&str]) -> config::Auth {
        let mut auth = config::Auth { anonymous: Some(false), ..config::Auth::default() };
        let secrets = secrets.iter().map(|secret| Secret::new(*secret)).collect();
        auth.keys.insert("shop".into(), Key { secrets, tenant: None, grants: Vec::new() });
        auth
    }

    async fn name(credentials: &Credentials, values: &[&str]) -> Result<String, &'static str> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        credentials
            .authenticate(&headers)
            .await
            .map(|principal| principal.name)
            .map_err(|refusal| refusal.detail)
    }

    #[tokio::test]
    async fn missing_wrong_and_unreadable_credentials_are_told_apart() {
        let credentials = Credentials::new(&auth(&["s3cret"]), Clock::system()).unwrap();
        assert_eq!(name(&credentials, &["Bearer s3cret"]).await.unwrap(), "shop");
        assert_eq!(name(&credentials, &["bearer  s3cret"]).await.unwrap(), "shop");
        assert_eq!(name(&credentials, &[]).await, Err(MISSING));
        assert_eq!(name(&credentials, &["Bearer wrong"]).await, Err(UNKNOWN));
        for unreadable in [
            &["Basic czNjcmV0"][..],
            &["s3cret"],
            &["Bearer"],
            &["Bearer "],
            &["Bearer s3cret", "Bearer s3cret"],
        ] {
            assert_eq!(name(&credentials, unreadable).await, Err(UNREADABLE), "{unreadable:?}");
        }
    }

    #[tokio::test]
    async fn anonymous_callers_need_leave_and_a_wrong_key_is_never_anonymous() {
        let mut with_keys = auth(&["s3cret"]);
        with_keys.anonymous = Some(true);
        let credentials = Credentials::new(&with_keys, Clock::system()).unwrap();
        assert_eq!(name(&credentials, &[]).await.unwrap(), "anonymous");
        assert_eq!(name(&credentials, &["Bearer wrong"]).await, Err(UNKNOWN));
        let open = config::Auth { anonymous: Some(true), ..config::Auth::default() };
        let credentials = Credentials::new(&open, Clock::system()).unwrap();
        assert_eq!(name(&credentials, &["Bearer anything"]).await.unwrap(), "anonymous");
        // Where nothing was decided, nobody comes in.
        let credentials = Credentials::new(&config::Auth::default(), Clock::system()).unwrap();
        assert_eq!(name(&credentials, &[]).await, Err(MISSING));
    }

    #[tokio::test]
    async fn a_key_is_replaced_without_a_gap() {
        let credentials = Credentials::new(&auth(&["old"]), Clock::system()).unwrap();
        credentials.reload(&auth(&["old", "new"])).unwrap();
        assert!(
            name(&credentials, &["Bearer old"]).await.is_ok()
                && name(&credentials, &["Bearer new"]).await.is_ok()
        );
        credentials.reload(&auth(&["new"])).unwrap();
        assert_eq!(name(&credentials, &["Bearer old"]).await, Err(UNKNOWN));
        assert!(name(&credentials, &["Bearer new"]).await.is_ok());
    }
}
