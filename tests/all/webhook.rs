//! The webhook transport: what it sends, where it refuses to go, and what it makes of answers.

use std::time::{Duration, Instant};

use bytes::Bytes;
use oncegate::domain::Clock;
use oncegate::domain::delivery::{DeadKind, Failure, Fault, Format};
use oncegate::domain::standard_webhooks::{self as signing, Key};
use oncegate::transport::guard::Proxies;
use oncegate::transport::{Common, Context, Shared, registry};

use crate::support::deliveries::{self, build, check, common, delivery, message, of, settings};
use crate::support::proxy::Proxy;
use crate::support::receiver::{Answer, Receiver};
use crate::support::run::free_port;

const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

fn webhook(url: &str, more: &str) -> Shared {
    deliveries::transport("webhook", &format!("url = '{url}'\nallow_private = true\n{more}"))
}

async fn failure(webhook: &Shared) -> Failure {
    webhook.send(&delivery("m")).await.expect_err("an attempt that fails")
}

#[tokio::test]
async fn the_body_goes_out_as_it_is_with_the_wire_headers() {
    let receiver = Receiver::start().await;
    let webhook = webhook(&receiver.url("/hook?a=b"), "headers = { Authorization = 'Bearer t' }");
    let mut sent = message("m-\u{e9} 1");
    sent.body = Bytes::from((0..=255).collect::<Vec<u8>>());
    sent.tenant = "acme".to_owned();
    sent.deduplication_id = Some("a|b".to_owned());
    sent.envelope.content_type = Some("application/octet-stream".to_owned());
    sent.envelope.headers.insert("x-own".to_owned(), "value".to_owned());
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    sent.envelope.traceparent = Some(trace.to_owned());
    let body = sent.body.clone();
    let mut sent = of(sent);
    sent.attempts = 2;
    webhook.send(&sent).await.unwrap();

    let received = &receiver.received()[0];
    assert_eq!((received.method.as_str(), received.uri.to_string().as_str()), ("POST", "/hook?a=b"));
    assert_eq!(received.body, body);
    for (name, value) in [
        ("id", "m-%C3%A9%201"),
        ("message-type", "order.created"),
        ("content-type", "application/octet-stream"),
        ("tenant-id", "acme"),
        ("deduplication-id", "a|b"),
        ("attempts", "3"),
        ("x-own", "value"),
        ("authorization", "Bearer t"),
        ("webhook-signature", ""),
    ] {
        assert_eq!(received.header(name), value, "{name}");
    }
    assert_eq!(received.header("traceparent"), trace);
}

#[tokio::test]
async fn as_cloudevents_it_is_the_binary_mode_of_the_http_binding() {
    let receiver = Receiver::start().await;
    let toml = format!("url = '{}'\nallow_private = true\nsecret = '{SECRET}'", receiver.url("/"));
    let common = Common { format: Format::CloudEvents, ..common(Duration::from_secs(5)) };
    let webhook = build("webhook", &toml, &common).unwrap();
    let mut sent = message("m 1");
    sent.envelope.source = Some("/shop".to_owned());
    webhook.send(&of(sent)).await.unwrap();
    let received = &receiver.received()[0];
    for (name, value) in [
        ("ce-specversion", "1.0"),
        ("ce-id", "m%201"),
        ("ce-type", "order.created"),
        ("ce-source", "/shop"),
        ("content-type", "application/json"),
        ("message-type", ""),
        ("webhook-id", "m%201"),
    ] {
        assert_eq!(received.header(name), value, "{name}");
    }
    assert_eq!(received.text(), "{\"sku\":\"A-1\"}");
}

#[tokio::test]
async fn requests_are_signed_with_every_secret_and_the_id_is_the_messages() {
    let receiver = Receiver::start().await;
    let webhook = webhook(&receiver.url("/"), &format!("secret = ['whsec_AAAA', '{SECRET}']"));
    webhook.send(&delivery("m 1")).await.unwrap();
    let received = &receiver.received()[0];
    assert_eq!(received.header("webhook-id"), "m%201");
    assert_eq!(received.header("webhook-id"), received.header("id"));
    let headers = signing::Headers {
        id: Some(received.header("webhook-id")),
        timestamp: Some(received.header("webhook-timestamp")),
        signature: Some(received.header("webhook-signature")),
    };
    for secret in ["whsec_AAAA", SECRET] {
        let keys = [Key::parse(secret).unwrap()];
        let now = Clock::system().now();
        assert_eq!(signing::verify(&keys, headers, &received.body, now, signing::TOLERANCE), Ok(()));
    }
}

#[tokio::test]
async fn a_secret_in_a_file_is_the_one_that_is_there_now() {
    let path = crate::support::run::fresh_dir("secret").join("whsec");
    std::fs::write(&path, "whsec_AAAA\n").unwrap();
    let receiver = Receiver::start().await;
    let webhook = webhook(&receiver.url("/"), &format!("secret = {{ file = '{}' }}", path.display()));
    webhook.send(&delivery("m")).await.unwrap();
    std::fs::write(&path, SECRET).unwrap();
    oncegate::config::secret::reload_all();
    webhook.send(&delivery("m")).await.unwrap();
    for (received, secret) in receiver.received().iter().zip(["whsec_AAAA", SECRET]) {
        let at: i64 = received.header("webhook-timestamp").parse().unwrap();
        let expected = Key::parse(secret).unwrap().sign("m", at, &received.body);
        assert_eq!(received.header("webhook-signature"), expected);
    }
}

#[tokio::test]
async fn every_answer_has_its_meaning() {
    let receiver = Receiver::start().await;
    let webhook = webhook(&receiver.url("/"), "");
    for status in [200, 201, 202, 204, 299] {
        receiver.script(move |_, _| Answer::status(status));
        assert!(webhook.send(&delivery("m")).await.is_ok(), "{status}");
    }
    for (status, fault) in [
        (301, Fault::Target),
        (401, Fault::Target),
        (404, Fault::Target),
        (410, Fault::Target),
        (429, Fault::Target),
        (503, Fault::Target),
        (400, Fault::Message(DeadKind::Refused)),
        (409, Fault::Message(DeadKind::Refused)),
        (413, Fault::Message(DeadKind::TooLarge)),
        (422, Fault::Message(DeadKind::Refused)),
        (408, Fault::Attempt),
        (425, Fault::Attempt),
        (500, Fault::Attempt),
        (502, Fault::Attempt),
    ] {
        receiver.script(move |_, _| Answer::status(status).body("because\n  of  it"));
        let failure = failure(&webhook).await;
        assert_eq!(failure.fault, fault, "{status}");
        assert!(failure.text.contains(&status.to_string()), "{failure}");
        assert!(failure.text.contains("because of it"), "{failure}");
    }
}

#[tokio::test]
async fn retry_after_is_passed_on() {
    let receiver = Receiver::scripted(|_, _| Answer::status(503).header("retry-after", "17")).await;
    let failure = failure(&webhook(&receiver.url("/"), "")).await;
    assert_eq!(failure.retry_after, Some(Duration::from_secs(17)));
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = Receiver::start().await;
    let url = elsewhere.url("/stolen");
    let receiver = Receiver::scripted(move |_, _| Answer::status(307).header("location", &url)).await;
    assert_eq!(failure(&webhook(&receiver.url("/"), "")).await.fault, Fault::Target);
    assert_eq!(elsewhere.count(), 0);
}

#[tokio::test]
async fn a_slow_answer_is_an_attempt_and_the_next_is_not_held_up() {
    let receiver = Receiver::scripted(|n, _| {
        let delay = if n == 0 { Duration::from_secs(30) } else { Duration::ZERO };
        Answer::status(200).after(delay)
    })
    .await;
    let toml = format!("url = '{}'\nallow_private = true", receiver.url("/"));
    let webhook = build("webhook", &toml, &common(Duration::from_millis(300))).unwrap();
    let started = Instant::now();
    let failure = failure(&webhook).await;
    assert_eq!(failure.fault, Fault::Attempt, "{failure}");
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(webhook.send(&delivery("m")).await.is_ok());
}

#[tokio::test]
async fn an_answer_without_an_end_does_not_hold_its_attempt() {
    // The head of a 200, and then a body that never comes.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 4096];
        let _ = stream.read(&mut buffer).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\nx").await.unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
    });
    let started = Instant::now();
    assert!(webhook(&url, "").send(&delivery("m")).await.is_ok());
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn no_connection_is_the_targets_fault_and_a_lost_one_an_attempt() {
    let nobody = webhook(&format!("http://127.0.0.1:{}/", free_port()), "");
    assert_eq!(failure(&nobody).await.fault, Fault::Target);

    let receiver = Receiver::start().await;
    let proxy = Proxy::start(receiver.port()).await;
    let lossy = webhook(&format!("http://127.0.0.1:{}/", proxy.port()), "");
    proxy.lose_answer_to(b"POST");
    let lost = failure(&lossy).await;
    assert_eq!(lost.fault, Fault::Attempt, "{lost}");
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn one_connection_serves_many_messages() {
    let receiver = Receiver::start().await;
    let proxy = Proxy::start(receiver.port()).await;
    let webhook = webhook(&format!("http://127.0.0.1:{}/", proxy.port()), "");
    for _ in 0..20 {
        webhook.send(&delivery("m")).await.unwrap();
    }
    assert_eq!(proxy.connections(), 1);
}

/// svix#1961, convoy#2756: IPv4 addresses inside IPv6 ones, and the clouds' metadata services.
#[test]
fn written_private_addresses_are_refused_at_start_with_what_to_do() {
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "0177.1",
        "10.0.0.1",
        "192.168.1.1",
        "172.16.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "localhost",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[fd00::1]",
        "[fe80::1]",
        "[ff02::1]",
    ] {
        let url = format!("url = 'http://{host}/hook'");
        let error = check("webhook", &url).expect_err(host);
        assert_eq!(error.key, "url", "{host}");
        assert!(error.text.contains("allow_private = true"), "{host}: {error}");
        assert_eq!(check("webhook", &format!("{url}\nallow_private = true")), Ok(()), "{host}");
    }
    assert_eq!(check("webhook", "url = 'https://example.com/hook'"), Ok(()));
}

/// What a name resolves to is looked at when it is dialled, whatever was known at start.
#[tokio::test]
async fn a_name_that_leads_inside_is_refused_when_it_is_dialled() {
    let receiver = Receiver::start().await;
    let host = String::from_utf8(std::process::Command::new("hostname").output().unwrap().stdout).unwrap();
    let mut looked_at = 0;
    for name in [host.trim(), "ip6-localhost", "ip6-loopback"] {
        let inside = tokio::net::lookup_host((name, 80))
            .await
            .is_ok_and(|mut found| found.all(|address| !oncegate::transport::guard::is_public(address.ip())));
        if !inside {
            continue; // not a name of this machine's
        }
        let toml = format!("url = 'http://{name}:{}/'", receiver.port());
        let guarded = build("webhook", &toml, &common(Duration::from_secs(5))).unwrap();
        let failure = failure(&guarded).await;
        assert_eq!(failure.fault, Fault::Target);
        assert!(failure.text.contains("private"), "{name}: {failure}");
        looked_at += 1;
    }
    if looked_at == 0 {
        eprintln!("SKIPPED: this machine has no name that resolves to a private address");
    }
    assert_eq!(receiver.count(), 0);
}

/// A proxy reaches what the gateway may not, so what is asked for through it is looked at as well.
#[tokio::test]
async fn a_proxy_opens_no_door() {
    let proxy = Receiver::scripted(|_, _| Answer::status(200)).await;
    let proxies = Proxies::new(Some(&proxy.url("/")), None, None).unwrap();
    let context = Context { proxies, ..Context::default() };
    let build = |toml: &str| {
        registry::build("target", "webhook", settings(toml), &common(Duration::from_secs(5)), &context)
    };
    let host = String::from_utf8(std::process::Command::new("hostname").output().unwrap().stdout).unwrap();
    let guarded = build(&format!("url = 'http://{}:1/'", host.trim())).unwrap();
    let refused = failure(&guarded).await;
    assert_eq!(refused.fault, Fault::Target);
    assert!(refused.text.contains("private") || refused.text.contains("does not resolve"), "{refused}");
    let unresolved = build("url = 'http://no-such-name.invalid/'").unwrap();
    assert!(failure(&unresolved).await.text.contains("does not resolve"));
    assert_eq!(proxy.count(), 0);

    let allowed = build("url = 'http://no-such-name.invalid/hook'\nallow_private = true").unwrap();
    allowed.send(&delivery("m")).await.unwrap();
    let through = &proxy.received()[0];
    assert_eq!(through.uri.to_string(), "http://no-such-name.invalid/hook");
}

#[test]
fn what_is_wrong_in_the_settings_is_told_by_its_key() {
    let good = "url = 'https://example.com/'";
    for (toml, key) in [
        ("", "url"),
        ("url = 'no address'", "url"),
        ("url = 'ftp://example.com/'", "url"),
        (&*format!("{good}\ncolour = 'red'"), "colour"),
        (&*format!("{good}\nsecret = 'hunter2'"), "secret"),
        (&*format!("{good}\nsecret = []"), "secret"),
        (&*format!("{good}\nsecret = {{ env = 'ONCEGATE_NOT_SET' }}"), "secret"),
        (&*format!("{good}\nallow_private = 'yes'"), "allow_private"),
        (&*format!("{good}\nheaders = {{ 'a b' = 'x' }}"), "headers.a b"),
        (&*format!("{good}\nheaders = {{ Content-Type = 'x' }}"), "headers.Content-Type"),
        (&*format!("{good}\nheaders = {{ webhook-id = 'x' }}"), "headers.webhook-id"),
        (&*format!("{good}\nheaders = {{ x = \"a\\nb\" }}"), "headers.x"),
    ] {
        let error = check("webhook", toml).expect_err(toml);
        assert_eq!(error.key, key, "{toml}: {error}");
        assert!(!error.text.contains("hunter2"));
    }
    let unknown = check("carrier-pigeon", "").unwrap_err();
    assert_eq!(unknown.key, "transport");
    assert!(unknown.text.contains("webhook"));
}
