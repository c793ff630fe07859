//! `POST /v1/invoke/{type}`: runs the handler now and answers with its response.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::app::App;
use super::caller::{Caller, Invokes};
use super::input::Input;
use super::openapi::problems;
use super::path::Path;
use super::problem::{Place, Problem};
use super::query::Query;
use super::{members, publishing};
use crate::gateway::invoke::{self, Call, Response};
use crate::gateway::publish::Replayed;

/// The longest that a request waits for the first one with its key.
const MAX_WAIT: Duration = Duration::from_secs(30);

problems!(InvokeProblems:
    MALFORMED_REQUEST, IDEMPOTENCY_KEY_MISSING, IDEMPOTENCY_KEY_MALFORMED, DEDUPLICATION_ID_MISSING,
    UNAUTHENTICATED, FORBIDDEN, REQUEST_TIMEOUT, IDEMPOTENCY_KEY_IN_FLIGHT, RESPONSE_NOT_KEPT,
    DUPLICATE, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, IDEMPOTENCY_KEY_REUSED, SCHEMA_VIOLATION, UNROUTABLE,
    INTERNAL, HANDLER_FAILED, STORE_UNAVAILABLE, OVERLOADED, OUTCOME_UNKNOWN, HANDLER_TIMEOUT,
);

/// Headers that say something of an invoke.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[allow(dead_code)] // documentation
struct InvokeHeaders {
    /// `wait=N`: for how many seconds (30 at most) to wait for the answer of the first request with the same
    /// Idempotency-Key (RFC 7240).
    #[param(rename = "Prefer", nullable = false, example = "wait=10")]
    prefer: Option<String>,
}

/// Run a type's handler now
///
/// The body is the message's data, of any content type; its members are headers, as for
/// `POST /v1/publish/{type}`. The handler's status (below 500), body and `Content-Type`, `Content-Language`,
/// `Location`, `ETag`, `Last-Modified`, `Cache-Control` and `Retry-After` are answered. With an
/// Idempotency-Key the handler runs once: the same request gets the same answer again, and one that comes while
/// the first runs is told so (409), or waits for it (`Prefer: wait=N`). An answer of 400 or more frees the key.
#[utoipa::path(
    post,
    path = "/v1/invoke/{type}",
    operation_id = "invokeHandler",
    tag = "invoke",
    params(
        ("type" = String, Path, description = "What the message is, e.g. `order.price`.",
            min_length = 1, max_length = 255, example = "order.price"),
        ("handler" = Option<String>, Query, description = "Which handler, where several take the type.",
            nullable = false),
        publishing::HandedMembers,
        publishing::RequestHeaders,
        InvokeHeaders,
    ),
    request_body(description = "The message's data, of any content type.", content(
        (Object = "application/json", example = json!({"orderId": 1017})),
        (String = "text/plain"),
        (Vec<u8> = "application/octet-stream"),
        (Vec<u8> = "*/*"),
    )),
    responses(
        (status = "2XX", description = "What the handler answered. (Its answers from 300 to 499 pass through, too.)",
            content((Object = "application/json"), (Vec<u8> = "*/*")),
            headers(("Idempotent-Replayed" = bool, description = "`true`: this is the answer of an earlier request with the same Idempotency-Key."))),
        InvokeProblems,
    ),
    security(("bearer" = [])),
)]
pub async fn invoke_handler(
    app: State<App>,
    caller: Caller<Invokes>,
    path: Path<String>,
    mut query: Query,
    input: Input,
) -> Result<axum::response::Response, Problem> {
    let handler = query.take("handler");
    query.finish()?;
    unscheduled(&input.headers)?;
    let mut draft = members::draft(path.0, &input.headers)?;
    draft.envelope.content_type = input.content_type()?.map(str::to_owned);
    draft.body = input.body.clone();
    draft.check(app.gateway.limits(), app.gateway.clock().now()).map_err(members::refused)?;
    members::trace(&mut draft, &input.headers);
    let call = Call {
        principal: caller.principal,
        draft,
        handler,
        key: publishing::request_key(&input)?,
        wait: wait(&input.headers),
    };
    let gateway = Arc::clone(&app.gateway);
    let response = app.run(async move { gateway.invoke(call).await }).await?;
    Ok(answer(response))
}

/// Members that only a publish has: passed over, they would be promises that nobody keeps.
fn unscheduled(headers: &HeaderMap) -> Result<(), Problem> {
    let errors: Vec<Place> = ["deliver-at", "delay", "destinations"]
        .into_iter()
        .filter(|name| headers.contains_key(*name))
        .map(|name| {
            Place::new(format!("header {name}"), "belongs to a publish: an invoke runs one handler, now")
        })
        .collect();
    if errors.is_empty() {
        return Ok(());
    }
    Err(Problem::malformed("Headers of a publish stand in an invoke; `errors` names them.").errors(errors))
}

/// `Prefer: wait=N` (RFC 7240, 4.3). What cannot be read is no preference.
fn wait(headers: &HeaderMap) -> Duration {
    let preferences = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let seconds = preferences.flat_map(|line| line.split([',', ';'])).find_map(|preference| {
        let (name, value) = preference.split_once('=')?;
        name.trim()
            .eq_ignore_ascii_case("wait")
            .then(|| value.trim().trim_matches('"').parse::<u64>().ok())?
    });
    Duration::from_secs(seconds.unwrap_or(0)).min(MAX_WAIT)
}

fn answer(response: Response) -> axum::response::Response {
    let Response { status, headers, body, replayed } = response;
    let body = match body {
        invoke::Body::Whole(body) => Body::from(body),
        invoke::Body::Streamed(stream) => {
            use futures::TryStreamExt;
            Body::from_stream(stream.map_err(std::io::Error::other))
        }
    };
    let mut answer = axum::response::Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            answer.headers_mut().insert(name, value);
        }
    }
    if replayed == Replayed::Yes {
        answer.headers_mut().insert(publishing::REPLAYED, HeaderValue::from_static("true"));
    }
    answer.extensions_mut().insert(super::problem::AsItIs);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preference_is_read_and_capped() {
        let wait = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append("prefer", line.parse().unwrap());
            }
            super::wait(&headers).as_secs()
        };
        assert_eq!(
            (wait(&["wait=10"]), wait(&["respond-async, Wait=\"5\""]), wait(&["a=b", "wait = 3"])),
            (10, 5, 3)
        );
        assert_eq!((wait(&[]), wait(&["wait"]), wait(&["wait=-1"]), wait(&["wait=99"])), (0, 0, 0, 30));
    }
}
