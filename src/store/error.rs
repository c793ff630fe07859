//! The one error of all stores. Its text is for the log only.

use std::time::Duration;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as far as a caller can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The database cannot be reached, is starting, read-only or full, or its write lock is held elsewhere.
    /// Nothing was stored.
    Unavailable,
    /// The schema is older than this program needs. Nothing was stored.
    NotMigrated,
    /// A lock that the statement needs is held by a transaction that does not end. Nothing was stored.
    Locked,
    /// The queue in front of the store is full. Nothing was stored.
    Overloaded,
    /// The reply to a commit was lost and could not be had again: it may or may not be stored.
    OutcomeUnknown,
    /// The data cannot be stored as it is. Nothing was stored.
    InvalidData,
    /// The database holds what this program cannot read.
    Corrupt,
    /// A defect.
    Internal,
}

impl ErrorKind {
    /// The name used in reports and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::NotMigrated => "notMigrated",
            Self::Locked => "locked",
            Self::Overloaded => "overloaded",
            Self::OutcomeUnknown => "outcomeUnknown",
            Self::InvalidData => "invalidData",
            Self::Corrupt => "corrupt",
            Self::Internal => "internal",
        }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("store {}: {detail}", kind.as_str())]
pub struct Error {
    pub kind: ErrorKind,
    /// Internal text: for the log, never for an answer.
    pub detail: String,
}

impl Error {
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }

    /// How long a client should wait before it repeats the request.
    pub fn retry_after(&self) -> Duration {
        Duration::from_secs(match self.kind {
            ErrorKind::Overloaded | ErrorKind::Locked => 1,
            _ => 5,
        })
    }
}
