//! What is asked of a store, in few words.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate::domain::claim::{ClaimKey, ClaimKind};
use oncegate::domain::delivery::Target;
use oncegate::domain::message::Envelope;
use oncegate::domain::{self, Clock, Random};
use oncegate::store::accept::{
    Answer, Message, MessageOutcome, NewDelivery, NoAnswer, Outcome, Request, RequestClaim, WorkClaim,
};
use oncegate::store::{self, Options, Shared};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::support::postgres::Postgres;
use crate::support::proxy::Proxy;

pub const HOUR: Duration = Duration::from_secs(3_600);

pub async fn open(url: &str) -> Shared {
    store::open(url, &Options::default()).await.expect("a URL of PostgreSQL")
}

pub async fn migrated(url: &str) -> Shared {
    let store = open(url).await;
    store.migrate().await.expect("migrate");
    store
}

/// A store on a database of its own, and a connection beside it.
pub async fn fresh(server: &Postgres) -> (Shared, PgConnection, String) {
    let url = server.fresh_database().await;
    (migrated(&url).await, PgConnection::connect(&url).await.expect("connect"), url)
}

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
        body: Bytes::from_static(b"{}"),
        deduplication_id: None,
        partition_key: None,
        correlation_id: None,
        deliver_at: None,
        deliver_by: None,
        accepted_at: now,
        envelope: Envelope::default(),
    };
    change(&mut message);
    let targets = vec![NewDelivery::waiting(orders())];
    Message { row_id, message: Arc::new(message), claim: None, same_as: None, targets }
}

pub fn work(id: &str) -> Message {
    Message {
        claim: Some(WorkClaim { key: work_key(id), scope: "t".into(), id: id.into(), window: HOUR }),
        ..message()
    }
}

pub fn work_key(id: &str) -> ClaimKey {
    ClaimKey::new(ClaimKind::Work, &["t"], id)
}

pub fn request(messages: Vec<Message>) -> Request {
    Request { claim: None, messages, answer: Arc::new(NoAnswer), token: Random.token() }
}

pub fn keyed(key: &str, messages: Vec<Message>) -> Request {
    let claim = RequestClaim {
        key: ClaimKey::new(ClaimKind::Request, &["t"], key),
        scope: "t".into(),
        id: key.into(),
        fingerprint: [7; 32],
        window: HOUR,
    };
    Request { claim: Some(claim), answer: Arc::new(Words), ..request(messages) }
}

/// Tells of each message whether it was accepted.
#[derive(Debug)]
struct Words;

impl Answer for Words {
    fn render(&self, outcomes: &[MessageOutcome]) -> Option<Bytes> {
        let word = |outcome: &MessageOutcome| match outcome {
            MessageOutcome::Accepted { .. } => "accepted",
            MessageOutcome::Duplicate(_) => "duplicate",
        };
        Some(outcomes.iter().map(word).collect::<Vec<_>>().join(" ").into())
    }
}

pub fn orders() -> Target {
    Target::destination("orders")
}

pub async fn accept(store: &Shared, request: Request) -> store::Result<Outcome> {
    store.accept(&[request]).await.pop().expect("an outcome")
}

pub async fn count(connection: &mut PgConnection, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM oncegate.{table}");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await.expect("count")
}

pub fn is_stored(outcome: &store::Result<Outcome>) -> bool {
    matches!(outcome, Ok(Outcome::Stored(_)))
}

pub async fn through_proxy(server: &Postgres) -> (Shared, PgConnection, Proxy) {
    let (store, connection, url) = fresh(server).await;
    store.close().await;
    let proxy = Proxy::start(server.port()).await;
    let url = url.replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()));
    (open(&url).await, connection, proxy)
}
