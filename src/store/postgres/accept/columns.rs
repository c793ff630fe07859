//! The group's statement, and its parameters: one array per column.

use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::postgres::types::PgInterval;
use sqlx::query::Query;
use uuid::Uuid;

use super::Planned;
use super::outcomes;
use crate::domain::claim::ClaimKind;
use crate::domain::{Timestamp, Token};
use crate::store::accept::{Message, NewDelivery, Request, RequestClaim, WorkClaim};
use crate::store::postgres::rows::{interval, later, stored_id};
use crate::store::{Error, ErrorKind, Result};

/// From where the rows come; `$1` to `$18` and, where there are claims, `$19`: the request's key. Where some of
/// them are in an order, two more: the key, and the place in the group.
macro_rules! insert_rows {
    ($unnest:literal, $names:literal, $where:literal) => {
        insert_rows!($unnest, $names, $where, "", "")
    };
    ($unnest:literal, $names:literal, $where:literal, in_order) => {
        insert_rows!(
            $unnest,
            $names,
            $where,
            ", order_key, turn",
            // One number for all, which no later statement gets; its own place keeps a row behind those before it.
            ", d.order_key,
                CASE WHEN d.order_key IS NOT NULL
                     THEN (SELECT nextval('oncegate.turns')) * 1048576 + d.place END"
        )
    };
    ($unnest:literal, $names:literal, $where:literal, $columns:literal, $values:literal) => {
        concat!(
            "INSERT INTO oncegate.deliveries
                (row_id, target_no, kind, target, state, due_at, token, taken, tenant, message_id, type,
                 deduplication_id, partition_key, correlation_id, deliver_at, deliver_by, claim_key,
                 accepted_at, envelope, body",
            $columns,
            ")
             SELECT d.row_id, d.target_no, d.kind, d.target,
                CASE WHEN d.deliver_at > now() THEN 0 WHEN d.hold IS NOT NULL THEN 2 ELSE 1 END,
                CASE WHEN d.deliver_at > now() THEN least(d.deliver_at, d.deliver_by)
                     WHEN d.hold IS NOT NULL THEN now() + d.hold
                     ELSE least(now(), d.deliver_by) END,
                CASE WHEN d.deliver_at > now() OR d.hold IS NULL THEN 0 ELSE d.token END,
                CASE WHEN d.deliver_at > now() OR d.hold IS NULL THEN 0 ELSE 1 END,
                d.tenant, d.message_id, d.type, d.deduplication_id, d.partition_key, d.correlation_id,
                d.deliver_at, d.deliver_by, d.claim_key, d.accepted_at, d.envelope::json, d.body",
            $values,
            " FROM unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::text[], $5::interval[], $6::bigint[],
                $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::timestamptz[],
                $14::timestamptz[], $15::uuid[], $16::timestamptz[], $17::text[], $18::bytea[]",
            $unnest,
            ") AS d(row_id, target_no, kind, target, hold, token, tenant, message_id, type, deduplication_id,
                partition_key, correlation_id, deliver_at, deliver_by, claim_key, accepted_at, envelope, body",
            $names,
            ")",
            $where,
            " ON CONFLICT (row_id, target_no) DO NOTHING"
        )
    };
}

/// A group without claims.
pub(in crate::store::postgres) const ROWS: &str = insert_rows!("", "", "");

/// The same, where rows are in an order.
pub(in crate::store::postgres) const ROWS_IN_ORDER: &str =
    insert_rows!(", $19::uuid[], $20::bigint[]", ", order_key, place", "", in_order);

/// A group with claims. The requests' keys are claimed first, then those of the work, each in key order, so
/// that two groups never wait for each other; the count makes the first part run to its end before the second
/// begins. Answers with the keys that were had; whose key is missing lost it. What this very attempt holds,
/// confirmed (it is run again) or claimed (it sent something before), it has.
macro_rules! rows_and_claims {
    ($insert:expr) => {
        concat!(
    "WITH request AS (
        INSERT INTO oncegate.deduplication AS c
            (key, kind, scope, id, tenant, token, confirmed, first_seen_at, expires_at, fingerprint, answer)
        SELECT t.key, 0, t.scope, t.id, t.tenant, t.token, true, $20, t.expires_at, t.fingerprint, t.answer
        FROM unnest($21::uuid[], $22::text[], $23::text[], $24::text[], $25::bigint[], $26::timestamptz[],
            $27::bytea[], $28::bytea[]) AS t(key, scope, id, tenant, token, expires_at, fingerprint, answer)
        ORDER BY t.key
        ON CONFLICT (key) DO UPDATE SET
            kind = excluded.kind, scope = excluded.scope, id = excluded.id, tenant = excluded.tenant,
            token = excluded.token, confirmed = true, message_id = NULL, row_id = NULL,
            first_seen_at = excluded.first_seen_at, expires_at = excluded.expires_at,
            fingerprint = excluded.fingerprint, answer = excluded.answer
        WHERE c.expires_at <= now() OR c.token = excluded.token
        RETURNING c.key
    ), work AS (
        INSERT INTO oncegate.deduplication AS c
            (key, kind, scope, id, tenant, token, confirmed, message_id, row_id, first_seen_at, expires_at)
        SELECT t.key, 1, t.scope, t.id, t.tenant, t.token, true, t.message_id, t.row_id, $20, t.expires_at
        FROM unnest($29::uuid[], $30::uuid[], $31::text[], $32::text[], $33::text[], $34::bigint[],
            $35::text[], $36::uuid[], $37::timestamptz[])
            AS t(key, request, scope, id, tenant, token, message_id, row_id, expires_at)
        WHERE (SELECT count(*) FROM request) >= 0
          AND (t.request IS NULL OR t.request IN (SELECT key FROM request))
        ORDER BY t.key
        ON CONFLICT (key) DO UPDATE SET
            kind = excluded.kind, scope = excluded.scope, id = excluded.id, tenant = excluded.tenant,
            token = excluded.token, confirmed = true, message_id = excluded.message_id,
            row_id = excluded.row_id, first_seen_at = excluded.first_seen_at,
            expires_at = excluded.expires_at, fingerprint = NULL, answer = NULL
        WHERE c.expires_at <= now() OR c.token = excluded.token
        RETURNING c.key
    ), put AS (",
            $insert,
    ")
    SELECT ARRAY(SELECT key FROM request) || ARRAY(SELECT key FROM work) AS won,
           statement_timestamp() AS heard"
        )
    };
}
pub(in crate::store::postgres) const ROWS_AND_CLAIMS: &str = rows_and_claims!(insert_rows!(
    ", $19::uuid[]",
    ", request",
    " WHERE (d.request IS NULL OR d.request IN (SELECT key FROM request))
        AND (d.claim_key IS NULL OR d.claim_key IN (SELECT key FROM work))"
));

/// The same, where rows are in an order.
pub(in crate::store::postgres) const ROWS_AND_CLAIMS_IN_ORDER: &str = rows_and_claims!(insert_rows!(
    ", $19::uuid[], $38::uuid[], $39::bigint[]",
    ", request, order_key, place",
    " WHERE (d.request IS NULL OR d.request IN (SELECT key FROM request))
        AND (d.claim_key IS NULL OR d.claim_key IN (SELECT key FROM work))",
    in_order
));

type Statement = Query<'static, Postgres, PgArguments>;

/// A row to be written.
struct Row<'a> {
    target_no: i16,
    delivery: &'a NewDelivery,
    message: &'a Message,
    envelope: &'a str,
    token: Token,
    request: Option<Uuid>,
}

/// Whether the rows are written, or only the claims: what was already stored, and perhaps delivered since,
/// is not stored again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    Write,
    Omit,
}

/// The statement for a group without claims.
pub(super) fn rows_only(planned: &[Planned<'_>]) -> Result<Statement> {
    let envelopes = envelopes(planned)?;
    let rows = rows(planned, &envelopes)?;
    Ok(match are_in_order(&rows) {
        false => bind_rows(sqlx::query(ROWS), &rows),
        true => bind_order(bind_rows(sqlx::query(ROWS_IN_ORDER), &rows), &rows),
    })
}

/// The statement for a group with claims. `now`: the server's time, about.
pub(super) fn rows_and_claims(planned: &[Planned<'_>], now: Timestamp, which: Rows) -> Result<Statement> {
    let envelopes = envelopes(planned)?;
    let rows = if which == Rows::Write { rows(planned, &envelopes)? } else { Vec::new() };
    let in_order = are_in_order(&rows);
    let sql = if in_order { ROWS_AND_CLAIMS_IN_ORDER } else { ROWS_AND_CLAIMS };
    let query = bind_rows(sqlx::query(sql), &rows)
        .bind(rows.iter().map(|row| row.request).collect::<Vec<_>>())
        .bind(now);
    let query = bind_requests(query, planned, now);
    let query = bind_work(query, planned, now);
    Ok(if in_order { bind_order(query, &rows) } else { query })
}

/// Whether any of them is; a group without pays nothing for it.
fn are_in_order(rows: &[Row<'_>]) -> bool {
    rows.iter().any(|row| row.delivery.order.is_some())
}

fn bind_order(query: Statement, rows: &[Row<'_>]) -> Statement {
    debug_assert_eq!(crate::store::lanes::TURNS, 1_048_576, "as the statement has it");
    let places = (0..crate::store::lanes::TURNS).take(rows.len());
    query
        .bind(rows.iter().map(|row| row.delivery.order.map(|key| key.0)).collect::<Vec<Option<Uuid>>>())
        .bind(places.collect::<Vec<i64>>())
}

/// Each message's envelope, request by request.
fn envelopes(planned: &[Planned<'_>]) -> Result<Vec<Vec<String>>> {
    let of = |message: &Message| serde_json::to_string(&message.message.envelope);
    let all: Result<Vec<_>, _> =
        planned.iter().map(|plan| plan.messages().map(of).collect::<Result<Vec<_>, _>>()).collect();
    all.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
}

fn rows<'a>(planned: &'a [Planned<'a>], envelopes: &'a [Vec<String>]) -> Result<Vec<Row<'a>>> {
    let mut rows = Vec::new();
    for (plan, envelopes) in planned.iter().zip(envelopes) {
        let request = plan.request.claim.as_ref().map(|claim| claim.key.0);
        for (message, envelope) in plan.messages().zip(envelopes) {
            for (target_no, delivery) in message.targets.iter().enumerate() {
                let target_no = i16::try_from(target_no)
                    .map_err(|_| Error::new(ErrorKind::InvalidData, "a message has too many targets"))?;
                let token = plan.request.token;
                rows.push(Row { target_no, delivery, message, envelope, token, request });
            }
        }
    }
    Ok(rows)
}

fn bind_rows(query: Statement, rows: &[Row<'_>]) -> Statement {
    fn column<'a, T>(rows: &'a [Row<'a>], read: impl FnMut(&'a Row<'a>) -> T) -> Vec<T> {
        rows.iter().map(read).collect()
    }
    query
        .bind(column(rows, |row| row.message.row_id))
        .bind(column(rows, |row| row.target_no))
        .bind(column(rows, |row| row.delivery.target.kind as i16))
        .bind(column(rows, |row| &*row.delivery.target.name))
        .bind(column::<Option<PgInterval>>(rows, |row| hold(row.delivery).map(interval)))
        .bind(column(rows, |row| row.token.0))
        .bind(column(rows, |row| row.message.message.tenant.as_str()))
        .bind(column(rows, |row| stored_id(row.message.row_id, &row.message.message.id)))
        .bind(column(rows, |row| row.message.message.kind.as_str()))
        .bind(column(rows, |row| row.message.message.deduplication_id.as_deref()))
        .bind(column(rows, |row| row.message.message.partition_key.as_deref()))
        .bind(column(rows, |row| row.message.message.correlation_id.as_deref()))
        .bind(column(rows, |row| row.message.message.deliver_at))
        .bind(column(rows, |row| row.message.message.deliver_by))
        .bind(column(rows, |row| row.message.claim.as_ref().map(|claim| claim.key.0)))
        .bind(column(rows, |row| row.message.message.accepted_at))
        .bind(column(rows, |row| row.envelope))
        .bind(column(rows, |row| &*row.message.message.body))
}

/// For how long a row is leased from the start: one in an order never is.
fn hold(new: &NewDelivery) -> Option<std::time::Duration> {
    if new.order.is_some() { None } else { new.hold }
}

fn bind_requests(query: Statement, planned: &[Planned<'_>], now: Timestamp) -> Statement {
    let mut claims: Vec<(&RequestClaim, &Planned<'_>)> =
        planned.iter().filter_map(|plan| Some((plan.request.claim.as_ref()?, plan))).collect();
    claims.sort_unstable_by_key(|(claim, _)| claim.key);
    fn column<'a, T>(
        claims: &[(&'a RequestClaim, &'a Planned<'a>)],
        mut read: impl FnMut(&'a RequestClaim, &'a Planned<'a>) -> T,
    ) -> Vec<T> {
        claims.iter().map(|(claim, plan)| read(claim, plan)).collect()
    }
    debug_assert_eq!(ClaimKind::Request as i16, 0, "as the statement has it");
    query
        .bind(column(&claims, |claim, _| claim.key.0))
        .bind(column(&claims, |claim, _| claim.scope.as_str()))
        .bind(column(&claims, |claim, _| claim.id.as_str()))
        .bind(column(&claims, |_, plan| tenant(plan.request)))
        .bind(column(&claims, |_, plan| plan.request.token.0))
        .bind(column(&claims, |claim, _| later(now, claim.window)))
        .bind(column(&claims, |claim, _| claim.fingerprint.as_slice()))
        .bind(column(&claims, |_, plan| plan.answer.as_deref().unwrap_or_default()))
}

fn bind_work(query: Statement, planned: &[Planned<'_>], now: Timestamp) -> Statement {
    let mut claims: Vec<(&WorkClaim, &Message, &Request)> = Vec::new();
    for plan in planned {
        claims.extend(
            plan.messages().filter_map(|message| Some((message.claim.as_ref()?, message, plan.request))),
        );
    }
    claims.sort_unstable_by_key(|(claim, ..)| claim.key);
    fn column<'a, T>(
        claims: &[(&'a WorkClaim, &'a Message, &'a Request)],
        mut read: impl FnMut(&'a WorkClaim, &'a Message, &'a Request) -> T,
    ) -> Vec<T> {
        claims.iter().map(|(claim, message, request)| read(claim, message, request)).collect()
    }
    debug_assert_eq!(ClaimKind::Work as i16, 1, "as the statement has it");
    query
        .bind(column(&claims, |claim, _, _| claim.key.0))
        .bind(column(&claims, |_, _, request| request.claim.as_ref().map(|claim| claim.key.0)))
        .bind(column(&claims, |claim, _, _| claim.scope.as_str()))
        .bind(column(&claims, |claim, _, _| claim.id.as_str()))
        .bind(column(&claims, |_, message, _| message.message.tenant.as_str()))
        .bind(column(&claims, |_, _, request| request.token.0))
        .bind(column(&claims, |_, message, _| stored_id(message.row_id, &message.message.id)))
        .bind(column(&claims, |_, message, _| message.row_id))
        .bind(column(&claims, |claim, message, _| outcomes::expiry(message, claim, now)))
}

/// A request is its messages' tenant's.
fn tenant(request: &Request) -> &str {
    request.messages.first().map_or("", |message| message.message.tenant.as_str())
}
