//! Destinations and handlers: how they stand, pausing and resuming.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Error, Gateway, Result, may_read, may_write};
use crate::auth::Principal;
use crate::delivery::TargetView;
use crate::domain::delivery::{Target, TargetKind};
use crate::store::status::{Backlog, Paused};

/// All targets.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Targets)]
pub struct Targets {
    pub items: Vec<TargetItem>,
}

/// A destination or a handler.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Target)]
pub struct TargetItem {
    pub name: String,
    /// `destination` or `handler`.
    pub kind: TargetKindName,
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
    /// Every target that is configured or has rows.
    ///
    /// # Errors
    /// `Forbidden`; the store's.
    pub async fn targets(&self, principal: &Principal) -> Result<Targets> {
        may_read(principal)?;
        let paused = self.store.paused().await?;
        let mut items: BTreeMap<Target, TargetItem> =
            self.engine.targets().into_iter().map(|view| (view.target.clone(), item(&view))).collect();
        for backlog in self.store.backlog().await? {
            let entry = items.entry(backlog.target.clone()).or_insert_with(|| unconfigured(&backlog.target));
            entry.depth = backlog.depth;
            entry.oldest_due_at = backlog.oldest_due_at;
            if entry.last_error.is_none() {
                entry.last_error.clone_from(&backlog.last_error);
            }
        }
        for target in &paused {
            if let Some(entry) = items.get_mut(target) {
                entry.paused = true;
            }
        }
        Ok(Targets { items: items.into_values().collect() })
    }

    /// Pauses a target for all nodes: messages for it are stored and not sent.
    ///
    /// # Errors
    /// `NotFound` for a name that is neither configured nor has rows.
    pub async fn pause(&self, principal: &Principal, name: &str) -> Result<()> {
        self.set_paused(principal, name, Paused::Yes).await
    }

    /// Resumes a target for all nodes. A target that the configuration pauses stays paused.
    ///
    /// # Errors
    /// `NotFound` for a name that is neither configured nor has rows.
    pub async fn resume(&self, principal: &Principal, name: &str) -> Result<()> {
        self.set_paused(principal, name, Paused::No).await
    }

    async fn set_paused(&self, principal: &Principal, name: &str, paused: Paused) -> Result<()> {
        may_write(principal)?;
        let targets = self.targets_named(name).await?;
        for target in &targets {
            self.store.set_paused(target, paused).await?;
            self.engine.set_paused(target, paused == Paused::Yes);
            tracing::info!(target_name = name, ?paused, principal = %principal.name, "target paused or resumed");
        }
        Ok(())
    }

    async fn targets_named(&self, name: &str) -> Result<Vec<Target>> {
        let mut named: Vec<Target> =
            self.engine.targets().into_iter().map(|view| view.target).filter(|t| &*t.name == name).collect();
        if named.is_empty() {
            let backlog: Vec<Backlog> = self.store.backlog().await?;
            named.extend(backlog.into_iter().map(|b| b.target).filter(|t| &*t.name == name));
        }
        if named.is_empty() {
            let detail = "There is no such target. `GET /v1/targets` lists them.".into();
            return Err(Error::NotFound { detail });
        }
        Ok(named)
    }

    /// Prometheus' text, with the backlog as the store has it now.
    pub async fn metrics(&self) -> String {
        match self.store.backlog().await {
            Ok(backlog) => {
                let mut rows: Vec<_> =
                    backlog.into_iter().map(|b| (b.target, b.depth, b.oldest_age)).collect();
                for view in self.engine.targets() {
                    if !rows.iter().any(|(target, ..)| *target == view.target) {
                        rows.push((view.target, 0, std::time::Duration::ZERO));
                    }
                }
                self.metrics.backlog(&rows);
            }
            Err(error) => tracing::debug!(%error, "no backlog for the metrics"),
        }
        self.metrics.render()
    }
}

fn item(view: &TargetView) -> TargetItem {
    TargetItem {
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
        depth: 0,
        oldest_due_at: None,
        breaker: BreakerName::Closed,
        paused: false,
        last_error: None,
    }
}
