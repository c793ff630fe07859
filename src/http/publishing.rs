//! What the publish endpoints share: from drafts to the answer, and the parts of their documentation.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};

use super::app::App;
use super::input::Input;
use super::members;
use super::openapi::{problems, text_header};
use super::problem::Problem;
use crate::auth::Principal;
use crate::domain::idempotency;
use crate::domain::message::Draft;
use crate::gateway::Error;
use crate::gateway::publish::{Answer, AnswerKind, Call, Form, Replayed, RequestKey};

/// The identity of a request (draft-ietf-httpapi-idempotency-key-header).
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// On an answer that is an earlier request's.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Hands the drafts in and answers after the commit.
pub async fn publish(
    app: &App,
    principal: Principal,
    form: Form,
    mut drafts: Vec<Draft>,
    input: &Input,
) -> Result<axum::response::Response, Problem> {
    for draft in &mut drafts {
        members::trace(draft, &input.headers);
    }
    let call = Call { principal, form, drafts, key: request_key(input)? };
    let gateway = Arc::clone(&app.gateway);
    let answer = app.run(async move { gateway.publish(call).await }).await?;
    Ok(response(answer))
}

/// The request's identity, where it has a key: one that cannot be read never counts as none.
pub fn request_key(input: &Input) -> Result<Option<RequestKey>, Problem> {
    let lines = input.headers.get_all(IDEMPOTENCY_KEY).iter().map(HeaderValue::as_bytes);
    let key = idempotency::parse_key(lines).map_err(|detail| Error::IdempotencyKeyMalformed { detail })?;
    Ok(key.map(|key| {
        let request = idempotency::Input {
            method: input.method.as_str(),
            path: input.uri.path(),
            query: input.uri.query(),
            body: &input.body,
        };
        let headers = input.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        RequestKey {
            key,
            method: input.method.as_str().to_owned(),
            path: input.uri.path().to_owned(),
            fingerprint: idempotency::fingerprint(request, headers),
        }
    }))
}

fn response(answer: Answer) -> axum::response::Response {
    let mut response = axum::response::Response::new(Body::from(answer.body));
    *response.status_mut() = match answer.kind {
        AnswerKind::Accepted => StatusCode::ACCEPTED,
        AnswerKind::Duplicate => StatusCode::OK,
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(location) = answer.location.and_then(|path| HeaderValue::try_from(path).ok()) {
        headers.insert(header::LOCATION, location);
    }
    if answer.replayed == Replayed::Yes {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

problems!(pub PublishProblems:
    MALFORMED_REQUEST,
    IDEMPOTENCY_KEY_MISSING,
    IDEMPOTENCY_KEY_MALFORMED,
    DEDUPLICATION_ID_MISSING,
    UNAUTHENTICATED,
    FORBIDDEN,
    NOT_ACCEPTABLE,
    REQUEST_TIMEOUT,
    IDEMPOTENCY_KEY_IN_FLIGHT,
    DUPLICATE,
    TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE,
    IDEMPOTENCY_KEY_REUSED,
    SCHEMA_VIOLATION,
    UNROUTABLE,
    SCHEDULING_UNAVAILABLE,
    DESTINATION_FAILED,
    INTERNAL, STORE_UNAVAILABLE, OVERLOADED, OUTCOME_UNKNOWN,
);

/// The answers of a single publish.
pub struct PublishAnswers;

impl utoipa::IntoResponses for PublishAnswers {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        [
            (StatusCode::ACCEPTED, "Stored: it will be delivered."),
            (StatusCode::OK, "A duplicate: the work was asked for before. Nothing was stored."),
        ]
        .into_iter()
        .map(|(status, description)| {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("PublishAnswer"))).build();
            let response = ResponseBuilder::new()
                .description(description)
                .content("application/json", content)
                .header(
                    "Location",
                    text_header("The path of the message's status; for a duplicate, the first message's."),
                )
                .header("Idempotent-Replayed", text_header(REPLAYED_MEANS));
            (status.as_str().to_owned(), response.build().into())
        })
        .collect()
    }
}

pub const REPLAYED_MEANS: &str =
    "`true`: this is the answer of an earlier request with the same Idempotency-Key.";

/// Headers that say something of the request, not of the message.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[allow(dead_code)] // documentation
pub struct RequestHeaders {
    /// The identity of this request: 1 to 255 characters, such as a UUID, bare or as a quoted string. The same
    /// request with the same key is done once; its answer is given again, with `Idempotent-Replayed: true`.
    #[param(
        rename = "Idempotency-Key",
        nullable = false,
        min_length = 1,
        max_length = 255,
        pattern = "^([^\"\\s\\x00-\\x1f\\x7f-\\x9f][^\"\\x00-\\x1f\\x7f-\\x9f]*|\"([^\"\\\\\\x00-\\x1f\\x7f-\\x9f]|\\\\[\"\\\\])+\")$",
        example = "8e03978e-40d5-43dd-bc93-6894a57f9324"
    )]
    idempotency_key: Option<String>,
    /// The caller's trace (W3C Trace Context). It goes on to the targets, with the gateway's span as parent.
    #[param(nullable = false, example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    traceparent: Option<String>,
    /// What vendors add to the trace; taken with a `traceparent` only.
    #[param(nullable = false)]
    tracestate: Option<String>,
}

/// A message's members as headers.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[allow(dead_code)] // documentation
pub struct MemberHeaders {
    /// The message's id; a UUIDv7 if left out. It is no key: the same id may be published again.
    #[param(
        rename = "Message-Id",
        nullable = false,
        min_length = 1,
        max_length = 255,
        pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$"
    )]
    message_id: Option<String>,
    /// What the message comes from, e.g. a URI.
    #[param(
        rename = "Source",
        nullable = false,
        min_length = 1,
        max_length = 1024,
        pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$"
    )]
    source: Option<String>,
    /// What the message is about, within its source.
    #[param(
        rename = "Subject",
        nullable = false,
        min_length = 1,
        max_length = 1024,
        pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$"
    )]
    subject: Option<String>,
    /// The identity of the work that the message asks for. Empty: no rule derives one.
    #[param(
        rename = "Deduplication-Id",
        nullable = false,
        max_length = 512,
        pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$"
    )]
    deduplication_id: Option<String>,
    /// Messages with the same key keep their order on ordered destinations.
    #[param(
        rename = "Partition-Key",
        nullable = false,
        min_length = 1,
        max_length = 255,
        pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$"
    )]
    partition_key: Option<String>,
    /// What this message and others belong to.
    #[param(
        rename = "Correlation-Id",
        nullable = false,
        min_length = 1,
        max_length = 255,
        pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$"
    )]
    correlation_id: Option<String>,
    /// The id of the message that caused this one.
    #[param(
        rename = "Causation-Id",
        nullable = false,
        min_length = 1,
        max_length = 255,
        pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$"
    )]
    causation_id: Option<String>,
    /// Not before this moment. At once if it is past.
    #[param(rename = "Deliver-At", nullable = false)]
    deliver_at: Option<chrono::DateTime<chrono::Utc>>,
    /// Instead of `Deliver-At`: after this long, as `30s` or in ISO 8601.
    #[param(rename = "Delay", nullable = false, example = "30s")]
    delay: Option<String>,
    /// Not after this moment, which may not be past.
    #[param(rename = "Deliver-By", nullable = false)]
    deliver_by: Option<chrono::DateTime<chrono::Utc>>,
    /// Instead of the routes: the names of destinations, separated by commas. Needs the grant
    /// `publish:TYPE@DESTINATION`.
    #[param(rename = "Destinations", nullable = false, example = "orders, audit")]
    destinations: Option<String>,
}

/// A message's members as headers, where it is handed to one handler.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[allow(dead_code)] // documentation
pub struct HandedMembers {
    /// The message's id; a UUIDv7 if left out. It is no key: the same id may be published again.
    #[param(rename = "Message-Id", nullable = false, min_length = 1, max_length = 255)]
    message_id: Option<String>,
    /// What the message comes from, e.g. a URI.
    #[param(rename = "Source", nullable = false, min_length = 1, max_length = 1024)]
    source: Option<String>,
    /// What the message is about, within its source.
    #[param(rename = "Subject", nullable = false, min_length = 1, max_length = 1024)]
    subject: Option<String>,
    /// The identity of the work that the message asks for. Empty: no rule derives one.
    #[param(rename = "Deduplication-Id", nullable = false, max_length = 512)]
    deduplication_id: Option<String>,
    /// Messages with the same key keep their order on ordered destinations.
    #[param(rename = "Partition-Key", nullable = false, min_length = 1, max_length = 255)]
    partition_key: Option<String>,
    /// What this message and others belong to.
    #[param(rename = "Correlation-Id", nullable = false, min_length = 1, max_length = 255)]
    correlation_id: Option<String>,
    /// The id of the message that caused this one.
    #[param(rename = "Causation-Id", nullable = false, min_length = 1, max_length = 255)]
    causation_id: Option<String>,
    /// Not after this moment, which may not be past.
    #[param(rename = "Deliver-By", nullable = false)]
    deliver_by: Option<chrono::DateTime<chrono::Utc>>,
}
