//! The bodies of publish, for the OpenAPI document only: the bytes are read by `domain::native` and
//! `domain::cloudevents`, which keep what they do not interpret as it stands.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

/// A message to be published, in the gateway's own form.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"type": "order.created", "data": {"orderId": 1017}, "partitionKey": "customer-7"}))]
#[allow(dead_code)] // documentation
pub struct NewMessage {
    /// The message's id; a UUIDv7 if left out. It is no key: the same id may be published again.
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    id: Option<String>,
    /// What the message is, e.g. `order.created`.
    #[schema(min_length = 1, max_length = 255)]
    r#type: String,
    /// What the message comes from, e.g. a URI.
    #[schema(nullable = false, min_length = 1, max_length = 1024)]
    source: Option<String>,
    /// What the message is about, within its source.
    #[schema(nullable = false, min_length = 1, max_length = 1024)]
    subject: Option<String>,
    /// The data, any JSON value; carried as it stands. Not together with `dataBase64`.
    data: Option<Value>,
    /// The data as bytes, in base64.
    #[schema(nullable = false, value_type = Option<String>, format = Byte)]
    data_base64: Option<String>,
    /// The data's media type; `application/json` for `data`, else `application/octet-stream`.
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    content_type: Option<String>,
    /// The message's own headers. Names that the gateway sets itself are refused.
    #[schema(nullable = false)]
    headers: Option<BTreeMap<String, String>>,
    /// The identity of the work that the message asks for. Empty: no rule derives one.
    #[schema(nullable = false, max_length = 512)]
    deduplication_id: Option<String>,
    /// Messages with the same key keep their order on ordered destinations.
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    partition_key: Option<String>,
    /// What this message and others belong to.
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    correlation_id: Option<String>,
    /// The id of the message that caused this one.
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    causation_id: Option<String>,
    /// Not before this moment. At once if it is past.
    #[schema(nullable = false)]
    deliver_at: Option<DateTime<Utc>>,
    /// Instead of `deliverAt`: after this long, as `30s` or in ISO 8601.
    #[schema(nullable = false, example = "30s")]
    delay: Option<String>,
    /// Not after this moment, which may not be past.
    #[schema(nullable = false)]
    deliver_by: Option<DateTime<Utc>>,
    /// Instead of the routes: these destinations. Needs the grant `publish:TYPE@DESTINATION`.
    #[schema(nullable = false, min_items = 1, max_items = 64)]
    destinations: Option<Vec<String>>,
}

/// A CloudEvent (1.0) in structured mode. Extension attributes are carried as the message's own headers.
#[derive(Deserialize, ToSchema)]
#[schema(example = json!({
    "specversion": "1.0", "id": "e-1", "source": "/shop", "type": "order.created",
    "datacontenttype": "application/json", "data": {"orderId": 1017},
}))]
#[allow(dead_code)] // documentation
pub struct CloudEvent {
    #[schema(pattern = "^1\\.0$")]
    specversion: String,
    #[schema(min_length = 1, max_length = 255)]
    id: String,
    #[schema(min_length = 1, max_length = 1024)]
    source: String,
    #[schema(min_length = 1, max_length = 255)]
    r#type: String,
    #[schema(nullable = false, min_length = 1, max_length = 1024)]
    subject: Option<String>,
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    datacontenttype: Option<String>,
    #[schema(nullable = false)]
    dataschema: Option<String>,
    #[schema(nullable = false)]
    time: Option<DateTime<Utc>>,
    data: Option<Value>,
    #[schema(nullable = false, value_type = Option<String>, format = Byte)]
    data_base64: Option<String>,
    /// The identity of the work that the message asks for.
    #[schema(nullable = false, max_length = 512)]
    deduplicationid: Option<String>,
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    partitionkey: Option<String>,
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    correlationid: Option<String>,
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    causationid: Option<String>,
    #[schema(nullable = false)]
    deliverat: Option<DateTime<Utc>>,
    #[schema(nullable = false)]
    deliverby: Option<DateTime<Utc>>,
}
