//! `/metrics`: for Prometheus.

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;

use super::app::App;
use super::caller::{Reads, admit};
use super::openapi::problems;
use super::problem::Problem;
use crate::config::telemetry::Authorize;

problems!(GetMetricsProblems: UNAUTHENTICATED, FORBIDDEN, INTERNAL);

/// Metrics
///
/// In Prometheus' text format: accepted, sent, failed and dead-lettered messages, and per destination the
/// backlog and the age of its oldest row. Needs no grant unless the configuration says so
/// (`telemetry.metrics_authorize`).
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "getMetrics",
    tag = "node",
    responses(
        (status = 200, description = "The metrics.", body = String, content_type = "text/plain"),
        GetMetricsProblems,
    ),
)]
pub async fn get_metrics(app: State<App>, headers: HeaderMap) -> Result<impl IntoResponse, Problem> {
    if app.metrics_authorize == Authorize::Grant {
        admit::<Reads>(&headers, &app).await?;
    }
    let text = app.gateway.metrics().await;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}
