//! Claims. The primary key does the mutual exclusion.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::rows::{Batched, Columns, corrupt, later, micros, moment, stored_id, until};
use super::{Inner, error};
use crate::domain::Token;
use crate::domain::claim::{ClaimKey, ClaimKind};
use crate::store::Result;
use crate::store::claims::{Claim, ClaimState, Claimed, NewClaim};

/// Takes what is free, what has expired, and what this very attempt took before (when it is run again). What
/// is not returned is held by somebody else.
const INSERT: &str = "
    INSERT INTO oncegate_deduplication AS held
        (key, kind, scope, id, token, confirmed, tenant, row_id, message_id, first_seen_at, expires_at,
         fingerprint, answer)
    VALUES {values}
    ON CONFLICT (key) DO UPDATE SET
        kind = excluded.kind, scope = excluded.scope, id = excluded.id, token = excluded.token,
        confirmed = excluded.confirmed, tenant = excluded.tenant, row_id = excluded.row_id,
        message_id = excluded.message_id, first_seen_at = excluded.first_seen_at,
        expires_at = excluded.expires_at, fingerprint = excluded.fingerprint, answer = excluded.answer
    WHERE held.expires_at <= excluded.first_seen_at
       OR (held.token = excluded.token AND held.confirmed <= excluded.confirmed)
    RETURNING key";
const INSERT_COLUMNS: usize = 13;
static INSERT_BATCHED: LazyLock<Batched> = LazyLock::new(|| Batched::new(INSERT, INSERT_COLUMNS));

const SELECT: &str = "
    SELECT key, kind, scope, id, token, confirmed, tenant, row_id, message_id, first_seen_at, expires_at,
           fingerprint, answer
    FROM oncegate_deduplication WHERE key = ? AND expires_at > ?";

const RENEW: &str = "
    UPDATE oncegate_deduplication SET expires_at = ? WHERE key = ? AND token = ? AND confirmed = 0";

const CONFIRM: &str = "
    UPDATE oncegate_deduplication SET confirmed = 1, expires_at = ?
    WHERE key = ? AND token = ? AND confirmed = 0";

const RELEASE: &str = "DELETE FROM oncegate_deduplication WHERE key = ? AND token = ? AND confirmed = 0";

const DISCARD: &str = "DELETE FROM oncegate_deduplication WHERE key = ? AND token = ?";

const ANSWER: &str = "UPDATE oncegate_deduplication SET answer = ? WHERE key = ? AND token = ?";

/// Inserts claims, each key once. Returns the keys that were won.
pub(super) async fn insert(
    connection: &mut SqliteConnection,
    claims: &[Claim],
    won: &mut Vec<ClaimKey>,
) -> Result<()> {
    for (sql, chunk) in INSERT_BATCHED.over(claims) {
        let mut query = sqlx::query_scalar::<_, Uuid>(sql);
        for claim in chunk {
            let message_id = match (claim.row_id, claim.message_id.as_deref()) {
                (Some(row_id), Some(message_id)) => stored_id(row_id, message_id),
                (_, message_id) => message_id,
            };
            query = query
                .bind(claim.key.0)
                .bind(claim.kind as i16)
                .bind(&claim.scope)
                .bind(&claim.id)
                .bind(claim.token.0)
                .bind(claim.state == ClaimState::Confirmed)
                .bind(&claim.tenant)
                .bind(claim.row_id)
                .bind(message_id)
                .bind(micros(claim.first_seen_at))
                .bind(micros(claim.expires_at))
                .bind(claim.fingerprint.as_ref().map(<[u8; 32]>::as_slice))
                .bind(claim.answer.as_deref());
        }
        let keys = query.fetch_all(&mut *connection).await.map_err(error::of)?;
        won.extend(keys.into_iter().map(ClaimKey));
    }
    Ok(())
}

/// The claim that stands under `key`.
pub(super) async fn find(
    connection: &mut SqliteConnection,
    key: ClaimKey,
    now: i64,
) -> Result<Option<Claim>> {
    find_after(connection, key, now, now).await
}

/// The claim under `key`, if it ends after `moment`.
async fn find_after(
    connection: &mut SqliteConnection,
    key: ClaimKey,
    moment: i64,
    now: i64,
) -> Result<Option<Claim>> {
    let query = sqlx::query(SELECT).bind(key.0).bind(moment);
    let row = query.fetch_optional(connection).await.map_err(error::of)?;
    row.map(|row| read(&row, now)).transpose()
}

/// Deletes a claim that this attempt wrote, confirmed or not.
pub(super) async fn discard(connection: &mut SqliteConnection, key: ClaimKey, token: Token) -> Result<()> {
    sqlx::query(DISCARD).bind(key.0).bind(token.0).execute(connection).await.map_err(error::of)?;
    Ok(())
}

/// Replaces the answer that is kept with a claim that this attempt wrote.
pub(super) async fn set_answer(
    connection: &mut SqliteConnection,
    key: ClaimKey,
    token: Token,
    answer: &Bytes,
) -> Result<()> {
    sqlx::query(ANSWER)
        .bind(answer.as_ref())
        .bind(key.0)
        .bind(token.0)
        .execute(connection)
        .await
        .map_err(error::of)?;
    Ok(())
}

pub(super) async fn keep_answer(
    store: &Arc<Inner>,
    key: ClaimKey,
    token: Token,
    answer: Bytes,
) -> Result<()> {
    store
        .write(move |connection, _| {
            Box::pin(async move { set_answer(connection, key, token, &answer).await })
        })
        .await
}

fn read(row: &SqliteRow, now: i64) -> Result<Claim> {
    let kind = match row.int("kind")? {
        0 => ClaimKind::Request,
        1 => ClaimKind::Work,
        2 => ClaimKind::Handler,
        3 => ClaimKind::Consumer,
        4 => ClaimKind::Lock,
        other => return Err(corrupt(format!("{other} is not a kind of claim"))),
    };
    let row_id = row.uuid_opt("row_id")?;
    let message_id = row.text_opt("message_id")?.or_else(|| row_id.map(|id| id.to_string()));
    let fingerprint = match row.blob_opt("fingerprint")? {
        Some(bytes) => {
            let bytes = <[u8; 32]>::try_from(bytes.as_ref());
            Some(bytes.map_err(|_| corrupt("a fingerprint is not of 32 bytes"))?)
        }
        None => None,
    };
    let expires_at = row.int("expires_at")?;
    Ok(Claim {
        key: ClaimKey(row.uuid("key")?),
        kind,
        scope: row.text("scope")?,
        id: row.text("id")?,
        token: Token(row.int("token")?),
        state: if row.int("confirmed")? == 0 { ClaimState::Claimed } else { ClaimState::Confirmed },
        message_id,
        row_id,
        tenant: row.text("tenant")?,
        first_seen_at: row.time("first_seen_at")?,
        expires_at: moment(expires_at)?,
        expires_in: until(expires_at, now),
        fingerprint,
        answer: row.blob_opt("answer")?,
    })
}

pub(super) async fn claim(store: &Arc<Inner>, new: &NewClaim) -> Result<Claimed> {
    let new = new.clone();
    store
        .write(move |connection, now| {
            Box::pin(async move {
                let expires_at = later(now, new.lease);
                let claim = Claim {
                    key: new.key,
                    kind: new.kind,
                    scope: new.scope,
                    id: new.id,
                    token: new.token,
                    state: ClaimState::Claimed,
                    message_id: new.message_id,
                    row_id: None,
                    tenant: new.tenant,
                    first_seen_at: moment(now)?,
                    expires_at: moment(expires_at)?,
                    expires_in: until(expires_at, now),
                    fingerprint: new.fingerprint,
                    answer: None,
                };
                let mut won = Vec::new();
                insert(connection, std::slice::from_ref(&claim), &mut won).await?;
                if won.is_empty() {
                    let held = find(connection, claim.key, now).await?;
                    return held
                        .map(Claimed::Held)
                        .ok_or_else(|| corrupt("a claim that is held is not there"));
                }
                Ok(Claimed::Granted(claim))
            })
        })
        .await
}

pub(super) async fn renew(
    store: &Arc<Inner>,
    key: ClaimKey,
    token: Token,
    lease: Duration,
) -> Result<Option<Claim>> {
    store
        .write(move |connection, now| {
            Box::pin(async move {
                let query = sqlx::query(RENEW).bind(later(now, lease)).bind(key.0).bind(token.0);
                if query.execute(&mut *connection).await.map_err(error::of)?.rows_affected() == 0 {
                    return Ok(None);
                }
                find_after(connection, key, i64::MIN, now).await
            })
        })
        .await
}

pub(super) async fn confirm(
    store: &Arc<Inner>,
    key: ClaimKey,
    token: Token,
    window: Duration,
) -> Result<Option<Claim>> {
    store
        .write(move |connection, now| {
            Box::pin(async move {
                let query = sqlx::query(CONFIRM).bind(later(now, window)).bind(key.0).bind(token.0);
                if query.execute(&mut *connection).await.map_err(error::of)?.rows_affected() > 0 {
                    return find_after(connection, key, i64::MIN, now).await;
                }
                // Again, perhaps: then what stands is the answer.
                let standing = find(connection, key, now).await?;
                let own = |claim: &Claim| claim.token == token && claim.state == ClaimState::Confirmed;
                Ok(standing.filter(own))
            })
        })
        .await
}

pub(super) async fn release(store: &Arc<Inner>, key: ClaimKey, token: Token) -> Result<bool> {
    store
        .write(move |connection, _| {
            Box::pin(async move {
                let query = sqlx::query(RELEASE).bind(key.0).bind(token.0);
                Ok(query.execute(connection).await.map_err(error::of)?.rows_affected() > 0)
            })
        })
        .await
}

pub(super) async fn claim_of(store: &Inner, key: ClaimKey) -> Result<Option<Claim>> {
    let mut connection = store.reader().await?;
    find(&mut connection, key, store.now()).await
}

/// Every statement of this file, for the tests that prepare and explain them.
#[cfg(test)]
pub(super) fn statements() -> Vec<String> {
    let mut all = INSERT_BATCHED.sizes();
    all.extend([SELECT, RENEW, CONFIRM, RELEASE, DISCARD, ANSWER].map(str::to_owned));
    all
}
