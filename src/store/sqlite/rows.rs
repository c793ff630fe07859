//! Between rows and the domain's types.

use std::time::Duration;

use bytes::Bytes;
use chrono::DateTime;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::error;
use crate::domain::delivery::{Delivery, Target, TargetKind};
use crate::domain::{Message, RowKey, Timestamp};
use crate::store::{Error, ErrorKind, Result};

/// 9999-12-31T23:59:59.999999Z: no stored time is later.
const LATEST_US: i64 = 253_402_300_799_999_999;

pub(super) fn corrupt(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, detail)
}

/// A moment as it is stored.
pub(super) fn micros(moment: Timestamp) -> i64 {
    moment.timestamp_micros()
}

/// `by` after `moment_us`.
pub(super) fn later(moment_us: i64, by: Duration) -> i64 {
    moment_us.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)).min(LATEST_US)
}

/// `by` before `moment_us`.
pub(super) fn earlier(moment_us: i64, by: Duration) -> i64 {
    moment_us.saturating_sub(i64::try_from(by.as_micros()).unwrap_or(i64::MAX))
}

/// From `now_us` until `moment_us`; zero when it has passed.
pub(super) fn until(moment_us: i64, now_us: i64) -> Duration {
    Duration::from_micros(u64::try_from(moment_us.saturating_sub(now_us)).unwrap_or(0))
}

pub(super) fn moment(us: i64) -> Result<Timestamp> {
    DateTime::from_timestamp_micros(us).ok_or_else(|| corrupt(format!("{us} is not a time")))
}

/// The logical id to store: nothing where it is the row id's text.
pub(super) fn stored_id(row_id: Uuid, message_id: &str) -> Option<&str> {
    (row_id.to_string() != message_id).then_some(message_id)
}

/// The row id that a logical id may be the text of.
pub(super) fn as_row_id(message_id: &str) -> Option<Uuid> {
    Uuid::parse_str(message_id).ok().filter(|id| id.to_string() == message_id)
}

pub(super) fn target_of(kind: i16, name: &str) -> Result<Target> {
    let kind = TargetKind::from_stored(kind).ok_or_else(|| corrupt("no such kind of target"))?;
    Ok(Target { kind, name: name.into() })
}

/// Reads columns by their names.
pub(super) trait Columns {
    fn int(&self, name: &str) -> Result<i64>;
    fn int_opt(&self, name: &str) -> Result<Option<i64>>;
    fn uuid(&self, name: &str) -> Result<Uuid>;
    fn uuid_opt(&self, name: &str) -> Result<Option<Uuid>>;
    fn text(&self, name: &str) -> Result<String>;
    fn text_opt(&self, name: &str) -> Result<Option<String>>;
    fn blob(&self, name: &str) -> Result<Bytes>;
    fn blob_opt(&self, name: &str) -> Result<Option<Bytes>>;

    fn small(&self, name: &str) -> Result<i16> {
        i16::try_from(self.int(name)?).map_err(|_| corrupt(format!("{name} is out of range")))
    }

    fn count(&self, name: &str) -> Result<u64> {
        u64::try_from(self.int(name)?).map_err(|_| corrupt(format!("{name} is negative")))
    }

    fn count32(&self, name: &str) -> Result<u32> {
        u32::try_from(self.int(name)?).map_err(|_| corrupt(format!("{name} is out of range")))
    }

    fn time(&self, name: &str) -> Result<Timestamp> {
        moment(self.int(name)?)
    }

    fn time_opt(&self, name: &str) -> Result<Option<Timestamp>> {
        self.int_opt(name)?.map(moment).transpose()
    }

    fn target(&self) -> Result<Target> {
        target_of(self.small("kind")?, &self.text("target")?)
    }

    /// The logical id of a row whose own id is in the column `row_id`.
    fn message_id(&self, row_id: Uuid) -> Result<String> {
        Ok(self.text_opt("message_id")?.unwrap_or_else(|| row_id.to_string()))
    }
}

impl Columns for SqliteRow {
    fn int(&self, name: &str) -> Result<i64> {
        self.try_get(name).map_err(error::of)
    }

    fn int_opt(&self, name: &str) -> Result<Option<i64>> {
        self.try_get(name).map_err(error::of)
    }

    fn uuid(&self, name: &str) -> Result<Uuid> {
        self.try_get(name).map_err(error::of)
    }

    fn uuid_opt(&self, name: &str) -> Result<Option<Uuid>> {
        self.try_get(name).map_err(error::of)
    }

    fn text(&self, name: &str) -> Result<String> {
        self.try_get(name).map_err(error::of)
    }

    fn text_opt(&self, name: &str) -> Result<Option<String>> {
        self.try_get(name).map_err(error::of)
    }

    fn blob(&self, name: &str) -> Result<Bytes> {
        self.try_get::<Vec<u8>, _>(name).map(Bytes::from).map_err(error::of)
    }

    fn blob_opt(&self, name: &str) -> Result<Option<Bytes>> {
        Ok(self.try_get::<Option<Vec<u8>>, _>(name).map_err(error::of)?.map(Bytes::from))
    }
}

/// A row of `oncegate_deliveries`.
pub(super) fn delivery(row: &SqliteRow) -> Result<Delivery> {
    let id = row.uuid("row_id")?;
    let envelope = row.text("envelope")?;
    let envelope = serde_json::from_str(&envelope).map_err(|error| corrupt(format!("envelope: {error}")))?;
    let message = Message {
        id: row.message_id(id)?,
        kind: row.text("type")?,
        tenant: row.text("tenant")?,
        body: row.blob("body")?,
        deduplication_id: row.text_opt("deduplication_id")?,
        partition_key: row.text_opt("partition_key")?,
        correlation_id: row.text_opt("correlation_id")?,
        deliver_at: row.time_opt("deliver_at")?,
        deliver_by: row.time_opt("deliver_by")?,
        accepted_at: row.time("accepted_at")?,
        envelope,
    };
    Ok(Delivery {
        row: RowKey { id, target_no: row.small("target_no")? },
        target: row.target()?,
        message: message.into(),
        attempts: row.count32("attempts")?,
    })
}

/// A statement over many rows of values, in the few sizes in which it is prepared.
pub(super) struct Batched(Vec<(usize, String)>);

impl Batched {
    const SIZES: [usize; 3] = [64, 8, 1];

    /// `{values}` in `sql` stands for rows of `columns` parameters.
    pub(super) fn new(sql: &str, columns: usize) -> Self {
        let row = format!("({})", vec!["?"; columns].join(","));
        let sized = |size| (size, sql.replace("{values}", &vec![row.as_str(); size].join(",")));
        Self(Self::SIZES.into_iter().map(sized).collect())
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> Vec<String> {
        self.0.iter().map(|(_, sql)| sql.clone()).collect()
    }

    /// The statements that take all of `items`, each with those that it takes.
    pub(super) fn over<'a, T>(&'static self, items: &'a [T]) -> Vec<(&'static str, &'a [T])> {
        let mut statements = Vec::new();
        let mut rest = items;
        for (size, sql) in &self.0 {
            while rest.len() >= *size {
                let (chunk, remainder) = rest.split_at(*size);
                statements.push((sql.as_str(), chunk));
                rest = remainder;
            }
        }
        statements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batched_statement_takes_every_item_once_and_in_order() {
        let batched: &'static Batched = Box::leak(Box::new(Batched::new("VALUES {values}", 2)));
        let items: Vec<usize> = (0..77).collect();
        let statements = batched.over(&items);
        assert_eq!(
            statements.iter().map(|(_, chunk)| chunk.len()).collect::<Vec<_>>(),
            [64, 8, 1, 1, 1, 1, 1]
        );
        assert_eq!(statements.iter().flat_map(|(_, chunk)| chunk.to_vec()).collect::<Vec<_>>(), items);
        assert_eq!(statements[2].0, "VALUES (?,?)");
    }

    #[test]
    fn only_the_canonical_text_of_a_uuid_is_a_row_id() {
        let id = Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_abcd);
        assert_eq!(as_row_id(&id.to_string()), Some(id));
        assert_eq!(as_row_id(&id.to_string().to_uppercase()), None);
        assert_eq!(as_row_id(&id.simple().to_string()), None);
        assert_eq!(stored_id(id, &id.to_string()), None);
        assert_eq!(stored_id(id, "other"), Some("other"));
    }

    #[test]
    fn times_saturate() {
        assert_eq!(later(0, Duration::MAX), LATEST_US);
        assert!(moment(later(0, Duration::MAX)).is_ok());
        assert_eq!(until(5, 10), Duration::ZERO);
    }
}
