//! Pushes that may come again: the delivery and its claim are written together, and end together.

use std::time::Duration;

use oncegate::domain::Token;
use oncegate::domain::delivery::Target;
use oncegate::store::Shared;
use oncegate::store::accept::{Message, MessageOutcome, NewDelivery, Outcome, WorkClaim};
use oncegate::store::deliveries::{Counted, Settle, Settled, Settlement, Take};
use oncegate::store::inbox::{Arrival, Conclusion};

use super::backends::Bench;
use super::build::*;

fn handler() -> Target {
    Target::handler("rebuild")
}

/// A delivery to the handler with its claim, leased for `lease`, and the token of both.
async fn arrived(store: &Shared, id: &str, lease: Duration) -> (Message, Token) {
    let claim = WorkClaim { window: HOUR * 24, ..work(id).claim.unwrap() };
    let targets = vec![NewDelivery { hold: Some(lease), ..NewDelivery::waiting(handler()) }];
    let message = Message { claim: Some(claim), targets, ..message() };
    let request = request(vec![message.clone()]);
    let token = request.token;
    let outcome = store.accept(&[request]).await.pop().unwrap().unwrap();
    let Outcome::Stored(outcomes) = outcome else { panic!("{outcome:?}") };
    assert!(matches!(outcomes.as_slice(), [MessageOutcome::Accepted { .. }]), "{outcomes:?}");
    (message, token)
}

fn ends(message: &Message, token: Token, outcome: Settle) -> Conclusion {
    let arrival = Arrival { key: message.claim.as_ref().unwrap().key, token, keep: SHORT };
    let settlement = Settlement { row: row(message, 0), token, outcome };
    Conclusion {
        settlement: Some(settlement),
        claims: Vec::new(),
        arrival: Some(arrival),
        messages: Vec::new(),
        token: self::token(),
    }
}

async fn depth(store: &Shared) -> u64 {
    let backlog = store.backlog().await.unwrap();
    backlog.into_iter().find(|row| row.target == handler()).map_or(0, |row| row.depth)
}

pub async fn a_push_that_is_being_run_is_leased_to_somebody(bench: &Bench) {
    let store = &bench.store;
    let (message, _) = arrived(store, "w", SHORT).await;
    let left = store.leased_for(message.row_id).await.unwrap().unwrap();
    assert!(left > Duration::ZERO && left <= SHORT, "{left:?}");
    assert_eq!(store.leased_for(token_row()).await.unwrap(), None);
    bench.pass(LONGER).await;
    assert_eq!(store.leased_for(message.row_id).await.unwrap(), None);
    // Whoever takes it next has it.
    let take = Take { target: handler(), limit: 1, lease: HOUR, token: token() };
    assert_eq!(store.take(&take).await.unwrap().len(), 1);
    assert!(store.leased_for(message.row_id).await.unwrap().unwrap() > SHORT);
}

fn token_row() -> uuid::Uuid {
    super::build::message().row_id
}

pub async fn what_was_withdrawn_leaves_nothing(bench: &Bench) {
    let store = &bench.store;
    let (message, own) = arrived(store, "w", HOUR).await;
    // Not under another token: then it is somebody else's by now.
    let fenced = Conclusion { arrival: None, ..ends(&message, token(), Settle::Withdrawn) };
    assert_eq!(store.conclude(&fenced).await.unwrap().settled, Settled::Fenced);
    let fenced = ends(&message, token(), Settle::Withdrawn);
    assert_eq!(store.conclude(&fenced).await.unwrap().settled, Settled::Fenced);
    assert_eq!(depth(store).await, 1);
    assert!(store.claim_of(work_key("w")).await.unwrap().is_some());
    let withdrawn = ends(&message, own, Settle::Withdrawn);
    assert_eq!(store.conclude(&withdrawn).await.unwrap().settled, Settled::Yes);
    assert_eq!(depth(store).await, 0);
    assert!(store.claim_of(work_key("w")).await.unwrap().is_none());
    assert!(store.message("", &message.message.id).await.unwrap().is_none(), "no receipt, no dead letter");
    arrived(store, "w", HOUR).await;
}

pub async fn what_ended_is_remembered_for_as_long_as_it_says(bench: &Bench) {
    let store = &bench.store;
    for (id, of_death) in [("done", false), ("dead", true)] {
        let (message, own) = arrived(store, id, HOUR).await;
        let outcome = match of_death {
            true => dead(row(&message, 0), own).outcome,
            false => done(row(&message, 0)).outcome,
        };
        assert_eq!(store.conclude(&ends(&message, own, outcome)).await.unwrap().settled, Settled::Yes);
        assert!(store.claim_of(work_key(id)).await.unwrap().is_some(), "{id}");
        bench.pass(LONGER).await;
        assert!(store.claim_of(work_key(id)).await.unwrap().is_none(), "{id}");
    }
}

pub async fn an_arrival_outlives_what_is_to_be_tried_again(bench: &Bench) {
    let store = &bench.store;
    let (message, own) = arrived(store, "w", HOUR).await;
    let again = retry(row(&message, 0), own, HOUR, Counted::Yes).outcome;
    assert_eq!(store.conclude(&ends(&message, own, again)).await.unwrap().settled, Settled::Yes);
    bench.pass(LONGER).await;
    assert!(store.claim_of(work_key("w")).await.unwrap().is_some());
}
