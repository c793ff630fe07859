//! The HTTP edge.
//!
//! One file per endpoint, each with its request's parsing, its documentation and its handler; [`routes`] is
//! the table of all of them. Around them: [`serve`] (connections), [`edge`] (what happens to every request),
//! [`problem`] (errors).
//!
//! A handler's arguments say in which order things happen: the [`caller`] first, so that nothing is read or
//! looked up for somebody who may not call at all; then the path and the query; the [`input`] (the body) last.
//!
//! To add an endpoint: a file with a handler and its `#[utoipa::path]`, a line in [`routes`], a line in
//! [`openapi`], and `just openapi`. The tests say what was forgotten.

pub mod accept;
pub mod app;
pub mod body;
pub mod caller;
mod claims;
mod dead_letters;
mod docs;
mod durability;
pub mod edge;
mod explain;
mod health;
pub mod input;
mod invoke;
mod linger;
mod members;
mod messages;
mod metrics;
pub mod openapi;
pub mod path;
pub mod problem;
mod publish;
mod publish_batch;
mod publish_by_type;
mod publishing;
mod push;
pub mod query;
pub mod rate;
pub mod routes;
mod schema;
pub mod serve;
mod targets;

pub use app::{App, Limits};
pub use edge::Edge;
pub use routes::{Port, router};
