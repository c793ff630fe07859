//! Ordered targets: of each key the first row, if it is due.
//!
//! There is one writer, so that the lanes need no locks: what is found without one is looked for once more in the
//! transaction that leases it.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::rows::{Columns, until};
use super::{Inner, deliveries, error};
use crate::domain::RowKey;
use crate::domain::delivery::Target;
use crate::domain::ordering::{OnDeadLetter, OrderKey};
use crate::store::Result;
use crate::store::accept::MessageState;
use crate::store::lanes::{JOINING, KEYS, Looked, TURNS, Take};
use crate::store::status::Ahead;

/// The first rows of the keys after `?3`, at most `?4`; `?5`: whether dead letters block.
const HEADS: &str = "
    WITH RECURSIVE head (place, number) AS (
        SELECT (SELECT d.rowid FROM oncegate_deliveries AS d
                WHERE d.kind = ?1 AND d.target = ?2 AND d.turn IS NOT NULL AND d.state <> 0 AND d.order_key > ?3
                ORDER BY d.order_key, d.turn LIMIT 1), 1
        UNION ALL
        SELECT (SELECT d.rowid FROM oncegate_deliveries AS d
                WHERE d.kind = ?1 AND d.target = ?2 AND d.turn IS NOT NULL AND d.state <> 0
                  AND d.order_key > (SELECT k.order_key FROM oncegate_deliveries AS k WHERE k.rowid = head.place)
                ORDER BY d.order_key, d.turn LIMIT 1), head.number + 1
        FROM head WHERE head.place IS NOT NULL AND head.number < ?4
    )
    SELECT d.order_key, d.due_at, ?5 AND {blocked} AS blocked
    FROM head CROSS JOIN oncegate_deliveries AS d ON d.rowid = head.place";

/// Whether an earlier message of the key is a dead letter.
const BLOCKED: &str = "
    EXISTS (SELECT 1 FROM oncegate_dead_letters AS l
            WHERE l.kind = ?1 AND l.target = ?2 AND l.order_key = d.order_key
              AND coalesce(l.turn, 0) < abs(d.turn))";

const JOINS_AT: &str = "
    SELECT min(due_at) FROM oncegate_deliveries
    WHERE kind = ?1 AND target = ?2 AND turn IS NOT NULL AND state = 0";

/// The first rows of these keys, where they are due.
const FIRST: &str = "
    SELECT d.rowid, d.row_id, d.target_no, d.kind, d.target, d.error_text IS NULL AS fresh, d.taken, d.forced, d.attempts, d.deliver_at, d.deliver_by,
           d.tenant, d.message_id, d.type, d.deduplication_id, d.partition_key, d.correlation_id, d.accepted_at,
           d.envelope, d.body
    FROM json_each(?3) AS asked CROSS JOIN oncegate_deliveries AS d ON d.rowid = (
        SELECT f.rowid FROM oncegate_deliveries AS f
        WHERE f.kind = ?1 AND f.target = ?2 AND f.turn IS NOT NULL AND f.state <> 0
          AND f.order_key = unhex(asked.value)
        ORDER BY f.turn LIMIT 1)
    WHERE d.due_at <= ?4 AND NOT (?5 AND {blocked}) ORDER BY asked.key";

/// Begun: it stays the first of its key.
const BEGIN: &str = "
    UPDATE oncegate_deliveries SET turn = -abs(turn) WHERE rowid IN (SELECT value FROM json_each(?1))";

const JOINING_NOW: &str = "
    SELECT rowid FROM oncegate_deliveries
    WHERE kind = ?1 AND target = ?2 AND turn IS NOT NULL AND state = 0 AND due_at <= ?3
    ORDER BY due_at, turn LIMIT ?4";

const JOIN: &str = "
    UPDATE oncegate_deliveries SET state = 1, turn = ?2 + picked.key
    FROM json_each(?1) AS picked WHERE oncegate_deliveries.rowid = picked.value";

const NUMBER: &str = "UPDATE oncegate_turns SET number = number + 1 WHERE rowid = 1 RETURNING number";

/// Rows that were written while their target had no order. Those that are on their way come later.
const STRAYS: &str = "
    SELECT rowid, tenant, partition_key, accepted_at FROM oncegate_deliveries
    WHERE kind = ?1 AND target = ?2 AND order_key IS NULL AND (state <> 2 OR due_at <= ?3)
    ORDER BY due_at LIMIT ?4";

const ADOPT: &str = "UPDATE oncegate_deliveries SET order_key = ?2, turn = ?3 WHERE rowid = ?1";

/// The row whose turn it is in the stead of this one.
const FIRST_OF: &str = "
    SELECT h.row_id, h.message_id, h.attempts FROM oncegate_deliveries AS d
    CROSS JOIN oncegate_deliveries AS h ON h.rowid = (
        SELECT f.rowid FROM oncegate_deliveries AS f
        WHERE f.kind = d.kind AND f.target = d.target AND f.turn IS NOT NULL AND f.state <> 0
          AND f.order_key = d.order_key
        ORDER BY f.turn LIMIT 1)
    WHERE d.row_id = ?1 AND d.target_no = ?2 AND d.turn IS NOT NULL AND d.state <> 0 AND h.rowid <> d.rowid";

/// The first dead letter of an earlier message of its key.
const DEAD_BEFORE: &str = "
    SELECT l.row_id, l.message_id, l.id FROM oncegate_deliveries AS d
    CROSS JOIN oncegate_dead_letters AS l
        ON l.kind = d.kind AND l.target = d.target AND l.order_key = d.order_key
    WHERE d.row_id = ?1 AND d.target_no = ?2 AND d.turn IS NOT NULL AND d.state <> 0
      AND coalesce(l.turn, 0) < abs(d.turn)
    ORDER BY l.turn LIMIT 1";

fn heads_sql() -> String {
    HEADS.replace("{blocked}", BLOCKED)
}

fn first_sql() -> String {
    FIRST.replace("{blocked}", BLOCKED)
}

/// The number for the turns of one statement's rows.
pub(super) async fn number(connection: &mut SqliteConnection) -> Result<i64> {
    let number: i64 = sqlx::query_scalar(NUMBER).fetch_one(connection).await.map_err(error::of)?;
    Ok(number.saturating_mul(TURNS))
}

pub(super) async fn take(store: &Arc<Inner>, asked: &Take) -> Result<Looked> {
    let mut joins_in = joins_in(store, &asked.take.target).await?;
    if joins_in.is_some_and(|wait| wait.is_zero()) {
        join(store, &asked.take.target).await?;
        joins_in = self::joins_in(store, &asked.take.target).await?;
    }
    let (keys, mut looked) = look(store, asked).await?;
    if let Some(wait) = joins_in {
        looked.note(wait);
    }
    if keys.is_empty() {
        return Ok(looked);
    }
    let number = keys.len();
    let keys: Vec<String> = keys.iter().map(|key| key.0.simple().to_string()).collect();
    let keys = serde_json::json!(keys).to_string();
    let (asked, random) = (asked.clone(), store.random);
    looked.taken = store
        .write(move |connection, now| {
            Box::pin(async move {
                let due = sqlx::query(sqlx::AssertSqlSafe(first_sql()))
                    .bind(asked.take.target.kind as i16)
                    .bind(&*asked.take.target.name)
                    .bind(keys)
                    .bind(now)
                    .bind(blocks(&asked))
                    .fetch_all(&mut *connection)
                    .await
                    .map_err(error::of)?;
                deliveries::lease(connection, now, random, &asked.take, &due, Some(BEGIN)).await
            })
        })
        .await?;
    if looked.taken.len() < number {
        looked.note(Duration::ZERO);
    }
    Ok(looked)
}

/// What is free to be taken, as seen without a lock.
async fn look(store: &Inner, asked: &Take) -> Result<(Vec<OrderKey>, Looked)> {
    let mut reader = store.reader().await?;
    let now = store.now();
    let mut heads = sqlx::query(sqlx::AssertSqlSafe(heads_sql()))
        .bind(asked.take.target.kind as i16)
        .bind(&*asked.take.target.name)
        .bind(asked.after.unwrap_or(OrderKey::FIRST).0)
        .bind(KEYS)
        .bind(blocks(asked))
        .fetch(&mut *reader);
    let (mut keys, mut looked) = (Vec::new(), Looked::default());
    let mut number = 0;
    while let Some(row) = heads.try_next().await.map_err(error::of)? {
        number += 1;
        let (key, due_at) = (OrderKey(row.uuid("order_key")?), row.int("due_at")?);
        match (row.int("blocked")? != 0, due_at <= now) {
            (false, true) => keys.push(key),
            (false, false) => looked.note(until(due_at, now)),
            // Somebody has to do something about it.
            (true, _) => {}
        }
        if keys.len() >= asked.take.limit as usize || number >= KEYS {
            looked.resume = Some(key);
            break;
        }
    }
    Ok((keys, looked))
}

fn blocks(asked: &Take) -> bool {
    asked.on_dead_letter == OnDeadLetter::Block
}

/// How long until something that is scheduled is due.
async fn joins_in(store: &Inner, target: &Target) -> Result<Option<Duration>> {
    let mut reader = store.reader().await?;
    let query = sqlx::query_scalar(JOINS_AT).bind(target.kind as i16).bind(&*target.name);
    let at: Option<i64> = query.fetch_one(&mut *reader).await.map_err(error::of)?;
    Ok(at.map(|at| until(at, store.now())))
}

async fn join(store: &Arc<Inner>, target: &Target) -> Result<()> {
    let target = target.clone();
    store
        .write(move |connection, now| {
            Box::pin(async move {
                let query = sqlx::query_scalar(JOINING_NOW)
                    .bind(target.kind as i16)
                    .bind(&*target.name)
                    .bind(now)
                    .bind(JOINING);
                let rows: Vec<i64> = query.fetch_all(&mut *connection).await.map_err(error::of)?;
                let turn = number(connection).await?;
                let rows = deliveries::json_list(&rows);
                sqlx::query(JOIN).bind(rows).bind(turn).execute(connection).await.map_err(error::of)?;
                Ok(())
            })
        })
        .await
}

pub(super) async fn adopt(store: &Arc<Inner>, target: &Target, limit: u32) -> Result<u64> {
    let target = target.clone();
    store
        .write(move |connection, now| {
            Box::pin(async move {
                let query =
                    sqlx::query(STRAYS).bind(target.kind as i16).bind(&*target.name).bind(now).bind(limit);
                let rows: Vec<SqliteRow> = query.fetch_all(&mut *connection).await.map_err(error::of)?;
                for row in &rows {
                    let key = OrderKey::new(&row.text("tenant")?, row.text_opt("partition_key")?.as_deref());
                    let turn = row.int("accepted_at")?;
                    let query = sqlx::query(ADOPT).bind(row.int("rowid")?).bind(key.0).bind(turn);
                    query.execute(&mut *connection).await.map_err(error::of)?;
                }
                Ok(rows.len() as u64)
            })
        })
        .await
}

/// What a row that has its place in an order waits for.
pub(super) async fn ahead(connection: &mut SqliteConnection, row: RowKey) -> Result<Vec<Ahead>> {
    let mut ahead = Vec::new();
    let query = sqlx::query(FIRST_OF).bind(row.id).bind(row.target_no);
    if let Some(first) = query.fetch_optional(&mut *connection).await.map_err(error::of)? {
        let state = if first.int("attempts")? > 0 { MessageState::Retrying } else { MessageState::Pending };
        let message_id = first.message_id(first.uuid("row_id")?)?;
        ahead.push(Ahead { message_id, state, dead_letter: None });
    }
    let query = sqlx::query(DEAD_BEFORE).bind(row.id).bind(row.target_no);
    if let Some(dead) = query.fetch_optional(connection).await.map_err(error::of)? {
        let message_id = dead.message_id(dead.uuid("row_id")?)?;
        ahead.push(Ahead { message_id, state: MessageState::Dead, dead_letter: Some(dead.uuid("id")?) });
    }
    Ok(ahead)
}

/// Every statement of this file, for the tests that prepare and explain them.
#[cfg(test)]
pub(super) fn statements() -> Vec<String> {
    let mut all = vec![heads_sql(), first_sql()];
    all.extend(
        [JOINS_AT, BEGIN, JOINING_NOW, JOIN, NUMBER, STRAYS, ADOPT, FIRST_OF, DEAD_BEFORE].map(str::to_owned),
    );
    all
}
