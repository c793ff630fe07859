//! A message as AMQP 0.9.1 writes it.

use std::borrow::Cow;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};

use crate::domain::delivery::{DeadKind, Delivery, Failure, Fault, Format};
use crate::domain::{cloudevents, wire};

const PERSISTENT: u8 = 2;
const APP_ID: &str = "oncegate";

/// Properties and headers have to go into one frame. Brokers agree on 128 KiB by default; more than this is not
/// tried, since a frame that is too large costs the connection.
const LARGEST_HEADERS_BYTES: usize = 96 * 1024;

/// The properties of `delivery`, its headers among them.
///
/// # Errors
/// The message's fault: it can never be written.
pub(super) fn properties(delivery: &Delivery, format: Format) -> Result<BasicProperties, Failure> {
    let message = &*delivery.message;
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_app_id(APP_ID.into())
        .with_timestamp(u64::try_from(message.accepted_at.timestamp()).unwrap_or(0))
        .with_headers(headers(delivery, format)?);
    // A property takes 255 bytes. What is longer stands in the headers alone.
    if let Ok(id) = ShortString::try_new(message.id.as_str()) {
        properties = properties.with_message_id(id);
    }
    if let Ok(kind) = ShortString::try_new(message.kind.as_str()) {
        properties = properties.with_type(kind);
    }
    if let Some(Ok(id)) = message.correlation_id.as_deref().map(ShortString::try_new) {
        properties = properties.with_correlation_id(id);
    }
    if let Some(Ok(content_type)) = message.envelope.content_type.as_deref().map(ShortString::try_new) {
        properties = properties.with_content_type(content_type);
    }
    Ok(properties)
}

/// The wire headers are the same as everywhere, encoding included.
fn headers(delivery: &Delivery, format: Format) -> Result<FieldTable, Failure> {
    let mut table = FieldTable::default();
    let mut size_bytes = 0;
    let mut insert = |name: Cow<'_, str>, value: Cow<'_, str>| {
        size_bytes += name.len() + value.len() + 6; // the lengths, and the type
        let name = ShortString::try_new(name).map_err(|_| {
            Failure::new(
                Fault::Message(DeadKind::Refused),
                "the name of a header is longer than AMQP's 255 bytes",
            )
        })?;
        table.insert(name, AMQPValue::LongString(LongString::from(value.as_bytes())));
        Ok::<_, Failure>(())
    };
    match format {
        Format::Plain => {
            for (name, value) in wire::http_headers(delivery) {
                insert(name.into(), value)?;
            }
        }
        Format::CloudEvents => {
            for (name, value) in cloudevents::amqp_properties(delivery) {
                insert(name.into(), value.into())?;
            }
        }
    }
    if size_bytes > LARGEST_HEADERS_BYTES {
        let text = format!("its headers take {size_bytes} bytes; AMQP has room for {LARGEST_HEADERS_BYTES}");
        return Err(Failure::new(Fault::Message(DeadKind::TooLarge), text));
    }
    Ok(table)
}
