//! Who calls, and whether it may call this operation at all: the first argument of every handler under
//! `/v1`, so that nothing of a request is read or looked up before.

use std::marker::PhantomData;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;

use super::accept;
use super::app::App;
use super::problem::Problem;
use crate::auth::Principal;
use crate::config::endpoints::Authorize;
use crate::gateway::Error;

/// An authenticated caller that has a grant of the kind `K`. Whether it has the grant for the very type,
/// destination or scope is the use case's to decide.
#[derive(Debug)]
pub struct Caller<K> {
    pub principal: Principal,
    kind: PhantomData<K>,
}

/// A kind of grants.
pub trait Kind {
    /// How a grant of this kind is written, for people.
    const GRANT: &'static str;
    /// Whether what is answered is JSON. An invoke answers what its handler does.
    const ANSWERS_JSON: bool;
    fn held_by(principal: &Principal) -> bool;
}

macro_rules! kinds {
    ($($name:ident = $grant:literal, $json:literal, $check:expr;)*) => {
        $(
            #[doc = concat!("`", $grant, "`")]
            #[derive(Debug)]
            pub enum $name {}

            impl Kind for $name {
                const GRANT: &'static str = $grant;
                const ANSWERS_JSON: bool = $json;
                fn held_by(principal: &Principal) -> bool {
                    let check: fn(&Principal) -> bool = $check;
                    check(principal)
                }
            }
        )*
    };
}

kinds! {
    Publishes = "publish:TYPE", true, Principal::publishes_anything;
    Invokes = "invoke:TYPE", false, Principal::invokes_anything;
    Reads = "operate:read", true, Principal::may_read;
    Operates = "operate:write", true, Principal::may_write;
    Durability = "durability", true, Principal::may_pass;
    Claims = "claim:SCOPE", true, Principal::claims_anything;
    ClaimsOrReads = "claim:SCOPE", true, |principal| principal.claims_anything() || principal.may_read();
}

impl<K: Kind> FromRequestParts<App> for Caller<K> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let principal = admit::<K>(&parts.headers, app).await?;
        if K::ANSWERS_JSON {
            accept::json(&parts.headers)?;
        }
        Ok(Self { principal, kind: PhantomData })
    }
}

/// Recognises the caller, who needs a grant of the kind `K`.
pub async fn admit<K: Kind>(headers: &HeaderMap, app: &App) -> Result<Principal, Problem> {
    let principal = app.authenticator.authenticate(headers).await.map_err(|refused| {
        tracing::info!(reason = %refused, "a caller was not recognised");
        Problem::from(Error::Unauthenticated { detail: refused.detail().to_owned() })
    })?;
    if !K::held_by(&principal) {
        let detail = format!(
            "`{}` has no grant `{}`, which this operation needs. Ask the gateway's operator for it.",
            principal.name,
            K::GRANT
        );
        return Err(Error::Forbidden { detail }.into());
    }
    if let Some(rate) = &app.rate {
        rate.check(&principal.identity())?;
    }
    Ok(principal)
}

/// Who runs durability passes: everybody, where the configuration says so, else a caller with the grant.
#[derive(Debug)]
pub struct PassCaller(pub Principal);

impl FromRequestParts<App> for PassCaller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        match app.passes {
            Authorize::Grant => Caller::<Durability>::from_request_parts(parts, app)
                .await
                .map(|caller| Self(caller.principal)),
            Authorize::Anonymous => {
                accept::json(&parts.headers)?;
                Ok(Self(Principal::anonymous()))
            }
        }
    }
}
