//! Handling: claims of deliveries, leases renewed, and the commit that ends it.

use std::collections::HashSet;
use std::time::Duration;

use super::claims::{self, FIND, TRIES, claim_columns};
use super::error::{Class, Fault};
use super::pool::{Mode, Session};
use super::rows::interval;
use super::{Postgres, accept, settle};
use crate::domain::claim::ClaimKey;
use crate::domain::{RowKey, Token};
use crate::store::accept::Outcome;
use crate::store::claims::Claimed;
use crate::store::deliveries::{Settled, Settlement};
use crate::store::inbox::{Arrival, ArrivalEnd, Concluded, Conclusion, Handling, Held, HeldClaim};
use crate::store::{Error, ErrorKind, Result};
use uuid::Uuid;

/// Returns no row when somebody else holds it. An earlier taker of the same row is nobody else: whoever knows
/// the row's token took it last.
pub(super) const CLAIM: &str = concat!(
    "INSERT INTO oncegate.deduplication AS c
        (key, kind, scope, id, tenant, token, confirmed, message_id, row_id, first_seen_at, expires_at)
     VALUES ($1, $2, $3, $4, $5, $6, false, $7, $8, now(), now() + $9)
     ON CONFLICT (key) DO UPDATE SET
        kind = excluded.kind, scope = excluded.scope, id = excluded.id, tenant = excluded.tenant,
        token = excluded.token, confirmed = false, message_id = excluded.message_id, row_id = excluded.row_id,
        first_seen_at = excluded.first_seen_at, expires_at = excluded.expires_at, fingerprint = NULL,
        answer = NULL
     WHERE c.expires_at <= now()
        OR (NOT c.confirmed AND c.row_id = excluded.row_id AND EXISTS (
            SELECT FROM oncegate.deliveries d WHERE d.row_id = $8 AND d.target_no = $10 AND d.token = $11))
     RETURNING ",
    claim_columns!()
);

pub(super) const RENEW_ROWS: &str = "UPDATE oncegate.deliveries d SET due_at = now() + $4
     FROM unnest($1::uuid[], $2::smallint[], $3::bigint[]) AS t(row_id, target_no, token)
     WHERE d.row_id = t.row_id AND d.target_no = t.target_no AND d.token = t.token AND d.state = 2";

pub(super) const RENEW_CLAIMS: &str = "UPDATE oncegate.deduplication c SET expires_at = now() + $3
     FROM unnest($1::uuid[], $2::bigint[]) AS t(key, token)
     WHERE c.key = t.key AND c.token = t.token AND NOT c.confirmed";

/// The row stays as it is until the commit.
pub(super) const LOCK: &str = "SELECT 1 FROM oncegate.deliveries
     WHERE row_id = $1 AND target_no = $2 AND token = $3 AND state = 2 FOR UPDATE";

/// The same for several, in key order.
pub(super) const LOCK_ROWS: &str = "SELECT d.row_id, d.target_no FROM oncegate.deliveries d
     JOIN unnest($1::uuid[], $2::smallint[], $3::bigint[]) AS t(row_id, target_no, token)
        ON d.row_id = t.row_id AND d.target_no = t.target_no AND d.token = t.token
     WHERE d.state = 2 ORDER BY d.row_id, d.target_no FOR UPDATE OF d";

/// Those of these claims that are held and not confirmed; they stay so until the commit.
pub(super) const LOCK_CLAIMS: &str = "SELECT c.key FROM oncegate.deduplication c
     JOIN unnest($1::uuid[], $2::bigint[]) AS t(key, token) ON c.key = t.key AND c.token = t.token
     WHERE NOT c.confirmed ORDER BY c.key FOR UPDATE OF c";

/// Also of a lease that has ended, as long as nobody took it over.
pub(super) const CONFIRM: &str = "UPDATE oncegate.deduplication c
     SET confirmed = true, expires_at = now() + t.keep, answer = t.answer
     FROM unnest($1::uuid[], $2::bigint[], $3::interval[], $4::bytea[]) AS t(key, token, keep, answer)
     WHERE c.key = t.key AND c.token = t.token AND NOT c.confirmed
     RETURNING c.key";

/// How many of these this very attempt confirmed before.
pub(super) const CONFIRMED: &str = "SELECT count(*) AS number FROM oncegate.deduplication c
     JOIN unnest($1::uuid[], $2::bigint[]) AS t(key, token) ON c.key = t.key AND c.token = t.token
     WHERE c.confirmed";

pub(super) const LEASED_FOR: &str = "SELECT
        (extract(epoch FROM max(due_at) - now()) * 1000000)::bigint AS left_us
     FROM oncegate.deliveries WHERE row_id = $1 AND state = 2 AND due_at > now()";

pub(super) const KEEP_ARRIVAL: &str =
    "UPDATE oncegate.deduplication SET expires_at = now() + $3::interval WHERE key = $1 AND token = $2";

pub(super) const DELETE_ARRIVAL: &str = "DELETE FROM oncegate.deduplication WHERE key = $1 AND token = $2";

pub(super) const RELEASE: &str = "DELETE FROM oncegate.deduplication c
     USING unnest($1::uuid[], $2::bigint[]) AS t(key, token)
     WHERE c.key = t.key AND c.token = t.token AND NOT c.confirmed";

pub(super) async fn claim(store: &Postgres, handling: &Handling) -> Result<Claimed> {
    for _ in 0..TRIES {
        let mut session = store.pool.session(Mode::Autocommit).await?;
        let result = insert_or_find(&mut session, handling).await;
        if let Some(claimed) = session.finish(result).await? {
            return Ok(claimed);
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "the claim changed hands each time that it was looked for"))
}

async fn insert_or_find(session: &mut Session<'_>, handling: &Handling) -> Result<Option<Claimed>, Fault> {
    let new = &handling.claim;
    let insert = sqlx::query(CLAIM)
        .bind(new.key.0)
        .bind(new.kind as i16)
        .bind(&new.scope)
        .bind(&new.id)
        .bind(&new.tenant)
        .bind(new.token.0)
        .bind(new.message_id.as_deref())
        .bind(handling.row.id)
        .bind(interval(new.lease))
        .bind(handling.row.target_no)
        .bind(handling.row_token.0);
    if let Some(row) = session.rows(insert).await?.first() {
        return Ok(Some(Claimed::Granted(claims::read(row)?)));
    }
    let found = session.rows(sqlx::query(FIND).bind(new.key.0)).await?;
    found.first().map(|row| Ok(Claimed::Held(claims::read(row)?))).transpose()
}

pub(super) async fn leased_for(store: &Postgres, row_id: Uuid) -> Result<Option<Duration>> {
    use sqlx::Row;
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = session.rows(sqlx::query(LEASED_FOR).bind(row_id)).await;
    let rows = session.finish(result).await?;
    let left_us: Option<i64> = match rows.first() {
        Some(row) => row.try_get("left_us").map_err(|error| Error::from(Fault::from(error)))?,
        None => None,
    };
    Ok(left_us.map(super::rows::micros))
}

pub(super) async fn renew(store: &Postgres, held: &[Held], lease: Duration) -> Result<()> {
    let mut rows: Vec<(RowKey, Token)> = held.iter().filter_map(|held| held.row).collect();
    let mut claims: Vec<(ClaimKey, Token)> =
        held.iter().flat_map(|held| held.claims.iter().copied()).collect();
    rows.sort_unstable_by_key(|(row, _)| *row);
    claims.sort_unstable_by_key(|(key, _)| *key);
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = renew_sorted(&mut session, &rows, &claims, lease).await;
    Ok(session.finish(result).await?)
}

async fn renew_sorted(
    session: &mut Session<'_>,
    rows: &[(RowKey, Token)],
    claims: &[(ClaimKey, Token)],
    lease: Duration,
) -> Result<(), Fault> {
    if !rows.is_empty() {
        let query = sqlx::query(RENEW_ROWS)
            .bind(rows.iter().map(|(row, _)| row.id).collect::<Vec<_>>())
            .bind(rows.iter().map(|(row, _)| row.target_no).collect::<Vec<_>>())
            .bind(rows.iter().map(|(_, token)| token.0).collect::<Vec<_>>())
            .bind(interval(lease));
        session.execute(query).await?;
    }
    if !claims.is_empty() {
        let query = sqlx::query(RENEW_CLAIMS)
            .bind(claims.iter().map(|(key, _)| key.0).collect::<Vec<_>>())
            .bind(claims.iter().map(|(_, token)| token.0).collect::<Vec<_>>())
            .bind(interval(lease));
        session.execute(query).await?;
    }
    Ok(())
}

/// Why nothing is written, on the way out of the transaction.
enum Stop {
    Fenced,
    Fault(Fault),
}

impl Stop {
    /// Where everything was locked before.
    fn unexpected(self) -> Fault {
        match self {
            Self::Fault(fault) => fault,
            Self::Fenced => Fault::new(Class::Other, ErrorKind::Internal, "what was locked is not held"),
        }
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

pub(super) async fn conclude(store: &Postgres, conclusion: &Conclusion) -> Result<Concluded> {
    let mut session = store.pool.session(Mode::Transaction).await?;
    match write(&mut session, store, conclusion).await {
        Ok(concluded) => Ok(session.finish(Ok(concluded)).await?),
        Err(Stop::Fenced) => {
            let before = confirmed_before(&mut session, conclusion).await;
            // Whatever was written of it is rolled back.
            let fault = || Fault::new(Class::Other, ErrorKind::Internal, "fenced");
            let _ = session.finish::<()>(Err(fault())).await;
            match before? {
                true => Ok(Concluded { settled: Settled::Yes, messages: Vec::new() }),
                false => Ok(Concluded::fenced()),
            }
        }
        Err(Stop::Fault(fault)) => Ok(session.finish(Err(fault)).await?),
    }
}

async fn write(
    session: &mut Session<'_>,
    store: &Postgres,
    conclusion: &Conclusion,
) -> Result<Concluded, Stop> {
    if let Some(Settlement { row, token, .. }) = &conclusion.settlement {
        let lock = sqlx::query(LOCK).bind(row.id).bind(row.target_no).bind(token.0);
        if session.rows(lock).await?.is_empty() {
            return Err(Stop::Fenced);
        }
    }
    end_claims(session, &conclusion.claims.iter().collect::<Vec<_>>(), conclusion.is_done()).await?;
    if let Some(arrival) = conclusion.arrival {
        end_arrival(session, arrival, conclusion.arrival_end()).await?;
    }
    let messages = if conclusion.messages.is_empty() {
        Vec::new()
    } else {
        match accept::within(session, store, &conclusion.request()).await? {
            Outcome::Stored(outcomes) => outcomes,
            _ => {
                let text = "a request without a claim was refused";
                return Err(Fault::new(Class::Other, ErrorKind::Internal, text).into());
            }
        }
    };
    if let Some(settlement) = &conclusion.settlement
        && settle::within(session, store, &[settlement]).await? != [Settled::Yes]
    {
        return Err(Stop::Fenced);
    }
    Ok(Concluded { settled: Settled::Yes, messages })
}

/// Confirms them if the work was done, else releases them.
async fn end_claims(session: &mut Session<'_>, claims: &[&HeldClaim], done: bool) -> Result<(), Stop> {
    let mut claims = claims.to_vec();
    if claims.is_empty() {
        return Ok(());
    }
    claims.sort_unstable_by_key(|claim| claim.key);
    let keys: Vec<_> = claims.iter().map(|claim| claim.key.0).collect();
    let tokens: Vec<_> = claims.iter().map(|claim| claim.token.0).collect();
    if !done {
        session.execute(sqlx::query(RELEASE).bind(keys).bind(tokens)).await?;
        return Ok(());
    }
    let query = sqlx::query(CONFIRM)
        .bind(keys)
        .bind(tokens)
        .bind(claims.iter().map(|claim| interval(claim.window)).collect::<Vec<_>>())
        .bind(claims.iter().map(|claim| claim.answer.as_deref()).collect::<Vec<Option<&[u8]>>>());
    if session.rows(query).await?.len() < claims.len() {
        return Err(Stop::Fenced);
    }
    Ok(())
}

pub(super) async fn conclude_all(store: &Postgres, conclusions: &[Conclusion]) -> Result<Vec<Concluded>> {
    let mut session = store.pool.session(Mode::Transaction).await?;
    let result = write_all(&mut session, store, conclusions).await;
    Ok(session.finish(result).await?)
}

/// Locks everything first, so that nothing is written of those that are fenced.
async fn write_all(
    session: &mut Session<'_>,
    store: &Postgres,
    conclusions: &[Conclusion],
) -> Result<Vec<Concluded>, Fault> {
    let held = held(session, conclusions).await?;
    let whole: Vec<&Conclusion> =
        conclusions.iter().zip(&held).filter(|(_, held)| **held).map(|(conclusion, _)| conclusion).collect();
    for done in [true, false] {
        let of_these = whole.iter().filter(|conclusion| conclusion.is_done() == done);
        let claims: Vec<&HeldClaim> = of_these.flat_map(|conclusion| &conclusion.claims).collect();
        end_claims(session, &claims, done).await.map_err(Stop::unexpected)?;
    }
    for conclusion in &whole {
        if let Some(arrival) = conclusion.arrival {
            end_arrival(session, arrival, conclusion.arrival_end()).await?;
        }
    }
    let requests: Vec<_> =
        whole.iter().filter(|conclusion| !conclusion.messages.is_empty()).map(|c| c.request()).collect();
    let mut published = accept::within_all(session, store, &requests).await?.into_iter();
    let settlements: Vec<&Settlement> =
        whole.iter().filter_map(|conclusion| conclusion.settlement.as_ref()).collect();
    if settle::within(session, store, &settlements).await?.contains(&Settled::Fenced) {
        return Err(Stop::Fenced.unexpected());
    }
    let mut concluded = Vec::with_capacity(conclusions.len());
    for (conclusion, held) in conclusions.iter().zip(held) {
        concluded.push(match (held, conclusion.messages.is_empty()) {
            (false, _) => Concluded::fenced(),
            (true, true) => Concluded { settled: Settled::Yes, messages: Vec::new() },
            (true, false) => match published.next() {
                Some(Outcome::Stored(messages)) => Concluded { settled: Settled::Yes, messages },
                _ => return Err(Stop::Fenced.unexpected()),
            },
        });
    }
    Ok(concluded)
}

/// Which of these are held whole: their rows and, where they are to be confirmed, their claims.
async fn held(session: &mut Session<'_>, conclusions: &[Conclusion]) -> Result<Vec<bool>, Fault> {
    use sqlx::Row;
    let mut rows: Vec<(RowKey, Token)> = conclusions
        .iter()
        .filter_map(|conclusion| conclusion.settlement.as_ref())
        .map(|settlement| (settlement.row, settlement.token))
        .collect();
    rows.sort_unstable_by_key(|(row, _)| *row);
    let query = sqlx::query(LOCK_ROWS)
        .bind(rows.iter().map(|(row, _)| row.id).collect::<Vec<_>>())
        .bind(rows.iter().map(|(row, _)| row.target_no).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, token)| token.0).collect::<Vec<_>>());
    let mut locked_rows = HashSet::new();
    for row in session.rows(query).await? {
        locked_rows.insert(RowKey { id: row.try_get("row_id")?, target_no: row.try_get("target_no")? });
    }
    let claims: Vec<&HeldClaim> = conclusions.iter().flat_map(|conclusion| &conclusion.claims).collect();
    let mut locked_claims: HashSet<uuid::Uuid> = HashSet::new();
    if !claims.is_empty() {
        let query = sqlx::query(LOCK_CLAIMS)
            .bind(claims.iter().map(|claim| claim.key.0).collect::<Vec<_>>())
            .bind(claims.iter().map(|claim| claim.token.0).collect::<Vec<_>>());
        for row in session.rows(query).await? {
            locked_claims.insert(row.try_get("key")?);
        }
    }
    let is_held = |conclusion: &Conclusion| {
        let row = conclusion.settlement.as_ref().is_none_or(|s| locked_rows.contains(&s.row));
        let claims = || conclusion.claims.iter().all(|claim| locked_claims.contains(&claim.key.0));
        row && (!conclusion.is_done() || claims())
    };
    Ok(conclusions.iter().map(is_held).collect())
}

async fn end_arrival(session: &mut Session<'_>, arrival: Arrival, end: ArrivalEnd) -> Result<(), Fault> {
    let Arrival { key, token, keep } = arrival;
    let query = match end {
        ArrivalEnd::Kept => sqlx::query(KEEP_ARRIVAL).bind(key.0).bind(token.0).bind(interval(keep)),
        ArrivalEnd::Deleted => sqlx::query(DELETE_ARRIVAL).bind(key.0).bind(token.0),
        ArrivalEnd::Untouched => return Ok(()),
    };
    session.execute(query).await?;
    Ok(())
}

/// Whether this very conclusion was written before, and its reply was lost. Where a delivery is settled, the
/// row says so by being gone, and nobody needs to know.
async fn confirmed_before(session: &mut Session<'_>, conclusion: &Conclusion) -> Result<bool, Fault> {
    use sqlx::Row;
    if conclusion.settlement.is_some() || conclusion.claims.is_empty() {
        return Ok(false);
    }
    let query = sqlx::query(CONFIRMED)
        .bind(conclusion.claims.iter().map(|claim| claim.key.0).collect::<Vec<_>>())
        .bind(conclusion.claims.iter().map(|claim| claim.token.0).collect::<Vec<_>>());
    let rows = session.rows(query).await?;
    let number: i64 = rows.first().map_or(Ok(0), |row| row.try_get("number"))?;
    Ok(usize::try_from(number).is_ok_and(|number| number == conclusion.claims.len()))
}
