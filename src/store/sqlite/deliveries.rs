//! The queue: rows are inserted, taken, given back, counted.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sqlx::SqliteConnection;
use uuid::Uuid;

use super::rows::{self, Batched, Columns, later, micros, moment, until};
use super::{Inner, error, lanes, settle};
use crate::domain::claim::ClaimKey;
use crate::domain::delivery::{DeadKind, DeliveryState, Target};
use crate::domain::ordering::OrderKey;
use crate::domain::{Message, Random, RowKey, Token};
use crate::store::accept::MessageState;
use crate::store::deliveries::{Take, Taken};
use crate::store::status::Backlog;
use crate::store::{Error, ErrorKind, Result};

/// A row to be written.
pub(super) struct NewRow<'a> {
    pub id: Uuid,
    pub target_no: i16,
    pub target: &'a Target,
    pub due: Due,
    pub claim_key: Option<ClaimKey>,
    /// The key of the order in which it has its place.
    pub order: Option<OrderKey>,
    pub message_id: Option<&'a str>,
    pub message: &'a Message,
    pub envelope: Arc<str>,
}

/// When a new row is due, and why then.
pub(super) enum Due {
    Scheduled(i64),
    Waiting(i64),
    Leased(i64, Token),
}

/// A row that is there already was written by this very attempt, run again.
const INSERT: &str = "
    INSERT INTO oncegate_deliveries
        (row_id, target_no, kind, target, state, due_at, token, taken, attempts, deliver_at, deliver_by, claim_key,
         tenant, message_id, type, deduplication_id, partition_key, correlation_id, accepted_at, envelope, body{order})
    VALUES {values}
    ON CONFLICT (row_id, target_no) DO NOTHING";
const INSERT_COLUMNS: usize = 21;
static INSERT_BATCHED: LazyLock<Batched> =
    LazyLock::new(|| Batched::new(&INSERT.replace("{order}", ""), INSERT_COLUMNS));
/// For rows that have their place in an order.
static INSERT_IN_ORDER_BATCHED: LazyLock<Batched> =
    LazyLock::new(|| Batched::new(&INSERT.replace("{order}", ", order_key, turn"), INSERT_COLUMNS + 2));

pub(super) async fn insert(connection: &mut SqliteConnection, new: &[NewRow<'_>]) -> Result<()> {
    if new.iter().all(|row| row.order.is_none()) {
        for (sql, chunk) in INSERT_BATCHED.over(new) {
            let query = chunk.iter().fold(sqlx::query(sql), bind);
            query.execute(&mut *connection).await.map_err(error::of)?;
        }
        return Ok(());
    }
    let mut turn = lanes::number(connection).await?;
    for (sql, chunk) in INSERT_IN_ORDER_BATCHED.over(new) {
        let mut query = sqlx::query(sql);
        for row in chunk {
            let order = row.order.map(|key| key.0);
            query = bind(query, row).bind(order).bind(order.map(|_| turn));
            turn += 1;
        }
        query.execute(&mut *connection).await.map_err(error::of)?;
    }
    Ok(())
}

type Insert<'q> = sqlx::query::Query<'q, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

fn bind<'q>(query: Insert<'q>, row: &'q NewRow<'_>) -> Insert<'q> {
    let (state, due_at, token) = match row.due {
        Due::Scheduled(at) => (DeliveryState::Scheduled, at, Token(0)),
        Due::Waiting(at) => (DeliveryState::Waiting, at, Token(0)),
        Due::Leased(until, token) => (DeliveryState::Leased, until, token),
    };
    let message = row.message;
    query
        .bind(row.id)
        .bind(row.target_no)
        .bind(row.target.kind as i16)
        .bind(&*row.target.name)
        .bind(state as i16)
        .bind(due_at)
        .bind(token.0)
        .bind(0)
        .bind(0)
        .bind(message.deliver_at.map(micros))
        .bind(message.deliver_by.map(micros))
        .bind(row.claim_key.map(|key| key.0))
        .bind(&message.tenant)
        .bind(row.message_id)
        .bind(&message.kind)
        .bind(&message.deduplication_id)
        .bind(&message.partition_key)
        .bind(&message.correlation_id)
        .bind(micros(message.accepted_at))
        .bind(&*row.envelope)
        .bind(message.body.as_ref())
}

const ANY_DUE: &str = "
    SELECT EXISTS (SELECT 1 FROM oncegate_deliveries WHERE kind = ?1 AND target = ?2 AND due_at <= ?3)";

const DUE: &str = "
    SELECT rowid, row_id, target_no, kind, target, error_text IS NULL AS fresh, taken, forced, attempts, deliver_at, deliver_by, tenant, message_id, type,
           deduplication_id, partition_key, correlation_id, accepted_at, envelope, body
    FROM oncegate_deliveries
    WHERE kind = ?1 AND target = ?2 AND due_at <= ?3 ORDER BY due_at LIMIT ?4";

const LEASE: &str = "
    UPDATE oncegate_deliveries SET state = 2, due_at = ?2, token = ?3, taken = taken + 1
    WHERE rowid IN (SELECT value FROM json_each(?1))";

pub(super) async fn take(store: &Arc<Inner>, take: &Take) -> Result<Vec<Taken>> {
    let mut reader = store.reader().await?;
    let any: bool = sqlx::query_scalar(ANY_DUE)
        .bind(take.target.kind as i16)
        .bind(&*take.target.name)
        .bind(store.now())
        .fetch_one(&mut *reader)
        .await
        .map_err(error::of)?;
    drop(reader);
    if !any {
        return Ok(Vec::new());
    }
    let (take, random) = (take.clone(), store.random);
    store
        .write(move |connection, now| {
            Box::pin(async move {
                let due = sqlx::query(DUE)
                    .bind(take.target.kind as i16)
                    .bind(&*take.target.name)
                    .bind(now)
                    .bind(take.limit)
                    .fetch_all(&mut *connection)
                    .await
                    .map_err(error::of)?;
                lease(connection, now, random, &take, &due, None).await
            })
        })
        .await
}

/// Leases these rows, which were read under the lock; `also` is run for them.
pub(super) async fn lease(
    connection: &mut SqliteConnection,
    now: i64,
    random: Random,
    take: &Take,
    due: &[sqlx::sqlite::SqliteRow],
    also: Option<&'static str>,
) -> Result<Vec<Taken>> {
    let mut numbers = Vec::with_capacity(due.len());
    let mut taken = Vec::with_capacity(due.len());
    for row in due {
        match rows::delivery(row) {
            Ok(delivery) => {
                let expired = delivery.message.deliver_by.is_some_and(|by| micros(by) <= now);
                numbers.push(row.int("rowid")?);
                let (takes, forced) = (row.count32("taken")? + 1, row.int("forced")? != 0);
                let message = &delivery.message;
                let scheduled = message.deliver_at.is_some_and(|at| at > message.accepted_at);
                let was_scheduled = scheduled && delivery.attempts == 0 && row.int("fresh")? != 0;
                taken.push(Taken { delivery, takes, expired, forced, was_scheduled });
            }
            // It must not hold up the others for ever.
            Err(unreadable) => {
                let why =
                    settle::Why { kind: DeadKind::Unreadable.as_str(), text: &unreadable.detail, counted: 0 };
                settle::bury(connection, row.int("rowid")?, random, now, &why).await?;
            }
        }
    }
    let numbers = json_list(&numbers);
    sqlx::query(LEASE)
        .bind(numbers.clone())
        .bind(later(now, take.lease))
        .bind(take.token.0)
        .execute(&mut *connection)
        .await
        .map_err(error::of)?;
    if let Some(sql) = also {
        sqlx::query(sql).bind(numbers).execute(connection).await.map_err(error::of)?;
    }
    Ok(taken)
}

pub(super) fn json_list(numbers: &[i64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    format!("[{}]", numbers.join(","))
}

/// What was not attempted does not count as taken.
const GIVE_BACK: &str = "
    UPDATE oncegate_deliveries SET state = 1, due_at = ?1, token = 0, taken = max(taken - 1, 0)
    WHERE row_id = ?2 AND target_no = ?3 AND token = ?4 AND state = 2";

pub(super) async fn give_back(store: &Arc<Inner>, rows: &[(RowKey, Token)]) -> Result<u64> {
    if rows.is_empty() {
        return Ok(0);
    }
    let rows = rows.to_vec();
    store
        .write(move |connection, now| {
            Box::pin(async move {
                let mut given = 0;
                for (row, token) in rows {
                    let query =
                        sqlx::query(GIVE_BACK).bind(now).bind(row.id).bind(row.target_no).bind(token.0);
                    given += query.execute(&mut *connection).await.map_err(error::of)?.rows_affected();
                }
                Ok(given)
            })
        })
        .await
}

/// `?1` is a list of [kind, name] pairs; one row for each, in order.
const DUE_AT: &str = "
    SELECT (SELECT min(due_at) FROM oncegate_deliveries
            WHERE kind = json_extract(asked.value, '$[0]') AND target = json_extract(asked.value, '$[1]'))
    FROM json_each(?1) AS asked ORDER BY asked.key";

pub(super) async fn due_in(store: &Inner, targets: &[Target]) -> Result<Vec<Option<Duration>>> {
    if targets.is_empty() {
        return Ok(Vec::new());
    }
    let asked = asked(targets)?;
    let mut reader = store.reader().await?;
    let due: Vec<Option<i64>> =
        sqlx::query_scalar(DUE_AT).bind(asked).fetch_all(&mut *reader).await.map_err(error::of)?;
    let now = store.now();
    Ok(due.into_iter().map(|at| at.map(|at| until(at, now))).collect())
}

/// Targets, as a statement takes them.
pub(super) fn asked(targets: &[Target]) -> Result<String> {
    let asked: Vec<(i16, &str)> = targets.iter().map(|target| (target.kind as i16, &*target.name)).collect();
    serde_json::to_string(&asked)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("targets as JSON: {error}")))
}

const BACKLOG: &str = "
    SELECT kind, target, count(*) AS depth, min(due_at) AS oldest_due_at,
           (SELECT error_text FROM oncegate_deliveries AS failed
            WHERE failed.kind = row.kind AND failed.target = row.target AND failed.error_text IS NOT NULL
            ORDER BY failed.due_at DESC LIMIT 1) AS last_error
    FROM oncegate_deliveries AS row GROUP BY kind, target";

pub(super) async fn backlog(store: &Inner) -> Result<Vec<Backlog>> {
    let mut reader = store.reader().await?;
    let rows = sqlx::query(BACKLOG).fetch_all(&mut *reader).await.map_err(error::of)?;
    let now = store.now();
    let read = |row: &sqlx::sqlite::SqliteRow| {
        let oldest = row.int("oldest_due_at")?;
        Ok(Backlog {
            target: row.target()?,
            depth: row.count("depth")?,
            oldest_due_at: Some(moment(oldest)?),
            oldest_age: until(now, oldest),
            last_error: row.text_opt("last_error")?,
        })
    };
    rows.iter().map(read).collect()
}

/// Where the message with this row id stands: the least advanced of its deliveries.
const STATE: &str = "
    SELECT (SELECT max(CASE WHEN state = 0 THEN 1 WHEN attempts > 0 THEN 3 ELSE 2 END)
            FROM oncegate_deliveries WHERE row_id = ?1) AS waiting,
           EXISTS (SELECT 1 FROM oncegate_dead_letters WHERE row_id = ?1) AS dead,
           (SELECT min(kind) FROM oncegate_receipts WHERE row_id = ?1) AS done";

pub(super) async fn state_of(
    connection: &mut SqliteConnection,
    row_id: Option<Uuid>,
) -> Result<MessageState> {
    let Some(row_id) = row_id else {
        return Ok(MessageState::Sent);
    };
    let row = sqlx::query(STATE).bind(row_id).fetch_one(connection).await.map_err(error::of)?;
    Ok(match (row.int_opt("waiting")?, row.int("dead")?, row.int_opt("done")?) {
        (Some(3), ..) => MessageState::Retrying,
        (Some(2), ..) => MessageState::Pending,
        (Some(_), ..) => MessageState::Scheduled,
        (None, 1, _) => MessageState::Dead,
        (None, _, Some(1)) => MessageState::Handled,
        (None, ..) => MessageState::Sent,
    })
}

/// Every statement of this file, for the tests that prepare and explain them.
#[cfg(test)]
pub(super) fn statements() -> Vec<String> {
    let mut all = [INSERT_BATCHED.sizes(), INSERT_IN_ORDER_BATCHED.sizes()].concat();
    all.extend([ANY_DUE, DUE, LEASE, GIVE_BACK, DUE_AT, BACKLOG, STATE].map(str::to_owned));
    all
}
