//! The only source of time.
//!
//! The wall clock can be moved by tests (in the same process, through [`Clock::advance`]); the monotonic
//! clock, against which leases held in memory are measured, moves with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, SubsecRound, Utc};

use super::Timestamp;

/// The time of day and a monotonic clock. Cheap to clone; clones share the same offset.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    offset_us: Arc<AtomicI64>,
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self::default()
    }

    /// Now, in UTC, truncated to microseconds.
    #[allow(clippy::disallowed_methods)] // the one place that may
    pub fn now(&self) -> Timestamp {
        let offset = chrono::Duration::microseconds(self.offset_us.load(Ordering::Relaxed));
        (Utc::now() + offset).trunc_subsecs(6)
    }

    /// A monotonic moment, to measure leases and deadlines that are held in memory.
    pub fn monotonic(&self) -> Instant {
        let offset = self.offset_us.load(Ordering::Relaxed);
        Instant::now() + Duration::from_micros(u64::try_from(offset).unwrap_or(0))
    }

    /// Moves this clock (and its clones) forward. For tests: nothing in the product calls it.
    #[doc(hidden)]
    pub fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        self.offset_us.fetch_add(by, Ordering::Relaxed);
    }

    /// Sets the wall clock to `now`. For tests: nothing in the product calls it.
    #[doc(hidden)]
    #[allow(clippy::disallowed_methods)]
    pub fn set(&self, now: DateTime<Utc>) {
        let offset = (now - Utc::now()).num_microseconds().unwrap_or(0);
        self.offset_us.store(offset, Ordering::Relaxed);
    }
}
