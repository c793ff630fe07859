//! What a webhook destination's table takes.

use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

use crate::config::{Secret, Secrets};
use crate::domain::standard_webhooks::Key;
use crate::domain::wire;
use crate::transport::ConfigError;
use crate::transport::guard::{Reach, Refused, check_url};

/// What to do about a private address.
pub(super) const HINT: &str = "set `allow_private = true` on the destination if it is meant to go there";

/// A webhook: messages are sent by HTTP POST, and a 2xx acknowledges them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where to: an `https` (or `http`) address. Redirects are not followed. May be given as a secret, since
    /// such addresses often hold a token.
    #[schemars(extend("examples" = ["https://example.com/hooks/orders"]))]
    pub url: Secret,
    /// Signs every request as Standard Webhooks say: `whsec_` and base64. A list of several signs with each,
    /// while the receiver is moved from one to the next. Left out: requests are not signed.
    #[serde(default)]
    #[schemars(extend("examples" = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]))]
    pub secret: Option<Secrets>,
    /// Headers that every request carries, such as an `Authorization` that the receiver asks for.
    #[serde(default)]
    #[schemars(extend("examples" = [{ "Authorization": "Bearer the-receivers-secret" }]))]
    pub headers: BTreeMap<String, Secret>,
    /// Whether the address may be, or resolve to, a private one (loopback, link-local, RFC 1918 and the like).
    /// Such addresses are refused otherwise, when connecting and, where the address is written out, at start.
    #[serde(default)]
    pub allow_private: bool,
}

impl Config {
    /// The address as it is now.
    pub(super) fn url(&self) -> Result<Url, String> {
        Url::parse(&self.url.expose()).map_err(|error| format!("is not an address: {error}"))
    }

    pub(super) fn keys(&self) -> Result<Vec<Key>, String> {
        let secrets = self.secret.iter().flat_map(Secrets::iter);
        secrets.map(|secret| Key::parse(&secret.expose()).map_err(str::to_owned)).collect()
    }

    /// Its own headers, by the key below the destination where one is wrong.
    pub(super) fn own_headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, ConfigError> {
        let mut headers = Vec::with_capacity(self.headers.len());
        for (name, value) in &self.headers {
            let wrong = |text: &str| ConfigError::new(format!("headers.{name}"), text);
            let header = HeaderName::try_from(name).map_err(|_| wrong("is not a header's name"))?;
            if wire::is_reserved(header.as_str()) {
                return Err(wrong("is set by the gateway itself"));
            }
            let mut value = HeaderValue::try_from(value.expose().as_str())
                .map_err(|_| wrong("holds what a header's value cannot hold"))?;
            value.set_sensitive(true);
            headers.push((header, value));
        }
        Ok(headers)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let url = self.url().map_err(|text| ConfigError::new("url", text))?;
        let reach = if self.allow_private { Reach::Any } else { Reach::Public };
        check_url(&url, reach).map_err(|refused| match refused {
            Refused::Literal(_) => ConfigError::new("url", format!("{refused}; {HINT}")),
            _ => ConfigError::new("url", refused),
        })?;
        self.keys().map_err(|text| ConfigError::new("secret", text))?;
        self.own_headers().map(|_| ())
    }
}
