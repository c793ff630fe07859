//! Invoke: over both stores, with the real binary.

use std::time::{Duration, Instant};

use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};

use crate::support::gateway::Gateway;
use crate::support::receiver::{Answer, Receiver};
use crate::support::{eventually, when};

const SOON: Duration = Duration::from_secs(20);

/// Every test, once per store.
macro_rules! on_both_stores {
    ($($test:ident)*) => {
        mod sqlite { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test("").await;
            }
        )* }
        mod postgres { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let Some(server) = crate::support::postgres::shared().await else { return };
                let url = server.fresh_database().await;
                super::$test(&format!("[stores.main]\nurl = '{url}'\n")).await;
            }
        )* }
    };
}

on_both_stores! {
    the_handlers_answer_passes_through_and_is_replayed_exactly
    a_handler_is_found_by_its_type_or_its_name
    an_answer_of_400_or_more_frees_the_key
    a_handler_that_fails_is_502_and_the_key_is_free_at_once
    of_many_requests_with_one_key_one_runs
    a_request_that_waits_gets_the_first_ones_answer
    a_timeout_is_504_and_a_prompt_retry_does_not_run_beside_the_first
    what_is_ambiguous_is_kept_where_the_configuration_says_so
    a_lost_connection_keeps_the_key_until_nothing_can_run
    a_client_that_goes_away_cancels_nothing
    a_response_that_is_too_large_passes_once_and_never_runs_again
    a_handler_slower_than_the_lease_keeps_its_key
    a_killed_node_frees_the_key_when_its_lease_ends
    what_a_handler_publishes_is_stored_with_its_response
    work_that_is_taken_is_a_duplicate_as_at_publish
    work_that_is_still_being_done_is_not_acknowledged_as_done
    what_the_handler_answers_passes_whatever_is_accepted
    the_key_is_scoped_by_principal
}

/// A handler `price` of the type `order.price`, with these lines more.
fn config(store: &str, receiver: &Receiver, more: &str) -> String {
    format!(
        "{store}[idempotency]\nlease = '2s'\nmax_response = '64KiB'\n\
         [handlers.price]\ntypes = ['order.price', 'order.keyed']\nurl = '{}'\n{more}\n\
         [handlers.step]\ntypes = ['step']\nurl = '{}'\n",
        receiver.url("/price"),
        receiver.url("/step")
    )
}

fn invoke(gateway: &Gateway, key: Option<&str>) -> RequestBuilder {
    let request = gateway.client().post(gateway.url("/v1/invoke/order.price")).json(&json!({"orderId": 17}));
    match key {
        Some(key) => request.header("Idempotency-Key", key),
        None => request,
    }
}

async fn send(request: RequestBuilder) -> Response {
    request.send().await.unwrap()
}

async fn problem(response: Response, status: u16, slug: &str) -> Value {
    assert_eq!(response.status().as_u16(), status, "{slug}");
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["type"], format!("/problems/{slug}"), "{body}");
    body
}

fn header(response: &Response, name: &str) -> String {
    response.headers().get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

/// concerns_on_rails#47; granit-dotnet#1151
async fn the_handlers_answer_passes_through_and_is_replayed_exactly(store: &str) {
    let receiver = Receiver::scripted(|n, _| {
        Answer::status(201)
            .header("content-type", "application/vnd.price+json")
            .header("location", "/orders/17/price")
            .header("etag", "\"1\"")
            .header("set-cookie", "session=secret")
            .header("x-internal", "1")
            .body(&json!({"price": 42, "n": n}).to_string())
    })
    .await;
    let gateway = Gateway::start(&config(store, &receiver, "")).await;
    let mut answers = Vec::new();
    for replayed in ["", "true"] {
        let answer = send(invoke(&gateway, Some("k-1")).header("Subject", "s")).await;
        assert_eq!(header(&answer, "idempotent-replayed"), replayed);
        let headers = ["content-type", "location", "etag", "set-cookie", "x-internal"];
        let headers = headers.map(|name| header(&answer, name));
        assert_eq!(headers, ["application/vnd.price+json", "/orders/17/price", "\"1\"", "", ""]);
        answers.push((answer.status().as_u16(), answer.text().await.unwrap()));
    }
    assert_eq!(answers[0], (201, "{\"n\":0,\"price\":42}".to_owned()));
    assert_eq!(answers[0], answers[1]);
    assert_eq!(receiver.count(), 1);
    let received = &receiver.received()[0];
    assert_eq!((received.text().as_str(), received.header("subject")), ("{\"orderId\":17}", "s"));
    assert_eq!(received.header("idempotency-key"), received.header("id"));
    let other = send(invoke(&gateway, Some("k-1")).json(&json!({"orderId": 18}))).await;
    problem(other, 422, "idempotency-key-reused").await;
    // Without a key, each runs.
    send(invoke(&gateway, None)).await;
    send(invoke(&gateway, None)).await;
    assert_eq!(receiver.count(), 3);
}

async fn a_handler_is_found_by_its_type_or_its_name(store: &str) {
    let receiver = Receiver::start().await;
    let more = format!("[handlers.other]\ntypes = ['order.*']\nurl = '{}'", receiver.url("/other"));
    let gateway = Gateway::start(&config(store, &receiver, &more)).await;
    let at = |path: &str| gateway.client().post(gateway.url(path)).body("x");
    problem(send(at("/v1/invoke/nobody")).await, 422, "unroutable").await;
    problem(send(at("/v1/invoke/order.price")).await, 422, "unroutable").await;
    problem(send(at("/v1/invoke/order.price?handler=step")).await, 422, "unroutable").await;
    problem(send(at("/v1/invoke/order.price?handle=other")).await, 400, "malformed-request").await;
    problem(send(at("/v1/invoke/step").header("Delay", "1s")).await, 400, "malformed-request").await;
    for (path, handler) in
        [("order.price?handler=other", "/other"), ("order.price?handler=price", "/price"), ("step", "/step")]
    {
        assert_eq!(send(at(&format!("/v1/invoke/{path}"))).await.status(), 204);
        assert_eq!(receiver.received().last().unwrap().uri.path(), handler);
    }
}

/// wolverine#4501, GH-4547
async fn an_answer_of_400_or_more_frees_the_key(store: &str) {
    let receiver = Receiver::scripted(|n, _| match n {
        0 => Answer::status(404).header("content-type", "text/plain").body("no such order"),
        1 => Answer::status(429).header("retry-after", "7"),
        _ => Answer::status(200).body("done"),
    })
    .await;
    let gateway = Gateway::start(&config(store, &receiver, "")).await;
    let first = send(invoke(&gateway, Some("k"))).await;
    assert_eq!((first.status().as_u16(), header(&first, "content-type")), (404, "text/plain".into()));
    assert_eq!(first.text().await.unwrap(), "no such order");
    let second = send(invoke(&gateway, Some("k"))).await;
    assert_eq!((second.status().as_u16(), header(&second, "retry-after")), (429, "7".into()));
    assert_eq!(send(invoke(&gateway, Some("k"))).await.text().await.unwrap(), "done");
}

async fn a_handler_that_fails_is_502_and_the_key_is_free_at_once(store: &str) {
    let receiver = Receiver::failing_first(1, 503).await;
    let more = "[handlers.nowhere]\ntypes = ['nowhere']\nurl = 'http://127.0.0.1:1/'";
    let gateway = Gateway::start(&config(store, &receiver, more)).await;
    let failed = send(invoke(&gateway, Some("k"))).await;
    assert!(header(&failed, "proxy-status").contains("received-status=503"));
    problem(failed, 502, "handler-failed").await;
    assert_eq!(send(invoke(&gateway, Some("k"))).await.status(), 204);
    for _ in 0..2 {
        let request = gateway.client().post(gateway.url("/v1/invoke/nowhere")).header("Idempotency-Key", "n");
        let failed = send(request).await;
        assert_eq!(header(&failed, "proxy-status"), "oncegate; error=destination_unavailable");
        problem(failed, 502, "handler-failed").await;
    }
}

/// mastodon#37879
async fn of_many_requests_with_one_key_one_runs(store: &str) {
    let receiver =
        Receiver::scripted(|_, _| Answer::status(200).body("once").after(Duration::from_millis(700))).await;
    let gateway = Gateway::start(&config(store, &receiver, "")).await;
    let answers = futures::future::join_all((0..20).map(|_| send(invoke(&gateway, Some("k"))))).await;
    let mut ran = 0;
    for answer in answers {
        if answer.status() == 200 {
            ran += 1;
        } else {
            assert!(!header(&answer, "retry-after").is_empty());
            problem(answer, 409, "idempotency-key-in-flight").await;
        }
    }
    assert_eq!((ran, receiver.count()), (1, 1));
    assert_eq!(send(invoke(&gateway, Some("k"))).await.text().await.unwrap(), "once");
}

async fn a_request_that_waits_gets_the_first_ones_answer(store: &str) {
    let receiver = Receiver::scripted(|n, _| {
        Answer::status(if n == 1 { 500 } else { 200 }).body("answer").after(Duration::from_millis(700))
    })
    .await;
    let gateway = Gateway::start(&config(store, &receiver, "")).await;
    let wait = |key| send(invoke(&gateway, Some(key)).header("Prefer", "wait=10"));
    let (one, other) = tokio::join!(wait("k"), wait("k"));
    let replayed = [header(&one, "idempotent-replayed"), header(&other, "idempotent-replayed")];
    assert_eq!(replayed.iter().filter(|header| *header == "true").count(), 1);
    assert_eq!((one.text().await.unwrap(), other.text().await.unwrap()), ("answer".into(), "answer".into()));
    assert_eq!(receiver.count(), 1);
    // The first fails: the one that waited runs.
    let (one, other) = tokio::join!(wait("f"), wait("f"));
    let mut statuses = [one.status().as_u16(), other.status().as_u16()];
    statuses.sort_unstable();
    assert_eq!((statuses, receiver.count()), ([200, 502], 3));
    // What waits too shortly is told.
    let long = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let started = Instant::now();
        let answer = send(invoke(&gateway, Some("s")).header("Prefer", "wait=0")).await;
        (answer, started.elapsed())
    };
    let (_, (answer, took)) = tokio::join!(wait("s"), long);
    assert!(took < Duration::from_millis(500), "{took:?}");
    problem(answer, 409, "idempotency-key-in-flight").await;
}

async fn a_timeout_is_504_and_a_prompt_retry_does_not_run_beside_the_first(store: &str) {
    let receiver = Receiver::scripted(|n, _| {
        Answer::status(200).body("late").after(Duration::from_millis(if n == 0 { 1_800 } else { 0 }))
    })
    .await;
    let gateway = Gateway::start(&config(store, &receiver, "timeout = '1s'")).await;
    let first = send(invoke(&gateway, Some("k"))).await;
    assert!(header(&first, "proxy-status").contains("timeout"));
    problem(first, 504, "handler-timeout").await;
    problem(send(invoke(&gateway, Some("k"))).await, 409, "idempotency-key-in-flight").await;
    assert_eq!(receiver.count(), 1);
    // The first has ended: now it may run again.
    let again = send(invoke(&gateway, Some("k")).header("Prefer", "wait=10")).await;
    assert_eq!(again.text().await.unwrap(), "late");
    let received = receiver.received();
    assert_eq!(received.len(), 2);
    assert!(received[1].at - received[0].at >= Duration::from_millis(1_700));
}

async fn what_is_ambiguous_is_kept_where_the_configuration_says_so(store: &str) {
    let receiver = Receiver::scripted(|_, _| Answer::status(200).after(Duration::from_millis(1_300))).await;
    let gateway = Gateway::start(&config(store, &receiver, "timeout = '1s'\non_ambiguous = 'keep'")).await;
    problem(send(invoke(&gateway, Some("k"))).await, 504, "handler-timeout").await;
    let kept = eventually(SOON, "the key is kept", async || {
        let answer = send(invoke(&gateway, Some("k"))).await;
        let body: Value = answer.json().await.unwrap();
        (body["type"] == "/problems/response-not-kept").then_some(body)
    })
    .await;
    assert_eq!(kept["originalStatus"], 504);
    assert_eq!(receiver.count(), 1);
}

async fn a_lost_connection_keeps_the_key_until_nothing_can_run(store: &str) {
    let receiver = Receiver::scripted(|n, _| {
        Answer::status(200).after(if n == 0 { Duration::from_secs(60) } else { Duration::ZERO })
    })
    .await;
    let proxy = crate::support::proxy::Proxy::start(receiver.port()).await;
    let lines = format!(
        "{store}[handlers.price]\ntypes = ['order.price']\nurl = 'http://127.0.0.1:{}/'\ntimeout = '2s'",
        proxy.port()
    );
    let gateway = Gateway::start(&lines).await;
    let first = invoke(&gateway, Some("k"));
    let first = tokio::spawn(send(first));
    receiver.wait_for(1, SOON).await;
    let cut = Instant::now();
    proxy.cut();
    problem(first.await.unwrap(), 502, "handler-failed").await;
    problem(send(invoke(&gateway, Some("k"))).await, 409, "idempotency-key-in-flight").await;
    let again = send(invoke(&gateway, Some("k")).header("Prefer", "wait=20")).await;
    assert_eq!(again.status(), 200);
    assert!(cut.elapsed() > Duration::from_secs(2), "{:?}", cut.elapsed());
    assert_eq!(receiver.count(), 2);
}

/// caura#1629
async fn a_client_that_goes_away_cancels_nothing(store: &str) {
    let receiver =
        Receiver::scripted(|_, _| Answer::status(200).body("done").after(Duration::from_millis(600))).await;
    let gateway = Gateway::start(&config(store, &receiver, "")).await;
    let gone = invoke(&gateway, Some("k")).timeout(Duration::from_millis(200)).send().await;
    assert!(gone.unwrap_err().is_timeout());
    let replayed = send(invoke(&gateway, Some("k")).header("Prefer", "wait=10")).await;
    assert_eq!(header(&replayed, "idempotent-replayed"), "true");
    assert_eq!(replayed.text().await.unwrap(), "done");
    assert_eq!(receiver.count(), 1);
}

/// gofiber/fiber#4287
async fn a_response_that_is_too_large_passes_once_and_never_runs_again(store: &str) {
    let large = "x".repeat(3 << 20);
    let body = large.clone();
    let receiver = Receiver::scripted(move |_, _| Answer::status(201).body(&body)).await;
    let gateway = Gateway::start(&config(store, &receiver, "")).await;
    let first = send(invoke(&gateway, Some("k"))).await;
    assert_eq!((first.status().as_u16(), first.text().await.unwrap() == large), (201, true));
    let again = problem(send(invoke(&gateway, Some("k"))).await, 409, "response-not-kept").await;
    assert_eq!(again["originalStatus"], 201);
    assert_eq!(receiver.count(), 1);
    // Without a key it passes all the same.
    assert!(send(invoke(&gateway, None)).await.text().await.unwrap() == large);
}

/// Truxify#5856
async fn a_handler_slower_than_the_lease_keeps_its_key(store: &str) {
    let receiver =
        Receiver::scripted(|_, _| Answer::status(200).body("slow").after(Duration::from_secs(5))).await;
    let gateway = Gateway::start(&config(store, &receiver, "")).await;
    let first = tokio::spawn(send(invoke(&gateway, Some("k"))));
    receiver.wait_for(1, SOON).await;
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        problem(send(invoke(&gateway, Some("k"))).await, 409, "idempotency-key-in-flight").await;
    }
    assert_eq!(first.await.unwrap().text().await.unwrap(), "slow");
    assert_eq!(header(&send(invoke(&gateway, Some("k"))).await, "idempotent-replayed"), "true");
    assert_eq!(receiver.count(), 1);
}

/// powertools-lambda-python#1038
async fn a_killed_node_frees_the_key_when_its_lease_ends(store: &str) {
    let receiver = Receiver::scripted(|n, _| {
        Answer::status(200).after(if n == 0 { Duration::from_secs(60) } else { Duration::ZERO })
    })
    .await;
    let mut gateway = Gateway::start(&config(store, &receiver, "timeout = '90s'")).await;
    let first = tokio::spawn(invoke(&gateway, Some("k")).send());
    receiver.wait_for(1, SOON).await;
    gateway.kill9();
    assert!(first.await.unwrap().is_err());
    gateway.restart().await;
    let again = send(invoke(&gateway, Some("k")).header("Prefer", "wait=20")).await;
    assert_eq!((again.status().as_u16(), receiver.count()), (200, 2));
}

async fn what_a_handler_publishes_is_stored_with_its_response(store: &str) {
    let receiver = Receiver::scripted(|_, received| {
        let event = json!({"specversion": "1.0", "id": "e1", "source": "/h", "type": "step", "data": 1});
        let reply = |body: Value| {
            Answer::status(201)
                .header("content-type", "application/vnd.oncegate.reply+json")
                .body(&body.to_string())
        };
        match (received.uri.path(), received.header("subject")) {
            ("/step", _) => Answer::status(204),
            (_, "event") => Answer::status(200)
                .header("content-type", "application/cloudevents+json")
                .body(&event.to_string()),
            (_, "bad") => reply(json!({"response": 1, "messages": [{"type": "step"}, {"type": "nowhere"}]})),
            _ => reply(json!({"response": {"price": 42}, "messages": [{"id": "e2", "type": "step"}]})),
        }
    })
    .await;
    let gateway = Gateway::start(&config(store, &receiver, "")).await;
    let say = |key: &'static str, subject: &'static str| {
        send(invoke(&gateway, Some(key)).header("Subject", subject))
    };
    for _ in 0..2 {
        let answer = say("k-1", "reply").await;
        assert_eq!(
            (answer.status().as_u16(), header(&answer, "content-type")),
            (200, "application/json".into())
        );
        assert_eq!(answer.json::<Value>().await.unwrap(), json!({"price": 42}));
        let answer = say("k-2", "event").await;
        assert_eq!(header(&answer, "content-type"), "application/cloudevents+json");
        assert_eq!(answer.json::<Value>().await.unwrap()["id"], "e1");
    }
    for _ in 0..2 {
        problem(say("k-3", "bad").await, 502, "handler-failed").await;
    }
    let steps = || {
        let received = receiver.received();
        let mut ids: Vec<_> = received
            .iter()
            .filter(|one| one.uri.path() == "/step")
            .map(|one| one.header("id").to_owned())
            .collect();
        ids.sort();
        ids
    };
    eventually(SOON, "both events", async || when(steps().len() >= 2)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(steps(), ["e1", "e2"], "once each, and nothing of the bad reply");
    let step = receiver.received().into_iter().find(|one| one.header("id") == "e2").unwrap();
    assert_eq!(step.header("causation-id"), step.header("correlation-id"));
    assert!(!step.header("causation-id").is_empty());
}

async fn work_that_is_taken_is_a_duplicate_as_at_publish(store: &str) {
    let receiver = Receiver::failing_first(1, 500).await;
    let more = "[messages.'order.keyed']\ndeduplicate = { window = '1h' }";
    let gateway = Gateway::start(&config(store, &receiver, more)).await;
    let invoke = |id: Option<&str>| {
        let request = gateway.client().post(gateway.url("/v1/invoke/order.keyed")).body("x");
        send(match id {
            Some(id) => request.header("Deduplication-Id", id),
            None => request,
        })
    };
    problem(invoke(None).await, 400, "deduplication-id-missing").await;
    problem(invoke(Some("d")).await, 502, "handler-failed").await;
    assert_eq!(invoke(Some("d")).await.status(), 204, "a failure frees the work");
    let duplicate = invoke(Some("d")).await;
    assert_eq!(duplicate.status(), 200);
    let duplicate: Value = duplicate.json().await.unwrap();
    assert_eq!((&duplicate["outcome"], &duplicate["state"]), (&json!("duplicate"), &json!("handled")));
    assert_eq!(duplicate["deduplicationId"], "d");
    assert!(duplicate["expiresAt"].is_string() && duplicate["firstSeenAt"].is_string());
    let published =
        gateway.client().post(gateway.url("/v1/publish/order.keyed")).header("Deduplication-Id", "d");
    assert_eq!(send(published.body("x")).await.json::<Value>().await.unwrap()["outcome"], "duplicate");
    assert_eq!(receiver.count(), 2);
}

/// Whoever is at it may fail: an acknowledged duplicate would be lost then.
async fn work_that_is_still_being_done_is_not_acknowledged_as_done(store: &str) {
    let receiver = Receiver::scripted(|n, _| {
        Answer::status(if n == 0 { 500 } else { 204 }).after(Duration::from_millis(if n == 0 {
            1_000
        } else {
            0
        }))
    })
    .await;
    let more = "[messages.'order.keyed']\ndeduplicate = { window = '1h' }";
    let gateway = Gateway::start(&config(store, &receiver, more)).await;
    let ask = |way: &str| {
        let request = gateway.client().post(gateway.url(&format!("/v1/{way}/order.keyed")));
        send(request.header("Deduplication-Id", "d").body("x"))
    };
    let meanwhile = async {
        receiver.wait_for(1, SOON).await;
        for way in ["publish", "invoke"] {
            assert_eq!(problem(ask(way).await, 409, "duplicate").await["state"], "pending", "{way}");
        }
        // A batch has other messages: its duplicates are told and fail nobody.
        let batch = json!([{"type": "order.keyed", "deduplicationId": "d"}, {"type": "order.keyed", "deduplicationId": "e"}]);
        let (status, answer) = gateway.post("/v1/publish-batch", batch).await;
        assert_eq!(status, 202, "{answer}");
        let told = |n: usize| [&answer["messages"][n]["outcome"], &answer["messages"][n]["state"]];
        assert_eq!(told(0), [&json!("duplicate"), &json!("pending")], "{answer}");
        assert_eq!(told(1), [&json!("accepted"), &Value::Null], "{answer}");
    };
    let (first, ()) = tokio::join!(ask("invoke"), meanwhile);
    problem(first, 502, "handler-failed").await;
    assert_eq!(ask("publish").await.status(), 202);
    receiver.wait_for(3, SOON).await;
}

async fn what_the_handler_answers_passes_whatever_is_accepted(store: &str) {
    let receiver = Receiver::scripted(|n, _| match n {
        0 => Answer::status(200).header("content-type", "text/csv").body("a,b"),
        _ => Answer::status(500),
    })
    .await;
    let gateway = Gateway::start(&config(store, &receiver, "")).await;
    let csv = || invoke(&gateway, None).header("Accept", "text/csv");
    let response = send(csv()).await;
    assert_eq!((response.status().as_u16(), header(&response, "content-type").as_str()), (200, "text/csv"));
    assert_eq!(response.text().await.unwrap(), "a,b");
    problem(send(csv()).await, 502, "handler-failed").await;
    // What is always JSON says that it cannot be had.
    let request = gateway.client().post(gateway.url("/v1/publish/t")).header("Accept", "text/csv");
    problem(send(request.body("x")).await, 406, "not-acceptable").await;
}

/// C-Address-Onboarding-Bridge#379, devlink#773; microsoft-agentic-harness#127
async fn the_key_is_scoped_by_principal(store: &str) {
    let receiver = Receiver::scripted(|n, _| Answer::status(200).body(&n.to_string())).await;
    let more = "[auth.keys.one]\nsecrets = ['one-0123456789abcdef']\ngrants = ['invoke:order.*']\n\
                [auth.keys.two]\nsecrets = ['two-0123456789abcdef']\ngrants = ['invoke:*']\n\
                [auth.keys.none]\nsecrets = ['none-0123456789abcdef']\ngrants = ['invoke:step']\n";
    let gateway = Gateway::start(&config(store, &receiver, more)).await;
    let by = |key: &str| send(invoke(&gateway, Some("k")).bearer_auth(format!("{key}-0123456789abcdef")));
    assert_eq!(by("one").await.text().await.unwrap(), "0");
    assert_eq!(by("two").await.text().await.unwrap(), "1");
    assert_eq!(by("one").await.text().await.unwrap(), "0");
    problem(by("none").await, 403, "forbidden").await;
}
