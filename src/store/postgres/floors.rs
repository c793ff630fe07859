//! Floors on `due_at`: below them, a target has no due rows, only dead index entries.
//!
//! Rows leave the queue at its front, and their dead index entries stay until vacuum may remove them; while an
//! old snapshot is held somewhere that is never. Every write sets `due_at` to the server's `now()` or later, so
//! what a take has emptied stays empty, but for transactions that were under way ([`MARGIN`]) and for rows that
//! were locked by a taker that then failed. A full sweep once a minute ([`FULL_SWEEP`]) finds those.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::domain::Timestamp;
use crate::domain::delivery::Target;

/// Longer than a transaction that writes rows takes.
const MARGIN: chrono::Duration = chrono::Duration::seconds(5);
/// How often the floor is ignored.
const FULL_SWEEP: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Floors {
    by_target: Mutex<HashMap<Target, Floor>>,
}

#[derive(Clone, Copy, Debug)]
struct Floor {
    due_at: Timestamp,
    swept: Instant,
}

/// What a look at the front of a queue found.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found {
    /// Everything due was taken, or nothing was due.
    Emptied,
    /// As many as were asked for, up to this due time.
    UpTo(Timestamp),
}

impl Floors {
    /// Where to start looking; `None`: at the beginning.
    pub fn of(&self, target: &Target, now: Instant) -> Option<Timestamp> {
        let floors = self.by_target.lock().unwrap_or_else(PoisonError::into_inner);
        floors
            .get(target)
            .filter(|floor| now.duration_since(floor.swept) < FULL_SWEEP)
            .map(|floor| floor.due_at)
    }

    /// Remembers what a look from `from` on found. `server_now`: a moment (the server's) before the look.
    pub fn found(
        &self,
        target: &Target,
        from: Option<Timestamp>,
        found: Found,
        server_now: Timestamp,
        now: Instant,
    ) {
        let safe = server_now - MARGIN;
        let due_at = match found {
            Found::Emptied => safe,
            Found::UpTo(due_at) => due_at.min(safe),
        };
        let mut floors = self.by_target.lock().unwrap_or_else(PoisonError::into_inner);
        match floors.get_mut(target) {
            // A look from a floor says nothing of what is below it.
            Some(floor) if from.is_some() => floor.due_at = floor.due_at.max(due_at),
            Some(floor) => *floor = Floor { due_at, swept: now },
            None if from.is_none() => {
                floors.insert(target.clone(), Floor { due_at, swept: now });
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Clock;

    #[test]
    fn what_was_emptied_is_not_looked_at_again_for_a_minute() {
        let (floors, target) = (Floors::default(), Target::destination("a"));
        let (start, time) = (Instant::now(), Clock::system().now());
        assert_eq!(floors.of(&target, start), None);
        floors.found(&target, None, Found::Emptied, time, start);
        assert_eq!(floors.of(&target, start), Some(time - MARGIN));

        let later = start + Duration::from_secs(30);
        let second = chrono::Duration::seconds(1);
        floors.found(
            &target,
            Some(time - MARGIN),
            Found::UpTo(time - MARGIN + second),
            time + second * 30,
            later,
        );
        assert_eq!(floors.of(&target, later), Some(time - MARGIN + second));
        // The look from the floor was no full sweep.
        assert_eq!(floors.of(&target, start + FULL_SWEEP), None);
    }

    #[test]
    fn rows_of_transactions_under_way_are_above_the_floor() {
        let (floors, target) = (Floors::default(), Target::destination("a"));
        let (start, time) = (Instant::now(), Clock::system().now());
        floors.found(&target, None, Found::UpTo(time), time, start);
        assert_eq!(floors.of(&target, start), Some(time - MARGIN));
    }
}
