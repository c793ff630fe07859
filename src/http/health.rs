//! `/healthz` and `/readyz`: for whoever starts, stops and routes to this node.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::app::App;
use super::openapi::problems;
use super::problem::{Problem, kinds};

/// A node that is not ready is asked again after this long.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A node's state.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Health)]
pub struct Health {
    status: Status,
}

#[derive(Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = HealthStatus)]
enum Status {
    Ok,
}

/// Whether the process runs
#[utoipa::path(
    get,
    path = "/healthz",
    operation_id = "getLiveness",
    tag = "node",
    responses((status = 200, description = "It runs.", body = Health)),
)]
pub async fn get_liveness() -> Json<Health> {
    Json(Health { status: Status::Ok })
}

problems!(GetReadinessProblems: INTERNAL, STORE_UNAVAILABLE);

/// Whether the node can do its work
///
/// Its store is reached and its schema is up to date, and its own loops make progress. A failing destination
/// changes nothing: messages for it wait in the store.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "getReadiness",
    tag = "node",
    responses((status = 200, description = "It can.", body = Health), GetReadinessProblems),
)]
pub async fn get_readiness(app: State<App>) -> Result<Json<Health>, Problem> {
    let report = app.gateway.readiness().await;
    if report.ready {
        return Ok(Json(Health { status: Status::Ok }));
    }
    let detail = report.detail.unwrap_or_else(|| "The node is not ready.".to_owned());
    Err(Problem::new(kinds::STORE_UNAVAILABLE, detail).retry_after(RETRY_AFTER))
}
