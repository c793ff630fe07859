//! All integration tests, in one binary: linking once is cheaper than linking twenty times.
//!
//! `support` holds what they share: private servers, the real binary, receivers and proxies. A new file of
//! tests is a file under `tests/all/` and two lines here.

// What is skipped on a machine without a server is said aloud.
#![allow(clippy::print_stderr, clippy::print_stdout)]
#![allow(clippy::unwrap_used)] // a test may

#[path = "all/support/mod.rs"]
mod support;

#[path = "all/auth.rs"]
mod auth;
#[path = "all/config.rs"]
mod config;
#[path = "all/http_errors.rs"]
mod http_errors;
#[path = "all/http_publish.rs"]
mod http_publish;
#[path = "all/http_serve.rs"]
mod http_serve;
#[path = "all/http_unauthorized.rs"]
mod http_unauthorized;
#[path = "all/identity.rs"]
mod identity;
#[path = "all/layering.rs"]
mod layering;
#[path = "all/listen.rs"]
mod listen;
#[path = "all/openapi.rs"]
mod openapi;
#[path = "all/postgres.rs"]
mod postgres;
#[path = "all/rabbitmq.rs"]
mod rabbitmq;
#[path = "all/relay.rs"]
mod relay;
#[path = "all/store_conformance.rs"]
mod store_conformance;
#[path = "all/support_selftest.rs"]
mod support_selftest;
#[path = "all/transport_conformance.rs"]
mod transport_conformance;
#[path = "all/webhook.rs"]
mod webhook;
