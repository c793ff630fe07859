//! Messages, requests and what is asked of a store, in few words.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate::domain::claim::{ClaimKey, ClaimKind};
use oncegate::domain::delivery::Target;
use oncegate::domain::message::Envelope;
use oncegate::domain::{self, Clock, Random, RowKey, Timestamp, Token};
use oncegate::store::accept::{
    Answer, Duplicate, Message, MessageOutcome, NewDelivery, NoAnswer, Outcome, Request, RequestClaim,
    WorkClaim,
};
use oncegate::store::claims::NewClaim;
use oncegate::store::deliveries::{
    Counted, DeadNote, ErrorNote, Receipt, Settle, Settled, Settlement, Take, Taken,
};
use oncegate::store::{self, Shared};

pub const HOUR: Duration = Duration::from_secs(3600);
/// A lease, delay or window that a test waits for.
pub const SHORT: Duration = Duration::from_secs(1);
/// Certainly longer than [`SHORT`].
pub const LONGER: Duration = Duration::from_millis(1300);

pub fn token() -> Token {
    Random.token()
}

pub fn orders() -> Target {
    Target::destination("orders")
}

/// A message for the destination `orders`, due now.
pub fn message() -> Message {
    message_with(|_| {})
}

pub fn message_with(change: impl FnOnce(&mut domain::Message)) -> Message {
    let now = Clock::system().now();
    let row_id = Random.uuid_v7(now);
    let mut message = domain::Message {
        id: row_id.to_string(),
        kind: "order.created".into(),
        tenant: String::new(),
        body: Bytes::from_static(b"{\"number\":1}"),
        deduplication_id: None,
        partition_key: None,
        correlation_id: None,
        deliver_at: None,
        deliver_by: None,
        accepted_at: now,
        envelope: Envelope { content_type: Some("application/json".into()), ..Envelope::default() },
    };
    change(&mut message);
    Message {
        row_id,
        message: Arc::new(message),
        claim: None,
        same_as: None,
        targets: vec![NewDelivery::waiting(orders())],
    }
}

/// A message that asks for the work `id`.
pub fn work(id: &str) -> Message {
    claiming(message_with(|message| message.deduplication_id = Some(id.into())), id, HOUR)
}

pub fn work_key(id: &str) -> ClaimKey {
    ClaimKey::new(ClaimKind::Work, &["", "order.created"], id)
}

pub fn claiming(mut message: Message, id: &str, window: Duration) -> Message {
    let claim = WorkClaim { key: work_key(id), scope: "order.created".into(), id: id.into(), window };
    message.claim = Some(claim);
    message
}

pub fn to(mut message: Message, targets: &[Target]) -> Message {
    let new = |target: &Target| NewDelivery::waiting(target.clone());
    message.targets = targets.iter().map(new).collect();
    message
}

pub fn held(mut message: Message, hold: Duration) -> Message {
    for new in &mut message.targets {
        new.hold = Some(hold);
    }
    message
}

pub fn request(messages: Vec<Message>) -> Request {
    Request { claim: None, messages, answer: Arc::new(NoAnswer), token: token() }
}

/// A request with an idempotency key; its fingerprint is made of `fingerprint`.
pub fn keyed(key: &str, fingerprint: u8, messages: Vec<Message>) -> Request {
    let claim = RequestClaim {
        key: ClaimKey::new(ClaimKind::Request, &["tenant", "client"], key),
        scope: "tenant client".into(),
        id: key.into(),
        fingerprint: [fingerprint; 32],
        window: HOUR,
    };
    Request { claim: Some(claim), answer: Arc::new(Words), ..request(messages) }
}

/// Renders outcomes as words.
#[derive(Debug)]
pub struct Words;

impl Answer for Words {
    fn render(&self, outcomes: &[MessageOutcome]) -> Option<Bytes> {
        let word = |outcome: &MessageOutcome| match outcome {
            MessageOutcome::Accepted { expires_at: Some(at) } => format!("accepted until {at}"),
            MessageOutcome::Accepted { expires_at: None } => "accepted".to_owned(),
            MessageOutcome::Duplicate(first) => {
                format!("duplicate of {:?} until {}", first.claim.message_id, first.claim.expires_at)
            }
        };
        Some(outcomes.iter().map(word).collect::<Vec<_>>().join("; ").into())
    }
}

/// Refuses requests with a duplicate in them.
#[derive(Debug)]
pub struct NoDuplicates;

impl Answer for NoDuplicates {
    fn render(&self, outcomes: &[MessageOutcome]) -> Option<Bytes> {
        let accepted = outcomes.iter().all(|outcome| matches!(outcome, MessageOutcome::Accepted { .. }));
        accepted.then(|| Bytes::from_static(b"accepted"))
    }
}

pub async fn accept(store: &Shared, request: Request) -> store::Result<Outcome> {
    let mut outcomes = store.accept(&[request]).await;
    assert_eq!(outcomes.len(), 1);
    outcomes.remove(0)
}

/// Accepts a request of these messages, all of which have to be stored.
pub async fn put(store: &Shared, messages: Vec<Message>) {
    let outcome = accept(store, request(messages)).await.expect("accepted");
    for outcome in stored(outcome) {
        assert!(matches!(outcome, MessageOutcome::Accepted { .. }), "{outcome:?}");
    }
}

pub fn stored(outcome: Outcome) -> Vec<MessageOutcome> {
    match outcome {
        Outcome::Stored(outcomes) => outcomes,
        other => panic!("not stored: {other:?}"),
    }
}

pub fn duplicate(outcome: &MessageOutcome) -> &Duplicate {
    match outcome {
        MessageOutcome::Duplicate(duplicate) => duplicate,
        MessageOutcome::Accepted { .. } => panic!("not a duplicate: {outcome:?}"),
    }
}

pub fn expiry(outcome: &MessageOutcome) -> Timestamp {
    match outcome {
        MessageOutcome::Accepted { expires_at: Some(at) } => *at,
        other => panic!("no expiry: {other:?}"),
    }
}

pub async fn take(store: &Shared, target: &Target, limit: u32, lease: Duration) -> Vec<Taken> {
    take_as(store, target, limit, lease, token()).await
}

pub async fn take_as(
    store: &Shared,
    target: &Target,
    limit: u32,
    lease: Duration,
    token: Token,
) -> Vec<Taken> {
    let take = Take { target: target.clone(), limit, lease, token };
    store.take(&take).await.expect("taken")
}

/// Takes what is due for `orders` and needs it to be one row; its lease is an hour.
pub async fn take_one(store: &Shared) -> (Taken, Token) {
    let token = token();
    let mut taken = take_as(store, &orders(), 10, HOUR, token).await;
    assert_eq!(taken.len(), 1, "{taken:?}");
    (taken.remove(0), token)
}

pub fn row(message: &Message, target_no: i16) -> RowKey {
    RowKey { id: message.row_id, target_no }
}

pub fn done(row: RowKey) -> Settlement {
    Settlement { row, token: Token(0), outcome: Settle::Done { receipt: Receipt::Keep } }
}

pub fn retry(row: RowKey, token: Token, after: Duration, counted: Counted) -> Settlement {
    let error = ErrorNote { kind: "Attempt", text: "it did not answer".into() };
    Settlement { row, token, outcome: Settle::Retry { after, counted, error } }
}

pub fn dead(row: RowKey, token: Token) -> Settlement {
    let error = DeadNote { kind: domain::delivery::DeadKind::Refused, text: "it said no".into() };
    Settlement { row, token, outcome: Settle::Dead { error, counted: Counted::Yes } }
}

pub async fn settle(store: &Shared, settlement: Settlement) -> Settled {
    let settled = store.settle(&[settlement]).await.expect("settled");
    assert_eq!(settled.len(), 1);
    settled[0]
}

pub fn consumer_key(id: &str) -> ClaimKey {
    ClaimKey::new(ClaimKind::Consumer, &["tenant", "billing"], id)
}

pub fn claim(id: &str, token: Token, lease: Duration) -> NewClaim {
    NewClaim {
        key: consumer_key(id),
        kind: ClaimKind::Consumer,
        scope: "tenant billing".into(),
        id: id.into(),
        tenant: "tenant".into(),
        token,
        lease,
        message_id: Some("m-1".into()),
        fingerprint: None,
    }
}
