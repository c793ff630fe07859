//! The one place that names the transports.
