//! What happens when SQLite itself, or what is called from within a transaction, fails.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sqlx::AssertSqlSafe;

use super::{Inner, Sqlite, connect};
use crate::domain::delivery::Target;
use crate::domain::message::Envelope;
use crate::domain::{Clock, Message, Random};
use crate::store::accept::{Answer, MessageOutcome, NewDelivery, NoAnswer, Outcome, Request};
use crate::store::deliveries::Take;
use crate::store::{Error, ErrorKind, Options, Result, Store, accept};

/// A store in a folder of its own, removed at the end.
struct Fixture {
    store: Sqlite,
    inner: Arc<Inner>,
    folder: std::path::PathBuf,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

async fn fixture() -> Fixture {
    let name = format!("oncegate-sqlite-{}", Random.uuid_v7(Clock::system().now()));
    let folder = std::env::temp_dir().join(name);
    let path = folder.join("store.db");
    connect::create(&path).unwrap();
    let inner = super::file_at(&path, &Options::default());
    inner.prepare().await.unwrap();
    Fixture { store: Sqlite(Arc::clone(&inner)), inner, folder }
}

impl Fixture {
    /// Runs SQL on the connection that writes, outside of a transaction's rules.
    async fn tamper(&self, sql: &str) {
        let sql = sql.to_owned();
        self.inner
            .write(move |connection, _| {
                Box::pin(async move {
                    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map_err(super::error::of)?;
                    Ok(())
                })
            })
            .await
            .unwrap();
    }

    async fn accept(&self, request: Request) -> Result<Outcome> {
        self.store.accept(&[request]).await.remove(0)
    }

    async fn take(&self) -> usize {
        let lease = Duration::from_secs(60);
        let take = Take { target: Target::destination("a"), limit: 10, lease, token: Random.token() };
        self.store.take(&take).await.unwrap().len()
    }
}

fn request(body: Bytes, answer: impl Answer + 'static) -> Request {
    let now = Clock::system().now();
    let row_id = Random.uuid_v7(now);
    let message = Message {
        id: row_id.to_string(),
        kind: "t".into(),
        tenant: String::new(),
        body,
        deduplication_id: None,
        partition_key: None,
        correlation_id: None,
        deliver_at: None,
        deliver_by: None,
        accepted_at: now,
        envelope: Envelope::default(),
    };
    let message = accept::Message {
        row_id,
        message: message.into(),
        claim: None,
        same_as: None,
        targets: vec![NewDelivery::waiting(Target::destination("a"))],
    };
    Request { claim: None, messages: vec![message], answer: Arc::new(answer), token: Random.token() }
}

fn small() -> Request {
    request(Bytes::from_static(b"{}"), NoAnswer)
}

#[tokio::test]
async fn a_full_disk_is_unavailable_and_it_recovers() {
    let fixture = fixture().await;
    fixture.accept(small()).await.unwrap();
    fixture.tamper("PRAGMA max_page_count = 1").await;
    let group = [small(), request(vec![7; 1 << 20].into(), NoAnswer), small()];
    for outcome in fixture.store.accept(&group).await {
        assert_eq!(outcome.unwrap_err().kind, ErrorKind::Unavailable);
    }
    fixture.tamper("PRAGMA max_page_count = 1000000").await;
    fixture.accept(request(vec![7; 1 << 20].into(), NoAnswer)).await.unwrap();
    assert_eq!(fixture.take().await, 2);
}

#[tokio::test]
async fn a_read_only_file_is_unavailable() {
    let fixture = fixture().await;
    fixture.tamper("PRAGMA query_only = ON").await;
    assert_eq!(fixture.accept(small()).await.unwrap_err().kind, ErrorKind::Unavailable);
}

/// What cannot be read must not hold up what can.
#[tokio::test]
async fn an_unreadable_row_becomes_a_dead_letter() {
    let fixture = fixture().await;
    fixture.accept(small()).await.unwrap();
    fixture.tamper("UPDATE oncegate_deliveries SET envelope = 'no JSON'").await;
    fixture.accept(small()).await.unwrap();
    assert_eq!(fixture.take().await, 1);
    let mut reader = fixture.inner.reader().await.unwrap();
    let kinds: Vec<String> = sqlx::query_scalar("SELECT error_kind FROM oncegate_dead_letters")
        .fetch_all(&mut *reader)
        .await
        .unwrap();
    assert_eq!(kinds, ["Unreadable"]);
}

#[derive(Debug)]
struct Panics;

impl Answer for Panics {
    fn render(&self, _outcomes: &[MessageOutcome]) -> Option<Bytes> {
        panic!("on purpose")
    }
}

#[tokio::test]
async fn a_panic_within_a_transaction_leaves_none_open() {
    let fixture = fixture().await;
    let error: Error = fixture.accept(request(Bytes::new(), Panics)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    fixture.accept(small()).await.unwrap();
    assert_eq!(fixture.take().await, 1);
}

/// SQLite's statements fail one by one as a rule; here one of the group does, within the database.
#[tokio::test]
async fn what_the_database_refuses_fails_alone() {
    let fixture = fixture().await;
    fixture
        .tamper(
            "CREATE TRIGGER refuse BEFORE INSERT ON oncegate_deliveries WHEN new.body = CAST('bad' AS BLOB)
             BEGIN SELECT RAISE(ABORT, 'refused'); END",
        )
        .await;
    let group = [small(), request(Bytes::from_static(b"bad"), NoAnswer), small()];
    let outcomes = fixture.store.accept(&group).await;
    assert!(matches!(outcomes[0], Ok(Outcome::Stored(_))) && matches!(outcomes[2], Ok(Outcome::Stored(_))));
    assert_eq!(outcomes[1].as_ref().unwrap_err().kind, ErrorKind::InvalidData);
    assert_eq!(fixture.take().await, 2);
}
