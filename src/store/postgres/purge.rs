//! Deleting what is over: a bounded batch per kind, each in a transaction of its own, skipping locked rows.
//!
//! Receipts that are kept for a day or longer are not deleted but dropped, a day at a time, so one may stay
//! for up to a day longer than asked for. Those that lie in the default partition, because no node made one for
//! their day in time, are deleted, and so are all where less than a day was asked for.

use std::time::Duration;

use chrono::{Days, NaiveDate};
use sqlx::{AssertSqlSafe, Row};

use super::Postgres;
use super::connect::LONG_STATEMENT_TIMEOUT;
use super::error::{Class, Fault};
use super::pool::Mode;
use super::rows::{count, interval};
use crate::domain::Timestamp;
use crate::domain::claim::ClaimKind;
use crate::store::Result;
use crate::store::status::{Purged, Retention};

/// Answers with the kinds of the claims that are gone.
pub(super) const CLAIMS: &str = "DELETE FROM oncegate.deduplication c WHERE c.ctid = ANY (ARRAY(
        SELECT e.ctid FROM oncegate.deduplication e WHERE e.expires_at <= now()
        ORDER BY e.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))
     RETURNING c.kind";

pub(super) const DEAD_LETTERS: &str = "DELETE FROM oncegate.dead_letters d WHERE d.ctid = ANY (ARRAY(
        SELECT e.ctid FROM oncegate.dead_letters e WHERE e.failed_at <= now() - $2::interval
        ORDER BY e.failed_at LIMIT $1 FOR UPDATE SKIP LOCKED))";

pub(super) const STRAY_RECEIPTS: &str = "DELETE FROM oncegate.receipts_default r WHERE r.ctid = ANY (ARRAY(
        SELECT e.ctid FROM oncegate.receipts_default e WHERE e.sent_at <= now() - $2::interval
        LIMIT $1 FOR UPDATE SKIP LOCKED))";

pub(super) const RECEIPTS: &str = "DELETE FROM oncegate.receipts r
     USING (SELECT e.row_id, e.target_no, e.sent_at FROM oncegate.receipts e
            WHERE e.sent_at <= now() - $2::interval LIMIT $1 FOR UPDATE SKIP LOCKED) over
     WHERE r.row_id = over.row_id AND r.target_no = over.target_no AND r.sent_at = over.sent_at";

/// Pauses that are over. There are few.
pub(super) const PAUSES: &str = "DELETE FROM oncegate.targets WHERE paused_until <= now()";

/// The partitions, about how many receipts each holds, and the server's time.
pub(super) const PARTITIONS: &str =
    "SELECT c.relname::text AS name, greatest(c.reltuples, 0)::bigint AS receipts, now() AS now
     FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'oncegate.receipts'::regclass";

const A_DAY: Duration = Duration::from_secs(86_400);

/// Partitions are made for so many days ahead.
const DAYS_AHEAD: u64 = 2;

pub(super) async fn purge(store: &Postgres, limit: u32, keep: &Retention) -> Result<Purged> {
    let claims = claims(store, limit).await?;
    let handler_claims = claims.iter().filter(|kind| **kind == ClaimKind::Handler as i16).count();
    let dead_letters = delete(store, DEAD_LETTERS, limit, keep.dead_letters).await?;
    let dropped = partitions(store, keep).await?;
    pauses(store).await?;
    let sql = if keep.receipts < A_DAY { RECEIPTS } else { STRAY_RECEIPTS };
    let stray = delete(store, sql, limit, keep.receipts).await?;
    let most = (claims.len() as u64).max(dead_letters).max(stray);
    Ok(Purged {
        handler_claims: handler_claims as u64,
        claims: (claims.len() - handler_claims) as u64,
        dead_letters,
        receipts: stray + dropped,
        more: limit > 0 && most >= u64::from(limit),
    })
}

async fn claims(store: &Postgres, limit: u32) -> Result<Vec<i16>> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = session.rows(sqlx::query(CLAIMS).bind(i64::from(limit))).await;
    let rows = session.finish(result).await?;
    Ok(rows.iter().map(|row| row.try_get(0).map_err(Fault::from)).collect::<Result<_, Fault>>()?)
}

async fn pauses(store: &Postgres) -> Result<()> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = session.execute(sqlx::query(PAUSES)).await;
    session.finish(result).await?;
    Ok(())
}

async fn delete(store: &Postgres, sql: &'static str, limit: u32, keep: Duration) -> Result<u64> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    session.timeout = LONG_STATEMENT_TIMEOUT;
    let result = session.execute(sqlx::query(sql).bind(i64::from(limit)).bind(interval(keep))).await;
    Ok(session.finish(result).await?)
}

/// Drops the days that are over and makes those that come. Both need a lock on the whole table for a moment;
/// one that is not had in time, or that another node was faster, is left for the next time. Returns about
/// how many receipts went.
async fn partitions(store: &Postgres, keep: &Retention) -> Result<u64> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = session.rows(sqlx::query(PARTITIONS)).await;
    let rows = session.finish(result).await?;
    let mut days = Vec::with_capacity(rows.len());
    let mut today = None;
    for row in &rows {
        let now: Timestamp = row.try_get("now").map_err(Fault::from)?;
        let receipts: i64 = row.try_get("receipts").map_err(Fault::from)?;
        today = Some((now, now.date_naive()));
        if let Some(day) = day_of(row.try_get("name").map_err(Fault::from)?) {
            days.push((day, count(receipts)));
        }
    }
    let Some((now, today)) = today else { return Ok(0) };
    let mut gone = 0;
    for (day, receipts) in &days {
        if is_over(*day, now, keep) && change(store, format!("DROP TABLE IF EXISTS {}", table(*day))).await? {
            gone += receipts;
        }
    }
    for ahead in 0..=DAYS_AHEAD {
        let day = today + Days::new(ahead);
        if !days.iter().any(|(existing, _)| *existing == day) {
            let sql = format!(
                "CREATE TABLE IF NOT EXISTS {} PARTITION OF oncegate.receipts \
                 FOR VALUES FROM ('{day} 00:00:00+00') TO ('{} 00:00:00+00')",
                table(day),
                day + Days::new(1)
            );
            change(store, sql).await?;
        }
    }
    Ok(gone)
}

/// Whether it was done. Not so when the default partition has rows of a day that is to be made (they stay
/// where they are), when the lock was not had in time, or when another node did the same just now.
async fn change(store: &Postgres, sql: String) -> Result<bool> {
    let mut session = store.pool.session(Mode::Transaction).await?;
    let result = session.execute(sqlx::query(AssertSqlSafe(sql.clone()))).await;
    match session.finish(result).await {
        Ok(_) => Ok(true),
        Err(fault) if matches!(fault.class, Class::Lost | Class::NotSent | Class::ReadOnly) => {
            Err(fault.into())
        }
        Err(fault) => {
            tracing::debug!(sql, detail = %fault.error.detail, "a day of receipts is left as it is");
            Ok(false)
        }
    }
}

/// Only from a day that was parsed, so nothing else can get into a statement.
fn table(day: NaiveDate) -> String {
    format!("oncegate.receipts_{}", day.format("%Y%m%d"))
}

fn day_of(partition: &str) -> Option<NaiveDate> {
    NaiveDate::parse_from_str(partition.strip_prefix("receipts_")?, "%Y%m%d").ok()
}

/// Whether every receipt of `day` is older than asked for.
fn is_over(day: NaiveDate, now: Timestamp, keep: &Retention) -> bool {
    let end = (day + Days::new(1)).and_time(chrono::NaiveTime::MIN).and_utc();
    chrono::Duration::from_std(keep.receipts)
        .ok()
        .and_then(|keep| now.checked_sub_signed(keep))
        .is_some_and(|oldest| end <= oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_dropped_when_its_last_receipt_is_over() {
        let keep = Retention { receipts: Duration::from_secs(86_400), dead_letters: Duration::MAX };
        let at = |text: &str| chrono::DateTime::parse_from_rfc3339(text).unwrap().to_utc();
        let day = day_of("receipts_20260301").unwrap();
        assert!(!is_over(day, at("2026-03-02T23:59:59Z"), &keep));
        assert!(is_over(day, at("2026-03-03T00:00:00Z"), &keep));
        assert!(!is_over(day, at("2026-03-03T00:00:00Z"), &Retention { receipts: Duration::MAX, ..keep }));
        assert_eq!(table(day), "oncegate.receipts_20260301");
    }

    #[test]
    fn what_is_not_a_day_is_left_alone() {
        assert_eq!(day_of("receipts_default"), None);
        assert_eq!(day_of("other"), None);
    }
}
