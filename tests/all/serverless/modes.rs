//! What each mode refuses, warns of and leaves to others.

use serde_json::json;

use super::{pass, route, webhook, with_outbox};
use crate::support::bed::Bed;
use crate::support::gateway::{Gateway, command};
use crate::support::postgres;
use crate::support::receiver::Receiver;

fn refused(config: &str) -> String {
    let output = command(&["config", "check", "--config", "oncegate.toml"], Some(config));
    assert_eq!(output.status.code(), Some(2), "{config}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn what_a_mode_cannot_do_is_refused_with_the_key() {
    let said = refused("[durability]\nmode = 'serverless-with-outbox'\n");
    assert!(said.contains("endpoints.durability.authorize") && said.contains("anonymous"), "{said}");
    let said = refused("[durability]\nmode = 'severless'\n");
    assert!(said.contains("durability.mode") && said.contains("serverless-with-outbox"), "{said}");
    let stdout = "[destinations.out]\ntransport = 'stdout'\npaused = true\n[[routes]]\ntypes = ['*']\ndestinations = ['out']\n";
    let said = refused(&format!("[durability]\nmode = 'serverless'\n{stdout}"));
    assert!(said.contains("destinations.out.paused"), "{said}");
    let said =
        refused(&format!("[durability]\nmode = 'serverless'\n{}", stdout.replace("paused", "ordered")));
    assert!(said.contains("destinations.out.ordered"), "{said}");
    let notify = "[stores.main]\nurl = 'postgres://x@y/z'\n[intake]\nnotify = true\n";
    let said = refused(&format!("[durability]\nmode = 'serverless'\n{notify}"));
    assert!(said.contains("intake.notify"), "{said}");
    let said = refused("[durability]\nbatch_size = 2000\n");
    assert!(said.contains("durability.batch_size"), "{said}");
    let said = refused("[durability]\nmax_pass_duration = '1h'\n");
    assert!(said.contains("durability.max_pass_duration"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overridden_mode_of_a_destination_is_named_at_start() {
    let receiver = Receiver::start().await;
    let bed = Bed::sqlite();
    let destinations = webhook("a", &receiver, "/")
        + "mode = 'inline'\n"
        + &webhook("b", &receiver, "/")
        + "mode = 'outbox'\n";
    let rest = destinations + &route("*", &["a", "b"]);
    let gateway = Gateway::start(&with_outbox(&bed, &rest)).await;
    let said = gateway.stderr();
    assert!(said.contains("destinations.a.mode: `inline` is overridden"), "{said}");
    assert!(!said.contains("destinations.b.mode"), "{said}");
    let (_, answer) = gateway.publish(json!({"type": "t"})).await;
    assert_eq!(answer["outcomes"], json!({"a": "sent", "b": "sent"}), "both go through the outbox");
    drop(gateway);
    let bed = Bed::sqlite();
    let gateway = Gateway::start(&format!("{}[durability]\nmode = 'serverless'\n{rest}", bed.config())).await;
    let said = gateway.stderr();
    assert!(said.contains("destinations.b.mode: `outbox` is overridden"), "{said}");
    assert!(!said.contains("destinations.a.mode"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_elsewhere_is_answered_with_the_mode() {
    for mode in ["balanced", "serverless"] {
        let config = format!("{}[durability]\nmode = '{mode}'\n", Bed::sqlite().config());
        let gateway = Gateway::start(&config).await;
        let (status, problem) = pass(&gateway, "").await;
        assert_eq!((status, &problem["type"]), (409, &json!("/problems/wrong-durability-mode")), "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(mode), "{problem}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_needs_its_grant_unless_anybody_may() {
    let keys = "[auth.keys.cron]\nsecrets = ['cron-secret']\ngrants = ['durability']\n\
                [auth.keys.shop]\nsecrets = ['shop-secret']\ngrants = ['publish:*']\n";
    let bed = Bed::sqlite();
    let config = with_outbox(&bed, keys).replace("'anonymous'", "'grant'");
    let gateway = Gateway::start(&config).await;
    let ask = async |gateway: &Gateway, secret: Option<&str>| {
        let mut request = gateway.client().post(gateway.url("/v1/durability/pass"));
        if let Some(secret) = secret {
            request = request.bearer_auth(secret);
        }
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(ask(&gateway, None).await, 401);
    assert_eq!(ask(&gateway, Some("shop-secret")).await, 403);
    assert_eq!(ask(&gateway, Some("cron-secret")).await, 200);
    drop(gateway);
    let gateway = Gateway::start(&with_outbox(&Bed::sqlite(), keys)).await;
    assert_eq!(ask(&gateway, None).await, 200, "anybody may");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_migrated_by_nobody_unless_asked() {
    let Some(server) = postgres::shared().await else { return };
    let url = server.fresh_database().await;
    let receiver = Receiver::start().await;
    let config = format!(
        "[stores.main]\nurl = '{url}'\n[durability]\nmode = 'serverless-with-outbox'\n\
         [endpoints.durability]\nauthorize = 'anonymous'\n{}{}",
        webhook("out", &receiver, "/"),
        route("*", &["out"])
    );
    let gateway = Gateway::with(&config).spawn();
    let answer = crate::support::eventually(super::SOON, "it answers", async || {
        gateway.client().get(gateway.url("/readyz")).send().await.ok()
    })
    .await;
    assert_eq!(answer.status(), 503);
    assert!(answer.text().await.unwrap().contains("oncegate storage migrate"));
    let (status, problem) = gateway.publish(json!({"type": "t"})).await;
    assert_eq!((status, &problem["type"]), (503, &json!("/problems/store-unavailable")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("oncegate storage migrate"), "{problem}");
    let (status, report) = pass(&gateway, "").await;
    assert_eq!(status, 500, "{report}");
    assert_eq!(report["stores"][0]["steps"][0]["errorKind"], "notMigrated", "{report}");
    assert_eq!(receiver.count(), 0, "nothing is sent that is not stored");
    let output = command(&["storage", "migrate", "--config", "oncegate.toml"], Some(&config));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(gateway.publish(json!({"type": "t"})).await.0, 202, "at once, without a start");
    assert!(gateway.ready().await);
}

fn documentation() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/serverless.md")).unwrap()
}

#[test]
fn every_promise_of_the_documentation_names_a_test_that_exists() {
    let sources = concat!(
        include_str!("inline.rs"),
        include_str!("modes.rs"),
        include_str!("outbox.rs"),
        include_str!("pass.rs"),
        include_str!("../scenario_serverless.rs"),
    );
    let text = documentation();
    let rows = text.split("| promise | shown by |").nth(1).unwrap();
    let names: Vec<&str> = rows
        .lines()
        .filter_map(|line| line.trim_end_matches(" |").rsplit_once("| `")?.1.strip_suffix('`'))
        .collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        assert!(sources.contains(&format!("fn {name}(")), "no test is called {name}");
    }
}

/// The fenced blocks of a language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn the_timer_of_the_documentation_can_be_read() {
    let units = blocks(&documentation(), "ini");
    let [service, timer] = units.as_slice() else { panic!("a service and its timer: {units:?}") };
    for (unit, sections) in
        [(service, ["Unit", "Service"].as_slice()), (timer, &["Unit", "Timer", "Install"])]
    {
        let mut found = Vec::new();
        for line in unit.lines().filter(|line| !line.is_empty()) {
            if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                found.push(section);
            } else {
                let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("no assignment: {line}"));
                assert!(!value.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric()), "{line}");
            }
        }
        assert_eq!(found, sections);
    }
    assert!(timer.contains("OnCalendar=minutely\n"));
    // The command is one that the binary takes.
    let command_line =
        service.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/env oncegate ")).unwrap();
    let args: Vec<&str> = command_line.split(' ').chain(["--help"]).collect();
    let output = command(&args, None);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // And systemd has its say, where it is installed.
    let folder = crate::support::run::fresh_dir("units");
    std::fs::write(folder.join("oncegate-flush.service"), service).unwrap();
    std::fs::write(folder.join("oncegate-flush.timer"), timer).unwrap();
    let Some(analyze) = crate::support::daemon::find("systemd-analyze", &[]) else { return };
    let mut verify = std::process::Command::new(analyze);
    verify
        .args(["verify", "--man=no", "oncegate-flush.service", "oncegate-flush.timer"])
        .current_dir(&folder);
    let output = verify.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("oncegate-flush")).collect();
    assert!(ours.is_empty(), "{said}");
}
