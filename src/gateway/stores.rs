//! The stores of this node, and whose messages are in which.
//!
//! Each store has its own queue in front of it, its own deliveries and its own intake; they share nothing but the
//! ways to the targets and their breakers. A store that is down fails what is asked of it, and nothing else.

use std::collections::HashMap;
use std::sync::Arc;

use crate::delivery::Engine;
use crate::store;
use crate::store::group::{Acceptor, Limits};
use crate::telemetry::Metrics;

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
