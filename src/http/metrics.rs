//! `/metrics`: for Prometheus.

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use super::app::App;
use super::openapi::problems;

problems!(GetMetricsProblems: INTERNAL);

/// Metrics
///
/// In Prometheus' text format: accepted, sent, failed and dead-lettered messages, and per destination the
/// backlog and the age of its oldest row.
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
pub async fn get_metrics(app: State<App>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.gateway.metrics().await)
}
