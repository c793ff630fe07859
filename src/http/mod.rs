//! The HTTP edge.
//!
//! One file per endpoint, each with its request's parsing, its documentation and its handler. Around them:
//! [`serve`] (connections), [`edge`] (what happens to every request), [`problem`] (errors).

pub mod accept;
pub mod body;
pub mod edge;
mod linger;
pub mod path;
pub mod problem;
pub mod query;
pub mod serve;
