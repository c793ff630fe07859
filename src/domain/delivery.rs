//! A delivery: one message for one target, and what an attempt of it came to.
//!
//! Its life: `scheduled` until its time; then `waiting` to be taken; `leased` while a node attempts it; then
//! its row is gone (done, with a receipt), or it waits again with its one clock pushed on, or it is a dead
//! letter.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::policy::Cause;
use super::{Message, RowKey};

/// Whether a target is a destination (its rows are the outbox) or a handler (its rows are the inbox).
/// The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(i16)]
pub enum TargetKind {
    Destination = 0,
    Handler = 1,
}

impl TargetKind {
    /// The kind with this stored number.
    pub fn from_stored(number: i16) -> Option<Self> {
        match number {
            0 => Some(Self::Destination),
            1 => Some(Self::Handler),
            _ => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Destination => "destination",
            Self::Handler => "handler",
        }
    }
}

/// A configured target: its kind and its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    pub kind: TargetKind,
    pub name: Arc<str>,
}

impl Target {
    pub fn destination(name: &str) -> Self {
        Self { kind: TargetKind::Destination, name: name.into() }
    }

    pub fn handler(name: &str) -> Self {
        Self { kind: TargetKind::Handler, name: name.into() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.name)
    }
}

/// In what form a destination gets its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The body as it is, the message's members as the wire headers.
    #[default]
    Plain,
    /// The transport's CloudEvents 1.0 binding, in binary mode.
    CloudEvents,
}

/// Why a row's clock lies ahead. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum DeliveryState {
    Scheduled = 0,
    Waiting = 1,
    Leased = 2,
}

/// One message for one target, as a transport sees it.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub row: RowKey,
    pub target: Target,
    pub message: Arc<Message>,
    /// The attempts that were counted before this one; 0 at first. On the wire, `attempts` is this plus one.
    pub attempts: u32,
}

/// Whose fault a failed attempt is, and so what happens to the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nobody can tell: the attempt counts and is made again after a backoff.
    Attempt,
    /// The target's: its breaker opens, no attempt is counted, its rows wait.
    Target,
    /// The message's: it can never succeed and becomes a dead letter at once.
    Message(DeadKind),
}

/// A failed attempt. `text` is for operators (dead letters, targets, the log), never for publishers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub fault: Fault,
    pub text: String,
    /// What the target asked for (`Retry-After`).
    pub retry_after: Option<Duration>,
    /// What error policies go by.
    pub cause: Cause,
}

impl Failure {
    pub fn new(fault: Fault, text: impl Into<String>) -> Self {
        Self { fault, text: text.into(), retry_after: None, cause: Cause::Other }
    }

    pub fn cause(mut self, cause: Cause) -> Self {
        self.cause = cause;
        self
    }

    pub fn retry_after(mut self, after: Option<Duration>) -> Self {
        self.retry_after = after;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a delivery was given up on. The names are those of the API and are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeadKind {
    MissingDeduplicationId,
    Expired,
    /// The message's fault: the target said that it will never take it.
    Refused,
    TooLarge,
    AttemptsExhausted,
    Unreadable,
    Unroutable,
    InvalidReply,
    /// Taken again and again without ever being settled: it brings nodes down.
    NeverSettled,
}

impl DeadKind {
    pub const ALL: [Self; 9] = [
        Self::MissingDeduplicationId,
        Self::Expired,
        Self::Refused,
        Self::TooLarge,
        Self::AttemptsExhausted,
        Self::Unreadable,
        Self::Unroutable,
        Self::InvalidReply,
        Self::NeverSettled,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::MissingDeduplicationId => "MissingDeduplicationId",
            Self::Expired => "Expired",
            Self::Refused => "Refused",
            Self::TooLarge => "TooLarge",
            Self::AttemptsExhausted => "AttemptsExhausted",
            Self::Unreadable => "Unreadable",
            Self::Unroutable => "Unroutable",
            Self::InvalidReply => "InvalidReply",
            Self::NeverSettled => "NeverSettled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// How many times a row may be taken without being settled before it becomes [`DeadKind::NeverSettled`].
pub const MAX_TAKES: u32 = 20;
