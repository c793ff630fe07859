//! Looking for what is due of an ordered target: a round through its keys, as many steps as it takes.
//!
//! A step goes on where the one before it stopped, so that many keys get their turn alike. What becomes known
//! during a round may concern a key that the round has passed, so the round is then made once more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::domain::ordering::OnDeadLetter;
use crate::store;
use crate::store::lanes::{Looked, Take};

/// Rows that are given a place in the order in one step.
const ADOPT: u32 = 1_000;

/// How far a round has come.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// What became known: rows that are due, or that are gone.
    news: AtomicU64,
    /// Rows without a place in the order may be there.
    strays: AtomicBool,
    round: Mutex<Round>,
}

#[derive(Debug, Default)]
struct Round {
    /// Where the next step goes on.
    after: Option<crate::domain::ordering::OrderKey>,
    /// The news that the round began with.
    began_with: u64,
    /// When something is due that the round passed.
    next: Option<Instant>,
}

impl Rounds {
    /// Nothing is known yet of what an earlier configuration left behind.
    pub fn new() -> Self {
        Self { strays: AtomicBool::new(true), ..Self::default() }
    }

    pub fn news(&self) {
        self.news.fetch_add(1, Ordering::Relaxed);
    }

    pub fn note_strays(&self) {
        self.strays.store(true, Ordering::Relaxed);
    }

    fn round(&self) -> MutexGuard<'_, Round> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next step: what to ask the store for, and whether rows are to be given a place first.
    pub fn step(&self, take: store::deliveries::Take, on_dead_letter: OnDeadLetter) -> Step {
        let mut round = self.round();
        if round.after.is_none() {
            *round = Round { began_with: self.news.load(Ordering::Relaxed), ..Round::default() };
        }
        let adopt = self.strays.swap(false, Ordering::Relaxed);
        Step { take: Take { take, after: round.after, on_dead_letter }, adopt }
    }

    /// What a step found, `now` being the moment before it; when to make the next one.
    pub fn stepped(&self, looked: &Looked, now: Instant) -> Option<Instant> {
        let mut round = self.round();
        if let Some(next) = looked.next.map(|next| now + next) {
            round.next = Some(round.next.map_or(next, |known| known.min(next)));
        }
        round.after = looked.resume;
        let is_stale = round.began_with != self.news.load(Ordering::Relaxed);
        if looked.resume.is_some() || is_stale { Some(now) } else { round.next }
    }

    /// The step failed: it is made again.
    pub fn failed(&self, step: &Step) {
        if step.adopt {
            self.note_strays();
        }
    }
}

/// A step of a round.
pub(super) struct Step {
    pub take: Take,
    pub adopt: bool,
}

impl Step {
    /// Makes it.
    pub async fn make(&self, store: &store::Shared) -> store::Result<Looked> {
        if self.adopt {
            let mut rows = 0;
            loop {
                let adopted = store.adopt(&self.take.take.target, ADOPT).await?;
                rows += adopted;
                if adopted < u64::from(ADOPT) {
                    break;
                }
            }
            if rows > 0 {
                tracing::info!(
                    target_name = %self.take.take.target.name, rows,
                    "rows that were written while the target had no order have a place in it now"
                );
            }
        }
        store.take_in_order(&self.take).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::delivery::Target;
    use crate::domain::ordering::OrderKey;
    use crate::domain::{Clock, Token};

    fn take() -> store::deliveries::Take {
        store::deliveries::Take {
            target: Target::destination("a"),
            limit: 8,
            lease: Duration::from_secs(15),
            token: Token(1),
        }
    }

    fn looked(next: Option<u64>, resume: Option<OrderKey>) -> Looked {
        Looked { taken: Vec::new(), next: next.map(Duration::from_secs), resume }
    }

    #[test]
    fn a_round_goes_through_all_keys_and_ends_with_the_earliest_due_time() {
        let (rounds, now) = (Rounds::new(), Clock::system().monotonic());
        let key = OrderKey::new("", Some("k"));
        let step = rounds.step(take(), OnDeadLetter::Continue);
        assert!(step.adopt && step.take.after.is_none());
        assert_eq!(rounds.stepped(&looked(Some(3), Some(key)), now), Some(now));
        let step = rounds.step(take(), OnDeadLetter::Continue);
        assert!(!step.adopt && step.take.after == Some(key));
        assert_eq!(rounds.stepped(&looked(Some(9), None), now), Some(now + Duration::from_secs(3)));
        assert!(rounds.step(take(), OnDeadLetter::Continue).take.after.is_none());
        assert_eq!(rounds.stepped(&looked(None, None), now), None, "nothing of the round before");
    }

    #[test]
    fn news_of_a_key_that_was_passed_begin_another_round() {
        let (rounds, now) = (Rounds::new(), Clock::system().monotonic());
        rounds.step(take(), OnDeadLetter::Continue);
        rounds.news();
        assert_eq!(rounds.stepped(&looked(Some(60), None), now), Some(now));
        rounds.step(take(), OnDeadLetter::Continue);
        assert_eq!(rounds.stepped(&looked(None, None), now), None);
    }
}
