//! The durability pass as a use case: who may, how long, how much.

use std::sync::Arc;
use std::time::Duration;

use super::{Error, Gateway, Result};
use crate::auth::Principal;
use crate::config::durability::{Durability, Mode};
pub use crate::durability::Report;
use crate::durability::{self, NamedStore};
use crate::store::status::Retention;

/// The bounds of passes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// When a pass is not told.
    pub duration: Duration,
    /// What it can be told at most.
    pub max_duration: Duration,
    /// When a pass is not told: rows per step.
    pub batch_size: u32,
    /// What it can be told at most.
    pub max_batch_size: u32,
    pub retention: Retention,
    /// Bodies of the intake that are longer are given up on. `None`: the intake is not moved.
    pub intake_body_bytes: Option<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        let durability = Durability::default();
        let a_day = Duration::from_secs(24 * 60 * 60);
        Self {
            duration: durability.pass_duration.get(),
            max_duration: durability.max_pass_duration.get(),
            batch_size: durability.batch_size,
            max_batch_size: durability.max_batch_size,
            retention: Retention { receipts: a_day, dead_letters: durability.keep_dead_letters.get() },
            intake_body_bytes: None,
        }
    }
}

/// What a pass is told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    pub max_duration: Option<Duration>,
    pub batch_size: Option<u32>,
}

impl Settings {
    /// What is asked for, lowered to the caps.
    pub fn bounds(&self, asked: Bounds) -> (Duration, u32) {
        let duration = asked.max_duration.unwrap_or(self.duration).min(self.max_duration);
        let batch_size = asked.batch_size.unwrap_or(self.batch_size).min(self.max_batch_size);
        (duration, batch_size)
    }
}

impl Gateway {
    /// One pass over every store.
    ///
    /// # Errors
    /// `WrongDurabilityMode`.
    pub async fn pass(self: Arc<Self>, principal: Principal, asked: Bounds) -> Result<Report> {
        if self.settings.mode != Mode::ServerlessWithOutbox {
            return Err(Error::WrongDurabilityMode {
                detail: format!(
                    "Durability passes are made in the mode `serverless-with-outbox` only, and this gateway runs in \
                     `{}`: there is nothing for a pass to do.",
                    self.settings.mode.as_str()
                ),
            });
        }
        let settings = &self.settings.pass;
        let (duration, batch_size) = settings.bounds(asked);
        let options = durability::Options {
            duration,
            batch_size,
            retention: settings.retention.clone(),
            clock: self.clock.clone(),
            random: self.random,
        };
        let report = durability::pass(&self.named_stores(), options).await;
        tracing::info!(
            principal = %principal.name, sent = report.outgoing_sent, failed = report.outgoing_failed,
            handled = report.incoming_handled, more = report.has_more_work, took_ms = report.duration_ms,
            succeeded = report.succeeded(), "durability pass"
        );
        Ok(report)
    }

    /// The stores as a pass takes them.
    pub fn named_stores(&self) -> Vec<NamedStore> {
        let named = |node: &Arc<super::StoreNode>| NamedStore {
            name: Arc::clone(&node.name),
            store: Arc::clone(&node.store),
            engine: node.engine.clone(),
            intake: self.settings.pass.intake_body_bytes.map(|bytes| self.intake_of(node, bytes)),
        };
        self.stores.iter().map(named).collect()
    }
}
