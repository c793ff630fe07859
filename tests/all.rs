//! All integration tests, in one binary: linking once is cheaper than linking twenty times.
//!
//! `support` holds what they share: private servers, the real binary, receivers and proxies. A new file of
//! tests is a file under `tests/all/` and two lines here.

// What is skipped on a machine without a server is said aloud.
#![allow(clippy::print_stderr, clippy::print_stdout)]
// A test that unwraps nothing fails where it should.
#![allow(clippy::unwrap_used)]

#[path = "all/support/mod.rs"]
mod support;

#[path = "all/auth.rs"]
mod auth;
#[path = "all/config.rs"]
mod config;
#[path = "all/dead_letters.rs"]
mod dead_letters;
#[path = "all/doctor.rs"]
mod doctor;
#[path = "all/exactly_once.rs"]
mod exactly_once;
#[path = "all/field_outbox.rs"]
mod field_outbox;
#[path = "all/field_reports.rs"]
mod field_reports;
#[path = "all/handler_policies.rs"]
mod handler_policies;
#[path = "all/handlers.rs"]
mod handlers;
#[path = "all/http_claims.rs"]
mod http_claims;
#[path = "all/http_errors.rs"]
mod http_errors;
#[path = "all/http_publish.rs"]
mod http_publish;
#[path = "all/http_rate.rs"]
mod http_rate;
#[path = "all/http_serve.rs"]
mod http_serve;
#[path = "all/http_unauthorized.rs"]
mod http_unauthorized;
#[path = "all/identity.rs"]
mod identity;
#[path = "all/invoke.rs"]
mod invoke;
#[path = "all/layering.rs"]
mod layering;
#[path = "all/listen.rs"]
mod listen;
#[path = "all/neighbours.rs"]
mod neighbours;
#[path = "all/openapi.rs"]
mod openapi;
#[path = "all/ordering.rs"]
mod ordering;
#[path = "all/outbox.rs"]
mod outbox;
#[path = "all/packaging.rs"]
mod packaging;
#[path = "all/postgres.rs"]
mod postgres;
#[path = "all/push/mod.rs"]
mod push;
#[path = "all/push_documents.rs"]
mod push_documents;
#[path = "all/push_proof.rs"]
mod push_proof;
#[path = "all/push_senders.rs"]
mod push_senders;
#[path = "all/rabbitmq.rs"]
mod rabbitmq;
#[path = "all/readme.rs"]
mod readme;
#[path = "all/receivers.rs"]
mod receivers;
#[path = "all/relay.rs"]
mod relay;
#[path = "all/scenario_load.rs"]
mod scenario_load;
#[path = "all/scenario_ordering.rs"]
mod scenario_ordering;
#[path = "all/scenario_outage.rs"]
mod scenario_outage;
#[path = "all/scenario_schemathesis.rs"]
mod scenario_schemathesis;
#[path = "all/scenario_serverless.rs"]
mod scenario_serverless;
#[path = "all/scenario_slow.rs"]
mod scenario_slow;
#[path = "all/scenario_stores.rs"]
mod scenario_stores;
#[path = "all/schedules.rs"]
mod schedules;
#[path = "all/serverless.rs"]
mod serverless;
#[path = "all/store_conformance.rs"]
mod store_conformance;
#[path = "all/stores.rs"]
mod stores;
#[path = "all/support_selftest.rs"]
mod support_selftest;
#[path = "all/transport_conformance.rs"]
mod transport_conformance;
#[path = "all/webhook.rs"]
mod webhook;
