//! The README is true: its commands run, its configurations are accepted, its messages arrive.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::gateway::{self, Gateway};
use crate::support::{eventually, when};

/// The fenced blocks of one language.
fn blocks(language: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// Runs the `curl` lines of a block, against `gateway`; what they printed.
fn curl(block: &str, gateway: &Gateway) -> String {
    let script = block.replace("127.0.0.1:8080", &format!("127.0.0.1:{}", gateway.port()));
    let output = Command::new("sh").args(["-ec", &script]).env("no_proxy", "*").output().unwrap();
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn curl_blocks() -> Vec<String> {
    blocks("sh").into_iter().filter(|block| block.starts_with("curl")).collect()
}

#[tokio::test]
async fn the_first_two_minutes_are_as_the_readme_says() {
    let gateway = Gateway::start("").await;
    let [first, second, _] = <[String; 3]>::try_from(curl_blocks()).expect("three blocks of curl lines");
    let answer = curl(&first, &gateway);
    assert!(answer.starts_with("HTTP/1.1 202") && answer.contains("\"outcome\":\"accepted\""), "{answer}");
    eventually(Duration::from_secs(10), "the message on standard output", async || {
        when(gateway.stdout().contains("42"))
    })
    .await;
    let printed: serde_json::Value = serde_json::from_str(gateway.stdout().lines().next().unwrap()).unwrap();
    assert_eq!((&printed["type"], &printed["data"]["orderId"]), (&"order.created".into(), &42.into()));
    let answer = curl(&second, &gateway);
    assert!(answer.contains("\"order-43\"") && answer.contains("\"state\""), "{answer}");
}

#[tokio::test]
async fn the_readmes_webhook_arrives_at_listen_with_its_signature() {
    let webhook = blocks("toml").into_iter().next().expect("a configuration");
    let port = crate::support::run::free_port();
    let command = blocks("sh").into_iter().find(|block| block.contains(" listen ")).unwrap();
    let args: Vec<String> = command
        .split_whitespace()
        .skip_while(|word| *word != "listen")
        .map(|word| if word == "9000" { port.to_string() } else { word.to_owned() })
        .collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let listener = gateway::Tool::start(&args);
    let gateway = Gateway::start(&webhook.replace("9000", &port.to_string())).await;
    let answer = curl(&curl_blocks()[2], &gateway);
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    eventually(Duration::from_secs(20), "the webhook at the receiver", async || {
        when(listener.stdout().contains("44"))
    })
    .await;
}

#[test]
fn the_readmes_configurations_are_accepted() {
    for config in blocks("toml") {
        let output = gateway::command(&["config", "check"], Some(&config));
        assert!(output.status.success(), "{config}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}
