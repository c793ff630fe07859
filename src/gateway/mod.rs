//! The use cases: what the HTTP edge, the command line and background work ask for.
//!
//! One rule serves all three. Nothing here knows a status code; an [`Error`] says what went wrong and what to
//! do, and `http::problem` maps it.

pub mod error;
pub mod publish;

pub use error::{Error, Place, Result};
