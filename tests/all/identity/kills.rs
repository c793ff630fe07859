//! `kill -9` at any moment of a keyed publish, then the same request again: exactly one message.

use std::time::Duration;

use oncegate::domain::Random;
use serde_json::{Value, json};

use super::bench::{SOON, tell};
use crate::support::gateway::Gateway;
use crate::support::postgres;

/// wolverine (6.51.3 notes): a crash after the claim made the message its own duplicate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_two_hundred_kills_of_a_keyed_publish_on_sqlite() {
    kills(None, 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_two_hundred_kills_of_a_keyed_publish_on_postgresql() {
    let Some(server) = postgres::shared().await else { return };
    kills(Some(server.fresh_database().await), 200).await;
}

async fn kills(url: Option<String>, count: usize) {
    let store = url.map(|url| format!("[stores.main]\nurl = {url:?}\n")).unwrap_or_default();
    let mut gateway = Gateway::start(&format!(
        "{store}\n[destinations.out]\ntransport = \"stdout\"\npaused = true\n\n[[routes]]\ntypes = [\"*\"]\n\
         destinations = [\"out\"]\n\n[messages.\"w\"]\ndeduplicate = {{ required = true }}\n"
    ))
    .await;
    let (mut answered, mut stored_unanswered) = (0, 0);
    for n in 0..count {
        let body = json!({"type": "w", "deduplicationId": format!("work-{n}"), "correlationId": format!("c-{n}"), "data": n});
        let (client, url) = (gateway.client().clone(), gateway.url("/v1/publish"));
        let request = || {
            let request = client.post(&url).header("Content-Type", "application/json");
            request.header("Idempotency-Key", format!("key-{n}")).body(body.to_string()).timeout(SOON)
        };
        let sent = request();
        let first = tokio::spawn(async move {
            let response = sent.send().await.ok()?;
            Some((response.status().as_u16(), response.bytes().await.ok()?))
        });
        tokio::time::sleep(Random.jitter(Random.jitter(Duration::from_millis(20)))).await;
        gateway.kill9();
        let first = first.await.unwrap();
        gateway.restart().await;
        let again = tell(request()).await.is(202);
        if let Some((status, bytes)) = first {
            answered += 1;
            assert_eq!((status, again.replayed(), &again.bytes), (202, true, &bytes), "{n}");
        } else if again.replayed() {
            stored_unanswered += 1;
        }
        assert_eq!(again.json()["outcome"], "accepted", "{n}: a message is not its own duplicate");
        // The same work by another request is that one message's duplicate.
        let work = json!({"type": "w", "deduplicationId": format!("work-{n}")});
        let other =
            gateway.client().post(gateway.url("/v1/publish")).header("Content-Type", "application/json");
        let other = tell(other.body(work.to_string())).await.is(200).json();
        assert_eq!(other["id"], again.json()["id"], "{n}");
        let found = tell(gateway.client().get(gateway.url(&format!("/v1/messages?correlationId=c-{n}"))))
            .await
            .is(200)
            .json();
        let items: &Vec<Value> = found["items"].as_array().unwrap();
        assert_eq!(items.len(), 1, "{n}: {found}");
        assert_eq!(items[0]["id"], again.json()["id"], "{n}");
    }
    eprintln!(
        "{answered} of {count} were answered before the kill, {stored_unanswered} stored and not answered"
    );
}
