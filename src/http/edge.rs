//! What happens to every request, whatever its path: an id, a span, a guard against panics, problem
//! documents with bodies, a line in the log.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use tower::ServiceExt;
use tracing::Instrument;

use super::problem;
use crate::domain::{Clock, Random};

/// Names a request in the log and in a problem; the client may choose it.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longer ids of clients are not taken.
const MAX_REQUEST_ID_BYTES: usize = 128;

/// The router and what stands around it. Cheap to clone.
#[derive(Clone)]
pub struct Edge {
    router: Router,
    clock: Clock,
    random: Random,
}

impl Edge {
    pub fn new(router: Router, clock: Clock, random: Random) -> Arc<Self> {
        Arc::new(Self { router, clock, random })
    }

    /// Answers a request. Never with an empty error, whatever happens inside.
    pub async fn answer(&self, request: Request) -> Response {
        let started = self.clock.monotonic();
        let id = self.request_id(request.headers());
        let text = id.to_str().unwrap_or_default();
        let head = request.method() == Method::HEAD;
        let span = tracing::info_span!(
            "request",
            request_id = text,
            method = request.method().as_str(),
            path = request.uri().path(),
            trace_id = trace_id(request.headers()),
        );
        let answer = AssertUnwindSafe(self.router.clone().oneshot(request)).catch_unwind();
        let response = match answer.instrument(span.clone()).await {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(panic) => {
                span.in_scope(|| tracing::error!(reason = reason(panic.as_ref()), "a handler panicked"));
                problem::internal().into_response()
            }
        };
        let mut response = problem::render(response, text);
        if head {
            *response.body_mut() = Body::empty();
        }
        let status = response.status().as_u16();
        let duration_us = u64::try_from((self.clock.monotonic() - started).as_micros()).unwrap_or(u64::MAX);
        span.in_scope(|| {
            if status < 400 {
                tracing::debug!(status, duration_us, "answered");
            } else {
                tracing::info!(status, duration_us, "answered");
            }
        });
        response.headers_mut().insert(REQUEST_ID, id);
        response
    }

    /// The client's, if it is one line of visible ASCII of a sane length; else a UUIDv7.
    fn request_id(&self, headers: &HeaderMap) -> HeaderValue {
        if let Some(given) = headers.get(REQUEST_ID) {
            let bytes = given.as_bytes();
            if (1..=MAX_REQUEST_ID_BYTES).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic) {
                return given.clone();
            }
        }
        let fresh = self.random.uuid_v7(self.clock.now());
        let mut buffer = uuid::Uuid::encode_buffer();
        let text = fresh.hyphenated().encode_lower(&mut buffer);
        HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("-"))
    }
}

/// The trace that the caller is part of (W3C Trace Context), for the log.
fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get("traceparent")?.to_str().ok()?;
    let trace_id = value.split('-').nth(1)?;
    (trace_id.len() == 32 && trace_id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(trace_id)
}

/// What a panic says.
pub fn reason(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text")
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use axum::routing::get;
    use serde_json::Value;

    use super::*;

    fn edge() -> Arc<Edge> {
        async fn panics() -> StatusCode {
            panic!("on purpose")
        }
        let router = Router::new().route("/ok", get(async || "fine")).route("/panics", get(panics));
        Edge::new(router, Clock::system(), Random)
    }

    async fn call(method: Method, path: &str, id: Option<&str>) -> (Response<()>, String) {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(id) = id {
            request = request.header(REQUEST_ID, id);
        }
        let (parts, body) = edge().answer(request.body(Body::empty()).unwrap()).await.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        (Response::from_parts(parts, ()), String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn sane_request_ids_are_echoed_and_others_replaced() {
        assert_eq!(call(Method::GET, "/ok", Some("abc-1")).await.0.headers()[REQUEST_ID], "abc-1");
        let long = "x".repeat(MAX_REQUEST_ID_BYTES + 1);
        for strange in [None, Some(""), Some("a b"), Some(long.as_str())] {
            let (response, _) = call(Method::GET, "/ok", strange).await;
            let id = response.headers()[REQUEST_ID].to_str().unwrap().to_owned();
            assert_eq!(uuid::Uuid::parse_str(&id).unwrap().get_version_num(), 7, "{strange:?}");
        }
    }

    #[tokio::test]
    async fn unknown_paths_wrong_methods_and_panics_are_problems_with_the_id() {
        for (method, path, status, slug) in [
            (Method::GET, "/nothing", 404, "not-found"),
            (Method::POST, "/ok", 405, "method-not-allowed"),
            (Method::GET, "/panics", 500, "internal"),
        ] {
            let (response, body) = call(method, path, Some("r-7")).await;
            assert_eq!(response.status(), status, "{path}");
            assert_eq!(response.headers()["content-type"], problem::MEDIA_TYPE);
            let document: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(document["type"], format!("/problems/{slug}"));
            assert_eq!(document["requestId"], "r-7");
        }
        assert!(call(Method::HEAD, "/nothing", None).await.1.is_empty());
    }

    #[test]
    fn only_a_whole_trace_id_is_logged() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", value.parse().unwrap());
            trace_id(&headers).map(str::to_owned)
        };
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(of(&format!("00-{id}-00f067aa0ba902b7-01")).as_deref(), Some(id));
        assert_eq!(of("00-xyz-1-1"), None);
        assert_eq!(of(""), None);
    }
}
