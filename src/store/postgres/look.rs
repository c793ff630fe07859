//! The look of a node that has nothing else to do: one statement.
//!
//! A subquery reads the first entry of an index and no more. They are not written as EXISTS, for which the planner
//! may read a whole table, where it believes that a row is found soon.

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::deliveries::{Fronts, due_in_us};
use super::error::Fault;
use super::pool::Mode;
use super::rows::{self, interval, micros};
use crate::domain::delivery::Target;
use crate::store::Result;
use crate::store::look::Seen;
use crate::store::status::{Pause, Retention};

/// `$4` and `$5`: how long receipts and dead letters are kept, where it is asked for what is over.
pub(super) const LOOK: &str = concat!(
    "SELECT ARRAY(",
    due_in_us!(),
    ") AS due_in_us,
     ARRAY(SELECT t.kind FROM oncegate.targets t WHERE t.paused_until IS NULL OR t.paused_until > now()
           ORDER BY t.kind, t.name) AS paused_kinds,
     ARRAY(SELECT t.name FROM oncegate.targets t WHERE t.paused_until IS NULL OR t.paused_until > now()
           ORDER BY t.kind, t.name) AS paused_names,
     ARRAY(SELECT (extract(epoch FROM t.paused_until - now()) * 1000000)::bigint FROM oncegate.targets t
           WHERE t.paused_until IS NULL OR t.paused_until > now() ORDER BY t.kind, t.name) AS pauses_end_in_us,
     (SELECT true FROM oncegate.deliveries d WHERE d.deliver_by <= now() AND (d.state <> 2 OR d.due_at <= now())
      ORDER BY d.deliver_by LIMIT 1) IS TRUE AS expired,
     EXISTS (SELECT FROM oncegate.intake) AS intake,
     ($4::interval IS NOT NULL AND (
        (SELECT c.expires_at FROM oncegate.deduplication c ORDER BY c.expires_at LIMIT 1) <= now()
        OR (SELECT d.failed_at FROM oncegate.dead_letters d ORDER BY d.failed_at LIMIT 1) <= now() - $5::interval
        OR EXISTS (SELECT FROM oncegate.targets t WHERE t.paused_until <= now())
        OR EXISTS (SELECT FROM oncegate.receipts_default r WHERE r.sent_at <= now() - $4)
        OR ($4 < interval '1 day' AND EXISTS (SELECT FROM oncegate.receipts r WHERE r.sent_at <= now() - $4))
        OR EXISTS (SELECT FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
                   WHERE i.inhparent = 'oncegate.receipts'::regclass
                     AND c.relname < 'receipts_' || to_char((now() - $4) AT TIME ZONE 'UTC', 'YYYYMMDD'))
        OR EXISTS (SELECT FROM generate_series(0, 2) ahead WHERE to_regclass('oncegate.receipts_'
                       || to_char((now() AT TIME ZONE 'UTC')::date + ahead, 'YYYYMMDD')) IS NULL)
     )) IS TRUE AS over"
);

pub(super) async fn look(store: &Postgres, targets: &[Target], keep: Option<&Retention>) -> Result<Seen> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let fronts = Fronts::of(store, targets);
    let query = fronts
        .bind(sqlx::query(LOOK))
        .bind(keep.map(|keep| interval(keep.receipts)))
        .bind(keep.map(|keep| interval(keep.dead_letters)));
    let result = session.rows(query).await;
    let rows = session.finish(result).await?;
    let [row] = rows.as_slice() else { return Err(Fault::from(sqlx::Error::RowNotFound).into()) };
    Ok(read(store, &fronts, row)?)
}

fn read(store: &Postgres, fronts: &Fronts<'_>, row: &PgRow) -> Result<Seen, Fault> {
    let kinds: Vec<i16> = row.try_get("paused_kinds")?;
    let names: Vec<String> = row.try_get("paused_names")?;
    let ends_in: Vec<Option<i64>> = row.try_get("pauses_end_in_us")?;
    let paused = kinds.into_iter().zip(&names).zip(ends_in).map(|((kind, name), ends_in)| {
        Ok(Pause { target: rows::target_of(kind, name)?, ends_in: ends_in.map(micros) })
    });
    Ok(Seen {
        due: fronts.found(store, row.try_get("due_in_us")?),
        paused: paused.collect::<Result<_, Fault>>()?,
        expired: row.try_get("expired")?,
        intake: row.try_get("intake")?,
        over: row.try_get("over")?,
    })
}
