//! Whether this node can do its work. A failing destination changes nothing: its messages wait in the store.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::Gateway;
use crate::store::status;

/// A loop of the node that has made no progress for this long is stuck.
const STUCK: Duration = Duration::from_secs(30);

/// The answer of `/readyz`.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Readiness)]
pub struct Report {
    pub ready: bool,
    /// What is wrong, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl Gateway {
    /// Whether the store is reached and migrated, and the node's own loops make progress.
    pub async fn readiness(&self) -> Report {
        let detail = match self.store.readiness().await {
            Ok(status::Readiness::Ready) => self.engine.progress(STUCK).err(),
            Ok(status::Readiness::NotMigrated) => {
                Some("the store's schema is not up to date: run `oncegate storage migrate`".to_owned())
            }
            Err(error) => {
                tracing::debug!(%error, "not ready");
                Some("the store cannot be reached or used".to_owned())
            }
        };
        Report { ready: detail.is_none(), detail }
    }
}
