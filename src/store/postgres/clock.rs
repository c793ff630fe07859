//! An estimate of the server's clock.
//!
//! Comparisons are made by the server with its own `now()`. The estimate is for what has to be known before a
//! statement is sent: until when a claim will stand, because the answer that tells it is stored by the same
//! statement. It is set when a connection is opened and again by each statement that tells the time, and is
//! behind by no more than a statement's way.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::domain::{Clock, Timestamp};

#[derive(Debug)]
pub(super) struct ServerClock {
    node: Clock,
    /// What the server said, and when (monotonic; a moved `Clock` does not move the server's).
    heard: Mutex<Option<(Timestamp, Instant)>>,
}

impl ServerClock {
    pub fn new(node: Clock) -> Self {
        Self { node, heard: Mutex::new(None) }
    }

    /// The server said `time`, just now. The estimate is thus never ahead of the server.
    pub fn hear(&self, time: Timestamp) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some((time, Instant::now()));
    }

    /// The server's time now, about. The node's own before the server was heard.
    pub fn now(&self) -> Timestamp {
        let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        match heard {
            Some((time, heard)) => {
                let passed = i64::try_from(heard.elapsed().as_micros()).unwrap_or(i64::MAX);
                time + chrono::Duration::microseconds(passed)
            }
            None => self.node.now(),
        }
    }
}
