//! Where messages stand, finding them, cancelling them; pauses.

use std::time::Duration;

use oncegate::domain;
use oncegate::domain::delivery::Target;
use oncegate::store::accept::{Message, MessageState};
use oncegate::store::deliveries::Counted;
use oncegate::store::look::Seen;
use oncegate::store::status::{Cancelled, MessageQuery, Pause, Paused, Retention};

use super::backends::Bench;
use super::build::*;

fn scheduled(id: &str) -> Message {
    claiming(
        message_with(|message| {
            message.deliver_at = Some(message.accepted_at + HOUR);
            message.deduplication_id = Some(id.into());
        }),
        id,
        HOUR,
    )
}

pub async fn a_message_is_followed_through_its_life(bench: &Bench) {
    let state = async |id: &str| {
        let status = bench.store.message("", id).await.unwrap().unwrap();
        assert_eq!((status.id.as_str(), status.kind.as_str()), (id, "order.created"));
        assert_eq!(status.deduplication_id.as_deref(), Some("w"));
        let target = &status.targets[0];
        (target.state, target.attempts)
    };
    let at = bench.now() + SHORT;
    let mut message = scheduled("w");
    message = Message {
        message: message_with(|new| {
            *new = oncegate::domain::Message { deliver_at: Some(at), ..(*message.message).clone() }
        })
        .message,
        ..message
    };
    let id = message.message.id.clone();
    put(&bench.store, vec![message.clone()]).await;
    assert_eq!(state(&id).await, (MessageState::Scheduled, 0));
    bench.pass(LONGER).await;
    let (_, owner) = take_one(&bench.store).await;
    assert_eq!(state(&id).await, (MessageState::Pending, 0));
    settle(&bench.store, retry(row(&message, 0), owner, Duration::ZERO, Counted::Yes)).await;
    assert_eq!(state(&id).await, (MessageState::Retrying, 1));
    take_one(&bench.store).await;
    assert_eq!(state(&id).await, (MessageState::Retrying, 1));
    settle(&bench.store, done(row(&message, 0))).await;
    assert_eq!(state(&id).await, (MessageState::Sent, 2));
    assert!(bench.store.message("", "unknown").await.unwrap().is_none());
}

pub async fn a_message_is_told_per_target(bench: &Bench) {
    let targets = [Target::destination("orders"), Target::destination("b"), Target::handler("h")];
    let message = to(message_with(|message| message.id = "client-1".into()), &targets);
    put(&bench.store, vec![message.clone()]).await;
    let (_, owner) = take_one(&bench.store).await;
    let batch = [dead(row(&message, 0), owner), done(row(&message, 2))];
    bench.store.settle(&batch).await.unwrap();
    let status = bench.store.message("", "client-1").await.unwrap().unwrap();
    let told: Vec<_> = status.targets.iter().map(|target| (target.target.clone(), target.state)).collect();
    let states = [MessageState::Dead, MessageState::Pending, MessageState::Handled];
    assert_eq!(told, targets.into_iter().zip(states).collect::<Vec<_>>());
}

/// C-Address-Onboarding-Bridge#379: another tenant's was returned.
pub async fn what_belongs_to_another_tenant_is_not_there(bench: &Bench) {
    let of = |tenant: &str| {
        let tenant = tenant.to_owned();
        let mut message = scheduled(&tenant);
        let mut inner = (*message.message).clone();
        (inner.id, inner.tenant) = ("same".into(), tenant);
        message.message = inner.into();
        message
    };
    put(&bench.store, vec![of("acme"), of("other")]).await;
    for tenant in ["acme", "other"] {
        let status = bench.store.message(tenant, "same").await.unwrap().unwrap();
        assert_eq!((status.targets.len(), status.deduplication_id.as_deref()), (1, Some(tenant)));
    }
    assert!(bench.store.message("", "same").await.unwrap().is_none());
    assert_eq!(bench.store.cancel("", "same").await.unwrap(), Cancelled::NotFound);
    let query = MessageQuery { tenant: "acme".into(), limit: 10, ..MessageQuery::default() };
    assert_eq!(bench.store.messages(&query).await.unwrap().items.len(), 1);
    assert_eq!(bench.store.cancel("acme", "same").await.unwrap(), Cancelled::Yes);
    assert!(bench.store.message("other", "same").await.unwrap().is_some());
}

pub async fn messages_are_found_by_what_they_are(bench: &Bench) {
    let find = async |change: &dyn Fn(&mut MessageQuery)| {
        let mut query = MessageQuery { limit: 10, ..MessageQuery::default() };
        change(&mut query);
        let page = bench.store.messages(&query).await.unwrap();
        assert!(page.next.is_none());
        // Ordered by row id, which says nothing within a millisecond.
        let mut ids: Vec<String> = page.items.into_iter().map(|status| status.id).collect();
        ids.sort_unstable();
        ids
    };
    let named = |id: &str, change: &dyn Fn(&mut oncegate::domain::Message)| {
        message_with(|message| {
            message.id = id.into();
            change(message);
        })
    };
    let retrying = to(named("a", &|m| m.kind = "other".into()), &[Target::destination("x")]);
    put(&bench.store, vec![retrying.clone()]).await;
    put(&bench.store, vec![named("b", &|m| m.deduplication_id = Some("d".into()))]).await;
    put(&bench.store, vec![named("c", &|m| m.correlation_id = Some("r".into()))]).await;
    put(&bench.store, vec![named("d", &|m| m.deliver_at = Some(m.accepted_at + HOUR))]).await;
    put(&bench.store, vec![named("e", &|m| m.correlation_id = Some("r".into()))]).await;
    let gone = named("f", &|m| m.correlation_id = Some("r".into()));
    put(&bench.store, vec![gone.clone()]).await;
    settle(&bench.store, done(row(&gone, 0))).await;
    let owner = token();
    take_as(&bench.store, &Target::destination("x"), 1, HOUR, owner).await;
    settle(&bench.store, retry(row(&retrying, 0), owner, HOUR, Counted::Yes)).await;

    assert_eq!(find(&|_| {}).await, ["a", "b", "c", "d", "e"]);
    assert_eq!(find(&|q| q.kind = Some("other".into())).await, ["a"]);
    assert_eq!(find(&|q| q.deduplication_id = Some("d".into())).await, ["b"]);
    assert_eq!(find(&|q| q.correlation_id = Some("r".into())).await, ["c", "e"]);
    assert_eq!(find(&|q| q.state = Some(MessageState::Scheduled)).await, ["d"]);
    assert_eq!(find(&|q| q.state = Some(MessageState::Retrying)).await, ["a"]);
    assert_eq!(find(&|q| q.state = Some(MessageState::Pending)).await, ["b", "c", "e"]);
    assert_eq!(find(&|q| q.state = Some(MessageState::Sent)).await, ["f"]);
    assert!(find(&|q| q.correlation_id = Some("R".into())).await.is_empty());
    assert!(
        find(&|q| {
            q.correlation_id = Some("r".into());
            q.state = Some(MessageState::Scheduled);
        })
        .await
        .is_empty()
    );
}

pub async fn what_was_delivered_is_found_by_its_receipts(bench: &Bench) {
    let [out, work] = [Target::destination("out"), Target::handler("work")];
    let mut messages: Vec<Message> = (0..7)
        .map(|n| {
            let message = message_with(|message| {
                message.id = format!("m{n}");
                message.kind = if n % 2 == 0 { "even".into() } else { "odd".into() };
                message.deduplication_id = Some(format!("d{n}"));
                message.correlation_id = Some(format!("c{}", n / 3));
            });
            to(message, &[out.clone(), work.clone()])
        })
        .collect();
    messages.sort_by_key(|message| message.row_id);
    let ids = |messages: &[Message]| messages.iter().map(|m| m.message.id.clone()).collect::<Vec<_>>();
    put(&bench.store, messages.clone()).await;
    put(&bench.store, vec![message_with(|message| message.id = "waits".into())]).await;
    let foreign = message_with(|message| {
        message.id = "foreign".into();
        message.tenant = "acme".into();
    });
    put(&bench.store, vec![foreign.clone()]).await;
    // Of the first five the destination is done, of the last four the handler.
    let mut batch: Vec<_> = messages[..5].iter().map(|message| done(row(message, 0))).collect();
    batch.extend(messages[3..].iter().map(|message| done(row(message, 1))));
    batch.push(done(row(&foreign, 0)));
    bench.store.settle(&batch).await.unwrap();
    let find = async |state: MessageState, change: &(dyn Fn(&mut MessageQuery) + Sync)| {
        let mut query = MessageQuery { limit: 2, state: Some(state), ..MessageQuery::default() };
        change(&mut query);
        let mut found = Vec::new();
        loop {
            let page = bench.store.messages(&query).await.unwrap();
            assert!(
                page.items.len() <= 2
                    && page.items.iter().all(|item| item.id == "foreign" || item.targets.len() == 2)
            );
            found.extend(page.items.into_iter().map(|item| item.id));
            match page.next {
                Some(next) => query.cursor = Some(next),
                None => return found,
            }
        }
    };
    let (sent, handled) = (MessageState::Sent, MessageState::Handled);
    assert_eq!(find(sent, &|_| {}).await, ids(&messages[..5]));
    assert_eq!(find(handled, &|_| {}).await, ids(&messages[3..]));
    assert_eq!(find(handled, &|q| q.deduplication_id = Some("d1".into())).await.len(), {
        usize::from(messages[3..].iter().any(|m| m.message.id == "m1"))
    });
    for (state, range) in [(sent, &messages[..5]), (handled, &messages[3..])] {
        let those = |keep: &dyn Fn(&Message) -> bool| {
            ids(&range.iter().filter(|m| keep(m)).cloned().collect::<Vec<_>>())
        };
        assert_eq!(find(state, &|q| q.kind = Some("odd".into())).await, those(&|m| m.message.kind == "odd"));
        let correlated = those(&|m| m.message.correlation_id.as_deref() == Some("c1"));
        assert_eq!(find(state, &|q| q.correlation_id = Some("c1".into())).await, correlated);
    }
    assert_eq!(find(sent, &|q| q.tenant = "acme".into()).await, ["foreign"]);
}

/// wolverine 6.29: pages 0 and 1 were the same.
pub async fn messages_are_listed_a_page_at_a_time(bench: &Bench) {
    let targets = [Target::destination("a"), Target::destination("b")];
    let mut expected = Vec::new();
    for n in 0..7 {
        let message = to(message_with(|message| message.id = format!("m{n}")), &targets);
        put(&bench.store, vec![message.clone()]).await;
        expected.push((message.row_id, message.message.id.clone()));
    }
    expected.sort();
    let mut query = MessageQuery { limit: 3, ..MessageQuery::default() };
    let mut found = Vec::new();
    let mut sizes = Vec::new();
    loop {
        let page = bench.store.messages(&query).await.unwrap();
        sizes.push(page.items.len());
        assert!(page.items.iter().all(|status| status.targets.len() == 2));
        found.extend(page.items.into_iter().map(|status| status.id));
        match page.next {
            Some(next) => query.cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(sizes, [3, 3, 1]);
    assert_eq!(found, expected.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
}

pub async fn what_is_scheduled_can_be_cancelled_and_its_identity_is_free(bench: &Bench) {
    let message = to(scheduled("w"), &[Target::destination("a"), Target::handler("b")]);
    put(&bench.store, vec![message.clone(), scheduled("stays")]).await;
    assert_eq!(bench.store.cancel("", &message.message.id).await.unwrap(), Cancelled::Yes);
    assert_eq!(bench.store.cancel("", &message.message.id).await.unwrap(), Cancelled::NotFound);
    assert!(bench.store.message("", &message.message.id).await.unwrap().is_none());
    assert_eq!((bench.count("deliveries").await, bench.count("deduplication").await), (1, 1));
    put(&bench.store, vec![scheduled("w")]).await;
}

pub async fn what_is_on_its_way_cannot_be_cancelled(bench: &Bench) {
    let cancel = async |message: &Message| bench.store.cancel("", &message.message.id).await.unwrap();
    let waiting = work("w");
    put(&bench.store, vec![waiting.clone()]).await;
    assert_eq!(cancel(&waiting).await, Cancelled::TooLate);
    let (_, owner) = take_one(&bench.store).await;
    assert_eq!(cancel(&waiting).await, Cancelled::TooLate);
    settle(&bench.store, dead(row(&waiting, 0), owner)).await;
    assert_eq!(cancel(&waiting).await, Cancelled::TooLate);
    assert!(bench.store.claim_of(work_key("w")).await.unwrap().is_some());

    // One of two targets has been taken already: all or nothing.
    let [here, there] = ["here", "there"].map(Target::destination);
    let at = bench.now() + SHORT;
    let both = to(message_with(|message| message.deliver_at = Some(at)), &[here.clone(), there]);
    put(&bench.store, vec![both.clone()]).await;
    bench.pass(LONGER).await;
    assert_eq!(take(&bench.store, &here, 10, HOUR).await.len(), 1);
    assert_eq!(cancel(&both).await, Cancelled::TooLate);
    settle(&bench.store, done(row(&both, 0))).await;
    assert_eq!(cancel(&both).await, Cancelled::TooLate);
    assert_eq!(bench.count("deliveries").await, 1);
}

/// Its own claim expired while nobody took its row, and another message took the work over.
pub async fn cancelling_leaves_the_claim_of_another_message(bench: &Bench) {
    let at = bench.now() + SHORT / 2;
    let first = claiming(message_with(|message| message.deliver_at = Some(at)), "w", SHORT / 2);
    put(&bench.store, vec![first.clone()]).await;
    bench.pass(LONGER).await;
    let second = scheduled("w");
    put(&bench.store, vec![second.clone()]).await;
    assert_eq!(bench.store.cancel("", &first.message.id).await.unwrap(), Cancelled::Yes);
    let claim = bench.store.claim_of(work_key("w")).await.unwrap().unwrap();
    assert_eq!(claim.row_id, Some(second.row_id));
}

pub async fn a_pause_is_for_all_and_remembered(bench: &Bench) {
    let other = bench.another().await;
    let [orders, handler] = [Target::destination("orders"), Target::handler("orders")];
    let for_good = |target: &Target| Pause { target: target.clone(), ends_in: None };
    for _ in 0..2 {
        bench.store.set_paused(&orders, Paused::Yes).await.unwrap();
        assert_eq!(other.paused().await.unwrap(), [for_good(&orders)]);
    }
    other.set_paused(&handler, Paused::Yes).await.unwrap();
    bench.store.set_paused(&orders, Paused::No).await.unwrap();
    bench.store.set_paused(&orders, Paused::No).await.unwrap();
    other.close().await;
    assert_eq!(bench.another().await.paused().await.unwrap(), [for_good(&handler)]);
}

pub async fn a_pause_for_a_while_ends_by_itself_and_never_shortens_a_longer_one(bench: &Bench) {
    let store = &bench.store;
    let target = Target::handler("rebuild");
    let ends_in = async || store.paused().await.unwrap().pop().map(|pause| pause.ends_in);
    store.set_paused(&target, Paused::For(HOUR)).await.unwrap();
    store.set_paused(&target, Paused::For(SHORT)).await.unwrap();
    let left = ends_in().await.unwrap().unwrap();
    assert!(left <= HOUR && left > HOUR / 2, "{left:?}");
    store.set_paused(&target, Paused::Yes).await.unwrap();
    store.set_paused(&target, Paused::For(HOUR)).await.unwrap();
    assert_eq!(ends_in().await, Some(None), "until somebody resumes it");
    store.set_paused(&target, Paused::No).await.unwrap();
    assert_eq!(ends_in().await, None);
    store.set_paused(&target, Paused::For(SHORT)).await.unwrap();
    bench.pass(LONGER).await;
    assert_eq!(ends_in().await, None, "it is over");
    let keep = Retention { receipts: HOUR, dead_letters: HOUR };
    store.purge(100, &keep).await.unwrap();
    assert_eq!(bench.count("targets").await, 0, "and forgotten");
    store.set_paused(&target, Paused::For(HOUR)).await.unwrap();
    assert!(ends_in().await.is_some());
}

/// All that an idle node asks for, in one question.
pub async fn a_look_sees_what_there_is_to_do(bench: &Bench) {
    let (orders, other) = (Target::destination("orders"), Target::handler("other"));
    let asked = [other.clone(), orders.clone()];
    let keep = Retention { receipts: HOUR, dead_letters: HOUR };
    let nothing = Seen { due: vec![None, None], ..Seen::default() };
    assert_eq!(bench.store.look(&asked, Some(&keep)).await.unwrap(), nothing);
    assert_eq!(bench.store.look(&[], None).await.unwrap(), Seen::default());

    let mut late = message();
    late.message =
        domain::Message { deliver_by: Some(bench.now() + SHORT), ..(*late.message).clone() }.into();
    put(&bench.store, vec![message(), late]).await;
    bench.store.set_paused(&other, Paused::Yes).await.unwrap();
    let seen = bench.store.look(&asked, Some(&keep)).await.unwrap();
    let expected = Seen {
        due: vec![None, Some(Duration::ZERO)],
        paused: vec![Pause { target: other, ends_in: None }],
        ..Seen::default()
    };
    assert_eq!(seen, expected);

    bench.store.claim(&claim("1", token(), SHORT)).await.unwrap();
    bench.pass(LONGER).await;
    let seen = bench.store.look(&asked, Some(&keep)).await.unwrap();
    assert_eq!((seen.expired, seen.over, seen.intake), (true, true, false), "{seen:?}");
    assert!(!bench.store.look(&asked, None).await.unwrap().over, "it was not asked for");
    bench.store.expire(10).await.unwrap();
    bench.store.purge(10, &keep).await.unwrap();
    bench.publish_by_sql().await;
    let seen = bench.store.look(&asked, Some(&keep)).await.unwrap();
    assert_eq!((seen.expired, seen.over, seen.intake), (false, false, true), "{seen:?}");

    // A dead letter and a receipt, each by itself.
    let shortly = |receipts, dead_letters| Retention { receipts, dead_letters };
    assert!(bench.store.look(&asked, Some(&shortly(HOUR, Duration::ZERO))).await.unwrap().over);
    assert!(!bench.store.look(&asked, Some(&shortly(Duration::ZERO, HOUR))).await.unwrap().over);
    let taken = take(&bench.store, &orders, 10, HOUR).await;
    bench.store.settle(&[done(taken[0].delivery.row)]).await.unwrap();
    bench.pass(SHORT).await;
    assert!(bench.store.look(&asked, Some(&shortly(SHORT / 2, HOUR))).await.unwrap().over);
}
