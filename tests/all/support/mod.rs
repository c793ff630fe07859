//! What the tests share.
//!
//! - [`postgres`], [`rabbitmq`]: private servers from the installed packages, on free ports and in temporary
//!   folders. `shared()` is one per run, for tests that only need a database or a queue; `private()` is for
//!   tests that stop, kill, freeze or misconfigure it. A server that was already running is never touched.
//! - [`pgbouncer`]: a private pooler in transaction mode before such a server.
//! - [`gateway`]: the real binary, with its signals.
//! - [`load`], [`tables`]: clients that publish in a crowd, and the account of what was lost, duplicated or stuck.
//! - [`bed`]: a store for the binary, for tests that hold on every store.
//! - [`receiver`]: an HTTP server that records what arrives and answers as it is told.
//! - [`proxy`]: a TCP proxy that delays, cuts, swallows and holds.
//! - [`push`]: what senders push, signed, and a proxy that records where the gateway goes.
//! - [`deliveries`]: deliveries made by hand, and transports built as a node builds them.
//! - [`raw`]: HTTP by hand, for requests that no client library would send.
//! - [`eventually`]: wait for something to become true, with a deadline.
//! - [`run`]: the run's folder, its guard (no server outlives a run) and its ports.
//!
//! A missing server skips the test, loudly, on a laptop; with `ONCEGATE_REQUIRE_BACKENDS=1`, which
//! `scripts/test` sets, it fails it:
//!
//! ```ignore
//! let Some(postgres) = postgres::shared().await else { return };
//! let url = postgres.fresh_database().await;
//! ```

// Not every helper is used by every set of tests at every time.
#![allow(dead_code)]

pub mod bed;
pub mod daemon;
pub mod deliveries;
pub mod gateway;
pub mod load;
pub mod pgbouncer;
pub mod postgres;
pub mod proxy;
pub mod push;
pub mod rabbitmq;
pub mod raw;
pub mod receiver;
pub mod run;
pub mod tables;

use std::time::{Duration, Instant};

/// Polls `condition` until it gives `Some`, and panics with `what` when `deadline` has passed.
pub async fn eventually<T>(
    deadline: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> Option<T>,
) -> T {
    let started = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(started.elapsed() < deadline, "not within {deadline:?}: {what}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// For [`eventually`]: `Some(())` when true.
pub fn when(condition: bool) -> Option<()> {
    condition.then_some(())
}

/// The policy for what is not installed: a skip on a laptop, a failure where `ONCEGATE_REQUIRE_BACKENDS=1`.
pub fn missing<T>(what: &str) -> Option<T> {
    let required = std::env::var("ONCEGATE_REQUIRE_BACKENDS").is_ok_and(|value| value == "1");
    assert!(!required, "{what} is not installed, and ONCEGATE_REQUIRE_BACKENDS=1");
    eprintln!("SKIPPED: {what} is not installed (scripts/test installs it)");
    None
}
