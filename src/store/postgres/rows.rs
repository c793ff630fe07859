//! Between the domain's types and the columns.

use std::time::Duration;

use bytes::Bytes;
use chrono::{TimeZone, Utc};
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::postgres::types::PgInterval;
use uuid::Uuid;

use super::error::{Class, Fault};
use crate::domain::delivery::{Target, TargetKind};
use crate::domain::{Message, Timestamp};
use crate::store::ErrorKind;

/// The columns of `deliveries`, `dead_letters` and their like that make up a message, of a row `d`.
macro_rules! message_columns {
    () => {
        "d.tenant, d.message_id, d.type, d.deduplication_id, d.partition_key, d.correlation_id, \
         d.deliver_at, d.deliver_by, d.accepted_at, d.envelope::text AS envelope, d.body"
    };
}
pub(super) use message_columns;

/// What is stored of a message's id: nothing where it is its row id's text form.
pub(super) fn stored_id(row_id: Uuid, message_id: &str) -> Option<&str> {
    let mut buffer = Uuid::encode_buffer();
    let text: &str = row_id.hyphenated().encode_lower(&mut buffer);
    (text != message_id).then_some(message_id)
}

/// The row id that a message id may be the text form of.
pub(super) fn row_id_of(message_id: &str) -> Option<Uuid> {
    let id = Uuid::parse_str(message_id).ok()?;
    stored_id(id, message_id).is_none().then_some(id)
}

/// Reads [`message_columns`].
pub(super) fn message(row: &PgRow, row_id: Uuid) -> Result<Message, Fault> {
    let envelope: &str = row.try_get("envelope")?;
    let envelope = serde_json::from_str(envelope).map_err(|error| corrupt(format!("{row_id}: {error}")))?;
    let id: Option<String> = row.try_get("message_id")?;
    Ok(Message {
        id: id.unwrap_or_else(|| row_id.to_string()),
        kind: row.try_get("type")?,
        tenant: row.try_get("tenant")?,
        body: Bytes::from(row.try_get::<Vec<u8>, _>("body")?),
        deduplication_id: row.try_get("deduplication_id")?,
        partition_key: row.try_get("partition_key")?,
        correlation_id: row.try_get("correlation_id")?,
        deliver_at: row.try_get("deliver_at")?,
        deliver_by: row.try_get("deliver_by")?,
        accepted_at: row.try_get("accepted_at")?,
        envelope,
    })
}

/// Reads the columns `kind` and `target`.
pub(super) fn target(row: &PgRow) -> Result<Target, Fault> {
    target_of(row.try_get("kind")?, row.try_get("target")?)
}

pub(super) fn target_of(kind: i16, name: &str) -> Result<Target, Fault> {
    let kind =
        TargetKind::from_stored(kind).ok_or_else(|| corrupt(format!("{kind} is not a kind of target")))?;
    Ok(Target { kind, name: name.into() })
}

pub(super) fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: capped_us(duration) }
}

/// `time + after`, at most the end of the year 9999.
pub(super) fn later(time: Timestamp, after: Duration) -> Timestamp {
    let end = Utc.with_ymd_and_hms(9999, 12, 31, 23, 59, 59).latest().unwrap_or(time);
    time.checked_add_signed(chrono::Duration::microseconds(capped_us(after))).map_or(end, |sum| sum.min(end))
}

/// A thousand years at most: what is added to any moment that the edge lets in stays a moment.
fn capped_us(duration: Duration) -> i64 {
    const MAX_US: i64 = 1_000 * 366 * 86_400 * 1_000_000;
    i64::try_from(duration.as_micros()).unwrap_or(MAX_US).min(MAX_US)
}

pub(super) fn micros(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or_default())
}

pub(super) fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

pub(super) fn corrupt(detail: impl Into<String>) -> Fault {
    Fault::new(Class::Other, ErrorKind::Corrupt, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_id_that_is_not_the_rows_own_is_stored() {
        let row_id = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_00ab);
        assert_eq!(stored_id(row_id, &row_id.to_string()), None);
        assert_eq!(stored_id(row_id, "order-1"), Some("order-1"));
        let upper = row_id.to_string().to_uppercase();
        assert_eq!(stored_id(row_id, &upper), Some(upper.as_str()));
        assert_eq!(row_id_of(&row_id.to_string()), Some(row_id));
        assert_eq!(row_id_of(&upper), None);
        assert_eq!(row_id_of("order-1"), None);
    }

    #[test]
    fn time_ends_with_the_year_9999() {
        let now = crate::domain::Clock::system().now();
        assert_eq!(later(now, Duration::from_secs(60)), now + chrono::Duration::seconds(60));
        assert_eq!(later(now, Duration::MAX).format("%Y").to_string().len(), 4);
    }
}
