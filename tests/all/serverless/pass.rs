//! The pass: its bounds, its report, its lock, its three triggers.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{SOON, pass, passes, route, webhook, with_outbox};
use crate::support::bed::{Bed, on_every_store_and_a_pooler};
use crate::support::gateway::{Gateway, command};
use crate::support::receiver::{Answer, Receiver};
use crate::support::{eventually, when};

on_every_store_and_a_pooler! {
    the_batch_size_bounds_the_rows_of_a_step
    one_pass_moves_the_intake_sends_what_is_due_and_runs_handlers
    rows_that_fail_wait_and_hold_back_no_healthy_ones
    what_was_taken_and_not_begun_is_given_back
    five_passes_at_once_are_one_and_four_that_skip
    what_is_over_is_purged_and_counted
    the_command_line_makes_the_same_pass
    bounds_are_read_lowered_or_refused
}

/// Publishes so many while the destination is down.
async fn publish_pending(gateway: &Gateway, count: usize) {
    for n in 0..count {
        let (status, answer) = gateway.publish(json!({"type": "t", "id": format!("m{n}"), "data": n})).await;
        assert_eq!((status, &answer["outcomes"]["out"]), (202, &json!("pending")), "{answer}");
    }
}

/// Waits until so many rows are due.
async fn until_due(bed: &Bed, count: u64) {
    eventually(SOON, "the rows are due", async || when(bed.due().await == count)).await;
}

async fn the_batch_size_bounds_the_rows_of_a_step(bed: &Bed) {
    let receiver = Receiver::failing_first(5, 500).await;
    let config = with_outbox(bed, &(webhook("out", &receiver, "/") + &route("*", &["out"])));
    let gateway = Gateway::start(&config).await;
    publish_pending(&gateway, 5).await;
    until_due(bed, 5).await;
    let mut sent = Vec::new();
    for _ in 0..3 {
        let (status, report) = pass(&gateway, "?batchSize=2&maxDuration=30").await;
        assert_eq!(status, 200, "{report}");
        sent.push((report["outgoingSent"].as_u64().unwrap(), report["hasMoreWork"].as_bool().unwrap()));
    }
    assert_eq!(sent, [(2, true), (2, true), (1, false)]);
    assert_eq!(receiver.count(), 10);
}

async fn one_pass_moves_the_intake_sends_what_is_due_and_runs_handlers(bed: &Bed) {
    let receiver = Receiver::start().await;
    let handler = format!("[handlers.h]\ntypes = ['do']\nurl = '{}'\n", receiver.url("/h"));
    let config = with_outbox(bed, &(webhook("out", &receiver, "/out") + &route("t", &["out"]) + &handler));
    let gateway = Gateway::start(&config).await;
    for kind in ["t", "do"] {
        let soon = json!({"type": kind, "delay": "1s"});
        assert_eq!(gateway.publish(soon).await.0, 202);
    }
    assert_eq!(gateway.publish(json!({"type": "do", "delay": "1h"})).await.0, 202);
    bed.insert_intake("t", "{\"n\":1}").await;
    until_due(bed, 2).await;
    let (status, report) = pass(&gateway, "").await;
    assert_eq!(status, 200, "{report}");
    assert_eq!(report["outgoingSent"], 2, "{report}");
    assert_eq!(report["incomingHandled"], 1);
    assert_eq!(report["scheduledReleased"], 2);
    assert_eq!((&report["hasMoreWork"], &report["timedOut"]), (&json!(false), &json!(false)));
    assert_eq!((&report["outgoingFailed"], &report["incomingFailed"]), (&json!(0), &json!(0)));
    assert_eq!(report["skippedStores"], json!([]));
    let steps = report["stores"][0]["steps"].as_array().unwrap();
    assert_eq!(report["stores"][0]["store"], "main");
    let said: Vec<Value> =
        steps.iter().map(|s| json!([s["step"], s["outcome"], s["count"], s["moreWork"]])).collect();
    let expected = json!([
        ["intake", "succeeded", 1, false],
        ["outgoing", "succeeded", 2, false],
        ["incoming", "succeeded", 1, false],
        ["purge", "succeeded", 0, false]
    ]);
    assert_eq!(json!(said), expected);
    let next = chrono::DateTime::parse_from_rfc3339(report["nextDueAt"].as_str().unwrap()).unwrap();
    let in_minutes = (next.to_utc() - oncegate::domain::Clock::system().now()).num_minutes();
    assert!((50..=60).contains(&in_minutes), "{report}");
}

async fn rows_that_fail_wait_and_hold_back_no_healthy_ones(bed: &Bed) {
    let receiver = Receiver::scripted(|_, _| Answer::status(500)).await;
    let down = webhook("down", &receiver, "/down").replace("failures = 1000", "failures = 1");
    let routes = route("*", &["down"]) + &route("healthy", &["out"]);
    let config = with_outbox(bed, &(webhook("out", &receiver, "/out") + &down + &routes))
        .replace("outbox_stale_time = '1s'", "outbox_stale_time = '20s'");
    let gateway = Gateway::start(&config).await;
    for _ in 0..20 {
        gateway.publish(json!({"type": "sick"})).await;
    }
    for _ in 0..3 {
        gateway.publish(json!({"type": "healthy"})).await;
    }
    receiver.script(|_, request| Answer::status(if request.uri.path() == "/out" { 204 } else { 503 }));
    until_due(bed, 26).await;
    let asked = receiver.count();
    let (status, report) = pass(&gateway, "?batchSize=12").await;
    assert_eq!(status, 200, "a row that fails is no step that fails: {report}");
    assert_eq!(report["outgoingSent"], 3, "{report}");
    assert_eq!(report["outgoingFailed"], 9, "the batch is shared out: {report}");
    let probes = receiver.received()[asked..].iter().filter(|r| r.uri.path() == "/down").count();
    assert!(probes <= 2, "{probes} calls to a destination whose breaker is open");
    // Their clock is restarted: what is due now are those that the batch had no room for.
    assert_eq!(bed.due().await, 14);
}

async fn what_was_taken_and_not_begun_is_given_back(bed: &Bed) {
    let receiver = Receiver::scripted(|_, _| Answer::status(500)).await;
    let out = webhook("out", &receiver, "/") + "max_in_flight = 1\n";
    let config = with_outbox(bed, &(out + &route("*", &["out"])));
    let gateway = Gateway::start(&config).await;
    publish_pending(&gateway, 12).await;
    until_due(bed, 12).await;
    receiver.script(|_, _| Answer::status(204).after(Duration::from_millis(600)));
    let began = Instant::now();
    let (status, report) = pass(&gateway, "?maxDuration=1").await;
    let took = began.elapsed();
    assert_eq!(status, 200, "{report}");
    assert_eq!((&report["timedOut"], &report["hasMoreWork"]), (&json!(true), &json!(true)), "{report}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    let sent = report["outgoingSent"].as_u64().unwrap();
    assert!((1..=4).contains(&sent), "{report}");
    // At once, not when leases end: they are due now.
    receiver.script(|_, _| Answer::status(204));
    let more = passes(&gateway, "").await.0;
    assert!((11..=12).contains(&(sent + more)), "at once, but for what was under way: {sent} and {more}");
    eventually(SOON, "all are settled", async || when(bed.count("deliveries").await == 0)).await;
    assert_eq!(receiver.count(), 24, "none was sent twice");
}

async fn five_passes_at_once_are_one_and_four_that_skip(bed: &Bed) {
    let receiver = Receiver::scripted(|_, _| Answer::status(500)).await;
    let config = with_outbox(bed, &(webhook("out", &receiver, "/") + &route("*", &["out"])));
    let gateway = Gateway::start(&config).await;
    publish_pending(&gateway, 1).await;
    until_due(bed, 1).await;
    let held = receiver.count();
    receiver.script(|_, _| Answer::status(204).after(Duration::from_secs(4)));
    let working = {
        let (client, url) = (gateway.client().clone(), gateway.url("/v1/durability/pass"));
        tokio::spawn(async move { client.post(url).send().await.unwrap().json::<Value>().await.unwrap() })
    };
    receiver.wait_for(held + 1, SOON).await;
    let four = [pass(&gateway, ""), pass(&gateway, ""), pass(&gateway, ""), pass(&gateway, "")];
    for (status, report) in futures::future::join_all(four).await {
        assert_eq!(status, 200, "{report}");
        assert_eq!(report["skippedStores"], json!(["main"]));
        assert_eq!((&report["hasMoreWork"], &report["outgoingSent"]), (&json!(true), &json!(0)));
    }
    let report = working.await.unwrap();
    assert_eq!((&report["outgoingSent"], &report["skippedStores"]), (&json!(1), &json!([])), "{report}");
    assert_eq!(pass(&gateway, "").await.1["skippedStores"], json!([]), "the lock is free again");
}

async fn what_is_over_is_purged_and_counted(bed: &Bed) {
    let receiver = Receiver::start().await;
    let more = "keep_handled = '1s'\n";
    let handler = format!(
        "[handlers.h]\ntypes = ['do']\nurl = '{}'\n[messages.t]\ndeduplicate = {{ window = '1s', required = false }}\n",
        receiver.url("/h")
    );
    let config = with_outbox(bed, &(webhook("out", &receiver, "/out") + &route("t", &["out"]) + &handler))
        .replace("inbox_stale_time = '1s'\n", &format!("inbox_stale_time = '1s'\n{more}"));
    let gateway = Gateway::start(&config).await;
    gateway.publish(json!({"type": "do", "id": "a-client's"})).await;
    gateway.publish(json!({"type": "t", "deduplicationId": "d"})).await;
    let mut purged = (0, 0);
    eventually(SOON, "both claims are purged", async || {
        let (_, report) = pass(&gateway, "").await;
        purged.0 += report["purged"]["handled"].as_u64().unwrap();
        purged.1 += report["purged"]["deduplications"].as_u64().unwrap();
        when(purged.0 + purged.1 >= 2)
    })
    .await;
    assert_eq!(purged, (1, 1));
    assert_eq!(bed.count("deduplication").await, 0);
}

async fn the_command_line_makes_the_same_pass(bed: &Bed) {
    let receiver = Receiver::failing_first(3, 500).await;
    let config = with_outbox(bed, &(webhook("out", &receiver, "/") + &route("*", &["out"])));
    let gateway = Gateway::start(&config).await;
    publish_pending(&gateway, 3).await;
    until_due(bed, 3).await;
    let flush = |args: &[&str], config: &str| {
        let args = [&["storage", "flush", "--config", "oncegate.toml"], args].concat();
        let output = command(&args, Some(config));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let (code, stdout, stderr) = flush(&["--max-duration", "30", "--batch-size", "2", "--json"], &config);
    assert_eq!(code, 0, "{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&report["outgoingSent"], &report["hasMoreWork"]), (&json!(2), &json!(true)), "{report}");
    let (code, stdout, stderr) = flush(&["--max-duration", "PT30S"], &config);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("outgoing: 1 sent, 0 failed"), "{stdout}");
    assert!(stdout.contains("STORE  STEP      OUTCOME    ROWS  MORE\n"), "{stdout}");
    assert_eq!(receiver.count(), 6);
    // A store that does not answer: every step fails, and says of what kind.
    let broken = format!(
        "[stores.main]\nurl = 'postgres://nobody@127.0.0.1:{}/x'\n",
        crate::support::run::free_port()
    );
    let broken = config.replace(&bed.config(), &broken);
    let (code, stdout, _) = flush(&["--json", "--max-duration", "2"], &broken);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(code, 1, "{report}");
    assert_eq!(report["stores"][0]["steps"][1]["errorKind"], "unavailable", "{report}");
    // Refused: the mode, a bound, the configuration.
    let balanced = config.replace("'serverless-with-outbox'", "'balanced'");
    let (code, stdout, stderr) = flush(&[], &balanced);
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.contains("durability.mode") && stderr.contains("serverless-with-outbox"), "{stderr}");
    assert_eq!(flush(&["--batch-size", "0"], &config).0, 2);
    assert_eq!(flush(&["--max-duration", "0"], &config).0, 2);
}

async fn bounds_are_read_lowered_or_refused(bed: &Bed) {
    let gateway = Gateway::start(&with_outbox(bed, "")).await;
    for query in [
        "?maxDuration=0",
        "?maxDuration=-1",
        "?maxDuration=soon",
        "?batchSize=0",
        "?batchSize=-5",
        "?batchSize=x",
    ] {
        let (status, problem) = pass(&gateway, query).await;
        assert_eq!((status, &problem["type"]), (400, &json!("/problems/malformed-request")), "{query}");
    }
    assert_eq!(pass(&gateway, "?size=3").await.0, 400, "an unknown parameter");
    for query in ["?maxDuration=100000&batchSize=100000", "?maxDuration=PT1S", "?maxDuration=2s&batchSize=1"]
    {
        assert_eq!(pass(&gateway, query).await.0, 200, "{query}");
    }
}
