//! Handling: claims of deliveries, leases that are renewed, and the one commit that ends it.

use std::time::Duration;

use bytes::Bytes;
use oncegate::domain::claim::{ClaimKey, ClaimKind};
use oncegate::domain::delivery::Target;
use oncegate::domain::{RowKey, Token};
use oncegate::store::Shared;
use oncegate::store::accept::{Message, MessageOutcome};
use oncegate::store::claims::{ClaimState, Claimed, NewClaim};
use oncegate::store::deliveries::{Counted, Receipt, Settle, Settled, Settlement, Take};
use oncegate::store::inbox::{Conclusion, Handling, Held, HeldClaim};

use super::backends::Bench;
use super::build::*;

fn handler() -> Target {
    Target::handler("rebuild")
}

fn handler_key(id: &str) -> ClaimKey {
    ClaimKey::new(ClaimKind::Handler, &["", "rebuild", "work"], id)
}

fn handling(id: &str, row: RowKey, row_token: Token, token: Token, lease: Duration) -> Handling {
    let claim = NewClaim {
        key: handler_key(id),
        kind: ClaimKind::Handler,
        scope: "rebuild".into(),
        id: id.into(),
        tenant: String::new(),
        token,
        lease,
        message_id: None,
        fingerprint: None,
    };
    Handling { claim, row, row_token }
}

fn held_claim(id: &str, token: Token) -> HeldClaim {
    HeldClaim { key: handler_key(id), token, window: HOUR, answer: None }
}

/// A message for the handler, leased under the token that comes with it.
async fn leased(store: &Shared, lease: Duration) -> (Message, Token) {
    let message = to(message(), &[handler()]);
    store.accept(&[request(vec![message.clone()])]).await.pop().unwrap().unwrap();
    (message, take_one(store, lease).await)
}

async fn take_one(store: &Shared, lease: Duration) -> Token {
    let take = Take { target: handler(), limit: 1, lease, token: token() };
    assert_eq!(store.take(&take).await.unwrap().len(), 1);
    take.token
}

async fn has(store: &Shared, handling: &Handling) -> bool {
    matches!(store.claim_handling(handling).await.unwrap(), Claimed::Granted(_))
}

fn conclusion(settlement: Settlement, claims: Vec<HeldClaim>, messages: Vec<Message>) -> Conclusion {
    Conclusion { settlement: Some(settlement), claims, arrival: None, messages, token: token() }
}

async fn depth(store: &Shared, target: &Target) -> u64 {
    let backlog = store.backlog().await.unwrap();
    backlog.into_iter().find(|row| row.target == *target).map_or(0, |row| row.depth)
}

pub async fn a_handling_is_confirmed_with_its_delivery_and_what_it_published(bench: &Bench) {
    let store = &bench.store;
    let (message, owner) = leased(store, HOUR).await;
    let own = token();
    assert!(has(store, &handling("w", row(&message, 0), owner, own, HOUR)).await);
    let ends = Settlement { token: owner, ..done(row(&message, 0)) };
    let ends = conclusion(ends, vec![held_claim("w", own)], vec![self::message(), work("published")]);
    let concluded = store.conclude(&ends).await.unwrap();
    assert_eq!((concluded.settled, concluded.messages.len()), (Settled::Yes, 2));
    assert_eq!((depth(store, &handler()).await, depth(store, &orders()).await), (0, 2));
    let claim = store.claim_of(handler_key("w")).await.unwrap().unwrap();
    assert_eq!((claim.state, claim.row_id), (ClaimState::Confirmed, Some(message.row_id)));
    assert!(store.claim_of(work_key("published")).await.unwrap().is_some());
    // A reply that was lost: the same again writes nothing twice.
    assert_eq!(store.conclude(&ends).await.unwrap().settled, Settled::Fenced);
    assert_eq!(depth(store, &orders()).await, 2);
}

pub async fn a_fenced_conclusion_writes_nothing(bench: &Bench) {
    let store = &bench.store;
    let (message, owner) = leased(store, HOUR).await;
    let own = token();
    assert!(has(store, &handling("w", row(&message, 0), owner, own, HOUR)).await);
    // Another token of the row; another token of the claim.
    for (row_token, claim_token) in [(token(), own), (owner, token())] {
        let ends = Settlement { token: row_token, ..done(row(&message, 0)) };
        let ends = conclusion(ends, vec![held_claim("w", claim_token)], vec![work("published")]);
        assert_eq!(store.conclude(&ends).await.unwrap().settled, Settled::Fenced);
        assert_eq!((depth(store, &handler()).await, depth(store, &orders()).await), (1, 0));
        assert!(store.claim_of(work_key("published")).await.unwrap().is_none());
        let claim = store.claim_of(handler_key("w")).await.unwrap().unwrap();
        assert_eq!((claim.state, claim.token), (ClaimState::Claimed, own));
    }
}

pub async fn a_failure_releases_the_claim_with_its_delivery(bench: &Bench) {
    let store = &bench.store;
    let discard = |row, token, _, _| {
        let outcome = Settle::Discard { receipt: Receipt::Keep, error: String::new() };
        Settlement { row, token, outcome }
    };
    for failure in [retry, |row, token, _, _| dead(row, token), discard] {
        let (message, owner) = leased(store, HOUR).await;
        let own = token();
        assert!(has(store, &handling("w", row(&message, 0), owner, own, HOUR)).await);
        let fails = failure(row(&message, 0), owner, HOUR, Counted::Yes);
        let ends = conclusion(fails, vec![held_claim("w", own)], Vec::new());
        assert_eq!(store.conclude(&ends).await.unwrap().settled, Settled::Yes);
        assert!(store.claim_of(handler_key("w")).await.unwrap().is_none());
    }
}

/// What each one is alone, it is in a group: written whole, or fenced.
pub async fn a_group_of_ends_is_one_commit_and_the_fenced_write_nothing(bench: &Bench) {
    let store = &bench.store;
    let mut ends = Vec::new();
    for n in 0..6 {
        let (message, owner) = leased(store, HOUR).await;
        let (id, own) = (format!("w{n}"), token());
        assert!(has(store, &handling(&id, row(&message, 0), owner, own, HOUR)).await);
        let ends_well = Settlement { token: owner, ..done(row(&message, 0)) };
        ends.push(match n {
            // Three that were done, of which one publishes work that is taken.
            0 => conclusion(ends_well, vec![held_claim(&id, own)], vec![work("a"), self::message()]),
            1 => conclusion(ends_well, vec![held_claim(&id, own)], Vec::new()),
            2 => conclusion(ends_well, vec![held_claim(&id, own)], vec![work("taken")]),
            // One that failed.
            3 => {
                let fails = retry(row(&message, 0), owner, HOUR, Counted::Yes);
                conclusion(fails, vec![held_claim(&id, own)], Vec::new())
            }
            // Two that are not held any more: the claim, the row.
            4 => conclusion(ends_well, vec![held_claim(&id, token())], vec![work("never 4")]),
            _ => {
                let lost = Settlement { token: token(), ..ends_well };
                conclusion(lost, vec![held_claim(&id, own)], vec![work("never 5")])
            }
        });
    }
    store
        .accept(&[request(vec![to(work("taken"), &[Target::destination("other")])])])
        .await
        .pop()
        .unwrap()
        .unwrap();
    let concluded = store.conclude_all(&ends).await.unwrap();
    let settled: Vec<_> = concluded.iter().map(|one| one.settled).collect();
    let (yes, no) = (Settled::Yes, Settled::Fenced);
    assert_eq!(settled, [yes, yes, yes, yes, no, no]);
    assert_eq!(concluded.iter().map(|one| one.messages.len()).collect::<Vec<_>>(), [2, 0, 1, 0, 0, 0]);
    assert!(matches!(concluded[2].messages[..], [MessageOutcome::Duplicate(_)]));
    assert_eq!((depth(store, &handler()).await, depth(store, &orders()).await), (3, 2));
    let mut claims = Vec::new();
    for n in 0..6 {
        claims.push(store.claim_of(handler_key(&format!("w{n}"))).await.unwrap().map(|claim| claim.state));
    }
    let (confirmed, claimed) = (Some(ClaimState::Confirmed), Some(ClaimState::Claimed));
    assert_eq!(claims, [confirmed, confirmed, confirmed, None, claimed, claimed]);
    for id in ["never 4", "never 5"] {
        assert!(store.claim_of(work_key(id)).await.unwrap().is_none(), "{id}");
    }
    // Again: nothing is held any more, and nothing is written.
    let again = store.conclude_all(&ends[..4]).await.unwrap();
    assert!(again.iter().all(|one| one.settled == no && one.messages.is_empty()));
    assert_eq!(depth(store, &orders()).await, 2);
    assert!(store.conclude_all(&[]).await.unwrap().is_empty());
}

/// How much of the time goes to the commits: `cargo nextest run -E 'test(/groups_of_ends/)' --no-capture`.
pub async fn groups_of_ends_against_single_ones(bench: &Bench) {
    use futures::stream::{self, StreamExt};
    const MANY: usize = 1_000;
    let store = &bench.store;
    let prepared = async || {
        let messages: Vec<Message> = (0..MANY).map(|_| to(message(), &[handler()])).collect();
        put(store, messages).await;
        let take = Take { target: handler(), limit: 1_000, lease: HOUR, token: token() };
        let taken = store.take(&take).await.unwrap();
        assert_eq!(taken.len(), MANY);
        let claimed = taken.into_iter().map(async |taken| {
            let (row, own) = (taken.delivery.row, token());
            let id = row.id.to_string();
            assert!(has(store, &handling(&id, row, take.token, own, HOUR)).await);
            let ends = Settlement { token: take.token, ..done(row) };
            conclusion(ends, vec![held_claim(&id, own)], vec![message()])
        });
        stream::iter(claimed).buffer_unordered(8).collect::<Vec<Conclusion>>().await
    };
    let single = prepared().await;
    let began = std::time::Instant::now();
    stream::iter(&single)
        .for_each_concurrent(4, async |ends| {
            assert_eq!(store.conclude(ends).await.unwrap().settled, Settled::Yes);
        })
        .await;
    let one_by_one = began.elapsed();
    let grouped = prepared().await;
    let began = std::time::Instant::now();
    stream::iter(grouped.chunks(100))
        .for_each_concurrent(2, async |ends| {
            let concluded = store.conclude_all(ends).await.unwrap();
            assert!(concluded.iter().all(|one| one.settled == Settled::Yes));
        })
        .await;
    let in_groups = began.elapsed();
    eprintln!(
        "{}: {MANY} ends with a claim and a message each: one by one {one_by_one:?}, in groups {in_groups:?}: {:.1} times as fast",
        store.engine(),
        one_by_one.as_secs_f64() / in_groups.as_secs_f64()
    );
}

/// A node that died between its claim and the end: wolverine (6.51.3 notes).
pub async fn the_next_taker_of_a_row_takes_its_claim_over(bench: &Bench) {
    let store = &bench.store;
    let (message, dead) = leased(store, SHORT).await;
    let of_the_dead = token();
    assert!(has(store, &handling("w", row(&message, 0), dead, of_the_dead, HOUR)).await);
    bench.pass(LONGER).await;
    let owner = take_one(store, HOUR).await;
    let own = token();
    assert!(!has(store, &handling("w", row(&message, 0), dead, token(), HOUR)).await, "an older token");
    assert!(has(store, &handling("w", row(&message, 0), owner, own, HOUR)).await);
    // The dead one was only slow: what it writes now is fenced off.
    let late = Settlement { token: dead, ..done(row(&message, 0)) };
    let late = conclusion(late, vec![held_claim("w", of_the_dead)], Vec::new());
    assert_eq!(store.conclude(&late).await.unwrap().settled, Settled::Fenced);
    let ends = Settlement { token: owner, ..done(row(&message, 0)) };
    let ends = conclusion(ends, vec![held_claim("w", own)], Vec::new());
    assert_eq!(store.conclude(&ends).await.unwrap().settled, Settled::Yes);
}

pub async fn nobody_else_takes_a_claim_over_by_an_equal_message_id(bench: &Bench) {
    let store = &bench.store;
    let (one, first) = leased(store, HOUR).await;
    let (other, second) = leased(store, HOUR).await;
    assert!(has(store, &handling("w", row(&one, 0), first, token(), HOUR)).await);
    assert!(!has(store, &handling("w", row(&other, 0), second, token(), HOUR)).await);
    // Nor of a row that is not its own.
    assert!(!has(store, &handling("w", row(&other, 0), first, token(), HOUR)).await);
}

/// Truxify#5856
pub async fn what_is_renewed_is_nobody_elses(bench: &Bench) {
    let store = &bench.store;
    let (message, owner) = leased(store, SHORT).await;
    let own = token();
    assert!(has(store, &handling("w", row(&message, 0), owner, own, SHORT)).await);
    let key = handler_key("w");
    let foreign = Held { row: Some((row(&message, 0), token())), claims: vec![(key, token())] };
    store.renew_held(&[foreign], HOUR * 5).await.unwrap();
    let held = Held { row: Some((row(&message, 0), owner)), claims: vec![(key, own)] };
    store.renew_held(&[held], HOUR).await.unwrap();
    bench.pass(LONGER).await;
    let take = Take { target: handler(), limit: 1, lease: HOUR, token: token() };
    assert!(store.take(&take).await.unwrap().is_empty());
    assert_eq!(store.claim_of(key).await.unwrap().unwrap().token, own);
    let due = store.due_in(&[handler()]).await.unwrap()[0].unwrap();
    assert!(due <= HOUR && due > HOUR / 2, "{due:?}");
}

pub async fn published_work_that_is_taken_is_a_duplicate_and_settles_all_the_same(bench: &Bench) {
    let store = &bench.store;
    store.accept(&[request(vec![work("taken")])]).await.pop().unwrap().unwrap();
    let (message, owner) = leased(store, HOUR).await;
    let ends = Settlement { token: owner, ..done(row(&message, 0)) };
    let ends = conclusion(ends, Vec::new(), vec![work("taken"), work("free")]);
    let concluded = store.conclude(&ends).await.unwrap();
    assert_eq!(concluded.settled, Settled::Yes);
    assert!(matches!(
        concluded.messages.as_slice(),
        [MessageOutcome::Duplicate(_), MessageOutcome::Accepted { .. }]
    ));
    assert_eq!((depth(store, &handler()).await, depth(store, &orders()).await), (0, 2));
}

pub async fn a_conclusion_without_a_delivery_keeps_its_answer_and_may_be_run_again(bench: &Bench) {
    let store = &bench.store;
    let own = token();
    store.claim(&claim("r", own, HOUR)).await.unwrap();
    let answer = Some(Bytes::from_static(b"answer"));
    let claims = vec![HeldClaim { key: consumer_key("r"), token: own, window: HOUR, answer: answer.clone() }];
    let ends =
        Conclusion { settlement: None, claims, arrival: None, messages: vec![message()], token: token() };
    for published in [1, 0] {
        let concluded = store.conclude(&ends).await.unwrap();
        assert_eq!((concluded.settled, concluded.messages.len()), (Settled::Yes, published));
        assert_eq!(depth(store, &orders()).await, 1);
    }
    let claim = store.claim_of(consumer_key("r")).await.unwrap().unwrap();
    assert_eq!((claim.state, claim.answer), (ClaimState::Confirmed, answer));
    let mut lost = ends.clone();
    lost.claims[0].token = token();
    assert_eq!(store.conclude(&lost).await.unwrap().settled, Settled::Fenced);
}
