//! The OpenAPI document: generated from the endpoints' own files, committed as `openapi/openapi.json`, and
//! compared with it in a test (`just openapi` writes it anew).

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::json;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, ObjectBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder, Type,
    example::ExampleBuilder,
};
use utoipa::{Modify, OpenApi as _};

use super::problem::{self, Kind, kinds};
use crate::gateway::publish::PublishAnswer;

/// The document as JSON, made once.
pub fn json() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        let mut text = document().to_pretty_json().unwrap_or_default();
        text.push('\n');
        text
    })
}

/// The document.
pub fn document() -> OpenApi {
    Document::openapi()
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Oncegate",
        description = "An HTTP gateway for messages: nothing is lost, and the same work takes effect once.\n\n\
            Every error is a problem document (RFC 9457) whose `type` leads to a page that says what to do. \
            Every answer carries `X-Request-Id`: the request's own, or one of the gateway's.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    servers((url = "/", description = "This gateway")),
    paths(
        super::publish_by_type::publish_message_of_type,
        super::publish::publish_message,
        super::publish_batch::publish_batch,
        super::explain::explain_message,
        super::invoke::invoke_handler,
        super::messages::get_message,
        super::messages::list_messages,
        super::messages::cancel_message,
        super::targets::list_targets,
        super::targets::pause_target,
        super::targets::resume_target,
        super::claims::take_claim,
        super::claims::get_claim,
        super::claims::renew_claim,
        super::claims::confirm_claim,
        super::claims::release_claim,
        super::health::get_liveness,
        super::health::get_readiness,
        super::metrics::get_metrics,
    ),
    components(schemas(problem::Document, PublishAnswer)),
    tags(
        (name = "publish", description = "Hand messages in."),
        (name = "invoke", description = "Run handlers now."),
        (name = "messages", description = "Where messages stand."),
        (name = "claims", description = "Identities of work, for consumers that read the broker themselves."),
        (name = "targets", description = "Destinations and handlers."),
        (name = "node", description = "This node's own state."),
    ),
    modifiers(&Security, &RequestId, &SharedProblems),
)]
struct Document;

struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut OpenApi) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("An API key, or a token of the configured identity provider."))
            .build();
        document
            .components
            .get_or_insert_default()
            .add_security_scheme("bearer", SecurityScheme::Http(bearer));
    }
}

/// Every answer names its request.
struct RequestId;

impl Modify for RequestId {
    fn modify(&self, document: &mut OpenApi) {
        for item in document.paths.paths.values_mut() {
            let operations =
                [&mut item.get, &mut item.post, &mut item.delete, &mut item.patch, &mut item.put];
            for operation in operations.into_iter().flatten() {
                for response in operation.responses.responses.values_mut() {
                    if let RefOr::T(response) = response {
                        let header =
                            text_header("The request's id, as the log and problem documents have it.");
                        response.headers.insert("X-Request-Id".to_owned(), header.into());
                    }
                }
            }
        }
    }
}

/// Problems are told once: an operation refers to them.
struct SharedProblems;

impl Modify for SharedProblems {
    fn modify(&self, document: &mut OpenApi) {
        let mut shared = BTreeMap::new();
        for item in document.paths.paths.values_mut() {
            let operations =
                [&mut item.get, &mut item.post, &mut item.delete, &mut item.patch, &mut item.put];
            for operation in operations.into_iter().flatten() {
                for response in operation.responses.responses.values_mut() {
                    let Some(name) = problem_name(response) else { continue };
                    let told = std::mem::replace(response, Ref::from_response_name(&name).into());
                    shared.insert(name, told);
                }
            }
        }
        document.components.get_or_insert_default().responses.extend(shared);
    }
}

/// `StoreUnavailableOrOverloaded`, from the kinds that the response has examples of.
fn problem_name(response: &RefOr<Response>) -> Option<String> {
    let RefOr::T(response) = response else { return None };
    let RefOr::T(content) = response.content.get(problem::MEDIA_TYPE)? else { return None };
    let names: Vec<String> =
        content.examples.keys().map(|slug| slug.split('-').map(capitalised).collect()).collect();
    Some(names.join("Or"))
}

fn capitalised(word: &str) -> String {
    let mut characters = word.chars();
    characters.next().map(|first| first.to_uppercase().chain(characters).collect()).unwrap_or_default()
}

pub fn text_header(description: &str) -> utoipa::openapi::Header {
    HeaderBuilder::new()
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
        .description(Some(description))
        .build()
}

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

/// One response per status, with an example per kind.
pub fn problem_responses(kinds: &[&'static Kind]) -> BTreeMap<String, RefOr<Response>> {
    let mut by_status: BTreeMap<u16, Vec<&'static Kind>> = BTreeMap::new();
    for kind in kinds {
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
    if kinds.contains(&kinds::UNAUTHENTICATED) {
        headers.push(("WWW-Authenticate", "How to authenticate: `Bearer`."));
    }
    if kinds.contains(&kinds::UNSUPPORTED_MEDIA_TYPE) {
        headers.push(("Accept", "The content types that the operation reads."));
    }
    headers
}
