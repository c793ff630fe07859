//! For users of the crate: publishing inside a transaction of their own.

use sqlx::{PgConnection, SqliteConnection};
use uuid::Uuid;

use super::{Error, ErrorKind, Result};
use crate::domain::fields::{Limits, format_time};
use crate::domain::message::{Draft, DraftDeduplication};
use crate::domain::{Clock, Random};

const POSTGRES: &str = "SELECT oncegate.publish_bytes($1, $2, id => $3, source => $4, subject => $5, headers => $6,
    deduplication_id => $7, partition_key => $8, correlation_id => $9, causation_id => $10, content_type => $11,
    deliver_at => $12, deliver_by => $13, destinations => $14)";

const SQLITE: &str = "INSERT INTO oncegate_intake
    (type, data, id, source, subject, headers, deduplication_id, partition_key, correlation_id, causation_id,
     content_type, deliver_at, deliver_by, destinations)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// A connection in a transaction of the user's: what `&mut *transaction` is.
pub trait Connection: private::Insert {}
impl Connection for PgConnection {}
impl Connection for SqliteConnection {}

/// Publishes in the user's own transaction: the message is sent if and only if it commits. Returns its id, a new
/// one where the draft has none. Without a content type the body is `application/json`.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut transaction = pool.begin().await?;
/// sqlx::query("INSERT INTO orders (id) VALUES (42)").execute(&mut *transaction).await?;
/// let message = oncegate::Draft {
///     kind: "order.created".into(),
///     body: r#"{"orderId": 42}"#.into(),
///     ..Default::default()
/// };
/// oncegate::publish_in(&mut *transaction, message).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidData`]: the draft is no message, or (PostgreSQL) its id is no UUID; otherwise what the
/// database said. The transaction of PostgreSQL can only be rolled back then.
pub async fn publish_in<C: Connection>(connection: &mut C, mut message: Draft) -> Result<Uuid> {
    let invalid = |text: String| Error::new(ErrorKind::InvalidData, text);
    let now = Clock::system().now();
    message.envelope.content_type.get_or_insert_with(|| "application/json".to_owned());
    message.check(&Limits::default(), now).map_err(|errors| {
        let say =
            |error: &crate::domain::fields::FieldError| format!("{} {}", error.field.name(), error.detail);
        invalid(errors.iter().map(say).collect::<Vec<_>>().join("; "))
    })?;
    if let Some(delay) = message.delay.take() {
        let delay = chrono::Duration::from_std(delay).map_err(|error| invalid(error.to_string()))?;
        message.deliver_at = now.checked_add_signed(delay);
    }
    let id = match &message.id {
        Some(id) => Uuid::parse_str(id).map_err(|_| invalid("id must be a UUID".into()))?,
        None => Random.uuid_v7(now),
    };
    connection.insert(id, message).await?;
    Ok(id)
}

mod private {
    use super::*;

    #[allow(async_fn_in_trait, reason = "sealed; the futures of sqlx's connections can be sent")]
    pub trait Insert {
        fn insert(&mut self, id: Uuid, message: Draft) -> impl Future<Output = Result<()>> + Send;
    }

    impl Insert for PgConnection {
        async fn insert(&mut self, id: Uuid, message: Draft) -> Result<()> {
            let headers = headers(&message);
            let query = sqlx::query(POSTGRES)
                .bind(message.kind)
                .bind(message.body.to_vec())
                .bind(id)
                .bind(message.envelope.source)
                .bind(message.envelope.subject)
                .bind(headers.map(sqlx::types::Json))
                .bind(said(message.deduplication))
                .bind(message.partition_key)
                .bind(message.correlation_id)
                .bind(message.envelope.causation_id)
                .bind(message.envelope.content_type)
                .bind(message.deliver_at)
                .bind(message.deliver_by)
                .bind(message.destinations);
            query.execute(self).await.map(|_| ()).map_err(failed)
        }
    }

    impl Insert for SqliteConnection {
        async fn insert(&mut self, id: Uuid, message: Draft) -> Result<()> {
            let json = |value: serde_json::Value| value.to_string();
            let headers = headers(&message);
            let query = sqlx::query(SQLITE)
                .bind(message.kind)
                .bind(message.body.to_vec())
                .bind(id.to_string())
                .bind(message.envelope.source)
                .bind(message.envelope.subject)
                .bind(headers.map(|headers| json(serde_json::json!(headers))))
                .bind(said(message.deduplication))
                .bind(message.partition_key)
                .bind(message.correlation_id)
                .bind(message.envelope.causation_id)
                .bind(message.envelope.content_type)
                .bind(message.deliver_at.map(format_time))
                .bind(message.deliver_by.map(format_time))
                .bind(message.destinations.map(|names| json(serde_json::json!(names))));
            query.execute(self).await.map(|_| ()).map_err(failed)
        }
    }

    fn headers(message: &Draft) -> Option<std::collections::BTreeMap<String, String>> {
        Some(message.envelope.headers.clone()).filter(|headers| !headers.is_empty())
    }

    fn said(deduplication: DraftDeduplication) -> Option<String> {
        match deduplication {
            DraftDeduplication::Derive => None,
            DraftDeduplication::OptOut => Some(String::new()),
            DraftDeduplication::Id(id) => Some(id),
        }
    }

    fn failed(error: sqlx::Error) -> Error {
        let refused = error.as_database_error().is_some_and(|error| {
            error.is_check_violation() || error.code().is_some_and(|code| code == "22023")
        });
        let kind = if refused { ErrorKind::InvalidData } else { ErrorKind::Unavailable };
        Error::new(kind, error.to_string())
    }
}
