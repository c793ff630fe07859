//! Oncegate: an HTTP gateway for messages. Nothing is lost, and the same work takes effect once.
//!
//! The map of the crate; `docs/architecture.md` tells the data's way through it.
//!
//! | room | what is in it | may name |
//! |---|---|---|
//! | [`domain`] | the rules, pure | nothing of ours |
//! | [`config`] | the configuration, a file per section | domain |
//! | [`telemetry`] | logs, metrics, traces | domain, config |
//! | [`store`], [`transport`], [`push`], [`auth`] | databases; ways to targets; what senders push; who may do what | domain, config, telemetry |
//! | [`delivery`] | take, attempt, settle | the above |
//! | [`durability`] | the pass and its steps | the above |
//! | [`gateway`] | the use cases | the above |
//! | [`http`] | the edge | gateway, auth, domain, config, telemetry |
//! | [`server`], [`cli`] | wiring, commands | everything |

pub mod auth;
pub mod cli;
pub mod config;
pub mod delivery;
pub mod domain;
pub mod durability;
pub mod gateway;
pub mod http;
pub mod push;
pub mod server;
pub mod store;
pub mod telemetry;
pub mod transport;

pub use domain::message::Draft;
pub use store::outbox::publish_in;
