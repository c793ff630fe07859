//! What operators and publishers ask for.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::postgres::types::PgInterval;
use uuid::Uuid;

use super::connect::LONG_STATEMENT_TIMEOUT;
use super::error::Fault;
use super::pool::Mode;
use super::rows::{self, corrupt, count, interval, micros, row_id_of};
use super::{Postgres, lanes};
use crate::domain::RowKey;
use crate::domain::delivery::{Target, TargetKind};
use crate::store::Result;
use crate::store::accept::MessageState;
use crate::store::intake::DUPLICATE_NO;
use crate::store::status::{
    Ahead, Backlog, Cancelled, Checkup, MessagePage, MessageQuery, MessageStatus, Pause, Paused,
    TargetStatus, done_state,
};

pub(super) const BACKLOG: &str = "SELECT b.kind, b.target, b.depth, b.oldest_due_at,
        greatest(0, extract(epoch FROM now() - b.oldest_due_at) * 1000000)::bigint AS oldest_age_us,
        (SELECT d.error_text FROM oncegate.deliveries d
         WHERE d.kind = b.kind AND d.target = b.target AND d.error_text IS NOT NULL
         ORDER BY d.due_at DESC LIMIT 1) AS last_error
     FROM (SELECT kind, target, count(*) AS depth, min(due_at) AS oldest_due_at
           FROM oncegate.deliveries GROUP BY kind, target) b
     ORDER BY b.kind, b.target";

/// Where a row that waits stands: 1 scheduled, 2 pending, 3 retrying.
macro_rules! standing {
    () => {
        "CASE WHEN d.state = 0 THEN 1 WHEN d.attempts > 0 THEN 3 ELSE 2 END"
    };
}
pub(super) use standing;

/// Rows, dead letters (4) and receipts (5; 6 of duplicates) of the messages that `$where` names.
macro_rules! all_of {
    ($where:expr) => {
        concat!(
            "SELECT d.row_id, d.target_no, d.kind, d.target, d.message_id, d.type, d.deduplication_id, ",
            standing!(),
            " AS standing, d.attempts, d.due_at, NULL::timestamptz AS sent_at, d.error_kind,
                d.turn IS NOT NULL AND d.state <> 0 AS in_order
             FROM oncegate.deliveries d WHERE ",
            $where,
            " UNION ALL
             SELECT d.row_id, d.target_no, d.kind, d.target, d.message_id, d.type, d.deduplication_id, 4,
                d.attempts, NULL, NULL, d.error_kind, false
             FROM oncegate.dead_letters d WHERE ",
            $where,
            " UNION ALL
             SELECT d.row_id, d.target_no, d.kind, d.target, d.message_id, d.type, d.deduplication_id,
                CASE WHEN d.target_no < 0 THEN 6 ELSE 5 END,
                d.attempts, NULL, d.sent_at, d.error_kind, false
             FROM oncegate.receipts d WHERE ",
            $where,
            " ORDER BY row_id, target_no, standing"
        )
    };
}

/// A message by its logical id: `$2`, or `$3` where that is a row id's text form.
macro_rules! by_id {
    () => {
        "d.tenant = $1 AND (d.message_id = $2 OR (d.row_id = $3 AND d.message_id IS NULL))"
    };
}

pub(super) const MESSAGE: &str = all_of!(by_id!());

pub(super) const PAGE: &str = concat!(
    "SELECT DISTINCT d.row_id FROM oncegate.deliveries d
     WHERE d.tenant = $1 AND ($2::uuid IS NULL OR d.row_id > $2) AND ($3::text IS NULL OR d.type = $3)
        AND ($4::text IS NULL OR d.deduplication_id = $4) AND ($5::text IS NULL OR d.correlation_id = $5)
        AND ($6::integer IS NULL OR ",
    standing!(),
    " = $6)
     ORDER BY d.row_id LIMIT $7"
);

pub(super) const PAGE_OF_DEAD: &str = "SELECT DISTINCT d.row_id FROM oncegate.dead_letters d
     WHERE d.tenant = $1 AND ($2::uuid IS NULL OR d.row_id > $2) AND ($3::text IS NULL OR d.type = $3)
        AND ($4::text IS NULL OR d.deduplication_id = $4) AND ($5::text IS NULL OR d.correlation_id = $5)
     ORDER BY d.row_id LIMIT $6";

/// `$6`: of destinations or of handlers.
pub(super) const PAGE_OF_MADE: &str = "SELECT DISTINCT d.row_id FROM oncegate.receipts d
     WHERE d.tenant = $1 AND ($2::uuid IS NULL OR d.row_id > $2) AND ($3::text IS NULL OR d.type = $3)
        AND ($4::text IS NULL OR d.deduplication_id = $4) AND ($5::text IS NULL OR d.correlation_id = $5)
        AND d.kind = $6 AND d.target_no >= 0
     ORDER BY d.row_id LIMIT $7";

pub(super) const MESSAGES: &str = all_of!("d.row_id = ANY($1)");

/// All or nothing, in one step: a row that is taken meanwhile is locked, and no longer `scheduled` afterwards.
/// The claim goes with the rows if it is still theirs. A message of the same id that is long delivered does not
/// keep a later one from being cancelled.
pub(super) const CANCEL: &str = concat!(
    "WITH found AS MATERIALIZED (
        SELECT d.row_id, d.target_no, d.state, d.claim_key FROM oncegate.deliveries d WHERE ",
    by_id!(),
    " ORDER BY d.row_id, d.target_no FOR UPDATE
    ), verdict AS (
        SELECT count(*) AS number,
            coalesce(bool_and(state = 0), false)
            AND NOT EXISTS (SELECT FROM oncegate.receipts r WHERE r.row_id IN (SELECT row_id FROM found))
            AND NOT EXISTS (SELECT FROM oncegate.dead_letters l WHERE l.row_id IN (SELECT row_id FROM found))
                AS cancellable
        FROM found
    ), gone AS (
        DELETE FROM oncegate.deliveries d USING found f, verdict v
        WHERE v.cancellable AND d.row_id = f.row_id AND d.target_no = f.target_no
        RETURNING d.row_id, d.claim_key
    ), freed AS (
        DELETE FROM oncegate.deduplication c USING (SELECT DISTINCT row_id, claim_key FROM gone) g
        WHERE c.key = g.claim_key AND c.row_id = g.row_id
    )
    SELECT v.number, v.cancellable,
        EXISTS (SELECT FROM oncegate.dead_letters d WHERE ",
    by_id!(),
    ") OR EXISTS (SELECT FROM oncegate.receipts d WHERE ",
    by_id!(),
    ") AS over FROM verdict v"
);

/// Needs no table.
pub(super) const CHECKUP: &str =
    "SELECT clock_timestamp() AS now, current_setting('synchronous_commit') <> 'off' AS durable";

pub(super) const PAUSED: &str = "SELECT kind, name AS target,
        (extract(epoch FROM paused_until - now()) * 1000000)::bigint AS ends_in_us
     FROM oncegate.targets WHERE paused_until IS NULL OR paused_until > now() ORDER BY kind, name";

/// The longer one stands; none is the longest.
pub(super) const PAUSE: &str = "INSERT INTO oncegate.targets AS t (kind, name, paused_until)
     VALUES ($1, $2, now() + $3::interval)
     ON CONFLICT (kind, name) DO UPDATE SET paused_until =
        CASE WHEN t.paused_until IS NULL OR excluded.paused_until IS NULL THEN NULL
             ELSE greatest(t.paused_until, excluded.paused_until) END";

pub(super) const RESUME: &str = "DELETE FROM oncegate.targets WHERE kind = $1 AND name = $2";

pub(super) async fn backlog(store: &Postgres) -> Result<Vec<Backlog>> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    session.timeout = LONG_STATEMENT_TIMEOUT;
    let result = session.rows(sqlx::query(BACKLOG)).await;
    let rows = session.finish(result).await?;
    let read = |row: &PgRow| {
        Ok(Backlog {
            target: rows::target(row)?,
            depth: count(row.try_get("depth")?),
            oldest_due_at: row.try_get("oldest_due_at")?,
            oldest_age: row.try_get::<Option<i64>, _>("oldest_age_us")?.map_or(Duration::ZERO, micros),
            last_error: row.try_get("last_error")?,
        })
    };
    Ok(rows.iter().map(read).collect::<Result<_, Fault>>()?)
}

pub(super) async fn message(store: &Postgres, tenant: &str, id: &str) -> Result<Option<MessageStatus>> {
    if id.contains('\0') {
        return Ok(None);
    }
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let query = sqlx::query(MESSAGE).bind(tenant.to_owned()).bind(id.to_owned()).bind(row_id_of(id));
    let result = async {
        let rows = session.rows(query).await?;
        let mut in_order = Vec::new();
        for row in &rows {
            if row.try_get("in_order")? {
                in_order.push(RowKey { id: row.try_get("row_id")?, target_no: row.try_get("target_no")? });
            }
        }
        let ahead =
            if in_order.is_empty() { Vec::new() } else { lanes::ahead(&mut session, &in_order).await? };
        statuses(&rows, &ahead)
    }
    .await;
    let mut statuses = session.finish(result).await?;
    let Some((_, mut status)) = statuses.pop() else { return Ok(None) };
    // The same logical id may have been published more than once: the newest tells what it is.
    let mut targets: Vec<TargetStatus> =
        statuses.into_iter().flat_map(|(_, status)| status.targets).collect();
    targets.append(&mut status.targets);
    Ok(Some(MessageStatus { targets, ..status }))
}

pub(super) async fn messages(store: &Postgres, query: &MessageQuery) -> Result<MessagePage> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    session.timeout = LONG_STATEMENT_TIMEOUT;
    let (sql, standing) = match query.state {
        None => (PAGE, None),
        Some(MessageState::Scheduled) => (PAGE, Some(1)),
        Some(MessageState::Pending) => (PAGE, Some(2)),
        Some(MessageState::Retrying) => (PAGE, Some(3)),
        Some(MessageState::Dead) => (PAGE_OF_DEAD, None),
        Some(MessageState::Sent | MessageState::Handled | MessageState::Duplicate) => (PAGE_OF_MADE, None),
    };
    let page = sqlx::query(sql)
        .bind(query.tenant.clone())
        .bind(query.cursor)
        .bind(query.kind.clone())
        .bind(query.deduplication_id.clone())
        .bind(query.correlation_id.clone());
    let page = match query.state {
        Some(MessageState::Dead) => page,
        Some(MessageState::Sent) => page.bind(TargetKind::Destination as i16),
        Some(MessageState::Handled) => page.bind(TargetKind::Handler as i16),
        // They are told by their ids, and not listed.
        Some(MessageState::Duplicate) => page.bind(DUPLICATE_NO),
        _ => page.bind(standing),
    };
    let page = page.bind(i64::from(query.limit) + 1);
    let result = async {
        let mut ids = Vec::new();
        for row in session.rows(page).await? {
            ids.push(row.try_get::<Uuid, _>(0)?);
        }
        let next = (ids.len() > query.limit as usize).then(|| {
            ids.truncate(query.limit as usize);
            ids.last().copied()
        });
        let rows = session.rows(sqlx::query(MESSAGES).bind(ids)).await?;
        let items = statuses(&rows, &[])?.into_iter().map(|(_, status)| status).collect();
        Ok(MessagePage { items, next: next.flatten() })
    }
    .await;
    Ok(session.finish(result).await?)
}

/// Where a delivery stands, by the number that [`standing`] and the like give.
pub(super) fn state(standing: i32, kind: TargetKind) -> Result<MessageState, Fault> {
    Ok(match standing {
        1 => MessageState::Scheduled,
        2 => MessageState::Pending,
        3 => MessageState::Retrying,
        4 => MessageState::Dead,
        5 => done_state(kind),
        6 => MessageState::Duplicate,
        other => return Err(corrupt(format!("{other} is no standing"))),
    })
}

/// By row id, in the order of the rows. `ahead`: what they wait for, where that was asked.
fn statuses(rows: &[PgRow], ahead: &[(RowKey, Ahead)]) -> Result<Vec<(Uuid, MessageStatus)>, Fault> {
    let mut statuses: Vec<(Uuid, MessageStatus)> = Vec::new();
    for row in rows {
        let row_id: Uuid = row.try_get("row_id")?;
        let target = rows::target(row)?;
        let state = state(row.try_get("standing")?, target.kind)?;
        let key = RowKey { id: row_id, target_no: row.try_get("target_no")? };
        let status = TargetStatus {
            target,
            state,
            attempts: u32::try_from(row.try_get::<i32, _>("attempts")?).unwrap_or_default(),
            due_at: row.try_get("due_at")?,
            sent_at: row.try_get("sent_at")?,
            error_kind: row.try_get("error_kind")?,
            ahead: ahead.iter().filter(|(row, _)| *row == key).map(|(_, ahead)| ahead.clone()).collect(),
        };
        match statuses.last_mut() {
            Some((last, message)) if *last == row_id => message.targets.push(status),
            _ => {
                let id: Option<String> = row.try_get("message_id")?;
                let message = MessageStatus {
                    id: id.unwrap_or_else(|| row_id.to_string()),
                    kind: row.try_get("type")?,
                    deduplication_id: row.try_get("deduplication_id")?,
                    targets: vec![status],
                };
                statuses.push((row_id, message));
            }
        }
    }
    Ok(statuses)
}

pub(super) async fn cancel(store: &Postgres, tenant: String, id: String) -> Result<Cancelled> {
    if id.contains('\0') {
        return Ok(Cancelled::NotFound);
    }
    match try_cancel(store, &tenant, &id).await? {
        // A row that was waited for, and delivered meanwhile, has its receipt in a later snapshot only.
        Cancelled::NotFound => try_cancel(store, &tenant, &id).await,
        verdict => Ok(verdict),
    }
}

async fn try_cancel(store: &Postgres, tenant: &str, id: &str) -> Result<Cancelled> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let query = sqlx::query(CANCEL).bind(tenant.to_owned()).bind(id.to_owned()).bind(row_id_of(id));
    let result = session.rows(query).await;
    let rows = session.finish(result).await?;
    let row = rows.first().ok_or_else(|| corrupt("a statement without its row"))?;
    let verdict = (|| Ok((row.try_get("number")?, row.try_get("cancellable")?, row.try_get("over")?)))();
    Ok(match verdict.map_err(|error: sqlx::Error| Fault::from(error))? {
        (0_i64, _, false) => Cancelled::NotFound,
        (_, true, _) => Cancelled::Yes,
        _ => Cancelled::TooLate,
    })
}

pub(super) async fn checkup(store: &Postgres) -> Result<Checkup> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = session.rows(sqlx::query(CHECKUP)).await;
    let rows = session.finish(result).await?;
    let read =
        |row: &PgRow| Ok::<_, Fault>(Checkup { now: row.try_get("now")?, durable: row.try_get("durable")? });
    Ok(read(&rows[0])?)
}

pub(super) async fn paused(store: &Postgres) -> Result<Vec<Pause>> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = session.rows(sqlx::query(PAUSED)).await;
    let rows = session.finish(result).await?;
    let read = |row: &PgRow| {
        let ends_in: Option<i64> = row.try_get("ends_in_us")?;
        Ok(Pause { target: rows::target(row)?, ends_in: ends_in.map(micros) })
    };
    Ok(rows.iter().map(read).collect::<Result<_, Fault>>()?)
}

pub(super) async fn set_paused(store: &Postgres, target: &Target, paused: Paused) -> Result<()> {
    let sql = if paused == Paused::No { RESUME } else { PAUSE };
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let query = sqlx::query(sql).bind(target.kind as i16).bind(target.name.to_string());
    let query = match paused {
        Paused::Yes => query.bind(None::<PgInterval>),
        Paused::For(duration) => query.bind(interval(duration)),
        Paused::No => query,
    };
    let result = session.execute(query).await;
    session.finish(result).await?;
    Ok(())
}
