//! Claims and explain over HTTP.

use std::time::Duration;

use reqwest::Client;
use serde_json::{Value, json};

use crate::support::gateway::Gateway;

const CONFIG: &str = r#"
[auth.keys.billing]
secrets = ["billing-0123456789abcdef"]
grants = ["claim:billing", "publish:order.*"]

[auth.keys.operator]
secrets = ["operator-0123456789abcdef"]
grants = ["operate:read"]

[destinations.out]
transport = "stdout"

[[routes]]
types = ["order.*"]
destinations = ["out"]

[messages."order.created"]
deduplicate = { required = true, window = "1h" }

[[deduplication.rules]]
types = ["order.*"]
template = "{orderId}"
"#;

struct Api {
    gateway: Gateway,
    client: Client,
}

impl Api {
    async fn start() -> Self {
        let gateway = Gateway::start(CONFIG).await;
        let client = gateway.client().clone();
        Self { gateway, client }
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let request = self.client.post(self.gateway.url(path)).bearer_auth("billing-0123456789abcdef");
        let response = request.json(&body).send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or_default())
    }

    async fn get(&self, key: &str, query: &str) -> (u16, Value) {
        let request = self.client.get(self.gateway.url(&format!("/v1/claims?{query}"))).bearer_auth(key);
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }
}

#[tokio::test]
async fn a_claim_is_taken_renewed_confirmed_and_then_a_duplicate() {
    let api = Api::start().await;
    let work = json!({"scope": "billing", "id": "invoice-7", "lease": "PT30S", "messageId": "m-1"});
    let (status, claim) = api.post("/v1/claims", work.clone()).await;
    assert_eq!((status, &claim["outcome"]), (201, &json!("claimed")), "{claim}");
    let held = json!({"scope": "billing", "id": "invoice-7", "token": claim["token"]});
    let (status, problem) = api.post("/v1/claims", work.clone()).await;
    assert_eq!((status, &problem["type"]), (409, &json!("/problems/claim-held")));

    let mut longer = held.clone();
    longer["lease"] = json!("1m");
    let (status, renewed) = api.post("/v1/claims/renew", longer.clone()).await;
    assert_eq!(status, 200, "{renewed}");
    assert!(renewed["leaseUntil"].as_str() > claim["leaseUntil"].as_str());
    assert_eq!(api.post("/v1/claims/confirm", longer).await.0, 400, "only a renewal has a lease");
    let (status, looked_up) = api.get("billing-0123456789abcdef", "scope=billing&id=invoice-7").await;
    assert_eq!(
        (status, &looked_up["state"], &looked_up["messageId"]),
        (200, &json!("claimed"), &json!("m-1"))
    );
    assert_eq!(looked_up["leaseUntil"], renewed["leaseUntil"]);

    let (status, confirmed) = api.post("/v1/claims/confirm", held.clone()).await;
    assert_eq!((status, &confirmed["outcome"]), (200, &json!("confirmed")), "{confirmed}");
    let (status, again) = api.post("/v1/claims/confirm", held.clone()).await;
    assert_eq!((status, again), (200, confirmed.clone()), "confirming again says the same");
    let (status, duplicate) = api.post("/v1/claims", work).await;
    assert_eq!((status, &duplicate["outcome"]), (200, &json!("duplicate")));
    assert_eq!(duplicate["expiresAt"], confirmed["expiresAt"]);
    let (status, problem) = api.post("/v1/claims/release", held).await;
    assert_eq!((status, &problem["type"]), (409, &json!("/problems/claim-lost")));
}

#[tokio::test]
async fn a_released_claim_is_free_and_an_ended_lease_is_lost() {
    let api = Api::start().await;
    let work = json!({"scope": "billing", "id": "a", "lease": "1s"});
    let (_, first) = api.post("/v1/claims", work.clone()).await;
    let mine = json!({"scope": "billing", "id": "a", "token": first["token"]});
    assert_eq!(api.post("/v1/claims/release", mine).await.0, 204);
    assert_eq!(api.get("billing-0123456789abcdef", "scope=billing&id=a").await.0, 404);
    let (status, second) = api.post("/v1/claims", work.clone()).await;
    assert_eq!(status, 201);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let (status, third) = api.post("/v1/claims", work).await;
    assert_eq!(status, 201, "an ended lease is taken over: {third}");
    let late = json!({"scope": "billing", "id": "a", "token": second["token"]});
    for path in ["/v1/claims/confirm", "/v1/claims/renew", "/v1/claims/release"] {
        let (status, problem) = api.post(path, late.clone()).await;
        assert_eq!((status, &problem["type"]), (409, &json!("/problems/claim-lost")), "{path}");
    }
}

#[tokio::test]
async fn claims_are_for_those_with_a_grant_for_the_scope() {
    let api = Api::start().await;
    let (status, problem) = api.post("/v1/claims", json!({"scope": "shipping", "id": "a"})).await;
    assert_eq!((status, &problem["type"]), (403, &json!("/problems/forbidden")));
    assert_eq!(api.get("billing-0123456789abcdef", "scope=shipping&id=a").await.0, 403);
    assert_eq!(api.get("operator-0123456789abcdef", "scope=shipping&id=a").await.0, 404);
    for (body, pointer) in [
        (json!({"scope": "billing", "id": ""}), "/id"),
        (json!({"scope": "billing", "id": "a", "lease": "0s"}), "/lease"),
        (json!({"scope": "billing", "id": 7}), "/id"),
        (json!({"scope": "billing", "id": "a", "colour": 1}), "/colour"),
    ] {
        let (status, problem) = api.post("/v1/claims", body).await;
        assert_eq!((status, &problem["errors"][0]["pointer"]), (400, &json!(pointer)), "{problem}");
    }
    let (status, problem) = api.get("operator-0123456789abcdef", "scope=&id=a").await;
    assert_eq!((status, &problem["errors"][0]["pointer"]), (400, &json!("query scope")), "{problem}");
}

#[tokio::test]
async fn explain_tells_and_writes_nothing() {
    let api = Api::start().await;
    let message = json!({"type": "order.created", "data": {"orderId": 1017}});
    for _ in 0..2 {
        let (status, told) = api.post("/v1/explain", message.clone()).await;
        assert_eq!(status, 200, "{told}");
        assert_eq!(
            (&told["deduplicationId"], &told["deduplicationSource"]),
            (&json!("1017"), &json!("rule"))
        );
        assert_eq!((&told["rule"], &told["destinations"]), (&json!(0), &json!(["out"])));
        assert!(told["claim"].is_null(), "explaining takes nothing: {told}");
    }
    let (status, published) = api.post("/v1/publish", message.clone()).await;
    assert_eq!((status, &published["deduplicationId"]), (202, &json!("1017")), "{published}");
    let (_, told) = api.post("/v1/explain", message).await;
    assert_eq!(told["claim"]["messageId"], published["id"], "{told}");
    assert_eq!(told["claim"]["expiresAt"], published["expiresAt"]);
    assert_eq!(api.post("/v1/explain", json!({"type": "invoice.made"})).await.0, 403);
    let (status, problem) = api.post("/v1/explain", json!({"type": "order.paid", "colour": 1})).await;
    assert_eq!((status, &problem["errors"][0]["pointer"]), (400, &json!("/colour")));
}
