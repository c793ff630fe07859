//! Error policies, rates and pauses of handlers, and replays to them: over every store, with the real binary.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::bed::{Bed, on_every_store};
use crate::support::gateway::Gateway;
use crate::support::receiver::{Answer, Receiver};
use crate::support::{eventually, when};

const SOON: Duration = Duration::from_secs(60);

on_every_store! {
    what_becomes_of_a_failure_is_said_by_its_kind
    a_discarded_message_is_told_of_and_frees_its_claim
    a_handler_that_is_not_reached_is_given_up_on_where_a_policy_names_it
    a_policy_pauses_the_handler_for_all_until_it_is_resumed
    a_pause_for_a_while_ends_by_itself
    what_is_over_the_rate_waits_at_no_cost_and_holds_up_nobody
    no_more_run_at_once_than_the_handler_takes
    a_dead_letter_is_replayed_to_its_handler
    a_forced_replay_passes_another_messages_claim
    what_was_handled_and_sent_is_listed
    a_handler_gets_what_names_its_destinations
}

/// A handler `work` of the type `work`, with these lines more.
fn config(bed: &Bed, receiver: &Receiver, more: &str) -> String {
    format!(
        "{}[durability]\ninbox_stale_time = '2s'\n[handlers.work]\ntypes = ['work']\nurl = '{}'\n\
         retry = {{ max_attempts = 2, initial = '50ms', max = '100ms' }}\n{more}\n",
        bed.config(),
        receiver.url("/work")
    )
}

/// Answers the status that stands in the subject.
async fn by_subject() -> Receiver {
    Receiver::scripted(|_, received| Answer::status(received.header("subject").parse().unwrap_or(204))).await
}

async fn publish(gateway: &Gateway, message: Value) -> String {
    let (status, answer) = gateway.publish(message).await;
    assert_eq!(status, 202, "{answer}");
    answer["id"].as_str().unwrap().to_owned()
}

/// How the message's delivery to its handler stands, when it is over.
async fn over(gateway: &Gateway, id: &str) -> Value {
    eventually(SOON, &format!("the end of {id}"), async || {
        let (_, told) = gateway.get(&format!("/v1/messages/{id}")).await;
        let handler = told["handlers"][0].clone();
        (handler["state"] == "handled" || handler["state"] == "dead").then_some(handler)
    })
    .await
}

async fn target(gateway: &Gateway, name: &str) -> Value {
    let (_, targets) = gateway.get("/v1/targets").await;
    let items = targets["items"].as_array().unwrap();
    items.iter().find(|item| item["name"] == name).unwrap().clone()
}

async fn settled(gateway: &Gateway, name: &str) {
    let empty = async || when(target(gateway, name).await["depth"] == 0);
    eventually(SOON, "every delivery is settled", empty).await;
}

fn attempts(receiver: &Receiver, id: &str) -> Vec<String> {
    let of_message = |one: &&crate::support::receiver::Received| one.header("id") == id;
    receiver.received().iter().filter(of_message).map(|one| one.header("attempts").to_owned()).collect()
}

async fn what_becomes_of_a_failure_is_said_by_its_kind(bed: &Bed) {
    let receiver = by_subject().await;
    let policies = "timeout = '5s'\n\
        [[handlers.work.on_error]]\nkinds = ['409', 'timeout']\nretry = ['now', '100ms', '10ms']\n\
        [[handlers.work.on_error]]\nkinds = ['422', '500']\nretry = 'never'\n\
        [[handlers.work.on_error]]\nkinds = ['4xx']\n";
    let gateway = Gateway::start(&config(bed, &receiver, policies)).await;
    for (status, times, kind) in [
        // In the order of the list, whose end is a dead letter.
        ("409", 4, "Refused"),
        // An attempt that would be made again, and is not.
        ("500", 1, "AttemptsExhausted"),
        ("422", 1, "Refused"),
        // Refused for good by itself; here as often as `retry` says.
        ("418", 2, "Refused"),
        // No policy is about these.
        ("502", 2, "AttemptsExhausted"),
    ] {
        let id = publish(&gateway, json!({"type": "work", "subject": status})).await;
        let told = over(&gateway, &id).await;
        assert_eq!((&told["state"], &told["errorKind"]), (&json!("dead"), &json!(kind)), "{status}: {told}");
        let expected: Vec<String> = (1..=times).map(|n| n.to_string()).collect();
        assert_eq!(attempts(&receiver, &id), expected, "{status}");
    }
}

async fn a_discarded_message_is_told_of_and_frees_its_claim(bed: &Bed) {
    let receiver = by_subject().await;
    let policies = "deduplicate = {}\n\
        [[handlers.work.on_error]]\nkinds = ['5xx']\nretry = ['10ms']\nthen = 'discard'\n";
    let gateway = Gateway::start(&config(bed, &receiver, policies)).await;
    let id =
        publish(&gateway, json!({"type": "work", "subject": "500", "data": 1, "deduplicationId": "d"})).await;
    let told = over(&gateway, &id).await;
    assert_eq!((&told["errorKind"], &told["attempts"]), (&json!("Discarded"), &json!(2)), "{told}");
    assert_eq!(attempts(&receiver, &id), ["1", "2"]);
    assert_eq!(bed.count("dead_letters").await, 0);
    let metrics = gateway.client().get(gateway.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let counted = metrics.lines().any(|line| {
        line.starts_with("oncegate_deliveries_discarded_total")
            && line.contains("target=\"work\"")
            && line.ends_with(" 1")
    });
    assert!(counted, "{metrics}");
    assert!(gateway.stderr().contains("discarded, as the handler's policy says"), "{}", gateway.stderr());
    // The same work may be done for another message.
    let id = publish(&gateway, json!({"type": "work", "data": 1, "deduplicationId": "d"})).await;
    assert_eq!(over(&gateway, &id).await["errorKind"], Value::Null);
    assert_eq!(attempts(&receiver, &id), ["1"]);
}

async fn a_handler_that_is_not_reached_is_given_up_on_where_a_policy_names_it(bed: &Bed) {
    let receiver = Receiver::scripted(|_, _| Answer::status(204).after(Duration::from_secs(20))).await;
    let gone = crate::support::run::free_port();
    let more = format!(
        "timeout = '300ms'\n[[handlers.work.on_error]]\nkinds = ['timeout']\nretry = 'never'\nthen = 'discard'\n\
         [handlers.gone]\ntypes = ['gone']\nurl = 'http://127.0.0.1:{gone}/'\n\
         [[handlers.gone.on_error]]\nkinds = ['*']\nretry = 'never'\nthen = 'discard'\n\
         [[handlers.gone.on_error]]\nkinds = ['unreachable']\nretry = ['100ms']\n"
    );
    let gateway = Gateway::start(&config(bed, &receiver, &more)).await;
    let [late, lost] =
        [publish(&gateway, json!({"type": "work"})).await, publish(&gateway, json!({"type": "gone"})).await];
    assert_eq!(over(&gateway, &late).await["errorKind"], "Discarded");
    let told = over(&gateway, &lost).await;
    assert_eq!(
        (&told["errorKind"], &told["attempts"]),
        (&json!("AttemptsExhausted"), &json!(2)),
        "its own fault is not meant by `*`: {told}"
    );
}

async fn a_policy_pauses_the_handler_for_all_until_it_is_resumed(bed: &Bed) {
    let receiver = by_subject().await;
    let policies = "[[handlers.work.on_error]]\nkinds = ['500']\nretry = 'never'\nthen = 'pause'\n";
    let config = config(bed, &receiver, policies);
    let mut gateway = Gateway::start(&config).await;
    let poison = publish(&gateway, json!({"type": "work", "subject": "500"})).await;
    eventually(SOON, "the pause", async || when(target(&gateway, "work").await["paused"] == json!(true)))
        .await;
    // It is remembered, for a node that starts now, too.
    eventually(SOON, "the pause in the store", async || when(bed.count("targets").await == 1)).await;
    gateway.kill9();
    gateway.restart().await;
    assert_eq!(target(&gateway, "work").await["paused"], true);
    let other = publish(&gateway, json!({"type": "work"})).await;
    let (_, told) = gateway.get(&format!("/v1/messages/{poison}")).await;
    assert_eq!(told["handlers"][0]["state"], "retrying", "{told}");
    assert_eq!(receiver.count(), 1, "nothing is handed to it");
    receiver.script(|_, _| Answer::status(204));
    let resumed = gateway.client().post(gateway.url("/v1/targets/work/resume")).send().await.unwrap();
    assert_eq!(resumed.status(), 204);
    for id in [&poison, &other] {
        assert_eq!(over(&gateway, id).await["state"], "handled");
    }
    assert_eq!(attempts(&receiver, &poison), ["1", "2"], "nothing was lost of it");
}

async fn a_pause_for_a_while_ends_by_itself(bed: &Bed) {
    let receiver = Receiver::failing_first(1, 409).await;
    let policies =
        "[[handlers.work.on_error]]\nkinds = ['409']\nretry = 'never'\nthen = 'pause'\npause_for = '2s'\n";
    let gateway = Gateway::start(&config(bed, &receiver, policies)).await;
    let id = publish(&gateway, json!({"type": "work"})).await;
    assert_eq!(over(&gateway, &id).await["state"], "handled");
    let received = receiver.received();
    assert_eq!(received.len(), 2);
    let waited = received[1].at.duration_since(received[0].at);
    assert!(waited >= Duration::from_millis(1_900), "{waited:?}");
    assert_eq!(target(&gateway, "work").await["paused"], false);
}

async fn what_is_over_the_rate_waits_at_no_cost_and_holds_up_nobody(bed: &Bed) {
    let receiver = Receiver::start().await;
    let more =
        format!("rate = '4/s'\n[handlers.other]\ntypes = ['work']\nurl = '{}'\n", receiver.url("/other"));
    let gateway = Gateway::start(&config(bed, &receiver, &more)).await;
    const MANY: usize = 20;
    let batch: Vec<Value> = (0..MANY).map(|n| json!({"type": "work", "id": format!("m-{n}")})).collect();
    let (status, answer) = gateway.post("/v1/publish-batch", json!(batch)).await;
    assert_eq!(status, 202, "{answer}");
    let arrived = |path: &str| -> Vec<Instant> {
        let received = receiver.received();
        received.iter().filter(|one| one.uri.path() == path).map(|one| one.at).collect()
    };
    let mut most_takes = 0;
    eventually(SOON, "all have arrived", async || {
        most_takes = most_takes.max(bed.most_takes().await);
        when(arrived("/work").len() + arrived("/other").len() == 2 * MANY)
    })
    .await;
    settled(&gateway, "work").await;
    let (limited, free) = (arrived("/work"), arrived("/other"));
    assert_eq!((limited.len(), free.len()), (MANY, MANY), "each once");
    // Four at once, then one every 250 ms: the last no sooner than four seconds after the first.
    let took = limited[MANY - 1].duration_since(limited[0]);
    assert!(took >= Duration::from_millis(3_800), "{took:?}");
    assert!(free[MANY - 1] < limited[MANY - 1], "the other handler did not wait for it");
    assert!(most_takes <= 1, "taken {most_takes} times");
    for n in 0..MANY {
        let told = over(&gateway, &format!("m-{n}")).await;
        assert_eq!((&told["state"], &told["attempts"]), (&json!("handled"), &json!(1)));
    }
}

async fn no_more_run_at_once_than_the_handler_takes(bed: &Bed) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    const HELD: Duration = Duration::from_millis(150);
    // Arrivals within one run's time of each other run together.
    let most = Arc::new(AtomicUsize::new(0));
    let receiver = Receiver::scripted(|_, _| Answer::status(204).after(HELD)).await;
    let gateway = Gateway::start(&config(bed, &receiver, "concurrency = 3")).await;
    let batch: Vec<Value> = (0..15).map(|_| json!({"type": "work"})).collect();
    gateway.post("/v1/publish-batch", json!(batch)).await;
    eventually(SOON, "all have run", async || {
        let running = receiver.received().iter().filter(|one| one.answered.is_none()).count();
        most.fetch_max(running, Ordering::Relaxed);
        when(receiver.count() == 15 && running == 0)
    })
    .await;
    settled(&gateway, "work").await;
    assert_eq!(receiver.count(), 15);
    let most = most.load(Ordering::Relaxed);
    assert!((1..=3).contains(&most), "{most} at once");
    // By their times alone: whoever is fourth begins after the first one of the four was answered.
    let at: Vec<Instant> = receiver.received().iter().map(|one| one.at).collect();
    assert!(at.windows(4).all(|four| four[3].duration_since(four[0]) >= HELD - Duration::from_millis(5)));
}

/// outpost#670, wolverine#2318
async fn a_dead_letter_is_replayed_to_its_handler(bed: &Bed) {
    let receiver = by_subject().await;
    let more = format!(
        "deduplicate = {{}}\n[handlers.audit]\ntypes = ['work']\nurl = '{}'\n",
        receiver.url("/audit")
    );
    let gateway = Gateway::start(&config(bed, &receiver, &more)).await;
    let id =
        publish(&gateway, json!({"type": "work", "subject": "422", "data": 1, "deduplicationId": "d"})).await;
    let dead = eventually(SOON, "two dead letters", async || {
        let (_, page) = gateway.get("/v1/dead-letters").await;
        let items = page["items"].as_array().unwrap().clone();
        (items.len() == 2).then_some(items)
    })
    .await;
    let of_work = dead.iter().find(|dead| dead["handler"] == "work").unwrap();
    assert_eq!((&of_work["errorKind"], &of_work["messageId"]), (&json!("Refused"), &json!(id)));
    receiver.script(|_, _| Answer::status(204));
    let (status, answer) = gateway.post("/v1/dead-letters/replay", json!({"ids": [of_work["id"]]})).await;
    assert_eq!((status, &answer["replayed"]), (200, &json!(1)), "{answer}");
    let received = receiver.wait_for(3, SOON).await;
    let first = received.iter().find(|one| one.uri.path() == "/work").unwrap();
    let again = &received[2];
    assert_eq!(again.uri.path(), "/work", "to the handler that had it, and to no other");
    assert_eq!(again.header("attempts"), "1", "it starts anew");
    assert_eq!(again.header("idempotency-key"), first.header("idempotency-key"));
    settled(&gateway, "work").await;
    // It was no duplicate of its own first try; what asks for the same work now is one.
    publish(&gateway, json!({"type": "work", "data": 1, "deduplicationId": "d"})).await;
    receiver.wait_for(4, SOON).await;
    settled(&gateway, "work").await;
    settled(&gateway, "audit").await;
    let runs = receiver.received().iter().filter(|one| one.uri.path() == "/work").count();
    assert_eq!((runs, bed.count("dead_letters").await), (2, 1));
}

async fn a_forced_replay_passes_another_messages_claim(bed: &Bed) {
    let receiver = by_subject().await;
    let gateway = Gateway::start(&config(bed, &receiver, "deduplicate = {}")).await;
    let message =
        |subject: &str| json!({"type": "work", "subject": subject, "data": 1, "deduplicationId": "d"});
    let mut dead = Vec::new();
    for _ in 0..2 {
        let id = publish(&gateway, message("422")).await;
        over(&gateway, &id).await;
        dead.push(id);
    }
    let other = publish(&gateway, message("204")).await;
    assert_eq!(over(&gateway, &other).await["state"], "handled");
    receiver.script(|_, _| Answer::status(204));
    let (_, page) = gateway.get("/v1/dead-letters").await;
    let dead_letter = |message: &str| {
        let items = page["items"].as_array().unwrap();
        items.iter().find(|dead| dead["messageId"] == message).unwrap()["id"].clone()
    };
    let replay = async |message: &str, force: bool| {
        let body = json!({"ids": [dead_letter(message)], "force": force});
        assert_eq!(gateway.post("/v1/dead-letters/replay", body).await.1["replayed"], 1);
        assert_eq!(over(&gateway, message).await["state"], "handled");
    };
    replay(&dead[0], false).await;
    assert_eq!(receiver.count(), 3, "the other message has done the work");
    replay(&dead[1], true).await;
    assert_eq!(attempts(&receiver, &dead[1]), ["1", "1"]);
    assert_eq!(receiver.count(), 4);
    // The claim is the other's still: later messages are duplicates.
    let later = publish(&gateway, message("204")).await;
    assert_eq!(over(&gateway, &later).await["state"], "handled");
    assert_eq!(receiver.count(), 4);
}

async fn what_was_handled_and_sent_is_listed(bed: &Bed) {
    let receiver = by_subject().await;
    let more = format!(
        "[destinations.out]\ntransport = 'webhook'\nurl = '{}'\nallow_private = true\n\
         [[routes]]\ntypes = ['work', 'news']\ndestinations = ['out']\n",
        receiver.url("/out")
    );
    let gateway = Gateway::start(&config(bed, &receiver, &more)).await;
    for n in 0..5 {
        publish(&gateway, json!({"type": "work", "id": format!("w-{n}"), "correlationId": "c"})).await;
    }
    publish(&gateway, json!({"type": "news", "id": "n", "deduplicationId": "d"})).await;
    settled(&gateway, "work").await;
    settled(&gateway, "out").await;
    let list = async |query: &str| -> Vec<String> {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let (status, page) = gateway.get(&format!("/v1/messages?limit=2&{query}{cursor}")).await;
            assert_eq!(status, 200, "{page}");
            let items = page["items"].as_array().unwrap();
            assert!(items.len() <= 2);
            found.extend(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
            match page["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return found,
            }
        }
    };
    let work: Vec<String> = (0..5).map(|n| format!("w-{n}")).collect();
    assert_eq!(list("state=handled").await, work);
    assert_eq!(list("state=sent").await, [&work[..], &["n".to_owned()]].concat());
    assert_eq!(list("state=sent&type=news").await, ["n"]);
    assert_eq!(list("state=sent&deduplicationId=d").await, ["n"]);
    assert_eq!(list("state=handled&correlationId=c").await, work);
    assert!(list("state=handled&type=news").await.is_empty());
    assert!(list("").await.is_empty(), "nothing waits");
}

async fn a_handler_gets_what_names_its_destinations(bed: &Bed) {
    let receiver = by_subject().await;
    let more = format!(
        "[destinations.out]\ntransport = 'webhook'\nurl = '{0}'\nallow_private = true\n\
         [destinations.routed]\ntransport = 'webhook'\nurl = '{0}'\nallow_private = true\n\
         [[routes]]\ntypes = ['work']\ndestinations = ['routed']\n\
         [auth.keys.all]\nsecrets = ['all']\ngrants = ['publish:*', 'publish:*@*']\n\
         [auth.keys.one]\nsecrets = ['one']\ngrants = ['publish:work@out']\n",
        receiver.url("/out")
    );
    let gateway = Gateway::start(&config(bed, &receiver, &more)).await;
    for (key, handlers) in [("all", json!(["work"])), ("one", json!([]))] {
        let request = gateway.client().post(gateway.url("/v1/publish")).bearer_auth(key);
        let answer = request.json(&json!({"type": "work", "destinations": ["out"]})).send().await.unwrap();
        assert_eq!(answer.status(), 202);
        let answer: Value = answer.json().await.unwrap();
        assert_eq!((&answer["destinations"], &answer["handlers"]), (&json!(["out"]), &handlers), "{key}");
    }
    receiver.wait_for(3, SOON).await;
}
