//! Groups: who fails, who waits, and what becomes of a lost reply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate::domain::ordering::{OnDeadLetter, OrderKey};
use oncegate::domain::{Clock, Random};
use oncegate::store::accept::{MessageOutcome, Outcome, Request};
use oncegate::store::lanes::Take;
use oncegate::store::{ErrorKind, deliveries};
use sqlx::Connection;

use super::build::*;
use crate::support::postgres;
use crate::support::proxy::Mode;

/// Of an ordered target, the row of a transaction that began earlier and commits later. It has the lower turn, and no
/// order to what it overlapped; but it is not begun beside what is on its way, and it is not skipped.
/// watermill#311: rows read by increasing id; a slow transaction's rows were skipped.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_becomes_visible_late_is_neither_skipped_nor_begun_beside_another_of_its_key() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, _) = fresh(&server).await;
    let mut ordered = message();
    for new in &mut ordered.targets {
        new.order = Some(OrderKey::new("", None));
    }
    assert!(is_stored(&accept(&store, request(vec![ordered.clone()])).await));
    let mut slow = connection.begin().await.unwrap();
    let earlier = "INSERT INTO oncegate.deliveries (row_id, target_no, kind, target, state, due_at, token, tenant, type,
            accepted_at, envelope, body, order_key, turn)
        SELECT gen_random_uuid(), 0, kind, target, state, due_at, token, tenant, 'late', accepted_at, envelope, body,
            order_key, turn - 1 FROM oncegate.deliveries";
    sqlx::query(earlier).execute(&mut *slow).await.unwrap();
    let take = async || {
        let token = Random.token();
        let lease = Duration::from_secs(60);
        let take = deliveries::Take { target: orders(), limit: 10, lease, token };
        let take = Take { take, after: None, on_dead_letter: OnDeadLetter::Continue };
        let taken = store.take_in_order(&take).await.unwrap().taken;
        taken.into_iter().map(|taken| (taken.delivery, token)).collect::<Vec<_>>()
    };
    let first = take().await;
    assert_eq!(first.iter().map(|(one, _)| one.row.id).collect::<Vec<_>>(), [ordered.row_id]);
    slow.commit().await.unwrap();
    assert!(take().await.is_empty(), "one of the key is on its way");
    let (delivery, token) = &first[0];
    let outcome = deliveries::Settle::Done { receipt: deliveries::Receipt::Keep };
    let done = deliveries::Settlement { row: delivery.row, token: *token, outcome };
    assert_eq!(store.settle(&[done]).await.unwrap(), [deliveries::Settled::Yes]);
    let kinds: Vec<_> = take().await.into_iter().map(|(one, _)| one.message.kind.clone()).collect();
    assert_eq!(kinds, ["late"]);
    store.close().await;
}

/// What a check of ours lets through and an index does not take.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_database_refuses_fails_alone() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, _) = fresh(&server).await;
    let long: String = (0..400).map(|_| Random.uuid_v7(Clock::system().now()).to_string()).collect();
    let mut group: Vec<Request> =
        (0..60).map(|n| keyed(&n.to_string(), vec![work(&n.to_string())])).collect();
    group.insert(30, request(vec![message_with(|message| message.id = long)]));
    let outcomes = store.accept(&group).await;
    for (at, outcome) in outcomes.iter().enumerate() {
        match at {
            30 => assert_eq!(outcome.as_ref().unwrap_err().kind, ErrorKind::InvalidData),
            _ => assert!(is_stored(outcome), "{at}: {outcome:?}"),
        }
    }
    assert_eq!(count(&mut connection, "deliveries").await, 60);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_a_frozen_transaction_holds_fails_its_request_alone() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, _) = fresh(&server).await;
    let mut frozen = connection.begin().await.unwrap();
    let hold = "INSERT INTO oncegate.deduplication (key, kind, scope, id, tenant, token, confirmed, first_seen_at, expires_at)
                VALUES ($1, 1, '', '', '', 1, true, now(), now() + interval '1 hour')";
    sqlx::query(hold).bind(work_key("held").0).execute(&mut *frozen).await.unwrap();

    let mut group: Vec<Request> = (0..60)
        .map(|n| match n % 3 {
            0 => keyed(&n.to_string(), vec![work(&n.to_string())]),
            1 => request(vec![work(&n.to_string())]),
            _ => request(vec![message()]),
        })
        .collect();
    group.insert(30, keyed("held", vec![work("held")]));
    let started = Instant::now();
    let outcomes = store.accept(&group).await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    for (at, outcome) in outcomes.iter().enumerate() {
        match at {
            30 => assert_eq!(outcome.as_ref().unwrap_err().kind, ErrorKind::Locked),
            _ => assert!(is_stored(outcome), "{at}: {outcome:?}"),
        }
    }
    frozen.rollback().await.unwrap();
    assert_eq!(count(&mut connection, "deliveries").await, 60);
    assert!(is_stored(&accept(&store, group.swap_remove(30)).await));
    store.close().await;
}

/// Overlapping keys in any order, over two nodes: nobody waits for the other for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_groups_do_not_deadlock() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, url) = fresh(&server).await;
    let other = open(&url).await;
    let mut tasks = Vec::new();
    for n in 0..8_usize {
        let store = Arc::clone(if n % 2 == 0 { &store } else { &other });
        tasks.push(tokio::spawn(async move {
            for round in 0..10 {
                let mut keys: Vec<usize> = (0..40).collect();
                keys.rotate_left(n * 5);
                let group: Vec<Request> = keys
                    .iter()
                    .map(|key| keyed(&format!("r{round}-{key}"), vec![work(&format!("w{round}-{key}"))]))
                    .collect();
                for outcome in store.accept(&group).await {
                    assert!(matches!(outcome, Ok(Outcome::Stored(_) | Outcome::Replay(_))), "{outcome:?}");
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(count(&mut connection, "deliveries").await, 400);
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let deadlocks: i64 = sqlx::query_scalar(deadlocks).fetch_one(&mut connection).await.unwrap();
    assert_eq!(deadlocks, 0);
    store.close().await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_to_a_commit_is_made_good() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, proxy) = through_proxy(&server).await;
    accept(&store, request(vec![work("taken")])).await.unwrap();
    // Both identities: the group is a transaction.
    proxy.lose_answer_to(b"COMMIT");
    let group = [keyed("k", vec![work("a"), work("taken")]), request(vec![message()])];
    let outcomes = store.accept(&group).await;
    assert!(!proxy.loss_pending());
    let Ok(Outcome::Stored(first)) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(matches!(first[0], MessageOutcome::Accepted { expires_at: Some(_) }));
    assert!(matches!(first[1], MessageOutcome::Duplicate(_)));
    assert!(is_stored(&outcomes[1]));
    assert_eq!(count(&mut connection, "deliveries").await, 3);
    let Ok(Outcome::Replay(claim)) = accept(&store, keyed("k", vec![work("a")])).await else { panic!() };
    assert_eq!(claim.answer.unwrap(), "accepted duplicate");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_was_delivered_before_the_lost_reply_is_made_good_is_not_stored_again() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, proxy) = through_proxy(&server).await;
    // Warm, so that the mark is in the statement's parameters and not in its preparation.
    accept(&store, request(vec![message()])).await.unwrap();
    sqlx::raw_sql(
        "CREATE FUNCTION delivered() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO oncegate.receipts (row_id, target_no, kind, target, attempts, tenant, type, accepted_at, sent_at)
            VALUES (NEW.row_id, NEW.target_no, NEW.kind, NEW.target, 1, '', NEW.type, now(), now());
            RETURN NULL; END $$;
         CREATE TRIGGER delivered BEFORE INSERT ON oncegate.deliveries FOR EACH ROW
            WHEN (NEW.type = 'delivered-at-once') EXECUTE FUNCTION delivered()",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    proxy.lose_answer_to(b"delivered-at-once");
    let quick = message_with(|message| message.kind = "delivered-at-once".into());
    assert!(is_stored(&accept(&store, request(vec![quick])).await));
    assert!(!proxy.loss_pending());
    assert_eq!(count(&mut connection, "receipts").await, 1, "stored once");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_cannot_be_had_again_leaves_the_outcome_unknown() {
    let Some(server) = postgres::shared().await else { return };
    let (store, mut connection, proxy) = through_proxy(&server).await;
    accept(&store, request(vec![message()])).await.unwrap();
    proxy.lose_answer_to(b"the-marked-one");
    let marked = message_with(|message| message.kind = "the-marked-one".into());
    let accepting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { accept(&store, request(vec![marked])).await }
    });
    while proxy.loss_pending() {
        tokio::task::yield_now().await;
    }
    proxy.set(Mode::Refuse);
    let error = accepting.await.unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutcomeUnknown);
    // It was stored, as it happens.
    assert_eq!(count(&mut connection, "deliveries").await, 2);
    // Nothing was sent of this one.
    let error = accept(&store, request(vec![message()])).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    proxy.set(Mode::Pass);
    assert!(is_stored(&accept(&store, request(vec![message()])).await));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_died_while_idle_are_not_noticed() {
    let Some(server) = postgres::shared().await else { return };
    let (store, _, proxy) = through_proxy(&server).await;
    accept(&store, request(vec![message()])).await.unwrap();
    proxy.cut();
    assert!(is_stored(&accept(&store, keyed("k", vec![work("a")])).await));
    proxy.cut();
    assert!(is_stored(&accept(&store, request(vec![message()])).await));
    store.close().await;
}
