//! Every error is a problem document of the interface's table, over real connections.

use std::time::{Duration, Instant};

use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::gateway::Gateway;
use crate::support::raw;

const CONFIG: &str = r#"
[auth.keys.all]
secrets = ["all-0123456789abcdef"]
grants = ["publish:*", "publish:*@out", "operate", "claim:*"]

[auth.keys.orders]
secrets = ["orders-0123456789abcdef"]
tenant = "acme"
grants = ["publish:order.*"]

[auth.keys.passes]
secrets = ["passes-0123456789abcdef"]
grants = ["durability"]

[destinations.out]
transport = "stdout"

[[routes]]
types = ["order.*", "t"]
destinations = ["out"]

[server.limits]
body = "64KiB"
body_timeout = "1s"
header_timeout = "2s"
json_depth = 16
deliver_horizon = "30d"
"#;

const ALL: &str = "Bearer all-0123456789abcdef";

async fn start() -> (Gateway, Client) {
    let gateway = Gateway::start(CONFIG).await;
    let client = gateway.client().clone();
    (gateway, client)
}

/// Sends it, checks that the answer is a whole problem document, and gives it.
async fn problem(request: RequestBuilder, status: u16, slug: &str) -> (Value, reqwest::header::HeaderMap) {
    let response = request.send().await.expect("an answer");
    let found = response.status().as_u16();
    let headers = response.headers().clone();
    let text = response.text().await.expect("a body");
    assert_eq!(found, status, "{slug}: {text}");
    let document = whole(&text, headers["content-type"].to_str().unwrap(), status, slug);
    assert_eq!(document["requestId"], headers["x-request-id"].to_str().unwrap());
    (document, headers)
}

fn whole(text: &str, content_type: &str, status: u16, slug: &str) -> Value {
    assert_eq!(content_type, "application/problem+json", "{text}");
    let document: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(document["type"], format!("/problems/{slug}"), "{document}");
    assert_eq!(document["status"], status);
    for member in ["title", "detail", "requestId"] {
        assert!(document[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {document}");
    }
    document
}

#[tokio::test]
async fn who_calls_is_decided_first() {
    let (gateway, client) = start().await;
    let url = |path: &str| gateway.url(path);
    let (_, headers) = problem(client.get(url("/v1/targets")), 401, "unauthenticated").await;
    assert!(headers["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
    for wrong in ["Bearer nobody-0123456789abcdef", "Basic YTpi", "Bearer", "Bearer  "] {
        problem(client.get(url("/v1/targets")).header("Authorization", wrong), 401, "unauthenticated").await;
    }
    let passes = "Bearer passes-0123456789abcdef";
    problem(client.get(url("/v1/targets")).header("Authorization", passes), 403, "forbidden").await;
    let orders = "Bearer orders-0123456789abcdef";
    let publish = |path: &str| client.post(url(path)).header("Authorization", orders).body("1");
    let (document, _) = problem(publish("/v1/publish/invoice.made"), 403, "forbidden").await;
    assert!(document["detail"].as_str().unwrap().contains("publish:invoice.made"));
    let named = publish("/v1/publish/order.made").header("Destinations", "out");
    problem(named, 403, "forbidden").await;
    assert_eq!(publish("/v1/publish/order.made").send().await.unwrap().status(), 202);

    // Before the path, the query and the body are looked at.
    problem(client.post(url("/v1/publish/%ff?x=1")).body("1"), 401, "unauthenticated").await;
    let refused =
        client.post(url("/v1/publish")).header("Authorization", passes).body("x".repeat(100 * 1024));
    problem(refused, 403, "forbidden").await;
}

#[tokio::test]
async fn another_tenants_messages_are_not_there() {
    let (gateway, client) = start().await;
    let orders = "Bearer orders-0123456789abcdef";
    let request = client.post(gateway.url("/v1/publish/order.made")).header("Authorization", orders);
    let sent = request.header("Message-Id", "of-acme").header("Delay", "1h").body("1").send().await.unwrap();
    assert_eq!(sent.status(), 202);
    for method in [Method::GET, Method::DELETE] {
        let request =
            client.request(method, gateway.url("/v1/messages/of-acme")).header("Authorization", ALL);
        problem(request, 404, "not-found").await;
    }
}

#[tokio::test]
async fn requests_that_nobody_can_read() {
    let (gateway, client) = start().await;
    let post = |path: &str| client.post(gateway.url(path)).header("Authorization", ALL);
    let get = |path: &str| client.get(gateway.url(path)).header("Authorization", ALL);
    let json_type = ("Content-Type", "application/json");
    let native = |body: &str| post("/v1/publish").header(json_type.0, json_type.1).body(body.to_owned());
    let malformed = |request| problem(request, 400, "malformed-request");

    let (document, _) = malformed(native("{\"type\": \"t\",\n \"data\": }")).await;
    assert!(document["detail"].as_str().unwrap().contains("line 2 column"), "{document}");
    for (body, pointer) in [
        (r#"{"type":"t","colour":1}"#, "/colour"),
        (r#"{"type":7}"#, "/type"),
        (r#"{"type":"t","deliverAt":"tomorrow"}"#, "/deliverAt"),
        (r#"{"type":"t","deliverBy":"1999-01-01T00:00:00Z"}"#, "/deliverBy"),
        (r#"{"type":"t","dataBase64":"*"}"#, "/dataBase64"),
        (r#"{"type":"t","headers":{"tenant-id":"x"}}"#, "/headers/tenant-id"),
        (r#"{"type":"t","id":"a\u0000b"}"#, "/id"),
        (r#"{"type":"t","subject":""}"#, "/subject"),
    ] {
        let (document, _) = malformed(native(body)).await;
        assert_eq!(document["errors"][0]["pointer"], pointer, "{document}");
    }
    malformed(native(&format!("{{\"type\":\"t\",\"data\":{}{}}}", "[".repeat(20), "]".repeat(20)))).await;
    malformed(post("/v1/publish").header(json_type.0, json_type.1).body(b"{\"type\":\"\xff\"}".to_vec()))
        .await;
    malformed(native("")).await;

    let (document, _) = malformed(post("/v1/publish/t?colour=red").body("1")).await;
    assert_eq!(document["errors"][0]["pointer"], "query colour");
    malformed(post("/v1/publish/%ff").body("1")).await;
    malformed(post("/v1/publish/a%20b").body("1")).await;
    for (name, value, pointer) in [
        ("Deliver-At", "tomorrow", "header Deliver-At"),
        ("Delay", "soon", "header Delay"),
        ("Delay", "31d", "header Delay"),
        ("Message-Id", "", "header Message-Id"),
        ("Message-Header-Attempts", "7", "header Message-Header-attempts"),
        ("Message-Header-traceparent", "7", "header Message-Header-traceparent"),
    ] {
        let (document, _) = malformed(post("/v1/publish/t").header(name, value).body("1")).await;
        assert_eq!(document["errors"][0]["pointer"], pointer, "{document}");
    }
    let (document, _) = malformed(native(r#"{"type":"t"}"#).header("Deduplication-Id", "x")).await;
    assert_eq!(document["errors"][0]["pointer"], "header deduplication-id");
    malformed(post("/v1/publish").header("ce-id", "1").header("ce-type", "t").body("1")).await;
    for query in ["limit=0", "limit=x", "cursor=x", "state=lost", "page=2", "limit=1&limit=2", "type=%ff"] {
        malformed(get(&format!("/v1/messages?{query}"))).await;
    }
    malformed(get("/v1/claims?scope=a")).await;

    // A header twice, and one that is not UTF-8: no client library sends these.
    for header in ["Message-Id: a\r\nMessage-Id: b", "Subject: \u{ff}"] {
        let mut request =
            b"POST /v1/publish/t HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nConnection: close\r\n".to_vec();
        request.extend(format!("Authorization: {ALL}\r\n").bytes());
        request.extend(header.chars().map(|c| c as u8));
        request.extend(b"\r\n\r\n1");
        let answer = raw::send(gateway.port(), &request).await;
        assert_eq!(answer.status, 400, "{header}");
        whole(&answer.text(), answer.header("content-type").unwrap(), 400, "malformed-request");
    }
}

#[tokio::test]
async fn paths_methods_and_forms_that_are_not_there() {
    let (gateway, client) = start().await;
    let url = |path: &str| gateway.url(path);
    for path in
        ["/", "/v2/publish", "/v1/publish/a/b", "/v1/publish/", "/problems/nothing", "/docs/nothing.js"]
    {
        problem(client.get(url(path)), 404, "not-found").await;
    }
    for (method, path, allowed) in [
        (Method::GET, "/v1/publish", "POST"),
        (Method::PUT, "/v1/messages/x", "DELETE"),
        (Method::POST, "/healthz", "GET"),
        (Method::OPTIONS, "/v1/targets", "GET"),
    ] {
        let (_, headers) = problem(client.request(method, url(path)), 405, "method-not-allowed").await;
        assert!(headers["allow"].to_str().unwrap().contains(allowed), "{path}: {headers:?}");
    }
    let get = |accept: &str| {
        client.get(url("/v1/targets")).header("Authorization", ALL).header("Accept", accept.to_owned())
    };
    problem(get("text/html"), 406, "not-acceptable").await;
    problem(get("application/json;q=0, application/problem+json;q=0"), 406, "not-acceptable").await;
    assert_eq!(get("application/problem+json").send().await.unwrap().status(), 200);

    let post = |path: &str, content_type: &str| {
        client
            .post(url(path))
            .header("Authorization", ALL)
            .header("Content-Type", content_type.to_owned())
            .body("{}")
    };
    for (path, content_type) in [
        ("/v1/publish", "text/plain"),
        ("/v1/publish", "application/cloudevents-batch+json"),
        ("/v1/publish", "application/cloudevents+xml"),
        ("/v1/publish", "application/json; charset=utf-16"),
        ("/v1/publish-batch", "application/cloudevents+json"),
        ("/v1/claims", "application/x-www-form-urlencoded"),
    ] {
        let (_, headers) = problem(post(path, content_type), 415, "unsupported-media-type").await;
        assert!(headers["accept"].to_str().unwrap().contains("application/json"), "{path}");
    }
    let untyped = client.post(url("/v1/publish")).header("Authorization", ALL).body("{}");
    problem(untyped, 415, "unsupported-media-type").await;
    let gzip = post("/v1/publish/t", "application/json").header("Content-Encoding", "gzip");
    problem(gzip, 415, "unsupported-media-type").await;

    let unroutable = client.post(url("/v1/publish/nobody")).header("Authorization", ALL).body("1");
    problem(unroutable, 422, "unroutable").await;
    let unknown =
        client.post(url("/v1/publish/t")).header("Authorization", ALL).header("Destinations", "out,x");
    problem(unknown.body("1"), 403, "forbidden").await;
}

#[tokio::test]
async fn too_large_is_said_before_and_while_the_body_is_read() {
    let (gateway, client) = start().await;
    let url = gateway.url("/v1/publish/t");
    let large = client.post(&url).header("Authorization", ALL).body(vec![b'x'; 8 << 20]);
    problem(large, 413, "too-large").await;
    let chunk = || Ok::<_, std::io::Error>(vec![b'x'; 32 * 1024]);
    let stream = futures::stream::iter(std::iter::repeat_with(chunk).take(200));
    let chunked = client.post(&url).header("Authorization", ALL).body(reqwest::Body::wrap_stream(stream));
    problem(chunked, 413, "too-large").await;
    let fits = client.post(&url).header("Authorization", ALL).body(vec![b'x'; 64 * 1024]);
    assert_eq!(fits.send().await.unwrap().status(), 202);
}

#[tokio::test]
async fn a_slow_body_is_given_up_and_a_broken_one_stores_nothing() {
    let (gateway, client) = start().await;
    let head = format!(
        "POST /v1/publish/t HTTP/1.1\r\nHost: x\r\nAuthorization: {ALL}\r\nMessage-Id: broken\r\nContent-Length: 10\r\n\r\n123"
    );
    let mut slow = TcpStream::connect(("127.0.0.1", gateway.port())).await.unwrap();
    slow.write_all(head.as_bytes()).await.unwrap();
    let started = Instant::now();
    let answer = raw::read(&mut slow).await;
    assert!(started.elapsed() >= Duration::from_millis(900), "{:?}", started.elapsed());
    whole(&answer.text(), answer.header("content-type").unwrap(), 408, "request-timeout");
    assert_eq!(answer.status, 408);
    let mut rest = Vec::new();
    tokio::time::timeout(Duration::from_secs(10), slow.read_to_end(&mut rest))
        .await
        .expect("closed")
        .unwrap();

    let mut broken = TcpStream::connect(("127.0.0.1", gateway.port())).await.unwrap();
    broken.write_all(head.as_bytes()).await.unwrap();
    drop(broken);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let request = client.get(gateway.url("/v1/messages/broken")).header("Authorization", ALL);
    problem(request, 404, "not-found").await;
    assert_eq!(gateway.stdout(), "");
}

#[tokio::test]
async fn heads_that_are_too_large_leave_the_gateway_well() {
    let (gateway, client) = start().await;
    let head = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(200 * 1024));
    let mut stream = TcpStream::connect(("127.0.0.1", gateway.port())).await.unwrap();
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
    let many: String = (0..300).map(|n| format!("X-{n}: 1\r\n")).collect();
    let answer =
        raw::send(gateway.port(), format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{many}\r\n").as_bytes()).await;
    assert_eq!(answer.status, 431);
    assert_eq!(client.get(gateway.url("/healthz")).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn requests_are_named_and_problems_explained() {
    let (gateway, client) = start().await;
    let request = client.get(gateway.url("/v1/targets")).header("X-Request-Id", "mine-7");
    let (document, headers) = problem(request, 401, "unauthenticated").await;
    assert_eq!(
        (&document["requestId"], headers["x-request-id"].to_str().unwrap()),
        (&json!("mine-7"), "mine-7")
    );
    let page = client.get(gateway.url(document["type"].as_str().unwrap())).send().await.unwrap();
    assert_eq!(page.status(), 200);
    assert!(page.text().await.unwrap().contains("Who is calling is not known"));
}

#[tokio::test]
async fn the_node_tells_of_itself_without_a_key() {
    let (gateway, client) = start().await;
    let get = async |path: &str| {
        let response = client.get(gateway.url(path)).send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        let content_type = response.headers()["content-type"].to_str().unwrap().to_owned();
        (content_type, response.text().await.unwrap())
    };
    assert_eq!(get("/healthz").await.1, r#"{"status":"ok"}"#);
    assert_eq!(get("/readyz").await.1, r#"{"status":"ok"}"#);
    assert!(get("/metrics").await.0.starts_with("text/plain; version=0.0.4"));
    let (content_type, document) = get("/openapi.json").await;
    assert_eq!(
        (content_type.as_str(), document.as_str()),
        ("application/json", oncegate::http::openapi::json())
    );
    let (content_type, page) = get("/docs").await;
    assert!(content_type.starts_with("text/html") && page.contains("swagger-ui"), "{page}");
    assert!(!page.contains("https://"), "the page loads nothing from elsewhere: {page}");
    assert!(get("/docs/swagger-initializer.js").await.1.contains("/openapi.json"));
    assert!(get("/docs/swagger-ui-bundle.js").await.1.len() > 100_000);
}
