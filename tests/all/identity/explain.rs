//! Explaining, over HTTP and from the command line: the same document.

use std::io::Write as _;
use std::process::{Command, Stdio};

use oncegate::domain::Clock;
use serde_json::{Value, json};

use super::bench::{Bench, Engine, tell};

fn explain(bench: &Bench, message: &Value, args: &[&str]) -> (bool, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_oncegate"))
        .args(["explain", "--tenant", "acme"])
        .args(args)
        .current_dir(bench.gateway.dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(message.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = if output.status.success() { &output.stdout } else { &output.stderr };
    (output.status.success(), String::from_utf8_lossy(text).into_owned())
}

async fn both(bench: &Bench, message: &Value) -> Value {
    let told = tell(bench.send("/v1/explain", message)).await.is(200).json();
    let (fine, text) = explain(bench, message, &["--json"]);
    assert!(fine, "{text}");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), told);
    told
}

async fn what_publishing_would_come_to(bench: Bench) {
    let tonight = (Clock::system().now() + chrono::Duration::hours(3)).to_rfc3339();
    let message = json!({"type": "projection.rebuild", "deliverAt": tonight,
        "data": {"projectionName": "p", "occurrenceUtc": "o"}});
    let free = both(&bench, &message).await;
    assert_eq!(free["deduplicationId"], "p|o");
    assert_eq!((&free["deduplicationSource"], &free["rule"]), (&json!("rule"), &json!(0)));
    assert_eq!((&free["destinations"], &free["handlers"]), (&json!(["out"]), &json!([])));
    assert!(free.get("claim").is_none());
    // Nothing was written: it is accepted.
    let first = tell(bench.send("/v1/publish", &message)).await.is(202).json();
    let taken = both(&bench, &message).await;
    assert_eq!(taken["claim"]["messageId"], first["id"]);
    assert_eq!(taken["claim"]["state"], "confirmed");
    assert_eq!(taken["claim"]["expiresAt"], first["expiresAt"]);
    assert!(taken["claim"]["firstSeenAt"].is_string());
    let (fine, words) = explain(&bench, &message, &[]);
    assert!(fine && words.contains("deduplication.rules[0]"), "{words}");
    assert!(
        words.contains("It would be a duplicate") && words.contains(first["id"].as_str().unwrap()),
        "{words}"
    );
    // And why not.
    let refused = both(&bench, &json!({"type": "work.acknowledge", "data": 1})).await;
    assert!(refused["notes"].to_string().contains("It would be refused"), "{refused}");
    let (fine, text) = explain(&bench, &json!({"typ": 1}), &[]);
    assert!(!fine && text.contains("/typ"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_explained_on_sqlite() {
    what_publishing_would_come_to(Bench::on(Engine::Sqlite).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_explained_on_postgresql() {
    if let Some(bench) = Bench::on(Engine::Postgres).await {
        what_publishing_would_come_to(bench).await;
    }
}

/// Explaining makes no store where there is none.
#[test]
fn explaining_leaves_nothing_behind() {
    let dir = crate::support::run::fresh_dir("explain");
    std::fs::write(dir.join("message.json"), r#"{"type":"a.b","data":1}"#).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_oncegate"))
        .args(["explain", "message.json", "--json"])
        .current_dir(&dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["destinations"], json!(["stdout"]));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "only the message is there");
}

/// Rules are compiled when the configuration is checked: what can never work is told with its key.
#[test]
fn a_rule_that_names_something_impossible_is_a_refused_configuration() {
    for (config, key) in [
        (
            "[[deduplication.rules]]\ntypes = [\"*\"]\ntemplate = \"{@nothing}\"\n",
            "deduplication.rules[0].template",
        ),
        (
            "[[deduplication.rules]]\ntypes = [\"*\"]\ntemplate = \"{open\"\n",
            "deduplication.rules[0].template",
        ),
        (
            "[[deduplication.rules]]\ntypes = [\"*\"]\ntemplate = \"the same\"\n",
            "deduplication.rules[0].template",
        ),
        (
            "[messages.\"a.b\"]\ndeduplication_identity = \"{@nothing}\"\n",
            "messages.\"a.b\".deduplication_identity",
        ),
        ("[[deduplication.policies]]\nrequired = true\n", "deduplication.policies[0].types"),
    ] {
        let output = crate::support::gateway::command(&["config", "check"], Some(config));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{config}: {text}");
        assert!(text.contains(key), "{config}: {text}");
    }
}
