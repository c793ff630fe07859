//! Error policies: what becomes of a message that a handler failed on, by the kind of the failure.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::delivery::{Failure, Fault};
use super::retry::MAX_RETRY_AFTER;

/// What went wrong in an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// It answered this status.
    Status(u16),
    /// No answer in time.
    Timeout,
    /// It was not reached; the message was not sent.
    Unreachable,
    /// The connection was lost before the answer was there.
    Lost,
    /// It answered what cannot be read or published.
    InvalidReply,
    #[default]
    Other,
}

/// A kind of failures, as a policy names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub enum Kind {
    /// `*`
    Any,
    /// `4xx`, `5xx`
    Class(u16),
    Status(u16),
    Timeout,
    Unreachable,
    Lost,
    InvalidReply,
}

impl Kind {
    /// Whether `failure` is one of this kind. What is the target's own fault (it is not reached, it refuses everybody)
    /// waits until the target is back, and costs no attempts: only a policy that names it exactly is about it.
    pub fn names(self, failure: &Failure) -> bool {
        let own_fault = failure.fault == Fault::Target;
        match self {
            Self::Any => !own_fault,
            Self::Class(class) => {
                matches!(failure.cause, Cause::Status(status) if status / 100 == class) && !own_fault
            }
            Self::Status(status) => failure.cause == Cause::Status(status),
            Self::Timeout => failure.cause == Cause::Timeout,
            Self::Unreachable => failure.cause == Cause::Unreachable,
            Self::Lost => failure.cause == Cause::Lost,
            Self::InvalidReply => failure.cause == Cause::InvalidReply,
        }
    }
}

const NAMED: [(&str, Kind); 7] = [
    ("*", Kind::Any),
    ("4xx", Kind::Class(4)),
    ("5xx", Kind::Class(5)),
    ("timeout", Kind::Timeout),
    ("unreachable", Kind::Unreachable),
    ("lost", Kind::Lost),
    ("invalid-reply", Kind::InvalidReply),
];

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((_, kind)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(*kind);
        }
        match text.parse() {
            Ok(status @ 300..=599) => Ok(Self::Status(status)),
            _ => Err(format!(
                "`{text}` is no kind of failure: write `timeout`, `unreachable`, `lost`, `invalid-reply`, a status from \
                 300 to 599, `4xx`, `5xx`, or `*` (all that is not the handler's own fault)"
            )),
        }
    }
}

impl TryFrom<String> for Kind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Kind> for String {
    fn from(kind: Kind) -> Self {
        kind.to_string()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, NAMED.iter().find(|(_, kind)| kind == self)) {
            (_, Some((name, _))) => f.write_str(name),
            (Self::Status(status), None) => write!(f, "{status}"),
            (other, None) => write!(f, "{other:?}"),
        }
    }
}

/// What becomes of failures of some kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub kinds: Vec<Kind>,
    /// How long to wait before each further attempt; `None`: as the target's backoff says.
    pub retry: Option<Vec<Duration>>,
    /// When these are used up.
    pub then: Then,
}

/// The end of the attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    DeadLetter,
    Discard,
    /// The target is paused, for this long or until somebody resumes it; the message waits.
    Pause(Option<Duration>),
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// As the target's backoff says; when it says no more, this.
    Backoff(Then),
    Retry(Duration),
    End(Then),
}

/// What the first policy that is about `failure` says after `failed` failed attempts, this one included (1 or
/// more); `None`: no policy is about it. A target is not asked earlier than it said.
pub fn step(policies: &[Policy], failure: &Failure, failed: u32) -> Option<Step> {
    let policy = policies.iter().find(|policy| policy.kinds.iter().any(|kind| kind.names(failure)))?;
    let Some(delays) = &policy.retry else { return Some(Step::Backoff(policy.then)) };
    let place = usize::try_from(failed.saturating_sub(1)).unwrap_or(usize::MAX);
    let asked = failure.retry_after.unwrap_or(Duration::ZERO).min(MAX_RETRY_AFTER);
    Some(delays.get(place).map_or(Step::End(policy.then), |delay| Step::Retry((*delay).max(asked))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::delivery::DeadKind;
    use crate::domain::retry::classify_status;

    fn answered(status: u16) -> Failure {
        Failure::new(classify_status(status), "no").cause(Cause::Status(status))
    }

    fn policy(kinds: &[&str], retry: Option<&[u64]>, then: Then) -> Policy {
        Policy {
            kinds: kinds.iter().map(|kind| kind.parse().unwrap()).collect(),
            retry: retry.map(|delays| delays.iter().copied().map(Duration::from_secs).collect()),
            then,
        }
    }

    #[test]
    fn kinds_are_written_as_they_are_read() {
        for text in ["*", "4xx", "5xx", "409", "503", "timeout", "unreachable", "lost", "invalid-reply"] {
            assert_eq!(text.parse::<Kind>().unwrap().to_string(), text);
        }
        for text in ["", "2xx", "3xx", "204", "600", "Timeout", "any", "5XX"] {
            assert!(text.parse::<Kind>().unwrap_err().contains("is no kind of failure"), "{text}");
        }
    }

    #[test]
    fn the_first_policy_that_is_about_a_failure_decides() {
        let policies = [
            policy(&["409", "timeout"], Some(&[0, 10]), Then::Discard),
            policy(&["4xx"], Some(&[]), Then::Pause(None)),
            policy(&["*"], None, Then::DeadLetter),
        ];
        let step = |failure: &Failure, failed| step(&policies, failure, failed);
        let seconds = |seconds| Some(Step::Retry(Duration::from_secs(seconds)));
        assert_eq!(step(&answered(409), 1), seconds(0));
        assert_eq!(step(&answered(409), 2), seconds(10));
        assert_eq!(step(&answered(409), 3), Some(Step::End(Then::Discard)));
        assert_eq!(step(&answered(422), 1), Some(Step::End(Then::Pause(None))));
        assert_eq!(step(&answered(500), 7), Some(Step::Backoff(Then::DeadLetter)));
        let timeout = Failure::new(Fault::Attempt, "late").cause(Cause::Timeout);
        assert_eq!(step(&timeout, 2), seconds(10));
        let invalid = Failure::new(Fault::Message(DeadKind::InvalidReply), "?").cause(Cause::InvalidReply);
        assert_eq!(step(&invalid, 1), Some(Step::Backoff(Then::DeadLetter)));
        assert_eq!(super::step(&policies[..1], &answered(500), 1), None);
    }

    #[test]
    fn the_targets_own_fault_is_meant_only_where_it_is_named() {
        let unreachable = Failure::new(Fault::Target, "refused").cause(Cause::Unreachable);
        let general = [policy(&["4xx", "5xx", "*"], Some(&[]), Then::Discard)];
        for failure in [&unreachable, &answered(503), &answered(404), &answered(302)] {
            assert_eq!(step(&general, failure, 1), None, "{failure:?}");
        }
        let exact = [policy(&["unreachable", "503"], Some(&[1]), Then::Discard)];
        for failure in [&unreachable, &answered(503)] {
            assert_eq!(step(&exact, failure, 1), Some(Step::Retry(Duration::from_secs(1))));
        }
    }

    #[test]
    fn a_target_is_not_asked_earlier_than_it_said() {
        let asked = answered(409).retry_after(Some(Duration::from_secs(7)));
        let policies = [policy(&["409"], Some(&[1, 60]), Then::Discard)];
        assert_eq!(step(&policies, &asked, 1), Some(Step::Retry(Duration::from_secs(7))));
        assert_eq!(step(&policies, &asked, 2), Some(Step::Retry(Duration::from_secs(60))));
    }
}
