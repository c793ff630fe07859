//! The stores of this node, and whose messages are in which.
//!
//! Each store has its own queue in front of it, its own deliveries and its own intake; they share nothing but the
//! ways to the targets and their breakers. A store that is down fails what is asked of it, and nothing else.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};

use crate::delivery::Engine;
use crate::store;
use crate::store::group::{Acceptor, Limits};
use crate::telemetry::Metrics;

/// How much longer than the first store that answered another may take, so that one that hangs does not hang
/// what is asked of all.
const PATIENCE: Duration = Duration::from_secs(1);

/// A store, and what works on it.
pub struct StoreNode {
    /// As in `[stores.NAME]`.
    pub name: Arc<str>,
    pub store: store::Shared,
    pub acceptor: Acceptor,
    pub engine: Engine,
    /// Labelled with the store.
    pub metrics: Metrics,
}

impl StoreNode {
    /// `metrics` are labelled with `name` here.
    pub fn new(name: &str, store: store::Shared, engine: Engine, metrics: &Metrics, limits: Limits) -> Self {
        let acceptor = Acceptor::new(Arc::clone(&store), limits);
        Self { name: name.into(), store, acceptor, engine, metrics: metrics.of_store(name) }
    }
}

/// All stores. There is always one, named `main` in a running node.
pub struct Stores {
    /// The one of tenants that no list names, first.
    nodes: Vec<Arc<StoreNode>>,
    /// By tenant; empty where there is one store.
    tenants: HashMap<String, Arc<StoreNode>>,
    main: Arc<StoreNode>,
}

impl Stores {
    /// Every tenant's messages are in this store.
    pub fn one(node: StoreNode) -> Self {
        Self::new(node, Vec::new())
    }

    /// `main`, and others with their tenants.
    pub fn new(main: StoreNode, others: Vec<(StoreNode, Vec<String>)>) -> Self {
        let main = Arc::new(main);
        let mut nodes = vec![Arc::clone(&main)];
        let mut tenants = HashMap::new();
        for (node, names) in others {
            let node = Arc::new(node);
            tenants.extend(names.into_iter().map(|name| (name, Arc::clone(&node))));
            nodes.push(node);
        }
        Self { nodes, tenants, main }
    }

    /// The store of a tenant's messages. One look-up, and none where there is one store.
    pub fn of(&self, tenant: &str) -> &Arc<StoreNode> {
        if self.tenants.is_empty() {
            return &self.main;
        }
        self.tenants.get(tenant).unwrap_or(&self.main)
    }

    /// The stores that an operator of this tenant looks after: all of them without a tenant, else the tenant's.
    pub fn reach(&self, tenant: &str) -> &[Arc<StoreNode>] {
        if tenant.is_empty() { &self.nodes } else { std::slice::from_ref(self.of(tenant)) }
    }

    /// All stores with their names, `main` first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<StoreNode>> {
        self.nodes.iter()
    }

    /// Whether there are several.
    pub fn are_several(&self) -> bool {
        self.nodes.len() > 1
    }
}

/// Asks these stores side by side, and waits for all of them until one gave what counts as an answer, and then for a
/// moment only. `None`: it did not answer in time.
pub(super) async fn ask<'a, T, F>(
    nodes: &'a [Arc<StoreNode>],
    question: impl Fn(&'a StoreNode) -> F,
    is_answer: impl Fn(&T) -> bool,
) -> Vec<Option<T>>
where
    F: Future<Output = T>,
{
    let mut answers: Vec<_> = nodes.iter().map(|_| None).collect();
    let asked = nodes.iter().enumerate().map(|(place, node)| {
        let answer = question(node);
        async move { (place, answer.await) }
    });
    let mut asked: FuturesUnordered<_> = asked.collect();
    let mut answered = false;
    let patience = tokio::time::sleep(PATIENCE);
    tokio::pin!(patience);
    loop {
        let next = tokio::select! {
            next = asked.next() => next,
            () = &mut patience, if answered => None,
        };
        let Some((place, answer)) = next else { return answers };
        if is_answer(&answer) && !std::mem::replace(&mut answered, true) {
            patience.as_mut().reset(tokio::time::Instant::now() + PATIENCE);
        }
        answers[place] = Some(answer);
    }
}
