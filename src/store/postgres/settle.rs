//! Settling deliveries in batches: one statement per kind of outcome, together in one transaction.

use std::collections::HashSet;

use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::Postgres;
use super::error::Fault;
use super::pool::{Mode, Session};
use super::rows::interval;
use crate::domain::{Random, RowKey};
use crate::store::Result;
use crate::store::deliveries::{
    Counted, DISCARDED, DeadNote, ErrorNote, Receipt, Settle, Settled, Settlement,
};

/// Whether a row may go whatever its token: delivered is delivered. Not so one in an order that somebody else has
/// leased just now, and perhaps on its way: the row behind it would overtake it.
macro_rules! may_go {
    () => {
        "(d.turn IS NULL OR d.token = t.token OR d.state <> 2 OR d.due_at <= now())"
    };
}

/// Made: the row goes, and a receipt stays.
pub(super) const DONE: &str = concat!(
    "WITH gone AS (
        DELETE FROM oncegate.deliveries d
        USING unnest($1::uuid[], $2::smallint[], $3::bigint[], $4::boolean[]) AS t(row_id, target_no, token, keep)
        WHERE d.row_id = t.row_id AND d.target_no = t.target_no AND ",
    may_go!(),
    "
        RETURNING t.keep, d.row_id, d.target_no, d.kind, d.target, d.attempts, d.tenant, d.message_id, d.type,
            d.deduplication_id, d.correlation_id, d.accepted_at
    ), kept AS (
        INSERT INTO oncegate.receipts
            (row_id, target_no, kind, target, attempts, tenant, message_id, type, deduplication_id,
             correlation_id, accepted_at, sent_at)
        SELECT row_id, target_no, kind, target, attempts + 1, tenant, message_id, type, deduplication_id,
            correlation_id, accepted_at, now()
        FROM gone WHERE keep
    )
    SELECT row_id, target_no FROM gone"
);

/// Given up on for good: the row goes, and its receipt says so.
pub(super) const DISCARD: &str = "WITH gone AS (
        DELETE FROM oncegate.deliveries d
        USING unnest($1::uuid[], $2::smallint[], $3::bigint[], $4::boolean[]) AS t(row_id, target_no, token, keep)
        WHERE d.row_id = t.row_id AND d.target_no = t.target_no AND d.token = t.token
        RETURNING t.keep, d.row_id, d.target_no, d.kind, d.target, d.attempts, d.tenant, d.message_id, d.type,
            d.deduplication_id, d.correlation_id, d.accepted_at
    ), kept AS (
        INSERT INTO oncegate.receipts
            (row_id, target_no, kind, target, attempts, tenant, message_id, type, deduplication_id,
             correlation_id, accepted_at, sent_at, error_kind)
        SELECT row_id, target_no, kind, target, attempts + 1, tenant, message_id, type, deduplication_id,
            correlation_id, accepted_at, now(), $5::text
        FROM gone WHERE keep
    )
    SELECT row_id, target_no FROM gone";

/// The same, where no receipts are kept.
pub(super) const DONE_WITHOUT_RECEIPT: &str = concat!(
    "DELETE FROM oncegate.deliveries d
     USING unnest($1::uuid[], $2::smallint[], $3::bigint[]) AS t(row_id, target_no, token)
     WHERE d.row_id = t.row_id AND d.target_no = t.target_no AND ",
    may_go!(),
    " RETURNING d.row_id, d.target_no"
);

/// The token goes, so that the same settlement again changes nothing.
pub(super) const RETRY: &str = "UPDATE oncegate.deliveries d
     SET state = 1, token = 0, taken = 0, attempts = d.attempts + t.counted,
        due_at = least(now() + t.after, d.deliver_by), error_kind = t.error_kind, error_text = t.error_text
     FROM unnest($1::uuid[], $2::smallint[], $3::bigint[], $4::interval[], $5::integer[], $6::text[], $7::text[])
        AS t(row_id, target_no, token, after, counted, error_kind, error_text)
     WHERE d.row_id = t.row_id AND d.target_no = t.target_no AND d.token = t.token
     RETURNING d.row_id, d.target_no";

/// Taken back: nothing is left of it.
pub(super) const WITHDRAW: &str = "DELETE FROM oncegate.deliveries d
     USING unnest($1::uuid[], $2::smallint[], $3::bigint[]) AS t(row_id, target_no, token)
     WHERE d.row_id = t.row_id AND d.target_no = t.target_no AND d.token = t.token
     RETURNING d.row_id, d.target_no";

/// Given up on: the row moves whole.
pub(super) const DEAD: &str = "WITH gone AS (
        DELETE FROM oncegate.deliveries d
        USING unnest($1::uuid[], $2::smallint[], $3::bigint[], $4::uuid[], $5::integer[], $6::text[], $7::text[])
            AS t(row_id, target_no, token, id, counted, error_kind, error_text)
        WHERE d.row_id = t.row_id AND d.target_no = t.target_no AND d.token = t.token
        RETURNING d.*, t.id, t.counted, t.error_kind AS why, t.error_text AS why_text
    )
    INSERT INTO oncegate.dead_letters
        (id, row_id, target_no, kind, target, attempts, tenant, message_id, type, deduplication_id,
         partition_key, correlation_id, deliver_at, deliver_by, claim_key, accepted_at, error_kind, error_text,
         failed_at, order_key, turn, envelope, body)
    SELECT g.id, g.row_id, g.target_no, g.kind, g.target, g.attempts + g.counted, g.tenant, g.message_id, g.type,
        g.deduplication_id, g.partition_key, g.correlation_id, g.deliver_at, g.deliver_by, g.claim_key,
        g.accepted_at, g.why, g.why_text, now(), g.order_key, abs(g.turn), g.envelope, g.body
    FROM gone g
    RETURNING row_id, target_no";

/// A batch by kind of outcome, each in key order.
#[derive(Default)]
struct Sorted<'a> {
    done: Vec<(&'a Settlement, Receipt)>,
    retry: Vec<(&'a Settlement, std::time::Duration, Counted, &'a ErrorNote)>,
    discard: Vec<(&'a Settlement, Receipt)>,
    withdrawn: Vec<&'a Settlement>,
    dead: Vec<(&'a Settlement, Counted, &'a DeadNote)>,
}

pub(super) async fn settle(store: &Postgres, batch: &[Settlement]) -> Result<Vec<Settled>> {
    if batch.is_empty() {
        return Ok(Vec::new());
    }
    let mut in_order: Vec<&Settlement> = batch.iter().collect();
    in_order.sort_unstable_by_key(|settlement| settlement.row);
    let mut sorted = Sorted::default();
    for settlement in in_order {
        sorted.add(settlement);
    }
    let kinds = [
        sorted.done.is_empty(),
        sorted.retry.is_empty(),
        sorted.discard.is_empty(),
        sorted.withdrawn.is_empty(),
        sorted.dead.is_empty(),
    ];
    let several = kinds.iter().filter(|empty| !**empty).count() > 1;
    let mode = if several { Mode::Transaction } else { Mode::Autocommit };
    let mut session = store.pool.session(mode).await?;
    let now = store.pool.clock.now();
    let result = settle_sorted(&mut session, &sorted, || Random.uuid_v7(now)).await;
    let settled = session.finish(result).await?;
    let answer = |settlement: &Settlement| match settled.contains(&settlement.row) {
        true => Settled::Yes,
        false => Settled::Fenced,
    };
    Ok(batch.iter().map(answer).collect())
}

/// Settles deliveries within a transaction that is part of something larger.
pub(super) async fn within(
    session: &mut Session<'_>,
    store: &Postgres,
    batch: &[&Settlement],
) -> Result<Vec<Settled>, Fault> {
    let mut in_order = batch.to_vec();
    in_order.sort_unstable_by_key(|settlement| settlement.row);
    let mut sorted = Sorted::default();
    for settlement in in_order {
        sorted.add(settlement);
    }
    let now = store.pool.clock.now();
    let settled = settle_sorted(session, &sorted, || Random.uuid_v7(now)).await?;
    let answer = |settlement: &&Settlement| match settled.contains(&settlement.row) {
        true => Settled::Yes,
        false => Settled::Fenced,
    };
    Ok(batch.iter().map(answer).collect())
}

impl<'a> Sorted<'a> {
    fn add(&mut self, settlement: &'a Settlement) {
        match &settlement.outcome {
            Settle::Done { receipt } => self.done.push((settlement, *receipt)),
            Settle::Retry { after, counted, error } => self.retry.push((settlement, *after, *counted, error)),
            Settle::Discard { receipt, .. } => self.discard.push((settlement, *receipt)),
            Settle::Withdrawn => self.withdrawn.push(settlement),
            Settle::Dead { error, counted } => self.dead.push((settlement, *counted, error)),
        }
    }
}

async fn settle_sorted(
    session: &mut Session<'_>,
    sorted: &Sorted<'_>,
    mut new_id: impl FnMut() -> Uuid,
) -> Result<HashSet<RowKey>, Fault> {
    let mut settled = HashSet::new();
    if !sorted.done.is_empty() {
        settled.extend(keys(&done(session, &sorted.done).await?)?);
    }
    if !sorted.retry.is_empty() {
        let retry = &sorted.retry;
        let query = sqlx::query(RETRY)
            .bind(column(retry, |(settlement, ..)| settlement.row.id))
            .bind(column(retry, |(settlement, ..)| settlement.row.target_no))
            .bind(column(retry, |(settlement, ..)| settlement.token.0))
            .bind(column(retry, |(_, after, ..)| interval(*after)))
            .bind(column(retry, |(_, _, counted, _)| number(*counted)))
            .bind(column(retry, |(.., error)| error.kind))
            .bind(column(retry, |(.., error)| storable(&error.text)));
        settled.extend(keys(&session.rows(query).await?)?);
    }
    if !sorted.discard.is_empty() {
        let discard = &sorted.discard;
        let query = sqlx::query(DISCARD)
            .bind(column(discard, |(settlement, _)| settlement.row.id))
            .bind(column(discard, |(settlement, _)| settlement.row.target_no))
            .bind(column(discard, |(settlement, _)| settlement.token.0))
            .bind(column(discard, |(_, receipt)| *receipt == Receipt::Keep))
            .bind(DISCARDED);
        settled.extend(keys(&session.rows(query).await?)?);
    }
    if !sorted.withdrawn.is_empty() {
        let withdrawn = &sorted.withdrawn;
        let query = sqlx::query(WITHDRAW)
            .bind(column(withdrawn, |settlement| settlement.row.id))
            .bind(column(withdrawn, |settlement| settlement.row.target_no))
            .bind(column(withdrawn, |settlement| settlement.token.0));
        settled.extend(keys(&session.rows(query).await?)?);
    }
    if !sorted.dead.is_empty() {
        let dead = &sorted.dead;
        let query = sqlx::query(DEAD)
            .bind(column(dead, |(settlement, ..)| settlement.row.id))
            .bind(column(dead, |(settlement, ..)| settlement.row.target_no))
            .bind(column(dead, |(settlement, ..)| settlement.token.0))
            .bind(column(dead, |_| new_id()))
            .bind(column(dead, |(_, counted, _)| number(*counted)))
            .bind(column(dead, |(.., error)| error.kind.as_str()))
            .bind(column(dead, |(.., error)| storable(&error.text)));
        settled.extend(keys(&session.rows(query).await?)?);
    }
    Ok(settled)
}

async fn done(session: &mut Session<'_>, done: &[(&Settlement, Receipt)]) -> Result<Vec<PgRow>, Fault> {
    let ids = column(done, |(settlement, _)| settlement.row.id);
    let target_nos = column(done, |(settlement, _)| settlement.row.target_no);
    let tokens = column(done, |(settlement, _)| settlement.token.0);
    let keep = column(done, |(_, receipt)| *receipt == Receipt::Keep);
    if keep.contains(&true) {
        session.rows(sqlx::query(DONE).bind(ids).bind(target_nos).bind(tokens).bind(keep)).await
    } else {
        session.rows(sqlx::query(DONE_WITHOUT_RECEIPT).bind(ids).bind(target_nos).bind(tokens)).await
    }
}

fn column<'a, S, T>(batch: &'a [S], read: impl FnMut(&'a S) -> T) -> Vec<T> {
    batch.iter().map(read).collect()
}

fn number(counted: Counted) -> i32 {
    i32::from(counted == Counted::Yes)
}

/// What a target said, without the one character that a text column does not hold.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn keys(rows: &[PgRow]) -> Result<Vec<RowKey>, Fault> {
    let key = |row: &PgRow| Ok(RowKey { id: row.try_get("row_id")?, target_no: row.try_get("target_no")? });
    rows.iter().map(key).collect()
}
