//! What identity costs those who do not use it.

use serde_json::json;

use super::bench::{Bench, SOON, tell};
use crate::support::{eventually, postgres, when};

/// Statements are counted in the server's own log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unkeyed_traffic_pays_no_statement_for_claims() {
    const COUNT: usize = 20;
    let Some(server) = postgres::private(&[("log_statement", "all")]).await else { return };
    let bench = Bench::with(Some(server.fresh_database().await)).await;
    // A type that enforces with `required = false`, without an id: as a type that enforces nothing.
    let before = server.log().len();
    for n in 0..COUNT {
        tell(bench.post("order.created", &json!(n))).await.is(202);
        tell(bench.post("work.conflict", &json!(n))).await.is(202);
    }
    let unkeyed = claims_in(&server.log()[before..]);
    assert_eq!(unkeyed, 0, "statements that write claims, for {COUNT} publishes");
    // The counting sees them where they are.
    let before = server.log().len();
    tell(bench.post("order.created", &json!(1)).header("Idempotency-Key", "k")).await.is(202);
    bench.work("work.conflict", "w").await.is(202);
    eventually(SOON, "the claims are logged", async || when(claims_in(&server.log()[before..]) >= 2)).await;
}

/// Statements that insert into the claims' table.
fn claims_in(log: &str) -> usize {
    log.matches("INSERT INTO oncegate.deduplication").count()
}
