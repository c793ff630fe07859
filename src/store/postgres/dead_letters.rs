//! Dead letters. Those of a page are read, those of a replay are moved, by indexes that begin with the tenant.

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query as Sql;
use sqlx::{Postgres as Engine, Row};
use uuid::Uuid;

use super::Postgres;
use super::connect::LONG_STATEMENT_TIMEOUT;
use super::error::{Class, Fault};
use super::pool::{Mode, Session};
use super::rows::{self, message_columns};
use crate::domain::Message;
use crate::domain::delivery::{DeadKind, Target};
use crate::store::dead_letters::{
    Claims, Cursor, DeadLetter, Duplicates, Edit, Filter, GENERATION, Group, Hindrance, Page, Query, Replay,
    Selection, Why,
};
use crate::store::{Error, ErrorKind, Result};

/// `$1` tenant, `$2` type, `$3` and `$4` target, `$5` kind of error, `$6` and `$7` when, `$8` ids.
macro_rules! selected {
    () => {
        "d.tenant = $1 AND ($2::text IS NULL OR d.type = $2)
            AND ($3::smallint IS NULL OR d.kind = $3) AND ($4::text IS NULL OR d.target = $4)
            AND ($5::text IS NULL OR d.error_kind = $5)
            AND ($6::timestamptz IS NULL OR d.failed_at >= $6) AND ($7::timestamptz IS NULL OR d.failed_at < $7)
            AND ($8::uuid[] IS NULL OR d.id = ANY ($8))"
    };
}

/// `$9` and `$10`: the targets that there are.
macro_rules! has_target {
    () => {
        "(d.kind, d.target) IN (SELECT * FROM unnest($9::smallint[], $10::text[]))"
    };
}

/// Its message's claim names the row id, which its replays keep.
macro_rules! is_duplicate {
    () => {
        "EXISTS (SELECT FROM oncegate.deduplication c
            WHERE c.key = d.claim_key AND c.row_id IS DISTINCT FROM d.row_id AND c.expires_at > now())"
    };
}

macro_rules! columns {
    () => {
        concat!(
            "d.id, d.row_id, d.kind, d.target, d.attempts, d.error_kind, d.error_text, d.failed_at, ",
            message_columns!()
        )
    };
}

/// A page; each with how many bytes of bodies come before it, and how many were found with one to spare.
pub(super) const LIST: &str = concat!(
    "SELECT * FROM (SELECT ",
    columns!(),
    ", (sum(octet_length(d.body)) OVER (ORDER BY d.failed_at, d.id) - octet_length(d.body))::bigint AS bytes_before,
        count(*) OVER () AS found
     FROM (SELECT d.* FROM oncegate.dead_letters d WHERE ",
    selected!(),
    " AND ($9::timestamptz IS NULL OR (d.failed_at, d.id) > ($9, $10::uuid))
     ORDER BY d.failed_at, d.id LIMIT $11) d) p
     WHERE p.bytes_before < $12 ORDER BY p.failed_at, p.id"
);

pub(super) const ONE: &str =
    concat!("SELECT ", columns!(), " FROM oncegate.dead_letters d WHERE d.id = $1 AND d.tenant = $2");

pub(super) const LOCK: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM oncegate.dead_letters d WHERE d.id = $1 AND d.tenant = $2 FOR UPDATE"
);

pub(super) const EDIT: &str = "UPDATE oncegate.dead_letters SET envelope = $2::json, body = $3 WHERE id = $1";

/// One step. What another replay, a discard or the purge has in its hands is theirs.
pub(super) const REPLAY: &str = concat!(
    "WITH gone AS (
        DELETE FROM oncegate.dead_letters g WHERE g.ctid = ANY (ARRAY(
            SELECT d.ctid FROM oncegate.dead_letters d WHERE ",
    selected!(),
    " AND ",
    has_target!(),
    " AND ($11 OR NOT ",
    is_duplicate!(),
    ") ORDER BY d.accepted_at, d.row_id, d.target_no LIMIT $12 FOR UPDATE OF d SKIP LOCKED
        )) RETURNING g.*
    ), put AS (
        INSERT INTO oncegate.deliveries
            (row_id, target_no, kind, target, state, due_at, token, tenant, message_id, type, deduplication_id,
             partition_key, correlation_id, deliver_at, claim_key, accepted_at, envelope, body, forced, order_key, turn)
        SELECT g.row_id, (g.target_no % $13) + $13 * (1 + (g.target_no / $13) % 31), g.kind, g.target, 1,
            now() - interval '1 microsecond'
                * (count(*) OVER () - row_number() OVER (ORDER BY g.accepted_at, g.row_id, g.target_no)),
            0, g.tenant, g.message_id, g.type, g.deduplication_id, g.partition_key, g.correlation_id, g.deliver_at,
            g.claim_key, g.accepted_at, g.envelope, g.body, $11, g.order_key, g.turn
        FROM gone g
        RETURNING kind, target
    )
    SELECT kind, target, count(*) AS number FROM put GROUP BY kind, target ORDER BY kind, target"
);

pub(super) const REPLAYABLE: &str = concat!(
    "SELECT count(*) AS number FROM oncegate.dead_letters d WHERE ",
    selected!(),
    " AND ",
    has_target!(),
    " AND ($11 OR NOT ",
    is_duplicate!(),
    ")"
);

pub(super) const HINDRANCES: &str = concat!(
    "SELECT d.id, d.kind, d.target, ",
    has_target!(),
    " AS has_target FROM oncegate.dead_letters d WHERE ",
    selected!(),
    " AND (NOT ",
    has_target!(),
    " OR (NOT $11 AND ",
    is_duplicate!(),
    ")) ORDER BY d.failed_at, d.id LIMIT $12"
);

/// Claims in key order, as everywhere.
pub(super) const DISCARD: &str = concat!(
    "WITH gone AS (
        DELETE FROM oncegate.dead_letters g WHERE g.ctid = ANY (ARRAY(
            SELECT d.ctid FROM oncegate.dead_letters d WHERE ",
    selected!(),
    " ORDER BY d.failed_at, d.id LIMIT $9 FOR UPDATE SKIP LOCKED
        )) RETURNING g.row_id, g.claim_key
    ), held AS MATERIALIZED (
        SELECT c.ctid AS place FROM gone g JOIN oncegate.deduplication c ON c.key = g.claim_key
        WHERE $10 AND c.row_id = g.row_id ORDER BY c.key FOR UPDATE OF c
    ), freed AS (
        DELETE FROM oncegate.deduplication c USING held h WHERE c.ctid = h.place
    )
    SELECT count(*) AS number FROM gone"
);

pub(super) const COUNT: &str =
    concat!("SELECT count(*) AS number FROM oncegate.dead_letters d WHERE ", selected!());

pub(super) const SUMMARY: &str = "SELECT d.type, d.kind, d.target, d.error_kind, count(*) AS number,
        min(d.failed_at) AS oldest_at, max(d.failed_at) AS newest_at
     FROM oncegate.dead_letters d WHERE d.tenant = $1
     GROUP BY d.type, d.kind, d.target, d.error_kind ORDER BY d.type, d.kind, d.target, d.error_kind";

type Statement = Sql<'static, Engine, PgArguments>;

/// Binds what [`selected`] needs.
fn selecting(sql: &'static str, tenant: &str, filter: &Filter, ids: Option<&[Uuid]>) -> Statement {
    sqlx::query(sql)
        .bind(tenant.to_owned())
        .bind(filter.kind.clone())
        .bind(filter.target.as_ref().map(|target| target.kind as i16))
        .bind(filter.target.as_ref().map(|target| target.name.to_string()))
        .bind(filter.error_kind.map(DeadKind::as_str))
        .bind(filter.from)
        .bind(filter.until)
        .bind(ids.map(<[Uuid]>::to_vec))
}

fn selection(sql: &'static str, selection: &Selection) -> Statement {
    selecting(sql, &selection.tenant, &selection.filter, selection.ids.as_deref())
}

/// Binds what a replay is, but for its limit.
fn replaying(sql: &'static str, replay: &Replay) -> Statement {
    selection(sql, &replay.selection)
        .bind(replay.targets.iter().map(|target| target.kind as i16).collect::<Vec<_>>())
        .bind(replay.targets.iter().map(|target| target.name.to_string()).collect::<Vec<_>>())
        .bind(replay.duplicates == Duplicates::Replay)
}

async fn session(store: &Postgres, mode: Mode) -> Result<Session<'_>, Fault> {
    let mut session = store.pool.session(mode).await?;
    session.timeout = LONG_STATEMENT_TIMEOUT;
    Ok(session)
}

pub(super) async fn list(store: &Postgres, asked: &Query) -> Result<Page> {
    let mut session = session(store, Mode::Autocommit).await?;
    let query = selecting(LIST, &asked.tenant, &asked.filter, None)
        .bind(asked.after.map(|cursor| cursor.failed_at))
        .bind(asked.after.map(|cursor| cursor.id))
        .bind(i64::from(asked.limit) + 1)
        .bind(i64::try_from(asked.body_bytes).unwrap_or(i64::MAX));
    let result = session.rows(query).await;
    let rows = session.finish(result).await?;
    let found = match rows.first() {
        Some(row) => rows::count(row.try_get("found").map_err(Fault::from)?),
        None => 0,
    };
    let shown = rows.len().min(asked.limit as usize);
    let items = rows[..shown].iter().map(read).collect::<Result<Vec<_>, Fault>>()?;
    let last = items.last().map(|item| Cursor { failed_at: item.failed_at, id: item.id });
    Ok(Page { next: last.filter(|_| found > shown as u64), items })
}

pub(super) async fn one(store: &Postgres, tenant: &str, id: Uuid) -> Result<Option<DeadLetter>> {
    let mut session = session(store, Mode::Autocommit).await?;
    let result = session.rows(sqlx::query(ONE).bind(id).bind(tenant.to_owned())).await;
    let rows = session.finish(result).await?;
    Ok(rows.first().map(read).transpose()?)
}

pub(super) async fn edit(
    store: &Postgres,
    tenant: &str,
    id: Uuid,
    edit: &Edit,
) -> Result<Option<DeadLetter>> {
    let mut session = session(store, Mode::Transaction).await?;
    let result = async {
        let rows = session.rows(sqlx::query(LOCK).bind(id).bind(tenant.to_owned())).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let found = read(row)?;
        let mut message = Message::clone(&found.message);
        edit.apply(&mut message.envelope);
        if let Some(body) = &edit.body {
            message.body = body.clone();
        }
        let envelope = serde_json::to_string(&message.envelope)
            .map_err(|error| Fault::new(Class::Other, ErrorKind::Internal, error.to_string()))?;
        session.execute(sqlx::query(EDIT).bind(id).bind(envelope).bind(message.body.to_vec())).await?;
        Ok(Some(DeadLetter { message: message.into(), ..found }))
    }
    .await;
    Ok(session.finish(result).await?)
}

pub(super) async fn replay(store: &Postgres, replay: &Replay) -> Result<Vec<(Target, u64)>> {
    let mut session = session(store, Mode::Autocommit).await?;
    let query = replaying(REPLAY, replay).bind(i64::from(replay.limit)).bind(GENERATION);
    let result = session.rows(query).await;
    let rows = session.finish(result).await.map_err(written)?;
    let read = |row: &PgRow| Ok((rows::target(row)?, rows::count(row.try_get("number")?)));
    Ok(rows.iter().map(read).collect::<Result<_, Fault>>()?)
}

/// Of what was sent and not answered nobody knows whether it was done.
fn written(fault: Fault) -> Error {
    let lost = fault.class == Class::Lost;
    let error = Error::from(fault);
    if lost { Error::new(ErrorKind::OutcomeUnknown, error.detail) } else { error }
}

pub(super) async fn count_replayable(store: &Postgres, replay: &Replay) -> Result<u64> {
    number(store, replaying(REPLAYABLE, replay)).await
}

pub(super) async fn hindrances(store: &Postgres, replay: &Replay) -> Result<Vec<Hindrance>> {
    let mut session = session(store, Mode::Autocommit).await?;
    let result = session.rows(replaying(HINDRANCES, replay).bind(i64::from(replay.limit))).await;
    let rows = session.finish(result).await?;
    let read = |row: &PgRow| {
        let why = if row.try_get("has_target")? { Why::Duplicate } else { Why::TargetGone };
        Ok(Hindrance { id: row.try_get("id")?, target: rows::target(row)?, why })
    };
    Ok(rows.iter().map(read).collect::<Result<_, Fault>>()?)
}

pub(super) async fn discard(
    store: &Postgres,
    selected: &Selection,
    claims: Claims,
    limit: u32,
) -> Result<u64> {
    let mut session = session(store, Mode::Autocommit).await?;
    let query = selection(DISCARD, selected).bind(i64::from(limit)).bind(claims == Claims::Release);
    let result = session.rows(query).await;
    let rows = session.finish(result).await.map_err(written)?;
    Ok(only_number(&rows)?)
}

pub(super) async fn count(store: &Postgres, selected: &Selection) -> Result<u64> {
    number(store, selection(COUNT, selected)).await
}

async fn number(store: &Postgres, query: Statement) -> Result<u64> {
    let mut session = session(store, Mode::Autocommit).await?;
    let result = session.rows(query).await;
    let rows = session.finish(result).await?;
    Ok(only_number(&rows)?)
}

fn only_number(rows: &[PgRow]) -> Result<u64, Fault> {
    let row = rows.first().ok_or_else(|| rows::corrupt("a statement without its row"))?;
    Ok(rows::count(row.try_get("number")?))
}

pub(super) async fn summarise(store: &Postgres, tenant: &str) -> Result<Vec<Group>> {
    let mut session = session(store, Mode::Autocommit).await?;
    let result = session.rows(sqlx::query(SUMMARY).bind(tenant.to_owned())).await;
    let rows = session.finish(result).await?;
    let read = |row: &PgRow| {
        Ok(Group {
            kind: row.try_get("type")?,
            target: rows::target(row)?,
            error_kind: row.try_get("error_kind")?,
            count: rows::count(row.try_get("number")?),
            oldest_at: row.try_get("oldest_at")?,
            newest_at: row.try_get("newest_at")?,
        })
    };
    Ok(rows.iter().map(read).collect::<Result<_, Fault>>()?)
}

fn read(row: &PgRow) -> Result<DeadLetter, Fault> {
    Ok(DeadLetter {
        id: row.try_get("id")?,
        target: rows::target(row)?,
        message: rows::message(row, row.try_get("row_id")?)?.into(),
        error_kind: row.try_get("error_kind")?,
        error_text: row.try_get("error_text")?,
        attempts: u32::try_from(row.try_get::<i32, _>("attempts")?).unwrap_or_default(),
        failed_at: row.try_get("failed_at")?,
    })
}
