//! Invoke: runs a type's handler now, and answers with its response.
//!
//! A key and, where the type enforces deduplication, the work's identity are claimed before the handler runs,
//! with a lease that is renewed while it does. A success is recorded in the commit that stores what it
//! published, before the answer leaves; a failure gives the claims back before the answer leaves. What is
//! ambiguous keeps them until nothing can run any more: [`run`].

mod identity;
mod response;
mod run;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::prepare::By;
use super::publish::RequestKey;
use super::{Cascades, Error, Gateway, Result, StoreNode};
use crate::auth::Principal;
use crate::domain::RowKey;
use crate::domain::delivery::{Delivery, Target};
use crate::domain::message::Draft;
use crate::store::inbox::{Held, HeldClaim};
use crate::transport;

pub use response::{Body, Response};

/// Requests that wait for another one's answer, on this node.
const WAITERS: usize = 256;

/// Everything of an invoke that the use case needs.
#[derive(Debug)]
pub struct Call {
    pub principal: Principal,
    pub draft: Draft,
    /// Which of the type's handlers, where there are several.
    pub handler: Option<String>,
    pub key: Option<RequestKey>,
    /// How long to wait for the first request with the same key.
    pub wait: Duration,
}

/// Handlers that can be invoked.
pub struct Invoker {
    pub handlers: BTreeMap<String, Invoked>,
    pub cascades: Cascades,
    /// How long a claim stands without being renewed.
    pub lease: Duration,
    /// Of a response that is kept; a larger one leaves a tombstone.
    pub max_response_bytes: usize,
    waiters: Semaphore,
}

/// A handler that can be invoked.
#[derive(Clone)]
pub struct Invoked {
    pub transport: Arc<transport::Handler>,
    pub on_ambiguous: OnAmbiguous,
}

/// What becomes of the claims when nobody knows whether the handler did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnAmbiguous {
    /// They are given back once it cannot run any more.
    Release,
    /// They are kept: the work is not asked for again within the window.
    Keep,
}

/// What is claimed while the handler runs, and where.
#[derive(Clone)]
struct Claims {
    node: Arc<StoreNode>,
    request: Option<HeldClaim>,
    work: Option<HeldClaim>,
}

impl Claims {
    fn iter(&self) -> impl Iterator<Item = &HeldClaim> {
        self.request.iter().chain(&self.work)
    }

    fn held(&self) -> Held {
        Held { row: None, claims: self.iter().map(|claim| (claim.key, claim.token)).collect() }
    }
}

impl Invoker {
    pub fn new(
        handlers: BTreeMap<String, Invoked>,
        cascades: Cascades,
        lease: Duration,
        max_response_bytes: usize,
    ) -> Self {
        Self { handlers, cascades, lease, max_response_bytes, waiters: Semaphore::new(WAITERS) }
    }
}

impl Gateway {
    /// Runs the handler and answers with its response. To be run to its end, whether or not the client still
    /// waits: what it did is recorded either way.
    ///
    /// # Errors
    /// `HandlerFailed`, `HandlerTimeout`, and what a publish fails with. The claims are given back, except
    /// after `HandlerTimeout` and a connection that was lost.
    pub async fn invoke(self: &Arc<Self>, call: Call) -> Result<Response> {
        let Call { principal, draft, handler, key, wait } = call;
        if !principal.may_invoke(&draft.kind) {
            let detail = format!("Invoking `{0}` needs the grant `invoke:{0}`.", draft.kind);
            return Err(Error::Forbidden { detail });
        }
        let (target, invoked) = self.handler_of(&draft.kind, handler.as_deref())?;
        let idempotency_key = key.as_ref().map(|key| key.key.as_str());
        let by = By { principal: &principal, idempotency_key, way: super::prepare::Way::Request };
        let prepared = self.preparer.prepare_invoke(&by, draft, self.clock.now())?;
        let node = Arc::clone(self.stores.of(&principal.tenant));
        let mut claims = Claims { node, request: None, work: None };
        if let Some(key) = &key {
            match self.claim_request(&principal, key, wait).await? {
                identity::Request::Had(claim) => claims.request = Some(claim),
                identity::Request::Replay(response) => return Ok(response),
            }
        }
        if let Some(work) = &prepared.work {
            match self.claim_work(&prepared, work).await {
                Ok(identity::Work::Had(claim)) => claims.work = Some(claim),
                Ok(identity::Work::Duplicate(response)) => {
                    let answer = self.kept_of(&response);
                    self.conclude(&claims, answer, Vec::new()).await?;
                    return Ok(response);
                }
                Err(error) => {
                    self.release(&claims).await;
                    return Err(error);
                }
            }
        }
        let row = RowKey { id: prepared.row_id, target_no: 0 };
        let delivery = Delivery { row, target, message: prepared.message, attempts: 0 };
        self.run(invoked, delivery, claims).await
    }

    fn handler_of(&self, kind: &str, name: Option<&str>) -> Result<(Target, Invoked)> {
        let mut of_type = self
            .preparer
            .routing
            .handlers
            .of(kind)
            .filter(|target| name.is_none_or(|name| &*target.name == name));
        let unroutable = |detail: String| Error::Unroutable { detail };
        let target = of_type.next().ok_or_else(|| match name {
            Some(name) => unroutable(format!("`{name}` is no handler of `{kind}`; nothing was run.")),
            None => unroutable(format!("No handler takes `{kind}`; nothing was run.")),
        })?;
        if of_type.next().is_some() {
            let detail = format!("Several handlers take `{kind}`; name one: `?handler=NAME`.");
            return Err(unroutable(detail));
        }
        let invoked = self.invoker.handlers.get(&*target.name).ok_or(Error::Internal)?;
        Ok((target.clone(), invoked.clone()))
    }
}
