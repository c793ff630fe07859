//! Ordered targets: of each key the first row, if it is due.
//!
//! What is looked at is found without a lock; then the lanes of what was found are locked until the commit (a lock
//! that is not waited for), and the first rows are looked for once more, by a statement that began after that. So
//! whoever takes from a lane sees all that was taken from it before.

use std::time::Duration;

use sha2::{Digest, Sha256};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::Postgres;
use super::deliveries::{self, taken_columns};
use super::error::Fault;
use super::pool::{Mode, Session};
use super::rows::{interval, message_columns, micros};
use super::status::{self, standing};
use crate::domain::delivery::{Target, TargetKind};
use crate::domain::ordering::{LANES, OnDeadLetter, OrderKey};
use crate::domain::{RowKey, Timestamp};
use crate::store::Result;
use crate::store::lanes::{HELD_LANES, JOINING, KEYS, Looked, TURNS, Take};
use crate::store::status::Ahead;

/// A row that has its place in the order of `$1`, `$2`.
macro_rules! in_order {
    ($row:literal) => {
        concat!(
            $row,
            ".kind = $1 AND ",
            $row,
            ".target = $2 AND ",
            $row,
            ".turn IS NOT NULL AND ",
            $row,
            ".state <> 0"
        )
    };
}

/// Whether an earlier message of the key is a dead letter.
macro_rules! is_blocked {
    ($row:literal) => {
        concat!(
            "EXISTS (SELECT FROM oncegate.dead_letters l WHERE l.kind = $1 AND l.target = $2 AND l.order_key = ",
            $row,
            ".order_key AND coalesce(l.turn, 0) < abs(",
            $row,
            ".turn))"
        )
    };
}

/// The first rows of the keys after `$3`, until `$4` are free to be taken or `$5` were looked at; beside them
/// what joins next. `$6`: whether dead letters block.
pub(super) const HEADS: &str = concat!(
    "WITH RECURSIVE head AS (
        SELECT n.order_key, n.due_at, f.blocked, 1 AS number, f.free::integer AS found FROM (
            SELECT d.order_key, d.turn, d.due_at FROM oncegate.deliveries d
            WHERE ",
    in_order!("d"),
    " AND d.order_key > $3 ORDER BY d.order_key, d.turn LIMIT 1
        ) n CROSS JOIN LATERAL (SELECT b.blocked, n.due_at <= now() AND NOT b.blocked AS free
            FROM (SELECT $6 AND ",
    is_blocked!("n"),
    " AS blocked) b) f
        UNION ALL
        SELECT n.order_key, n.due_at, f.blocked, h.number + 1, h.found + f.free::integer
        FROM head h CROSS JOIN LATERAL (
            SELECT d.order_key, d.turn, d.due_at FROM oncegate.deliveries d
            WHERE ",
    in_order!("d"),
    " AND d.order_key > h.order_key ORDER BY d.order_key, d.turn LIMIT 1
        ) n CROSS JOIN LATERAL (SELECT b.blocked, n.due_at <= now() AND NOT b.blocked AS free
            FROM (SELECT $6 AND ",
    is_blocked!("n"),
    " AS blocked) b) f
        WHERE h.found < $4 AND h.number < $5
    )
    SELECT (extract(epoch FROM s.due_at - now()) * 1000000)::bigint AS joins_in_us, h.order_key, h.blocked,
        (extract(epoch FROM h.due_at - now()) * 1000000)::bigint AS due_in_us
    FROM (SELECT (SELECT d.due_at FROM oncegate.deliveries d
                  WHERE d.kind = $1 AND d.target = $2 AND d.turn IS NOT NULL AND d.state = 0
                  ORDER BY d.due_at LIMIT 1) AS due_at) s
    LEFT JOIN head h ON true
    ORDER BY h.number"
);

/// Of these locks those that nobody else has.
pub(super) const LOCK: &str =
    "SELECT t.lock FROM unnest($1::bigint[]) AS t(lock) WHERE pg_try_advisory_xact_lock(t.lock)";

/// Leases the first rows of these keys (`$3`). A row that somebody has locked is left, and with it its key: the
/// row behind it is never taken in its stead.
pub(super) const LEASE: &str = concat!(
    "WITH head AS MATERIALIZED (
        SELECT n.row_id, n.target_no FROM unnest($3::uuid[]) AS k(order_key) CROSS JOIN LATERAL (
            SELECT d.row_id, d.target_no, d.order_key, d.turn, d.due_at FROM oncegate.deliveries d
            WHERE ",
    in_order!("d"),
    " AND d.order_key = k.order_key ORDER BY d.turn LIMIT 1
        ) n WHERE n.due_at <= now() AND NOT ($4 AND ",
    is_blocked!("n"),
    ")
    ), due AS MATERIALIZED (
        SELECT d.row_id, d.target_no, d.due_at FROM head h
        JOIN oncegate.deliveries d ON d.row_id = h.row_id AND d.target_no = h.target_no
        WHERE d.due_at <= now() FOR UPDATE OF d SKIP LOCKED
    )
    UPDATE oncegate.deliveries d
    SET state = 2, token = $5, taken = d.taken + 1, due_at = now() + $6::interval, turn = -abs(d.turn)
    FROM due WHERE d.row_id = due.row_id AND d.target_no = due.target_no
    RETURNING ",
    taken_columns!()
);

/// What was scheduled and is due joins its key's order at the end: what is due first, first.
pub(super) const JOIN: &str = "WITH due AS MATERIALIZED (
        SELECT d.row_id, d.target_no, d.due_at, d.turn FROM oncegate.deliveries d
        WHERE d.kind = $1 AND d.target = $2 AND d.turn IS NOT NULL AND d.state = 0 AND d.due_at <= now()
        ORDER BY d.due_at, d.turn LIMIT $3 FOR UPDATE SKIP LOCKED
    ), numbered AS (
        SELECT due.row_id, due.target_no, row_number() OVER (ORDER BY due.due_at, due.turn) AS place FROM due
    )
    UPDATE oncegate.deliveries d SET state = 1, turn = (SELECT nextval('oncegate.turns')) * $4 + n.place
    FROM numbered n WHERE d.row_id = n.row_id AND d.target_no = n.target_no";

/// Rows that were written while their target had no order. Those that are on their way come later.
pub(super) const STRAYS: &str =
    "SELECT d.row_id, d.target_no, d.tenant, d.partition_key, d.accepted_at FROM oncegate.deliveries d
     WHERE d.kind = $1 AND d.target = $2 AND d.order_key IS NULL AND (d.state <> 2 OR d.due_at <= now())
     ORDER BY d.due_at LIMIT $3";

pub(super) const ADOPT: &str = "UPDATE oncegate.deliveries d SET order_key = t.order_key, turn = t.turn
     FROM unnest($1::uuid[], $2::smallint[], $3::uuid[], $4::bigint[]) AS t(row_id, target_no, order_key, turn)
     WHERE d.row_id = t.row_id AND d.target_no = t.target_no AND d.order_key IS NULL
       AND (d.state <> 2 OR d.due_at <= now())";

/// For rows that have their place in an order: the row whose turn it is in their stead, and the first dead letter
/// (standing 4) of an earlier message of their key.
pub(super) const AHEAD: &str = concat!(
    "WITH asked AS MATERIALIZED (
        SELECT d.row_id, d.target_no, d.kind, d.target, d.order_key, d.turn
        FROM unnest($1::uuid[], $2::smallint[]) AS t(row_id, target_no)
        JOIN oncegate.deliveries d ON d.row_id = t.row_id AND d.target_no = t.target_no
        WHERE d.turn IS NOT NULL AND d.state <> 0
    )
    SELECT a.row_id, a.target_no, h.row_id AS ahead_row_id, h.message_id, h.standing, NULL::uuid AS dead_letter
    FROM asked a JOIN LATERAL (
        SELECT d.row_id, d.target_no, d.message_id, ",
    standing!(),
    " AS standing FROM oncegate.deliveries d
        WHERE d.kind = a.kind AND d.target = a.target AND d.order_key = a.order_key AND d.turn IS NOT NULL
          AND d.state <> 0 ORDER BY d.turn LIMIT 1
    ) h ON (h.row_id, h.target_no) <> (a.row_id, a.target_no)
    UNION ALL
    SELECT a.row_id, a.target_no, l.row_id, l.message_id, 4, l.id
    FROM asked a JOIN LATERAL (
        SELECT l.row_id, l.message_id, l.id FROM oncegate.dead_letters l
        WHERE l.kind = a.kind AND l.target = a.target AND l.order_key = a.order_key
          AND coalesce(l.turn, 0) < abs(a.turn) ORDER BY l.turn LIMIT 1
    ) l ON true"
);

/// What a look without locks found.
struct Heads {
    keys: Vec<OrderKey>,
    looked: Looked,
    joins_in: Option<Duration>,
}

pub(super) async fn take(store: &Postgres, asked: &Take) -> Result<Looked> {
    let mut heads = look(store, asked).await?;
    if heads.joins_in.is_some_and(|wait| wait.is_zero()) {
        let joined = join(store, &asked.take.target).await?;
        heads = look(store, asked).await?;
        if joined == 0 {
            // Somebody else is at it.
            heads.joins_in = heads.joins_in.map(|wait| wait.max(HELD_LANES));
        }
    }
    let Heads { keys, mut looked, joins_in } = heads;
    if let Some(wait) = joins_in {
        looked.note(wait);
    }
    if keys.is_empty() {
        return Ok(looked);
    }
    let mut session = store.pool.session(Mode::Transaction).await?;
    let result = lease(&mut session, asked, &keys).await;
    let rows = session.finish(result).await?;
    looked.taken = deliveries::read_all(store, &rows, &asked.take).await?;
    if rows.len() < keys.len() {
        looked.note(HELD_LANES);
    }
    Ok(looked)
}

async fn look(store: &Postgres, asked: &Take) -> Result<Heads> {
    let limit = i32::try_from(asked.take.limit).unwrap_or(i32::MAX);
    let query = sqlx::query(HEADS)
        .bind(asked.take.target.kind as i16)
        .bind(asked.take.target.name.to_string())
        .bind(asked.after.unwrap_or(OrderKey::FIRST).0)
        .bind(limit)
        .bind(i32::try_from(KEYS).unwrap_or(i32::MAX))
        .bind(blocks(asked));
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = session.rows(query).await;
    let rows = session.finish(result).await?;
    Ok(read_heads(&rows, asked.take.limit)?)
}

fn read_heads(rows: &[PgRow], limit: u32) -> Result<Heads, Fault> {
    let mut heads = Heads { keys: Vec::new(), looked: Looked::default(), joins_in: None };
    let mut last = None;
    for row in rows {
        heads.joins_in = row.try_get::<Option<i64>, _>("joins_in_us")?.map(micros);
        let Some(key) = row.try_get::<Option<Uuid>, _>("order_key")?.map(OrderKey) else { continue };
        last = Some(key);
        let due_in_us: i64 = row.try_get("due_in_us")?;
        match (row.try_get::<bool, _>("blocked")?, due_in_us <= 0) {
            (false, true) => heads.keys.push(key),
            (false, false) => heads.looked.note(micros(due_in_us)),
            // Somebody has to do something about it.
            (true, _) => {}
        }
    }
    let is_cut_short = heads.keys.len() >= limit as usize || rows.len() >= KEYS as usize;
    heads.looked.resume = last.filter(|_| is_cut_short);
    Ok(heads)
}

async fn lease(session: &mut Session<'_>, asked: &Take, keys: &[OrderKey]) -> Result<Vec<PgRow>, Fault> {
    let take = &asked.take;
    let mut lanes: Vec<u8> = keys.iter().map(|key| key.lane()).collect();
    lanes.sort_unstable();
    lanes.dedup();
    let numbers: Vec<i64> = lanes.iter().map(|lane| lock_number(&take.target, *lane)).collect();
    let mut held = Vec::with_capacity(lanes.len());
    for row in session.rows(sqlx::query(LOCK).bind(numbers.clone())).await? {
        held.push(row.try_get::<i64, _>(0)?);
    }
    let is_held = |key: &&OrderKey| held.contains(&lock_number(&take.target, key.lane()));
    let keys: Vec<Uuid> = keys.iter().filter(is_held).map(|key| key.0).collect();
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let query = sqlx::query(LEASE)
        .bind(take.target.kind as i16)
        .bind(take.target.name.to_string())
        .bind(keys)
        .bind(blocks(asked))
        .bind(take.token.0)
        .bind(interval(take.lease));
    session.rows(query).await
}

/// Returns how many rows joined.
async fn join(store: &Postgres, target: &Target) -> Result<u64> {
    let mut session = store.pool.session(Mode::Transaction).await?;
    let result = async {
        // One at a time, so that the numbers have the order of the due times.
        let lock = sqlx::query(LOCK).bind(vec![lock_number(target, LANES)]);
        if session.rows(lock).await?.is_empty() {
            return Ok(0);
        }
        let query = sqlx::query(JOIN)
            .bind(target.kind as i16)
            .bind(target.name.to_string())
            .bind(i64::from(JOINING))
            .bind(TURNS);
        session.execute(query).await
    }
    .await;
    Ok(session.finish(result).await?)
}

pub(super) async fn adopt(store: &Postgres, target: &Target, limit: u32) -> Result<u64> {
    let mut session = store.pool.session(Mode::Autocommit).await?;
    let result = async {
        let strays =
            sqlx::query(STRAYS).bind(target.kind as i16).bind(target.name.to_string()).bind(i64::from(limit));
        let (mut rows, mut keys, mut turns) = (Vec::new(), Vec::new(), Vec::new());
        for row in session.rows(strays).await? {
            rows.push(RowKey { id: row.try_get("row_id")?, target_no: row.try_get("target_no")? });
            let partition_key: Option<&str> = row.try_get("partition_key")?;
            keys.push(OrderKey::new(row.try_get("tenant")?, partition_key).0);
            turns.push(row.try_get::<Timestamp, _>("accepted_at")?.timestamp_micros());
        }
        if rows.is_empty() {
            return Ok(0);
        }
        let query = sqlx::query(ADOPT)
            .bind(rows.iter().map(|row| row.id).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.target_no).collect::<Vec<_>>())
            .bind(keys)
            .bind(turns);
        session.execute(query).await
    }
    .await;
    Ok(session.finish(result).await?)
}

/// What rows in an order wait for.
pub(super) async fn ahead(session: &mut Session<'_>, rows: &[RowKey]) -> Result<Vec<(RowKey, Ahead)>, Fault> {
    let query = sqlx::query(AHEAD)
        .bind(rows.iter().map(|row| row.id).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.target_no).collect::<Vec<_>>());
    let read = |row: &PgRow| {
        let id: Option<String> = row.try_get("message_id")?;
        let ahead_row_id: Uuid = row.try_get("ahead_row_id")?;
        let ahead = Ahead {
            message_id: id.unwrap_or_else(|| ahead_row_id.to_string()),
            state: status::state(row.try_get("standing")?, TargetKind::Destination)?,
            dead_letter: row.try_get("dead_letter")?,
        };
        Ok((RowKey { id: row.try_get("row_id")?, target_no: row.try_get("target_no")? }, ahead))
    };
    session.rows(query).await?.iter().map(read).collect()
}

fn blocks(asked: &Take) -> bool {
    asked.on_dead_letter == OnDeadLetter::Block
}

/// The number of a lane's lock; that of all lanes together where `lane` is [`LANES`].
fn lock_number(target: &Target, lane: u8) -> i64 {
    let mut hash = Sha256::new();
    hash.update(b"oncegate lane");
    hash.update([lane, target.kind as u8]);
    hash.update(target.name.as_bytes());
    let digest = hash.finalize();
    let mut bytes = [0_u8; 8];
    bytes.copy_from_slice(&digest[..8]);
    i64::from_be_bytes(bytes)
}
