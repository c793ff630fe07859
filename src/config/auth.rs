//! `[auth]`

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

use super::{Duration, Secret};
use crate::domain::grant::Grant;

/// Who may call, and what they may do.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// Whether a request without credentials may do everything. Without keys and tokens, and listening on
    /// loopback only, that is so by itself; anywhere else it has to be said.
    #[schemars(extend("examples" = [false]))]
    pub anonymous: Option<bool>,
    /// API keys, by the name of the caller they are given to. Sent as `Authorization: Bearer SECRET`.
    #[schemars(extend("x-name" = "shop"))]
    pub keys: BTreeMap<String, Key>,
    /// Tokens of an identity provider (JWT, OpenID Connect). Sent as `Authorization: Bearer TOKEN`.
    pub jwt: Option<Jwt>,
}

/// An API key.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// One secret, or two while one is being replaced. Take 32 random characters or more:
    /// `openssl rand -hex 32`.
    #[serde(skip_serializing)]
    #[schemars(extend("examples" = [["replace-me-by-32-random-characters"]]))]
    pub secrets: Vec<Secret>,
    /// The tenant that the caller acts for. Left out: none.
    #[serde(default)]
    #[schemars(extend("examples" = ["acme"]))]
    pub tenant: Option<String>,
    /// What the caller may do: `publish:TYPE`, `publish:TYPE@DESTINATION` (to name destinations itself),
    /// `invoke:TYPE`, `claim:SCOPE`, `durability`, `operate:read`, `operate:write`, `operate` (both). Types,
    /// destinations and scopes are patterns: `*`, `prefix.*`, or exact.
    #[schemars(extend("examples" = [["publish:order.*"]]))]
    pub grants: Vec<Grant>,
}

/// How tokens of an identity provider are verified and read.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jwt {
    /// The `iss` that a token must have, to the letter.
    #[schemars(extend("examples" = ["https://id.example.com/"]))]
    pub issuer: String,
    /// The `aud` that a token must have (or have among others).
    #[schemars(extend("examples" = ["oncegate"]))]
    pub audience: String,
    /// The provider's public keys (JWKS): the URL of the set (`https:`; `http:` on loopback only), or the path
    /// of a file. RSA, ECDSA (P-256, P-384) and Ed25519 signatures are accepted, never a shared secret.
    #[schemars(extend("examples" = ["https://id.example.com/.well-known/jwks.json"]))]
    pub jwks: String,
    /// The claim that names the tenant; a dotted path reaches into objects. Left out: tokens have no tenant.
    #[serde(default)]
    #[schemars(extend("examples" = ["tenant"]))]
    pub tenant_claim: Option<String>,
    /// The claim that holds grants, as an array or as one text separated by spaces; a dotted path reaches into
    /// objects. What is not a grant is ignored there.
    #[serde(default = "grants_claim")]
    pub grants_claim: String,
    /// Grants that every accepted token has.
    #[serde(default)]
    pub grants: Vec<Grant>,
    /// By how much the provider's clock and this one may differ when `exp` and `nbf` are compared.
    #[serde(default = "leeway")]
    pub leeway: Duration,
}

impl Jwt {
    /// The URL of the key set, where `jwks` is one and not a file's path.
    pub fn jwks_url(&self) -> Option<Url> {
        jwks_url(&self.jwks)
    }
}

/// The URL of a key set, where `place` is one and not a file's path.
pub fn jwks_url(place: &str) -> Option<Url> {
    Url::parse(place).ok().filter(|url| matches!(url.scheme(), "http" | "https"))
}

/// Why `place` (a URL, or a file's path) cannot be that of a key set.
pub fn key_set_problem(place: &str) -> Option<String> {
    match jwks_url(place) {
        Some(url) if url.scheme() == "http" && !is_loopback(&url) => {
            Some("keys may only come over `https:` (`http:` on loopback)".to_owned())
        }
        Some(_) => None,
        None if place.contains("://") => Some("is neither an `https:` URL nor a file's path".to_owned()),
        None => {
            std::fs::metadata(place).err().map(|error| format!("the file `{place}` cannot be read: {error}"))
        }
    }
}

fn is_loopback(url: &url::Url) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

fn grants_claim() -> String {
    "grants".into()
}

fn leeway() -> Duration {
    Duration::from_secs(30)
}
