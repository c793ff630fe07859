//! `/healthz` and `/readyz`: for whoever starts, stops and routes to this node.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::app::App;
use super::openapi::problems;
use super::problem::{Problem, kinds};
use crate::gateway::readiness::Report;

/// A node that is not ready is asked again after this long.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A node's state.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Health)]
pub struct Health {
    status: Status,
    /// Of a node with several stores, by `/readyz`: how each of them stands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stores: Vec<StoreHealth>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = HealthStatus)]
enum Status {
    Ok,
    /// A store is not ready: its tenants are answered 503, all others are served.
    Degraded,
}

/// A store's state.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = StoreHealth)]
struct StoreHealth {
    /// As in `[stores.NAME]`.
    store: String,
    ready: bool,
    /// What is wrong, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
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
    Json(Health { status: Status::Ok, stores: Vec::new() })
}

problems!(GetReadinessProblems: INTERNAL, STORE_UNAVAILABLE);

/// Whether the node can do its work
///
/// Its store is reached and its schema is up to date, and its own loops make progress. A failing destination
/// changes nothing: messages for it wait in the store. A node with several stores is ready while one of them
/// is, and tells which are not.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "getReadiness",
    tag = "node",
    responses((status = 200, description = "It can.", body = Health), GetReadinessProblems),
)]
pub async fn get_readiness(app: State<App>) -> Result<Json<Health>, Problem> {
    let Report { ready, stores } = app.gateway.readiness().await;
    if !ready {
        let several = stores.len() > 1;
        let details = stores.into_iter().filter_map(|store| {
            let detail = store.detail?;
            Some(if several { format!("{}: {detail}", store.name) } else { detail })
        });
        let detail = details.collect::<Vec<_>>().join("; ");
        return Err(Problem::new(kinds::STORE_UNAVAILABLE, detail).retry_after(RETRY_AFTER));
    }
    if stores.len() == 1 {
        return Ok(Json(Health { status: Status::Ok, stores: Vec::new() }));
    }
    let all = stores.iter().all(|store| store.detail.is_none());
    let stores = stores.into_iter().map(|store| StoreHealth {
        ready: store.detail.is_none(),
        store: store.name,
        detail: store.detail,
    });
    let status = if all { Status::Ok } else { Status::Degraded };
    Ok(Json(Health { status, stores: stores.collect() }))
}
