//! Taking: each row to one taker at a time, in order, and not before its time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use oncegate::domain::Token;
use oncegate::domain::delivery::Target;
use oncegate::store::deliveries::{Counted, Settled};

use super::backends::Bench;
use super::build::*;

pub async fn rows_are_taken_in_order_of_their_due_time_up_to_the_limit(bench: &Bench) {
    // Accepted in another order than they are due in.
    let at = bench.now() + SHORT;
    let mut scheduled = Vec::new();
    for n in [3_u32, 1, 2, 5, 4] {
        let message = to(
            message_with(|message| message.deliver_at = Some(at + Duration::from_millis(u64::from(n)))),
            &[Target::destination("scheduled")],
        );
        scheduled.push((n, message.row_id));
        put(&bench.store, vec![message]).await;
    }
    scheduled.sort_unstable();
    bench.pass(LONGER).await;
    let target = Target::destination("scheduled");
    let mut taken = Vec::new();
    for expected in [2, 2, 1, 0] {
        let rows = take(&bench.store, &target, 2, HOUR).await;
        assert_eq!(rows.len(), expected);
        taken.extend(rows.into_iter().map(|row| row.delivery.row.id));
    }
    assert_eq!(taken, scheduled.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
}

pub async fn only_the_targets_own_rows_are_taken(bench: &Bench) {
    let targets = [
        Target::destination("orders"),
        Target::handler("orders"),
        Target::destination("Orders"),
        Target::destination("orders "),
    ];
    put(&bench.store, vec![to(message(), &targets)]).await;
    for target in &targets {
        let taken = take(&bench.store, target, 10, HOUR).await;
        assert_eq!(taken.iter().map(|taken| &taken.delivery.target).collect::<Vec<_>>(), [target]);
    }
    assert!(take(&bench.store, &Target::destination("none"), 10, HOUR).await.is_empty());
}

/// CAP#1429: of 10k delayed messages 22k were delivered.
pub async fn concurrent_takers_get_each_row_once(bench: &Bench) {
    for _ in 0..4 {
        put(&bench.store, (0..100).map(|_| message()).collect()).await;
    }
    let other = bench.another().await;
    let mut takers = Vec::new();
    for n in 0..8 {
        let store = Arc::clone(if n % 2 == 0 { &bench.store } else { &other });
        takers.push(tokio::spawn(async move {
            let mut rows = Vec::new();
            loop {
                let taken = take(&store, &orders(), 7, HOUR).await;
                if taken.is_empty() {
                    return rows;
                }
                rows.extend(taken.into_iter().map(|taken| taken.delivery.row));
            }
        }));
    }
    let mut rows = Vec::new();
    for taker in takers {
        rows.extend(taker.await.unwrap());
    }
    // A taker may have found rows locked by another and nothing else; what it left is still there.
    rows.extend(take(&bench.store, &orders(), 1000, HOUR).await.into_iter().map(|taken| taken.delivery.row));
    other.close().await;
    assert_eq!(rows.len(), 400);
    assert_eq!(rows.into_iter().collect::<HashSet<_>>().len(), 400);
}

pub async fn a_lease_that_ended_is_taken_again_and_counted(bench: &Bench) {
    let message = message();
    put(&bench.store, vec![message.clone()]).await;
    let mut tokens = Vec::new();
    for takes in 1..=3 {
        let token = token();
        let taken = take_as(&bench.store, &orders(), 10, SHORT, token).await;
        assert_eq!(taken.len(), 1);
        assert_eq!((taken[0].takes, taken[0].delivery.attempts), (takes, 0));
        assert!(take(&bench.store, &orders(), 10, SHORT).await.is_empty());
        tokens.push(token);
        bench.pass(LONGER).await;
    }
    // The last owner may still settle what nobody has taken since; an earlier one may not.
    let early = retry(row(&message, 0), tokens[0], Duration::ZERO, Counted::Yes);
    assert_eq!(settle(&bench.store, early).await, Settled::Fenced);
    let last = retry(row(&message, 0), tokens[2], Duration::ZERO, Counted::Yes);
    assert_eq!(settle(&bench.store, last).await, Settled::Yes);
    let (taken, _) = take_one(&bench.store).await;
    assert_eq!((taken.takes, taken.delivery.attempts), (1, 1), "settling starts the count again");
}

pub async fn what_is_given_back_is_due_at_once_and_was_not_taken(bench: &Bench) {
    put(&bench.store, vec![message(), message()]).await;
    let owner = token();
    let taken = take_as(&bench.store, &orders(), 10, HOUR, owner).await;
    let rows: Vec<_> = taken.iter().map(|taken| taken.delivery.row).collect();
    let stale = [(rows[0], token()), (rows[1], Token(0))];
    assert_eq!(bench.store.give_back(&stale).await.unwrap(), 0);
    assert!(take(&bench.store, &orders(), 10, HOUR).await.is_empty());
    assert_eq!(bench.store.give_back(&[(rows[0], owner)]).await.unwrap(), 1);
    assert_eq!(bench.store.give_back(&[(rows[0], owner)]).await.unwrap(), 0);
    let (again, second) = take_one(&bench.store).await;
    assert_eq!((again.delivery.row, again.takes), (rows[0], 1));
    let both = [(rows[0], second), (rows[1], owner)];
    assert_eq!(bench.store.give_back(&both).await.unwrap(), 2);
    assert_eq!(take(&bench.store, &orders(), 10, HOUR).await.len(), 2);

    // A node that drains gives back what it holds in memory since it accepted it.
    let accepted = request(vec![to(held(message(), HOUR), &[orders()])]);
    let accepted = oncegate::store::accept::Request {
        messages: accepted.messages.into_iter().map(|message| held(message, HOUR)).collect(),
        ..accepted
    };
    let key = row(&accepted.messages[0], 0);
    let owner = accepted.token;
    stored(accept(&bench.store, accepted).await.unwrap());
    assert_eq!(bench.store.give_back(&[(key, owner)]).await.unwrap(), 1);
    let (taken, _) = take_one(&bench.store).await;
    assert_eq!(taken.delivery.row, key);
}

pub async fn a_row_whose_time_is_over_says_so(bench: &Bench) {
    let in_time = message_with(|message| message.deliver_by = Some(message.accepted_at + HOUR));
    let late = message_with(|message| message.deliver_by = Some(message.accepted_at + SHORT));
    put(&bench.store, vec![in_time.clone(), late.clone(), message()]).await;
    bench.pass(LONGER).await;
    let taken = take(&bench.store, &orders(), 10, HOUR).await;
    assert_eq!(taken.len(), 3);
    for taken in taken {
        assert_eq!(taken.expired, taken.delivery.row.id == late.row_id);
    }
}

pub async fn how_long_until_rows_are_due(bench: &Bench) {
    let [now, later, none] = ["now", "later", "none"].map(Target::destination);
    let in_an_hour = message_with(|message| message.deliver_at = Some(message.accepted_at + HOUR));
    let in_two = message_with(|message| message.deliver_at = Some(message.accepted_at + HOUR * 2));
    put(
        &bench.store,
        vec![to(in_two, &[later.clone(), now.clone()]), to(in_an_hour, std::slice::from_ref(&later))],
    )
    .await;
    put(&bench.store, vec![to(message(), std::slice::from_ref(&now))]).await;
    let asked = [now.clone(), none, later, Target::handler("now"), now];
    let due = bench.store.due_in(&asked).await.unwrap();
    assert_eq!((due[0], due[1], due[3], due[4]), (Some(Duration::ZERO), None, None, Some(Duration::ZERO)));
    let hour = due[2].unwrap();
    assert!(hour <= HOUR && hour > HOUR - Duration::from_secs(60), "{hour:?}");
}

pub async fn the_backlog_lists_every_target_with_rows(bench: &Bench) {
    assert!(bench.store.backlog().await.unwrap().is_empty());
    let [orders, idle, ahead] = ["orders", "idle", "ahead"].map(Target::destination);
    put(&bench.store, vec![message(), message(), to(message(), &[Target::handler("orders")])]).await;
    let scheduled = message_with(|message| message.deliver_at = Some(message.accepted_at + HOUR));
    put(&bench.store, vec![to(scheduled.clone(), std::slice::from_ref(&ahead))]).await;
    let gone = to(message(), std::slice::from_ref(&idle));
    put(&bench.store, vec![gone.clone()]).await;
    settle(&bench.store, done(row(&gone, 0))).await;
    let owner = token();
    let taken = take_as(&bench.store, &orders, 1, HOUR, owner).await;
    let failed = retry(taken[0].delivery.row, owner, HOUR, Counted::Yes);
    assert_eq!(settle(&bench.store, failed).await, Settled::Yes);
    bench.pass(LONGER).await;

    let mut backlog = bench.store.backlog().await.unwrap();
    backlog.sort_by(|a, b| a.target.cmp(&b.target));
    let depths: Vec<_> = backlog.iter().map(|one| (one.target.clone(), one.depth)).collect();
    assert_eq!(depths, [(ahead, 1), (orders, 2), (Target::handler("orders"), 1)]);
    assert_eq!(
        (backlog[0].oldest_due_at, backlog[0].oldest_age),
        (scheduled.message.deliver_at, Duration::ZERO)
    );
    let minute = Duration::from_secs(60);
    assert!(backlog[1].oldest_age >= SHORT && backlog[1].oldest_age < minute, "{:?}", backlog[1]);
    assert_eq!(backlog[1].last_error.as_deref(), Some("it did not answer"));
    assert_eq!(backlog[2].last_error, None);
}
