//! Handling: claims of deliveries, leases renewed, and the commit that ends it.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection, SqliteConnection};
use uuid::Uuid;

use super::rows::{corrupt, later, moment, until};
use super::{Inner, accept, claims, error, settle};
use crate::domain::Random;
use crate::store::accept::Outcome;
use crate::store::claims::{Claim, ClaimState, Claimed};
use crate::store::deliveries::{Settled, Settlement};
use crate::store::inbox::{Arrival, ArrivalEnd, Concluded, Conclusion, Handling, Held, HeldClaim};
use crate::store::{Error, ErrorKind, Result};

/// An earlier taker of the same row is nobody else: whoever knows the row's token took it last.
const FREE: &str = "
    DELETE FROM oncegate_deduplication
    WHERE key = ?1 AND confirmed = 0 AND row_id = ?2 AND EXISTS (
        SELECT 1 FROM oncegate_deliveries WHERE row_id = ?2 AND target_no = ?3 AND token = ?4)";

const RENEW_ROW: &str = "
    UPDATE oncegate_deliveries SET due_at = ?1
    WHERE row_id = ?2 AND target_no = ?3 AND token = ?4 AND state = 2";

const RENEW_CLAIM: &str = "
    UPDATE oncegate_deduplication SET expires_at = ?1 WHERE key = ?2 AND token = ?3 AND confirmed = 0";

const LEASED: &str = "
    SELECT 1 FROM oncegate_deliveries WHERE row_id = ?1 AND target_no = ?2 AND token = ?3 AND state = 2";

/// Also of a lease that has ended, as long as nobody took it over.
const CONFIRM: &str = "
    UPDATE oncegate_deduplication SET confirmed = 1, expires_at = ?1, answer = ?2
    WHERE key = ?3 AND token = ?4 AND confirmed = 0";

const LEASED_UNTIL: &str = "
    SELECT max(due_at) AS until FROM oncegate_deliveries WHERE row_id = ?1 AND state = 2 AND due_at > ?2";

const KEEP_ARRIVAL: &str = "UPDATE oncegate_deduplication SET expires_at = ?1 WHERE key = ?2 AND token = ?3";

const DELETE_ARRIVAL: &str = "DELETE FROM oncegate_deduplication WHERE key = ?1 AND token = ?2";

const RELEASE: &str = "DELETE FROM oncegate_deduplication WHERE key = ?1 AND token = ?2 AND confirmed = 0";

pub(super) async fn claim(store: &Arc<Inner>, handling: &Handling) -> Result<Claimed> {
    let Handling { claim: new, row, row_token } = handling.clone();
    store
        .write(move |connection, now| {
            Box::pin(async move {
                let free =
                    sqlx::query(FREE).bind(new.key.0).bind(row.id).bind(row.target_no).bind(row_token.0);
                free.execute(&mut *connection).await.map_err(error::of)?;
                let expires_at = later(now, new.lease);
                let claim = Claim {
                    key: new.key,
                    kind: new.kind,
                    scope: new.scope,
                    id: new.id,
                    token: new.token,
                    state: ClaimState::Claimed,
                    message_id: new.message_id,
                    row_id: Some(row.id),
                    tenant: new.tenant,
                    first_seen_at: moment(now)?,
                    expires_at: moment(expires_at)?,
                    expires_in: until(expires_at, now),
                    fingerprint: None,
                    answer: None,
                };
                let mut won = Vec::new();
                claims::insert(connection, std::slice::from_ref(&claim), &mut won).await?;
                if !won.is_empty() {
                    return Ok(Claimed::Granted(claim));
                }
                let held = claims::find(connection, claim.key, now).await?;
                held.map(Claimed::Held).ok_or_else(|| corrupt("a claim that is held is not there"))
            })
        })
        .await
}

pub(super) async fn leased_for(store: &Inner, row_id: Uuid) -> Result<Option<Duration>> {
    let mut connection = store.reader().await?;
    let now = store.now();
    let query = sqlx::query_scalar::<_, Option<i64>>(LEASED_UNTIL).bind(row_id).bind(now);
    let found = query.fetch_one(&mut *connection).await.map_err(error::of)?;
    Ok(found.map(|end| until(end, now)))
}

pub(super) async fn renew(store: &Arc<Inner>, held: &[Held], lease: Duration) -> Result<()> {
    let held = held.to_vec();
    store
        .write(move |connection, now| {
            Box::pin(async move {
                let until = later(now, lease);
                for Held { row, claims } in held {
                    if let Some((row, token)) = row {
                        let query =
                            sqlx::query(RENEW_ROW).bind(until).bind(row.id).bind(row.target_no).bind(token.0);
                        query.execute(&mut *connection).await.map_err(error::of)?;
                    }
                    for (key, token) in claims {
                        let query = sqlx::query(RENEW_CLAIM).bind(until).bind(key.0).bind(token.0);
                        query.execute(&mut *connection).await.map_err(error::of)?;
                    }
                }
                Ok(())
            })
        })
        .await
}

pub(super) async fn conclude(store: &Arc<Inner>, conclusion: &Conclusion) -> Result<Concluded> {
    let (conclusion, random) = (conclusion.clone(), store.random);
    store
        .write(move |connection, now| {
            Box::pin(async move { write_whole(connection, now, random, &conclusion).await })
        })
        .await
}

pub(super) async fn conclude_all(store: &Arc<Inner>, conclusions: &[Conclusion]) -> Result<Vec<Concluded>> {
    let (conclusions, random) = (conclusions.to_vec(), store.random);
    store
        .write(move |connection, now| {
            Box::pin(async move {
                let mut concluded = Vec::with_capacity(conclusions.len());
                for conclusion in &conclusions {
                    concluded.push(write_whole(connection, now, random, conclusion).await?);
                }
                Ok(concluded)
            })
        })
        .await
}

/// Under a savepoint: what is fenced leaves nothing behind.
async fn write_whole(
    connection: &mut SqliteConnection,
    now: i64,
    random: Random,
    conclusion: &Conclusion,
) -> Result<Concluded> {
    let mut savepoint = connection.begin().await.map_err(error::of)?;
    if let Some(concluded) = write(&mut savepoint, now, random, conclusion).await? {
        savepoint.commit().await.map_err(error::of)?;
        return Ok(concluded);
    }
    savepoint.rollback().await.map_err(error::of)?;
    match confirmed_before(connection, now, conclusion).await? {
        true => Ok(Concluded { settled: Settled::Yes, messages: Vec::new() }),
        false => Ok(Concluded::fenced()),
    }
}

/// `None`: something of it is not held any more.
async fn write(
    connection: &mut SqliteConnection,
    now: i64,
    random: Random,
    conclusion: &Conclusion,
) -> Result<Option<Concluded>> {
    if let Some(Settlement { row, token, .. }) = &conclusion.settlement {
        let query = sqlx::query(LEASED).bind(row.id).bind(row.target_no).bind(token.0);
        if query.fetch_optional(&mut *connection).await.map_err(error::of)?.is_none() {
            return Ok(None);
        }
    }
    for claim in &conclusion.claims {
        let held = if conclusion.is_done() {
            confirm(connection, now, claim).await?
        } else {
            release(connection, claim).await?
        };
        if !held && conclusion.is_done() {
            return Ok(None);
        }
    }
    if let Some(arrival) = conclusion.arrival {
        end_arrival(connection, now, arrival, conclusion.arrival_end()).await?;
    }
    let mut messages = Vec::new();
    if !conclusion.messages.is_empty() {
        let request = conclusion.request();
        request.check_storable()?;
        let outcome = accept::write_group(connection, now, &[&request]).await?.pop();
        let Some(Outcome::Stored(outcomes)) = outcome else {
            return Err(Error::new(ErrorKind::Internal, "a request without a claim was refused"));
        };
        messages = outcomes;
    }
    if let Some(settlement) = &conclusion.settlement {
        let settled = settle::write(connection, now, random, std::slice::from_ref(settlement)).await?;
        if settled != [Settled::Yes] {
            return Ok(None);
        }
    }
    Ok(Some(Concluded { settled: Settled::Yes, messages }))
}

async fn end_arrival(
    connection: &mut SqliteConnection,
    now: i64,
    arrival: Arrival,
    end: ArrivalEnd,
) -> Result<()> {
    let query = match end {
        ArrivalEnd::Kept => sqlx::query(KEEP_ARRIVAL).bind(later(now, arrival.keep)),
        ArrivalEnd::Deleted => sqlx::query(DELETE_ARRIVAL),
        ArrivalEnd::Untouched => return Ok(()),
    };
    query.bind(arrival.key.0).bind(arrival.token.0).execute(connection).await.map_err(error::of)?;
    Ok(())
}

async fn confirm(connection: &mut SqliteConnection, now: i64, claim: &HeldClaim) -> Result<bool> {
    let query = sqlx::query(CONFIRM)
        .bind(later(now, claim.window))
        .bind(claim.answer.as_deref())
        .bind(claim.key.0)
        .bind(claim.token.0);
    Ok(query.execute(connection).await.map_err(error::of)?.rows_affected() > 0)
}

async fn release(connection: &mut SqliteConnection, claim: &HeldClaim) -> Result<bool> {
    let query = sqlx::query(RELEASE).bind(claim.key.0).bind(claim.token.0);
    Ok(query.execute(connection).await.map_err(error::of)?.rows_affected() > 0)
}

/// Whether this very conclusion was written before, and its reply was lost. Where a delivery is settled, the
/// row says so by being gone, and nobody needs to know.
async fn confirmed_before(
    connection: &mut SqliteConnection,
    now: i64,
    conclusion: &Conclusion,
) -> Result<bool> {
    if conclusion.settlement.is_some() || conclusion.claims.is_empty() {
        return Ok(false);
    }
    for held in &conclusion.claims {
        let standing = claims::find(connection, held.key, now).await?;
        if !standing.is_some_and(|claim| claim.token == held.token && claim.state == ClaimState::Confirmed) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Every statement of this file, for the tests that prepare and explain them.
#[cfg(test)]
pub(super) fn statements() -> Vec<String> {
    [FREE, RENEW_ROW, RENEW_CLAIM, LEASED, CONFIRM, LEASED_UNTIL, KEEP_ARRIVAL, DELETE_ARRIVAL, RELEASE]
        .map(str::to_owned)
        .into()
}
