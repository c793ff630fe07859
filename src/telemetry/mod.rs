//! Logs, metrics and traces.
//!
//! Logs go to standard error (standard output belongs to the `stdout` transport). An error is logged once,
//! where it is handled. Metrics are OpenTelemetry instruments, read by Prometheus at `/metrics`; with an OTLP
//! endpoint, metrics and traces go there as well.

mod logs;
mod metrics;
pub mod trace;

pub use logs::init as init_logs;
pub use metrics::{Metrics, TargetLabels};
