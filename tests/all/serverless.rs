//! The serverless modes and the durability pass, with the real binary and over every store.

#[path = "serverless/inline.rs"]
mod inline;
#[path = "serverless/modes.rs"]
mod modes;
#[path = "serverless/outbox.rs"]
mod outbox;
#[path = "serverless/pass.rs"]
mod pass;

use std::time::Duration;

use serde_json::{Value, json};

use super::support::bed::Bed;
use super::support::gateway::Gateway;
use super::support::receiver::Receiver;

const SOON: Duration = Duration::from_secs(45);

/// `serverless-with-outbox`, in which what failed is due again after a second; and what else is configured.
fn with_outbox(bed: &Bed, more: &str) -> String {
    format!(
        "{}migrate = true\n[durability]\nmode = 'serverless-with-outbox'\noutbox_stale_time = '1s'\n\
         inbox_stale_time = '1s'\n[endpoints.durability]\nauthorize = 'anonymous'\n{more}",
        bed.config()
    )
}

/// A webhook `name` at this path of the receiver; it fails without long waits.
fn webhook(name: &str, receiver: &Receiver, path: &str) -> String {
    format!(
        "[destinations.{name}]\ntransport = 'webhook'\nurl = '{}'\nallow_private = true\n\
         retry = {{ initial = '10ms', max = '10ms' }}\nbreaker = {{ failures = 1000, open = '1s' }}\n",
        receiver.url(path)
    )
}

fn route(types: &str, destinations: &[&str]) -> String {
    format!("[[routes]]\ntypes = ['{types}']\ndestinations = {}\n", json!(destinations))
}

/// A pass with these parameters; the status and the report.
async fn pass(gateway: &Gateway, query: &str) -> (u16, Value) {
    let url = gateway.url(&format!("/v1/durability/pass{query}"));
    let answer = gateway.client().post(url).send().await.expect("an answer");
    (answer.status().as_u16(), answer.json().await.expect("a JSON answer"))
}

/// Passes until one has nothing left to do now; the sums of what they sent and handled.
async fn passes(gateway: &Gateway, query: &str) -> (u64, u64) {
    let (mut sent, mut handled) = (0, 0);
    loop {
        let (status, report) = pass(gateway, query).await;
        assert_eq!(status, 200, "{report}");
        sent += report["outgoingSent"].as_u64().unwrap();
        handled += report["incomingHandled"].as_u64().unwrap();
        if report["hasMoreWork"] == false {
            return (sent, handled);
        }
    }
}
