//! One durability pass by a process that does nothing else.

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use super::{assemble, stores};
use crate::auth::Principal;
use crate::config::Config;
use crate::domain::Clock;
use crate::gateway::pass::{Bounds, Report};
use crate::telemetry::Metrics;
use crate::telemetry::trace::Traces;

/// Makes one durability pass over every store that the configuration names, as `oncegate storage flush` does. To be
/// called within a Tokio runtime. What is under way when the time is up ends within `server.drain_timeout`.
///
/// # Errors
/// What keeps it from beginning, the durability mode included. A step that fails is told in the report.
pub async fn flush(config: &Config, bounds: Bounds) -> anyhow::Result<Report> {
    let clock = Clock::system();
    let otlp = config.telemetry.otlp_endpoint.as_ref().map(url::Url::as_str);
    let metrics = Metrics::new(otlp).map_err(anyhow::Error::msg).context("telemetry.otlp_endpoint")?;
    let traces = Traces::new(otlp).map_err(anyhow::Error::msg).context("telemetry.otlp_endpoint")?;
    let stop = CancellationToken::new();
    let stores = stores::open_all(config, &clock, &stop).await?;
    let gateway = assemble(config, stores, &clock, metrics, traces)?;
    let principal = Principal { name: "storage flush".to_owned(), ..Principal::anonymous() };
    let report = std::sync::Arc::clone(&gateway).pass(principal, bounds).await;
    stop.cancel();
    gateway.drain(config.server.drain_timeout.get()).await;
    Ok(report?)
}
