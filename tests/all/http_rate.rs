//! `server.limits.rate`: each principal may ask so often; over it there is a clear answer.

use reqwest::Response;

use crate::support::gateway::Gateway;

const CONFIG: &str = r#"
[server.limits]
rate = "3/1h"

[auth.keys.eager]
secrets = ["eager-secret-0123456789"]
grants = ["publish:*"]

[auth.keys.calm]
secrets = ["calm-secret-01234567890"]
grants = ["publish:*"]
"#;

async fn publish(gateway: &Gateway, secret: &str) -> Response {
    let request = gateway.client().post(gateway.url("/v1/publish/x")).bearer_auth(secret);
    request.body("x").send().await.unwrap()
}

#[tokio::test]
async fn a_principal_that_asks_too_often_is_told_when_to_come_again_and_holds_up_no_other() {
    let gateway = Gateway::start(CONFIG).await;
    for _ in 0..3 {
        assert_eq!(publish(&gateway, "eager-secret-0123456789").await.status(), 202);
    }
    let refused = publish(&gateway, "eager-secret-0123456789").await;
    assert_eq!(refused.status(), 429);
    let header = |name: &str| refused.headers()[name].to_str().unwrap().to_owned();
    let wait: u64 = header("retry-after").parse().unwrap();
    assert!((1..=1_200).contains(&wait), "a third of the hour: {wait}");
    assert_eq!(header("ratelimit-policy"), "\"principal\";q=3;w=3600");
    assert_eq!(header("ratelimit"), format!("\"principal\";r=0;t={wait}"));
    let problem: serde_json::Value = refused.json().await.unwrap();
    assert_eq!(problem["type"], "/problems/rate-limited");
    assert_eq!(publish(&gateway, "calm-secret-01234567890").await.status(), 202);
}
