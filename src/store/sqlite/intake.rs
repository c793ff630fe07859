//! Intake: rows that other processes wrote, moved on in one transaction.

use std::sync::Arc;

use bytes::Bytes;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Connection, Row as _, ValueRef as _};

use super::rows::{Columns, micros, moment, stored_id};
use super::{Inner, accept, error};
use crate::domain::fields;
use crate::domain::message::{Draft, DraftDeduplication, Envelope};
use crate::domain::{Random, Timestamp};
use crate::store::accept::{Message, Outcome};
use crate::store::deliveries::Receipt;
use crate::store::intake::{DUPLICATE_NO, Dead, Judge, Judged, Limits, Moved, Row};
use crate::store::{Error, ErrorKind, Result};

const ANY: &str = "SELECT EXISTS (SELECT 1 FROM oncegate_intake WHERE seq > 0)";

const HEAD: &str = "
    SELECT seq, tenant, id, type, source, subject, headers, deduplication_id, partition_key, correlation_id,
           causation_id, content_type, deliver_at, deliver_by, destinations, CAST(data AS BLOB) AS data
    FROM oncegate_intake WHERE seq > ?1 ORDER BY seq LIMIT ?2";

const DELETE: &str = "DELETE FROM oncegate_intake WHERE seq BETWEEN ?1 AND ?2";

const BURY: &str = "
    INSERT INTO oncegate_dead_letters
        (id, row_id, target_no, kind, target, attempts, deliver_at, deliver_by, claim_key, tenant, message_id, type,
         deduplication_id, partition_key, correlation_id, accepted_at, failed_at, error_kind, error_text, envelope,
         body)
    VALUES (?1, ?2, 0, 0, ?3, 0, ?4, ?5, NULL, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)";

/// The receipt of a duplicate: `?3` is the first message's id.
const DUPLICATE: &str = "
    INSERT INTO oncegate_receipts
        (row_id, target_no, kind, target, tenant, message_id, type, deduplication_id, attempts, accepted_at, sent_at)
    VALUES (?1, ?2, 0, ?3, ?4, ?5, ?6, ?7, 0, ?8, ?8)";

pub(super) async fn waits(store: &Inner) -> Result<bool> {
    let mut reader = store.reader().await?;
    sqlx::query_scalar(ANY).fetch_one(&mut *reader).await.map_err(error::of)
}

pub(super) async fn move_on(store: &Arc<Inner>, limits: Limits, judge: Arc<dyn Judge>) -> Result<Moved> {
    store
        .write(move |connection, now| {
            Box::pin(async move { group(connection, now, limits, judge.as_ref()).await })
        })
        .await
}

async fn group(
    connection: &mut SqliteConnection,
    now: i64,
    limits: Limits,
    judge: &dyn Judge,
) -> Result<Moved> {
    let rows = head(connection, now, 0, limits).await?;
    match guarded(connection, now, rows.clone(), judge).await {
        Err(error) if is_of_the_data(&error) => {}
        result => return result,
    }
    // One by one, so that only what the database refuses is given up on.
    let mut moved = Moved::default();
    for row in rows {
        let one = match guarded(connection, now, vec![row.clone()], judge).await {
            Err(error) if is_of_the_data(&error) => {
                let text = format!("the store cannot hold it: {}", error.detail);
                guarded(connection, now, vec![row], &Bury(text)).await?
            }
            result => result?,
        };
        moved.add(one);
    }
    Ok(moved)
}

fn is_of_the_data(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::InvalidData | ErrorKind::Internal | ErrorKind::Corrupt)
}

/// Gives up on everything.
struct Bury(String);

impl Judge for Bury {
    fn judge(&self, rows: Vec<Row>) -> Judged {
        Judged::unreadable(rows, &self.0)
    }
}

/// Moves these rows under a savepoint.
async fn guarded(
    connection: &mut SqliteConnection,
    now: i64,
    rows: Vec<Row>,
    judge: &dyn Judge,
) -> Result<Moved> {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(Moved::default()) };
    let (first, last) = (first.seq, last.seq);
    let mut savepoint = connection.begin().await.map_err(error::of)?;
    match write(&mut savepoint, now, judge.judge(rows), first, last).await {
        Ok(moved) => {
            savepoint.commit().await.map_err(error::of)?;
            Ok(moved)
        }
        Err(failed) => match savepoint.rollback().await {
            Ok(()) => Err(failed),
            // SQLite has ended the whole transaction, as it does when the disk is full.
            Err(ended) => {
                Err(Error::new(ErrorKind::Unavailable, format!("{}; then: {ended}", failed.detail)))
            }
        },
    }
}

async fn write(
    connection: &mut SqliteConnection,
    now: i64,
    judged: Judged,
    first: i64,
    last: i64,
) -> Result<Moved> {
    let mut moved = Moved::default();
    if !judged.messages.is_empty() {
        let request = judged.request();
        request.check_storable()?;
        let Some(Outcome::Stored(outcomes)) = accept::write_group(connection, now, &[&request]).await?.pop()
        else {
            return Err(Error::new(ErrorKind::Internal, "a request without a claim was refused"));
        };
        moved.accepted = judged.messages.into_iter().zip(outcomes).collect();
    }
    if judged.receipts == Receipt::Keep {
        for (stored, first) in moved.duplicates() {
            tell_duplicate(connection, now, stored, first).await?;
        }
    }
    for dead in &judged.dead {
        bury(connection, now, dead).await?;
    }
    moved.dead = judged.dead;
    // Whoever else writes waits: nothing came in between.
    let query = sqlx::query(DELETE).bind(first).bind(last);
    let gone = query.execute(connection).await.map_err(error::of)?.rows_affected();
    if gone != moved.rows() as u64 {
        return Err(Error::new(ErrorKind::Internal, "some rows of the intake were not judged"));
    }
    Ok(moved)
}

async fn tell_duplicate(
    connection: &mut SqliteConnection,
    now: i64,
    stored: &Message,
    first: &str,
) -> Result<()> {
    let message = &stored.message;
    sqlx::query(DUPLICATE)
        .bind(stored.row_id)
        .bind(DUPLICATE_NO)
        .bind(first)
        .bind(&message.tenant)
        .bind(stored_id(stored.row_id, &message.id))
        .bind(&message.kind)
        .bind(&message.deduplication_id)
        .bind(now)
        .execute(connection)
        .await
        .map_err(error::of)?;
    Ok(())
}

async fn bury(connection: &mut SqliteConnection, now: i64, dead: &Dead) -> Result<()> {
    let (row, draft) = (&dead.row, &dead.row.draft);
    let row_id = Random.uuid_v7(moment(now)?);
    let envelope = serde_json::to_string(&draft.envelope).unwrap_or_else(|_| "{}".into());
    sqlx::query(BURY)
        .bind(Random.uuid_v7(moment(now)?))
        .bind(row_id)
        .bind(dead.target().name.to_string())
        .bind(draft.deliver_at.map(micros))
        .bind(draft.deliver_by.map(micros))
        .bind(&row.tenant)
        .bind(&draft.id)
        .bind(&draft.kind)
        .bind(dead.deduplication_id())
        .bind(&draft.partition_key)
        .bind(&draft.correlation_id)
        .bind(micros(row.written_at))
        .bind(now)
        .bind(dead.kind.as_str())
        .bind(&dead.text)
        .bind(envelope)
        .bind(draft.body.as_ref())
        .execute(connection)
        .await
        .map_err(error::of)?;
    Ok(())
}

async fn head(connection: &mut SqliteConnection, now: i64, after: i64, limits: Limits) -> Result<Vec<Row>> {
    let query = sqlx::query(HEAD).bind(after).bind(limits.rows);
    let (mut rows, mut bytes) = (Vec::new(), 0);
    for row in query.fetch_all(connection).await.map_err(error::of)? {
        let row = read(&row, moment(now)?)?;
        bytes += row.draft.body.len() as u64;
        if bytes > limits.bytes && !rows.is_empty() {
            break;
        }
        rows.push(row);
    }
    Ok(rows)
}

/// A text, whatever bytes stand in it.
fn text(row: &SqliteRow, name: &str) -> Result<Option<String>> {
    let raw = row.try_get_raw(name).map_err(error::of)?;
    if raw.is_null() {
        return Ok(None);
    }
    let bytes: Vec<u8> = row.try_get_unchecked(name).map_err(error::of)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

fn read(row: &SqliteRow, now: Timestamp) -> Result<Row> {
    let mut problems = Vec::new();
    let mut time = |name: &str| -> Result<Option<Timestamp>> {
        let Some(text) = text(row, name)? else { return Ok(None) };
        let read = fields::time(&text);
        Ok(read.map_err(|problem| problems.push(format!("{name} {problem}"))).ok())
    };
    let (deliver_at, deliver_by) = (time("deliver_at")?, time("deliver_by")?);
    let mut draft = Draft {
        id: text(row, "id")?,
        kind: text(row, "type")?.unwrap_or_default(),
        body: Bytes::from(row.try_get::<Vec<u8>, _>("data").map_err(error::of)?),
        deduplication: DraftDeduplication::said(text(row, "deduplication_id")?),
        partition_key: text(row, "partition_key")?,
        correlation_id: text(row, "correlation_id")?,
        deliver_at,
        delay: None,
        deliver_by,
        destinations: None,
        envelope: Envelope {
            source: text(row, "source")?,
            subject: text(row, "subject")?,
            content_type: text(row, "content_type")?,
            causation_id: text(row, "causation_id")?,
            ..Envelope::default()
        },
        ..Draft::default()
    };
    if let Some(json) = text(row, "headers")? {
        match serde_json::from_str::<std::collections::BTreeMap<String, String>>(&json) {
            Ok(headers) => {
                draft.envelope.headers =
                    headers.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
            }
            Err(_) => problems.push("headers must be a JSON object of strings".into()),
        }
    }
    if let Some(json) = text(row, "destinations")? {
        match serde_json::from_str(&json) {
            Ok(names) => draft.destinations = Some(names),
            Err(_) => problems.push("destinations must be a JSON array of strings".into()),
        }
    }
    let problem = (!problems.is_empty()).then(|| problems.join("; "));
    Ok(Row {
        seq: row.int("seq")?,
        tenant: text(row, "tenant")?.unwrap_or_default(),
        draft,
        problem,
        written_at: now,
    })
}

/// Every statement of this file, for the tests that prepare and explain them.
#[cfg(test)]
pub(super) fn statements() -> Vec<String> {
    [ANY, HEAD, DELETE, BURY, DUPLICATE].map(str::to_owned).into()
}
