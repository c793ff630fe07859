//! Whether this node can do its work. A failing destination changes nothing: its messages wait in the store.
//!
//! With several stores the node is ready while one of them is: every node has the same stores, and taking all
//! nodes away because one store is down would stop the tenants of the others.

use std::time::Duration;

use super::stores::ask;
use super::{Gateway, StoreNode};
use crate::store::status;

/// A loop of the node that has made no progress for this long is stuck.
const STUCK: Duration = Duration::from_secs(30);
/// How the node stands.
#[derive(Clone, Debug)]
pub struct Report {
    pub ready: bool,
    /// Every store, `main` first.
    pub stores: Vec<StoreReport>,
}

/// How one store stands.
#[derive(Clone, Debug)]
pub struct StoreReport {
    pub name: String,
    /// What is wrong, and what to do. `None`: nothing.
    pub detail: Option<String>,
}

impl Gateway {
    /// Whether the stores are reached and migrated, and the node's own loops make progress.
    pub async fn readiness(&self) -> Report {
        let details = ask(self.stores.reach(""), stand, Option::is_none).await;
        let silent = || Some("the store does not answer in time".to_owned());
        let details: Vec<_> = details.into_iter().map(|told| told.unwrap_or_else(silent)).collect();
        let ready = details.iter().any(Option::is_none);
        let stores = self.stores.iter().zip(details).map(|(node, detail)| {
            node.metrics.store_up(detail.is_none());
            StoreReport { name: node.name.to_string(), detail }
        });
        Report { ready, stores: stores.collect() }
    }
}

/// What is wrong with it.
async fn stand(node: &StoreNode) -> Option<String> {
    match node.store.readiness().await {
        Ok(status::Readiness::Ready) => node.engine.progress(STUCK).err(),
        Ok(status::Readiness::NotMigrated) => {
            Some("the store's schema is not up to date: run `oncegate storage migrate`".to_owned())
        }
        Err(error) => {
            tracing::debug!(store = %node.name, %error, "not ready");
            Some("the store cannot be reached or used".to_owned())
        }
    }
}
