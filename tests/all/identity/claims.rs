//! The claims API.

use serde_json::{Value, json};

use super::bench::{Bench, OTHER, SHOP, SOON, Told, by, tell};
use crate::support::{eventually, when};

async fn claim(bench: &Bench, id: &str, lease: &str) -> Told {
    tell(bench.send("/v1/claims", &json!({"scope": "billing", "id": id, "lease": lease, "messageId": "m"})))
        .await
}

async fn act(bench: &Bench, what: &str, id: &str, token: &Value) -> Told {
    let path = format!("/v1/claims/{what}");
    tell(bench.send(&path, &json!({"scope": "billing", "id": id, "token": token}))).await
}

async fn look_up(bench: &Bench, id: &str) -> Told {
    let url = bench.gateway.url(&format!("/v1/claims?scope=billing&id={id}"));
    tell(bench.gateway.client().get(url).bearer_auth(SHOP)).await
}

/// A claims, its lease lapses, B claims, fails and releases, C claims: A's late confirm is refused and C's claim
/// stands. aws-powertools#1038, express-idempotency#32: a crash left "in progress" for days. Truxify#5856: the lock
/// ended before the work did.
pub async fn a_late_confirm_is_refused_and_the_new_claim_stands(bench: &Bench) {
    let a = claim(bench, "w", "100ms").await.is(201).json()["token"].clone();
    let b = eventually(SOON, "B takes over when A's lease has ended", async || {
        let told = claim(bench, "w", "1h").await;
        if told.status == 409 {
            assert_eq!(told.slug(), "claim-held");
            assert!(told.header("retry-after").is_some());
            return None;
        }
        Some(told.is(201).json()["token"].clone())
    })
    .await;
    assert_ne!(a, b);
    let held = claim(bench, "w", "1h").await.is(409);
    let wait: u64 = held.header("retry-after").unwrap().parse().unwrap();
    assert!((3_000..=3_600).contains(&wait), "{wait}");
    act(bench, "release", "w", &b).await.is(204);
    look_up(bench, "w").await.is(404);
    let c = claim(bench, "w", "1h").await.is(201).json()["token"].clone();
    for (what, token) in [("confirm", &a), ("renew", &a), ("release", &a), ("confirm", &b), ("release", &b)] {
        assert_eq!(act(bench, what, "w", token).await.is(409).slug(), "claim-lost", "{what}");
    }
    let told = look_up(bench, "w").await.is(200).json();
    assert_eq!((&told["state"], &told["messageId"]), (&json!("claimed"), &json!("m")));
    let renewed = act(bench, "renew", "w", &c).await.is(200).json();
    assert!(renewed["leaseUntil"].is_string());
    let confirmed = act(bench, "confirm", "w", &c).await.is(200).json();
    assert_eq!(confirmed["outcome"], "confirmed");
    assert_eq!(act(bench, "confirm", "w", &c).await.is(200).json(), confirmed, "again: the same");
    assert_eq!(look_up(bench, "w").await.is(200).json()["state"], "confirmed");
}

/// convoy#2747: look-up, then insert: two requests both won.
pub async fn of_twenty_claimants_one_wins(bench: &Bench) {
    let all = futures::future::join_all((0..20).map(|_| claim(bench, "raced", "1h"))).await;
    assert_eq!(all.iter().filter(|told| told.status == 201).count(), 1);
    assert_eq!(all.iter().filter(|told| told.status == 409).count(), 19);
}

/// powertools-lambda-python#4759: a remaining time of 0 was read as "none".
pub async fn what_is_confirmed_is_a_duplicate_until_its_window_ends(bench: &Bench) {
    let token = claim(bench, "done", "30s").await.is(201).json()["token"].clone();
    let confirmed = act(bench, "confirm", "done", &token).await.is(200).json();
    let told = claim(bench, "done", "30s").await.is(200).json();
    assert_eq!((&told["outcome"], &told["expiresAt"]), (&json!("duplicate"), &confirmed["expiresAt"]));
    assert!(told["firstSeenAt"].is_string());
    assert_eq!(act(bench, "release", "done", &token).await.is(409).slug(), "claim-lost");
    tell(bench.send("/v1/claims", &json!({"scope": "billing", "id": "zero", "lease": "0s"}))).await.is(400);
    look_up(bench, "zero").await.is(404);
    // Of another tenant, and one that differs in a byte.
    let theirs = bench.send("/v1/claims", &json!({"scope": "billing", "id": "done"}));
    tell(by(theirs, OTHER)).await.is(201);
    claim(bench, "Done", "30s").await.is(201);
    claim(bench, "done ", "30s").await.is(201);
    assert!(when(bench.receiver.count() == 0).is_some(), "claims send nothing");
}
