//! Where messages stand; cancelling; pauses.

use std::collections::BTreeMap;
use std::sync::Arc;

use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, SqliteConnection};
use uuid::Uuid;

use super::rows::{Columns, as_row_id, later, until};
use super::{Inner, error, lanes};
use crate::domain::RowKey;
use crate::domain::delivery::{DeliveryState, Target};
use crate::store::Result;
use crate::store::accept::MessageState;
use crate::store::intake::DUPLICATE_NO;
use crate::store::status::{
    Cancelled, MessagePage, MessageQuery, MessageStatus, Pause, Paused, TargetStatus, done_state,
};

/// Every row (0), dead letter (1) and receipt (2) of the messages whose row ids are in `ids`.
const PARTS: &str = "
    SELECT 0 AS place, row_id, target_no, kind, target, message_id, type, deduplication_id, attempts,
           state, due_at, NULL AS sent_at, error_kind, turn IS NOT NULL AND state <> 0 AS in_order
    FROM oncegate_deliveries WHERE row_id IN ids AND tenant = ?1 {filter}
    UNION ALL
    SELECT 1, row_id, target_no, kind, target, message_id, type, deduplication_id, attempts,
           NULL, NULL, NULL, error_kind, 0
    FROM oncegate_dead_letters WHERE row_id IN ids AND tenant = ?1 {filter}
    UNION ALL
    SELECT 2, row_id, target_no, kind, target, message_id, type, deduplication_id, attempts,
           NULL, NULL, sent_at, error_kind, 0
    FROM oncegate_receipts WHERE row_id IN ids AND tenant = ?1 {filter}
    ORDER BY row_id, target_no, place";

/// Those of a logical id: `?2`, which may be the text of the row id `?3`.
const OF_ID: &str = "
    WITH ids (id) AS MATERIALIZED (
        SELECT row_id FROM oncegate_deliveries WHERE message_id = ?2 UNION
        SELECT row_id FROM oncegate_dead_letters WHERE message_id = ?2 UNION
        SELECT row_id FROM oncegate_receipts WHERE message_id = ?2 UNION
        SELECT ?3)";
const OF_ID_ONLY: &str = "AND (message_id IS NULL OR message_id = ?2)";

const PAGE: &str = "
    WITH ids (id) AS MATERIALIZED (
        SELECT DISTINCT row_id FROM oncegate_deliveries
        WHERE tenant = ?1 AND row_id > ?2 {where} ORDER BY row_id LIMIT ?3)";

const PAGE_OF_DEAD: &str = "
    WITH ids (id) AS MATERIALIZED (
        SELECT DISTINCT row_id FROM oncegate_dead_letters
        WHERE tenant = ?1 AND row_id > ?2 {where} ORDER BY row_id LIMIT ?3)";

/// The filter on `kind` is a literal, so that an index of its kind may serve.
const PAGE_OF_MADE: &str = "
    WITH ids (id) AS MATERIALIZED (
        SELECT DISTINCT row_id FROM oncegate_receipts
        WHERE tenant = ?1 AND row_id > ?2 {where} ORDER BY row_id LIMIT ?3)";

/// A table's row of [`PARTS`].
struct Part {
    row_id: Uuid,
    message_id: String,
    kind: String,
    deduplication_id: Option<String>,
    target: TargetStatus,
    /// Its row, if that has its place in an order.
    in_order: Option<RowKey>,
}

fn part(row: &SqliteRow) -> Result<Part> {
    let row_id = row.uuid("row_id")?;
    let target = row.target()?;
    let attempts = row.count32("attempts")?;
    let state = match row.int("place")? {
        0 if row.int("state")? == DeliveryState::Scheduled as i64 => MessageState::Scheduled,
        0 if attempts > 0 => MessageState::Retrying,
        0 => MessageState::Pending,
        1 => MessageState::Dead,
        _ if row.small("target_no")? == DUPLICATE_NO => MessageState::Duplicate,
        _ => done_state(target.kind),
    };
    Ok(Part {
        row_id,
        message_id: row.message_id(row_id)?,
        kind: row.text("type")?,
        deduplication_id: row.text_opt("deduplication_id")?,
        target: TargetStatus {
            target,
            state,
            attempts,
            due_at: row.time_opt("due_at")?,
            sent_at: row.time_opt("sent_at")?,
            error_kind: row.text_opt("error_kind")?,
            ahead: Vec::new(),
        },
        in_order: match row.int("in_order")? {
            0 => None,
            _ => Some(RowKey { id: row_id, target_no: row.small("target_no")? }),
        },
    })
}

/// Of several messages with one logical id the newest says what it is.
fn together(parts: Vec<Part>) -> Option<MessageStatus> {
    let newest = parts.last()?;
    Some(MessageStatus {
        id: newest.message_id.clone(),
        kind: newest.kind.clone(),
        deduplication_id: newest.deduplication_id.clone(),
        targets: parts.into_iter().map(|part| part.target).collect(),
    })
}

fn of_id_sql() -> String {
    format!("{OF_ID}{}", PARTS.replace("{filter}", OF_ID_ONLY))
}

async fn of_id(connection: &mut SqliteConnection, tenant: &str, id: &str) -> Result<Vec<Part>> {
    let query = sqlx::query(AssertSqlSafe(of_id_sql())).bind(tenant).bind(id).bind(as_row_id(id));
    let rows = query.fetch_all(connection).await.map_err(error::of)?;
    rows.iter().map(part).collect()
}

pub(super) async fn message(store: &Inner, tenant: &str, id: &str) -> Result<Option<MessageStatus>> {
    let mut reader = store.reader().await?;
    let mut parts = of_id(&mut reader, tenant, id).await?;
    for part in &mut parts {
        if let Some(row) = part.in_order {
            part.target.ahead = lanes::ahead(&mut reader, row).await?;
        }
    }
    Ok(together(parts))
}

pub(super) async fn messages(store: &Inner, asked: &MessageQuery) -> Result<MessagePage> {
    let sql = page_sql(asked);
    let limit = asked.limit as usize;
    let mut reader = store.reader().await?;
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(&asked.tenant)
        .bind(asked.cursor.unwrap_or(Uuid::nil()))
        .bind(i64::from(asked.limit) + 1)
        .bind(&asked.kind)
        .bind(&asked.deduplication_id)
        .bind(&asked.correlation_id)
        .fetch_all(&mut *reader)
        .await
        .map_err(error::of)?;
    let mut by_row: BTreeMap<Uuid, Vec<Part>> = BTreeMap::new();
    for row in &rows {
        let part = part(row)?;
        by_row.entry(part.row_id).or_default().push(part);
    }
    let more = by_row.len() > limit;
    let page: Vec<(Uuid, Vec<Part>)> = by_row.into_iter().take(limit).collect();
    let next = page.last().map(|(row_id, _)| *row_id).filter(|_| more);
    Ok(MessagePage { items: page.into_iter().filter_map(|(_, parts)| together(parts)).collect(), next })
}

fn page_sql(asked: &MessageQuery) -> String {
    let mut filters = match asked.state {
        None => String::new(),
        Some(MessageState::Scheduled) => "AND state = 0 ".to_owned(),
        Some(MessageState::Pending) => "AND state <> 0 AND attempts = 0 ".to_owned(),
        Some(MessageState::Retrying) => "AND state <> 0 AND attempts > 0 ".to_owned(),
        Some(MessageState::Dead) => String::new(),
        Some(MessageState::Sent) => "AND kind = 0 AND target_no >= 0 ".to_owned(),
        Some(MessageState::Handled) => "AND kind = 1 ".to_owned(),
        // They are told by their ids, and not listed.
        Some(MessageState::Duplicate) => "AND kind < 0 ".to_owned(),
    };
    for (asked, filter) in [
        (&asked.kind, "AND type = ?4 "),
        (&asked.deduplication_id, "AND deduplication_id = ?5 "),
        (&asked.correlation_id, "AND correlation_id = ?6 "),
    ] {
        if asked.is_some() {
            filters.push_str(filter);
        }
    }
    let page = match asked.state {
        Some(MessageState::Dead) => PAGE_OF_DEAD,
        Some(MessageState::Sent | MessageState::Handled | MessageState::Duplicate) => PAGE_OF_MADE,
        _ => PAGE,
    };
    format!("{}{}", page.replace("{where}", &filters), PARTS.replace("{filter}", ""))
}

const CANCEL: &str = "DELETE FROM oncegate_deliveries WHERE row_id = ?1 RETURNING claim_key";

/// Only if the claim is still this message's.
const FREE: &str = "DELETE FROM oncegate_deduplication WHERE key = ?1 AND row_id = ?2";

pub(super) async fn cancel(store: &Arc<Inner>, tenant: &str, id: &str) -> Result<Cancelled> {
    let (tenant, id) = (tenant.to_owned(), id.to_owned());
    store
        .write(move |connection, _| {
            Box::pin(async move {
                let parts = of_id(connection, &tenant, &id).await?;
                if parts.is_empty() {
                    return Ok(Cancelled::NotFound);
                }
                // A message of this id that is long delivered does not keep a later one from being cancelled.
                let waiting = |part: &Part| part.target.due_at.is_some();
                let mut rows: Vec<Uuid> =
                    parts.iter().filter(|part| waiting(part)).map(|part| part.row_id).collect();
                rows.dedup();
                let mut deliveries = parts.iter().filter(|part| rows.contains(&part.row_id));
                if rows.is_empty() || deliveries.any(|part| part.target.state != MessageState::Scheduled) {
                    return Ok(Cancelled::TooLate);
                }
                for row_id in rows {
                    let query = sqlx::query_scalar::<_, Option<Uuid>>(CANCEL).bind(row_id);
                    let keys = query.fetch_all(&mut *connection).await.map_err(error::of)?;
                    for key in keys.into_iter().flatten() {
                        let query = sqlx::query(FREE).bind(key).bind(row_id);
                        query.execute(&mut *connection).await.map_err(error::of)?;
                    }
                }
                Ok(Cancelled::Yes)
            })
        })
        .await
}

const PAUSED: &str = "
    SELECT kind, name AS target, paused_until FROM oncegate_targets
    WHERE paused_until IS NULL OR paused_until > ?1 ORDER BY kind, name";
/// The longer one stands; none is the longest.
const PAUSE: &str = "
    INSERT INTO oncegate_targets (kind, name, paused_at, paused_until) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (kind, name) DO UPDATE SET paused_until = max(paused_until, excluded.paused_until)";
const RESUME: &str = "DELETE FROM oncegate_targets WHERE kind = ?1 AND name = ?2";

pub(super) async fn paused(store: &Inner) -> Result<Vec<Pause>> {
    let now = store.now();
    let mut reader = store.reader().await?;
    let rows = sqlx::query(PAUSED).bind(now).fetch_all(&mut *reader).await.map_err(error::of)?;
    let read = |row: &SqliteRow| {
        let ends_in = row.int_opt("paused_until")?.map(|end| until(end, now));
        Ok(Pause { target: row.target()?, ends_in })
    };
    rows.iter().map(read).collect()
}

pub(super) async fn set_paused(store: &Arc<Inner>, target: &Target, paused: Paused) -> Result<()> {
    let target = target.clone();
    store
        .write(move |connection, now| {
            Box::pin(async move {
                let sql = if paused == Paused::No { RESUME } else { PAUSE };
                let query = sqlx::query(sql).bind(target.kind as i16).bind(&*target.name);
                let query = match paused {
                    Paused::Yes => query.bind(now).bind(None::<i64>),
                    Paused::For(duration) => query.bind(now).bind(later(now, duration)),
                    Paused::No => query,
                };
                query.execute(connection).await.map_err(error::of)?;
                Ok(())
            })
        })
        .await
}

/// Every statement of this file, for the tests that prepare and explain them.
#[cfg(test)]
pub(super) fn statements() -> Vec<String> {
    let mut all = vec![of_id_sql()];
    use MessageState::{Dead, Handled, Pending, Retrying, Scheduled, Sent};
    for state in [Scheduled, Pending, Retrying, Dead, Sent, Handled].map(Some).into_iter().chain([None]) {
        for given in 0..8_u8 {
            let filter = |bit: u8| (given & bit != 0).then(|| "x".to_owned());
            let (kind, deduplication_id, correlation_id) = (filter(1), filter(2), filter(4));
            let asked =
                MessageQuery { state, kind, deduplication_id, correlation_id, ..MessageQuery::default() };
            all.push(page_sql(&asked));
        }
    }
    all.extend([CANCEL, FREE, PAUSED, PAUSE, RESUME].map(str::to_owned));
    all
}
