//! `POST /v1/publish-batch`: many messages, stored all or nothing.

use axum::extract::State;
use axum::response::Response;

use super::app::App;
use super::caller::{Caller, Publishes};
use super::input::Input;
use super::problem::Problem;
use super::query::NoQuery;
use super::{members, publishing, schema};
use crate::domain::{cloudevents, native};
use crate::gateway::publish::{BatchAnswer, Form};

const ARRAY: &str = "application/json";
const LINES: &str = "application/x-ndjson";

/// Publish many messages, all or nothing
///
/// A message that is invalid, that nobody takes or that the caller may not publish refuses the whole batch;
/// `errors` names its place. Duplicates do not: each is told in its own element of the answer.
#[utoipa::path(
    post,
    path = "/v1/publish-batch",
    operation_id = "publishBatch",
    tag = "publish",
    params(publishing::RequestHeaders),
    request_body(description = "The messages, in order.", content(
        (Vec<schema::NewMessage> = "application/json"),
        (Vec<schema::CloudEvent> = "application/cloudevents-batch+json"),
        (String = "application/x-ndjson", example = json!("{\"type\":\"order.created\",\"data\":1}\n{\"type\":\"order.created\",\"data\":2}\n")),
    )),
    responses(
        (status = 202, description = "Stored, or a duplicate, each.", body = BatchAnswer, headers(
            ("Idempotent-Replayed" = bool, description = "`true`: this is the answer of an earlier request with the same Idempotency-Key."),
        )),
        publishing::PublishProblems,
    ),
    security(("bearer" = [])),
)]
pub async fn publish_batch(
    app: State<App>,
    caller: Caller<Publishes>,
    _query: NoQuery,
    input: Input,
) -> Result<Response, Problem> {
    members::none(&input.headers)?;
    let (limits, now) = (app.gateway.limits(), app.gateway.clock().now());
    let drafts = match input.form(&[ARRAY, cloudevents::BATCH_JSON, LINES])? {
        ARRAY => native::batch(&input.body, limits, now),
        LINES => native::ndjson(&input.body, limits, now),
        _ => cloudevents::batch(&input.body, limits, now),
    };
    publishing::publish(&app, caller.principal, Form::Batch, drafts?, &input).await
}
