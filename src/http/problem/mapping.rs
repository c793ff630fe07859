//! Which kind of problem each error is.

use axum::http::{HeaderValue, header};

use super::{Problem, internal, kinds};
use crate::domain::forms;
use crate::gateway::{self, Error, HandlerFailure};

impl From<gateway::Error> for Problem {
    fn from(error: gateway::Error) -> Self {
        match error {
            Error::Malformed { detail, errors } => Self::malformed(detail).errors(errors),
            Error::IdempotencyKeyMissing { detail } => Self::new(kinds::IDEMPOTENCY_KEY_MISSING, detail),
            Error::IdempotencyKeyMalformed { detail } => Self::new(kinds::IDEMPOTENCY_KEY_MALFORMED, detail),
            Error::DeduplicationIdMissing { detail } => Self::new(kinds::DEDUPLICATION_ID_MISSING, detail),
            Error::Unauthenticated { detail } => Self::new(kinds::UNAUTHENTICATED, detail)
                .header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"oncegate\"")),
            Error::Forbidden { detail } => Self::new(kinds::FORBIDDEN, detail),
            Error::NotFound { detail } => Self::new(kinds::NOT_FOUND, detail),
            Error::IdempotencyKeyInFlight { retry_after } => Self::new(
                kinds::IDEMPOTENCY_KEY_IN_FLIGHT,
                "The first request with this Idempotency-Key still runs. Repeat the request after `Retry-After` to get its answer.",
            )
            .retry_after(retry_after),
            Error::ResponseNotKept { original_status } => Self::new(
                kinds::RESPONSE_NOT_KEPT,
                "The request with this Idempotency-Key was done before, and its answer was too large to keep. Do not repeat it.",
            )
            .member("originalStatus", original_status),
            Error::Duplicate { detail, answer } => Self::new(kinds::DUPLICATE, detail).members(*answer),
            Error::NotCancellable { detail } => Self::new(kinds::NOT_CANCELLABLE, detail),
            Error::ClaimHeld { retry_after } => Self::new(
                kinds::CLAIM_HELD,
                "Somebody else holds this claim. Try again after `Retry-After`: by then it is confirmed, released, or free to be taken over.",
            )
            .retry_after(retry_after),
            Error::ClaimLost => Self::new(
                kinds::CLAIM_LOST,
                "The token no longer holds: the lease ended, or the claim was confirmed or released. Stop the work that was done under it.",
            ),
            Error::WrongDurabilityMode { detail } => Self::new(kinds::WRONG_DURABILITY_MODE, detail),
            Error::TooLarge { detail } => Self::new(kinds::TOO_LARGE, detail),
            Error::UnsupportedMediaType { detail } => Self::new(kinds::UNSUPPORTED_MEDIA_TYPE, detail),
            Error::IdempotencyKeyReused => Self::new(
                kinds::IDEMPOTENCY_KEY_REUSED,
                "This Idempotency-Key was used before with another body, query or input header. Use a new key for every new request.",
            ),
            Error::SchemaViolation { detail, errors } => {
                Self::new(kinds::SCHEMA_VIOLATION, detail).errors(errors)
            }
            Error::Unroutable { detail } => Self::new(kinds::UNROUTABLE, detail),
            Error::SchedulingUnavailable { detail } => Self::new(kinds::SCHEDULING_UNAVAILABLE, detail),
            Error::RateLimited { retry_after } => Self::new(
                kinds::RATE_LIMITED,
                "The caller has used up its rate of requests. Repeat the request after `Retry-After`.",
            )
            .retry_after(retry_after),
            Error::StoreUnavailable { detail, retry_after } => {
                Self::new(kinds::STORE_UNAVAILABLE, detail).retry_after(retry_after)
            }
            Error::Overloaded { retry_after } => Self::new(
                kinds::OVERLOADED,
                "More requests are waiting than the gateway keeps; nothing of this one was stored. Repeat it after `Retry-After`.",
            )
            .retry_after(retry_after),
            Error::OutcomeUnknown { retry_after } => Self::new(
                kinds::OUTCOME_UNKNOWN,
                "The database's answer to the commit was lost. Repeat the request after `Retry-After`: safe with an Idempotency-Key or a deduplication id; without one it may publish twice.",
            )
            .retry_after(retry_after),
            Error::HandlerFailed { detail, failure } => {
                let said = match failure {
                    HandlerFailure::Answered(status) => format!("oncegate; received-status={status}"),
                    HandlerFailure::Unreachable => "oncegate; error=destination_unavailable".to_owned(),
                    HandlerFailure::Lost => "oncegate; error=connection_terminated".to_owned(),
                    HandlerFailure::Reply => "oncegate; error=http_protocol_error".to_owned(),
                };
                Self::new(kinds::HANDLER_FAILED, detail).proxy_status(&said)
            }
            Error::HandlerTimeout { timeout } => Self::new(
                kinds::HANDLER_TIMEOUT,
                format!("The handler did not answer within {timeout:?}; whether it did its work is not known."),
            )
            .proxy_status("oncegate; error=http_response_timeout"),
            Error::PushAgain { status } => Self::new(
                kinds::PUSH_AGAIN,
                "What was pushed was not handled, or is being handled just now. Push it again.",
            )
            .status(status),
            Error::MethodNotAllowed { allow } => Self::new(
                kinds::METHOD_NOT_ALLOWED,
                "The path exists and takes only the methods in the `Allow` header.",
            )
            .header(header::ALLOW, HeaderValue::from_static(allow)),
            Error::DestinationFailed { detail, retry_after } => {
                let problem = Self::new(kinds::DESTINATION_FAILED, detail);
                match retry_after {
                    Some(after) => problem.retry_after(after),
                    None => problem,
                }
            }
            Error::Internal => internal(),
        }
    }
}

impl From<forms::Error> for Problem {
    fn from(error: forms::Error) -> Self {
        match error {
            forms::Error::Malformed { detail, places } => Self::malformed(detail).errors(places),
            forms::Error::TooMany { limit } => Self::new(
                kinds::TOO_LARGE,
                format!(
                    "More than {limit} messages in one batch (`server.limits.batch`). Send several batches."
                ),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::response::IntoResponse;
    use serde_json::Value;

    use super::*;

    /// Every error of the use cases, with the status and slug of the interface's table.
    #[test]
    fn the_table() {
        let second = Duration::from_millis(1500);
        let detail = || "d".to_owned();
        let table = [
            (Error::malformed("d"), 400, "malformed-request"),
            (Error::IdempotencyKeyMissing { detail: detail() }, 400, "idempotency-key-missing"),
            (Error::IdempotencyKeyMalformed { detail: detail() }, 400, "idempotency-key-malformed"),
            (Error::DeduplicationIdMissing { detail: detail() }, 400, "deduplication-id-missing"),
            (Error::Unauthenticated { detail: detail() }, 401, "unauthenticated"),
            (Error::Forbidden { detail: detail() }, 403, "forbidden"),
            (Error::NotFound { detail: detail() }, 404, "not-found"),
            (Error::IdempotencyKeyInFlight { retry_after: second }, 409, "idempotency-key-in-flight"),
            (Error::ResponseNotKept { original_status: 201 }, 409, "response-not-kept"),
            (Error::Duplicate { detail: detail(), answer: Box::new(Value::Null) }, 409, "duplicate"),
            (Error::NotCancellable { detail: detail() }, 409, "not-cancellable"),
            (Error::ClaimHeld { retry_after: second }, 409, "claim-held"),
            (Error::ClaimLost, 409, "claim-lost"),
            (Error::WrongDurabilityMode { detail: detail() }, 409, "wrong-durability-mode"),
            (Error::TooLarge { detail: detail() }, 413, "too-large"),
            (Error::UnsupportedMediaType { detail: detail() }, 415, "unsupported-media-type"),
            (Error::IdempotencyKeyReused, 422, "idempotency-key-reused"),
            (Error::SchemaViolation { detail: detail(), errors: vec![] }, 422, "schema-violation"),
            (Error::Unroutable { detail: detail() }, 422, "unroutable"),
            (Error::SchedulingUnavailable { detail: detail() }, 422, "scheduling-unavailable"),
            (Error::RateLimited { retry_after: second }, 429, "rate-limited"),
            (Error::StoreUnavailable { detail: detail(), retry_after: second }, 503, "store-unavailable"),
            (Error::Overloaded { retry_after: second }, 503, "overloaded"),
            (Error::OutcomeUnknown { retry_after: second }, 503, "outcome-unknown"),
            (
                Error::DestinationFailed { detail: detail(), retry_after: Some(second) },
                502,
                "destination-failed",
            ),
            (Error::Internal, 500, "internal"),
        ];
        for (error, status, slug) in table {
            let told = matches!(
                error,
                Error::IdempotencyKeyInFlight { .. }
                    | Error::ClaimHeld { .. }
                    | Error::RateLimited { .. }
                    | Error::StoreUnavailable { .. }
                    | Error::Overloaded { .. }
                    | Error::OutcomeUnknown { .. }
                    | Error::DestinationFailed { .. }
            );
            let response = Problem::from(error).into_response();
            let problem = response.extensions().get::<Problem>().unwrap();
            assert_eq!((response.status().as_u16(), problem.kind().slug), (status, slug));
            let retry_after =
                response.headers().get(header::RETRY_AFTER).map(|value| value.to_str().unwrap());
            assert_eq!(retry_after, told.then_some("2"), "{slug}");
            assert_eq!(response.headers().contains_key(header::WWW_AUTHENTICATE), status == 401);
        }
    }
}
