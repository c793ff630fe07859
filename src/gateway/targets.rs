//! Destinations and handlers: how they stand, pausing and resuming.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::stores::ask;
use super::{Error, Gateway, Result, StoreNode, may_read, may_write};
use crate::auth::Principal;
use crate::delivery::TargetView;
use crate::domain::delivery::{Target, TargetKind};
use crate::store;
use crate::store::status::{Backlog, Paused};

/// All targets.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Targets)]
#[serde(rename_all = "camelCase")]
pub struct Targets {
    pub items: Vec<TargetItem>,
    /// Of several stores, those that did not answer; what is in them is not told.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unavailable_stores: Vec<String>,
}

/// A destination or a handler.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Target)]
pub struct TargetItem {
    pub name: String,
    /// `destination` or `handler`.
    pub kind: TargetKindName,
    /// Whether it gets the messages of a partition key one after the other.
    pub ordered: bool,
    /// Rows that wait for it or are being delivered.
    pub depth: u64,
    /// The earliest due time of these rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_due_at: Option<DateTime<Utc>>,
    /// Whether the node that answers leaves it alone for a while.
    pub breaker: BreakerName,
    pub paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Where there are several stores and the caller has no tenant: how it stands in each. `depth` is their sum
    /// then, `oldestDueAt` the earliest, and `paused` says whether it is paused in all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<TargetInStore>,
}

/// A destination or a handler in one of several stores.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TargetInStore)]
pub struct TargetInStore {
    /// As in `[stores.NAME]`.
    pub store: String,
    pub depth: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_due_at: Option<DateTime<Utc>>,
    pub paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = TargetKind)]
pub enum TargetKindName {
    Destination,
    Handler,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = BreakerState)]
pub enum BreakerName {
    Closed,
    Open,
}

impl Gateway {
    /// Every target that is configured or has rows, over the stores that the principal looks after: all of them
    /// without a tenant, else its tenant's.
    ///
    /// # Errors
    /// `Forbidden`; the store's, where none of them answers.
    pub async fn targets(&self, principal: &Principal) -> Result<Targets> {
        may_read(principal)?;
        let nodes = self.stores.reach(&principal.tenant);
        let answers = ask(nodes, items, store::Result::is_ok).await;
        let (mut told, mut unavailable, mut last_error) = (Vec::new(), Vec::new(), None);
        for (node, answer) in nodes.iter().zip(answers) {
            match answer.unwrap_or_else(|| Err(silent())) {
                Ok(items) => told.push((node, items)),
                Err(error) => {
                    unavailable.push(node.name.to_string());
                    last_error = Some(error);
                }
            }
        }
        if let (true, Some(error)) = (told.is_empty(), last_error) {
            return Err(error.into());
        }
        if nodes.len() == 1 {
            let items = told.into_iter().flat_map(|(_, items)| items.into_values()).collect();
            return Ok(Targets { items, unavailable_stores: Vec::new() });
        }
        let mut all: BTreeMap<Target, TargetItem> = BTreeMap::new();
        for (node, items) in told {
            for (target, item) in items {
                let of_store = item.of_store(&node.name);
                match all.entry(target) {
                    Entry::Vacant(entry) => entry.insert(item).stores.push(of_store),
                    Entry::Occupied(mut entry) => entry.get_mut().add(&item, of_store),
                }
            }
        }
        Ok(Targets { items: all.into_values().collect(), unavailable_stores: unavailable })
    }

    /// Pauses a target for all nodes: messages for it are stored and not sent.
    ///
    /// # Errors
    /// `NotFound` for a name that is neither configured nor has rows. The store's, where one of several does not
    /// answer; it is paused in the others then.
    pub async fn pause(&self, principal: &Principal, name: &str) -> Result<()> {
        self.set_paused(principal, name, Paused::Yes).await
    }

    /// Resumes a target for all nodes. A target that the configuration pauses stays paused.
    ///
    /// # Errors
    /// `NotFound` for a name that is neither configured nor has rows. The store's, where one of several does not
    /// answer; it is resumed in the others then.
    pub async fn resume(&self, principal: &Principal, name: &str) -> Result<()> {
        self.set_paused(principal, name, Paused::No).await
    }

    async fn set_paused(&self, principal: &Principal, name: &str, paused: Paused) -> Result<()> {
        may_write(principal)?;
        let nodes = self.stores.reach(&principal.tenant);
        let targets = targets_named(nodes, name).await?;
        let set = |node| set_paused(node, &targets, paused);
        let set: Vec<_> = ask(nodes, set, store::Result::is_ok).await;
        let set: Vec<_> = set.into_iter().map(|answer| answer.unwrap_or_else(|| Err(silent()))).collect();
        tracing::info!(target_name = name, ?paused, principal = %principal.name, "target paused or resumed");
        let failed: Vec<_> =
            nodes.iter().zip(&set).filter(|(_, set)| set.is_err()).map(|(node, _)| &*node.name).collect();
        let (failed, some) = (failed.join(", "), failed.len() < nodes.len());
        match set.into_iter().find_map(Result::err).map(Error::from) {
            None => Ok(()),
            Some(Error::StoreUnavailable { retry_after, .. }) if some => {
                let detail = format!(
                    "Done in all stores but these, which cannot be reached or written to just now: {failed}. \
                     Repeat it."
                );
                Err(Error::StoreUnavailable { detail, retry_after })
            }
            Some(error) => Err(error),
        }
    }

    /// Prometheus' text, with the backlogs as the stores have them now. A store that does not answer in time
    /// keeps its last ones.
    pub async fn metrics(&self) -> String {
        let nodes = self.stores.reach("");
        let answers = ask(nodes, |node| node.store.backlog(), store::Result::is_ok).await;
        for (node, answer) in nodes.iter().zip(answers) {
            gauge(node, answer.unwrap_or_else(|| Err(silent())));
        }
        self.metrics.render()
    }
}

async fn targets_named(nodes: &[Arc<StoreNode>], name: &str) -> Result<Vec<Target>> {
    // The configured ones are the same everywhere.
    let configured = nodes.iter().take(1).flat_map(|node| node.engine.targets());
    let mut named: BTreeSet<Target> =
        configured.map(|view| view.target).filter(|target| &*target.name == name).collect();
    if named.is_empty() {
        let answers = ask(nodes, |node| node.store.backlog(), store::Result::is_ok).await;
        let answers = answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(silent())));
        let (backlogs, errors): (Vec<_>, Vec<_>) = answers.partition(store::Result::is_ok);
        let backlogs = backlogs.into_iter().flatten().flatten();
        named.extend(backlogs.map(|backlog| backlog.target).filter(|target| &*target.name == name));
        // A store that did not answer may be the one that has rows for it.
        if named.is_empty()
            && let Some(error) = errors.into_iter().find_map(Result::err)
        {
            return Err(error.into());
        }
    }
    if named.is_empty() {
        let detail = "There is no such target. `GET /v1/targets` lists them.".into();
        return Err(Error::NotFound { detail });
    }
    Ok(named.into_iter().collect())
}

/// Every target that is configured or has rows in this store.
async fn items(node: &StoreNode) -> store::Result<BTreeMap<Target, TargetItem>> {
    let paused = node.store.paused().await?;
    let mut items: BTreeMap<Target, TargetItem> =
        node.engine.targets().into_iter().map(|view| (view.target.clone(), item(&view))).collect();
    for backlog in node.store.backlog().await? {
        let entry = items.entry(backlog.target.clone()).or_insert_with(|| unconfigured(&backlog.target));
        entry.depth = backlog.depth;
        entry.oldest_due_at = backlog.oldest_due_at;
        if entry.last_error.is_none() {
            entry.last_error.clone_from(&backlog.last_error);
        }
    }
    for pause in &paused {
        if let Some(entry) = items.get_mut(&pause.target) {
            entry.paused = true;
        }
    }
    Ok(items)
}

/// A store that did not answer in time.
fn silent() -> store::Error {
    store::Error::new(store::ErrorKind::Unavailable, "no answer in time")
}

async fn set_paused(node: &StoreNode, targets: &[Target], paused: Paused) -> store::Result<()> {
    for target in targets {
        node.store.set_paused(target, paused).await?;
        node.engine.set_paused(target, paused == Paused::Yes);
    }
    Ok(())
}

/// Reports the backlogs of one store.
fn gauge(node: &StoreNode, backlog: store::Result<Vec<Backlog>>) {
    node.metrics.store_up(backlog.is_ok());
    let backlog = match backlog {
        Ok(backlog) => backlog,
        Err(error) => return tracing::debug!(store = %node.name, %error, "no backlog for the metrics"),
    };
    let mut rows: Vec<_> = backlog.into_iter().map(|b| (b.target, b.depth, b.oldest_age)).collect();
    for view in node.engine.targets() {
        if !rows.iter().any(|(target, ..)| *target == view.target) {
            rows.push((view.target, 0, Duration::ZERO));
        }
    }
    node.metrics.backlog(&rows);
}

impl TargetItem {
    fn of_store(&self, store: &str) -> TargetInStore {
        TargetInStore {
            store: store.to_owned(),
            depth: self.depth,
            oldest_due_at: self.oldest_due_at,
            paused: self.paused,
            last_error: self.last_error.clone(),
        }
    }

    /// The same target in another store.
    fn add(&mut self, other: &Self, of_store: TargetInStore) {
        self.depth += other.depth;
        self.oldest_due_at = self.oldest_due_at.into_iter().chain(other.oldest_due_at).min();
        self.paused &= other.paused;
        if self.last_error.is_none() {
            self.last_error.clone_from(&other.last_error);
        }
        self.stores.push(of_store);
    }
}

fn item(view: &TargetView) -> TargetItem {
    TargetItem {
        ordered: view.ordered,
        breaker: if view.breaker_open { BreakerName::Open } else { BreakerName::Closed },
        paused: view.paused,
        last_error: view.last_error.clone(),
        ..unconfigured(&view.target)
    }
}

fn unconfigured(target: &Target) -> TargetItem {
    TargetItem {
        name: target.name.to_string(),
        kind: match target.kind {
            TargetKind::Destination => TargetKindName::Destination,
            TargetKind::Handler => TargetKindName::Handler,
        },
        ordered: false,
        depth: 0,
        oldest_due_at: None,
        breaker: BreakerName::Closed,
        paused: false,
        last_error: None,
        stores: Vec::new(),
    }
}
