//! Dead letters. Those of a page are read, those of a replay are moved, by indexes that begin with the tenant.

use std::sync::Arc;

use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Sqlite as Engine, SqliteConnection};
use uuid::Uuid;

use super::rows::{self, Columns, corrupt, micros};
use super::{Inner, error};
use crate::domain::Message;
use crate::domain::delivery::{DeadKind, Target};
use crate::store::dead_letters::{
    Claims, Cursor, DeadLetter, Duplicates, Edit, Filter, GENERATION, Group, Hindrance, Page, Query, Replay,
    Selection, Why,
};
use crate::store::{Error, ErrorKind, Result};

/// What every statement of a selection binds, in this order, whether it asks for it or not.
const KIND: &str = "AND d.type = ?2 ";
const TARGET: &str = "AND d.kind = ?3 AND d.target = ?4 ";
const ERROR_KIND: &str = "AND d.error_kind = ?5 ";
const FROM: &str = "AND d.failed_at >= ?6 ";
const UNTIL: &str = "AND d.failed_at < ?7 ";
const IDS: &str = "AND d.id IN (SELECT unhex(value) FROM json_each(?8)) ";

/// The targets that there are, as an array of texts.
const HAS_TARGET: &str = "(d.kind || ' ' || d.target) IN (SELECT value FROM json_each(?9))";

/// Its message's claim names the row id, which its replays keep.
const IS_DUPLICATE: &str = "
    EXISTS (SELECT 1 FROM oncegate_deduplication AS c
            WHERE c.key = d.claim_key AND c.row_id IS NOT d.row_id AND c.expires_at > ?10)";

const COLUMNS: &str = "
    d.id, d.row_id, d.target_no, d.kind, d.target, d.attempts, d.deliver_at, d.deliver_by, d.tenant, d.message_id,
    d.type, d.deduplication_id, d.partition_key, d.correlation_id, d.accepted_at, d.failed_at, d.error_kind,
    d.error_text, d.envelope, d.body";

/// A page; each with how many bytes of bodies come before it, and how many were found with one to spare. Bodies
/// are read only of those that are shown.
const LIST: &str = "
    SELECT {columns}, asked_page.found FROM (
        SELECT asked.rowid AS place, asked.failed_at, asked.id, count(*) OVER () AS found,
               sum(asked.bytes) OVER (ORDER BY asked.failed_at, asked.id) - asked.bytes AS bytes_before
        FROM (SELECT d.rowid, d.failed_at, d.id, length(d.body) AS bytes FROM oncegate_dead_letters AS d
              WHERE d.tenant = ?1 {selected}{after}ORDER BY d.failed_at, d.id LIMIT ?11) AS asked
    ) AS asked_page CROSS JOIN oncegate_dead_letters AS d ON d.rowid = asked_page.place
    WHERE asked_page.bytes_before < ?12 ORDER BY asked_page.failed_at, asked_page.id";
const AFTER: &str = "AND (d.failed_at, d.id) > (?9, ?10) ";

const ONE: &str = "SELECT {columns} FROM oncegate_dead_letters AS d WHERE d.id = ?1 AND d.tenant = ?2";

const EDIT: &str = "UPDATE oncegate_dead_letters SET envelope = ?2, body = ?3 WHERE id = ?1";

const PICK: &str = "
    SELECT d.rowid AS place, d.kind, d.target FROM oncegate_dead_letters AS d
    WHERE d.tenant = ?1 {selected}AND {has_target} AND (?11 OR NOT {is_duplicate})
    ORDER BY d.accepted_at, d.row_id, d.target_no LIMIT ?12";

/// `?1`: the places, first to be due first. `?2`: now. `?3`: how many they are.
const PUT: &str = "
    INSERT INTO oncegate_deliveries
        (row_id, target_no, kind, target, state, due_at, token, taken, attempts, deliver_at, claim_key, tenant,
         message_id, type, deduplication_id, partition_key, correlation_id, accepted_at, envelope, body, forced,
         order_key, turn)
    SELECT d.row_id, (d.target_no % ?4) + ?4 * (1 + (d.target_no / ?4) % 31), d.kind, d.target, 1,
           ?2 - (?3 - 1 - picked.key), 0, 0, 0, d.deliver_at, d.claim_key, d.tenant, d.message_id, d.type,
           d.deduplication_id, d.partition_key, d.correlation_id, d.accepted_at, d.envelope, d.body, ?5, d.order_key, d.turn
    FROM json_each(?1) AS picked CROSS JOIN oncegate_dead_letters AS d ON d.rowid = picked.value";

const REMOVE: &str = "DELETE FROM oncegate_dead_letters WHERE rowid IN (SELECT value FROM json_each(?1))";

const REPLAYABLE: &str = "
    SELECT count(*) FROM oncegate_dead_letters AS d
    WHERE d.tenant = ?1 {selected}AND {has_target} AND (?11 OR NOT {is_duplicate})";

const HINDRANCES: &str = "
    SELECT d.id, d.kind, d.target, {has_target} AS has_target FROM oncegate_dead_letters AS d
    WHERE d.tenant = ?1 {selected}AND (NOT {has_target} OR (NOT ?11 AND {is_duplicate}))
    ORDER BY d.failed_at, d.id LIMIT ?12";

const PICK_ANY: &str = "
    SELECT d.rowid AS place FROM oncegate_dead_letters AS d
    WHERE d.tenant = ?1 {selected}ORDER BY d.failed_at, d.id LIMIT ?9";

/// Only if the claim is still its message's.
const FREE: &str = "
    DELETE FROM oncegate_deduplication WHERE key IN (
        SELECT c.key FROM json_each(?1) AS picked
        CROSS JOIN oncegate_dead_letters AS d ON d.rowid = picked.value
        CROSS JOIN oncegate_deduplication AS c ON c.key = d.claim_key AND c.row_id = d.row_id)";

const COUNT: &str = "SELECT count(*) FROM oncegate_dead_letters AS d WHERE d.tenant = ?1 {selected}";

const SUMMARY: &str = "
    SELECT type, kind, target, error_kind, count(*) AS number, min(failed_at) AS oldest_at,
           max(failed_at) AS newest_at
    FROM oncegate_dead_letters WHERE tenant = ?1
    GROUP BY type, kind, target, error_kind ORDER BY type, kind, target, error_kind";

/// A statement as it is run for `filter`.
fn written(sql: &str, filter: &Filter, ids: Option<&[Uuid]>) -> String {
    let mut selected = String::new();
    for (asked, condition) in [
        (filter.kind.is_some(), KIND),
        (filter.target.is_some(), TARGET),
        (filter.error_kind.is_some(), ERROR_KIND),
        (filter.from.is_some(), FROM),
        (filter.until.is_some(), UNTIL),
        (ids.is_some(), IDS),
    ] {
        if asked {
            selected.push_str(condition);
        }
    }
    // Ids are looked up by their own index, however the rows are to be ordered.
    let tenant = if ids.is_some() { "+d.tenant = ?1" } else { "d.tenant = ?1" };
    sql.replace("d.tenant = ?1", tenant)
        .replace("{selected}", &selected)
        .replace("{columns}", COLUMNS)
        .replace("{has_target}", HAS_TARGET)
        .replace("{is_duplicate}", IS_DUPLICATE)
}

type Statement = sqlx::query::Query<'static, Engine, SqliteArguments>;

/// Binds the parameters of a selection, the first eight.
fn selecting(sql: &str, tenant: &str, filter: &Filter, ids: Option<&[Uuid]>) -> Statement {
    sqlx::query(AssertSqlSafe(written(sql, filter, ids)))
        .bind(tenant.to_owned())
        .bind(filter.kind.clone())
        .bind(filter.target.as_ref().map(|target| target.kind as i16))
        .bind(filter.target.as_ref().map(|target| target.name.to_string()))
        .bind(filter.error_kind.map(DeadKind::as_str))
        .bind(filter.from.map(micros))
        .bind(filter.until.map(micros))
        .bind(ids.map(|ids| array(ids.iter().map(|id| id.simple().to_string()))))
}

fn selection(sql: &str, selection: &Selection) -> Statement {
    selecting(sql, &selection.tenant, &selection.filter, selection.ids.as_deref())
}

/// Binds what a replay is, but for its limit.
fn replaying(sql: &str, replay: &Replay, now: i64) -> Statement {
    let targets = replay.targets.iter().map(|target| format!("{} {}", target.kind as i16, target.name));
    selection(sql, &replay.selection)
        .bind(array(targets))
        .bind(now)
        .bind(replay.duplicates == Duplicates::Replay)
}

/// A JSON array.
fn array<T: serde::Serialize>(items: impl Iterator<Item = T>) -> String {
    serde_json::Value::from_iter(items.map(|item| serde_json::json!(item))).to_string()
}

pub(super) async fn list(store: &Inner, asked: &Query) -> Result<Page> {
    let sql = LIST.replace("{after}", if asked.after.is_some() { AFTER } else { "" });
    let query = selecting(&sql, &asked.tenant, &asked.filter, None)
        .bind(asked.after.map(|cursor| micros(cursor.failed_at)))
        .bind(asked.after.map(|cursor| cursor.id))
        .bind(i64::from(asked.limit) + 1)
        .bind(i64::try_from(asked.body_bytes).unwrap_or(i64::MAX));
    let mut reader = store.reader().await?;
    let rows = query.fetch_all(&mut *reader).await.map_err(error::of)?;
    let found = rows.first().map_or(Ok(0), |row| row.count("found"))?;
    let shown = rows.len().min(asked.limit as usize);
    let items = rows[..shown].iter().map(read).collect::<Result<Vec<_>>>()?;
    let last = items.last().map(|item| Cursor { failed_at: item.failed_at, id: item.id });
    Ok(Page { next: last.filter(|_| found > shown as u64), items })
}

pub(super) async fn one(store: &Inner, tenant: &str, id: Uuid) -> Result<Option<DeadLetter>> {
    let mut reader = store.reader().await?;
    find(&mut reader, tenant, id).await
}

async fn find(connection: &mut SqliteConnection, tenant: &str, id: Uuid) -> Result<Option<DeadLetter>> {
    let sql = ONE.replace("{columns}", COLUMNS);
    let query = sqlx::query(AssertSqlSafe(sql)).bind(id).bind(tenant.to_owned());
    query.fetch_optional(connection).await.map_err(error::of)?.as_ref().map(read).transpose()
}

pub(super) async fn edit(
    store: &Arc<Inner>,
    tenant: &str,
    id: Uuid,
    edit: &Edit,
) -> Result<Option<DeadLetter>> {
    let (tenant, edit) = (tenant.to_owned(), edit.clone());
    store
        .write(move |connection, _| {
            Box::pin(async move {
                let Some(found) = find(connection, &tenant, id).await? else { return Ok(None) };
                let mut message = Message::clone(&found.message);
                edit.apply(&mut message.envelope);
                if let Some(body) = edit.body {
                    message.body = body;
                }
                let envelope = serde_json::to_string(&message.envelope)
                    .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
                let query = sqlx::query(EDIT).bind(id).bind(envelope).bind(message.body.to_vec());
                query.execute(connection).await.map_err(error::of)?;
                Ok(Some(DeadLetter { message: message.into(), ..found }))
            })
        })
        .await
}

pub(super) async fn replay(store: &Arc<Inner>, replay: &Replay) -> Result<Vec<(Target, u64)>> {
    let replay = replay.clone();
    store
        .write(move |connection, now| Box::pin(async move { move_back(connection, now, &replay).await }))
        .await
}

async fn move_back(
    connection: &mut SqliteConnection,
    now: i64,
    replay: &Replay,
) -> Result<Vec<(Target, u64)>> {
    let query = replaying(PICK, replay, now).bind(replay.limit);
    let picked = query.fetch_all(&mut *connection).await.map_err(error::of)?;
    let mut moved = std::collections::BTreeMap::new();
    let mut places = Vec::with_capacity(picked.len());
    for row in &picked {
        places.push(row.int("place")?);
        *moved.entry(row.target()?).or_insert(0) += 1;
    }
    let count = i64::try_from(places.len()).unwrap_or(i64::MAX);
    let places = array(places.into_iter());
    let put = sqlx::query(PUT).bind(places.clone()).bind(now).bind(count).bind(GENERATION);
    let put = put.bind(replay.duplicates == Duplicates::Replay);
    put.execute(&mut *connection).await.map_err(error::of)?;
    sqlx::query(REMOVE).bind(places).execute(connection).await.map_err(error::of)?;
    Ok(moved.into_iter().collect())
}

pub(super) async fn count_replayable(store: &Inner, replay: &Replay) -> Result<u64> {
    number(store, replaying(REPLAYABLE, replay, store.now())).await
}

pub(super) async fn hindrances(store: &Inner, replay: &Replay) -> Result<Vec<Hindrance>> {
    let query = replaying(HINDRANCES, replay, store.now()).bind(replay.limit);
    let mut reader = store.reader().await?;
    let rows = query.fetch_all(&mut *reader).await.map_err(error::of)?;
    let read = |row: &SqliteRow| {
        let why = if row.int("has_target")? == 0 { Why::TargetGone } else { Why::Duplicate };
        Ok(Hindrance { id: row.uuid("id")?, target: row.target()?, why })
    };
    rows.iter().map(read).collect()
}

pub(super) async fn discard(
    store: &Arc<Inner>,
    selected: &Selection,
    claims: Claims,
    limit: u32,
) -> Result<u64> {
    let selected = selected.clone();
    store
        .write(move |connection, _| {
            Box::pin(async move {
                let query = selection(PICK_ANY, &selected).bind(limit);
                let picked = query.fetch_all(&mut *connection).await.map_err(error::of)?;
                let places = picked.iter().map(|row| row.int("place")).collect::<Result<Vec<_>>>()?;
                let number = places.len() as u64;
                let places = array(places.into_iter());
                if claims == Claims::Release {
                    let free = sqlx::query(FREE).bind(places.clone());
                    free.execute(&mut *connection).await.map_err(error::of)?;
                }
                sqlx::query(REMOVE).bind(places).execute(connection).await.map_err(error::of)?;
                Ok(number)
            })
        })
        .await
}

pub(super) async fn count(store: &Inner, selected: &Selection) -> Result<u64> {
    number(store, selection(COUNT, selected)).await
}

async fn number(store: &Inner, query: Statement) -> Result<u64> {
    use sqlx::Row;
    let mut reader = store.reader().await?;
    let row = query.fetch_one(&mut *reader).await.map_err(error::of)?;
    let number: i64 = row.try_get(0).map_err(error::of)?;
    u64::try_from(number).map_err(|_| corrupt("a negative count"))
}

pub(super) async fn summarise(store: &Inner, tenant: &str) -> Result<Vec<Group>> {
    let mut reader = store.reader().await?;
    let query = sqlx::query(SUMMARY).bind(tenant.to_owned());
    let rows = query.fetch_all(&mut *reader).await.map_err(error::of)?;
    let read = |row: &SqliteRow| {
        Ok(Group {
            kind: row.text("type")?,
            target: row.target()?,
            error_kind: row.text("error_kind")?,
            count: row.count("number")?,
            oldest_at: row.time("oldest_at")?,
            newest_at: row.time("newest_at")?,
        })
    };
    rows.iter().map(read).collect()
}

fn read(row: &SqliteRow) -> Result<DeadLetter> {
    let delivery = rows::delivery(row)?;
    Ok(DeadLetter {
        id: row.uuid("id")?,
        target: delivery.target,
        message: delivery.message,
        error_kind: row.text("error_kind")?,
        error_text: row.text("error_text")?,
        attempts: delivery.attempts,
        failed_at: row.time("failed_at")?,
    })
}

/// Every statement of this file, for the tests that prepare and explain them.
#[cfg(test)]
pub(super) fn statements() -> Vec<String> {
    let mut all = vec![ONE.replace("{columns}", COLUMNS)];
    all.extend([EDIT, PUT, REMOVE, FREE, SUMMARY].map(str::to_owned));
    for given in 0..64_u8 {
        let has = |bit: u8| given & bit != 0;
        let moment = crate::domain::Timestamp::UNIX_EPOCH;
        let filter = Filter {
            kind: has(1).then(|| "x".to_owned()),
            target: has(2).then(|| Target::destination("x")),
            error_kind: has(4).then_some(DeadKind::Expired),
            from: has(8).then_some(moment),
            until: has(16).then_some(moment),
        };
        let ids = has(32).then_some([].as_slice());
        for sql in [LIST.replace("{after}", ""), LIST.replace("{after}", AFTER)] {
            all.push(written(&sql, &filter, ids));
        }
        for sql in [PICK, REPLAYABLE, HINDRANCES, PICK_ANY, COUNT] {
            all.push(written(sql, &filter, ids));
        }
    }
    all
}

/// What a replay and a discard of everything pick their rows with.
#[cfg(test)]
pub(super) fn sweeps() -> Vec<String> {
    [PICK, PICK_ANY].map(|sql| written(sql, &Filter::default(), None)).to_vec()
}
