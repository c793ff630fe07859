use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::*;
use crate::domain::claim::{ClaimKey, ClaimKind};
use crate::domain::message::Envelope;
use crate::domain::{self, Clock, Random};
use crate::store::accept::{Message, NoAnswer, WorkClaim};

pub(super) fn work(id: &str) -> ClaimKey {
    ClaimKey::new(ClaimKind::Work, &["t"], id)
}

/// A request with one message per key; an empty key is no claim. Without keys: one message without claim.
pub(super) fn request(keys: &[&str]) -> Request {
    let keys = if keys.is_empty() { &[""] } else { keys };
    let messages = keys.iter().map(|key| message(key)).collect();
    Request { claim: None, messages, answer: Arc::new(NoAnswer), token: Random.token() }
}

fn message(key: &str) -> Message {
    let message = domain::Message {
        id: key.to_owned(),
        kind: "test".into(),
        tenant: String::new(),
        body: Bytes::from_static(b"{}"),
        deduplication_id: None,
        partition_key: None,
        correlation_id: None,
        deliver_at: None,
        deliver_by: None,
        accepted_at: Clock::system().now(),
        envelope: Envelope::default(),
    };
    let claim = (!key.is_empty()).then(|| WorkClaim {
        key: work(key),
        scope: "t".into(),
        id: key.into(),
        window: Duration::from_secs(60),
    });
    Message {
        row_id: Uuid::from_u128(1),
        message: Arc::new(message),
        claim,
        same_as: None,
        targets: Vec::new(),
    }
}

/// Remembers the groups; each waits for a permit. Panics on a message named `panic`.
struct Fake {
    gate: Semaphore,
    groups: Mutex<Vec<Vec<String>>>,
    taken: Mutex<HashSet<ClaimKey>>,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
}

impl Fake {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            gate: Semaphore::new(0),
            groups: Mutex::default(),
            taken: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            most_in_flight: AtomicUsize::new(0),
        })
    }

    fn groups(&self) -> Vec<Vec<String>> {
        self.groups.lock().unwrap().clone()
    }

    async fn until_groups(&self, count: usize) {
        while self.groups().len() < count {
            tokio::task::yield_now().await;
        }
    }
}

#[async_trait]
impl Sink for Arc<Fake> {
    async fn accept(&self, group: &[Request]) -> Vec<Result<Outcome>> {
        let names = group.iter().map(|request| request.messages[0].message.id.clone()).collect::<Vec<_>>();
        let keys: Vec<ClaimKey> =
            group.iter().flat_map(|r| &r.messages).filter_map(|m| Some(m.claim.as_ref()?.key)).collect();
        {
            let mut taken = self.taken.lock().unwrap();
            for key in &keys {
                assert!(taken.insert(*key), "a key is in flight twice");
            }
        }
        self.groups.lock().unwrap().push(names.clone());
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_in_flight.fetch_max(now, Ordering::SeqCst);
        self.gate.acquire().await.unwrap().forget();
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.taken.lock().unwrap().retain(|key| !keys.contains(key));
        assert!(!names.contains(&"panic".to_owned()), "as asked for");
        group.iter().map(|_| Ok(Outcome::Stored(Vec::new()))).collect()
    }
}

fn acceptor(fake: &Arc<Fake>, writers: usize, limits: Limits) -> Acceptor {
    Acceptor::over(Box::new(Arc::clone(fake)), writers, limits)
}

async fn start(acceptor: &Acceptor, keys: &[&str]) -> tokio::task::JoinHandle<Result<Outcome>> {
    let (acceptor, request) = (acceptor.clone(), request(keys));
    let task = tokio::spawn(async move { acceptor.accept(request).await });
    for _ in 0..5 {
        tokio::task::yield_now().await;
    }
    task
}

#[tokio::test]
async fn what_queues_while_the_writers_are_busy_is_one_group() {
    let fake = Fake::new();
    let acceptor = acceptor(&fake, 2, Limits::default());
    let mut tasks = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        tasks.push(start(&acceptor, &[name]).await);
    }
    fake.until_groups(2).await;
    assert_eq!(acceptor.queued(), 3);
    fake.gate.add_permits(3);
    for task in tasks {
        assert!(matches!(task.await.unwrap(), Ok(Outcome::Stored(_))));
    }
    assert_eq!(fake.groups(), [vec!["a"], vec!["b"], vec!["c", "d", "e"]]);
    assert_eq!(fake.most_in_flight.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_follower_waits_for_its_leaders_outcome_and_holds_back_nobody() {
    let fake = Fake::new();
    let acceptor = acceptor(&fake, 2, Limits::default());
    let leader = start(&acceptor, &["a"]).await;
    let follower = start(&acceptor, &["a"]).await;
    let neighbour = start(&acceptor, &["b"]).await;
    fake.until_groups(2).await;
    assert_eq!(fake.groups(), [["a"], ["b"]]);
    fake.gate.add_permits(3);
    for task in [leader, neighbour, follower] {
        task.await.unwrap().unwrap();
    }
    assert_eq!(fake.groups(), [["a"], ["b"], ["a"]]);
}

#[tokio::test]
async fn a_panic_of_the_store_leaves_the_outcome_unknown_and_the_keys_free() {
    let fake = Fake::new();
    let acceptor = acceptor(&fake, 1, Limits::default());
    fake.gate.add_permits(10);
    let error = start(&acceptor, &["panic"]).await.await.unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutcomeUnknown);
    let error = start(&acceptor, &["panic"]).await.await.unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutcomeUnknown);
    start(&acceptor, &["a"]).await.await.unwrap().unwrap();
}

#[tokio::test]
async fn over_the_limit_a_request_is_refused_at_once() {
    let fake = Fake::new();
    let acceptor = acceptor(&fake, 1, Limits { queued_requests: 2, ..Limits::default() });
    let first = start(&acceptor, &["a"]).await;
    fake.until_groups(1).await;
    let queued = [start(&acceptor, &["b"]).await, start(&acceptor, &["c"]).await];
    let error = acceptor.accept(request(&["d"])).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Overloaded);
    fake.gate.add_permits(2);
    first.await.unwrap().unwrap();
    for task in queued {
        task.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_request_whose_caller_is_gone_is_carried_through() {
    let fake = Fake::new();
    let acceptor = acceptor(&fake, 1, Limits::default());
    let first = start(&acceptor, &["a"]).await;
    let second = start(&acceptor, &["b"]).await;
    first.abort();
    second.abort();
    fake.gate.add_permits(2);
    acceptor.close().await;
    assert_eq!(fake.groups(), [["a"], ["b"]]);
}

#[tokio::test]
async fn closing_waits_for_what_is_queued_and_refuses_what_comes() {
    let fake = Fake::new();
    let acceptor = acceptor(&fake, 1, Limits::default());
    let leader = start(&acceptor, &["a"]).await;
    let follower = start(&acceptor, &["a"]).await;
    let closing = tokio::spawn({
        let acceptor = acceptor.clone();
        async move { acceptor.close().await }
    });
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    let refused = acceptor.accept(request(&["b"])).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable);
    assert!(!closing.is_finished());
    fake.gate.add_permits(2);
    closing.await.unwrap();
    assert_eq!(acceptor.queued(), 0);
    leader.await.unwrap().unwrap();
    follower.await.unwrap().unwrap();
}
