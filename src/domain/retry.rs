//! What an answer of a target means, and how long to wait before the next attempt.

use std::time::Duration;

use super::delivery::{DeadKind, Fault};
use super::ids::Random;

/// How often, and how far apart, a failed delivery is attempted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Attempts in all, the first included; at least 1.
    pub max_attempts: u32,
    /// The ceiling of the wait after the first failed attempt; it doubles with each further one.
    pub initial: Duration,
    /// The ceiling never exceeds this.
    pub max: Duration,
}

impl Backoff {
    /// The ceiling of the wait after `failed` failed attempts (1 or more).
    pub fn ceiling(&self, failed: u32) -> Duration {
        let doublings = failed.saturating_sub(1).min(31);
        self.initial.saturating_mul(1 << doublings).min(self.max)
    }

    /// The wait after `failed` failed attempts: exponential with full jitter, and never less than what the
    /// target asked for; `None` when the attempts are exhausted.
    pub fn next(&self, failed: u32, asked: Option<Duration>, random: Random) -> Option<Duration> {
        if failed >= self.max_attempts {
            return None;
        }
        let wait = random.jitter(self.ceiling(failed));
        Some(wait.max(asked.unwrap_or(Duration::ZERO).min(MAX_RETRY_AFTER)))
    }
}

/// A target that asks for more than this gets this.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// What an HTTP status of a target other than 2xx means for the delivery.
///
/// 408, 425 and 5xx other than 503 say nothing certain: an attempt. Redirects, refusals of the caller, a
/// missing or overloaded endpoint are the target's. Every other 4xx is the message's.
pub fn classify_status(status: u16) -> Fault {
    match status {
        408 | 425 => Fault::Attempt,
        300..=399 | 401 | 402 | 403 | 404 | 405 | 407 | 410 | 429 | 503 => Fault::Target,
        413 => Fault::Message(DeadKind::TooLarge),
        400..=499 => Fault::Message(DeadKind::Refused),
        _ => Fault::Attempt,
    }
}

/// The wait that a `Retry-After` value asks for (RFC 9110, 10.2.3): seconds, or an HTTP date.
pub fn parse_retry_after(value: &str, now: super::Timestamp) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER));
    }
    let at = chrono::DateTime::parse_from_rfc2822(value).ok()?;
    let wait = at.with_timezone(&chrono::Utc) - now;
    Some(wait.to_std().unwrap_or(Duration::ZERO).min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff =
        Backoff { max_attempts: 4, initial: Duration::from_secs(1), max: Duration::from_secs(3) };

    #[test]
    fn the_ceiling_doubles_up_to_the_maximum() {
        assert_eq!(BACKOFF.ceiling(1), Duration::from_secs(1));
        assert_eq!(BACKOFF.ceiling(2), Duration::from_secs(2));
        assert_eq!(BACKOFF.ceiling(3), Duration::from_secs(3));
        assert_eq!(BACKOFF.ceiling(400), Duration::from_secs(3));
    }

    #[test]
    fn attempts_end() {
        assert!(BACKOFF.next(3, None, Random).is_some());
        assert_eq!(BACKOFF.next(4, None, Random), None);
    }

    #[test]
    fn the_target_is_not_asked_earlier_than_it_said() {
        let asked = Duration::from_secs(60);
        assert!(BACKOFF.next(1, Some(asked), Random).unwrap() >= asked);
    }

    #[test]
    fn every_status_has_one_meaning() {
        for status in [408, 425, 500, 502, 504, 599, 600] {
            assert_eq!(classify_status(status), Fault::Attempt, "{status}");
        }
        for status in [301, 302, 307, 308, 401, 402, 403, 404, 405, 407, 410, 429, 503] {
            assert_eq!(classify_status(status), Fault::Target, "{status}");
        }
        for status in [400, 406, 409, 411, 415, 418, 422, 451] {
            assert_eq!(classify_status(status), Fault::Message(DeadKind::Refused), "{status}");
        }
        assert_eq!(classify_status(413), Fault::Message(DeadKind::TooLarge));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = chrono::DateTime::parse_from_rfc3339("2026-01-02T03:04:05Z").unwrap().to_utc();
        assert_eq!(parse_retry_after("120", now), Some(Duration::from_secs(120)));
        assert_eq!(parse_retry_after("Fri, 02 Jan 2026 03:05:05 GMT", now), Some(Duration::from_secs(60)));
        assert_eq!(parse_retry_after("Fri, 02 Jan 2026 03:00:05 GMT", now), Some(Duration::ZERO));
        assert_eq!(parse_retry_after("soon", now), None);
    }
}
