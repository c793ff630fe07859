//! Claims with a lease and a token.

use std::sync::Arc;
use std::time::Duration;

use oncegate::domain::claim::ClaimKind;
use oncegate::store::Shared;
use oncegate::store::claims::{Claim, ClaimState, Claimed};

use super::backends::Bench;
use super::build::*;

async fn granted(store: &Shared, id: &str, token: oncegate::domain::Token, lease: Duration) -> Claim {
    match store.claim(&claim(id, token, lease)).await.unwrap() {
        Claimed::Granted(claim) => claim,
        Claimed::Held(claim) => panic!("held: {claim:?}"),
    }
}

async fn refused(store: &Shared, id: &str) -> Claim {
    match store.claim(&claim(id, token(), HOUR)).await.unwrap() {
        Claimed::Held(claim) => claim,
        Claimed::Granted(claim) => panic!("granted: {claim:?}"),
    }
}

fn about(actual: Duration, expected: Duration) -> bool {
    actual <= expected && actual + Duration::from_secs(60) > expected
}

pub async fn a_claim_is_granted_once(bench: &Bench) {
    let owner = token();
    let first = granted(&bench.store, "c", owner, HOUR).await;
    assert_eq!(
        (first.key, first.kind, first.state),
        (consumer_key("c"), ClaimKind::Consumer, ClaimState::Claimed)
    );
    assert_eq!((first.token, first.tenant.as_str()), (owner, "tenant"));
    assert!(about(first.expires_in, HOUR), "{first:?}");
    let held = refused(&bench.store, "c").await;
    assert_eq!((held.state, held.token), (ClaimState::Claimed, owner));
    assert_eq!((held.scope.as_str(), held.id.as_str()), ("tenant billing", "c"));
    assert_eq!((held.message_id.as_deref(), held.row_id), (Some("m-1"), None));
    assert_eq!((held.first_seen_at, held.expires_at), (first.first_seen_at, first.expires_at));
    assert!(about(held.expires_in, HOUR));
    assert_eq!(bench.store.claim_of(consumer_key("other")).await.unwrap(), None);
}

pub async fn a_claim_is_renewed_and_confirmed_and_stands_until_its_window_ends(bench: &Bench) {
    let (store, key, owner) = (&bench.store, consumer_key("c"), token());
    let first = granted(store, "c", owner, SHORT).await;
    let renewed = store.renew(key, owner, HOUR).await.unwrap().unwrap();
    assert!(about(renewed.expires_in, HOUR) && renewed.expires_at > first.expires_at);
    assert_eq!(store.renew(key, token(), HOUR * 2).await.unwrap(), None);
    bench.pass(LONGER).await;
    assert_eq!(refused(store, "c").await.expires_at, renewed.expires_at);
    assert_eq!(store.confirm(key, token(), HOUR).await.unwrap(), None);
    let confirmed = store.confirm(key, owner, SHORT).await.unwrap().unwrap();
    assert_eq!((confirmed.state, confirmed.first_seen_at), (ClaimState::Confirmed, first.first_seen_at));
    assert!(about(confirmed.expires_in, SHORT));
    assert_eq!(store.renew(key, owner, HOUR).await.unwrap(), None, "there is no lease any more");
    let held = refused(store, "c").await;
    assert_eq!((held.state, held.expires_at), (ClaimState::Confirmed, confirmed.expires_at));
    bench.pass(LONGER).await;
    assert_eq!(store.claim_of(key).await.unwrap(), None);
    granted(store, "c", token(), HOUR).await;
}

pub async fn confirming_again_gives_the_same_answer(bench: &Bench) {
    let (key, owner) = (consumer_key("c"), token());
    granted(&bench.store, "c", owner, HOUR).await;
    let first = bench.store.confirm(key, owner, HOUR).await.unwrap().unwrap();
    let again = bench.store.confirm(key, owner, HOUR * 5).await.unwrap().unwrap();
    assert_eq!((first.expires_at, first.state), (again.expires_at, again.state));
    assert_eq!(bench.store.confirm(key, token(), HOUR).await.unwrap(), None);
}

pub async fn a_released_claim_is_free(bench: &Bench) {
    let (key, owner) = (consumer_key("c"), token());
    granted(&bench.store, "c", owner, HOUR).await;
    assert!(!bench.store.release(key, token()).await.unwrap());
    refused(&bench.store, "c").await;
    assert!(bench.store.release(key, owner).await.unwrap());
    assert!(!bench.store.release(key, owner).await.unwrap());
    assert_eq!(bench.store.claim_of(key).await.unwrap(), None);
    granted(&bench.store, "c", token(), HOUR).await;
}

pub async fn what_is_confirmed_is_not_released(bench: &Bench) {
    let (key, owner) = (consumer_key("c"), token());
    granted(&bench.store, "c", owner, HOUR).await;
    bench.store.confirm(key, owner, HOUR).await.unwrap().unwrap();
    assert!(!bench.store.release(key, owner).await.unwrap());
    assert_eq!(refused(&bench.store, "c").await.state, ClaimState::Confirmed);
}

/// aws-powertools-lambda-python#1038: a crash left "in progress" for days.
pub async fn a_lapsed_claim_is_taken_over(bench: &Bench) {
    let (key, first, second) = (consumer_key("c"), token(), token());
    let lapsed = granted(&bench.store, "c", first, SHORT).await;
    bench.pass(LONGER).await;
    let taken = granted(&bench.store, "c", second, HOUR).await;
    assert!(taken.first_seen_at > lapsed.first_seen_at);
    assert_eq!(bench.store.renew(key, first, HOUR).await.unwrap(), None);
    assert_eq!(bench.store.confirm(key, first, HOUR).await.unwrap(), None);
    assert!(!bench.store.release(key, first).await.unwrap());
    assert_eq!(bench.store.claim_of(key).await.unwrap().unwrap().token, second);
    assert!(bench.store.confirm(key, second, HOUR).await.unwrap().is_some());
}

/// A claims, its lease lapses; B claims, fails and releases; C claims; A confirms late.
pub async fn a_late_confirm_of_an_old_owner_is_refused(bench: &Bench) {
    let (key, a, b, c) = (consumer_key("c"), token(), token(), token());
    granted(&bench.store, "c", a, SHORT).await;
    bench.pass(LONGER).await;
    granted(&bench.store, "c", b, HOUR).await;
    assert!(bench.store.release(key, b).await.unwrap());
    granted(&bench.store, "c", c, HOUR).await;
    assert_eq!(bench.store.confirm(key, a, HOUR).await.unwrap(), None);
    let stands = bench.store.claim_of(key).await.unwrap().unwrap();
    assert_eq!((stands.token, stands.state), (c, ClaimState::Claimed));
}

/// convoy#2747: one INSERT decides.
pub async fn of_twenty_claimants_one_wins(bench: &Bench) {
    let other = bench.another().await;
    for id in ["a", "b"] {
        let mut tasks = Vec::new();
        for n in 0..20 {
            let store = Arc::clone(if n % 2 == 0 { &bench.store } else { &other });
            tasks.push(tokio::spawn(async move { store.claim(&claim(id, token(), HOUR)).await.unwrap() }));
        }
        let mut winners = Vec::new();
        let mut holders = Vec::new();
        for task in tasks {
            match task.await.unwrap() {
                Claimed::Granted(claim) => winners.push(claim.token),
                Claimed::Held(claim) => holders.push(claim.token),
            }
        }
        assert_eq!(winners.len(), 1);
        assert!(holders.iter().all(|holder| *holder == winners[0]));
    }
    other.close().await;
}

/// After a lost reply a claim is asked for again, with the same token.
pub async fn a_claim_that_is_run_again_is_granted_again(bench: &Bench) {
    let owner = token();
    granted(&bench.store, "c", owner, HOUR).await;
    granted(&bench.store, "c", owner, HOUR).await;
    bench.store.confirm(consumer_key("c"), owner, HOUR).await.unwrap().unwrap();
    let again = bench.store.claim(&claim("c", owner, HOUR)).await.unwrap();
    assert!(matches!(again, Claimed::Held(claim) if claim.state == ClaimState::Confirmed));
}
