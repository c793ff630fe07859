//! The OpenAPI document: generated from the endpoints' own files, committed as `openapi/openapi.json`, and
//! compared with it in a test (`just openapi` writes it anew).

mod modifiers;
mod problems;

use std::sync::OnceLock;

use utoipa::OpenApi as _;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::{ObjectBuilder, OpenApi, Type};

use modifiers::{NoNulls, RequestId, Security, SharedProblems};
pub use problems::problem_responses;
pub(crate) use problems::problems;

use super::problem;
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
        crate::http::publish_by_type::publish_message_of_type,
        crate::http::publish::publish_message,
        crate::http::publish_batch::publish_batch,
        crate::http::explain::explain_message,
        crate::http::invoke::invoke_handler,
        crate::http::push::push,
        crate::http::push::may_push,
        crate::http::messages::get_message,
        crate::http::messages::list_messages,
        crate::http::messages::cancel_message,
        crate::http::durability::run_durability_pass,
        crate::http::targets::list_targets,
        crate::http::targets::pause_target,
        crate::http::targets::resume_target,
        crate::http::dead_letters::list_dead_letters,
        crate::http::dead_letters::summarise_dead_letters,
        crate::http::dead_letters::replay_dead_letters,
        crate::http::dead_letters::discard_dead_letters,
        crate::http::dead_letters::get_dead_letter,
        crate::http::dead_letters::edit_dead_letter,
        crate::http::claims::take_claim,
        crate::http::claims::get_claim,
        crate::http::claims::renew_claim,
        crate::http::claims::confirm_claim,
        crate::http::claims::release_claim,
        crate::http::health::get_liveness,
        crate::http::health::get_readiness,
        crate::http::metrics::get_metrics,
    ),
    components(schemas(problem::Document, PublishAnswer)),
    tags(
        (name = "publish", description = "Hand messages in."),
        (name = "invoke", description = "Run handlers now."),
        (name = "push", description = "Where brokers and webhook senders push."),
        (name = "messages", description = "Where messages stand."),
        (name = "dead letters", description = "Deliveries that were given up on: find, mend, replay, discard."),
        (name = "claims", description = "Identities of work, for consumers that read the broker themselves."),
        (name = "durability", description = "Deliver what is due, where nothing runs in the background."),
        (name = "targets", description = "Destinations and handlers."),
        (name = "node", description = "This node's own state."),
    ),
    modifiers(&Security, &RequestId, &SharedProblems, &NoNulls),
)]
struct Document;

/// A header of an answer whose value is text.
pub fn text_header(description: &str) -> utoipa::openapi::Header {
    HeaderBuilder::new()
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
        .description(Some(description))
        .build()
}
