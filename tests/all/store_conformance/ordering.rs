//! Ordered targets: of each key one message at a time, in the order in which they were published.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate::domain::Token;
use oncegate::domain::delivery::Target;
use oncegate::domain::ordering::{OnDeadLetter, OrderKey};
use oncegate::store::accept::{Message, MessageState};
use oncegate::store::dead_letters::{Claims, Duplicates, Filter, Replay, Selection};
use oncegate::store::deliveries::{self, Counted, Settled};
use oncegate::store::lanes::{Looked, Take};
use oncegate::store::{Shared, status};

use super::backends::Bench;
use super::build::*;

/// A message of a key; its client's id is `KEY-N`.
fn numbered(key: &str, n: usize) -> Message {
    in_order(message_with(|message| {
        message.id = format!("{key}-{n}");
        message.partition_key = (!key.is_empty()).then(|| key.to_owned());
    }))
}

/// The same, in the order of its key.
fn in_order(mut message: Message) -> Message {
    let key = OrderKey::new(&message.message.tenant, message.message.partition_key.as_deref());
    for new in &mut message.targets {
        new.order = Some(key);
    }
    message
}

async fn look(store: &Shared, limit: u32, lease: Duration, token: Token) -> Looked {
    look_from(store, limit, lease, token, None, OnDeadLetter::Continue).await
}

async fn look_from(
    store: &Shared,
    limit: u32,
    lease: Duration,
    token: Token,
    after: Option<OrderKey>,
    on_dead_letter: OnDeadLetter,
) -> Looked {
    let take = deliveries::Take { target: orders(), limit, lease, token };
    store.take_in_order(&Take { take, after, on_dead_letter }).await.expect("taken")
}

fn ids(looked: &Looked) -> BTreeSet<String> {
    looked.taken.iter().map(|taken| taken.delivery.message.id.clone()).collect()
}

fn these(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

/// Takes all that may be taken: ids, and the rows by id.
async fn taken(
    store: &Shared,
    token: Token,
) -> (BTreeSet<String>, HashMap<String, oncegate::domain::RowKey>) {
    let looked = look(store, 100, HOUR, token).await;
    let rows = looked.taken.iter().map(|taken| (taken.delivery.message.id.clone(), taken.delivery.row));
    (ids(&looked), rows.collect())
}

pub async fn of_each_key_the_first_is_taken_and_no_other(bench: &Bench) {
    put(&bench.store, vec![numbered("a", 1), numbered("a", 2), numbered("b", 1), numbered("b", 2)]).await;
    let other = bench.another().await;
    let token = token();
    let (first, rows) = taken(&bench.store, token).await;
    assert_eq!(first, these(&["a-1", "b-1"]));
    assert!(taken(&bench.store, self::token()).await.0.is_empty());
    assert!(taken(&other, self::token()).await.0.is_empty(), "nor by another node");
    other.close().await;
    assert_eq!(settle(&bench.store, held_done(rows["a-1"], token)).await, Settled::Yes);
    assert_eq!(taken(&bench.store, self::token()).await.0, these(&["a-2"]));
    // Given back, it is the first still.
    assert_eq!(bench.store.give_back(&[(rows["b-1"], token)]).await.unwrap(), 1);
    assert_eq!(taken(&bench.store, self::token()).await.0, these(&["b-1"]));
}

fn held_done(row: oncegate::domain::RowKey, token: Token) -> deliveries::Settlement {
    deliveries::Settlement { token, ..done(row) }
}

pub async fn rows_of_a_request_and_requests_one_after_the_other_keep_their_order(bench: &Bench) {
    let other = bench.another().await;
    let mut expected = Vec::new();
    for round in 0..6 {
        // Through two nodes in turn, many rows at a time and one.
        let store = if round % 2 == 0 { &bench.store } else { &other };
        let count = if round < 2 { 90 } else { 3 };
        let numbers = (0..count).map(|n| round * 1000 + n);
        put(store, numbers.clone().map(|n| numbered("k", n)).collect()).await;
        expected.extend(numbers);
    }
    other.close().await;
    // With an identity of the work, they are written by another statement.
    let claiming_order = |n: usize| claiming(numbered("k", n), &format!("w-{n}"), HOUR);
    put(&bench.store, (9000..9003).map(claiming_order).collect()).await;
    expected.extend(9000..9003);
    let mut seen = Vec::new();
    while seen.len() < expected.len() {
        let token = token();
        let looked = look(&bench.store, 100, HOUR, token).await;
        let [one] = looked.taken.as_slice() else { panic!("{looked:?}") };
        seen.push(one.delivery.message.id.trim_start_matches("k-").parse::<usize>().unwrap());
        assert_eq!(settle(&bench.store, held_done(one.delivery.row, token)).await, Settled::Yes);
    }
    assert_eq!(seen, expected);
}

pub async fn a_retry_holds_up_its_key_and_no_other(bench: &Bench) {
    put(&bench.store, vec![numbered("a", 1), numbered("a", 2), numbered("b", 1), numbered("b", 2)]).await;
    let token = token();
    let (_, rows) = taken(&bench.store, token).await;
    settle(&bench.store, retry(rows["a-1"], token, SHORT, Counted::Yes)).await;
    settle(&bench.store, held_done(rows["b-1"], token)).await;
    let looked = look(&bench.store, 100, HOUR, self::token()).await;
    assert_eq!(ids(&looked), these(&["b-2"]));
    let next = looked.next.expect("it is due again");
    assert!(next <= SHORT && next > Duration::ZERO, "{next:?}");
    bench.pass(LONGER).await;
    let looked = look(&bench.store, 100, HOUR, self::token()).await;
    assert_eq!(ids(&looked), these(&["a-1"]));
    assert_eq!(looked.taken[0].delivery.attempts, 1);
}

pub async fn a_dead_letter_frees_its_key_or_blocks_it(bench: &Bench) {
    let messages = ["a", "b"].into_iter().flat_map(|key| (1..=3).map(move |n| numbered(key, n)));
    put(&bench.store, messages.collect()).await;
    let owner = token();
    let (_, rows) = taken(&bench.store, owner).await;
    assert_eq!(settle(&bench.store, dead(rows["a-1"], owner)).await, Settled::Yes);
    assert_eq!(settle(&bench.store, held_done(rows["b-1"], owner)).await, Settled::Yes);
    let blocked = async || {
        let looked = look_from(&bench.store, 100, HOUR, owner, None, OnDeadLetter::Block).await;
        (ids(&looked), looked.next)
    };
    // Where it blocks, nothing is to be waited for: somebody has to do something.
    assert_eq!(blocked().await, (these(&["b-2"]), None));
    let (free, rows) = taken(&bench.store, owner).await;
    assert_eq!(free, these(&["a-2"]), "where it does not block, the next one comes");
    bench.store.give_back(&[(rows["a-2"], owner)]).await.unwrap();
    assert_eq!(blocked().await.0, these(&[]));
    // Replayed, it is where it was. What was begun before is settled first.
    let everything = Selection { tenant: String::new(), ids: None, filter: Filter::default() };
    let replay = Replay {
        selection: everything.clone(),
        targets: vec![orders()],
        duplicates: Duplicates::Keep,
        limit: 10,
    };
    assert_eq!(bench.store.replay_dead_letters(&replay).await.unwrap(), [(orders(), 1)]);
    for expected in ["a-2", "a-1", "a-3"] {
        let (next, rows) = taken(&bench.store, owner).await;
        assert_eq!(next, these(&[expected]));
        assert_eq!(settle(&bench.store, held_done(rows[expected], owner)).await, Settled::Yes);
    }
    // A discarded one blocks no longer; one that came later never blocked those before it.
    let mut again: Vec<Message> = (1..=3).map(|n| numbered("c", n)).collect();
    Arc::make_mut(&mut again[2].message).deliver_by = Some(bench.now() + SHORT);
    let keys: Vec<_> = again.iter().map(|message| row(message, 0)).collect();
    put(&bench.store, again).await;
    let (_, rows) = taken(&bench.store, owner).await;
    settle(&bench.store, held_done(rows["c-1"], owner)).await;
    bench.pass(LONGER).await;
    assert_eq!(bench.store.expire(10).await.unwrap(), [(orders(), 1)]);
    assert_eq!(blocked().await.0, these(&["c-2"]));
    settle(&bench.store, dead(keys[1], owner)).await;
    put(&bench.store, vec![numbered("c", 4)]).await;
    assert_eq!(blocked().await.0, these(&[]));
    assert_eq!(bench.store.discard_dead_letters(&everything, Claims::Keep, 10).await.unwrap(), 2);
    assert_eq!(blocked().await.0, these(&["c-4"]));
}

pub async fn a_schedule_holds_up_nothing_and_joins_when_it_is_due(bench: &Bench) {
    let at = bench.now() + SHORT;
    let scheduled = |n: usize, later_ms: u64| {
        let mut message = numbered("k", n);
        Arc::make_mut(&mut message.message).deliver_at = Some(at + Duration::from_millis(later_ms));
        message
    };
    // Published in another order than they are due in; those of one time keep the order of their publishing.
    put(&bench.store, vec![scheduled(1, 60), scheduled(2, 30), scheduled(3, 30), numbered("k", 4)]).await;
    put(&bench.store, vec![numbered("k", 5)]).await;
    let owner = token();
    let looked = look(&bench.store, 100, HOUR, owner).await;
    assert_eq!(ids(&looked), these(&["k-4"]));
    assert!(looked.next.is_some_and(|next| next <= SHORT + Duration::from_millis(60)), "{:?}", looked.next);
    let mut row = looked.taken[0].delivery.row;
    bench.pass(LONGER).await;
    // What is on its way is settled first, and what was published before they were due comes before them.
    assert!(taken(&bench.store, owner).await.0.is_empty());
    for expected in ["k-5", "k-2", "k-3", "k-1"] {
        assert_eq!(settle(&bench.store, held_done(row, owner)).await, Settled::Yes);
        let (next, rows) = taken(&bench.store, owner).await;
        assert_eq!(next, these(&[expected]));
        row = rows[expected];
    }
}

/// Whoever lost the first row of a key never lets a later one overtake it.
pub async fn a_lease_that_ended_is_taken_over_and_its_owner_is_fenced(bench: &Bench) {
    put(&bench.store, vec![numbered("k", 1), numbered("k", 2)]).await;
    let (late, owner) = (token(), token());
    let looked = look(&bench.store, 100, SHORT, late).await;
    let row = looked.taken[0].delivery.row;
    bench.pass(LONGER).await;
    let again = look(&bench.store, 100, HOUR, owner).await;
    assert_eq!((ids(&again), again.taken[0].takes), (these(&["k-1"]), 2));
    // It is on its way again, so not even an acknowledgement lets the next one through.
    for settlement in [held_done(row, late), retry(row, late, Duration::ZERO, Counted::Yes), dead(row, late)]
    {
        assert_eq!(settle(&bench.store, settlement).await, Settled::Fenced);
    }
    assert!(taken(&bench.store, token()).await.0.is_empty());
    // Once the second attempt is over, the first one's acknowledgement counts.
    settle(&bench.store, retry(row, owner, HOUR, Counted::Yes)).await;
    assert_eq!(settle(&bench.store, held_done(row, late)).await, Settled::Yes);
    assert_eq!(taken(&bench.store, token()).await.0, these(&["k-2"]));
}

pub async fn concurrent_takers_never_hold_two_of_a_key(bench: &Bench) {
    const KEYS: usize = 12;
    const EACH: usize = 15;
    let other = bench.another().await;
    // Published while they are taken, one request after the other per key.
    let publisher = {
        let store = Arc::clone(&bench.store);
        tokio::spawn(async move {
            for n in 0..EACH {
                put(&store, (0..KEYS).map(|key| numbered(&format!("k{key}"), n)).collect()).await;
            }
        })
    };
    let held: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let seen: Arc<Mutex<BTreeMap<String, Vec<usize>>>> = Arc::default();
    let mut takers = Vec::new();
    for n in 0..6 {
        let store = Arc::clone(if n % 2 == 0 { &bench.store } else { &other });
        let (held, seen) = (Arc::clone(&held), Arc::clone(&seen));
        takers.push(tokio::spawn(async move {
            loop {
                if seen.lock().unwrap().values().map(Vec::len).sum::<usize>() == KEYS * EACH {
                    return;
                }
                let token = token();
                let looked = look(&store, 3, HOUR, token).await;
                for taken in &looked.taken {
                    let key = taken.delivery.message.partition_key.clone().unwrap();
                    assert!(held.lock().unwrap().insert(key.clone()), "two of {key} are on their way");
                    let number = taken.delivery.message.id.rsplit('-').next().unwrap().parse().unwrap();
                    seen.lock().unwrap().entry(key).or_default().push(number);
                }
                tokio::task::yield_now().await;
                for taken in looked.taken {
                    let key = taken.delivery.message.partition_key.clone().unwrap();
                    held.lock().unwrap().remove(&key);
                    assert_eq!(settle(&store, held_done(taken.delivery.row, token)).await, Settled::Yes);
                }
            }
        }));
    }
    tokio::time::timeout(Duration::from_secs(60), async {
        publisher.await.unwrap();
        for taker in takers {
            taker.await.unwrap();
        }
    })
    .await
    .expect("all is taken");
    other.close().await;
    for (key, numbers) in seen.lock().unwrap().iter() {
        assert_eq!(*numbers, (0..EACH).collect::<Vec<_>>(), "{key}");
    }
}

pub async fn messages_without_a_key_are_one_key_and_tenants_have_their_own(bench: &Bench) {
    let mut foreign = numbered("", 9);
    Arc::make_mut(&mut foreign.message).tenant = "acme".into();
    put(&bench.store, vec![numbered("", 1), numbered("", 2), in_order(foreign), numbered("a", 1)]).await;
    assert_eq!(taken(&bench.store, token()).await.0, these(&["-1", "-9", "a-1"]));
    assert!(taken(&bench.store, token()).await.0.is_empty());
}

pub async fn many_keys_are_looked_at_in_steps(bench: &Bench) {
    const KEYS: usize = 45;
    put(&bench.store, (0..KEYS).map(|n| numbered(&format!("k{n}"), 1)).collect()).await;
    let (mut after, mut seen, mut steps) = (None, BTreeSet::new(), 0);
    loop {
        let looked = look_from(&bench.store, 7, HOUR, token(), after, OnDeadLetter::Continue).await;
        let some = ids(&looked);
        assert!(some.len() <= 7 && seen.is_disjoint(&some));
        seen.extend(some);
        steps += 1;
        after = looked.resume;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((seen.len(), steps), (KEYS, KEYS.div_ceil(7)));
}

pub async fn rows_from_before_the_order_come_first_in_it(bench: &Bench) {
    let plain = |key: &str, n: usize| {
        let mut message = numbered(key, n);
        message.targets[0].order = None;
        message
    };
    put(&bench.store, vec![plain("a", 1), plain("b", 1)]).await;
    put(&bench.store, vec![plain("a", 2)]).await;
    put(&bench.store, vec![numbered("a", 3), numbered("b", 2)]).await;
    // Another target's rows are none of ours.
    put(&bench.store, vec![to(message(), &[Target::destination("other")])]).await;
    for expected in [2, 1, 0] {
        assert_eq!(bench.store.adopt(&orders(), 2).await.unwrap(), expected);
    }
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    loop {
        let owner = token();
        let looked = look(&bench.store, 100, HOUR, owner).await;
        if looked.taken.is_empty() {
            break;
        }
        for taken in looked.taken {
            let message = &taken.delivery.message;
            seen.entry(message.partition_key.clone().unwrap()).or_default().push(message.id.clone());
            settle(&bench.store, held_done(taken.delivery.row, owner)).await;
        }
    }
    assert_eq!(seen["a"], ["a-1", "a-2", "a-3"]);
    assert_eq!(seen["b"], ["b-1", "b-2"]);
}

pub async fn what_expires_holds_up_nothing(bench: &Bench) {
    let mut late = numbered("k", 1);
    Arc::make_mut(&mut late.message).deliver_by = Some(bench.now() + SHORT);
    put(&bench.store, vec![late, numbered("k", 2)]).await;
    let owner = token();
    let (_, rows) = taken(&bench.store, owner).await;
    settle(&bench.store, retry(rows["k-1"], owner, HOUR, Counted::Yes)).await;
    bench.pass(LONGER).await;
    assert_eq!(bench.store.expire(10).await.unwrap(), [(orders(), 1)]);
    assert_eq!(taken(&bench.store, owner).await.0, these(&["k-2"]));
}

pub async fn what_a_message_waits_for_is_told(bench: &Bench) {
    put(&bench.store, vec![numbered("k", 1), numbered("k", 2), numbered("k", 3)]).await;
    let ahead = async |id: &str| {
        let status = bench.store.message("", id).await.unwrap().unwrap();
        status.targets[0].ahead.clone()
    };
    let waits_for = |id: &str, state| vec![status::Ahead { message_id: id.into(), state, dead_letter: None }];
    assert_eq!(ahead("k-1").await, []);
    assert_eq!(ahead("k-3").await, waits_for("k-1", MessageState::Pending));
    let owner = token();
    let (_, rows) = taken(&bench.store, owner).await;
    settle(&bench.store, retry(rows["k-1"], owner, Duration::ZERO, Counted::Yes)).await;
    assert_eq!(ahead("k-2").await, waits_for("k-1", MessageState::Retrying));
    let (_, rows) = taken(&bench.store, owner).await;
    settle(&bench.store, dead(rows["k-1"], owner)).await;
    let dead_letter = bench.dead_letters().await[0].id;
    let dead_one =
        status::Ahead { message_id: "k-1".into(), state: MessageState::Dead, dead_letter: Some(dead_letter) };
    assert_eq!(ahead("k-2").await, vec![dead_one.clone()]);
    assert_eq!(ahead("k-3").await, [waits_for("k-2", MessageState::Pending), vec![dead_one]].concat());
}
