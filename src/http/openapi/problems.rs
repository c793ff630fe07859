//! The problems that operations answer with.

use std::collections::BTreeMap;

use serde_json::json;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};

use super::text_header;
use crate::http::problem::{self, Kind, kinds};

/// Declares the problems that an operation answers with, to stand among its `responses(…)`:
/// `problems!(GetMessageProblems: NOT_FOUND, STORE_UNAVAILABLE);`
macro_rules! problems {
    ($vis:vis $name:ident: $($kind:ident),* $(,)?) => {
        $vis struct $name;

        impl utoipa::IntoResponses for $name {
            fn responses() -> std::collections::BTreeMap<String, utoipa::openapi::RefOr<utoipa::openapi::Response>> {
                $crate::http::openapi::problem_responses(&[$($crate::http::problem::kinds::$kind),*])
            }
        }
    };
}
pub(crate) use problems;

/// One response per status, with an example per kind. Who is asked who it is may also ask too often.
pub fn problem_responses(kinds: &[&'static Kind]) -> BTreeMap<String, RefOr<Response>> {
    let mut by_status: BTreeMap<u16, Vec<&'static Kind>> = BTreeMap::new();
    let limited = kinds.contains(&problem::kinds::UNAUTHENTICATED).then_some(&kinds::RATE_LIMITED);
    for kind in kinds.iter().chain(limited) {
        by_status.entry(kind.status.as_u16()).or_default().push(kind);
    }
    by_status
        .into_iter()
        .map(|(status, kinds)| (status.to_string(), response(status, &kinds).into()))
        .collect()
}

fn response(status: u16, kinds: &[&'static Kind]) -> Response {
    let lines: Vec<_> = kinds.iter().map(|kind| format!("`{}`: {}", kind.slug, kind.meaning)).collect();
    let examples = kinds.iter().map(|kind| {
        let value = json!({
            "type": format!("/problems/{}", kind.slug), "title": kind.title, "status": status,
            "detail": kind.advice, "requestId": "01930e6c-5a7d-7c3e-9d2b-6f1a2b3c4d5e",
        });
        (kind.slug, ExampleBuilder::new().summary(kind.title).value(Some(value)).build())
    });
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("Problem")))
        .examples_from_iter(examples)
        .build();
    let mut response =
        ResponseBuilder::new().description(lines.join("\n\n")).content(problem::MEDIA_TYPE, content);
    for (name, description) in headers(kinds) {
        response = response.header(name, text_header(description));
    }
    response.build()
}

fn headers(kinds: &[&'static Kind]) -> Vec<(&'static str, &'static str)> {
    let tells_when = [
        kinds::IDEMPOTENCY_KEY_IN_FLIGHT,
        kinds::CLAIM_HELD,
        kinds::RATE_LIMITED,
        kinds::STORE_UNAVAILABLE,
        kinds::OVERLOADED,
        kinds::OUTCOME_UNKNOWN,
    ];
    let mut headers = Vec::new();
    if kinds.iter().any(|kind| tells_when.contains(kind)) {
        headers.push(("Retry-After", "After how many seconds to repeat the request."));
    }
    if kinds.contains(&kinds::RATE_LIMITED) {
        headers.push(("RateLimit", "What is left of the rate, and when it is whole again."));
        headers.push(("RateLimit-Policy", "The rate: so many requests in so many seconds."));
    }
    if kinds.contains(&kinds::UNAUTHENTICATED) {
        headers.push(("WWW-Authenticate", "How to authenticate: `Bearer`."));
    }
    if kinds.contains(&kinds::UNSUPPORTED_MEDIA_TYPE) {
        headers.push(("Accept", "The content types that the operation reads."));
    }
    headers
}
