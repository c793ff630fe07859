//! `oncegate doctor` and `oncegate health`, and the port for the node's own state.

use serde_json::Value;

use super::support::gateway::{Gateway, command};
use super::support::postgres;
use super::support::receiver::Receiver;
use super::support::run;

fn texts(output: &std::process::Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Every part is named, with what is wrong and what to do about it, and one that is right is said to be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doctor_says_what_is_wrong_and_what_to_do() {
    let Some(server) = postgres::shared().await else { return };
    let receiver = Receiver::start().await;
    let (fresh, nobody) = (server.fresh_database().await, run::free_port());
    // Somebody else's port.
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = format!(
        r#"
        [server]
        listen = "{taken}"
        [stores.main]
        url = "{fresh}?options=-csynchronous_commit%3Doff"
        migrate = false
        [stores.gone]
        url = "postgres://u:hunter2@127.0.0.1:{nobody}/x"
        tenants = ["gone"]
        [stores.file]
        url = "sqlite:new.db"
        tenants = ["file"]
        [destinations.there]
        transport = "webhook"
        url = "{there}"
        allow_private = true
        [destinations.away]
        transport = "rabbitmq"
        url = "amqp://127.0.0.1:{nobody}"
        routing_key = "q"
        [destinations.nowhere]
        transport = "webhook"
        url = "https://nowhere.invalid/hook"
        [handlers.work]
        types = ["work"]
        url = "http://127.0.0.1:{nobody}/"
        [[routes]]
        types = ["*"]
        destinations = ["there", "away", "nowhere"]
        "#,
        taken = taken.local_addr().unwrap(),
        there = receiver.url("/"),
    );
    let (status, report) = texts(&command(&["doctor"], Some(&config)));
    assert_eq!(status, Some(1), "{report}");
    assert!(!report.contains("hunter2"), "{report}");
    let said = |level: &str, what: &str, found: &str, next: &str| {
        let at = report
            .lines()
            .position(|line| line.starts_with(level) && line.contains(what) && line.contains(found));
        let after = at.and_then(|at| report.lines().nth(at + 1)).unwrap_or_default();
        assert!(at.is_some() && after.contains(next), "{level} {what} {found} {next}\n{report}");
    };
    said("ok", "configuration", "oncegate.toml", "");
    said("WRONG", "stores.main", "not up to date", "oncegate storage migrate --store main");
    said("note", "stores.main", "synchronous_commit is off", "synchronous_commit = on");
    said("WRONG", "stores.gone", "", "correct `stores.gone.url`");
    said("ok", "stores.file", "made at start", "");
    said("ok", "destinations.there", "takes connections", "");
    said("WRONG", "destinations.away", "refused", "correct `destinations.away.url`");
    said("WRONG", "destinations.nowhere", "does not resolve", "Correct `destinations.nowhere.url`");
    said("WRONG", "handlers.work", "refused", "correct `handlers.work.url`");
    said("WRONG", "server.listen", "in use by something else", "change `server.listen`");

    let (status, report) = texts(&command(&["doctor"], Some("colour = 1")));
    assert_eq!((status, report.as_str()), (Some(2), ""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_runs_is_found_by_doctor_and_health() {
    let mut gateway = Gateway::start("").await;
    let config = format!("[server]\nlisten = \"0.0.0.0:{}\"\n[auth]\nanonymous = true\n", gateway.port());
    let (status, report) = texts(&command(&["doctor"], Some(&config)));
    assert_eq!(status, Some(0), "{report}");
    assert!(report.contains("a gateway runs on"), "{report}");
    assert!(report.contains("note  auth"), "{report}");
    for args in [&["health"][..], &["health", "--ready"]] {
        assert_eq!(texts(&command(args, Some(&config))), (Some(0), "ok\n".to_owned()));
    }
    gateway.term(std::time::Duration::from_secs(60)).await;
    let nobody = command(&["health"], Some(&config));
    assert_eq!(nobody.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("nobody answers"));
}

/// With a port of its own for the node's state, the metrics are there only; with `metrics_authorize = "grant"` they are
/// for operators.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_may_have_a_port_of_their_own_and_may_need_a_grant() {
    let port = run::free_port();
    let config = format!(
        r#"
        [server]
        admin_listen = "127.0.0.1:{port}"
        [telemetry]
        metrics_authorize = "grant"
        [auth.keys.watch]
        secrets = ["watch-0123456789"]
        grants = ["operate:read"]
        [auth.keys.app]
        secrets = ["app-0123456789"]
        grants = ["publish:*"]
        "#
    );
    let gateway = Gateway::start(&config).await;
    let get = async |url: String, key: Option<&str>| {
        let mut request = gateway.client().get(url).header("accept", "text/plain");
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let admin = |path: &str| format!("http://127.0.0.1:{port}{path}");
    assert_eq!(get(gateway.url("/metrics"), Some("watch-0123456789")).await.0, 404);
    assert_eq!(get(gateway.url("/healthz"), None).await.0, 200);
    assert_eq!((get(admin("/healthz"), None).await.0, get(admin("/readyz"), None).await.0), (200, 200));
    assert_eq!(get(admin("/v1/targets"), Some("watch-0123456789")).await.0, 404);
    assert_eq!(get(admin("/openapi.json"), None).await.0, 404);
    let (status, problem) = get(admin("/metrics"), None).await;
    let problem: Value = serde_json::from_str(&problem).unwrap();
    assert_eq!((status, &problem["type"]), (401, &Value::from("/problems/unauthenticated")));
    assert_eq!(get(admin("/metrics"), Some("app-0123456789")).await.0, 403);
    let (status, text) = get(admin("/metrics"), Some("watch-0123456789")).await;
    assert!(status == 200 && text.contains("oncegate_backlog"), "{status} {text}");

    let same = "[server]\nlisten = \"127.0.0.1:9\"\nadmin_listen = \"127.0.0.1:9\"\n";
    let refused = command(&["config", "check"], Some(same));
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("server.admin_listen"));
}
