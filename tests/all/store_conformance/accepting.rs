//! Accepting: all or nothing per request, nobody fails a neighbour.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use oncegate::domain::RowKey;
use oncegate::domain::delivery::Target;
use oncegate::domain::message::Envelope;
use oncegate::store::ErrorKind;
use oncegate::store::accept::{MessageOutcome, MessageState};

use super::backends::Bench;
use super::build::*;
use crate::support::eventually;

pub async fn a_message_becomes_one_row_per_target(bench: &Bench) {
    let targets = [Target::destination("a"), Target::handler("a"), Target::destination("b")];
    let message = to(message(), &targets);
    put(&bench.store, vec![message.clone()]).await;
    for (target, target_no) in targets.iter().zip(0..) {
        let taken = take(&bench.store, target, 10, HOUR).await;
        assert_eq!(taken.len(), 1);
        assert_eq!(taken[0].delivery.row, RowKey { id: message.row_id, target_no });
        assert_eq!(&taken[0].delivery.target, target);
    }
    assert_eq!(bench.count("deliveries").await, 3);
}

pub async fn a_row_keeps_everything(bench: &Bench) {
    let every_byte: Vec<u8> = (0..=255).collect();
    let whole = message_with(|message| {
        message.id = "client's own ".into();
        message.kind = "größe.geändert".into();
        message.tenant = "Acme ".into();
        message.body = Bytes::from(every_byte.repeat(4096));
        message.deduplication_id = Some("a|b".into());
        message.partition_key = Some(String::new());
        message.correlation_id = Some("e\u{301}\u{1f980}".into());
        message.deliver_at = Some(message.accepted_at - Duration::from_secs(5));
        message.deliver_by = Some(message.accepted_at + HOUR);
        message.envelope = Envelope {
            source: Some("/shop".into()),
            subject: Some("\"quoted\" \\ 'text'".into()),
            content_type: Some("application/octet-stream".into()),
            causation_id: Some("cause".into()),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
            tracestate: Some("vendor=1".into()),
            headers: [("x-empty".to_owned(), String::new()), ("x-name".to_owned(), "ä".to_owned())].into(),
        };
    });
    let bare = message_with(|message| {
        message.body = Bytes::new();
        message.envelope = Envelope::default();
    });
    put(&bench.store, vec![whole.clone(), bare.clone()]).await;
    let taken = take(&bench.store, &orders(), 10, HOUR).await;
    assert_eq!(taken.len(), 2);
    for expected in [whole, bare] {
        let taken = taken.iter().find(|taken| taken.delivery.row.id == expected.row_id).unwrap();
        assert_eq!(*taken.delivery.message, *expected.message);
        assert_eq!((taken.delivery.attempts, taken.takes, taken.expired), (0, 1, false));
    }
}

pub async fn without_a_client_id_the_row_id_is_the_logical_id(bench: &Bench) {
    let own = message();
    let client = message_with(|message| message.id = message.id.to_uppercase());
    put(&bench.store, vec![own.clone(), client.clone()]).await;
    for message in [own, client.clone()] {
        let status = bench.store.message("", &message.message.id).await.unwrap().unwrap();
        assert_eq!(status.id, message.message.id);
    }
    assert!(bench.store.message("", &client.row_id.to_string()).await.unwrap().is_none());
}

/// Altinn #788: a logical key used as the message id broke the outbox's primary key.
pub async fn a_client_id_may_come_again(bench: &Bench) {
    for _ in 0..2 {
        put(&bench.store, vec![message_with(|message| message.id = "customer-7".into())]).await;
    }
    assert_eq!(take(&bench.store, &orders(), 10, HOUR).await.len(), 2);
}

pub async fn a_group_has_one_outcome_per_request_in_order(bench: &Bench) {
    let requests: Vec<_> = (0..256)
        .map(|n| match n % 3 {
            0 => keyed(&n.to_string(), 1, vec![message()]),
            1 => request(vec![work(&n.to_string()), message()]),
            _ => request(vec![message(), message(), message()]),
        })
        .collect();
    let outcomes = bench.store.accept(&requests).await;
    assert_eq!(outcomes.len(), requests.len());
    for (request, outcome) in requests.iter().zip(outcomes) {
        let outcomes = stored(outcome.unwrap());
        assert_eq!(outcomes.len(), request.messages.len());
        for (message, outcome) in request.messages.iter().zip(outcomes) {
            let MessageOutcome::Accepted { expires_at } = outcome else { panic!("{outcome:?}") };
            assert_eq!(expires_at.is_some(), message.claim.is_some());
        }
    }
    let messages: usize = requests.iter().map(|request| request.messages.len()).sum();
    assert_eq!(bench.count("deliveries").await, messages as u64);
}

/// wolverine#5276: a batch answered 200 and dropped messages.
pub async fn a_request_is_stored_whole_or_not_at_all(bench: &Bench) {
    let bad = message_with(|message| message.correlation_id = Some("a\0b".into()));
    let messages = vec![work("first"), bad, message()];
    let error = accept(&bench.store, keyed("k", 1, messages)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidData);
    for table in ["deliveries", "deduplication"] {
        assert_eq!(bench.count(table).await, 0, "{table}");
    }
}

pub async fn a_bad_request_fails_alone(bench: &Bench) {
    type Spoil = fn(&mut oncegate::domain::Message);
    let spoils: [Spoil; 4] = [
        |message| message.correlation_id = Some("\0".into()),
        |message| message.envelope.subject = Some("a\0".into()),
        |message| message.kind = "a\0b".into(),
        |message| drop(message.envelope.headers.insert("x".into(), "\0".into())),
    ];
    for spoil in spoils {
        let before = bench.count("deliveries").await;
        let mut requests: Vec<_> = (0..60).map(|_| request(vec![message()])).collect();
        requests[10] = keyed(&before.to_string(), 1, vec![work(&before.to_string()), message()]);
        requests.insert(30, request(vec![message_with(spoil)]));
        let outcomes = bench.store.accept(&requests).await;
        for (at, outcome) in outcomes.into_iter().enumerate() {
            match at {
                30 => assert_eq!(outcome.unwrap_err().kind, ErrorKind::InvalidData),
                _ => drop(stored(outcome.unwrap())),
            }
        }
        assert_eq!(bench.count("deliveries").await, before + 61);
    }
}

/// After a lost reply a request is run again under its own ids and tokens.
pub async fn a_request_that_is_run_again_is_stored_once(bench: &Bench) {
    let request = keyed("again", 1, vec![work("again"), held(message(), HOUR)]);
    for _ in 0..3 {
        let outcomes = stored(accept(&bench.store, request.clone()).await.unwrap());
        assert!(matches!(outcomes[0], MessageOutcome::Accepted { expires_at: Some(_) }));
    }
    assert_eq!(bench.count("deliveries").await, 2);
    assert_eq!(bench.count("deduplication").await, 2);
}

pub async fn a_message_without_targets_is_accepted(bench: &Bench) {
    put(&bench.store, vec![to(work("nobody"), &[]), message()]).await;
    assert_eq!(bench.count("deliveries").await, 1);
    let outcomes = stored(accept(&bench.store, request(vec![work("nobody")])).await.unwrap());
    assert_eq!(duplicate(&outcomes[0]).state, MessageState::Sent);
}

pub async fn an_empty_group_and_an_empty_request_are_nothing(bench: &Bench) {
    assert!(bench.store.accept(&[]).await.is_empty());
    assert!(stored(accept(&bench.store, request(vec![])).await.unwrap()).is_empty());
    assert!(bench.store.settle(&[]).await.unwrap().is_empty());
    assert_eq!(bench.store.give_back(&[]).await.unwrap(), 0);
    assert!(bench.store.due_in(&[]).await.unwrap().is_empty());
}

pub async fn what_is_scheduled_is_due_at_its_time(bench: &Bench) {
    let at = bench.now() + SHORT;
    let later = held(message_with(|message| message.deliver_at = Some(at)), HOUR);
    put(&bench.store, vec![later.clone()]).await;
    assert!(take(&bench.store, &orders(), 10, HOUR).await.is_empty());
    let status = bench.store.message("", &later.message.id).await.unwrap().unwrap();
    assert_eq!((status.targets[0].state, status.targets[0].due_at), (MessageState::Scheduled, Some(at)));
    bench.pass(LONGER).await;
    assert_eq!(take(&bench.store, &orders(), 10, HOUR).await.len(), 1);
}

/// wolverine#1846: what was scheduled in the past ran twice.
pub async fn what_was_scheduled_in_the_past_is_due_once_and_at_once(bench: &Bench) {
    let past = message_with(|message| message.deliver_at = Some(message.accepted_at - HOUR));
    put(&bench.store, vec![past.clone()]).await;
    let status = bench.store.message("", &past.message.id).await.unwrap().unwrap();
    assert_eq!(status.targets[0].state, MessageState::Pending);
    assert_eq!(take(&bench.store, &orders(), 10, HOUR).await.len(), 1);
    assert!(take(&bench.store, &orders(), 10, HOUR).await.is_empty());
}

pub async fn what_is_held_is_nobody_elses_until_the_lease_ends(bench: &Bench) {
    let held = request(vec![held(message(), SHORT)]);
    let (token, row) = (held.token, row(&held.messages[0], 0));
    stored(accept(&bench.store, held).await.unwrap());
    assert!(take(&bench.store, &orders(), 10, HOUR).await.is_empty());
    bench.pass(LONGER).await;
    let (taken, _) = take_one(&bench.store).await;
    assert_eq!(taken.delivery.row, row);
    let late = retry(row, token, HOUR, oncegate::store::deliveries::Counted::Yes);
    assert_eq!(settle(&bench.store, late).await, oncegate::store::deliveries::Settled::Fenced);
}

pub async fn many_writers_lose_nothing(bench: &Bench) {
    let other = bench.another().await;
    let mut tasks = Vec::new();
    for n in 0..40 {
        let store = Arc::clone(if n % 2 == 0 { &bench.store } else { &other });
        tasks.push(tokio::spawn(async move {
            for m in 0..5 {
                put(&store, vec![work(&format!("{n}-{m}")), message()]).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    other.close().await;
    assert_eq!(bench.count("deliveries").await, 400);
    assert_eq!(bench.count("deduplication").await, 200);
}

/// caura#1629: the client hung up, the recording was cancelled, the retry wrote twice. And sqlx's trap: a
/// dropped `begin()` leaves the next borrower inside a stale transaction.
pub async fn a_caller_who_goes_away_cancels_nothing(bench: &Bench) {
    for n in 0..20 {
        let request = [request(vec![message()])];
        // Fused: on a quick machine it may be done by the first poll.
        let mut accepting = bench.store.accept(&request).fuse();
        // Far enough for the work to have begun, and then dropped.
        let deadline = tokio::time::Instant::now() + Duration::from_micros(n * 200);
        if (&mut accepting).now_or_never().is_none() {
            let _ = tokio::time::timeout_at(deadline, &mut accepting).await;
        }
    }
    eventually(Duration::from_secs(20), "all that was begun is stored", || async {
        (bench.count("deliveries").await == 20).then_some(())
    })
    .await;
    put(&bench.store, vec![message()]).await;
    assert_eq!(bench.count("deliveries").await, 21);
}
