//! A crowd of clients that publish, and the account of what became of it: lost, duplicated, stuck.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

/// One request: the message's number and how often it had been tried before. It is the message's body, so
/// that every *request* can be told apart at the other end, a repeated one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Key {
    pub n: u64,
    pub attempt: u32,
}

/// How a crowd publishes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The gateways' URLs, up to the path. A client that gets no answer from one tries the next.
    pub gateways: Vec<String>,
    /// `/v1/publish/TYPE`
    pub path: String,
    pub connections: u64,
    /// How many messages; each is repeated until it is answered 2xx.
    pub messages: u64,
    /// The pause of each client between two of its messages.
    pub pace: Duration,
}

impl Plan {
    /// 64 connections that publish `messages` messages of `order.created` as fast as they can.
    pub fn new(gateways: &[&super::gateway::Gateway], messages: u64) -> Self {
        Self {
            gateways: gateways.iter().map(|gateway| gateway.url("")).collect(),
            path: "/v1/publish/order.created".into(),
            connections: 64,
            messages,
            pace: Duration::ZERO,
        }
    }

    pub fn connections(mut self, connections: u64) -> Self {
        self.connections = connections;
        self
    }

    pub fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    pub fn pace(mut self, pace: Duration) -> Self {
        self.pace = pace;
        self
    }

    /// Sends the clients off.
    pub fn start(self) -> Crowd {
        let shared = Arc::new(Shared::default());
        let mut clients = JoinSet::new();
        // A client of its own for each, so that there are as many connections.
        for place in 0..self.connections {
            clients.spawn(client(place, self.clone(), Arc::clone(&shared)));
        }
        Crowd { clients, shared, started: Instant::now() }
    }
}

#[derive(Debug, Default)]
struct Shared {
    next: AtomicU64,
    accepted: AtomicU64,
    stopped: AtomicBool,
    report: Mutex<Report>,
}

/// What the clients saw.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every request that was answered 2xx, with the message id of the answer.
    pub accepted: HashMap<Key, String>,
    /// How often each status was answered.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests without an answer.
    pub unanswered: u64,
    /// Answers 503 without a `Retry-After`.
    pub without_retry_after: u64,
    /// The longest that an answered request took.
    pub slowest: Duration,
    /// From the start to the last answer 2xx.
    pub took: Duration,
}

/// Clients at work.
#[derive(Debug)]
pub struct Crowd {
    clients: JoinSet<()>,
    shared: Arc<Shared>,
    started: Instant,
}

impl Crowd {
    /// How many requests were answered 2xx so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Waits until so many requests were answered 2xx.
    pub async fn reach(&self, accepted: u64, deadline: Duration) {
        super::eventually(deadline, &format!("{accepted} requests answered 2xx"), async || {
            super::when(self.accepted() >= accepted)
        })
        .await;
    }

    /// Has each client end with the request that it is at.
    pub async fn stop(self, deadline: Duration) -> Report {
        self.shared.stopped.store(true, Ordering::Relaxed);
        self.finish(deadline).await
    }

    /// Waits until all is answered 2xx.
    pub async fn finish(mut self, deadline: Duration) -> Report {
        let all = async {
            while let Some(client) = self.clients.join_next().await {
                client.expect("a client of the crowd");
            }
        };
        let in_time = tokio::time::timeout(deadline, all).await.is_ok();
        let mut report = self.shared.report.lock().expect("the report").clone();
        report.took = self.started.elapsed();
        assert!(
            in_time,
            "the crowd is not done after {deadline:?}: {} answered 2xx, {:?}, {} unanswered",
            report.accepted.len(),
            report.statuses,
            report.unanswered
        );
        report
    }
}

async fn client(place: u64, plan: Plan, shared: Arc<Shared>) {
    let http =
        reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build().expect("a client");
    let mut gateway = usize::try_from(place).expect("few clients") % plan.gateways.len();
    while !shared.stopped.load(Ordering::Relaxed) {
        let n = shared.next.fetch_add(1, Ordering::Relaxed);
        if n >= plan.messages {
            return;
        }
        let mut attempt = 0;
        while !publish(
            &http,
            &format!("{}{}", plan.gateways[gateway], plan.path),
            Key { n, attempt },
            &shared,
        )
        .await
        {
            if shared.stopped.load(Ordering::Relaxed) {
                return;
            }
            attempt += 1;
            gateway = (gateway + 1) % plan.gateways.len();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if !plan.pace.is_zero() {
            tokio::time::sleep(plan.pace).await;
        }
    }
}

/// Whether it was answered 2xx.
async fn publish(http: &reqwest::Client, url: &str, key: Key, shared: &Shared) -> bool {
    let begun = Instant::now();
    let answer = http.post(url).json(&key).send().await;
    let Ok(answer) = answer else {
        shared.report.lock().expect("the report").unanswered += 1;
        return false;
    };
    let (status, retry_after) = (answer.status(), answer.headers().contains_key("retry-after"));
    let body: Option<serde_json::Value> = answer.json().await.ok();
    let mut report = shared.report.lock().expect("the report");
    let Some(body) = body else {
        report.unanswered += 1;
        return false;
    };
    *report.statuses.entry(status.as_u16()).or_default() += 1;
    report.slowest = report.slowest.max(begun.elapsed());
    if status == 503 && !retry_after {
        report.without_retry_after += 1;
    }
    if status.is_success() {
        let id = body["id"].as_str().expect("an accepted message has an id").to_owned();
        report.accepted.insert(key, id);
        shared.accepted.fetch_add(1, Ordering::Relaxed);
    }
    status.is_success()
}

/// What arrived: for every request the message ids of its copies.
#[derive(Clone, Debug, Default)]
pub struct Arrivals(pub HashMap<Key, Vec<String>>);

impl Arrivals {
    /// One arrived.
    pub fn add(&mut self, body: &[u8], message_id: &str) {
        let key: Key = serde_json::from_slice(body).expect("a body of the crowd's");
        self.0.entry(key).or_default().push(message_id.to_owned());
    }

    /// Of a queue.
    pub fn of_queue(deliveries: &[lapin::message::Delivery]) -> Self {
        let mut arrivals = Self::default();
        for delivery in deliveries {
            arrivals.add(&delivery.data, &super::rabbitmq::message_id(delivery));
        }
        arrivals
    }

    /// Of a webhook's receiver, what it answered 2xx.
    pub fn of_webhook(received: &[super::receiver::Received]) -> Self {
        let mut arrivals = Self::default();
        for request in
            received.iter().filter(|request| request.answered.is_some_and(|status| status.is_success()))
        {
            arrivals.add(&request.body, request.header("id"));
        }
        arrivals
    }

    /// Copies beyond the first.
    pub fn duplicates(&self) -> usize {
        self.0.values().map(|ids| ids.len() - 1).sum()
    }

    /// Every request that was answered 2xx arrived, under the id of its answer, and copies share their id.
    pub fn assert_nothing_lost(&self, report: &Report) {
        let lost: Vec<_> = report.accepted.keys().filter(|key| !self.0.contains_key(key)).collect();
        assert!(
            lost.is_empty(),
            "{} of {} are lost: {:?}",
            lost.len(),
            report.accepted.len(),
            &lost[..lost.len().min(5)]
        );
        for (key, ids) in &self.0 {
            assert!(
                ids.iter().all(|id| *id == ids[0]),
                "copies of {key:?} differ in their message id: {ids:?}"
            );
            if let Some(id) = report.accepted.get(key) {
                assert_eq!(&ids[0], id, "{key:?} arrived under another message id than was answered");
            }
        }
    }

    /// As above, and each arrived once, and nothing else did.
    pub fn assert_exactly_once(&self, report: &Report) {
        self.assert_nothing_lost(report);
        assert_eq!(self.duplicates(), 0, "copies arrived");
        assert_eq!(self.0.len(), report.accepted.len(), "what was not answered 2xx arrived");
    }
}
