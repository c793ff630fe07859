//! Problem details (RFC 9457): the only place that knows status codes.
//!
//! A handler answers with a [`Problem`]; what it says becomes a body in [`render`], once, where the request's
//! id is known. What an outsider may read stands in `detail`; internal text goes to the log where it arises.
//!
//! To add a kind: one line in [`kinds`], and the variant of `gateway::Error` that leads to it in
//! `mapping`.

pub mod kinds;
mod mapping;
pub mod page;

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

pub use crate::gateway::Place;
pub use kinds::Kind;

/// The media type of problem documents.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// An answer that is a problem.
#[derive(Clone, Debug)]
pub struct Problem(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: &'static Kind,
    detail: Cow<'static, str>,
    errors: Vec<Place>,
    /// Members beside the standard ones (RFC 9457, 3.2).
    members: Map<String, Value>,
    headers: HeaderMap,
    /// Instead of the kind's.
    status: Option<StatusCode>,
}

impl Problem {
    pub fn new(kind: &'static Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            detail: detail.into(),
            errors: Vec::new(),
            members: Map::new(),
            headers: HeaderMap::new(),
            status: None,
        }))
    }

    /// 400 `malformed-request`.
    pub fn malformed(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(kinds::MALFORMED_REQUEST, detail)
    }

    /// 400 `malformed-request` about one place.
    pub fn malformed_at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        let place = Place::new(pointer, detail);
        let detail = match place.pointer.as_str() {
            "" => place.detail.clone(),
            pointer => format!("{pointer}: {}", place.detail),
        };
        Self::malformed(detail).errors(vec![place])
    }

    /// The places that are wrong.
    pub fn errors(mut self, errors: Vec<Place>) -> Self {
        self.0.errors = errors;
        self
    }

    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.insert(name, value);
        self
    }

    pub fn member(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.members.insert(name.to_owned(), value.into());
        self
    }

    /// `Retry-After` in whole seconds, at least one.
    pub fn retry_after(self, after: Duration) -> Self {
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        self.header(header::RETRY_AFTER, seconds.max(1).into())
    }

    /// `Proxy-Status` (RFC 9209).
    fn proxy_status(self, value: &str) -> Self {
        match HeaderValue::try_from(value) {
            Ok(value) => self.header(HeaderName::from_static("proxy-status"), value),
            Err(_) => self,
        }
    }

    /// Instead of the kind's status, where the configuration says another.
    fn status(mut self, status: u16) -> Self {
        self.0.status = StatusCode::from_u16(status).ok();
        self
    }

    fn its_status(&self) -> StatusCode {
        self.0.status.unwrap_or(self.0.kind.status)
    }

    pub fn kind(&self) -> &'static Kind {
        self.0.kind
    }

    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    pub fn places(&self) -> &[Place] {
        &self.0.errors
    }

    fn document(&self, request_id: &str) -> Value {
        let Inner { kind, detail, errors, members, .. } = &*self.0;
        let mut document = Map::new();
        document.insert("type".into(), format!("/problems/{}", kind.slug).into());
        document.insert("title".into(), kind.title.into());
        document.insert("status".into(), self.its_status().as_u16().into());
        document.insert("detail".into(), detail.as_ref().into());
        if !errors.is_empty() {
            let places = errors.iter().map(|place| {
                let mut object = Map::new();
                object.insert("pointer".into(), place.pointer.as_str().into());
                object.insert("detail".into(), place.detail.as_str().into());
                Value::Object(object)
            });
            document.insert("errors".into(), places.collect());
        }
        document.insert("requestId".into(), request_id.into());
        for (name, value) in members {
            document.entry(name).or_insert_with(|| value.clone());
        }
        Value::Object(document)
    }
}

impl IntoResponse for Problem {
    /// The head; the body follows in [`render`], where the request's id is known.
    fn into_response(self) -> Response {
        let mut response = self.its_status().into_response();
        response.headers_mut().extend(self.0.headers.clone());
        response.extensions_mut().insert(self);
        response
    }
}

/// On a response that is somebody else's (a handler's): no problem is made of it.
#[derive(Clone, Copy, Debug)]
pub struct AsItIs;

/// Writes the body of a response that is a [`Problem`], or that is an error of something below the handlers
/// (the router, an extractor), which then becomes one. Every other response is left as it is.
pub fn render(response: Response, request_id: &str) -> Response {
    let (mut parts, body) = response.into_parts();
    let problem = match parts.extensions.remove::<Problem>() {
        Some(problem) => problem,
        None if parts.extensions.get::<AsItIs>().is_some() => return Response::from_parts(parts, body),
        None if parts.status.is_client_error() || parts.status.is_server_error() => foreign(parts.status),
        None => return Response::from_parts(parts, body),
    };
    parts.status = problem.its_status();
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    parts.headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Response::from_parts(parts, Body::from(problem.document(request_id).to_string()))
}

fn foreign(status: StatusCode) -> Problem {
    let kind = kinds::of_status(status);
    let detail = match kind {
        kinds::NOT_FOUND => "There is no such path. `/docs` shows those that exist.",
        kinds::METHOD_NOT_ALLOWED => "The path exists and takes only the methods in the `Allow` header.",
        kinds::INTERNAL => INTERNAL_DETAIL,
        _ => kind.meaning,
    };
    Problem::new(kind, detail)
}

const INTERNAL_DETAIL: &str =
    "The gateway met a defect. Repeat the request, and tell the operator the `requestId` if it goes on.";

/// The answer to a panic or another defect, which is already logged.
pub fn internal() -> Problem {
    Problem::new(kinds::INTERNAL, INTERNAL_DETAIL)
}

impl Problem {
    fn members(mut self, object: Value) -> Self {
        if let Value::Object(members) = object {
            self.0.members.extend(members);
        }
        self
    }
}

/// A problem document (RFC 9457).
#[derive(utoipa::ToSchema)]
#[schema(as = Problem, example = json!({
    "type": "/problems/malformed-request",
    "title": "The request is malformed",
    "status": 400,
    "detail": "/deliverAt: not an RFC 3339 time",
    "errors": [{"pointer": "/deliverAt", "detail": "not an RFC 3339 time"}],
    "requestId": "01930e6c-5a7d-7c3e-9d2b-6f1a2b3c4d5e",
}))]
#[allow(dead_code)] // describes what `Problem::document` writes
pub struct Document {
    /// `/problems/{slug}`: a relative URI that is the same for ever; the gateway serves a short page there.
    #[schema(format = "uri-reference")]
    r#type: String,
    /// What kind of problem it is, for people.
    title: String,
    /// The response's status.
    status: u16,
    /// What is wrong with this request, and what to do.
    detail: String,
    /// The places that are wrong, where there are places.
    #[schema(nullable = false)]
    errors: Option<Vec<Place>>,
    /// The request's id: what the log has it under, and the response's `X-Request-Id`.
    #[serde(rename = "requestId")]
    request_id: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::Error;

    async fn body(response: Response) -> Value {
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    #[tokio::test]
    async fn a_problem_says_what_where_and_under_which_id() {
        let error =
            Error::malformed_at("Two places.", vec![Place::new("/a", "x"), Place::new("query b", "y")]);
        let response = render(Problem::from(error).into_response(), "r-1");
        assert_eq!(response.status(), 400);
        assert_eq!(response.headers()[header::CONTENT_TYPE], MEDIA_TYPE);
        let expected = serde_json::json!({
            "type": "/problems/malformed-request", "title": "The request is malformed", "status": 400,
            "detail": "Two places.", "requestId": "r-1",
            "errors": [{"pointer": "/a", "detail": "x"}, {"pointer": "query b", "detail": "y"}],
        });
        assert_eq!(body(response).await, expected);
    }

    #[tokio::test]
    async fn errors_from_below_become_problems_and_keep_their_headers() {
        let below = (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET,HEAD")], "text").into_response();
        let response = render(below, "r");
        assert_eq!(response.headers()[header::ALLOW], "GET,HEAD");
        assert_eq!(body(response).await["type"], "/problems/method-not-allowed");
        let response = render(StatusCode::BAD_GATEWAY.into_response(), "r");
        assert_eq!(response.status(), 500);
        assert_eq!(body(response).await["type"], "/problems/internal");
        let response = render((StatusCode::OK, "text").into_response(), "r");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/plain; charset=utf-8");
    }

    #[tokio::test]
    async fn members_never_overwrite_the_standard_ones() {
        let answer = serde_json::json!({"id": "m-1", "state": "sent", "status": 7, "detail": "no"});
        let error = Error::Duplicate { detail: "Asked for before.".into(), answer: Box::new(answer) };
        let document = body(render(Problem::from(error).into_response(), "r")).await;
        assert_eq!(document["status"], 409);
        assert_eq!(document["detail"], "Asked for before.");
        assert_eq!(document["id"], "m-1");
        assert_eq!(document["state"], "sent");
    }

    #[test]
    fn slugs_are_unique() {
        let mut slugs: Vec<_> = kinds::ALL.iter().map(|kind| kind.slug).collect();
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), kinds::ALL.len());
    }
}
