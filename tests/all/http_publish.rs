//! Publish in all its forms, over HTTP: what goes in comes out at the destination.

use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};

use crate::support::gateway::Gateway;
use crate::support::{eventually, when};

const CONFIG: &str = r#"
[destinations.out]
transport = "stdout"

[destinations.other]
transport = "stdout"
paused = true

[[routes]]
types = ["order.*"]
destinations = ["out"]

[server.limits]
batch = 5
"#;

const SOON: Duration = Duration::from_secs(20);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

async fn start() -> (Gateway, Client) {
    let gateway = Gateway::start(CONFIG).await;
    let client = gateway.client().clone();
    (gateway, client)
}

async fn answer(request: RequestBuilder) -> (u16, Value, Response) {
    let response = request.send().await.expect("an answer");
    let status = response.status().as_u16();
    let head = response.headers().clone();
    let body: Value = response.json().await.expect("JSON");
    let mut rest = http::Response::new("");
    *rest.headers_mut() = head;
    (status, body, rest.into())
}

/// The line that the message with this id became.
async fn printed(gateway: &Gateway, id: &str) -> Value {
    eventually(SOON, &format!("{id} is printed"), || async {
        let out = gateway.stdout();
        out.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|message| message["id"] == id)
    })
    .await
}

#[tokio::test]
async fn a_body_of_any_type_is_published_by_its_path() {
    let (gateway, client) = start().await;
    let request = client
        .post(gateway.url("/v1/publish/order.created"))
        .header("Content-Type", "application/json")
        .header("Message-Id", "m-1")
        .header("Source", "/shop")
        .header("Subject", "Größe")
        .header("Partition-Key", "p")
        .header("Correlation-Id", "c")
        .header("Causation-Id", "cause")
        .header("Deduplication-Id", "d")
        .header("Message-Header-X-Region", "eu")
        .header("Deliver-By", "2090-01-01T00:00:00Z")
        .header("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01"))
        .body(r#"{"n": 1.10}"#);
    let (status, body, head) = answer(request).await;
    assert_eq!(status, 202, "{body}");
    assert_eq!(body["id"], "m-1");
    assert_eq!(body["outcome"], "accepted");
    assert_eq!(body["destinations"], json!(["out"]));
    assert_eq!(body["handlers"], json!([]));
    assert_eq!(head.headers()["location"], "/v1/messages/m-1");
    assert_eq!(head.headers()["content-type"], "application/json");
    let message = printed(&gateway, "m-1").await;
    let expected = json!({
        "id": "m-1", "type": "order.created", "source": "/shop", "subject": "Größe", "data": {"n": 1.10},
        "contentType": "application/json", "headers": {"x-region": "eu"}, "deduplicationId": "d",
        "partitionKey": "p", "correlationId": "c", "causationId": "cause",
        "deliverBy": "2090-01-01T00:00:00Z",
    });
    assert_eq!(message, expected);
    assert!(gateway.stdout().contains(r#""data":{"n":1.10}"#), "the body's bytes are carried as they were");

    let bytes: &[u8] = &[0, 159, 146, 150];
    let (status, body, _) =
        answer(client.post(gateway.url("/v1/publish/order.%C3%A9t%C3%A9")).body(bytes)).await;
    assert_eq!(status, 202, "{body}");
    let message = printed(&gateway, body["id"].as_str().unwrap()).await;
    assert_eq!((&message["type"], &message["dataBase64"]), (&json!("order.été"), &json!("AJ+Slg==")));
}

#[tokio::test]
async fn one_message_is_published_in_every_form() {
    let (gateway, client) = start().await;
    let url = gateway.url("/v1/publish");
    let native = json!({"id": "native", "type": "order.created", "source": "/shop", "data": {"a": 1}, "correlationId": "c"});
    let structured = json!({"specversion": "1.0", "id": "structured", "type": "order.created", "source": "/shop",
        "data": {"a": 1}, "correlationid": "c"});
    let requests = [
        client.post(&url).header("Content-Type", "application/json; charset=utf-8").body(native.to_string()),
        client.post(&url).header("Content-Type", "application/cloudevents+json").body(structured.to_string()),
        client
            .post(&url)
            .header("Content-Type", "application/json")
            .header("ce-specversion", "1.0")
            .header("ce-id", "binary")
            .header("ce-type", "order.created")
            .header("ce-source", "/shop")
            .header("ce-correlationid", "c")
            .body(r#"{"a":1}"#),
    ];
    for request in requests {
        let (status, body, _) = answer(request).await;
        assert_eq!(status, 202, "{body}");
        let id = body["id"].as_str().unwrap();
        let message = printed(&gateway, id).await;
        let expected = json!({"id": id, "type": "order.created", "source": "/shop", "data": {"a": 1},
            "contentType": "application/json", "correlationId": "c"});
        assert_eq!(message, expected, "{id}");
    }
}

#[tokio::test]
async fn batches_are_published_in_every_form_and_answered_in_order() {
    let (gateway, client) = start().await;
    let url = gateway.url("/v1/publish-batch");
    let native = |id: &str| json!({"id": id, "type": "order.created", "data": id});
    let event = |id: &str| json!({"specversion": "1.0", "id": id, "type": "order.created", "source": "/", "data": id});
    for (content_type, body, ids) in [
        ("application/json", json!([native("a1"), native("a2")]).to_string(), vec!["a1", "a2"]),
        ("application/x-ndjson", format!("{}\n\n{}\r\n", native("n1"), native("n2")), vec!["n1", "n2"]),
        (
            "application/cloudevents-batch+json",
            json!([event("c1"), event("c2")]).to_string(),
            vec!["c1", "c2"],
        ),
        ("application/json", "[]".to_owned(), vec![]),
        ("application/x-ndjson", String::new(), vec![]),
    ] {
        let (status, body, _) =
            answer(client.post(&url).header("Content-Type", content_type).body(body)).await;
        assert_eq!(status, 202, "{body}");
        let told: Vec<_> =
            body["messages"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
        assert_eq!(told, ids);
        for id in ids {
            assert_eq!(printed(&gateway, id).await["data"], id);
        }
    }
}

#[tokio::test]
async fn a_batch_with_one_bad_message_stores_nothing_and_says_which() {
    let (gateway, client) = start().await;
    let url = gateway.url("/v1/publish-batch");
    let good = json!({"id": "good", "type": "order.created"});
    let many: Vec<_> = std::iter::repeat_n(good.clone(), 6).collect();
    for (bad, status, slug, pointer) in [
        (
            json!([good, {"type": "order.created", "deliverAt": "soon"}]),
            400,
            "malformed-request",
            Some("/1/deliverAt"),
        ),
        (
            json!([good, good, {"type": "order.created", "colour": 1}]),
            400,
            "malformed-request",
            Some("/2/colour"),
        ),
        (json!([good, {"data": 1}]), 400, "malformed-request", Some("/1/type")),
        (json!([good, 7]), 400, "malformed-request", Some("/1")),
        (json!([good, {"type": "nobody.takes.it"}]), 422, "unroutable", None),
        (json!(many), 413, "too-large", None),
        (json!({}), 400, "malformed-request", None),
    ] {
        let request = client.post(&url).header("Content-Type", "application/json").body(bad.to_string());
        let (found, problem, _) = answer(request).await;
        assert_eq!(
            (found, &problem["type"]),
            (status, &json!(format!("/problems/{slug}"))),
            "{bad}: {problem}"
        );
        if let Some(pointer) = pointer {
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
            let element = pointer.split('/').nth(1).unwrap();
            assert!(problem["detail"].as_str().unwrap().contains(element), "{problem}");
        }
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(gateway.stdout(), "", "nothing of a refused batch is delivered");
}

#[tokio::test]
async fn scheduled_named_and_cancelled() {
    let (gateway, client) = start().await;
    let request = client
        .post(gateway.url("/v1/publish/any.type"))
        .header("Message-Id", "later / é")
        .header("Destinations", "out, other")
        .header("Delay", "1h");
    let (status, body, head) = answer(request).await;
    assert_eq!(status, 202, "{body}");
    assert_eq!(body["destinations"], json!(["out", "other"]));
    assert!(body["deliverAt"].is_string());
    let location = gateway.url(head.headers()["location"].to_str().unwrap());
    let (status, message, _) = answer(client.get(&location)).await;
    assert_eq!((status, &message["id"]), (200, &json!("later / é")), "{message}");
    assert_eq!(message["destinations"][0]["state"], "scheduled");
    assert_eq!(message["destinations"][0]["attempts"], 0);
    let (_, page, _) =
        answer(client.get(gateway.url("/v1/messages?state=scheduled&type=any.type&limit=5"))).await;
    assert_eq!(page["items"][0]["id"], "later / é", "{page}");

    let cancelled = client.delete(&location).send().await.unwrap();
    assert_eq!((cancelled.status().as_u16(), cancelled.content_length()), (204, Some(0)));
    for request in [client.get(&location), client.delete(&location)] {
        let (status, problem, _) = answer(request).await;
        assert_eq!((status, &problem["type"]), (404, &json!("/problems/not-found")));
    }
}

#[tokio::test]
async fn targets_are_listed_paused_and_resumed() {
    let (gateway, client) = start().await;
    let (_, targets, _) = answer(client.get(gateway.url("/v1/targets"))).await;
    let names: Vec<_> =
        targets["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["other", "out"]);
    let pause = client.post(gateway.url("/v1/targets/out/pause")).send().await.unwrap();
    assert_eq!(pause.status(), 204);
    let (status, body, _) = answer(client.post(gateway.url("/v1/publish/order.created")).body("x")).await;
    assert_eq!(status, 202, "a paused target's messages are stored: {body}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(gateway.stdout(), "");
    let (_, targets, _) = answer(client.get(gateway.url("/v1/targets"))).await;
    assert_eq!((&targets["items"][1]["paused"], &targets["items"][1]["depth"]), (&json!(true), &json!(1)));
    let resume = client.post(gateway.url("/v1/targets/out/resume")).send().await.unwrap();
    assert_eq!(resume.status(), 204);
    printed(&gateway, body["id"].as_str().unwrap()).await;
    let (status, _, _) = answer(client.post(gateway.url("/v1/targets/nobody/pause"))).await;
    assert_eq!(status, 404);
}

/// A client's going away cancels nothing that has been read whole.
#[tokio::test]
async fn a_publish_goes_on_when_its_client_is_gone() {
    use tokio::io::AsyncWriteExt;
    let (gateway, _) = start().await;
    for n in 0..20 {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", gateway.port())).await.unwrap();
        let head = format!(
            "POST /v1/publish/order.created HTTP/1.1\r\nHost: x\r\nMessage-Id: gone-{n}\r\nContent-Length: 1\r\n\r\n1"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(n / 4)).await;
        drop(stream);
    }
    // Whether the last ones were read before their connection was found closed is a race; that what was
    // begun is done is not: nothing is stored without being delivered.
    eventually(SOON, "what was stored is delivered", || async {
        let out = gateway.stdout();
        let delivered = (0..20).filter(|n| out.contains(&format!("gone-{n}\""))).count();
        let client = gateway.client();
        let targets: Value =
            client.get(gateway.url("/v1/targets")).send().await.unwrap().json().await.unwrap();
        let depth = targets["items"][1]["depth"].as_u64().unwrap();
        when(delivered > 0 && depth == 0)
    })
    .await;
}
