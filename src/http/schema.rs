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
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    id: Option<String>,
    /// What the message is, e.g. `order.created`.
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\s\\x00-\\x1f\\x7f-\\x9f]+$")]
    r#type: String,
    /// What the message comes from, e.g. a URI.
    #[schema(min_length = 1, max_length = 1024, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    source: Option<String>,
    /// What the message is about, within its source.
    #[schema(min_length = 1, max_length = 1024, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    subject: Option<String>,
    /// The data, any JSON value; carried as it stands. Not together with `dataBase64`.
    data: Option<Value>,
    /// The data as bytes, in base64.
    #[schema(value_type = Option<String>, format = Byte)]
    data_base64: Option<String>,
    /// The data's media type; `application/json` for `data`, else `application/octet-stream`.
    #[schema(
        min_length = 1,
        max_length = 255,
        pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+/[A-Za-z0-9!#$%&'*+.^_`|~-]+( *;[ -~]*)?$"
    )]
    content_type: Option<String>,
    /// The message's own headers. Names that the gateway sets itself are refused.
    #[schema(value_type = Option<BTreeMap<OwnHeaderName, OwnHeaderValue>>)]
    headers: Option<BTreeMap<String, String>>,
    /// The identity of the work that the message asks for. Empty: no rule derives one.
    #[schema(max_length = 512, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    deduplication_id: Option<String>,
    /// Messages with the same key keep their order on ordered destinations.
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    partition_key: Option<String>,
    /// What this message and others belong to.
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    correlation_id: Option<String>,
    /// The id of the message that caused this one.
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    causation_id: Option<String>,
    /// Not before this moment. At once if it is past.
    deliver_at: Option<DateTime<Utc>>,
    /// Instead of `deliverAt`: after this long, as `30s` or in ISO 8601.
    #[schema(example = "30s")]
    delay: Option<String>,
    /// Not after this moment, which may not be past.
    deliver_by: Option<DateTime<Utc>>,
    /// Instead of the routes: these destinations. Needs the grant `publish:TYPE@DESTINATION`.
    #[schema(min_items = 1, max_items = 64)]
    destinations: Option<Vec<DestinationName>>,
}

/// What of a dead letter's message can be changed; what is left out stays.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"data": {"orderId": 1017}}))]
#[allow(dead_code)] // documentation
pub struct DeadLetterEdit {
    /// The data, any JSON value; carried as it stands. Not together with `dataBase64`.
    data: Option<Value>,
    /// The data as bytes, in base64.
    #[schema(value_type = Option<String>, format = Byte)]
    data_base64: Option<String>,
    #[schema(
        min_length = 1,
        max_length = 255,
        pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+/[A-Za-z0-9!#$%&'*+.^_`|~-]+( *;[ -~]*)?$"
    )]
    content_type: Option<String>,
    /// All the headers of its own that the message has from now on.
    #[schema(value_type = Option<BTreeMap<OwnHeaderName, OwnHeaderValue>>)]
    headers: Option<BTreeMap<String, String>>,
}

/// A token (RFC 9110), in lower case.
#[derive(ToSchema, PartialEq, Eq, PartialOrd, Ord)]
#[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
#[allow(dead_code)] // documentation
struct OwnHeaderName(String);

/// A destination's name in the configuration.
#[derive(Deserialize, ToSchema)]
#[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
#[allow(dead_code)] // documentation
struct DestinationName(String);

/// A header's value.
#[derive(ToSchema)]
#[schema(max_length = 1024, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
#[allow(dead_code)] // documentation
struct OwnHeaderValue(String);

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
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    id: String,
    #[schema(min_length = 1, max_length = 1024, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    source: String,
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\s\\x00-\\x1f\\x7f-\\x9f]+$")]
    r#type: String,
    #[schema(min_length = 1, max_length = 1024, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    subject: Option<String>,
    #[schema(
        min_length = 1,
        max_length = 255,
        pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+/[A-Za-z0-9!#$%&'*+.^_`|~-]+( *;[ -~]*)?$"
    )]
    datacontenttype: Option<String>,
    #[schema(min_length = 1, max_length = 1024, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    dataschema: Option<String>,
    time: Option<DateTime<Utc>>,
    data: Option<Value>,
    #[schema(value_type = Option<String>, format = Byte)]
    data_base64: Option<String>,
    /// The identity of the work that the message asks for.
    #[schema(max_length = 512, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    deduplicationid: Option<String>,
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    partitionkey: Option<String>,
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    correlationid: Option<String>,
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    causationid: Option<String>,
    deliverat: Option<DateTime<Utc>>,
    deliverby: Option<DateTime<Utc>>,
    /// Extension attributes: names of lower-case letters and digits.
    #[serde(flatten)]
    extensions: BTreeMap<String, Extension>,
}

/// An extension attribute's value.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = CloudEventExtension)]
#[allow(dead_code)] // documentation
enum Extension {
    Text(String),
    Number(i32),
    Truth(bool),
}
