//! How often a principal may ask: `server.limits.rate`.
//!
//! Counted on each node by itself, by the generic cell rate algorithm: as many at once as the rate says, then
//! evenly. Told as draft-ietf-httpapi-ratelimit-headers has it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::problem::Problem;
use crate::gateway::Error;

const LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// After how many requests the principals that ask no more are forgotten.
const FORGET_EVERY: u32 = 10_000;

/// One rate for each principal.
#[derive(Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
}

struct Inner {
    limiter: DefaultKeyedRateLimiter<String>,
    clock: DefaultClock,
    policy: HeaderValue,
    asked: AtomicU32,
}

impl Limiter {
    /// `requests` in `per`. `None` for a time too short to be divided.
    pub fn new(requests: NonZeroU32, per: Duration) -> Option<Self> {
        let quota = Quota::with_period(per / requests.get())?.allow_burst(requests);
        let policy = format!("\"principal\";q={requests};w={}", per.as_secs().max(1));
        let inner = Inner {
            limiter: RateLimiter::keyed(quota),
            clock: DefaultClock::default(),
            policy: HeaderValue::try_from(policy).ok()?,
            asked: AtomicU32::new(0),
        };
        Some(Self { inner: Arc::new(inner) })
    }

    /// Counts a request of this principal.
    ///
    /// # Errors
    /// 429, with when to come again.
    pub fn check(&self, principal: &str) -> Result<(), Problem> {
        let inner = &self.inner;
        if inner.asked.fetch_add(1, Ordering::Relaxed) % FORGET_EVERY == FORGET_EVERY - 1 {
            inner.limiter.retain_recent();
        }
        let Err(not_until) = inner.limiter.check_key(&principal.to_owned()) else { return Ok(()) };
        let wait = not_until.wait_time_from(inner.clock.now());
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let limit = HeaderValue::try_from(format!("\"principal\";r=0;t={seconds}"));
        let problem = Problem::from(Error::RateLimited { retry_after: wait });
        let problem = problem.header(POLICY, inner.policy.clone());
        Err(limit.into_iter().fold(problem, |problem, limit| problem.header(LIMIT, limit)))
    }
}
