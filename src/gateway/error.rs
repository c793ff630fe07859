//! What a use case can fail with. `detail` is for outsiders and says what to do; internal text is logged
//! where the error arises and never put in here.

use std::time::Duration;

pub type Result<T, E = Error> = std::result::Result<T, E>;

pub use crate::domain::Place;

/// How a handler failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerFailure {
    /// It answered this status.
    Answered(u16),
    /// It did not get the request.
    Unreachable,
    /// The connection ended before the answer was there.
    Lost,
    /// Its reply publishes what cannot be accepted.
    Reply,
}

#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum Error {
    #[error("malformed request: {detail}")]
    Malformed { detail: String, errors: Vec<Place> },
    #[error("idempotency key missing: {detail}")]
    IdempotencyKeyMissing { detail: String },
    #[error("idempotency key malformed: {detail}")]
    IdempotencyKeyMalformed { detail: String },
    #[error("deduplication id missing: {detail}")]
    DeduplicationIdMissing { detail: String },
    #[error("unauthenticated: {detail}")]
    Unauthenticated { detail: String },
    #[error("forbidden: {detail}")]
    Forbidden { detail: String },
    #[error("not found: {detail}")]
    NotFound { detail: String },
    #[error("in flight")]
    IdempotencyKeyInFlight { retry_after: Duration },
    #[error("response not kept")]
    ResponseNotKept { original_status: u16 },
    /// `on_duplicate = "conflict"`; `answer` is the duplicate's answer (an object), told as members.
    #[error("duplicate: {detail}")]
    Duplicate { detail: String, answer: Box<serde_json::Value> },
    #[error("not cancellable: {detail}")]
    NotCancellable { detail: String },
    #[error("claim held")]
    ClaimHeld { retry_after: Duration },
    #[error("claim lost")]
    ClaimLost,
    #[error("wrong durability mode: {detail}")]
    WrongDurabilityMode { detail: String },
    #[error("too large: {detail}")]
    TooLarge { detail: String },
    #[error("unsupported media type: {detail}")]
    UnsupportedMediaType { detail: String },
    #[error("idempotency key reused")]
    IdempotencyKeyReused,
    #[error("schema violation: {detail}")]
    SchemaViolation { detail: String, errors: Vec<Place> },
    #[error("unroutable: {detail}")]
    Unroutable { detail: String },
    #[error("scheduling unavailable: {detail}")]
    SchedulingUnavailable { detail: String },
    #[error("rate limited")]
    RateLimited { retry_after: Duration },
    #[error("store unavailable: {detail}")]
    StoreUnavailable { detail: String, retry_after: Duration },
    #[error("overloaded")]
    Overloaded { retry_after: Duration },
    #[error("outcome unknown")]
    OutcomeUnknown { retry_after: Duration },
    #[error("handler failed: {detail}")]
    HandlerFailed { detail: String, failure: HandlerFailure },
    #[error("handler timeout")]
    HandlerTimeout { timeout: Duration },
    /// What was pushed is to be pushed again; `status` is the one that the receiver's sender takes for that.
    #[error("to be pushed again")]
    PushAgain { status: u16 },
    #[error("method not allowed")]
    MethodNotAllowed { allow: &'static str },
    /// A destination did not take what a publish sends before it is answered. Without a time, no repeating helps.
    #[error("destination failed: {detail}")]
    DestinationFailed { detail: String, retry_after: Option<Duration> },
    /// A defect; already logged.
    #[error("internal error")]
    Internal,
}

impl Error {
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::Malformed { detail: detail.into(), errors: Vec::new() }
    }

    /// Says which element of a batch it is about.
    pub(crate) fn of_element(mut self, form: super::publish::Form, index: usize) -> Self {
        if form == super::publish::Form::Batch {
            match &mut self {
                Self::Forbidden { detail }
                | Self::Unroutable { detail }
                | Self::SchedulingUnavailable { detail }
                | Self::DeduplicationIdMissing { detail }
                | Self::IdempotencyKeyMissing { detail } => *detail = format!("Element {index}: {detail}"),
                Self::Malformed { detail, errors } | Self::SchemaViolation { detail, errors } => {
                    *detail = format!("Element {index}: {detail}");
                    for place in errors {
                        if place.pointer.is_empty() || place.pointer.starts_with('/') {
                            place.pointer = format!("/{index}{}", place.pointer);
                        }
                    }
                }
                _ => {}
            }
        }
        self
    }

    pub fn malformed_at(detail: impl Into<String>, errors: Vec<Place>) -> Self {
        Self::Malformed { detail: detail.into(), errors }
    }
}

impl From<crate::store::Error> for Error {
    fn from(error: crate::store::Error) -> Self {
        use crate::store::ErrorKind;
        let retry_after = error.retry_after();
        tracing::warn!(kind = error.kind.as_str(), detail = %error.detail, "the store did not take a request");
        match error.kind {
            ErrorKind::Unavailable | ErrorKind::Locked => Self::StoreUnavailable {
                detail: "The store cannot be reached or written to just now; nothing of this request was stored. Repeat it.".into(),
                retry_after,
            },
            ErrorKind::NotMigrated => Self::StoreUnavailable {
                detail: "The store's schema is not up to date; nothing was stored. An operator has to run `oncegate storage migrate`.".into(),
                retry_after,
            },
            ErrorKind::Overloaded => Self::Overloaded { retry_after },
            ErrorKind::OutcomeUnknown => Self::OutcomeUnknown { retry_after },
            ErrorKind::InvalidData => Self::malformed(
                "The store cannot hold this request as it is. Look for control characters and over-long values.",
            ),
            ErrorKind::Corrupt | ErrorKind::Internal => {
                tracing::error!(kind = error.kind.as_str(), detail = %error.detail, "defect in the store");
                Self::Internal
            }
        }
    }
}
