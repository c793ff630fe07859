//! `/v1/targets`: destinations and handlers, how they stand, pausing and resuming them.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::app::App;
use super::caller::{Caller, Operates, Reads};
use super::openapi::problems;
use super::path::Path;
use super::problem::Problem;
use super::query::NoQuery;
use crate::gateway::targets::Targets;

problems!(ListTargetsProblems:
    MALFORMED_REQUEST, UNAUTHENTICATED, FORBIDDEN, NOT_ACCEPTABLE, INTERNAL, STORE_UNAVAILABLE, OVERLOADED,
);

problems!(PauseTargetProblems:
    MALFORMED_REQUEST, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, NOT_ACCEPTABLE, INTERNAL, STORE_UNAVAILABLE,
    OVERLOADED, OUTCOME_UNKNOWN,
);

/// Destinations and handlers
///
/// All that are configured, and those that no configuration names any more and that still have deliveries.
/// The breaker is that of the node that answers.
#[utoipa::path(
    get,
    path = "/v1/targets",
    operation_id = "listTargets",
    tag = "targets",
    responses((status = 200, description = "The targets.", body = Targets), ListTargetsProblems),
    security(("bearer" = [])),
)]
pub async fn list_targets(
    app: State<App>,
    caller: Caller<Reads>,
    _query: NoQuery,
) -> Result<Json<Targets>, Problem> {
    Ok(Json(app.gateway.targets(&caller.principal).await?))
}

/// Pause a target
///
/// For all nodes, until it is resumed: messages for it are stored and not sent.
#[utoipa::path(
    post,
    path = "/v1/targets/{name}/pause",
    operation_id = "pauseTarget",
    tag = "targets",
    params(("name" = String, Path, description = "The destination's or handler's name.")),
    responses((status = 204, description = "Paused."), PauseTargetProblems),
    security(("bearer" = [])),
)]
pub async fn pause_target(
    app: State<App>,
    caller: Caller<Operates>,
    path: Path<String>,
    _query: NoQuery,
) -> Result<StatusCode, Problem> {
    let gateway = app.gateway.clone();
    app.run(async move { gateway.pause(&caller.principal, &path.0).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Resume a paused target
///
/// For all nodes. What has waited for it is sent.
#[utoipa::path(
    post,
    path = "/v1/targets/{name}/resume",
    operation_id = "resumeTarget",
    tag = "targets",
    params(("name" = String, Path, description = "The destination's or handler's name.")),
    responses((status = 204, description = "Resumed."), PauseTargetProblems),
    security(("bearer" = [])),
)]
pub async fn resume_target(
    app: State<App>,
    caller: Caller<Operates>,
    path: Path<String>,
    _query: NoQuery,
) -> Result<StatusCode, Problem> {
    let gateway = app.gateway.clone();
    app.run(async move { gateway.resume(&caller.principal, &path.0).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
