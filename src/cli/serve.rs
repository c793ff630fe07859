//! `oncegate serve`

use std::process::ExitCode;
use std::sync::Arc;

use super::Source;
use crate::{server, telemetry};

/// Runs a node until it is told to stop.
pub(super) async fn run(source: Source) -> anyhow::Result<ExitCode> {
    let config = source.load()?;
    telemetry::init_logs(config.telemetry.log_format, &config.telemetry.log_level)
        .map_err(|error| anyhow::anyhow!("telemetry.log_level: {error}"))?;
    match &config.file {
        Some(file) => tracing::info!(file = %file.display(), "read the configuration"),
        None => tracing::info!("no configuration file: running on the defaults"),
    }
    server::run_until_signalled(config, Arc::new(move || source.load())).await?;
    Ok(ExitCode::SUCCESS)
}
