//! The queue: taking, giving back, and what is due when.

use std::time::{Duration, Instant};

use sqlx::Row;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use uuid::Uuid;

use super::Postgres;
use super::error::Fault;
use super::floors::Found;
use super::pool::Mode;
use super::rows::{self, count, interval, message_columns, micros};
use super::settle;
use crate::domain::delivery::{DeadKind, Delivery, Target};
use crate::domain::{RowKey, Timestamp, Token};
use crate::store::Result;
use crate::store::deliveries::{Counted, DeadNote, Settle, Settlement, Take, Taken};

/// What is read of a row that was taken (`d`), and when it was due (`due`).
macro_rules! taken_columns {
    () => {
        concat!(
            "d.row_id, d.target_no, d.kind, d.target, d.attempts, d.taken, d.forced, due.due_at AS was_due_at,
                coalesce(d.deliver_by <= now(), false) AS expired,
                coalesce(d.deliver_at > d.accepted_at, false) AND d.attempts = 0 AND d.error_text IS NULL AS was_scheduled, ",
            message_columns!()
        )
    };
}
pub(super) use taken_columns;

/// By `ctid`, which is faster than by key; the row is locked, so it stays where it is.
pub(super) const TAKE: &str = concat!(
    "WITH due AS MATERIALIZED (
        SELECT d.ctid AS place, d.due_at FROM oncegate.deliveries d
        WHERE d.kind = $1 AND d.target = $2 AND d.due_at <= now()
          AND d.due_at >= coalesce($3::timestamptz, '-infinity')
        ORDER BY d.due_at LIMIT $4 FOR UPDATE SKIP LOCKED
    )
    UPDATE oncegate.deliveries d SET state = 2, token = $5, taken = d.taken + 1, due_at = now() + $6::interval
    FROM due WHERE d.ctid = due.place
    RETURNING ",
    taken_columns!()
);

pub(super) const GIVE_BACK: &str = "UPDATE oncegate.deliveries d
     SET state = 1, token = 0, taken = greatest(0, d.taken - 1), due_at = least(now(), d.deliver_by)
     FROM unnest($1::uuid[], $2::smallint[], $3::bigint[]) AS t(row_id, target_no, token)
     WHERE d.row_id = t.row_id AND d.target_no = t.target_no AND d.token = t.token AND d.state = 2";

/// One row for each target that is asked for, in order.
macro_rules! due_in_us {
    () => {
        "SELECT (extract(epoch FROM front.due_at - now()) * 1000000)::bigint AS due_in_us
     FROM unnest($1::smallint[], $2::text[], $3::timestamptz[]) WITH ORDINALITY AS t(kind, target, floor, place)
     LEFT JOIN LATERAL (
        SELECT d.due_at FROM oncegate.deliveries d
        WHERE d.kind = t.kind AND d.target = t.target AND d.due_at >= coalesce(t.floor, '-infinity')
        ORDER BY d.due_at LIMIT 1
     ) front ON true
     ORDER BY t.place"
    };
}
pub(super) use due_in_us;
pub(super) const DUE_IN: &str = due_in_us!();

/// What nobody has leased of what is over. The dead letters' ids are UUIDv7 like all others.
pub(super) const EXPIRE: &str = "WITH late AS MATERIALIZED (
        SELECT d.ctid AS place FROM oncegate.deliveries d
        WHERE d.deliver_by <= now() AND (d.state <> 2 OR d.due_at <= now())
        ORDER BY d.deliver_by LIMIT $1 FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM oncegate.deliveries d USING late WHERE d.ctid = late.place RETURNING d.*
    ), put AS (
        INSERT INTO oncegate.dead_letters
            (id, row_id, target_no, kind, target, attempts, tenant, message_id, type, deduplication_id,
             partition_key, correlation_id, deliver_at, deliver_by, claim_key, accepted_at, error_kind,
             error_text, failed_at, order_key, turn, envelope, body)
        SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
                || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid,
            d.row_id, d.target_no, d.kind, d.target, d.attempts, d.tenant, d.message_id, d.type,
            d.deduplication_id, d.partition_key, d.correlation_id, d.deliver_at, d.deliver_by, d.claim_key,
            d.accepted_at, 'Expired', coalesce('deliver-by has passed; the last error: ' || d.error_text,
                'deliver-by has passed'), now(), d.order_key, abs(d.turn), d.envelope, d.body
        FROM gone d
        RETURNING kind, target
    )
    SELECT kind, target, count(*) AS number FROM put GROUP BY kind, target ORDER BY kind, target";

pub(super) async fn take(store: &Postgres, take: &Take) -> Result<Vec<Taken>> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let (started, server_now) = (Instant::now(), store.pool.clock.now());
    let floor = store.floors.of(&take.target, started);
    let query = sqlx::query(TAKE)
        .bind(take.target.kind as i16)
        .bind(take.target.name.to_string())
        .bind(floor)
        .bind(i64::from(take.limit))
        .bind(take.token.0)
        .bind(interval(take.lease));
    let result = session.rows(query).await;
    let found = session.finish(result).await?;
    let taken = read_all(store, &found, take).await?;
    let mut last_due_at: Option<Timestamp> = None;
    for row in &found {
        last_due_at = last_due_at.max(Some(row.try_get("was_due_at").map_err(Fault::from)?));
    }
    let front = match last_due_at {
        Some(due_at) if found.len() >= take.limit as usize => Found::UpTo(due_at),
        _ => Found::Emptied,
    };
    store.floors.found(&take.target, floor, front, server_now, started);
    Ok(taken)
}

/// Reads what was taken, in the order in which it was due.
pub(super) async fn read_all(store: &Postgres, found: &[PgRow], take: &Take) -> Result<Vec<Taken>> {
    let mut taken = Vec::with_capacity(found.len());
    let mut unreadable = Vec::new();
    for row in found {
        match read_taken(row, &take.target) {
            Ok(read) => taken.push(read),
            Err(fault) => unreadable.push(bury(row, take.token, &fault)?),
        }
    }
    // They must not hold up the others for ever. Should this fail, their leases end and they come again.
    settle::settle(store, &unreadable).await?;
    taken.sort_unstable_by_key(|(was_due_at, taken)| (*was_due_at, taken.delivery.row));
    Ok(taken.into_iter().map(|(_, taken)| taken).collect())
}

/// A row that this program cannot read goes to the dead letters as it is, bytes and all.
fn bury(row: &PgRow, token: Token, fault: &Fault) -> Result<Settlement, Fault> {
    let row = RowKey { id: row.try_get("row_id")?, target_no: row.try_get("target_no")? };
    let error = DeadNote { kind: DeadKind::Unreadable, text: fault.error.detail.clone() };
    Ok(Settlement { row, token, outcome: Settle::Dead { error, counted: Counted::No } })
}

fn read_taken(row: &PgRow, target: &Target) -> Result<(Timestamp, Taken), Fault> {
    let row_id: Uuid = row.try_get("row_id")?;
    let delivery = Delivery {
        row: RowKey { id: row_id, target_no: row.try_get("target_no")? },
        target: target.clone(),
        message: rows::message(row, row_id)?.into(),
        attempts: u32::try_from(row.try_get::<i32, _>("attempts")?).unwrap_or_default(),
    };
    let takes = u32::try_from(row.try_get::<i32, _>("taken")?).unwrap_or_default();
    let taken = Taken {
        delivery,
        takes,
        expired: row.try_get("expired")?,
        forced: row.try_get("forced")?,
        was_scheduled: row.try_get("was_scheduled")?,
    };
    Ok((row.try_get("was_due_at")?, taken))
}

pub(super) async fn give_back(store: &Postgres, mut rows: Vec<(RowKey, Token)>) -> Result<u64> {
    if rows.is_empty() {
        return Ok(0);
    }
    rows.sort_unstable_by_key(|(row, _)| *row);
    let query = sqlx::query(GIVE_BACK)
        .bind(rows.iter().map(|(row, _)| row.id).collect::<Vec<_>>())
        .bind(rows.iter().map(|(row, _)| row.target_no).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, token)| token.0).collect::<Vec<_>>());
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = session.execute(query).await;
    Ok(session.finish(result).await?)
}

pub(super) async fn due_in(store: &Postgres, targets: &[Target]) -> Result<Vec<Option<Duration>>> {
    if targets.is_empty() {
        return Ok(Vec::new());
    }
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let fronts = Fronts::of(store, targets);
    let result = session.rows(fronts.bind(sqlx::query(DUE_IN))).await;
    let rows = session.finish(result).await?;
    let due_in_us = rows.iter().map(|row| row.try_get("due_in_us").map_err(Fault::from));
    Ok(fronts.found(store, due_in_us.collect::<Result<_, Fault>>()?))
}

/// Where a look for the first row of each target begins.
pub(super) struct Fronts<'t> {
    targets: &'t [Target],
    floors: Vec<Option<Timestamp>>,
    started: Instant,
    server_now: Timestamp,
}

impl<'t> Fronts<'t> {
    pub fn of(store: &Postgres, targets: &'t [Target]) -> Self {
        let started = Instant::now();
        let floors = targets.iter().map(|target| store.floors.of(target, started)).collect();
        Self { targets, floors, started, server_now: store.pool.clock.now() }
    }

    /// The parameters of [`DUE_IN`].
    pub fn bind<'q>(
        &self,
        query: Query<'q, sqlx::Postgres, PgArguments>,
    ) -> Query<'q, sqlx::Postgres, PgArguments> {
        query
            .bind(self.targets.iter().map(|target| target.kind as i16).collect::<Vec<_>>())
            .bind(self.targets.iter().map(|target| target.name.to_string()).collect::<Vec<_>>())
            .bind(self.floors.clone())
    }

    /// Remembers what is empty; how long until each target's first row is due.
    pub fn found(&self, store: &Postgres, due_in_us: Vec<Option<i64>>) -> Vec<Option<Duration>> {
        for ((us, target), floor) in due_in_us.iter().zip(self.targets).zip(&self.floors) {
            if us.is_none_or(|us| us > 0) {
                store.floors.found(target, *floor, Found::Emptied, self.server_now, self.started);
            }
        }
        due_in_us.into_iter().map(|us| us.map(micros)).collect()
    }
}

pub(super) async fn expire(store: &Postgres, limit: u32) -> Result<Vec<(Target, u64)>> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = session.rows(sqlx::query(EXPIRE).bind(i64::from(limit))).await;
    let rows = session.finish(result).await?;
    let read = |row: &PgRow| Ok((rows::target(row)?, count(row.try_get("number")?)));
    Ok(rows.iter().map(read).collect::<Result<_, Fault>>()?)
}
