//! `oncegate listen`: what it answers and what it prints.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Parser;
use oncegate::cli::listen::{self, Args};
use oncegate::domain::Clock;
use oncegate::domain::standard_webhooks::Key;
use serde_json::Value;

const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Printed {
    fn lines(&self) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

async fn start(options: &[&str]) -> (String, Printed) {
    let words = ["listen", "--json"].iter().chain(options);
    let args = Cli::try_parse_from(words).unwrap().args;
    let printed = Printed::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook?a=b", listener.local_addr().unwrap());
    let app = listen::router(args, Box::new(printed.clone()));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, printed)
}

fn signed(url: &str, key: &Key, body: &'static str, sent: &'static str) -> reqwest::RequestBuilder {
    let at = Clock::system().now().timestamp();
    reqwest::Client::new()
        .post(url)
        .header("webhook-id", "m1")
        .header("webhook-timestamp", at)
        .header("webhook-signature", key.sign("m1", at, body.as_bytes()))
        .body(sent)
}

#[tokio::test]
async fn signatures_are_verified_and_the_verdict_printed() {
    let (url, printed) = start(&["--secret", "whsec_AAAA", "--secret", SECRET]).await;
    let key = Key::parse(SECRET).unwrap();
    assert_eq!(signed(&url, &key, "{}", "{}").send().await.unwrap().status(), 200);
    assert_eq!(signed(&url, &key, "{}", "{ }").send().await.unwrap().status(), 401);
    assert_eq!(reqwest::Client::new().post(&url).body("{}").send().await.unwrap().status(), 401);
    let lines = printed.lines();
    assert_eq!(lines[0]["signature"], "valid");
    assert_eq!((&lines[0]["method"], &lines[0]["path"]), (&"POST".into(), &"/hook?a=b".into()));
    assert_eq!((&lines[0]["body"], &lines[0]["headers"]["webhook-id"]), (&"{}".into(), &"m1".into()));
    assert!(lines[1]["signature"].as_str().unwrap().contains("no signature matches"));
    assert!(lines[2]["signature"].as_str().unwrap().contains("`webhook-id` is missing"));
}

#[tokio::test]
async fn it_fails_first_then_answers_late_as_it_was_told() {
    let (url, printed) = start(&["--fail-first", "1", "--status", "202", "--delay", "50ms"]).await;
    let started = Instant::now();
    assert_eq!(reqwest::Client::new().put(&url).send().await.unwrap().status(), 500);
    assert_eq!(reqwest::Client::new().put(&url).send().await.unwrap().status(), 202);
    assert!(started.elapsed() >= Duration::from_millis(100));
    assert_eq!(printed.lines().len(), 2);
}

#[test]
fn a_secret_that_is_none_is_refused_at_once() {
    let Err(error) = Cli::try_parse_from(["listen", "--secret", "hunter2"]) else { panic!("taken") };
    assert!(error.to_string().contains("whsec_"), "{error}");
}
