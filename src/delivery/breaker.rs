//! The circuit breaker of one target on one node.
//!
//! Closed until the target fails `failures` attempts in a row, or fails one in a way that is its own fault.
//! Open for `open` (or what the target asked for). Then one probe: its success closes the breaker, anything
//! else opens it again. Moments come in, so that it can be tested without waiting.

use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Consecutive failed attempts that open it; at least 1.
    pub failures: u32,
    /// For how long.
    pub open: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failed: u32 },
    Open { until: Instant },
    Probing,
}

#[derive(Debug)]
pub struct Breaker {
    settings: Settings,
    state: State,
}

/// Whether an attempt may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Yes,
    /// This one attempt, and no other until it has ended.
    Probe,
    /// Not before this moment; `None`: not before the probe under way has ended.
    No(Option<Instant>),
}

impl Breaker {
    pub fn new(settings: Settings) -> Self {
        Self { settings, state: State::Closed { failed: 0 } }
    }

    /// Asks without changing anything.
    pub fn admits(&self, now: Instant) -> Admission {
        match self.state {
            State::Closed { .. } => Admission::Yes,
            State::Open { until } if now >= until => Admission::Probe,
            State::Open { until } => Admission::No(Some(until)),
            State::Probing => Admission::No(None),
        }
    }

    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed { .. })
    }

    /// The attempt that was admitted as a probe begins.
    pub fn probe(&mut self) {
        self.state = State::Probing;
    }

    /// The probe ended without saying anything about the target (it was not attempted after all).
    pub fn probe_abandoned(&mut self, now: Instant) {
        if self.state == State::Probing {
            self.state = State::Open { until: now };
        }
    }

    /// The target answered.
    pub fn succeeded(&mut self) {
        self.state = State::Closed { failed: 0 };
    }

    /// An attempt failed, nobody knows whose fault it is. Returns the moment it opens until, if it opens now.
    pub fn failed(&mut self, now: Instant) -> Option<Instant> {
        match self.state {
            State::Closed { failed } if failed + 1 < self.settings.failures => {
                self.state = State::Closed { failed: failed + 1 };
                None
            }
            State::Open { .. } => None,
            State::Closed { .. } | State::Probing => Some(self.opened(now, None)),
        }
    }

    /// The target is at fault: open at once, for what it asked for or else as configured. Returns until when.
    pub fn opened(&mut self, now: Instant, asked: Option<Duration>) -> Instant {
        let mut until = now + asked.unwrap_or(self.settings.open);
        if let State::Open { until: already } = self.state {
            until = until.max(already);
        }
        self.state = State::Open { until };
        until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings { failures: 3, open: Duration::from_secs(30) };

    #[test]
    #[allow(clippy::disallowed_methods)]
    fn opens_after_failures_in_a_row_and_closes_after_a_probe() {
        let start = Instant::now();
        let mut breaker = Breaker::new(SETTINGS);
        assert_eq!(breaker.failed(start), None);
        assert_eq!(breaker.failed(start), None);
        breaker.succeeded();
        assert_eq!(breaker.failed(start), None);
        assert_eq!(breaker.failed(start), None);
        let until = breaker.failed(start).unwrap();
        assert_eq!(until, start + SETTINGS.open);
        assert_eq!(breaker.admits(start), Admission::No(Some(until)));
        assert_eq!(breaker.admits(until), Admission::Probe);
        breaker.probe();
        assert_eq!(breaker.admits(until), Admission::No(None));
        assert!(breaker.failed(until).is_some());
        let again = until + SETTINGS.open;
        assert_eq!(breaker.admits(again), Admission::Probe);
        breaker.probe();
        breaker.succeeded();
        assert_eq!(breaker.admits(again), Admission::Yes);
    }

    #[test]
    fn the_targets_own_fault_opens_at_once_for_what_it_asked() {
        let start = Instant::now();
        let mut breaker = Breaker::new(SETTINGS);
        let until = breaker.opened(start, Some(Duration::from_secs(5)));
        assert_eq!(until, start + Duration::from_secs(5));
        // A slower answer of an earlier attempt never shortens it.
        assert_eq!(breaker.opened(start, Some(Duration::from_secs(1))), until);
    }

    #[test]
    fn an_abandoned_probe_leaves_room_for_another() {
        let start = Instant::now();
        let mut breaker = Breaker::new(SETTINGS);
        let until = breaker.opened(start, None);
        breaker.probe();
        breaker.probe_abandoned(until);
        assert_eq!(breaker.admits(until), Admission::Probe);
    }
}
