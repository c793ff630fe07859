//! Intake: rows that the users' transactions committed, moved on in one transaction.
//!
//! One node moves at a time (a lock that ends with its transaction, and that is not waited for), so that the rows
//! of one transaction stay in their order. Rows are found by what is visible, from the lowest number on: a
//! transaction that commits late loses nothing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use tokio::sync::Notify;

use super::error::{Class, Fault};
use super::pool::{Mode, Session};
use super::rows::stored_id;
use super::{Postgres, accept};
use crate::domain::Random;
use crate::domain::message::{Draft, DraftDeduplication, Envelope};
use crate::store::accept::{Message, Outcome};
use crate::store::deliveries::Receipt;
use crate::store::intake::{DUPLICATE_NO, Dead, Judge, Judged, Limits, Moved, Notifying, Row};
use crate::store::{ErrorKind, Result};

pub(super) const ANY: &str = "SELECT EXISTS (SELECT FROM oncegate.intake)";

/// Any number that nobody else uses.
pub(super) const LOCK: &str = "SELECT pg_try_advisory_xact_lock(7310298640215437)";

pub(super) const HEAD: &str = "WITH head AS (
        SELECT i.seq FROM oncegate.intake i WHERE i.seq > $1 ORDER BY i.seq LIMIT $2 FOR UPDATE SKIP LOCKED
    )
    SELECT t.* FROM (
        SELECT i.seq, i.tenant, i.id, i.type, i.source, i.subject, i.headers, i.deduplication_id, i.partition_key,
            i.correlation_id, i.causation_id, i.content_type, i.deliver_at, i.deliver_by, i.destinations, i.data,
            i.written_at,
            sum(octet_length(i.data)) OVER (ORDER BY i.seq) - octet_length(i.data) AS before
        FROM head JOIN oncegate.intake i ON i.seq = head.seq
    ) t WHERE t.before < $3 ORDER BY t.seq";

pub(super) const DELETE: &str = "DELETE FROM oncegate.intake WHERE seq = ANY($1)";

pub(super) const BURY: &str = "INSERT INTO oncegate.dead_letters
        (id, row_id, target_no, kind, target, attempts, tenant, message_id, type, deduplication_id, partition_key,
         correlation_id, deliver_at, deliver_by, accepted_at, error_kind, error_text, failed_at, envelope, body)
     VALUES ($1, $2, 0, 0, $3, 0, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, now(), $15::text::json, $16)";

/// Receipts of duplicates: `$1` their row ids, `$2` the first messages' ids.
pub(super) const DUPLICATES: &str = "INSERT INTO oncegate.receipts
        (row_id, target_no, kind, target, attempts, tenant, message_id, type, deduplication_id, accepted_at, sent_at)
     SELECT t.row_id, $7, 0, t.first_id, 0, t.tenant, t.message_id, t.type, t.deduplication_id, now(), now()
     FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
        AS t(row_id, first_id, tenant, message_id, type, deduplication_id)";

pub(super) const NOTIFIES: &str = "SELECT tgenabled <> 'D' FROM pg_trigger
     WHERE tgrelid = 'oncegate.intake'::regclass AND tgname = 'intake_notify'";
const NOTIFY_ON: &str = "ALTER TABLE oncegate.intake ENABLE TRIGGER intake_notify";
const NOTIFY_OFF: &str = "ALTER TABLE oncegate.intake DISABLE TRIGGER intake_notify";
const LISTEN: &str = "LISTEN oncegate_intake";

pub(super) const TENANT: &str = "INSERT INTO oncegate.publishers (role, tenant) VALUES ($1, $2)
     ON CONFLICT (role) DO UPDATE SET tenant = excluded.tenant";
/// The privileges of `oncegate_publisher`, given to the role itself: that role may be missing, and who may hand it
/// out is another question.
pub(super) const GRANT: &str = "DO $$
    DECLARE
        role text := current_setting('oncegate.role');
    BEGIN
        EXECUTE format('GRANT USAGE ON SCHEMA oncegate TO %I', role);
        EXECUTE format('GRANT INSERT ON oncegate.outbox TO %I', role);
        EXECUTE format('GRANT EXECUTE ON FUNCTION oncegate.publish, oncegate.publish_bytes, oncegate.publish_many TO %I', role);
    END $$";
pub(super) const NAME_ROLE: &str = "SELECT set_config('oncegate.role', $1, true)";

pub(super) async fn waits(store: &Postgres) -> Result<bool> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = flag(&mut session, ANY).await;
    Ok(session.finish(result).await?)
}

async fn flag(session: &mut Session<'_>, sql: &'static str) -> Result<bool, Fault> {
    let rows = session.rows(sqlx::query(sql)).await?;
    rows.first().map_or(Ok(false), |row| Ok(row.try_get(0)?))
}

/// Up to where rows were seen that had to be left, so that those behind them are not kept from their turn.
#[derive(Debug, Default)]
pub(super) struct Passed(Mutex<Option<(i64, Instant)>>);

/// How long they are passed over at most, while others come after them.
const PASS_OVER: Duration = Duration::from_secs(10);

impl Passed {
    fn get(&self) -> i64 {
        let passed = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        passed.filter(|(_, since)| since.elapsed() < PASS_OVER).map_or(0, |(seq, _)| seq)
    }

    /// A look from `start` on went up to `seq`.
    fn set(&self, start: i64, seq: i64) {
        let mut passed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = passed.map(|(_, since)| since).filter(|_| start > 0);
        *passed = Some((seq, since.unwrap_or_else(Instant::now)));
    }

    fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

pub(super) async fn move_on(store: &Postgres, limits: Limits, judge: Arc<dyn Judge>) -> Result<Moved> {
    let start = store.intake_passed.get();
    let moved = move_behind(store, start, limits, judge.as_ref()).await?;
    if start == 0 || moved.rows() + moved.left > 0 {
        return Ok(moved);
    }
    // There is nothing behind those that were left: it is their turn.
    store.intake_passed.clear();
    move_behind(store, 0, limits, judge.as_ref()).await
}

/// Moves rows whose number is above `start`.
async fn move_behind(store: &Postgres, start: i64, limits: Limits, judge: &dyn Judge) -> Result<Moved> {
    let mut after = start;
    let moved = match group(store, &mut after, limits, judge).await {
        Err(fault) if matches!(fault.class, Class::Data | Class::Contention) => {
            after = start;
            one_by_one(store, &mut after, limits, judge).await?
        }
        result => result?,
    };
    if start > 0 || moved.left > 0 {
        store.intake_passed.set(start, after);
    }
    Ok(moved)
}

/// So that only the row whose key is held waits, and only what the database refuses is given up on.
async fn one_by_one(store: &Postgres, after: &mut i64, limits: Limits, judge: &dyn Judge) -> Result<Moved> {
    let mut moved = Moved::default();
    for _ in 0..limits.rows.min(SINGLES) {
        let before = *after;
        match group(store, after, Limits { rows: 1, ..limits }, judge).await {
            Ok(one) if one.rows() == 0 => break,
            Ok(one) => moved.add(one),
            Err(fault) if fault.class == Class::Contention => moved.left += 1,
            Err(fault) if fault.class == Class::Data => {
                *after = before;
                let bury = Bury(format!("the store cannot hold it: {}", fault.error.detail));
                moved.add(group(store, after, Limits { rows: 1, ..limits }, &bury).await?);
            }
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(moved)
}

/// Each may wait for a lock; the rest has to wait for the next group.
const SINGLES: u32 = 50;

/// Gives up on everything.
struct Bury(String);

impl Judge for Bury {
    fn judge(&self, rows: Vec<Row>) -> Judged {
        Judged::unreadable(rows, &self.0)
    }
}

/// Moves the first rows after `after`, and sets it to the last one's number.
async fn group(store: &Postgres, after: &mut i64, limits: Limits, judge: &dyn Judge) -> Result<Moved, Fault> {
    let mut session = store.pool.session(Mode::Transaction).await?;
    let result = write(&mut session, store, after, limits, judge).await;
    session.finish(result).await
}

async fn write(
    session: &mut Session<'_>,
    store: &Postgres,
    after: &mut i64,
    limits: Limits,
    judge: &dyn Judge,
) -> Result<Moved, Fault> {
    if !flag(session, LOCK).await? {
        return Ok(Moved::default()); // another node is at it
    }
    let query = sqlx::query(HEAD).bind(*after).bind(i64::from(limits.rows));
    let rows = session.rows(query.bind(i64::try_from(limits.bytes).unwrap_or(i64::MAX))).await?;
    let rows: Vec<Row> = rows.iter().map(read).collect::<Result<_, Fault>>()?;
    let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
    let Some(last) = seqs.last() else { return Ok(Moved::default()) };
    *after = *last;
    let judged = judge.judge(rows);
    let mut moved = Moved::default();
    if !judged.messages.is_empty() {
        let Outcome::Stored(outcomes) = accept::within(session, store, &judged.request()).await? else {
            return Err(internal("a request without a claim was refused"));
        };
        moved.accepted = judged.messages.into_iter().zip(outcomes).collect();
    }
    if judged.receipts == Receipt::Keep {
        tell_duplicates(session, &moved.duplicates()).await?;
    }
    for dead in &judged.dead {
        bury(session, store, dead).await?;
    }
    moved.dead = judged.dead;
    let gone = session.execute(sqlx::query(DELETE).bind(seqs)).await?;
    if gone != moved.rows() as u64 {
        return Err(internal("some rows of the intake were not judged"));
    }
    Ok(moved)
}

fn internal(text: &str) -> Fault {
    Fault::new(Class::Other, ErrorKind::Internal, text)
}

async fn tell_duplicates(session: &mut Session<'_>, duplicates: &[(&Message, &str)]) -> Result<(), Fault> {
    if duplicates.is_empty() {
        return Ok(());
    }
    let texts = |of: fn(&Message) -> Option<&str>| -> Vec<Option<String>> {
        duplicates.iter().map(|(stored, _)| of(stored).map(str::to_owned)).collect()
    };
    let query = sqlx::query(DUPLICATES)
        .bind(duplicates.iter().map(|(stored, _)| stored.row_id).collect::<Vec<_>>())
        .bind(duplicates.iter().map(|(_, first)| (*first).to_owned()).collect::<Vec<_>>())
        .bind(texts(|stored| Some(&stored.message.tenant)))
        .bind(texts(|stored| stored_id(stored.row_id, &stored.message.id)))
        .bind(texts(|stored| Some(&stored.message.kind)))
        .bind(texts(|stored| stored.message.deduplication_id.as_deref()))
        .bind(DUPLICATE_NO);
    session.execute(query).await?;
    Ok(())
}

async fn bury(session: &mut Session<'_>, store: &Postgres, dead: &Dead) -> Result<(), Fault> {
    let (row, draft) = (&dead.row, &dead.row.draft);
    let now = store.pool.clock.now();
    let envelope = serde_json::to_string(&draft.envelope).unwrap_or_else(|_| "{}".into());
    let query = sqlx::query(BURY)
        .bind(Random.uuid_v7(now))
        .bind(Random.uuid_v7(now))
        .bind(dead.target().name.to_string())
        .bind(row.tenant.clone())
        .bind(draft.id.clone())
        .bind(draft.kind.clone())
        .bind(dead.deduplication_id().map(str::to_owned))
        .bind(draft.partition_key.clone())
        .bind(draft.correlation_id.clone())
        .bind(draft.deliver_at)
        .bind(draft.deliver_by)
        .bind(row.written_at)
        .bind(dead.kind.as_str())
        .bind(dead.text.replace('\0', "\u{fffd}"))
        .bind(envelope)
        .bind(draft.body.to_vec());
    session.execute(query).await?;
    Ok(())
}

fn read(row: &PgRow) -> Result<Row, Fault> {
    let mut draft = Draft {
        id: row.try_get("id")?,
        kind: row.try_get("type")?,
        body: Bytes::from(row.try_get::<Vec<u8>, _>("data")?),
        deduplication: DraftDeduplication::said(row.try_get("deduplication_id")?),
        partition_key: row.try_get("partition_key")?,
        correlation_id: row.try_get("correlation_id")?,
        deliver_at: row.try_get("deliver_at")?,
        delay: None,
        deliver_by: row.try_get("deliver_by")?,
        destinations: row.try_get("destinations")?,
        envelope: Envelope {
            source: row.try_get("source")?,
            subject: row.try_get("subject")?,
            content_type: row.try_get("content_type")?,
            causation_id: row.try_get("causation_id")?,
            ..Envelope::default()
        },
        ..Draft::default()
    };
    let mut problem = None;
    let headers: Option<Json<serde_json::Map<String, serde_json::Value>>> = row.try_get("headers")?;
    for (name, value) in headers.into_iter().flat_map(|Json(headers)| headers) {
        match value {
            serde_json::Value::String(text) => {
                draft.envelope.headers.insert(name.to_ascii_lowercase(), text);
            }
            _ => problem = Some("headers must be a JSON object of strings".to_owned()),
        }
    }
    Ok(Row {
        seq: row.try_get("seq")?,
        tenant: row.try_get("tenant")?,
        draft,
        problem,
        written_at: row.try_get("written_at")?,
    })
}

/// Switches the NOTIFY of the users' transactions. Waits for those that are open, a little.
pub(super) async fn set_notify(store: &Postgres, notify: Notifying) -> Result<()> {
    let on = notify == Notifying::On;
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = async {
        if flag(&mut session, NOTIFIES).await? != on {
            session.command(if on { NOTIFY_ON } else { NOTIFY_OFF }).await?;
        }
        Ok(())
    }
    .await;
    Ok(session.finish(result).await?)
}

/// Tells `heard` of every NOTIFY, until the connection fails.
pub(super) async fn listen(store: &Postgres, heard: Arc<Notify>) -> Result<()> {
    let mut listener = store.pool.listener().await?;
    listener.listen("oncegate_intake").await.map_err(Fault::from)?;
    heard.notify_one();
    loop {
        // A connection that is silent is asked now and then whether it still is one.
        match tokio::time::timeout(Duration::from_secs(30), listener.try_recv()).await {
            Ok(Ok(Some(_))) => heard.notify_one(),
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) => return Err(Fault::from(error).into()),
            Err(_) => {
                sqlx::raw_sql(LISTEN).execute(&mut listener).await.map_err(Fault::from)?;
            }
        }
    }
}

/// Lets `role` publish, for `tenant`.
pub(super) async fn grant(store: &Postgres, role: String, tenant: String) -> Result<()> {
    let mut session = store.pool.session(Mode::Transaction).await?;
    let result = async {
        session.rows(sqlx::query(NAME_ROLE).bind(role.clone())).await?;
        session.command(GRANT).await?;
        session.execute(sqlx::query(TENANT).bind(role).bind(tenant)).await?;
        Ok(())
    }
    .await;
    Ok(session.finish(result).await?)
}
