//! Every operation of the OpenAPI document refuses who has no key, and who has a key without the grant.

use reqwest::Method;
use serde_json::Value;

use crate::support::gateway::Gateway;

const CONFIG: &str = r#"
[auth.keys.nothing]
secrets = ["nothing-0123456789abcdef"]
grants = []

[destinations.out]
transport = "stdout"

[[routes]]
types = ["*"]
destinations = ["out"]
"#;

/// Operations that need no key. A new one of these is a decision: it has to be written down here.
const OPEN: [&str; 3] = ["getLiveness", "getReadiness", "getMetrics"];

/// Operations whose callers prove themselves to a receiver, not by a key: see the tests of receivers.
const OF_RECEIVERS: [&str; 2] = ["push", "mayPush"];

#[tokio::test]
async fn every_operation_needs_a_key_and_a_grant() {
    let gateway = Gateway::start(CONFIG).await;
    let document: Value = serde_json::from_str(oncegate::http::openapi::json()).unwrap();
    let mut checked = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            if OF_RECEIVERS.contains(&id) {
                continue;
            }
            let method: Method = method.to_uppercase().parse().unwrap();
            // Whatever stands for the path's parameters: it must not matter.
            let concrete = path.replace("{type}", "t").replace("{id}", "x").replace("{name}", "x");
            for (key, status) in
                [(None, 401), (Some("wrong-0123456789abcdef"), 401), (Some("nothing-0123456789abcdef"), 403)]
            {
                let mut request = gateway.client().request(method.clone(), gateway.url(&concrete));
                if let Some(key) = key {
                    request = request.bearer_auth(key);
                }
                let response = request.send().await.unwrap();
                if OPEN.contains(&id) {
                    assert_eq!(response.status(), 200, "{id}");
                } else {
                    assert_eq!(response.status(), status, "{id} with {key:?}");
                    assert_eq!(response.headers()["content-type"], "application/problem+json", "{id}");
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 0);
}
