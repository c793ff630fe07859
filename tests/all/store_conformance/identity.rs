//! Both identities: of the request, and of the work that a message asks for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate::domain::Token;
use oncegate::domain::claim::ClaimKind;
use oncegate::domain::delivery::Target;
use oncegate::store::Shared;
use oncegate::store::accept::{MessageOutcome, MessageState, Outcome, Request};
use oncegate::store::claims::{ClaimState, Claimed, NewClaim};
use oncegate::store::deliveries::{Counted, Settled};
use oncegate::store::status::Retention;

use super::backends::Bench;
use super::build::*;

pub async fn the_same_work_is_a_duplicate_of_the_first(bench: &Bench) {
    let first = claiming(message_with(|m| (m.id, m.tenant) = ("mine".into(), "acme".into())), "w", HOUR);
    let accepted = stored(accept(&bench.store, request(vec![first.clone()])).await.unwrap());
    for _ in 0..2 {
        let outcomes = stored(accept(&bench.store, request(vec![work("w")])).await.unwrap());
        let found = duplicate(&outcomes[0]);
        assert_eq!(found.state, MessageState::Pending);
        let claim = &found.claim;
        assert_eq!(
            (claim.key, claim.kind, claim.state),
            (work_key("w"), ClaimKind::Work, ClaimState::Confirmed)
        );
        assert_eq!((claim.scope.as_str(), claim.id.as_str()), ("order.created", "w"));
        assert_eq!((claim.message_id.as_deref(), claim.row_id), (Some("mine"), Some(first.row_id)));
        assert_eq!(claim.tenant, "acme");
        assert_eq!(claim.expires_at, expiry(&accepted[0]));
        assert_eq!(claim.expires_at - claim.first_seen_at, chrono::TimeDelta::from_std(HOUR).unwrap());
        assert!(claim.expires_in <= HOUR && claim.expires_in > HOUR - Duration::from_secs(60));
    }
    assert_eq!(bench.count("deliveries").await, 1);
    assert_eq!(bench.store.claim_of(work_key("w")).await.unwrap().unwrap().row_id, Some(first.row_id));
}

pub async fn a_duplicate_does_not_fail_its_neighbours(bench: &Bench) {
    put(&bench.store, vec![work("b")]).await;
    let batch = request(vec![work("a"), work("b"), message(), work("c")]);
    let outcomes = stored(accept(&bench.store, batch).await.unwrap());
    let accepted: Vec<bool> =
        outcomes.iter().map(|outcome| matches!(outcome, MessageOutcome::Accepted { .. })).collect();
    assert_eq!(accepted, [true, false, true, true]);
    assert_eq!(bench.count("deliveries").await, 4);
}

pub async fn the_same_work_twice_in_one_request(bench: &Bench) {
    let same = |at| {
        let mut message = message();
        message.same_as = Some(at);
        message
    };
    let first = work("new");
    let scheduled = claiming(message_with(|m| m.deliver_at = Some(m.accepted_at + HOUR)), "later", HOUR);
    let batch = vec![first.clone(), same(0), same(1), scheduled.clone(), same(3)];
    let outcomes = stored(accept(&bench.store, request(batch)).await.unwrap());
    for at in [1, 2] {
        let found = duplicate(&outcomes[at]);
        assert_eq!((found.claim.row_id, found.state), (Some(first.row_id), MessageState::Pending));
        assert_eq!(found.claim.message_id.as_deref(), Some(first.message.id.as_str()));
        assert_eq!(found.claim.expires_at, expiry(&outcomes[0]));
        assert_eq!(found.claim, at_rest(bench, "new", found.claim.expires_in).await);
    }
    let found = duplicate(&outcomes[4]);
    assert_eq!((found.claim.row_id, found.state), (Some(scheduled.row_id), MessageState::Scheduled));
    assert_eq!(bench.count("deliveries").await, 2);
    // Of what an earlier one duplicates.
    let outcomes = stored(accept(&bench.store, request(vec![work("new"), same(0)])).await.unwrap());
    assert_eq!(duplicate(&outcomes[1]).claim.row_id, Some(first.row_id));
    assert_eq!(bench.count("deliveries").await, 2);
}

async fn at_rest(bench: &Bench, id: &str, expires_in: Duration) -> oncegate::store::claims::Claim {
    let mut claim = bench.store.claim_of(work_key(id)).await.unwrap().unwrap();
    claim.expires_in = expires_in;
    claim
}

/// useplunk/plunk#484, concerns_on_rails#47: what was answered first is answered again, to the byte.
pub async fn a_request_key_is_replayed(bench: &Bench) {
    stored(accept(&bench.store, keyed("k", 1, vec![message(), work("w")])).await.unwrap());
    for _ in 0..2 {
        let again = accept(&bench.store, keyed("k", 1, vec![message(), work("w")])).await.unwrap();
        let Outcome::Replay(claim) = again else { panic!("{again:?}") };
        assert_eq!((claim.kind, claim.state), (ClaimKind::Request, ClaimState::Confirmed));
        assert_eq!((claim.scope.as_str(), claim.id.as_str()), ("tenant client", "k"));
        assert_eq!(claim.fingerprint, Some([1; 32]));
        assert!(
            String::from_utf8(claim.answer.unwrap().to_vec())
                .unwrap()
                .starts_with("accepted; accepted until")
        );
    }
    assert_eq!(bench.count("deliveries").await, 2);
}

pub async fn a_request_key_of_another_request_is_told_apart(bench: &Bench) {
    stored(accept(&bench.store, keyed("k", 1, vec![message()])).await.unwrap());
    let other = accept(&bench.store, keyed("k", 2, vec![work("w")])).await.unwrap();
    assert!(matches!(other, Outcome::KeyReused(_)), "{other:?}");
    assert_eq!(bench.count("deliveries").await, 1);
    assert!(bench.store.claim_of(work_key("w")).await.unwrap().is_none());
}

/// mastodon#37879: the same key while the first still runs.
pub async fn a_request_key_in_flight_is_told(bench: &Bench) {
    let request = keyed("k", 1, vec![work("w")]);
    let key = request.claim.as_ref().unwrap().key;
    let running = NewClaim {
        key,
        kind: ClaimKind::Request,
        scope: "tenant client".into(),
        id: "k".into(),
        tenant: "tenant".into(),
        token: token(),
        lease: HOUR,
        message_id: None,
        fingerprint: Some([1; 32]),
    };
    assert!(matches!(bench.store.claim(&running).await.unwrap(), Claimed::Granted(_)));
    let outcome = accept(&bench.store, request.clone()).await.unwrap();
    let Outcome::Replay(claim) = outcome else { panic!("{outcome:?}") };
    assert_eq!((claim.state, claim.answer), (ClaimState::Claimed, None));
    assert!(claim.expires_in > Duration::from_secs(3000));
    assert!(matches!(
        accept(&bench.store, keyed("k", 2, vec![])).await.unwrap(),
        Outcome::KeyReused(claim) if claim.state == ClaimState::Claimed
    ));
    assert_eq!(bench.count("deliveries").await, 0);
    assert!(bench.store.release(key, running.token).await.unwrap());
    stored(accept(&bench.store, request).await.unwrap());
}

/// A crash between the commit and a correction would leave "accepted" stored for a duplicate.
pub async fn the_stored_answer_is_the_one_that_was_given(bench: &Bench) {
    put(&bench.store, vec![work("taken")]).await;
    let group = [
        keyed("none", 1, vec![work("free"), message()]),
        keyed("some", 1, vec![work("also free"), work("taken"), message()]),
        keyed("all", 1, vec![work("taken by nobody else")]),
    ];
    let outcomes = bench.store.accept(&group).await;
    for (request, outcome) in group.iter().zip(outcomes) {
        let given = request.answer.render(&stored(outcome.unwrap())).unwrap();
        let again = Request { token: token(), ..request.clone() };
        let Outcome::Replay(claim) = accept(&bench.store, again).await.unwrap() else { panic!("no replay") };
        assert_eq!(claim.answer, Some(given));
    }
    assert_eq!(bench.count("deliveries").await, 6);
}

/// wolverine#4501: an endpoint refused once, and the retry was told "already done".
pub async fn a_refused_answer_stores_nothing_and_frees_the_keys(bench: &Bench) {
    put(&bench.store, vec![work("taken")]).await;
    let refusing = |messages| Request { answer: Arc::new(NoDuplicates), ..keyed("k", 1, messages) };
    let group = [
        request(vec![message()]),
        refusing(vec![work("fresh"), work("taken"), message()]),
        request(vec![message()]),
    ];
    let outcomes = bench.store.accept(&group).await;
    for (at, outcome) in outcomes.into_iter().enumerate() {
        match (at, outcome.unwrap()) {
            (1, Outcome::Refused(outcomes)) => {
                assert_eq!(outcomes.len(), 3);
                assert_eq!(duplicate(&outcomes[1]).claim.id, "taken");
            }
            (1, other) => panic!("{other:?}"),
            (_, other) => drop(stored(other)),
        }
    }
    assert_eq!(bench.count("deliveries").await, 3);
    assert!(bench.store.claim_of(work_key("fresh")).await.unwrap().is_none());
    assert!(bench.store.claim_of(work_key("taken")).await.unwrap().is_some());
    let again = refusing(vec![work("fresh")]);
    stored(accept(&bench.store, again).await.unwrap());
}

/// convoy#2747: look-up, then insert: two requests both won.
pub async fn of_twenty_requests_with_one_key_one_wins(bench: &Bench) {
    let other = bench.another().await;
    let mut tasks = Vec::new();
    for n in 0..20 {
        let store = Arc::clone(if n % 2 == 0 { &bench.store } else { &other });
        let request = keyed("k", 1, vec![message(), work("w")]);
        tasks.push(tokio::spawn(async move { accept_held(&store, request).await }));
    }
    let mut answers: Vec<Bytes> = Vec::new();
    let mut won = 0;
    for task in tasks {
        match task.await.unwrap() {
            (request, Outcome::Stored(outcomes)) => {
                won += 1;
                answers.push(request.answer.render(&outcomes).unwrap());
            }
            (_, Outcome::Replay(claim)) => answers.push(claim.answer.unwrap()),
            (_, other) => panic!("{other:?}"),
        }
    }
    other.close().await;
    assert_eq!(won, 1);
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(bench.count("deliveries").await, 2);
}

async fn accept_held(store: &Shared, request: Request) -> (Request, Outcome) {
    let outcome = accept(store, request.clone()).await.unwrap();
    (request, outcome)
}

pub async fn of_twenty_messages_with_one_identity_one_wins(bench: &Bench) {
    let other = bench.another().await;
    let mut tasks = Vec::new();
    for n in 0..20 {
        let store = Arc::clone(if n % 2 == 0 { &bench.store } else { &other });
        tasks.push(tokio::spawn(async move { accept(&store, request(vec![work("w")])).await.unwrap() }));
    }
    let mut accepted = 0;
    let mut holders = Vec::new();
    for task in tasks {
        match &stored(task.await.unwrap())[0] {
            MessageOutcome::Accepted { .. } => accepted += 1,
            MessageOutcome::Duplicate(first) => holders.push(first.claim.row_id),
        }
    }
    other.close().await;
    assert_eq!((accepted, holders.len()), (1, 19));
    assert!(holders.iter().all(|holder| *holder == holders[0] && holder.is_some()));
    assert_eq!(bench.count("deliveries").await, 1);
}

pub async fn an_expired_claim_is_taken_over(bench: &Bench) {
    let mut first = keyed("k", 1, vec![claiming(message(), "w", SHORT)]);
    first.claim.as_mut().unwrap().window = SHORT;
    stored(accept(&bench.store, first).await.unwrap());
    bench.pass(LONGER).await;
    assert!(bench.store.claim_of(work_key("w")).await.unwrap().is_none());
    let second = work("w");
    let outcomes = stored(accept(&bench.store, keyed("k", 2, vec![second.clone()])).await.unwrap());
    let expires_at = expiry(&outcomes[0]);
    let claim = bench.store.claim_of(work_key("w")).await.unwrap().unwrap();
    assert_eq!((claim.row_id, claim.expires_at), (Some(second.row_id), expires_at));
    assert!(claim.first_seen_at > bench.now() - HOUR / 60);
    let replay = accept(&bench.store, keyed("k", 2, vec![])).await.unwrap();
    assert!(matches!(replay, Outcome::Replay(_)), "{replay:?}");
    assert_eq!(bench.count("deliveries").await, 2);
}

/// What is published today for tomorrow is still known tomorrow.
pub async fn the_window_starts_when_the_message_is_to_be_delivered(bench: &Bench) {
    let at = bench.now() + HOUR * 24;
    let future = claiming(message_with(|m| m.deliver_at = Some(at)), "future", HOUR);
    let past = claiming(message_with(|m| m.deliver_at = Some(m.accepted_at - HOUR * 24)), "past", HOUR);
    let outcomes = stored(accept(&bench.store, request(vec![future, past])).await.unwrap());
    assert_eq!(expiry(&outcomes[0]), at + HOUR);
    let minute = Duration::from_secs(60);
    assert!(
        expiry(&outcomes[1]) > bench.now() + HOUR - minute
            && expiry(&outcomes[1]) < bench.now() + HOUR + minute
    );
    let claim = bench.store.claim_of(work_key("future")).await.unwrap().unwrap();
    assert_eq!(claim.expires_at, at + HOUR);
}

pub async fn a_duplicate_tells_where_the_first_stands(bench: &Bench) {
    let state = async |id: &'static str| {
        let outcomes = stored(accept(&bench.store, request(vec![work(id)])).await.unwrap());
        duplicate(&outcomes[0]).state
    };
    let both = [Target::destination("orders"), Target::destination("other")];
    let first = to(work("w"), &both);
    put(&bench.store, vec![first.clone()]).await;
    assert_eq!(state("w").await, MessageState::Pending);
    let (_, owner) = take_one(&bench.store).await;
    assert_eq!(state("w").await, MessageState::Pending);
    settle(&bench.store, retry(row(&first, 0), owner, Duration::ZERO, Counted::Yes)).await;
    assert_eq!(state("w").await, MessageState::Retrying);
    let (_, owner) = take_one(&bench.store).await;
    assert_eq!(state("w").await, MessageState::Retrying);
    assert_eq!(settle(&bench.store, dead(row(&first, 0), owner)).await, Settled::Yes);
    assert_eq!(state("w").await, MessageState::Pending);
    settle(&bench.store, done(row(&first, 1))).await;
    assert_eq!(state("w").await, MessageState::Dead);

    let scheduled = claiming(message_with(|m| m.deliver_at = Some(m.accepted_at + HOUR)), "later", HOUR);
    put(&bench.store, vec![scheduled]).await;
    assert_eq!(state("later").await, MessageState::Scheduled);

    let sent = work("sent");
    put(&bench.store, vec![sent.clone()]).await;
    settle(&bench.store, done(row(&sent, 0))).await;
    assert_eq!(state("sent").await, MessageState::Sent);

    let handled = to(work("handled"), &[Target::handler("h")]);
    put(&bench.store, vec![handled.clone()]).await;
    settle(&bench.store, done(row(&handled, 0))).await;
    assert_eq!(state("handled").await, MessageState::Handled);

    bench.pass(LONGER).await;
    let all = Retention { receipts: Duration::ZERO, dead_letters: Duration::ZERO };
    bench.store.purge(100, &all).await.unwrap();
    assert_eq!(state("sent").await, MessageState::Sent);
}

/// wolverine GH-4757: `Abc` and `abc` were the same key on one engine.
pub async fn keys_that_differ_in_a_byte_never_meet(bench: &Bench) {
    let ids = [
        "Abc",
        "abc",
        "abc ",
        " abc",
        "\u{e9}",
        "e\u{301}",
        "e",
        "stra\u{df}e",
        "strasse",
        "",
        "abc\t",
        "İ",
        "i",
    ];
    let batch = request(ids.iter().map(|id| work(id)).collect());
    for outcome in stored(accept(&bench.store, batch).await.unwrap()) {
        assert!(matches!(outcome, MessageOutcome::Accepted { .. }), "{outcome:?}");
    }
    for id in ids {
        assert_eq!(bench.store.claim_of(work_key(id)).await.unwrap().unwrap().id, id);
        let requests = stored(accept(&bench.store, keyed(id, 1, vec![])).await.unwrap());
        assert!(requests.is_empty());
        let granted = bench.store.claim(&claim(id, Token(1), HOUR)).await.unwrap();
        assert!(matches!(granted, Claimed::Granted(_)), "{id:?}: {granted:?}");
    }
    // Nor do the texts by which messages are found.
    for id in ["Abc", "abc", "abc "] {
        put(&bench.store, vec![message_with(|message| message.id = id.into())]).await;
    }
    assert_eq!(bench.store.message("", "abc").await.unwrap().unwrap().targets.len(), 1);
    assert!(bench.store.message("", "ABC").await.unwrap().is_none());
}
