//! The one place that names the engines.
