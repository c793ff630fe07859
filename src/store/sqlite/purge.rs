//! Deleting what is over, a bounded batch per transaction.

use std::sync::Arc;

use super::rows::earlier;
use super::{Inner, error};
use crate::domain::claim::ClaimKind;
use crate::store::Result;
use crate::store::status::{Purged, Retention};

/// Claims by the end of their lease or window.
const CLAIMS: &str = "
    DELETE FROM oncegate_deduplication WHERE key IN
        (SELECT key FROM oncegate_deduplication WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)
    RETURNING kind";
const CLAIMS_ANY: &str = "SELECT EXISTS (SELECT 1 FROM oncegate_deduplication WHERE expires_at <= ?1)";

const DEAD_LETTERS: &str = "
    DELETE FROM oncegate_dead_letters WHERE rowid IN
        (SELECT rowid FROM oncegate_dead_letters WHERE failed_at <= ?1 ORDER BY failed_at LIMIT ?2)
    RETURNING kind";
const DEAD_LETTERS_ANY: &str = "SELECT EXISTS (SELECT 1 FROM oncegate_dead_letters WHERE failed_at <= ?1)";

const RECEIPTS: &str = "
    DELETE FROM oncegate_receipts WHERE (row_id, target_no) IN
        (SELECT row_id, target_no FROM oncegate_receipts WHERE sent_at <= ?1 ORDER BY sent_at LIMIT ?2)
    RETURNING kind";
const RECEIPTS_ANY: &str = "SELECT EXISTS (SELECT 1 FROM oncegate_receipts WHERE sent_at <= ?1)";

/// Pauses that are over. There are few.
const PAUSES: &str = "DELETE FROM oncegate_targets WHERE paused_until <= ?1 RETURNING kind";
const PAUSES_ANY: &str = "SELECT EXISTS (SELECT 1 FROM oncegate_targets WHERE paused_until <= ?1)";

pub(super) async fn purge(store: &Arc<Inner>, limit: u32, keep: &Retention) -> Result<Purged> {
    let now = store.now();
    let claims = delete(store, CLAIMS_ANY, CLAIMS, now, limit).await?;
    let dead_letters =
        delete(store, DEAD_LETTERS_ANY, DEAD_LETTERS, earlier(now, keep.dead_letters), limit).await?;
    let receipts = delete(store, RECEIPTS_ANY, RECEIPTS, earlier(now, keep.receipts), limit).await?;
    delete(store, PAUSES_ANY, PAUSES, now, limit).await?;
    let handler_claims = claims.iter().filter(|&&kind| kind == ClaimKind::Handler as i16).count();
    let most = [&claims, &dead_letters, &receipts].map(Vec::len).into_iter().max().unwrap_or(0);
    Ok(Purged {
        handler_claims: handler_claims as u64,
        claims: (claims.len() - handler_claims) as u64,
        dead_letters: dead_letters.len() as u64,
        receipts: receipts.len() as u64,
        more: most >= limit as usize && limit > 0,
    })
}

/// Runs `sql` for what was over at `until`, if `any` is. Returns the kinds of the rows that are gone.
async fn delete(
    store: &Arc<Inner>,
    any: &'static str,
    sql: &'static str,
    until: i64,
    limit: u32,
) -> Result<Vec<i16>> {
    let mut reader = store.reader().await?;
    let found: bool = sqlx::query_scalar(any).bind(until).fetch_one(&mut *reader).await.map_err(error::of)?;
    drop(reader);
    if !found {
        return Ok(Vec::new());
    }
    store
        .write(move |connection, _| {
            Box::pin(async move {
                let query = sqlx::query_scalar(sql).bind(until).bind(limit);
                query.fetch_all(connection).await.map_err(error::of)
            })
        })
        .await
}

/// Every statement of this file, for the tests that prepare and explain them.
#[cfg(test)]
pub(super) fn statements() -> Vec<String> {
    [CLAIMS_ANY, CLAIMS, DEAD_LETTERS_ANY, DEAD_LETTERS, RECEIPTS_ANY, RECEIPTS, PAUSES_ANY, PAUSES]
        .map(str::to_owned)
        .into()
}
