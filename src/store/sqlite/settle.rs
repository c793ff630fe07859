//! Settling deliveries: done, again later, or given up on.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, LazyLock};

use sqlx::SqliteConnection;

use super::rows::{Batched, Columns, later, moment};
use super::{Inner, error};
use crate::domain::delivery::{DeadKind, Target};
use crate::domain::{Random, RowKey, Token};
use crate::store::Result;
use crate::store::deliveries::{self, Counted, Receipt, Settle, Settled, Settlement};

/// Keys joined to their rows: `IN (VALUES …)` over two columns would scan the table. Delivered is delivered, whatever
/// the token; but a row in an order that somebody else has leased just now stays: it may be on its way, and the
/// row behind it would overtake it.
const FOUND: &str = "
    (SELECT row.rowid
     FROM (SELECT ? AS now, column1 AS row_id, column2 AS target_no, column3 AS token FROM (VALUES {values})) AS asked
     CROSS JOIN oncegate_deliveries AS row ON row.row_id = asked.row_id AND row.target_no = asked.target_no
     WHERE row.turn IS NULL OR row.token = asked.token OR row.state <> 2 OR row.due_at <= asked.now)";

const RECEIPT: &str = "
    INSERT INTO oncegate_receipts
        (sent_at, row_id, target_no, kind, target, tenant, message_id, type, deduplication_id, correlation_id,
         accepted_at, attempts)
    SELECT ?, row_id, target_no, kind, target, tenant, message_id, type, deduplication_id, correlation_id,
           accepted_at, attempts + 1
    FROM oncegate_deliveries WHERE rowid IN {found}
    ON CONFLICT (row_id, target_no) DO UPDATE
    SET attempts = excluded.attempts, sent_at = excluded.sent_at, error_kind = NULL";
static RECEIPT_BATCHED: LazyLock<Batched> =
    LazyLock::new(|| Batched::new(&RECEIPT.replace("{found}", FOUND), 3));

const DONE: &str = "DELETE FROM oncegate_deliveries WHERE rowid IN {found} RETURNING row_id, target_no";
static DONE_BATCHED: LazyLock<Batched> = LazyLock::new(|| Batched::new(&DONE.replace("{found}", FOUND), 3));

/// Due no later than `deliver_by`, and never before now.
const RETRY: &str = "
    UPDATE oncegate_deliveries
    SET state = 1, due_at = max(min(?1, coalesce(deliver_by, ?1)), ?2), token = 0, taken = 0,
        attempts = attempts + ?3, error_kind = ?4, error_text = ?5
    WHERE row_id = ?6 AND target_no = ?7 AND token = ?8 AND state = 2";

const WITHDRAW: &str = "
    DELETE FROM oncegate_deliveries WHERE row_id = ?1 AND target_no = ?2 AND token = ?3 AND state = 2";

const LEASED: &str = "
    SELECT rowid FROM oncegate_deliveries WHERE row_id = ?1 AND target_no = ?2 AND token = ?3 AND state = 2";

const BURY: &str = "
    INSERT INTO oncegate_dead_letters
        (id, row_id, target_no, kind, target, attempts, deliver_at, deliver_by, claim_key, tenant, message_id, type,
         deduplication_id, partition_key, correlation_id, accepted_at, failed_at, error_kind, error_text, order_key,
         turn, envelope, body)
    SELECT ?2, row_id, target_no, kind, target, attempts + ?3, deliver_at, deliver_by, claim_key, tenant, message_id,
           type, deduplication_id, partition_key, correlation_id, accepted_at, ?4, ?5, ?6, order_key,
           abs(turn), envelope, body
    FROM oncegate_deliveries WHERE rowid = ?1";
const REMOVE: &str = "DELETE FROM oncegate_deliveries WHERE rowid = ?1";

const DISCARDED: &str = "
    INSERT INTO oncegate_receipts
        (sent_at, row_id, target_no, kind, target, tenant, message_id, type, deduplication_id, correlation_id,
         accepted_at, attempts, error_kind)
    SELECT ?2, row_id, target_no, kind, target, tenant, message_id, type, deduplication_id, correlation_id,
           accepted_at, attempts + 1, ?3
    FROM oncegate_deliveries WHERE rowid = ?1
    ON CONFLICT (row_id, target_no) DO UPDATE
    SET attempts = excluded.attempts, sent_at = excluded.sent_at, error_kind = excluded.error_kind";

/// Why a row becomes a dead letter.
pub(super) struct Why<'a> {
    pub kind: &'static str,
    pub text: &'a str,
    /// Attempts to be counted with it.
    pub counted: i64,
}

/// Moves a row to the dead letters, whole.
pub(super) async fn bury(
    connection: &mut SqliteConnection,
    rowid: i64,
    random: Random,
    now: i64,
    why: &Why<'_>,
) -> Result<()> {
    sqlx::query(BURY)
        .bind(rowid)
        .bind(random.uuid_v7(moment(now)?))
        .bind(why.counted)
        .bind(now)
        .bind(why.kind)
        .bind(why.text)
        .execute(&mut *connection)
        .await
        .map_err(error::of)?;
    sqlx::query(REMOVE).bind(rowid).execute(connection).await.map_err(error::of)?;
    Ok(())
}

pub(super) async fn settle(store: &Arc<Inner>, batch: &[Settlement]) -> Result<Vec<Settled>> {
    if batch.is_empty() {
        return Ok(Vec::new());
    }
    let (batch, random) = (batch.to_vec(), store.random);
    store
        .write(move |connection, now| Box::pin(async move { write(connection, now, random, &batch).await }))
        .await
}

pub(super) async fn write(
    connection: &mut SqliteConnection,
    now: i64,
    random: Random,
    batch: &[Settlement],
) -> Result<Vec<Settled>> {
    let keys = |wanted: Receipt| -> Vec<(RowKey, Token)> {
        let done = batch.iter().filter(
            |settlement| matches!(&settlement.outcome, Settle::Done { receipt } if *receipt == wanted),
        );
        done.map(|settlement| (settlement.row, settlement.token)).collect()
    };
    let mut done = remove_done(connection, now, &keys(Receipt::Keep), Receipt::Keep).await?;
    done.extend(remove_done(connection, now, &keys(Receipt::Drop), Receipt::Drop).await?);
    let mut settled = Vec::with_capacity(batch.len());
    for settlement in batch {
        let written = match &settlement.outcome {
            Settle::Done { .. } => done.contains(&settlement.row),
            Settle::Retry { .. } => retry(connection, now, settlement).await?,
            Settle::Discard { receipt, .. } => discard(connection, now, settlement, *receipt).await?,
            Settle::Withdrawn => withdraw(connection, settlement).await?,
            Settle::Dead { .. } => dead(connection, now, random, settlement).await?,
        };
        settled.push(if written { Settled::Yes } else { Settled::Fenced });
    }
    Ok(settled)
}

/// Deletes the rows, with a receipt for each where it is wanted. Returns those that were there.
async fn remove_done(
    connection: &mut SqliteConnection,
    now: i64,
    rows: &[(RowKey, Token)],
    receipt: Receipt,
) -> Result<HashSet<RowKey>> {
    if receipt == Receipt::Keep {
        for (sql, chunk) in RECEIPT_BATCHED.over(rows) {
            let mut query = sqlx::query(sql).bind(now).bind(now);
            for (row, token) in chunk {
                query = query.bind(row.id).bind(row.target_no).bind(token.0);
            }
            query.execute(&mut *connection).await.map_err(error::of)?;
        }
    }
    let mut removed = HashSet::new();
    for (sql, chunk) in DONE_BATCHED.over(rows) {
        let mut query = sqlx::query(sql).bind(now);
        for (row, token) in chunk {
            query = query.bind(row.id).bind(row.target_no).bind(token.0);
        }
        for row in query.fetch_all(&mut *connection).await.map_err(error::of)? {
            removed.insert(RowKey { id: row.uuid("row_id")?, target_no: row.small("target_no")? });
        }
    }
    Ok(removed)
}

fn attempts(counted: Counted) -> i64 {
    match counted {
        Counted::Yes => 1,
        Counted::No => 0,
    }
}

/// What a target said, without the one character at which readers of a text stop.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

async fn retry(connection: &mut SqliteConnection, now: i64, settlement: &Settlement) -> Result<bool> {
    let Settle::Retry { after, counted, error: note } = &settlement.outcome else {
        return Ok(false);
    };
    let query = sqlx::query(RETRY)
        .bind(later(now, *after))
        .bind(now)
        .bind(attempts(*counted))
        .bind(note.kind)
        .bind(storable(&note.text))
        .bind(settlement.row.id)
        .bind(settlement.row.target_no)
        .bind(settlement.token.0);
    Ok(query.execute(connection).await.map_err(error::of)?.rows_affected() > 0)
}

/// The `rowid` of a row that is still leased under the settlement's token.
async fn leased(connection: &mut SqliteConnection, settlement: &Settlement) -> Result<Option<i64>> {
    let query = sqlx::query_scalar(LEASED)
        .bind(settlement.row.id)
        .bind(settlement.row.target_no)
        .bind(settlement.token.0);
    query.fetch_optional(connection).await.map_err(error::of)
}

async fn discard(
    connection: &mut SqliteConnection,
    now: i64,
    settlement: &Settlement,
    receipt: Receipt,
) -> Result<bool> {
    let Some(rowid) = leased(connection, settlement).await? else {
        return Ok(false);
    };
    if receipt == Receipt::Keep {
        let query = sqlx::query(DISCARDED).bind(rowid).bind(now).bind(deliveries::DISCARDED);
        query.execute(&mut *connection).await.map_err(error::of)?;
    }
    sqlx::query(REMOVE).bind(rowid).execute(connection).await.map_err(error::of)?;
    Ok(true)
}

async fn withdraw(connection: &mut SqliteConnection, settlement: &Settlement) -> Result<bool> {
    let query =
        sqlx::query(WITHDRAW).bind(settlement.row.id).bind(settlement.row.target_no).bind(settlement.token.0);
    Ok(query.execute(connection).await.map_err(error::of)?.rows_affected() > 0)
}

async fn dead(
    connection: &mut SqliteConnection,
    now: i64,
    random: Random,
    settlement: &Settlement,
) -> Result<bool> {
    let Settle::Dead { error: note, counted } = &settlement.outcome else {
        return Ok(false);
    };
    let Some(rowid) = leased(connection, settlement).await? else {
        return Ok(false);
    };
    let why = Why { kind: note.kind.as_str(), text: &storable(&note.text), counted: attempts(*counted) };
    bury(connection, rowid, random, now, &why).await?;
    Ok(true)
}

/// Not those that somebody has leased: they may be on their way.
const EXPIRED: &str = "
    SELECT rowid, kind, target, error_text FROM oncegate_deliveries
    WHERE deliver_by <= ?1 AND (state <> 2 OR due_at <= ?1) ORDER BY deliver_by LIMIT ?2";

pub(super) async fn expire(store: &Arc<Inner>, limit: u32) -> Result<Vec<(Target, u64)>> {
    let mut reader = store.reader().await?;
    let any = sqlx::query(EXPIRED).bind(store.now()).bind(1_i64).fetch_optional(&mut *reader).await;
    drop(reader);
    if any.map_err(error::of)?.is_none() {
        return Ok(Vec::new());
    }
    let random = store.random;
    store
        .write(move |connection, now| {
            Box::pin(async move {
                let query = sqlx::query(EXPIRED).bind(now).bind(limit);
                let rows = query.fetch_all(&mut *connection).await.map_err(error::of)?;
                let mut moved: BTreeMap<Target, u64> = BTreeMap::new();
                for row in &rows {
                    let text = match row.text_opt("error_text")? {
                        Some(last) => format!("deliver-by has passed; the last error: {last}"),
                        None => "deliver-by has passed".to_owned(),
                    };
                    let why = Why { kind: DeadKind::Expired.as_str(), text: &text, counted: 0 };
                    bury(connection, row.int("rowid")?, random, now, &why).await?;
                    *moved.entry(row.target()?).or_default() += 1;
                }
                Ok(moved.into_iter().collect())
            })
        })
        .await
}

/// Every statement of this file, for the tests that prepare and explain them.
#[cfg(test)]
pub(super) fn statements() -> Vec<String> {
    let mut all = [RECEIPT_BATCHED.sizes(), DONE_BATCHED.sizes()].concat();
    all.extend([RETRY, WITHDRAW, LEASED, BURY, REMOVE, DISCARDED, EXPIRED].map(str::to_owned));
    all
}
