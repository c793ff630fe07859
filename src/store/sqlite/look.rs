//! The look of a node that has nothing else to do: one statement.

use super::deliveries::asked;
use super::rows::{Columns, corrupt, earlier, target_of, until};
use super::{Inner, error};
use crate::domain::delivery::Target;
use crate::store::Result;
use crate::store::look::Seen;
use crate::store::status::{Pause, Retention};

/// `?1` is a list of [kind, name] pairs, `?2` now. `?3` to `?5`: of claims, dead letters and receipts, what is from
/// before is over; null where that is not asked for.
const LOOK: &str = "
    SELECT (SELECT json_group_array((SELECT min(due_at) FROM oncegate_deliveries
                                     WHERE kind = json_extract(asked.value, '$[0]')
                                       AND target = json_extract(asked.value, '$[1]'))
                                    ORDER BY asked.key)
            FROM json_each(?1) AS asked) AS due,
           (SELECT json_group_array(json_array(kind, name, paused_until) ORDER BY kind, name) FROM oncegate_targets
            WHERE paused_until IS NULL OR paused_until > ?2) AS paused,
           EXISTS (SELECT 1 FROM oncegate_deliveries
                   WHERE deliver_by <= ?2 AND (state <> 2 OR due_at <= ?2)) AS expired,
           EXISTS (SELECT 1 FROM oncegate_intake WHERE seq > 0) AS intake,
           EXISTS (SELECT 1 FROM oncegate_deduplication WHERE expires_at <= ?3)
               OR EXISTS (SELECT 1 FROM oncegate_dead_letters WHERE failed_at <= ?4)
               OR EXISTS (SELECT 1 FROM oncegate_receipts WHERE sent_at <= ?5)
               OR EXISTS (SELECT 1 FROM oncegate_targets WHERE paused_until <= ?3) AS over";

pub(super) async fn look(store: &Inner, targets: &[Target], keep: Option<&Retention>) -> Result<Seen> {
    let mut reader = store.reader().await?;
    let now = store.now();
    let row = sqlx::query(LOOK)
        .bind(asked(targets)?)
        .bind(now)
        .bind(keep.map(|_| now))
        .bind(keep.map(|keep| earlier(now, keep.dead_letters)))
        .bind(keep.map(|keep| earlier(now, keep.receipts)))
        .fetch_one(&mut *reader)
        .await
        .map_err(error::of)?;
    let unreadable = |error: serde_json::Error| corrupt(error.to_string());
    let due: Vec<Option<i64>> = serde_json::from_str(&row.text("due")?).map_err(unreadable)?;
    let paused: Vec<(i16, String, Option<i64>)> =
        serde_json::from_str(&row.text("paused")?).map_err(unreadable)?;
    Ok(Seen {
        due: due.into_iter().map(|at| at.map(|at| until(at, now))).collect(),
        paused: paused
            .iter()
            .map(|(kind, name, end)| {
                Ok(Pause { target: target_of(*kind, name)?, ends_in: end.map(|end| until(end, now)) })
            })
            .collect::<Result<_>>()?,
        expired: row.int("expired")? != 0,
        intake: row.int("intake")? != 0,
        over: row.int("over")? != 0,
    })
}

/// Every statement of this file, for the tests that prepare and explain them.
#[cfg(test)]
pub(super) fn statements() -> Vec<String> {
    vec![LOOK.to_owned()]
}
