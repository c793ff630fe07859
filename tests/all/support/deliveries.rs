//! Deliveries, made by hand, and transports, built as a node builds them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate::domain::delivery::{Delivery, Target};
use oncegate::domain::message::{Envelope, Message};
use oncegate::domain::{Clock, Random, RowKey};
use oncegate::transport::{self, Common, ConfigError, Context, Shared, registry};

/// A message of JSON with this id, as it stands right after it was accepted.
pub fn message(id: &str) -> Message {
    Message {
        id: id.to_owned(),
        kind: "order.created".to_owned(),
        tenant: String::new(),
        body: Bytes::from_static(b"{\"sku\":\"A-1\"}"),
        deduplication_id: None,
        partition_key: None,
        correlation_id: None,
        deliver_at: None,
        deliver_by: None,
        accepted_at: Clock::system().now(),
        envelope: Envelope { content_type: Some("application/json".to_owned()), ..Envelope::default() },
    }
}

/// Its delivery to a destination, not attempted before.
pub fn of(message: Message) -> Delivery {
    let row = RowKey { id: Random.uuid_v7(message.accepted_at), target_no: 0 };
    Delivery { row, target: Target::destination("target"), message: Arc::new(message), attempts: 0 }
}

/// The delivery of [`message`].
pub fn delivery(id: &str) -> Delivery {
    of(message(id))
}

/// The settings of a destination, written as in a configuration file.
pub fn settings(toml: &str) -> toml::Table {
    toml.parse().expect("settings")
}

/// What all destinations have, with this timeout.
pub fn common(timeout: Duration) -> Common {
    Common { timeout, ..Common::default() }
}

/// A transport on the system's clock.
pub fn build(transport: &str, toml: &str, common: &Common) -> Result<Shared, ConfigError> {
    registry::build("target", transport, settings(toml), common, &Context::default())
}

/// As [`build`], of what is known to be sound.
pub fn transport(transport: &str, toml: &str) -> Shared {
    build(transport, toml, &common(Duration::from_secs(10))).expect("a sound destination")
}

/// What a check at start says of the settings.
pub fn check(transport: &str, toml: &str) -> Result<(), transport::ConfigError> {
    registry::check(transport, settings(toml), &Common::default())
}
