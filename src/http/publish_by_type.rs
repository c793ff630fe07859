//! `POST /v1/publish/{type}`: the body is the data, of any content type.

use axum::extract::State;
use axum::response::Response;

use super::app::App;
use super::caller::{Caller, Publishes};
use super::input::Input;
use super::path::Path;
use super::problem::Problem;
use super::query::NoQuery;
use super::{members, publishing};
use crate::gateway::publish::Form;

/// Publish a message: the body is its data
///
/// The body is taken byte for byte, whatever its content type; the message's members are headers. A message's
/// own headers are `Message-Header-<name>`; names that the gateway sets itself are refused. The answer leaves
/// after the message is stored.
#[utoipa::path(
    post,
    path = "/v1/publish/{type}",
    operation_id = "publishMessageOfType",
    tag = "publish",
    params(
        ("type" = String, Path, description = "What the message is, e.g. `order.created`.",
            min_length = 1, max_length = 255,
            pattern = "^[^\\s\\x00-\\x1f\\x7f-\\x9f]+$", example = "order.created"),
        publishing::MemberHeaders,
        publishing::RequestHeaders,
    ),
    request_body(description = "The message's data, of any content type.", content(
        ("application/json", example = json!({"orderId": 1017})),
        ("text/plain"),
        ("application/octet-stream"),
        ("*/*"),
    )),
    responses(publishing::PublishAnswers, publishing::PublishProblems),
    security(("bearer" = [])),
)]
pub async fn publish_message_of_type(
    app: State<App>,
    caller: Caller<Publishes>,
    path: Path<String>,
    _query: NoQuery,
    input: Input,
) -> Result<Response, Problem> {
    let mut draft = members::draft(path.0, &input.headers)?;
    draft.envelope.content_type = input.content_type()?.map(str::to_owned);
    draft.body = input.body.clone();
    draft.check(app.gateway.limits(), app.gateway.clock().now()).map_err(members::refused)?;
    publishing::publish(&app, caller.principal, Form::Single, vec![draft], &input).await
}
