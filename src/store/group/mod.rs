//! The group protocol: many requests, one commit.
//!
//! [`Acceptor`] is a bounded queue in front of [`Store::accept`](super::Store::accept). A group is whatever is queued when a writer
//! is free, so a lone request waits for nobody and a crowd shares a commit; there is no timer. What must
//! stay true:
//!
//! - No claim key is in two groups at once, nor twice in one: who comes second waits for the first one's
//!   outcome and then goes in the next group, where it is a duplicate, or the first if that one failed.
//! - A request that was queued is carried through, whether or not anybody still waits for the answer.
//! - Nothing here reads an outcome. That a loser's claim is gone again when it is looked for is the engine's
//!   affair: it tries three times within the call and then answers [`ErrorKind::Unavailable`].

mod queue;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures::FutureExt;
use tokio::sync::{Notify, oneshot};

use self::queue::{Job, Queue};
use super::accept::{Outcome, Request};
use super::{Error, ErrorKind, Result, Shared};

/// How much goes into a group, and how much may wait for one.
#[derive(Clone, Debug)]
pub struct Limits {
    pub group_requests: usize,
    pub group_messages: usize,
    /// Of rows to be written, about.
    pub group_bytes: usize,
    /// Over this, a request is refused at once.
    pub queued_requests: usize,
    /// The same in bytes. A single request of any size is taken when nothing else is queued.
    pub queued_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            group_requests: 256,
            group_messages: 1_000,
            group_bytes: 4 << 20,
            queued_requests: 4_096,
            queued_bytes: 64 << 20,
        }
    }
}

/// What a group is written to.
#[async_trait]
trait Sink: Send + Sync + 'static {
    async fn accept(&self, group: &[Request]) -> Vec<Result<Outcome>>;
}

#[async_trait]
impl Sink for Shared {
    async fn accept(&self, group: &[Request]) -> Vec<Result<Outcome>> {
        self.as_ref().accept(group).await
    }
}

/// The queue in front of a store. Cheap to clone; clones share the queue.
#[derive(Clone)]
pub struct Acceptor {
    inner: Arc<Inner>,
}

struct Inner {
    sink: Box<dyn Sink>,
    writers: usize,
    state: Mutex<State>,
    /// Told when the last writer rests.
    idle: Notify,
}

struct State {
    queue: Queue<oneshot::Sender<Result<Outcome>>>,
    /// Writers at work.
    writing: usize,
    closed: bool,
}

impl Acceptor {
    pub fn new(store: Shared, limits: Limits) -> Self {
        let writers = store.writers();
        Self::over(Box::new(store), writers, limits)
    }

    fn over(sink: Box<dyn Sink>, writers: usize, limits: Limits) -> Self {
        let state = State { queue: Queue::new(limits), writing: 0, closed: false };
        let inner = Inner { sink, writers: writers.max(1), state: Mutex::new(state), idle: Notify::new() };
        Self { inner: Arc::new(inner) }
    }

    /// Accepts a request. Once this was polled the request runs on by itself: dropping the future loses the
    /// answer, nothing else.
    ///
    /// # Errors
    /// Those of [`Store::accept`](super::Store::accept); [`ErrorKind::Overloaded`] at once when the queue is
    /// full; [`ErrorKind::Unavailable`] after [`close`](Self::close).
    pub async fn accept(&self, request: Request) -> Result<Outcome> {
        let (reply, outcome) = oneshot::channel();
        let job = Job::new(request, reply);
        let start_writer = {
            let mut state = self.inner.state();
            if state.closed {
                return Err(Error::new(ErrorKind::Unavailable, "this node is draining"));
            }
            if state.queue.push(job).is_err() {
                return Err(Error::new(ErrorKind::Overloaded, "the queue in front of the store is full"));
            }
            state.wants_writer(self.inner.writers)
        };
        if start_writer {
            start(Arc::clone(&self.inner));
        }
        // The sender lives until the outcome is known, unless the runtime is being torn down.
        outcome.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::OutcomeUnknown, "the node is stopping")))
    }

    /// How many requests wait for a writer.
    pub fn queued(&self) -> usize {
        self.inner.state().queue.len()
    }

    /// Refuses new requests and waits until those that were queued have their outcomes.
    pub async fn close(&self) {
        loop {
            let idle = self.inner.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            {
                let mut state = self.inner.state();
                state.closed = true;
                // Whatever is queued has a writer, or waits for one that is at work.
                if state.writing == 0 {
                    return;
                }
            }
            idle.await;
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether one more writer has something to do; it is counted as at work, so start it.
    fn wants_writer(&mut self, writers: usize) -> bool {
        let wanted = self.queue.has_ready() && self.writing < writers;
        self.writing += usize::from(wanted);
        wanted
    }
}

fn start(inner: Arc<Inner>) {
    tokio::spawn(write(inner));
}

/// Writes groups until nothing is ready.
async fn write(inner: Arc<Inner>) {
    loop {
        let group = {
            let mut state = inner.state();
            let group = state.queue.next_group();
            if group.is_empty() {
                state.writing -= 1;
                if state.writing == 0 {
                    inner.idle.notify_waiters();
                }
                return;
            }
            group
        };
        let (mut requests, mut waiting) = (Vec::with_capacity(group.len()), Vec::with_capacity(group.len()));
        for job in group {
            requests.push(job.request);
            waiting.push((job.reply, job.claims));
        }
        let outcomes = AssertUnwindSafe(inner.sink.accept(&requests)).catch_unwind().await;
        let mut outcomes = outcomes.unwrap_or_else(|_| {
            tracing::error!(requests = requests.len(), "the store panicked while it accepted a group");
            Vec::new()
        });
        outcomes.resize_with(waiting.len(), || {
            Err(Error::new(ErrorKind::OutcomeUnknown, "the store gave no outcome for this request"))
        });
        let start_writer = {
            let mut state = inner.state();
            for (_, claims) in &waiting {
                state.queue.release(claims);
            }
            // Keys passed on may have made more ready than this writer's next group holds.
            state.wants_writer(inner.writers)
        };
        if start_writer {
            start(Arc::clone(&inner));
        }
        for ((reply, _), outcome) in waiting.into_iter().zip(outcomes) {
            let _ = reply.send(outcome); // nobody waits any more: the request is stored all the same
        }
    }
}

#[cfg(test)]
mod tests;
