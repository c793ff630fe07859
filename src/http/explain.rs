//! `POST /v1/explain`: a dry run of publish.

use axum::Json;
use axum::extract::State;

use super::app::App;
use super::caller::{Caller, Publishes};
use super::input::Input;
use super::openapi::problems;
use super::problem::Problem;
use super::query::NoQuery;
use super::{publish, schema};
use crate::gateway::explain::Explanation;

problems!(ExplainProblems:
    MALFORMED_REQUEST, UNAUTHENTICATED, FORBIDDEN, NOT_ACCEPTABLE, REQUEST_TIMEOUT, TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE, INTERNAL, STORE_UNAVAILABLE, OVERLOADED,
);

/// Explain what publishing a message would come to
///
/// Which rule gives which deduplication id, where the message would go, whether its work is taken, since when
/// and until when; and why not. Nothing is written. The body is that of `POST /v1/publish`.
#[utoipa::path(
    post,
    path = "/v1/explain",
    operation_id = "explainMessage",
    tag = "publish",
    request_body(description = "The message.", content(
        (schema::NewMessage = "application/json"),
        (schema::CloudEvent = "application/cloudevents+json"),
    )),
    responses((status = 200, description = "What it would come to.", body = Explanation), ExplainProblems),
    security(("bearer" = [])),
)]
pub async fn explain_message(
    app: State<App>,
    caller: Caller<Publishes>,
    _query: NoQuery,
    input: Input,
) -> Result<Json<Explanation>, Problem> {
    let draft = publish::one(&app, &input)?;
    Ok(Json(app.gateway.explain(&caller.principal, draft).await?))
}
