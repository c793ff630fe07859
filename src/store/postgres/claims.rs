//! Claims. The primary key does the mutual exclusion; only its own violation means that somebody else holds
//! the claim.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::postgres::types::PgInterval;
use uuid::Uuid;

use super::error::Fault;
use super::pool::{Mode, Session};
use super::rows::{corrupt, interval};
use super::{Postgres, rows};
use crate::domain::claim::{ClaimKey, ClaimKind};
use crate::domain::{Timestamp, Token};
use crate::store::claims::{Claim, ClaimState, Claimed, NewClaim};
use crate::store::{Error, ErrorKind, Result};

/// How often a claim is tried for when its holder is gone again each time that it is looked for.
pub(super) const TRIES: u32 = 3;

/// The columns that [`read`] reads, of a claim `c`.
macro_rules! claim_columns {
    () => {
        "c.key, c.kind, c.scope, c.id, c.token, c.confirmed, c.tenant, c.message_id, c.row_id, \
         c.first_seen_at, c.expires_at, c.fingerprint, c.answer, \
         greatest(0, extract(epoch FROM c.expires_at - now()) * 1000000)::bigint AS expires_in_us"
    };
}
pub(super) use claim_columns;

/// Returns no row when somebody else holds it.
pub(super) const CLAIM: &str = concat!(
    "INSERT INTO oncegate.deduplication AS c
        (key, kind, scope, id, tenant, token, confirmed, message_id, first_seen_at, expires_at, fingerprint)
     VALUES ($1, $2, $3, $4, $5, $6, false, $7, now(), now() + $8::interval, $9)
     ON CONFLICT (key) DO UPDATE SET
        kind = excluded.kind, scope = excluded.scope, id = excluded.id, tenant = excluded.tenant,
        token = excluded.token, confirmed = false, message_id = excluded.message_id, row_id = NULL,
        first_seen_at = excluded.first_seen_at, expires_at = excluded.expires_at,
        fingerprint = excluded.fingerprint, answer = NULL
     WHERE c.expires_at <= now() OR (c.token = excluded.token AND NOT c.confirmed)
     RETURNING ",
    claim_columns!()
);

pub(super) const FIND: &str = concat!(
    "SELECT ",
    claim_columns!(),
    " FROM oncegate.deduplication c WHERE c.key = $1 AND c.expires_at > now()"
);

/// Also of a lease that has ended, as long as nobody took it over: the token still holds.
pub(super) const RENEW: &str = concat!(
    "UPDATE oncegate.deduplication c SET expires_at = now() + $3::interval
     WHERE c.key = $1 AND c.token = $2 AND NOT c.confirmed
     RETURNING ",
    claim_columns!()
);

/// Again: the same answer, as long as it stands.
pub(super) const CONFIRM: &str = concat!(
    "UPDATE oncegate.deduplication c SET
        confirmed = true, expires_at = CASE WHEN c.confirmed THEN c.expires_at ELSE now() + $3::interval END
     WHERE c.key = $1 AND c.token = $2 AND (NOT c.confirmed OR c.expires_at > now())
     RETURNING ",
    claim_columns!()
);

pub(super) const RELEASE: &str =
    "DELETE FROM oncegate.deduplication WHERE key = $1 AND token = $2 AND NOT confirmed";

pub(super) async fn claim(store: &Postgres, new: &NewClaim) -> Result<Claimed> {
    for _ in 0..TRIES {
        let mut session = store.pool.session(Mode::Autocommit).await?;
        let result = insert_or_find(&mut session, new).await;
        if let Some(claimed) = session.finish(result).await? {
            return Ok(claimed);
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "the claim changed hands each time that it was looked for"))
}

/// `None`: whoever held it is gone again. (A statement does not see the row that it lost to.)
async fn insert_or_find(session: &mut Session<'_>, new: &NewClaim) -> Result<Option<Claimed>, Fault> {
    let insert = sqlx::query(CLAIM)
        .bind(new.key.0)
        .bind(new.kind as i16)
        .bind(&new.scope)
        .bind(&new.id)
        .bind(&new.tenant)
        .bind(new.token.0)
        .bind(new.message_id.as_deref())
        .bind(interval(new.lease))
        .bind(new.fingerprint.as_ref().map(<[u8; 32]>::as_slice));
    if let Some(row) = session.rows(insert).await?.first() {
        return Ok(Some(Claimed::Granted(read(row)?)));
    }
    let found = session.rows(sqlx::query(FIND).bind(new.key.0)).await?;
    found.first().map(|row| Ok(Claimed::Held(read(row)?))).transpose()
}

pub(super) async fn renew(
    store: &Postgres,
    key: ClaimKey,
    token: Token,
    lease: Duration,
) -> Result<Option<Claim>> {
    guarded(store, RENEW, key, token, interval(lease)).await
}

pub(super) async fn confirm(
    store: &Postgres,
    key: ClaimKey,
    token: Token,
    window: Duration,
) -> Result<Option<Claim>> {
    guarded(store, CONFIRM, key, token, interval(window)).await
}

async fn guarded(
    store: &Postgres,
    sql: &'static str,
    key: ClaimKey,
    token: Token,
    time: PgInterval,
) -> Result<Option<Claim>> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = session.rows(sqlx::query(sql).bind(key.0).bind(token.0).bind(time)).await;
    let rows = session.finish(result).await?;
    Ok(rows.first().map(read).transpose()?)
}

pub(super) async fn release(store: &Postgres, key: ClaimKey, token: Token) -> Result<bool> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = session.execute(sqlx::query(RELEASE).bind(key.0).bind(token.0)).await;
    Ok(session.finish(result).await? > 0)
}

pub(super) async fn claim_of(store: &Postgres, key: ClaimKey) -> Result<Option<Claim>> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = session.rows(sqlx::query(FIND).bind(key.0)).await;
    let rows = session.finish(result).await?;
    Ok(rows.first().map(read).transpose()?)
}

pub(super) fn read(row: &PgRow) -> Result<Claim, Fault> {
    let kind = match row.try_get::<i16, _>("kind")? {
        0 => ClaimKind::Request,
        1 => ClaimKind::Work,
        2 => ClaimKind::Handler,
        3 => ClaimKind::Consumer,
        4 => ClaimKind::Lock,
        other => return Err(corrupt(format!("{other} is not a kind of claim"))),
    };
    let row_id: Option<Uuid> = row.try_get("row_id")?;
    let message_id: Option<String> = row.try_get("message_id")?;
    let fingerprint = row.try_get::<Option<&[u8]>, _>("fingerprint")?.map(<[u8; 32]>::try_from).transpose();
    let answer = row.try_get::<Option<Vec<u8>>, _>("answer")?;
    let expires_in_us: i64 = row.try_get("expires_in_us")?;
    Ok(Claim {
        key: ClaimKey(row.try_get("key")?),
        kind,
        scope: row.try_get("scope")?,
        id: row.try_get("id")?,
        token: Token(row.try_get("token")?),
        state: if row.try_get("confirmed")? { ClaimState::Confirmed } else { ClaimState::Claimed },
        message_id: message_id.or_else(|| row_id.map(|id| id.to_string())),
        row_id,
        tenant: row.try_get("tenant")?,
        first_seen_at: row.try_get::<Timestamp, _>("first_seen_at")?,
        expires_at: row.try_get::<Timestamp, _>("expires_at")?,
        expires_in: rows::micros(expires_in_us),
        fingerprint: fingerprint.map_err(|_| corrupt("a fingerprint is not of 32 bytes"))?,
        answer: answer.map(Into::into),
    })
}
