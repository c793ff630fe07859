//! What an operator learns of a message that was dropped as a duplicate, and whose work is whose.

use serde_json::{Value, json};

use super::{Engine, PAUSED, engines};
use crate::support::gateway::Gateway;

impl Engine {
    /// Publishes with an id of the user's own, as any message of the intake may have one.
    async fn publish_as(&self, id: &str, kind: &str, data: &str, deduplication_id: Option<&str>) {
        let deduplication_id = deduplication_id.map_or("NULL".to_owned(), |id| format!("'{id}'"));
        let sql = match self {
            Self::Sqlite(_) => format!(
                "INSERT INTO oncegate_intake (id, type, data, deduplication_id)
                 VALUES ('{id}', '{kind}', '{data}', {deduplication_id})"
            ),
            Self::Postgres(_) => format!(
                "SELECT oncegate.publish('{kind}', '{data}', id => '{id}', deduplication_id => {deduplication_id})"
            ),
        };
        self.run(&sql).await.unwrap();
        self.intake_is_empty().await;
    }
}

const ONE: &str = "11111111-1111-4111-8111-111111111111";
const TWO: &str = "22222222-2222-4222-8222-222222222222";
const THREE: &str = "33333333-3333-4333-8333-333333333333";

async fn told(gateway: &Gateway, id: &str) -> Value {
    let (status, message) = gateway.get(&format!("/v1/messages/{id}")).await;
    assert_eq!(status, 200, "{message}");
    message
}

/// Nobody answers the one who published it; who asks, is told.
#[tokio::test]
async fn a_duplicate_leaves_a_receipt_that_says_so() {
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(PAUSED)).await;
        let first = json!({ "id": "first", "type": "strict", "data": 1, "deduplicationId": "a" });
        assert_eq!(gateway.publish(first).await.0, 202);
        engine.publish_as(ONE, "strict", "1", Some("a")).await;
        let expected = json!({
            "id": ONE, "type": "strict", "deduplicationId": "a", "destinations": [], "handlers": [],
            "outcome": "duplicate", "duplicateOf": "first",
        });
        assert_eq!(told(&gateway, ONE).await, expected, "{}", engine.name());
        // The first one is what it was, and so is one that was accepted and then published again.
        assert_eq!(told(&gateway, "first").await.get("outcome"), None, "{}", engine.name());
        engine.publish_as(TWO, "strict", "1", Some("b")).await;
        engine.publish_as(TWO, "strict", "1", Some("b")).await;
        let twice = told(&gateway, TWO).await;
        assert_eq!(twice.get("outcome"), None, "{}: {twice}", engine.name());
        assert_eq!(twice["destinations"].as_array().unwrap().len(), 1, "{}: {twice}", engine.name());
        assert_eq!(twice["destinations"][0]["state"], "pending", "{}: {twice}", engine.name());
        assert_eq!(engine.count("receipts").await, 2, "{}", engine.name());
        // It is over: there is nothing to cancel.
        let answer =
            gateway.client().delete(gateway.url(&format!("/v1/messages/{ONE}"))).send().await.unwrap();
        assert_eq!(answer.status(), 409, "{}", engine.name());
    }
}

/// Without receipts there is none of a duplicate either.
#[tokio::test]
async fn a_duplicate_leaves_nothing_where_no_receipts_are_kept() {
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(&format!("{PAUSED}[history]\nkeep = \"0s\"\n"))).await;
        engine.publish_as(ONE, "strict", "1", Some("a")).await;
        engine.publish_as(TWO, "strict", "1", Some("a")).await;
        assert_eq!(engine.count("receipts").await, 0, "{}", engine.name());
        assert_eq!(gateway.get(&format!("/v1/messages/{TWO}")).await.0, 404, "{}", engine.name());
        assert_eq!(gateway.stderr().matches("duplicate in the intake").count(), 1, "{}", engine.name());
    }
}

/// Of a message of another tenant's, its receipt says that it was there and no more.
#[tokio::test]
async fn a_duplicate_of_another_tenants_message_does_not_tell_its_id() {
    const GLOBAL: &str = "
        [messages.\"order.global\"]
        deduplicate = { window = \"1h\", scope = \"store\" }";
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(&format!("{PAUSED}{GLOBAL}"))).await;
        let table = engine.table("intake");
        engine
            .run(&format!(
                "INSERT INTO {table} (tenant, id, type, data, deduplication_id)
                 VALUES ('acme', '{ONE}', 'order.global', '1', 'a')"
            ))
            .await
            .unwrap();
        engine.intake_is_empty().await;
        engine.publish_as(TWO, "order.global", "1", Some("a")).await;
        let message = told(&gateway, TWO).await;
        assert_eq!(message["outcome"], "duplicate", "{}: {message}", engine.name());
        assert_eq!(message.get("duplicateOf"), None, "{}: {message}", engine.name());
    }
}

/// One identity: derived from what a scheduler posts, and from what the application publishes in its transaction.
#[tokio::test]
async fn a_schedulers_identity_and_the_transactions_are_one() {
    const RULE: &str = "
        [[deduplication.rules]]
        types = [\"order.rebuild\"]
        template = \"{projectionName}|{occurrenceUtc}\"

        [messages.\"order.rebuild\"]
        deduplicate = { window = \"1h\" }";
    const NIGHT: &str = r#"{"projectionName": "orders", "occurrenceUtc": "2026-02-01T03:00:00Z"}"#;
    const NEXT: &str = r#"{"projectionName": "orders", "occurrenceUtc": "2026-02-02T03:00:00Z"}"#;
    for engine in engines().await {
        let gateway = Gateway::start(&engine.config(&format!("{PAUSED}{RULE}"))).await;
        let post = |body: &'static str| {
            let url = gateway.url("/v1/publish/order.rebuild");
            let post = gateway.client().post(url).header("content-type", "application/json").body(body);
            async move { post.send().await.unwrap().status().as_u16() }
        };
        assert_eq!(post(NIGHT).await, 202, "{}", engine.name());
        engine.publish_as(ONE, "order.rebuild", NIGHT, None).await;
        assert_eq!(told(&gateway, ONE).await["outcome"], "duplicate", "{}", engine.name());
        engine.publish_as(TWO, "order.rebuild", NEXT, None).await;
        assert_eq!(told(&gateway, TWO).await.get("outcome"), None, "{}", engine.name());
        assert_eq!(post(NEXT).await, 200, "{}: a duplicate of the transaction's", engine.name());
        // Said outright, it is the same again.
        let id = "orders|2026-02-02T03:00:00Z";
        engine.publish_as(THREE, "order.rebuild", "1", Some(id)).await;
        assert_eq!(told(&gateway, THREE).await["duplicateOf"], TWO, "{}", engine.name());
        assert_eq!(engine.count("deliveries").await, 2, "{}", engine.name());
    }
}
