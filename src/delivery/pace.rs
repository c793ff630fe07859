//! How often a target's attempts may begin on this node: `rate`.
//!
//! By the generic cell rate algorithm: as many at once as the rate says, then evenly. What is over the rate stays in
//! the store, where any node may have it: a node takes, or holds in memory, no more than may begin within a moment,
//! so that no row's lease passes while it waits for its turn. Shared by the node's stores.

use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// The longest that a row is held for its turn, unless its lease is short.
const AHEAD: Duration = Duration::from_secs(1);
/// And this part of its lease.
const PART: u32 = 8;

/// The rate of one target on one node.
#[derive(Debug)]
pub struct Pace {
    limiter: DefaultDirectRateLimiter,
    clock: DefaultClock,
    /// What is due later than this is not held.
    window: Duration,
    rows: usize,
    /// When the next attempt may begin, as far as is known.
    next: Mutex<Option<Instant>>,
}

impl Pace {
    /// `count` attempts in `per`, of rows that are leased for `lease`. `None`: too short a time to be divided.
    pub fn new(count: NonZeroU32, per: Duration, lease: Duration) -> Option<Self> {
        let quota = Quota::with_period(per / count.get())?.allow_burst(count);
        let window = AHEAD.min(lease / PART);
        let in_window = f64::from(count.get()) * window.as_secs_f64() / per.as_secs_f64();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // positive, and cut off below
        let rows = (in_window.min(10_000.0) as usize).max(1);
        let (clock, next) = (DefaultClock::default(), Mutex::new(None));
        Some(Self { limiter: RateLimiter::direct(quota), clock, window, rows, next })
    }

    fn next(&self) -> MutexGuard<'_, Option<Instant>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an attempt that begins now.
    ///
    /// # Errors
    /// When it may begin; it is not counted.
    pub fn begin(&self, now: Instant) -> Result<(), Instant> {
        let turn = self.limiter.check();
        let until = turn.err().map(|not_until| now + not_until.wait_time_from(self.clock.now()));
        *self.next() = until;
        until.map_or(Ok(()), Err)
    }

    /// Rows that may be held at the same time.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// When the next attempt may begin; `None`: now.
    pub fn turn(&self, now: Instant) -> Option<Instant> {
        (*self.next()).filter(|next| *next > now)
    }

    /// When rows may be held again; `None`: now.
    pub fn closed_until(&self, now: Instant) -> Option<Instant> {
        let next = (*self.next())?;
        (next > now + self.window).then(|| next.checked_sub(self.window).unwrap_or(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(count: u32, per_s: u64, lease_s: u64) -> Pace {
        let count = NonZeroU32::new(count).unwrap();
        Pace::new(count, Duration::from_secs(per_s), Duration::from_secs(lease_s)).unwrap()
    }

    #[test]
    #[allow(clippy::disallowed_methods)]
    fn as_many_at_once_as_the_rate_says_and_then_none() {
        let pace = pace(3, 600, 30);
        let now = Instant::now();
        for _ in 0..3 {
            assert_eq!(pace.begin(now), Ok(()));
            assert_eq!(pace.closed_until(now), None);
        }
        let turn = pace.begin(now).unwrap_err();
        assert!(turn > now + Duration::from_secs(190) && turn <= now + Duration::from_secs(200));
        assert_eq!(pace.closed_until(now), Some(turn - AHEAD));
        assert_eq!(pace.closed_until(turn), None);
    }

    #[test]
    fn no_more_is_held_than_begins_soon() {
        assert_eq!(pace(100, 1, 30).rows(), 100);
        assert_eq!(pace(100, 1, 2).rows(), 25);
        assert_eq!(pace(1, 3_600, 30).rows(), 1);
    }
}
