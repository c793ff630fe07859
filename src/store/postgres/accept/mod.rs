//! Accepting groups of requests.
//!
//! A group is one statement; it commits by itself, unless what it wrote may have to be corrected before
//! anybody may see it (see [`Planned::needs_transaction`]). This file decides what is tried again: [`mod@write`]
//! is one try.
//!
//! - A lock not had in time, or a deadlock: once more, then one by one, so that only the request whose key
//!   is held fails ([`ErrorKind::Locked`]). Before each further try, claims that were committed meanwhile are
//!   looked at without a lock, which answers the many who wait for the same key at once.
//! - Data that cannot be stored: one by one at once.
//! - The connection was lost: on a new one, for [`RERUN_FOR`]. Ids and tokens are the same, so what was
//!   stored after all is recognised and not stored twice. After that: [`ErrorKind::OutcomeUnknown`], or
//!   `Unavailable` where nothing can have been stored.
//! - A lost claim is gone when it is looked for: by itself, [`TRIES`] times, then
//!   `Unavailable`.

mod columns;
mod outcomes;
mod write;

use std::time::{Duration, Instant};

use bytes::Bytes;

use self::write::Earlier;
use super::Postgres;
use super::claims::TRIES;
use super::error::{Class, Fault};
use super::pool::Session;
use crate::domain::Timestamp;
use crate::store::accept::{Message, MessageOutcome, Outcome, Request};
use crate::store::{Error, ErrorKind, Result};

pub(super) use columns::{ROWS, ROWS_AND_CLAIMS, ROWS_AND_CLAIMS_IN_ORDER, ROWS_IN_ORDER};
pub(super) use write::{CORRECT, EVIDENCE, LOSERS, UNDO_CLAIMS, UNDO_ROWS, keep_answer};

/// How long a group whose reply was lost is run again.
const RERUN_FOR: Duration = Duration::from_secs(5);

/// A request and what is to become of it if it loses no claim.
struct Planned<'a> {
    request: &'a Request,
    outcomes: Vec<MessageOutcome>,
    /// `None`: refused as it is; only its own claim is looked at.
    answer: Option<Bytes>,
}

/// How often a group is tried as a whole when it meets a lock.
const GROUP_TRIES: u32 = 2;

/// What one try made of a request.
enum Tried {
    Done(Box<Outcome>),
    /// It lost a claim that is gone again; nothing of it is stored.
    Again,
}

impl<'a> Planned<'a> {
    fn new(request: &'a Request, now: Timestamp) -> Result<Self> {
        let outcomes = outcomes::of(request, now, &outcomes::Lost::new())?;
        let answer = request.answer.render(&outcomes);
        Ok(Self { request, outcomes, answer })
    }

    /// The messages to be written: none of a request that is refused, nor those that repeat an earlier one.
    fn messages(&self) -> impl Iterator<Item = &'a Message> + use<'a> {
        let messages: &'a [Message] = if self.answer.is_some() { &self.request.messages } else { &[] };
        messages.iter().filter(|message| message.same_as.is_none())
    }

    fn has_claims(&self) -> bool {
        self.request.claim.is_some() || self.messages().any(|message| message.claim.is_some())
    }

    /// Whether what is written may have to be corrected: the kept answer, because work turned out to be a
    /// duplicate; or everything, because the answer then refuses.
    fn needs_transaction(&self) -> bool {
        match &self.request.claim {
            Some(_) => self.answer.is_none() || self.messages().any(|message| message.claim.is_some()),
            None => self.messages().count() > 1 && self.messages().any(|message| message.claim.is_some()),
        }
    }
}

pub(super) async fn accept(store: &Postgres, group: &[Request]) -> Vec<Result<Outcome>> {
    // What no database takes is refused before it can hold up the others.
    let mut results: Vec<Option<Result<Outcome>>> =
        group.iter().map(|request| request.check_storable().err().map(Err)).collect();
    let good: Vec<&Request> =
        group.iter().zip(&results).filter(|(_, bad)| bad.is_none()).map(|(request, _)| request).collect();
    let mut outcomes = if good.is_empty() { Vec::new() } else { accept_good(store, &good).await }.into_iter();
    for result in results.iter_mut().filter(|result| result.is_none()) {
        *result = outcomes.next();
    }
    let missing = || Err(Error::new(ErrorKind::OutcomeUnknown, "a request of the group has no outcome"));
    results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
}

async fn accept_good(store: &Postgres, group: &[&Request]) -> Vec<Result<Outcome>> {
    let mut results: Vec<Option<Result<Outcome>>> = group.iter().map(|_| None).collect();
    for _ in 0..GROUP_TRIES {
        let open: Vec<usize> = (0..group.len()).filter(|&at| results[at].is_none()).collect();
        let requests: Vec<&Request> = open.iter().map(|&at| group[at]).collect();
        match write_or_rerun(store, &requests).await {
            Ok(tried) => {
                for (at, tried) in open.into_iter().zip(tried) {
                    results[at] = Some(match tried {
                        Tried::Done(outcome) => Ok(*outcome),
                        Tried::Again => alone(store, group[at], 1).await.map_err(Error::from),
                    });
                }
                break;
            }
            Err(fault) if fault.class == Class::Contention => look(store, group, &mut results).await,
            Err(fault) if fault.class == Class::Data && open.len() > 1 => break,
            Err(fault) => {
                for at in open {
                    results[at] = Some(Err(fault.error.clone()));
                }
            }
        }
        if results.iter().all(Option::is_some) {
            break;
        }
    }
    one_by_one(store, group, results).await
}

/// Writes by itself each request that has no result yet.
async fn one_by_one(
    store: &Postgres,
    group: &[&Request],
    mut results: Vec<Option<Result<Outcome>>>,
) -> Vec<Result<Outcome>> {
    let mut down = None;
    for at in 0..group.len() {
        if results[at].is_some() {
            continue;
        }
        // A database that is gone is not asked for each of them.
        if let Some(error) = &down {
            results[at] = Some(Err(Error::clone(error)));
            continue;
        }
        let mut result = alone(store, group[at], 0).await;
        if result.as_ref().is_err_and(|fault| fault.class == Class::Contention) {
            look(store, group, &mut results).await;
            if results[at].is_some() {
                continue;
            }
            result = alone(store, group[at], 0).await;
        }
        results[at] = Some(result.map_err(|fault| {
            if matches!(fault.class, Class::NotSent | Class::Lost) {
                down = Some(Error::new(ErrorKind::Unavailable, fault.error.detail.clone()));
            }
            fault.error
        }));
    }
    let missing = || Err(Error::new(ErrorKind::OutcomeUnknown, "a request of the group has no outcome"));
    results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
}

/// Fills in the results that can be told without waiting for a lock. Where many nodes get the same request at
/// once, this ends the queue for its key: the first one's commit is the answer for all.
async fn look(store: &Postgres, group: &[&Request], results: &mut [Option<Result<Outcome>>]) {
    let open: Vec<usize> = (0..group.len()).filter(|&at| results[at].is_none()).collect();
    let requests: Vec<&Request> = open.iter().map(|&at| group[at]).collect();
    match write::look(store, &requests).await {
        Ok(told) => {
            for (at, outcome) in open.into_iter().zip(told) {
                results[at] = outcome.map(Ok);
            }
        }
        // The next try meets the same trouble and says so.
        Err(fault) => tracing::debug!(detail = %fault.error.detail, "held claims were not looked at"),
    }
}

/// Writes one request; `tries` is how often it already lost a claim that was gone again.
async fn alone(store: &Postgres, request: &Request, tries: u32) -> Result<Outcome, Fault> {
    for _ in tries..TRIES {
        if let Some(Tried::Done(outcome)) = write_or_rerun(store, &[request]).await?.pop() {
            return Ok(*outcome);
        }
    }
    let detail = "a claim changed hands each time that it was looked for";
    Err(Fault::new(Class::Other, ErrorKind::Unavailable, detail))
}

/// Writes one request within a transaction that is part of something larger.
///
/// # Errors
/// Those of one try; the transaction is to be rolled back then.
pub(super) async fn within(
    session: &mut Session<'_>,
    store: &Postgres,
    request: &Request,
) -> Result<Outcome, Fault> {
    request.check_storable().map_err(|error| Fault::new(Class::Data, error.kind, error.detail))?;
    let now = store.pool.clock.now();
    for _ in 0..TRIES {
        let planned = [Planned::new(request, now).map_err(Fault::defect)?];
        let mut commits = false;
        let tried = write::write_planned(session, &planned, now, store, Earlier::None, &mut commits).await?;
        if let Some(Tried::Done(outcome)) = tried.into_iter().next() {
            return Ok(*outcome);
        }
    }
    let detail = "a claim changed hands each time that it was looked for";
    Err(Fault::new(Class::Other, ErrorKind::Unavailable, detail))
}

/// Writes requests within a transaction that is part of something larger; one outcome each, in order. No claim key
/// occurs twice in them.
///
/// # Errors
/// The transaction is to be rolled back.
pub(super) async fn within_all(
    session: &mut Session<'_>,
    store: &Postgres,
    requests: &[Request],
) -> Result<Vec<Outcome>, Fault> {
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    let now = store.pool.clock.now();
    let mut planned = Vec::with_capacity(requests.len());
    for request in requests {
        request.check_storable().map_err(|error| Fault::new(Class::Data, error.kind, error.detail))?;
        planned.push(Planned::new(request, now).map_err(Fault::defect)?);
    }
    let mut commits = false;
    let tried = write::write_planned(session, &planned, now, store, Earlier::None, &mut commits).await?;
    let done = tried.into_iter().map(|tried| match tried {
        Tried::Done(outcome) => Ok(*outcome),
        Tried::Again => Err(Fault::new(
            Class::Contention,
            ErrorKind::Unavailable,
            "a claim changed hands while it was looked for",
        )),
    });
    done.collect()
}

/// Writes a group, again on a new connection where the reply was lost.
async fn write_or_rerun(store: &Postgres, group: &[&Request]) -> Result<Vec<Tried>, Fault> {
    let mut earlier = Earlier::None;
    let mut lost_at = None;
    let mut pause = Duration::from_millis(10);
    for attempt in 1.. {
        let mut commits = false;
        let fault = match write::write(store, group, earlier, &mut commits).await {
            Ok(tried) => return Ok(tried),
            Err(fault) => fault,
        };
        if commits && fault.class == Class::Lost {
            earlier = Earlier::MaybeStored;
            lost_at.get_or_insert_with(Instant::now);
        }
        let maybe_stored = earlier == Earlier::MaybeStored;
        let again = match fault.class {
            // Nothing else can have happened to the same group's earlier try.
            Class::Data => false,
            _ if maybe_stored => lost_at.is_some_and(|lost| lost.elapsed() < RERUN_FOR),
            // A connection that was dead already, or leads to what is no longer the primary.
            Class::Lost | Class::ReadOnly => attempt == 1,
            Class::NotSent | Class::Contention | Class::Other => false,
        };
        if again {
            tracing::debug!(detail = %fault.error.detail, attempt, "a group is run again on a new connection");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        } else if maybe_stored && fault.class != Class::Data {
            let detail = format!("the reply to a commit was lost: {}", fault.error.detail);
            return Err(Fault::new(Class::Lost, ErrorKind::OutcomeUnknown, detail));
        } else {
            return Err(fault);
        }
    }
    Err(Fault::new(Class::Other, ErrorKind::Internal, "unreachable"))
}
