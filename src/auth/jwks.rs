//! The public keys of an identity provider (RFC 7517), fetched when needed and kept.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use tokio::sync::Mutex;
use url::Url;

use crate::config;
use crate::domain::Clock;

/// A key that is not known makes the set be fetched again, this far apart at the least.
const UNKNOWN_KEY_INTERVAL: Duration = Duration::from_secs(60);
/// The same for a file.
const FILE_INTERVAL: Duration = Duration::from_secs(1);
/// While there are no keys at all, they are asked for this far apart.
const NO_KEYS_INTERVAL: Duration = Duration::from_secs(5);
/// A set this old is fetched again beside the requests that use it, so that withdrawn keys end.
const REFRESH_AFTER: Duration = Duration::from_secs(600);
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const LARGEST_SET_BYTES: usize = 512 * 1024;
const MOST_KEYS: usize = 100;

/// Where the set is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Url(Url),
    File(PathBuf),
}

/// A set of keys that is kept, and fetched again when it has to be.
pub(super) struct Jwks {
    source: Source,
    clock: Clock,
    http: Option<reqwest::Client>,
    cached: ArcSwapOption<Set>,
    /// When a fetch was last begun. Held while one runs, so that there is one at a time.
    last_fetch: Mutex<Option<Instant>>,
}

/// What was fetched.
pub(super) struct Set {
    keys: Vec<Verifying>,
    fetched: Instant,
}

/// A key that signatures can be verified with.
struct Verifying {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

impl Set {
    /// The keys that may have signed a token with this header.
    pub fn candidates(&self, id: Option<&str>, algorithm: Algorithm) -> Vec<&DecodingKey> {
        self.keys
            .iter()
            .filter(|key| {
                id.is_none_or(|id| key.id.as_deref() == Some(id)) && key.algorithms.contains(&algorithm)
            })
            .map(|key| &key.key)
            .collect()
    }

    fn knows(&self, id: Option<&str>, algorithm: Algorithm) -> bool {
        !self.candidates(id, algorithm).is_empty()
    }
}

impl Jwks {
    /// The set at `place`: a URL, or the path of a file. What `before` has fetched from the same place is used
    /// until it is fetched again.
    pub fn new(place: &str, clock: Clock, before: Option<&Self>) -> Result<Self, reqwest::Error> {
        let source = match config::auth::jwks_url(place) {
            Some(url) => Source::Url(url),
            None => Source::File(PathBuf::from(place)),
        };
        let http = match &source {
            Source::Url(url) => Some(client(url)?),
            Source::File(_) => None,
        };
        let cached =
            before.filter(|before| before.source == source).and_then(|before| before.cached.load_full());
        Ok(Self { source, clock, http, cached: ArcSwapOption::new(cached), last_fetch: Mutex::new(None) })
    }

    /// The keys, fetched again if none of them can have signed a token with this header (and that was not tried
    /// just now). `None`: there are no keys, because they could not be fetched.
    pub async fn keys_for(self: &Arc<Self>, id: Option<&str>, algorithm: Algorithm) -> Option<Arc<Set>> {
        if let Some(set) = self.cached.load_full()
            && set.knows(id, algorithm)
        {
            if self.clock.monotonic().saturating_duration_since(set.fetched) > REFRESH_AFTER {
                let jwks = Arc::clone(self);
                tokio::spawn(async move { jwks.refresh().await });
            }
            return Some(set);
        }
        let mut last_fetch = self.last_fetch.lock().await;
        let cached = self.cached.load_full();
        let interval = match (&cached, &self.source) {
            (Some(set), _) if set.knows(id, algorithm) => return cached, // fetched by another request meanwhile
            (_, Source::File(_)) => FILE_INTERVAL,
            (Some(_), Source::Url(_)) => UNKNOWN_KEY_INTERVAL,
            (None, Source::Url(_)) => NO_KEYS_INTERVAL,
        };
        let now = self.clock.monotonic();
        if last_fetch.is_none_or(|last| now.saturating_duration_since(last) >= interval) {
            *last_fetch = Some(now);
            self.fetch().await;
        }
        self.cached.load_full()
    }

    /// Fetches again, unless that is being done or was tried within a minute.
    pub async fn refresh(&self) {
        let Ok(mut last_fetch) = self.last_fetch.try_lock() else { return };
        let now = self.clock.monotonic();
        if last_fetch.is_none_or(|last| now.saturating_duration_since(last) >= UNKNOWN_KEY_INTERVAL) {
            *last_fetch = Some(now);
            self.fetch().await;
        }
    }

    /// Replaces the kept set by what is there now. What cannot be fetched leaves the old one in its place.
    async fn fetch(&self) {
        let bytes = match &self.source {
            Source::Url(url) => self.download(url).await,
            Source::File(path) => tokio::fs::read(path).await.map_err(|error| error.to_string()),
        };
        match bytes.and_then(|bytes| parse(&bytes)) {
            Ok(keys) => {
                let fetched = self.clock.monotonic();
                tracing::info!(source = %self.source, keys = keys.len(), "fetched the identity provider's keys");
                self.cached.store(Some(Arc::new(Set { keys, fetched })));
            }
            Err(error) => {
                tracing::warn!(source = %self.source, %error, "could not fetch the identity provider's keys");
            }
        }
    }

    async fn download(&self, url: &Url) -> Result<Vec<u8>, String> {
        let Some(http) = &self.http else { return Err("no HTTP client".into()) };
        let mut response = http.get(url.clone()).send().await.map_err(|error| chain(&error))?;
        if response.status() != http::StatusCode::OK {
            return Err(format!("answered {}", response.status()));
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| chain(&error))? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > LARGEST_SET_BYTES {
                return Err(format!("more than {LARGEST_SET_BYTES} bytes"));
            }
        }
        Ok(bytes)
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(url) => write!(f, "{url}"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Follows no redirects: the place of the keys is the operator's word.
fn client(url: &Url) -> Result<reqwest::Client, reqwest::Error> {
    let builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(FETCH_TIMEOUT)
        .pool_max_idle_per_host(0);
    // `http:` is allowed on loopback only, where there is nothing to go through.
    if url.scheme() == "http" { builder.no_proxy().build() } else { builder.https_only(true).build() }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The keys of a set that this gateway can use. Others are passed over, as RFC 7517 (section 5) says.
fn parse(bytes: &[u8]) -> Result<Vec<Verifying>, String> {
    #[derive(Deserialize)]
    struct Written {
        keys: Vec<serde_json::Value>,
    }
    if bytes.len() > LARGEST_SET_BYTES {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge).to_string());
    }
    let written: Written =
        serde_json::from_slice(bytes).map_err(|error| format!("not a key set: {error}"))?;
    let keys: Vec<Verifying> = written.keys.into_iter().filter_map(usable).take(MOST_KEYS).collect();
    if keys.is_empty() { Err("no usable key in the set".into()) } else { Ok(keys) }
}

fn usable(written: serde_json::Value) -> Option<Verifying> {
    let jwk: Jwk = serde_json::from_value(written).ok()?;
    if matches!(jwk.common.public_key_use, Some(ref purpose) if *purpose != PublicKeyUse::Signature) {
        return None;
    }
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    // Which algorithms go with which key. Never a symmetric one: a public key is no secret.
    let mut algorithms = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => vec![RS256, RS384, RS512, PS256, PS384, PS512],
        AlgorithmParameters::EllipticCurve(curve) => match curve.curve {
            EllipticCurve::P256 => vec![ES256],
            EllipticCurve::P384 => vec![ES384],
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => vec![EdDSA],
        _ => return None,
    };
    if let Some(named) = jwk.common.key_algorithm {
        algorithms.retain(|algorithm| KeyAlgorithm::from(*algorithm) == named);
    }
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    (!algorithms.is_empty()).then_some(Verifying { id: jwk.common.key_id, algorithms, key })
}
