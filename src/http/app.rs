//! What every handler is given.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use super::edge;
use super::problem::{self, Problem};
use super::rate::Limiter;
use crate::auth::Authenticator;
use crate::config::{endpoints, telemetry};
use crate::gateway::Gateway;

/// The handlers' state. Cheap to clone.
#[derive(Clone)]
pub struct App {
    pub gateway: Arc<Gateway>,
    pub authenticator: Arc<dyn Authenticator>,
    pub limits: Limits,
    /// Who may read the metrics.
    pub metrics_authorize: telemetry::Authorize,
    /// Who may run durability passes.
    pub passes: endpoints::Authorize,
    /// Where principals may ask only so often.
    pub rate: Option<Limiter>,
}

/// What reading one request may cost. What a message may hold is the gateway's to say.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub body_bytes: usize,
    pub body_timeout: Duration,
}

impl App {
    /// Runs the work of a request that has been read whole. It goes on when the client goes away, because
    /// what it does is recorded either way.
    pub async fn run<T, E, F>(&self, work: F) -> Result<T, Problem>
    where
        T: Send + 'static,
        E: Into<Problem> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        match tokio::spawn(work.in_current_span()).await {
            Ok(done) => done.map_err(Into::into),
            Err(failed) => {
                if let Ok(panic) = failed.try_into_panic() {
                    tracing::error!(reason = edge::reason(panic.as_ref()), "a use case panicked");
                }
                Err(problem::internal())
            }
        }
    }
}
