//! Documents of third parties that a push needs: certificates, and confirmations that are asked for.
//!
//! What may be asked for at all is decided before, in `push`. Here it is kept small: a document is fetched once
//! and kept, few are fetched at a time and in a minute, each has a time and a size. So whoever sends made-up
//! requests makes the gateway ask for little, and can push nothing out of what is kept.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use url::Url;

use crate::domain::Clock;
use crate::transport::guard::{Client, describe, limited};

/// For one request, its connection and its answer included.
const TIMEOUT: Duration = Duration::from_secs(10);
const LARGEST_BYTES: usize = 64 * 1024;
/// How many documents are kept, and for how long.
const KEPT: usize = 64;
const KEEP: Duration = Duration::from_secs(24 * 3600);
/// How many are fetched at a time; none of them twice.
const AT_ONCE: usize = 8;
const A_MINUTE: NonZeroU32 = NonZeroU32::new(60).unwrap();

/// Fetches and keeps them. One for all receivers.
pub struct Documents {
    client: Client,
    clock: Clock,
    kept: Mutex<HashMap<Url, Kept>>,
    /// Held while one is fetched that falls to this place.
    places: [tokio::sync::Mutex<()>; AT_ONCE],
    rate: DefaultDirectRateLimiter,
}

struct Kept {
    document: Bytes,
    fetched: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Fresh,
    Stale,
}

impl Documents {
    pub fn new(client: Client, clock: Clock) -> Self {
        Self {
            client,
            clock,
            kept: Mutex::default(),
            places: Default::default(),
            rate: RateLimiter::direct(Quota::per_minute(A_MINUTE)),
        }
    }

    /// The document at `url`, kept or fetched. One that was kept too long is fetched again; until that succeeds it
    /// is as good as it was.
    ///
    /// # Errors
    /// Why it cannot be had just now, for the log.
    pub async fn get(&self, url: &Url) -> Result<Bytes, String> {
        if let Some((document, Age::Fresh)) = self.kept(url) {
            return Ok(document);
        }
        let mut hasher = DefaultHasher::new();
        url.hash(&mut hasher);
        let _place = self.places[hasher.finish() as usize % AT_ONCE].lock().await;
        // Another request may have waited for the same one.
        let before = match self.kept(url) {
            Some((document, Age::Fresh)) => return Ok(document),
            other => other.map(|(document, _)| document),
        };
        let document = match (self.ask(url).await, before) {
            (Ok(document), _) => Bytes::from(document),
            (Err(error), Some(document)) => {
                tracing::warn!(%url, %error, "a document that a push needs could not be fetched again");
                return Ok(document);
            }
            (Err(error), None) => return Err(error),
        };
        let fetched = self.clock.monotonic();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT
            && let Some(oldest) = kept.iter().min_by_key(|(_, kept)| kept.fetched).map(|(url, _)| url.clone())
        {
            kept.remove(&oldest);
        }
        kept.insert(url.clone(), Kept { document: document.clone(), fetched });
        tracing::info!(%url, "fetched a document that a push needs");
        Ok(document)
    }

    /// Asks for `url`, which may change something at its end, and gives the answer's body if it is a 2xx.
    ///
    /// # Errors
    /// Why there is none, for the log.
    pub async fn ask(&self, url: &Url) -> Result<Vec<u8>, String> {
        if self.rate.check().is_err() {
            return Err(format!("more than {A_MINUTE} documents were asked for within a minute"));
        }
        let asking = async {
            let request = self.client.get(url.clone()).await.map_err(|refused| refused.to_string())?;
            let answer = request.send().await.map_err(describe)?;
            if !answer.status().is_success() {
                return Err(format!("answered {}", answer.status()));
            }
            limited(answer, LARGEST_BYTES).await
        };
        match tokio::time::timeout(TIMEOUT, asking).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(format!("no answer within {TIMEOUT:?}")),
        }
    }

    fn kept(&self, url: &Url) -> Option<(Bytes, Age)> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.get(url)?;
        let age = self.clock.monotonic().saturating_duration_since(found.fetched);
        Some((found.document.clone(), if age < KEEP { Age::Fresh } else { Age::Stale }))
    }
}
