//! The gateway against a small pure model: random sequences of keyed publishes, expiries and cancels.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use oncegate::auth::Principal;
use oncegate::config::identity::Messages;
use oncegate::delivery::{Engine, Options, TargetOptions, breaker};
use oncegate::domain::delivery::{Delivery, Failure, Target};
use oncegate::domain::identity::{Enforcement, Identity, OnDuplicate, Scope, TypeOptions};
use oncegate::domain::message::{Draft, DraftDeduplication};
use oncegate::domain::retry::Backoff;
use oncegate::domain::routing::{Route, Table, Unroutable};
use oncegate::domain::{Clock, Random, fields};
use oncegate::gateway::invoke::Invoker;
use oncegate::gateway::publish::{Call, Form, PublishAnswer, Replayed, RequestKey};
use oncegate::gateway::{
    Cascades, Destinations, Error, Gateway, Handlers, Keeping, Parts, Preparer, Routing, Settings, StoreNode,
    Stores,
};
use oncegate::store::{self, group};
use oncegate::telemetry::Metrics;
use oncegate::telemetry::trace::Traces;
use oncegate::transport::{Ack, Transport};
use proptest::prelude::*;

use crate::support::run;

/// How long ids and keys are remembered. Time moves in steps of ten seconds, so that the seconds which the test
/// itself takes decide nothing.
const WORK_WINDOW: i64 = 95;
const KEY_WINDOW: i64 = 65;

#[derive(Clone, Debug)]
enum Step {
    /// With this key and id, due in so many tens of seconds.
    Publish {
        key: Option<u8>,
        id: Option<u8>,
        due: u8,
    },
    /// So many tens of seconds go by.
    Pass(u8),
    /// Cancels the message that was accepted last for this id.
    Cancel(u8),
    Purge,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (proptest::option::of(0..3_u8), proptest::option::of(0..3_u8), 0..6_u8)
            .prop_map(|(key, id, due)| Step::Publish { key, id, due }),
        3 => (1..8_u8).prop_map(Step::Pass),
        2 => (0..3_u8).prop_map(Step::Cancel),
        1 => Just(Step::Purge),
    ]
}

/// What is expected of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    /// The place of the message among those accepted.
    Accepted(usize),
    Duplicate(usize),
    Replayed(Box<Said>),
    KeyReused,
    Cancelled,
    TooLate,
    Unknown,
    Nothing,
}

#[derive(Clone, Debug)]
struct Work {
    message: usize,
    until: i64,
}

/// What a key is the key of, until when, and what was said.
type Kept = ((Option<u8>, u8), i64, Said);

/// All that identity is, in a few lines.
#[derive(Default)]
struct Model {
    now: i64,
    /// Whether each accepted message was scheduled, in order. It stays so until somebody takes it, which nobody
    /// does here.
    scheduled: Vec<bool>,
    cancelled: Vec<usize>,
    last: HashMap<u8, usize>,
    works: HashMap<u8, Work>,
    keys: HashMap<u8, Kept>,
}

impl Model {
    fn step(&mut self, step: &Step) -> Said {
        match *step {
            Step::Pass(tens) => {
                self.now += i64::from(tens) * 10;
                Said::Nothing
            }
            Step::Purge => Said::Nothing,
            Step::Cancel(id) => {
                let Some(message) = self.last.get(&id).copied() else { return Said::Nothing };
                if self.cancelled.contains(&message) {
                    return Said::Unknown;
                }
                if !self.scheduled[message] {
                    return Said::TooLate;
                }
                self.cancelled.push(message);
                if self.works.get(&id).is_some_and(|work| work.message == message) {
                    self.works.remove(&id);
                }
                Said::Cancelled
            }
            Step::Publish { key, id, due } => {
                if let Some(key) = key
                    && let Some((request, until, said)) = self.keys.get(&key)
                    && *until > self.now
                {
                    return if *request == (id, due) {
                        Said::Replayed(Box::new(said.clone()))
                    } else {
                        Said::KeyReused
                    };
                }
                let said = self.publish(id, due);
                if let Some(key) = key {
                    self.keys.insert(key, ((id, due), self.now + KEY_WINDOW, said.clone()));
                }
                said
            }
        }
    }

    fn publish(&mut self, id: Option<u8>, due: u8) -> Said {
        if let Some(work) = id.and_then(|id| self.works.get(&id))
            && work.until > self.now
        {
            return Said::Duplicate(work.message);
        }
        let message = self.scheduled.len();
        self.scheduled.push(due > 0);
        let due = self.now + i64::from(due) * 10;
        if let Some(id) = id {
            self.works.insert(id, Work { message, until: due + WORK_WINDOW });
            self.last.insert(id, message);
        }
        Said::Accepted(message)
    }
}

/// The real one, in the same words.
struct Real {
    gateway: Arc<Gateway>,
    store: store::Shared,
    clock: Clock,
    /// The ids of the accepted messages, in order.
    ids: Vec<String>,
    last: HashMap<u8, String>,
}

struct Nowhere;

#[async_trait::async_trait]
impl Transport for Nowhere {
    async fn send(&self, _: &Delivery) -> Result<Ack, Failure> {
        Ok(Ack::default())
    }
}

impl Real {
    async fn new() -> Self {
        let (clock, random, metrics) = (Clock::system(), Random, Metrics::new(None).unwrap());
        let url = format!("sqlite:{}", run::fresh_dir("model").join("store.db").display());
        let options = store::Options { clock: clock.clone(), ..store::Options::default() };
        let store = store::open(&url, &options).await.unwrap();
        store.migrate().await.unwrap();
        let target = TargetOptions {
            target: Target::destination("out"),
            transport: Arc::new(Nowhere),
            timeout: Duration::from_secs(5),
            lease: Duration::from_secs(15),
            stale: Duration::from_secs(15),
            max_in_flight: 8,
            pace: None,
            retry: Backoff { max_attempts: 3, initial: Duration::from_secs(1), max: Duration::from_secs(1) },
            breaker: breaker::Settings { failures: 50, open: Duration::from_secs(1) },
            paused: true,
            order: None,
            handler: None,
        };
        let engine = Engine::start(
            "main",
            Arc::clone(&store),
            vec![target],
            Options::default(),
            clock.clone(),
            random,
            metrics.clone(),
        );
        let enforcement = Enforcement {
            required: false,
            window: Duration::from_secs(WORK_WINDOW.unsigned_abs()),
            on_duplicate: OnDuplicate::Acknowledge,
            scope: Scope::Type,
        };
        let types =
            [("w".to_owned(), TypeOptions { enforcement: Some(enforcement), ..TypeOptions::default() })];
        let identity = Identity::compile(&oncegate::domain::identity::Options {
            types: types.into_iter().collect(),
            ..oncegate::domain::identity::Options::default()
        })
        .unwrap();
        let preparer = Preparer {
            routing: Routing {
                destinations: Destinations::new(["out"]),
                table: Table::new(vec![Route {
                    types: vec!["*".parse().unwrap()],
                    targets: vec!["out".into()],
                }]),
                handlers: Handlers::default(),
                ordered: std::collections::BTreeSet::new(),
                unroutable: Unroutable::Refuse,
            },
            messages: Messages { identity, ..Messages::default() },
            keeping: Keeping::Deliveries,
            random,
            metrics: metrics.clone(),
            traces: Traces::default(),
        };
        let cascades =
            Cascades { preparer: preparer.clone(), limits: fields::Limits::default(), clock: clock.clone() };
        let gateway = Gateway::new(Parts {
            receivers: oncegate::gateway::receive::Receivers::default(),
            stores: Stores::one(StoreNode::new(
                "main",
                Arc::clone(&store),
                engine,
                &metrics,
                group::Limits::default(),
            )),
            invoker: Invoker::new(BTreeMap::new(), cascades, Duration::from_secs(60), 1_024),
            preparer,
            settings: Settings {
                limits: fields::Limits::default(),
                claim_window: Duration::from_secs(60),
                idempotency_window: Duration::from_secs(KEY_WINDOW.unsigned_abs()),
                ..Settings::default()
            },
            clock: clock.clone(),
            random,
            metrics,
            traces: Traces::default(),
        });
        Self { gateway, store, clock, ids: Vec::new(), last: HashMap::new() }
    }

    async fn step(&mut self, step: &Step) -> Said {
        match *step {
            Step::Pass(tens) => {
                self.clock.advance(Duration::from_secs(u64::from(tens) * 10));
                Said::Nothing
            }
            Step::Purge => {
                let keep = store::status::Retention { receipts: Duration::MAX, dead_letters: Duration::MAX };
                self.store.purge(1_000, &keep).await.unwrap();
                Said::Nothing
            }
            Step::Cancel(id) => {
                let Some(message) = self.last.get(&id) else { return Said::Nothing };
                match self.gateway.cancel(&Principal::anonymous(), message).await {
                    Ok(()) => Said::Cancelled,
                    Err(Error::NotFound { .. }) => Said::Unknown,
                    Err(Error::NotCancellable { .. }) => Said::TooLate,
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Publish { key, id, due } => self.publish(key, id, due).await,
        }
    }

    async fn publish(&mut self, key: Option<u8>, id: Option<u8>, due: u8) -> Said {
        let draft = Draft {
            kind: "w".into(),
            body: "{}".into(),
            deduplication: id.map_or(DraftDeduplication::Derive, |id| DraftDeduplication::Id(id.to_string())),
            delay: (due > 0).then(|| Duration::from_secs(u64::from(due) * 10)),
            ..Draft::default()
        };
        let mut fingerprint = [0; 32];
        fingerprint[..2].copy_from_slice(&[id.map_or(u8::MAX, |id| id), due]);
        let key = key.map(|key| RequestKey {
            key: key.to_string(),
            method: "POST".into(),
            path: "/v1/publish".into(),
            fingerprint,
        });
        let call = Call { principal: Principal::anonymous(), form: Form::Single, drafts: vec![draft], key };
        let answer = match self.gateway.publish(call).await {
            Ok(answer) => answer,
            Err(Error::IdempotencyKeyReused) => return Said::KeyReused,
            Err(error) => panic!("{error}"),
        };
        let told: PublishAnswer = serde_json::from_slice(&answer.body).unwrap();
        let message = told.id.unwrap();
        let known = self.ids.iter().position(|id| *id == message);
        let duplicate = told.outcome == oncegate::gateway::publish::Outcome::Duplicate;
        let said = match known {
            Some(place) if duplicate => Said::Duplicate(place),
            Some(place) => Said::Accepted(place),
            None => {
                assert!(
                    !duplicate && answer.replayed == Replayed::No,
                    "of a message that was never accepted"
                );
                self.ids.push(message.clone());
                if let Some(id) = id {
                    self.last.insert(id, message);
                }
                Said::Accepted(self.ids.len() - 1)
            }
        };
        if answer.replayed == Replayed::Yes { Said::Replayed(Box::new(said)) } else { said }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_gateway_answers_as_the_model(steps in proptest::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut model, mut real) = (Model::default(), Real::new().await);
            for (n, step) in steps.iter().enumerate() {
                let said = real.step(step).await;
                let expected = model.step(step);
                assert_eq!(said, expected, "step {n}, {step:?}");
            }
            real.gateway.drain(Duration::from_secs(5)).await;
        });
    }
}
