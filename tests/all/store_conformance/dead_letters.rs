//! Dead letters: found, mended, moved back, discarded.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate::domain::delivery::{DeadKind, Target};
use oncegate::store::accept::{Message, MessageState};
use oncegate::store::dead_letters::{
    Claims, Cursor, DeadLetter, Duplicates, Edit, Filter, Group, Page, Query, Replay, Selection, Why,
};
use oncegate::store::deliveries::{Counted, DeadNote, Settle, Settled, Settlement};
use oncegate::store::status::MessageQuery;
use uuid::Uuid;

use super::backends::Bench;
use super::build::*;

const MIB: u64 = 1 << 20;

/// Publishes these and gives up on every delivery of theirs, for this reason.
async fn bury_as(bench: &Bench, messages: Vec<Message>, kind: DeadKind) {
    let rows: Vec<_> = messages
        .iter()
        .flat_map(|message| message.targets.iter().enumerate().map(move |(n, new)| (message, n, new)))
        .map(|(message, n, new)| (row(message, i16::try_from(n).unwrap()), new.target.clone()))
        .collect();
    put(&bench.store, messages).await;
    let owner = token();
    let targets: HashSet<Target> = rows.iter().map(|(_, target)| target.clone()).collect();
    for target in targets {
        take_as(&bench.store, &target, 1_000, HOUR, owner).await;
    }
    let error = DeadNote { kind, text: "it said no".into() };
    let settle = |row| Settlement {
        row,
        token: owner,
        outcome: Settle::Dead { error: error.clone(), counted: Counted::Yes },
    };
    let batch: Vec<_> = rows.into_iter().map(|(row, _)| settle(row)).collect();
    let settled = bench.store.settle(&batch).await.unwrap();
    assert!(settled.iter().all(|settled| *settled == Settled::Yes));
}

async fn bury(bench: &Bench, messages: Vec<Message>) {
    bury_as(bench, messages, DeadKind::Refused).await;
}

fn named(id: &str) -> Message {
    message_with(|message| message.id = id.into())
}

fn query() -> Query {
    Query { tenant: String::new(), filter: Filter::default(), limit: 100, body_bytes: 8 * MIB, after: None }
}

fn all() -> Selection {
    Selection { tenant: String::new(), ids: None, filter: Filter::default() }
}

fn replay_of(selection: Selection) -> Replay {
    Replay { selection, targets: vec![orders()], duplicates: Duplicates::Keep, limit: 1_000 }
}

async fn page(bench: &Bench, limit: u32, after: Option<Cursor>) -> Page {
    bench.store.dead_letters(&Query { limit, after, ..query() }).await.unwrap()
}

async fn listed(bench: &Bench) -> Vec<DeadLetter> {
    page(bench, 1_000, None).await.items
}

fn ids(items: &[DeadLetter]) -> Vec<String> {
    items.iter().map(|item| item.message.id.clone()).collect()
}

/// Moves what there is back, all of it.
async fn replayed(bench: &Bench, replay: &Replay) -> u64 {
    let moved = bench.store.replay_dead_letters(replay).await.unwrap();
    moved.into_iter().map(|(_, number)| number).sum()
}

pub async fn they_are_listed_oldest_first_a_page_at_a_time(bench: &Bench) {
    assert!(listed(bench).await.is_empty());
    for id in ["a", "b", "c", "d", "e"] {
        bury(bench, vec![named(id)]).await;
        bench.pass(Duration::from_millis(2)).await;
    }
    let mut pages = Vec::new();
    let mut after = None;
    loop {
        let page = page(bench, 2, after).await;
        pages.push(ids(&page.items));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(pages, [vec!["a", "b"], vec!["c", "d"], vec!["e"]]);
    // A page that is just full is the last one if nothing is behind it.
    assert!(page(bench, 5, None).await.next.is_none());
    let one = &listed(bench).await[0];
    assert_eq!(
        (one.attempts, one.error_kind.as_str(), one.error_text.as_str()),
        (1, "Refused", "it said no")
    );
    assert_eq!(one.target, orders());
    let same = bench.store.dead_letter("", one.id).await.unwrap().unwrap();
    assert_eq!((&same.message, same.failed_at), (&one.message, one.failed_at));
    assert!(bench.store.dead_letter("", Uuid::nil()).await.unwrap().is_none());
}

/// wolverine 6.29: pages 0 and 1 were the same; the sort key was often null.
pub async fn pages_neither_repeat_nor_skip_while_rows_come_and_go(bench: &Bench) {
    // Many of the same moment: only the unique half of the key tells them apart.
    bury(bench, (0..60).map(|n| named(&format!("old-{n}"))).collect()).await;
    let before: HashSet<String> = ids(&listed(bench).await).into_iter().collect();
    let (mut seen, mut gone, mut after) = (Vec::new(), HashSet::new(), None);
    for round in 0.. {
        let page = page(bench, 7, after).await;
        seen.extend(ids(&page.items));
        // Behind us one goes, ahead of us one comes, and one that was not seen yet goes.
        let shown = Selection { ids: Some(vec![page.items[0].id]), ..all() };
        bench.store.discard_dead_letters(&shown, Claims::Keep, 1).await.unwrap();
        bury(bench, vec![named(&format!("new-{round}"))]).await;
        let ahead =
            bench.store.dead_letters(&Query { limit: 50, after: page.next, ..query() }).await.unwrap();
        if let Some(unseen) = ahead.items.iter().find(|item| !seen.contains(&item.message.id)) {
            let unseen_ids = Selection { ids: Some(vec![unseen.id]), ..all() };
            bench.store.replay_dead_letters(&replay_of(unseen_ids)).await.unwrap();
            gone.insert(unseen.message.id.clone());
        }
        after = page.next;
        if after.is_none() || round > 40 {
            break;
        }
    }
    let once: HashSet<String> = seen.iter().cloned().collect();
    assert_eq!(once.len(), seen.len(), "none comes twice");
    let missed: Vec<_> = before.iter().filter(|id| !once.contains(*id) && !gone.contains(*id)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

pub async fn a_page_ends_before_its_bodies_are_too_large(bench: &Bench) {
    let large = |_| message_with(|message| message.body = Bytes::from(vec![b'x'; 1_000]));
    bury(bench, (0..5).map(large).collect()).await;
    let query = Query { body_bytes: 2_500, ..query() };
    let first = bench.store.dead_letters(&query).await.unwrap();
    assert_eq!(first.items.len(), 3);
    let second = bench.store.dead_letters(&Query { after: first.next, ..query.clone() }).await.unwrap();
    assert_eq!((second.items.len(), second.next), (2, None));
    // One is always shown, however large.
    let tiny = bench.store.dead_letters(&Query { body_bytes: 1, ..query }).await.unwrap();
    assert_eq!((tiny.items.len(), tiny.next.is_some()), (1, true));
}

pub async fn they_are_found_by_what_they_are(bench: &Bench) {
    let other = to(
        message_with(|message| (message.id, message.kind) = ("b".into(), "other".into())),
        &[Target::destination("x")],
    );
    bury(bench, vec![named("a")]).await;
    bench.pass(Duration::from_millis(5)).await;
    bury_as(bench, vec![other], DeadKind::TooLarge).await;
    bury(bench, vec![to(named("c"), &[Target::handler("x")])]).await;
    let items = listed(bench).await;
    let find = async |filter: Filter| {
        let page = bench.store.dead_letters(&Query { filter: filter.clone(), ..query() }).await.unwrap();
        let selection = Selection { filter, ..all() };
        let count = bench.store.count_dead_letters(&selection).await.unwrap();
        assert_eq!(count, page.items.len() as u64);
        ids(&page.items)
    };
    let none = Filter::default;
    assert_eq!(find(none()).await, ["a", "b", "c"]);
    assert_eq!(find(Filter { kind: Some("other".into()), ..none() }).await, ["b"]);
    assert_eq!(find(Filter { target: Some(Target::destination("x")), ..none() }).await, ["b"]);
    assert_eq!(find(Filter { target: Some(Target::handler("x")), ..none() }).await, ["c"]);
    assert_eq!(find(Filter { error_kind: Some(DeadKind::TooLarge), ..none() }).await, ["b"]);
    let second = items[1].failed_at;
    assert_eq!(find(Filter { from: Some(second), ..none() }).await, ["b", "c"]);
    assert_eq!(find(Filter { until: Some(second), ..none() }).await, ["a"]);
    let both = Filter { kind: Some("other".into()), error_kind: Some(DeadKind::Refused), ..none() };
    assert!(find(both).await.is_empty());
    let by_id = Selection { ids: Some(vec![items[0].id, Uuid::nil(), items[0].id]), ..all() };
    assert_eq!(bench.store.count_dead_letters(&by_id).await.unwrap(), 1);
    let none_at_all = Selection { ids: Some(Vec::new()), ..all() };
    assert_eq!(bench.store.count_dead_letters(&none_at_all).await.unwrap(), 0);
}

pub async fn those_of_another_tenant_are_not_there(bench: &Bench) {
    bury(bench, vec![message_with(|message| message.tenant = "acme".into())]).await;
    assert!(listed(bench).await.is_empty());
    let acme = Query { tenant: "acme".into(), ..query() };
    let id = bench.store.dead_letters(&acme).await.unwrap().items[0].id;
    let theirs = Selection { ids: Some(vec![id]), ..all() };
    assert!(bench.store.dead_letter("", id).await.unwrap().is_none());
    assert!(bench.store.edit_dead_letter("", id, &Edit::default()).await.unwrap().is_none());
    assert_eq!(replayed(bench, &replay_of(theirs.clone())).await, 0);
    assert!(bench.store.hindrances(&replay_of(theirs.clone())).await.unwrap().is_empty());
    assert_eq!(bench.store.discard_dead_letters(&theirs, Claims::Release, 10).await.unwrap(), 0);
    assert!(bench.store.summarise_dead_letters("").await.unwrap().is_empty());
    assert_eq!(bench.store.summarise_dead_letters("acme").await.unwrap().len(), 1);
}

pub async fn one_is_edited_and_keeps_the_rest(bench: &Bench) {
    let original = message_with(|message| {
        message.correlation_id = Some("c".into());
        message.envelope.source = Some("/shop".into());
        message.envelope.headers = BTreeMap::from([("x-old".into(), "1".into())]);
    });
    bury(bench, vec![original.clone()]).await;
    let id = listed(bench).await[0].id;
    let edit = Edit { body: Some(Bytes::from_static(b"mended")), ..Edit::default() };
    let first = bench.store.edit_dead_letter("", id, &edit).await.unwrap().unwrap();
    assert_eq!(first.message.body, "mended");
    assert_eq!(first.message.envelope, original.message.envelope);
    let edit = Edit {
        body: None,
        content_type: Some("text/plain".into()),
        headers: Some(BTreeMap::from([("x-new".into(), "2".into())])),
    };
    bench.store.edit_dead_letter("", id, &edit).await.unwrap().unwrap();
    let mut expected = original.message.as_ref().clone();
    expected.body = Bytes::from_static(b"mended");
    expected.envelope.content_type = Some("text/plain".into());
    expected.envelope.headers = BTreeMap::from([("x-new".into(), "2".into())]);
    let stored = bench.store.dead_letter("", id).await.unwrap().unwrap();
    assert_eq!(*stored.message, expected);
    assert_eq!(replayed(bench, &replay_of(all())).await, 1);
    assert_eq!(*take_one(&bench.store).await.0.delivery.message, expected);
}

pub async fn a_replay_moves_the_row_whole_and_starts_anew(bench: &Bench) {
    let full = message_with(|message| {
        message.id = "m-1".into();
        message.deduplication_id = Some("d".into());
        message.partition_key = Some("p".into());
        message.correlation_id = Some("c".into());
        message.deliver_by = Some(message.accepted_at + HOUR);
        message.envelope.subject = Some("s".into());
        message.envelope.traceparent = Some("00-a".into());
    });
    let full = claiming(full, "d", HOUR);
    bury(bench, vec![full.clone(), message()]).await;
    assert_eq!(replayed(bench, &replay_of(all())).await, 2);
    assert_eq!((bench.count("dead_letters").await, bench.count("deliveries").await), (0, 2));
    assert_eq!(bench.store.due_in(&[orders()]).await.unwrap(), [Some(Duration::ZERO)]);
    let taken = take(&bench.store, &orders(), 10, HOUR).await;
    let same = taken.iter().find(|taken| taken.delivery.message.id == "m-1").unwrap();
    let mut expected = full.message.as_ref().clone();
    expected.deliver_by = None;
    assert_eq!(*same.delivery.message, expected);
    assert_eq!((same.delivery.attempts, same.takes, same.expired), (0, 1, false));
    assert_ne!(same.delivery.row, row(&full, 0), "a key of its own");
}

pub async fn a_replay_has_the_order_of_first_acceptance(bench: &Bench) {
    let start = bench.now();
    let mut buried = Vec::new();
    for n in [4_u32, 0, 3, 1, 2, 5] {
        let message = message_with(|message| {
            message.id = n.to_string();
            message.accepted_at = start + Duration::from_secs(n.into());
        });
        buried.push(message);
    }
    // They fail in another order.
    for message in buried {
        bury(bench, vec![message]).await;
    }
    let few = Replay { limit: 4, ..replay_of(all()) };
    assert_eq!((replayed(bench, &few).await, replayed(bench, &few).await), (4, 2));
    let mut order = Vec::new();
    while let Some(taken) = take(&bench.store, &orders(), 1, HOUR).await.pop() {
        order.push(taken.delivery.message.id.clone());
    }
    assert_eq!(order, ["0", "1", "2", "3", "4", "5"]);
}

pub async fn a_replay_is_bounded_and_says_what_remains(bench: &Bench) {
    bury(bench, (0..25).map(|_| message()).collect()).await;
    let replay = Replay { limit: 10, ..replay_of(all()) };
    let mut counts = Vec::new();
    for _ in 0..4 {
        let moved = replayed(bench, &replay).await;
        counts.push((moved, bench.store.count_replayable(&replay).await.unwrap()));
    }
    assert_eq!(counts, [(10, 15), (10, 5), (5, 0), (0, 0)]);
    assert_eq!(bench.count("deliveries").await, 25);
}

/// outpost#670: a manual replay was swallowed by deduplication.
pub async fn a_replay_is_no_duplicate_of_its_own_first_try(bench: &Bench) {
    let targets = [orders(), Target::destination("other")];
    bury(bench, vec![to(work("w"), &targets)]).await;
    let replay = Replay { targets: targets.to_vec(), ..replay_of(all()) };
    assert!(bench.store.hindrances(&replay).await.unwrap().is_empty());
    // One target's first, and then, when that is long under way, the other's.
    let first = Selection { filter: Filter { target: Some(orders()), ..Filter::default() }, ..all() };
    assert_eq!(replayed(bench, &replay_of(first)).await, 1);
    assert_eq!(replayed(bench, &replay).await, 1);
    // The claim stands all the while: the same work published again is still a duplicate.
    let outcome = stored(accept(&bench.store, request(vec![work("w")])).await.unwrap());
    assert_eq!(duplicate(&outcome[0]).state, MessageState::Pending);
}

pub async fn work_that_another_message_took_is_a_duplicate_unless_forced(bench: &Bench) {
    bury(bench, vec![claiming(named("first"), "w", SHORT)]).await;
    bench.pass(LONGER).await;
    // The first one's window is over: another message does the work.
    put(&bench.store, vec![claiming(named("second"), "w", HOUR)]).await;
    let replay = replay_of(all());
    assert_eq!(replayed(bench, &replay).await, 0);
    assert_eq!(bench.store.count_replayable(&replay).await.unwrap(), 0);
    let hindered = bench.store.hindrances(&replay).await.unwrap();
    assert_eq!((hindered.len(), &hindered[0].why), (1, &Why::Duplicate));
    let forced = Replay { duplicates: Duplicates::Replay, ..replay };
    assert!(bench.store.hindrances(&forced).await.unwrap().is_empty());
    assert_eq!(bench.store.count_replayable(&forced).await.unwrap(), 1);
    assert_eq!(replayed(bench, &forced).await, 1);
    let taken = take(&bench.store, &orders(), 10, HOUR).await;
    let mut forced: Vec<_> =
        taken.iter().map(|taken| (taken.delivery.message.id.as_str(), taken.forced)).collect();
    forced.sort_unstable();
    assert_eq!(forced, [("first", true), ("second", false)]);
    let claim = bench.store.claim_of(work_key("w")).await.unwrap().unwrap();
    assert_eq!(claim.message_id.as_deref(), Some("second"), "the claim is the other's still");
}

pub async fn what_has_no_target_any_more_stays(bench: &Bench) {
    let gone = [Target::destination("gone"), Target::handler("orders")];
    bury(bench, vec![named("a"), to(named("b"), &gone)]).await;
    let replay = replay_of(all());
    let hindered = bench.store.hindrances(&replay).await.unwrap();
    let mut targets: Vec<_> = hindered.iter().map(|one| (one.target.clone(), one.why.clone())).collect();
    targets.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(targets, gone.map(|target| (target, Why::TargetGone)));
    let few = Replay { limit: 1, ..replay.clone() };
    assert_eq!(bench.store.hindrances(&few).await.unwrap().len(), 1);
    assert_eq!(bench.store.replay_dead_letters(&replay).await.unwrap(), [(orders(), 1)]);
    assert_eq!(bench.count("dead_letters").await, 2);
}

/// A late acknowledgement of a row that was given up on would take its replay with it.
pub async fn whoever_still_settles_the_old_row_settles_nothing(bench: &Bench) {
    let message = message();
    put(&bench.store, vec![message.clone()]).await;
    let (taken, owner) = take_one(&bench.store).await;
    let old = taken.delivery.row;
    assert_eq!(settle(&bench.store, dead(old, owner)).await, Settled::Yes);
    assert_eq!(replayed(bench, &replay_of(all())).await, 1);
    assert_eq!(settle(&bench.store, done(old)).await, Settled::Fenced);
    assert_eq!(settle(&bench.store, dead(old, owner)).await, Settled::Fenced);
    assert_eq!(bench.store.give_back(&[(old, owner)]).await.unwrap(), 0);
    assert_eq!(bench.count("deliveries").await, 1);
}

pub async fn a_message_may_die_and_be_replayed_many_times(bench: &Bench) {
    let original = to(work("w"), &[Target::destination("kept"), orders()]);
    put(&bench.store, vec![original.clone()]).await;
    let mut keys = HashSet::new();
    for _ in 0..40 {
        let (taken, owner) = take_one(&bench.store).await;
        keys.insert(taken.delivery.row.target_no);
        assert_eq!((taken.delivery.message.id.as_str(), taken.delivery.attempts), (&*original.message.id, 0));
        assert_eq!(settle(&bench.store, dead(taken.delivery.row, owner)).await, Settled::Yes);
        assert_eq!(replayed(bench, &replay_of(all())).await, 1);
    }
    assert_eq!(keys.len(), 32, "the first, and 31 in turn");
    let (taken, _) = take_one(&bench.store).await;
    assert_eq!(settle(&bench.store, done(taken.delivery.row)).await, Settled::Yes);
    let status = bench.store.message("", &original.message.id).await.unwrap().unwrap();
    let states: Vec<_> = status.targets.iter().map(|one| (&*one.target.name, one.state)).collect();
    assert_eq!(states, [("kept", MessageState::Pending), ("orders", MessageState::Sent)]);
}

/// wolverine 6.29: a replay copied, then deleted.
pub async fn replays_at_once_move_each_row_once(bench: &Bench) {
    bury(bench, (0..300).map(|_| message()).collect()).await;
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let store = Arc::clone(&bench.store);
        tasks.push(tokio::spawn(async move {
            let replay = Replay { limit: 20, ..replay_of(all()) };
            let mut total = 0;
            loop {
                let moved: u64 =
                    store.replay_dead_letters(&replay).await.unwrap().iter().map(|(_, number)| number).sum();
                total += moved;
                if moved == 0 && store.count_replayable(&replay).await.unwrap() == 0 {
                    return total;
                }
            }
        }));
    }
    let mut total = 0;
    for task in tasks {
        total += task.await.unwrap();
    }
    assert_eq!(total, 300);
    let taken = take(&bench.store, &orders(), 1_000, HOUR).await;
    let messages: HashSet<String> = taken.iter().map(|taken| taken.delivery.message.id.clone()).collect();
    assert_eq!((taken.len(), messages.len()), (300, 300));
}

pub async fn a_discard_frees_its_own_claim_only(bench: &Bench) {
    bury(bench, vec![work("kept"), work("freed"), claiming(named("old"), "taken over", SHORT)]).await;
    bench.pass(LONGER).await;
    put(&bench.store, vec![work("taken over")]).await;
    let items = listed(bench).await;
    let is_kept = |item: &&DeadLetter| item.message.deduplication_id.as_deref() == Some("kept");
    let kept = Selection { ids: Some(vec![items.iter().find(is_kept).unwrap().id]), ..all() };
    assert_eq!(bench.store.discard_dead_letters(&kept, Claims::Keep, 10).await.unwrap(), 1);
    assert_eq!(bench.store.discard_dead_letters(&all(), Claims::Release, 1).await.unwrap(), 1);
    assert_eq!(bench.store.discard_dead_letters(&all(), Claims::Release, 10).await.unwrap(), 1);
    assert_eq!(bench.store.discard_dead_letters(&all(), Claims::Release, 10).await.unwrap(), 0);
    let stands = async |id: &str| bench.store.claim_of(work_key(id)).await.unwrap().is_some();
    assert!(stands("kept").await && !stands("freed").await && stands("taken over").await);
}

pub async fn they_are_summarised(bench: &Bench) {
    bury(bench, vec![message()]).await;
    bench.pass(Duration::from_millis(5)).await;
    bury(bench, vec![message(), to(message(), &[Target::handler("h")])]).await;
    bury_as(bench, vec![message_with(|message| message.kind = "a".into())], DeadKind::Expired).await;
    let items = listed(bench).await;
    let groups = bench.store.summarise_dead_letters("").await.unwrap();
    let what: Vec<_> = groups
        .iter()
        .map(|group| (group.kind.as_str(), group.target.clone(), group.error_kind.as_str(), group.count))
        .collect();
    let kind = "order.created";
    let expected = [
        ("a", orders(), "Expired", 1),
        (kind, orders(), "Refused", 2),
        (kind, Target::handler("h"), "Refused", 1),
    ];
    assert_eq!(what, expected);
    let Group { oldest_at, newest_at, .. } = &groups[1];
    assert_eq!((*oldest_at, *newest_at), (items[0].failed_at, items[1].failed_at));
}

pub async fn messages_with_dead_letters_are_listed(bench: &Bench) {
    let two = to(named("both"), &[orders(), Target::destination("other")]);
    bury(bench, vec![named("a"), two, message_with(|message| message.kind = "other".into())]).await;
    put(&bench.store, vec![named("alive")]).await;
    let dead = MessageQuery { state: Some(MessageState::Dead), limit: 2, ..MessageQuery::default() };
    let first = bench.store.messages(&dead).await.unwrap();
    let cursor = first.next;
    assert!(cursor.is_some());
    let second = bench.store.messages(&MessageQuery { cursor, ..dead.clone() }).await.unwrap();
    assert!(second.next.is_none());
    let found: Vec<_> = first.items.iter().chain(&second.items).collect();
    assert_eq!(found.len(), 3);
    assert!(
        found
            .iter()
            .flat_map(|status| &status.targets)
            .all(|one| one.state == MessageState::Dead && one.error_kind.as_deref() == Some("Refused"))
    );
    let kind = Some("other".into());
    assert_eq!(bench.store.messages(&MessageQuery { kind, ..dead }).await.unwrap().items.len(), 1);
}
