//! CloudEvents 1.0 (JSON format, HTTP and AMQP bindings): events read into drafts ([`decode`]), deliveries
//! written as events ([`encode`]).
//!
//! How attributes and members belong together:
//!
//! | attribute | member |
//! |---|---|
//! | `id`, `type`, `source`, `subject` | the same |
//! | `datacontenttype` | content type |
//! | `deduplicationid`, `partitionkey`, `correlationid`, `causationid`, `deliverat`, `deliverby` | the member of that name; an empty `deduplicationid` opts out of all rules |
//! | `traceparent`, `tracestate` | the trace context, if it is well formed |
//! | `tenantid`, `attempts` | written, never read: what an event says of them is dropped |
//! | `time`, `dataschema`, any other | the message's own header `ce-NAME`, so that it comes out again as it went in |
//!
//! On the way out `time` is the moment of acceptance where the event had none, and `source` is
//! [`DEFAULT_SOURCE`] where the message has none. Own headers without `ce-` travel beside the event as plain
//! headers; in the structured form there is no place for them.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use decode::{batch, binary, structured};
pub use encode::{DEFAULT_SOURCE, amqp_properties, http_headers, to_json};

use super::media;

pub const STRUCTURED_JSON: &str = "application/cloudevents+json";
pub const BATCH_JSON: &str = "application/cloudevents-batch+json";

/// What the content type says of a request (HTTP binding, 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Structured,
    Batch,
    /// CloudEvents in another format than JSON.
    Unsupported,
}

/// The mode, by the content type; `None`: not structured, so it is binary if there are `ce-` headers.
pub fn mode(content_type: &str) -> Option<Mode> {
    if media::is(content_type, STRUCTURED_JSON) {
        Some(Mode::Structured)
    } else if media::is(content_type, BATCH_JSON) {
        Some(Mode::Batch)
    } else {
        let essence = media::essence(content_type).to_ascii_lowercase();
        essence.starts_with("application/cloudevents").then_some(Mode::Unsupported)
    }
}

/// Whether `name` can be an attribute's: lower-case letters and digits.
fn is_attribute_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}
