//! One try to write a group.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::columns::{self, Rows};
use super::outcomes::{self, Lost};
use super::{Planned, Tried};
use crate::domain::claim::ClaimKey;
use crate::domain::{Timestamp, Token};
use crate::store::accept::{Duplicate, MessageState, Outcome, Request};
use crate::store::postgres::Postgres;
use crate::store::postgres::claims::{self, claim_columns};
use crate::store::postgres::error::Fault;
use crate::store::postgres::pool::{Mode, Session};
use crate::store::postgres::rows::corrupt;

/// The claims that were lost, and where the messages stand that hold them.
pub(in crate::store::postgres) const LOSERS: &str = concat!(
    "SELECT ",
    claim_columns!(),
    ", (SELECT max(CASE WHEN d.state = 0 THEN 1 WHEN d.attempts > 0 THEN 3 ELSE 2 END)
        FROM oncegate.deliveries d WHERE d.row_id = c.row_id) AS waiting,
       EXISTS (SELECT FROM oncegate.dead_letters d WHERE d.row_id = c.row_id) AS dead,
       (SELECT min(r.kind) FROM oncegate.receipts r WHERE r.row_id = c.row_id) AS done
     FROM oncegate.deduplication c WHERE c.key = ANY($1) AND c.expires_at > now()"
);

/// Puts the answers right that were written on the assumption that nothing is a duplicate.
pub(in crate::store::postgres) const CORRECT: &str = "UPDATE oncegate.deduplication c SET answer = t.answer
     FROM unnest($1::uuid[], $2::bigint[], $3::bytea[]) AS t(key, token, answer)
     WHERE c.key = t.key AND c.token = t.token";

pub(in crate::store::postgres) const UNDO_CLAIMS: &str =
    "DELETE FROM oncegate.deduplication c USING unnest($1::uuid[], $2::bigint[]) AS t(key, token)
     WHERE c.key = t.key AND c.token = t.token";

pub(in crate::store::postgres) const UNDO_ROWS: &str =
    "DELETE FROM oncegate.deliveries WHERE row_id = ANY($1)";

/// Whether an earlier try, whose reply was lost, was committed: a group is committed whole, so anything of
/// it proves all of it.
pub(in crate::store::postgres) const EVIDENCE: &str =
    "SELECT EXISTS (SELECT FROM unnest($2::uuid[], $3::bigint[]) AS t(key, token)
                    JOIN oncegate.deduplication c ON c.key = t.key AND c.token = t.token
                    WHERE c.confirmed)
         OR EXISTS (SELECT FROM oncegate.deliveries WHERE row_id = ANY($1))
         OR EXISTS (SELECT FROM oncegate.receipts WHERE row_id = ANY($1))
         OR EXISTS (SELECT FROM oncegate.dead_letters WHERE row_id = ANY($1))";

/// Whether an earlier try of the same group may have been committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Earlier {
    None,
    MaybeStored,
}

/// Writes a group. `commits` becomes true before anything is sent that commits: a reply that is lost from
/// then on leaves the outcome unknown.
pub(super) async fn write(
    store: &Postgres,
    group: &[&Request],
    earlier: Earlier,
    commits: &mut bool,
) -> Result<Vec<Tried>, Fault> {
    // Only a connection has heard the server's time; where there is none yet, there is nothing to write to.
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let now = store.pool.clock.now();
    let planned: Vec<Planned<'_>> =
        match group.iter().map(|request| Planned::new(request, now)).collect::<crate::store::Result<_>>() {
            Ok(planned) => planned,
            Err(error) => return session.finish(Err(Fault::defect(error))).await,
        };
    let result = write_planned(&mut session, &planned, now, store, earlier, commits).await;
    *commits |= result.is_ok();
    session.finish(result).await
}

pub(super) async fn write_planned(
    session: &mut Session<'_>,
    planned: &[Planned<'_>],
    now: Timestamp,
    store: &Postgres,
    earlier: Earlier,
    commits: &mut bool,
) -> Result<Vec<Tried>, Fault> {
    let stored = earlier == Earlier::MaybeStored && is_stored(session, planned).await?;
    let which = if stored { Rows::Omit } else { Rows::Write };
    if planned.iter().any(Planned::needs_transaction) {
        session.begin().await?;
    }
    let mut lost = Vec::new();
    if planned.iter().any(Planned::has_claims) {
        let statement = columns::rows_and_claims(planned, now, which).map_err(Fault::defect)?;
        *commits |= !session.is_in_transaction();
        let rows = session.rows(statement).await?;
        let row = rows.first().ok_or_else(|| corrupt("a statement without its row"))?;
        store.pool.clock.hear(row.try_get("heard")?);
        lost = lost_keys(planned, &row.try_get::<Vec<Uuid>, _>("won")?);
    } else if which == Rows::Write && planned.iter().any(|plan| plan.messages().next().is_some()) {
        let statement = columns::rows_only(planned).map_err(Fault::defect)?;
        *commits |= !session.is_in_transaction();
        session.execute(statement).await?;
    }
    if lost.is_empty() && planned.iter().all(|plan| plan.answer.is_some()) {
        return Ok(planned
            .iter()
            .map(|plan| Tried::Done(Box::new(Outcome::Stored(plan.outcomes.clone()))))
            .collect());
    }
    let held = if lost.is_empty() { HashMap::new() } else { find(session, &lost).await? };
    settle_losers(session, planned, now, &lost, held).await
}

/// Says what becomes of those requests of which that can be told without writing anything: their own key is
/// taken, or their only work is. Waits for nobody.
pub(super) async fn look(store: &Postgres, group: &[&Request]) -> Result<Vec<Option<Outcome>>, Fault> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let now = store.pool.clock.now();
    let keys: Vec<Uuid> = group.iter().filter_map(|request| deciding_key(request)).map(|key| key.0).collect();
    let result = if keys.is_empty() { Ok(Lost::new()) } else { find(&mut session, &keys).await };
    let held = session.finish(result).await?;
    let told = |request: &&Request| {
        let key = deciding_key(request)?;
        let duplicate = held.get(&key).filter(|held| held.claim.token != request.token)?;
        if request.claim.is_some() {
            return Some(outcomes::of_taken_key(request, duplicate.claim.clone()));
        }
        let outcomes = outcomes::of(request, now, &held).ok()?;
        Some(match request.answer.render(&outcomes) {
            Some(_) => Outcome::Stored(outcomes),
            None => Outcome::Refused(outcomes),
        })
    };
    Ok(group.iter().map(told).collect())
}

/// The key that, if it is taken, says what becomes of the request.
fn deciding_key(request: &Request) -> Option<ClaimKey> {
    match (&request.claim, request.messages.as_slice()) {
        (Some(claim), _) => Some(claim.key),
        (None, [only]) => only.claim.as_ref().map(|claim| claim.key),
        (None, _) => None,
    }
}

fn lost_keys(planned: &[Planned<'_>], won: &[Uuid]) -> Vec<Uuid> {
    let keys = || planned.iter().flat_map(claim_keys);
    if keys().count() == won.len() {
        return Vec::new();
    }
    let won: HashSet<&Uuid> = won.iter().collect();
    keys().map(|key| key.0).filter(|key| !won.contains(key)).collect()
}

/// The keys that a request claims.
fn claim_keys<'a>(plan: &Planned<'a>) -> impl Iterator<Item = ClaimKey> + use<'a> {
    let own = plan.request.claim.iter().map(|claim| claim.key);
    own.chain(plan.messages().filter_map(|message| message.claim.as_ref().map(|claim| claim.key)))
}

async fn is_stored(session: &mut Session<'_>, planned: &[Planned<'_>]) -> Result<bool, Fault> {
    let row_ids: Vec<Uuid> =
        planned.iter().flat_map(Planned::messages).map(|message| message.row_id).collect();
    let (keys, tokens) = guarded_keys(planned.iter());
    let rows = session.rows(sqlx::query(EVIDENCE).bind(row_ids).bind(keys).bind(tokens)).await?;
    let row = rows.first().ok_or_else(|| corrupt("a statement without its row"))?;
    Ok(row.try_get(0)?)
}

fn guarded_keys<'a>(planned: impl Iterator<Item = &'a Planned<'a>>) -> (Vec<Uuid>, Vec<i64>) {
    let pairs = planned.flat_map(|plan| claim_keys(plan).map(|key| (key.0, plan.request.token.0)));
    pairs.unzip()
}

async fn find(session: &mut Session<'_>, keys: &[Uuid]) -> Result<Lost, Fault> {
    let rows = session.rows(sqlx::query(LOSERS).bind(keys.to_vec())).await?;
    let mut lost = Lost::with_capacity(rows.len());
    for row in &rows {
        let claim = claims::read(row)?;
        lost.insert(claim.key, Duplicate { claim, state: state(row)? });
    }
    Ok(lost)
}

/// Where a message stands: the least advanced of its deliveries. Nothing left of it: it was sent.
fn state(row: &PgRow) -> Result<MessageState, Fault> {
    let waiting: Option<i32> = row.try_get("waiting")?;
    let done: Option<i16> = row.try_get("done")?;
    Ok(match (waiting, row.try_get("dead")?, done) {
        (Some(3), ..) => MessageState::Retrying,
        (Some(2), ..) => MessageState::Pending,
        (Some(_), ..) => MessageState::Scheduled,
        (None, true, _) => MessageState::Dead,
        (None, false, Some(1)) => MessageState::Handled,
        (None, false, _) => MessageState::Sent,
    })
}

/// Says what became of each request, corrects the kept answers, and takes back what is not to stay.
async fn settle_losers(
    session: &mut Session<'_>,
    planned: &[Planned<'_>],
    now: Timestamp,
    lost: &[Uuid],
    mut held: Lost,
) -> Result<Vec<Tried>, Fault> {
    let lost: HashSet<ClaimKey> = lost.iter().copied().map(ClaimKey).collect();
    let mut tried = Vec::with_capacity(planned.len());
    let mut corrections: Vec<(ClaimKey, Token, Bytes)> = Vec::new();
    let mut undo: Vec<&Planned<'_>> = Vec::new();
    for plan in planned {
        let own = plan.request.claim.as_ref().map(|claim| claim.key);
        if let Some(key) = own.filter(|key| lost.contains(key)) {
            // Nothing of it was written.
            tried.push(match held.remove(&key) {
                Some(Duplicate { claim, .. }) => {
                    Tried::Done(Box::new(outcomes::of_taken_key(plan.request, claim)))
                }
                None => Tried::Again,
            });
            continue;
        }
        let mut work = claim_keys(plan).filter(|key| lost.contains(key)).peekable();
        if work.peek().is_none() && plan.answer.is_some() {
            tried.push(Tried::Done(Box::new(Outcome::Stored(plan.outcomes.clone()))));
            continue;
        }
        if work.any(|key| !held.contains_key(&key)) {
            undo.push(plan);
            tried.push(Tried::Again);
            continue;
        }
        let outcomes = outcomes::of(plan.request, now, &held).map_err(Fault::defect)?;
        match plan.answer.as_ref().and_then(|_| plan.request.answer.render(&outcomes)) {
            None => {
                undo.push(plan);
                tried.push(Tried::Done(Box::new(Outcome::Refused(outcomes))));
            }
            Some(answer) => {
                corrections.extend(own.map(|key| (key, plan.request.token, answer)));
                tried.push(Tried::Done(Box::new(Outcome::Stored(outcomes))));
            }
        }
    }
    correct(session, corrections).await?;
    take_back(session, undo).await?;
    Ok(tried)
}

async fn correct(session: &mut Session<'_>, corrections: Vec<(ClaimKey, Token, Bytes)>) -> Result<(), Fault> {
    if corrections.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(CORRECT)
        .bind(corrections.iter().map(|(key, ..)| key.0).collect::<Vec<_>>())
        .bind(corrections.iter().map(|(_, token, _)| token.0).collect::<Vec<_>>())
        .bind(corrections.iter().map(|(.., answer)| answer.as_ref()).collect::<Vec<&[u8]>>());
    session.execute(query).await?;
    Ok(())
}

/// Puts right the answer of a request that was committed.
pub(in crate::store::postgres) async fn keep_answer(
    store: &Postgres,
    key: ClaimKey,
    token: Token,
    answer: Bytes,
) -> crate::store::Result<()> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = correct(&mut session, vec![(key, token, answer)]).await;
    Ok(session.finish(result).await?)
}

/// Only within a transaction was anything written that could have to be taken back.
async fn take_back(session: &mut Session<'_>, undo: Vec<&Planned<'_>>) -> Result<(), Fault> {
    if undo.is_empty() || !session.is_in_transaction() {
        return Ok(());
    }
    let row_ids: Vec<Uuid> =
        undo.iter().flat_map(|plan| plan.messages()).map(|message| message.row_id).collect();
    session.execute(sqlx::query(UNDO_ROWS).bind(row_ids)).await?;
    let (keys, tokens) = guarded_keys(undo.into_iter());
    session.execute(sqlx::query(UNDO_CLAIMS).bind(keys).bind(tokens)).await?;
    Ok(())
}
