//! The log: text for people, JSON for machines, both on standard error.

use tracing_subscriber::EnvFilter;

use crate::config::telemetry::LogFormat;

/// Starts logging at `level`, a `tracing` filter such as `info` or `oncegate=debug,warn`. Only the first
/// call of a process takes effect.
///
/// # Errors
/// What is wrong with `level`.
pub fn init(format: LogFormat, level: &str) -> Result<(), String> {
    // The AMQP client logs whole messages as warnings; what it has to say comes as errors as well.
    let quiet = if level.contains("lapin") { "" } else { ",lapin=off" };
    let filter = EnvFilter::try_new(format!("{level}{quiet}")).map_err(|error| error.to_string())?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let result = match format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    drop(result); // already started, by a test or an embedding program
    Ok(())
}
