//! From publish to the target, with a transport that does as it is told: what an attempt's end means for the
//! row, the breaker and the others; leases; pausing; draining.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use oncegate::auth::Principal;
use oncegate::config::identity::Messages;
use oncegate::delivery::{Engine, Options, TargetOptions, breaker};
use oncegate::domain::delivery::{DeadKind, Delivery, Failure, Fault, Target};
use oncegate::domain::message::Draft;
use oncegate::domain::retry::Backoff;
use oncegate::domain::routing::{Route, Table, Unroutable};
use oncegate::domain::{Clock, Random, fields};
use oncegate::gateway::invoke::Invoker;
use oncegate::gateway::publish::{Call, Form};
use oncegate::gateway::{
    Cascades, Destinations, Gateway, Handlers, Keeping, Parts, Preparer, Routing, Settings, StoreNode, Stores,
};
use oncegate::store::group;
use oncegate::store::status::MessageQuery;
use oncegate::telemetry::Metrics;
use oncegate::telemetry::trace::Traces;
use oncegate::transport::{Ack, Transport};
use oncegate::{store, transport};
use tokio::sync::Semaphore;

use crate::support::{eventually, when};

const SOON: Duration = Duration::from_secs(20);

/// Records attempts; answers as scripted, then with success. While `gate` has no permits it answers nothing.
struct Scripted {
    attempts: Mutex<Vec<Delivery>>,
    script: Mutex<VecDeque<Reply>>,
    gate: Semaphore,
}

enum Reply {
    Fail(Failure),
    Panic,
    /// Never.
    Silence,
}

impl Scripted {
    fn new(script: impl IntoIterator<Item = Reply>) -> Arc<Self> {
        Arc::new(Self {
            attempts: Mutex::default(),
            script: Mutex::new(script.into_iter().collect()),
            gate: Semaphore::new(Semaphore::MAX_PERMITS),
        })
    }

    /// Holds every attempt until permits are added.
    fn closed() -> Arc<Self> {
        Arc::new(Self { attempts: Mutex::default(), script: Mutex::default(), gate: Semaphore::new(0) })
    }

    fn count(&self) -> usize {
        self.attempts.lock().unwrap().len()
    }

    fn ids(&self) -> Vec<String> {
        self.attempts.lock().unwrap().iter().map(|delivery| delivery.message.id.clone()).collect()
    }
}

#[async_trait]
impl Transport for Scripted {
    async fn send(&self, delivery: &Delivery) -> Result<Ack, Failure> {
        self.attempts.lock().unwrap().push(delivery.clone());
        let reply = self.script.lock().unwrap().pop_front();
        match reply {
            Some(Reply::Fail(failure)) => return Err(failure),
            Some(Reply::Panic) => panic!("as scripted"),
            Some(Reply::Silence) => std::future::pending().await,
            None => {}
        }
        self.gate.acquire().await.unwrap().forget();
        Ok(Ack::default())
    }
}

/// A node on a fresh embedded store.
struct Node {
    gateway: Arc<Gateway>,
    store: store::Shared,
    url: String,
    _folder: Folder,
}

struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn target(name: &str, transport: &Arc<Scripted>) -> TargetOptions {
    TargetOptions {
        target: Target::destination(name),
        transport: Arc::clone(transport) as transport::Shared,
        timeout: Duration::from_secs(5),
        lease: Duration::from_secs(15),
        stale: Duration::from_secs(15),
        max_in_flight: 8,
        pace: None,
        retry: Backoff {
            max_attempts: 3,
            initial: Duration::from_millis(20),
            max: Duration::from_millis(50),
        },
        breaker: breaker::Settings { failures: 50, open: Duration::from_millis(200) },
        paused: false,
        order: None,
        handler: None,
    }
}

async fn open(url: &str) -> store::Shared {
    let store = store::open(url, &store::Options::default()).await.unwrap();
    store.migrate().await.unwrap();
    store
}

async fn node(targets: Vec<TargetOptions>) -> Node {
    let folder =
        std::env::temp_dir().join(format!("oncegate-relay-{}", Random.uuid_v7(Clock::system().now())));
    let url = format!("sqlite:{}", folder.join("store.db").display());
    let store = open(&url).await;
    Node { gateway: gateway_on(Arc::clone(&store), targets), store, url, _folder: Folder(folder) }
}

/// Every message goes to every target.
fn gateway_on(store: store::Shared, targets: Vec<TargetOptions>) -> Arc<Gateway> {
    let (clock, random, metrics) = (Clock::system(), Random, Metrics::new(None).unwrap());
    let names: Vec<String> = targets.iter().map(|options| options.target.name.to_string()).collect();
    let options = Options { poll: Duration::from_millis(500), ..Options::default() };
    let engine =
        Engine::start("main", Arc::clone(&store), targets, options, clock.clone(), random, metrics.clone());
    let routing = Routing {
        destinations: Destinations::new(names.iter().map(String::as_str)),
        handlers: Handlers::default(),
        table: Table::new(vec![Route { types: vec!["*".parse().unwrap()], targets: names }]),
        ordered: std::collections::BTreeSet::new(),
        unroutable: Unroutable::Refuse,
    };
    let preparer = Preparer {
        routing,
        messages: Messages::default(),
        keeping: Keeping::Deliveries,
        random,
        metrics: metrics.clone(),
        traces: Traces::default(),
    };
    let (limits, cascading) = (fields::Limits::default(), clock.clone());
    let cascades = Cascades { preparer: preparer.clone(), limits, clock: cascading };
    Gateway::new(Parts {
        receivers: oncegate::gateway::receive::Receivers::default(),
        stores: Stores::one(StoreNode::new("main", store, engine, &metrics, group::Limits::default())),
        invoker: Invoker::new(std::collections::BTreeMap::new(), cascades, Duration::from_secs(60), 1_024),
        preparer,
        settings: Settings {
            limits: fields::Limits::default(),
            claim_window: Duration::from_secs(60),
            idempotency_window: Duration::from_secs(60),
            ..Settings::default()
        },
        clock,
        random,
        metrics,
        traces: Traces::default(),
    })
}

impl Node {
    async fn publish(&self, change: impl FnOnce(&mut Draft)) {
        let mut draft = Draft { kind: "order.created".into(), body: "{}".into(), ..Draft::default() };
        change(&mut draft);
        self.publish_all(vec![draft]).await;
    }

    async fn publish_all(&self, drafts: Vec<Draft>) {
        let call = Call { principal: Principal::anonymous(), form: Form::Batch, drafts, key: None };
        self.gateway.publish(call).await.unwrap();
    }

    async fn publish_many(&self, count: usize) {
        let draft =
            |n: usize| Draft { id: Some(format!("m-{n}")), kind: "order.created".into(), ..Draft::default() };
        self.publish_all((0..count).map(draft).collect()).await;
    }

    async fn depth(&self) -> u64 {
        self.store.backlog().await.unwrap().iter().map(|backlog| backlog.depth).sum()
    }

    async fn is_empty(&self) -> Option<()> {
        when(self.depth().await == 0)
    }

    async fn dead(&self, id: &str) -> Option<String> {
        let status = self.store.message("", id).await.unwrap()?;
        let one = status.targets.into_iter().find(|one| one.state == store::accept::MessageState::Dead)?;
        one.error_kind
    }
}

fn fails(fault: Fault) -> Reply {
    Reply::Fail(Failure::new(fault, "as scripted"))
}

#[tokio::test]
async fn what_is_accepted_is_sent_from_memory_and_its_row_goes() {
    let transport = Scripted::new([]);
    let node = node(vec![target("out", &transport)]).await;
    node.publish_many(100).await;
    eventually(SOON, "all rows are gone", || node.is_empty()).await;
    let mut ids = transport.ids();
    ids.sort();
    ids.dedup();
    assert_eq!((transport.count(), ids.len()), (100, 100), "each once");
}

#[tokio::test]
async fn what_does_not_fit_into_memory_is_sent_from_the_store() {
    let transport = Scripted::new([]);
    let node = node(vec![target("out", &transport)]).await;
    let before = node.gateway.publish(Call {
        principal: Principal::anonymous(),
        form: Form::Batch,
        drafts: (0..900).map(|_| Draft { kind: "x".into(), ..Draft::default() }).collect(),
        key: None,
    });
    before.await.unwrap();
    eventually(SOON, "all rows are gone", || node.is_empty()).await;
    assert_eq!(transport.count(), 900);
}

/// CAP#1429, wolverine#585: a failed attempt is made again, with its count, and ends.
#[tokio::test]
async fn attempts_are_counted_made_again_and_end_in_a_dead_letter() {
    let transport = Scripted::new([fails(Fault::Attempt), fails(Fault::Attempt), fails(Fault::Attempt)]);
    let node = node(vec![target("out", &transport)]).await;
    node.publish(|draft| draft.id = Some("m".into())).await;
    let kind = eventually(SOON, "it is a dead letter", || node.dead("m")).await;
    assert_eq!(kind, "AttemptsExhausted");
    let attempts: Vec<u32> = transport.attempts.lock().unwrap().iter().map(|d| d.attempts).collect();
    assert_eq!(attempts, [0, 1, 2]);
}

/// wolverine#1686, kafka-rest#1413: what can't succeed is not tried again.
#[tokio::test]
async fn the_messages_fault_is_a_dead_letter_at_once() {
    let transport = Scripted::new([fails(Fault::Message(DeadKind::TooLarge))]);
    let node = node(vec![target("out", &transport)]).await;
    node.publish(|draft| draft.id = Some("m".into())).await;
    assert_eq!(eventually(SOON, "it is a dead letter", || node.dead("m")).await, "TooLarge");
    assert_eq!(transport.count(), 1);
}

/// The target's own fault opens its breaker, costs no attempt, and everything is sent when it is back.
#[tokio::test]
async fn the_targets_fault_costs_no_attempt_and_all_is_sent_when_it_is_back() {
    let transport = Scripted::new((0..10).map(|_| fails(Fault::Target)));
    let node = node(vec![target("out", &transport)]).await;
    node.publish_many(30).await;
    eventually(SOON, "all rows are gone", || node.is_empty()).await;
    let delivered: Vec<Delivery> = transport.attempts.lock().unwrap().split_off(10);
    assert_eq!(delivered.len(), 30, "each once after the outage");
    assert!(delivered.iter().all(|delivery| delivery.attempts == 0), "no attempt was counted");
}

/// sequin#2154: one bad target stops nobody else.
#[tokio::test]
async fn a_silent_target_holds_up_no_other() {
    let silent = Scripted::new((0..1_000).map(|_| Reply::Silence));
    let healthy = Scripted::new([]);
    let node = node(vec![target("silent", &silent), target("healthy", &healthy)]).await;
    node.publish_many(200).await;
    eventually(SOON, "the healthy one has all", || async { when(healthy.count() == 200) }).await;
}

#[tokio::test]
async fn a_defect_in_a_transport_is_an_attempt() {
    let transport = Scripted::new([Reply::Panic]);
    let node = node(vec![target("out", &transport)]).await;
    node.publish(|_| {}).await;
    eventually(SOON, "the row is gone", || node.is_empty()).await;
    assert_eq!(transport.count(), 2);
}

/// A target slower than a lease can cover: what cannot be begun in time is forgotten, not sent twice.
#[tokio::test]
async fn under_a_backlog_of_a_slow_target_nothing_is_sent_twice() {
    let transport = Scripted::closed();
    let mut options = target("slow", &transport);
    options.max_in_flight = 2;
    options.timeout = Duration::from_millis(1_500);
    options.lease = Duration::from_millis(2_000);
    let node = node(vec![options]).await;
    node.publish_many(16).await;
    // Two at a time, each answered after most of its timeout.
    let feed = Arc::clone(&transport);
    let feeder = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(600)).await;
            feed.gate.add_permits(2);
        }
    });
    eventually(Duration::from_secs(60), "all rows are gone", || node.is_empty()).await;
    feeder.abort();
    let mut ids = transport.ids();
    assert_eq!(ids.len(), 16, "none was begun twice: {ids:?}");
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 16);
}

#[tokio::test]
async fn what_expired_is_a_dead_letter_and_not_sent() {
    let transport = Scripted::new([]);
    let mut options = target("out", &transport);
    options.paused = true;
    let node = node(vec![options]).await;
    let by = Clock::system().now() + chrono::Duration::milliseconds(300);
    node.publish(|draft| {
        draft.id = Some("m".into());
        draft.deliver_by = Some(by);
    })
    .await;
    assert_eq!(eventually(SOON, "it is a dead letter", || node.dead("m")).await, "Expired");
    assert_eq!(transport.count(), 0);
}

/// wolverine#1846: scheduled in the past means at once, and once.
#[tokio::test]
async fn scheduled_in_the_past_means_now_and_once() {
    let transport = Scripted::new([]);
    let node = node(vec![target("out", &transport)]).await;
    node.publish(|draft| draft.deliver_at = Some(Clock::system().now() - chrono::Duration::hours(1))).await;
    eventually(SOON, "the row is gone", || node.is_empty()).await;
    assert_eq!(transport.count(), 1);
}

#[tokio::test]
async fn what_is_scheduled_is_sent_at_its_time_and_not_before() {
    let transport = Scripted::new([]);
    let node = node(vec![target("out", &transport)]).await;
    let at = Clock::system().now() + chrono::Duration::milliseconds(1_200);
    node.publish(|draft| draft.deliver_at = Some(at)).await;
    assert_eq!(node.depth().await, 1);
    eventually(SOON, "the row is gone", || node.is_empty()).await;
    assert!(Clock::system().now() >= at, "not before its time");
    assert_eq!(transport.count(), 1);
}

/// wolverine#4213: draining dead-letters nothing and loses nothing; what was not attempted is due at once.
#[tokio::test]
async fn draining_gives_back_what_was_not_attempted() {
    let transport = Scripted::closed();
    let Node { gateway, store, url, _folder } = node(vec![target("out", &transport)]).await;
    let node = Node { gateway, store, url, _folder };
    node.publish_many(50).await;
    eventually(SOON, "attempts are under way", || async { when(transport.count() == 8) }).await;
    let draining = tokio::spawn({
        let gateway = Arc::clone(&node.gateway);
        async move { gateway.drain(Duration::from_secs(10)).await }
    });
    eventually(SOON, "it refuses new messages", || async {
        let call = Call {
            principal: Principal::anonymous(),
            form: Form::Single,
            drafts: vec![Draft { kind: "late".into(), ..Draft::default() }],
            key: None,
        };
        when(node.gateway.publish(call).await.is_err())
    })
    .await;
    transport.gate.add_permits(8);
    draining.await.unwrap();
    let store = open(&node.url).await;
    let due = store.due_in(&[Target::destination("out")]).await.unwrap();
    assert_eq!(due, [Some(Duration::ZERO)], "the rest is due now, not when leases end");
    let backlog = store.backlog().await.unwrap();
    let query = MessageQuery { kind: Some("late".into()), limit: 100, ..MessageQuery::default() };
    let late = store.messages(&query);
    let late = late.await.unwrap().items.len() as u64;
    assert_eq!(backlog[0].depth, 42 + late, "what was answered has gone");
    // The next node sends the rest at once.
    transport.gate.add_permits(1_000);
    let next = gateway_on(Arc::clone(&store), vec![target("out", &transport)]);
    eventually(SOON, "all rows are gone", || async {
        when(store.backlog().await.unwrap().iter().all(|backlog| backlog.depth == 0))
    })
    .await;
    assert_eq!(transport.count() as u64, 50 + late, "each once");
    next.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_paused_target_keeps_its_messages_and_sends_them_when_resumed() {
    let transport = Scripted::new([]);
    let node = node(vec![target("out", &transport)]).await;
    node.gateway.pause(&Principal::anonymous(), "out").await.unwrap();
    node.publish_many(10).await;
    let targets = node.gateway.targets(&Principal::anonymous()).await.unwrap();
    assert_eq!((targets.items[0].depth, targets.items[0].paused), (10, true));
    assert_eq!(transport.count(), 0);
    node.gateway.resume(&Principal::anonymous(), "out").await.unwrap();
    eventually(SOON, "all rows are gone", || node.is_empty()).await;
    assert_eq!(transport.count(), 10);
}

/// A pause is remembered in the store: a node that starts attempts nothing before it has read which there are.
#[tokio::test]
async fn a_node_that_starts_respects_the_pauses_of_before() {
    let transport = Scripted::new([]);
    let node = node(vec![target("out", &transport)]).await;
    node.gateway.pause(&Principal::anonymous(), "out").await.unwrap();
    node.publish_many(100).await;
    node.gateway.drain(Duration::from_secs(5)).await;
    let store = open(&node.url).await;
    let next = gateway_on(Arc::clone(&store), vec![target("out", &transport)]);
    next.resume(&Principal::anonymous(), "out").await.unwrap();
    eventually(SOON, "all rows are gone", || async { when(transport.count() == 100) }).await;
    next.drain(Duration::from_secs(5)).await;
    // And with the pause left in place, nothing is ever attempted.
    let store = open(&node.url).await;
    store.set_paused(&Target::destination("out"), store::status::Paused::Yes).await.unwrap();
    let third = gateway_on(Arc::clone(&store), vec![target("out", &transport)]);
    let call = Call {
        principal: Principal::anonymous(),
        form: Form::Batch,
        drafts: (0..50).map(|_| Draft { kind: "x".into(), ..Draft::default() }).collect(),
        key: None,
    };
    third.publish(call).await.unwrap();
    third.drain(Duration::from_secs(5)).await;
    assert_eq!(transport.count(), 100, "nothing was attempted while it was paused");
}
