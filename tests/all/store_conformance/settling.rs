//! Settling: delivered is delivered, everything else is fenced by the token.

use std::time::Duration;

use oncegate::domain::delivery::{DeadKind, Target};
use oncegate::domain::{RowKey, Token};
use oncegate::store::accept::MessageState;
use oncegate::store::deliveries::{Counted, DeadNote, Receipt, Settle, Settled, Settlement};
use oncegate::store::status::TargetStatus;

use super::backends::Bench;
use super::build::*;

async fn only_target(bench: &Bench, id: &str) -> TargetStatus {
    let mut status = bench.store.message("", id).await.unwrap().unwrap();
    assert_eq!(status.targets.len(), 1);
    status.targets.remove(0)
}

/// wolverine#3173: a delivered row was never deleted and was sent for ever.
pub async fn done_removes_the_row_and_leaves_a_receipt(bench: &Bench) {
    let kept = message_with(|message| message.id = "client-1".into());
    let dropped = message();
    let handled = to(message(), &[Target::handler("h")]);
    put(&bench.store, vec![kept.clone(), dropped.clone(), handled.clone()]).await;
    take(&bench.store, &orders(), 10, HOUR).await;
    let no_receipt = Settlement {
        row: row(&dropped, 0),
        token: Token(0),
        outcome: Settle::Done { receipt: Receipt::Drop },
    };
    let batch = [done(row(&kept, 0)), no_receipt, done(row(&handled, 0))];
    assert_eq!(bench.store.settle(&batch).await.unwrap(), [Settled::Yes; 3]);
    assert_eq!((bench.count("deliveries").await, bench.count("receipts").await), (0, 2));
    let sent = only_target(bench, "client-1").await;
    assert_eq!((sent.target, sent.state, sent.attempts), (orders(), MessageState::Sent, 1));
    assert!(sent.sent_at.is_some() && sent.due_at.is_none() && sent.error_kind.is_none());
    assert_eq!(only_target(bench, &handled.message.id).await.state, MessageState::Handled);
    assert!(bench.store.message("", &dropped.message.id).await.unwrap().is_none());
}

pub async fn what_is_discarded_leaves_a_receipt_that_says_so_and_needs_its_token(bench: &Bench) {
    let [kept, dropped] = [message(), message()];
    put(&bench.store, vec![kept.clone(), dropped.clone()]).await;
    let owner = token();
    take_as(&bench.store, &orders(), 10, HOUR, owner).await;
    let discard = |message: &oncegate::store::accept::Message, token, receipt| Settlement {
        row: row(message, 0),
        token,
        outcome: Settle::Discard { receipt, error: "no".into() },
    };
    assert_eq!(settle(&bench.store, discard(&kept, token(), Receipt::Keep)).await, Settled::Fenced);
    assert_eq!(bench.count("deliveries").await, 2);
    let batch = [discard(&kept, owner, Receipt::Keep), discard(&dropped, owner, Receipt::Drop)];
    assert_eq!(bench.store.settle(&batch).await.unwrap(), [Settled::Yes; 2]);
    assert_eq!(bench.store.settle(&batch).await.unwrap(), [Settled::Fenced; 2]);
    assert_eq!((bench.count("deliveries").await, bench.count("receipts").await), (0, 1));
    assert_eq!(bench.count("dead_letters").await, 0);
    let told = only_target(bench, &kept.message.id).await;
    assert_eq!((told.state, told.attempts), (MessageState::Sent, 1));
    assert_eq!(told.error_kind.as_deref(), Some("Discarded"));
}

/// A late success of one node is a success, even while another has the row.
pub async fn done_needs_no_token(bench: &Bench) {
    let [waiting, scheduled, elsewhere] = [
        to(message(), &[Target::destination("other")]),
        message_with(|message| message.deliver_at = Some(message.accepted_at + HOUR)),
        message(),
    ];
    put(&bench.store, vec![waiting.clone(), scheduled.clone(), elsewhere.clone()]).await;
    take_one(&bench.store).await;
    let batch = [&waiting, &scheduled, &elsewhere].map(|message| done(row(message, 0)));
    assert_eq!(bench.store.settle(&batch).await.unwrap(), [Settled::Yes; 3]);
    assert_eq!(bench.count("deliveries").await, 0);
}

pub async fn what_is_gone_is_fenced(bench: &Bench) {
    let message = message();
    put(&bench.store, vec![message.clone()]).await;
    let (_, owner) = take_one(&bench.store).await;
    assert_eq!(settle(&bench.store, done(row(&message, 0))).await, Settled::Yes);
    let row = row(&message, 0);
    let batch = [done(row), retry(row, owner, Duration::ZERO, Counted::Yes), dead(row, owner)];
    assert_eq!(bench.store.settle(&batch).await.unwrap(), [Settled::Fenced; 3]);
    assert_eq!((bench.count("deliveries").await, bench.count("dead_letters").await), (0, 0));
    assert_eq!(bench.count("receipts").await, 1);
}

pub async fn a_counted_retry_waits_and_counts(bench: &Bench) {
    let message = message();
    put(&bench.store, vec![message.clone()]).await;
    let (_, owner) = take_one(&bench.store).await;
    assert_eq!(settle(&bench.store, retry(row(&message, 0), owner, SHORT, Counted::Yes)).await, Settled::Yes);
    assert!(take(&bench.store, &orders(), 10, HOUR).await.is_empty());
    let waiting = only_target(bench, &message.message.id).await;
    assert_eq!((waiting.state, waiting.attempts), (MessageState::Retrying, 1));
    assert_eq!(waiting.error_kind.as_deref(), Some("Attempt"));
    assert!(waiting.due_at.unwrap() > bench.now());
    // Nobody has it: the owner of the lease that was settled no more than anybody else.
    assert_eq!(settle(&bench.store, dead(row(&message, 0), owner)).await, Settled::Fenced);
    assert_eq!(bench.store.give_back(&[(row(&message, 0), owner)]).await.unwrap(), 0);
    bench.pass(LONGER).await;
    let (taken, _) = take_one(&bench.store).await;
    assert_eq!(taken.delivery.attempts, 1);
}

pub async fn an_uncounted_retry_waits_and_does_not_count(bench: &Bench) {
    let message = message();
    put(&bench.store, vec![message.clone()]).await;
    for _ in 0..2 {
        let (taken, owner) = take_one(&bench.store).await;
        assert_eq!((taken.delivery.attempts, taken.takes), (0, 1));
        let again = retry(row(&message, 0), owner, Duration::ZERO, Counted::No);
        assert_eq!(settle(&bench.store, again).await, Settled::Yes);
    }
    assert_eq!(only_target(bench, &message.message.id).await.state, MessageState::Pending);
}

pub async fn a_retry_is_never_due_after_deliver_by(bench: &Bench) {
    let by = bench.now() + HOUR;
    let message = message_with(|message| message.deliver_by = Some(by));
    put(&bench.store, vec![message.clone()]).await;
    let (_, owner) = take_one(&bench.store).await;
    settle(&bench.store, retry(row(&message, 0), owner, HOUR * 24, Counted::Yes)).await;
    assert_eq!(only_target(bench, &message.message.id).await.due_at, Some(by));
}

/// CAP#1661: a late update flipped a sent row back to failed.
pub async fn a_late_owner_is_fenced(bench: &Bench) {
    let message = message();
    put(&bench.store, vec![message.clone()]).await;
    let late = token();
    assert_eq!(take_as(&bench.store, &orders(), 1, SHORT, late).await.len(), 1);
    bench.pass(LONGER).await;
    let (_, owner) = take_one(&bench.store).await;
    let row = row(&message, 0);
    for settlement in [retry(row, late, Duration::ZERO, Counted::Yes), dead(row, late), dead(row, Token(0))] {
        assert_eq!(settle(&bench.store, settlement).await, Settled::Fenced);
    }
    assert_eq!(bench.count("dead_letters").await, 0);
    assert!(take(&bench.store, &orders(), 10, HOUR).await.is_empty());
    assert_eq!(settle(&bench.store, retry(row, owner, HOUR, Counted::Yes)).await, Settled::Yes);
}

/// wolverine#2510: what could not be used was acknowledged and lost.
pub async fn a_dead_letter_keeps_everything(bench: &Bench) {
    let message = claiming(
        message_with(|message| {
            message.id = "client-1".into();
            message.tenant = "acme".into();
            message.body = vec![0, 255, 1].into();
            message.deduplication_id = Some("w".into());
            message.partition_key = Some("p".into());
            message.correlation_id = Some("c".into());
            message.deliver_at = Some(message.accepted_at - SHORT);
            message.deliver_by = Some(message.accepted_at + HOUR);
            message.envelope.subject = Some("s".into());
        }),
        "w",
        HOUR,
    );
    put(&bench.store, vec![message.clone()]).await;
    let (_, owner) = take_one(&bench.store).await;
    settle(&bench.store, retry(row(&message, 0), owner, Duration::ZERO, Counted::Yes)).await;
    let (_, owner) = take_one(&bench.store).await;
    assert_eq!(settle(&bench.store, dead(row(&message, 0), owner)).await, Settled::Yes);
    assert_eq!(bench.count("deliveries").await, 0);
    let letters = bench.dead_letters().await;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!(letter.row_id, message.row_id);
    assert_ne!(letter.id, message.row_id);
    assert_eq!((letter.id.get_version_num(), letter.attempts), (7, 2));
    assert_eq!((letter.target.as_str(), letter.tenant.as_str()), ("orders", "acme"));
    assert_eq!((letter.message_id.as_deref(), letter.kind.as_str()), (Some("client-1"), "order.created"));
    assert_eq!(letter.deduplication_id.as_deref(), Some("w"));
    assert_eq!((letter.partition_key.as_deref(), letter.correlation_id.as_deref()), (Some("p"), Some("c")));
    assert!(letter.has_claim_key && letter.has_times);
    assert_eq!((letter.error_kind.as_str(), letter.error_text.as_str()), ("Refused", "it said no"));
    let envelope: oncegate::domain::message::Envelope = serde_json::from_str(&letter.envelope).unwrap();
    assert_eq!(envelope, message.message.envelope);
    assert_eq!(letter.body, [0, 255, 1]);
    // It is found, and it keeps its claim: replay does the work.
    let status = bench.store.message("acme", "client-1").await.unwrap().unwrap();
    assert_eq!((status.targets[0].state, status.targets[0].attempts), (MessageState::Dead, 2));
    assert_eq!(status.targets[0].error_kind.as_deref(), Some("Refused"));
    assert!(bench.store.claim_of(work_key("w")).await.unwrap().is_some());
}

pub async fn a_batch_is_answered_in_order(bench: &Bench) {
    let messages: Vec<_> = (0..150).map(|_| message()).collect();
    put(&bench.store, messages.clone()).await;
    let owner = token();
    assert_eq!(take_as(&bench.store, &orders(), 1000, HOUR, owner).await.len(), 150);
    let batch: Vec<_> = messages
        .iter()
        .enumerate()
        .map(|(at, message)| match at % 5 {
            0 | 1 => done(row(message, 0)),
            2 => retry(row(message, 0), owner, HOUR, Counted::Yes),
            3 => dead(row(message, 0), owner),
            _ => dead(row(message, 0), token()),
        })
        .collect();
    let settled = bench.store.settle(&batch).await.unwrap();
    for (at, settled) in settled.into_iter().enumerate() {
        let expected = if at % 5 == 4 { Settled::Fenced } else { Settled::Yes };
        assert_eq!(settled, expected, "at {at}");
    }
    assert_eq!((bench.count("receipts").await, bench.count("dead_letters").await), (60, 30));
    assert_eq!(bench.count("deliveries").await, 60);
    // A row that is not there does not disturb the others.
    let unknown = RowKey { id: messages[0].row_id, target_no: 7 };
    let batch = [done(unknown), done(row(&messages[4], 0))];
    assert_eq!(bench.store.settle(&batch).await.unwrap(), [Settled::Fenced, Settled::Yes]);
}

/// wolverine#3898: per-message expiry.
pub async fn what_expired_becomes_a_dead_letter(bench: &Bench) {
    let soon = |target: Target| {
        to(message_with(|message| message.deliver_by = Some(message.accepted_at + SHORT)), &[target])
    };
    let [a, b] = [Target::destination("a"), Target::handler("b")];
    let in_time = message_with(|message| message.deliver_by = Some(message.accepted_at + HOUR));
    let messages = vec![soon(a.clone()), soon(a.clone()), soon(b.clone()), in_time, message()];
    put(&bench.store, messages.clone()).await;
    assert!(bench.store.expire(10).await.unwrap().is_empty());
    bench.pass(LONGER).await;
    let mut moved = bench.store.expire(10).await.unwrap();
    moved.sort();
    assert_eq!(moved, [(a, 2), (b, 1)]);
    assert!(bench.store.expire(10).await.unwrap().is_empty());
    assert_eq!(bench.count("deliveries").await, 2);
    for letter in bench.dead_letters().await {
        assert_eq!((letter.error_kind.as_str(), letter.attempts), (DeadKind::Expired.as_str(), 0));
    }
    let dead = only_target(bench, &messages[0].message.id).await;
    assert_eq!((dead.state, dead.error_kind.as_deref()), (MessageState::Dead, Some("Expired")));
}

pub async fn what_is_leased_does_not_expire(bench: &Bench) {
    let message = message_with(|message| message.deliver_by = Some(message.accepted_at + SHORT));
    put(&bench.store, vec![message.clone()]).await;
    let (_, owner) = take_one(&bench.store).await;
    bench.pass(LONGER).await;
    assert!(bench.store.expire(10).await.unwrap().is_empty(), "it is on its way");
    assert_eq!(bench.store.give_back(&[(row(&message, 0), owner)]).await.unwrap(), 1);
    assert_eq!(bench.store.expire(10).await.unwrap(), [(orders(), 1)]);
    // Its owner comes too late.
    let note = DeadNote { kind: DeadKind::Refused, text: String::new() };
    let late = Settle::Dead { error: note, counted: Counted::No };
    let late = Settlement { row: row(&message, 0), token: owner, outcome: late };
    assert_eq!(settle(&bench.store, late).await, Settled::Fenced);

    // Nor does anybody have a row whose lease has ended.
    let lapsed = message_with(|message| message.deliver_by = Some(bench.now() + SHORT));
    put(&bench.store, vec![lapsed]).await;
    assert_eq!(take(&bench.store, &orders(), 10, SHORT).await.len(), 1);
    bench.pass(LONGER).await;
    assert_eq!(bench.store.expire(10).await.unwrap(), [(orders(), 1)]);
}

pub async fn expiring_is_bounded(bench: &Bench) {
    let soon = || message_with(|message| message.deliver_by = Some(message.accepted_at + SHORT));
    put(&bench.store, (0..5).map(|_| soon()).collect()).await;
    bench.pass(LONGER).await;
    let mut moved = Vec::new();
    for _ in 0..4 {
        moved.push(bench.store.expire(2).await.unwrap().first().map_or(0, |(_, count)| *count));
    }
    assert_eq!(moved, [2, 2, 1, 0]);
}
