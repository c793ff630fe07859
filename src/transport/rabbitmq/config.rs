//! What a RabbitMQ destination's table takes.

use lapin::types::ShortString;
use lapin::uri::AMQPUri;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use super::routing::RoutingKey;
use crate::config::Secret;
use crate::transport::ConfigError;

/// A frozen broker is noticed after two of these, in seconds.
const HEARTBEAT_S: u16 = 10;
/// How long the TCP connection may take, in milliseconds.
const TCP_TIMEOUT_MS: u64 = 5000;

/// RabbitMQ (AMQP 0.9.1). A message is acknowledged when the broker has confirmed that a queue holds it: it is
/// published `mandatory` and persistent, and one that no queue takes is not sent.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The broker: `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS. Without a path the virtual host
    /// is `/`; a `/` in its name is written `%2f`.
    #[schemars(extend("examples" = ["amqp://guest:guest@localhost:5672"]))]
    pub url: Secret,
    /// The exchange to publish to. The default exchange, left out or `""`, takes the routing key for a queue's
    /// name.
    #[serde(default)]
    #[schemars(extend("examples" = ["events"]))]
    pub exchange: String,
    /// The routing key: a text in which `{@type}`, `{@tenant}`, `{@partitionKey}`, `{@subject}`, `{@source}`,
    /// `{@id}` and `{@header.NAME}` stand for members of the message (nothing, where it has none).
    #[serde(default = "default_routing_key")]
    #[schemars(extend("examples" = ["orders", "{@type}"]))]
    pub routing_key: String,
    /// What to declare on every connection before the first message. Left out: nothing, it has to be there.
    #[serde(default)]
    pub declare: Option<Declare>,
}

fn default_routing_key() -> String {
    "{@type}".to_owned()
}

/// What to declare. What is there already must have been declared alike.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Declare {
    /// Declares `exchange`, with this type.
    #[serde(default)]
    #[schemars(extend("examples" = ["topic"]))]
    pub exchange: Option<ExchangeType>,
    /// Declares a queue of this name.
    #[serde(default)]
    #[schemars(extend("examples" = ["orders"]))]
    pub queue: Option<String>,
    /// The type of the queue.
    #[serde(default)]
    pub queue_type: QueueType,
    /// Whether exchange and queue outlive the broker's restart.
    #[serde(default = "yes")]
    pub durable: bool,
    /// The binding keys between `exchange` and the queue.
    #[serde(default)]
    #[schemars(extend("examples" = [["order.*"]]))]
    pub bindings: Vec<String>,
}

fn yes() -> bool {
    true
}

/// The type of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExchangeType {
    Direct,
    Fanout,
    Topic,
    Headers,
}

/// The type of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum QueueType {
    #[default]
    Classic,
    /// Replicated; always durable.
    Quorum,
}

impl Config {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        uri(&self.url.expose()).map_err(|text| ConfigError::new("url", text))?;
        short("exchange", &self.exchange)?;
        RoutingKey::parse(&self.routing_key).map_err(|text| ConfigError::new("routing_key", text))?;
        self.declare.as_ref().map_or(Ok(()), |declare| declare.check(&self.exchange))
    }
}

impl Declare {
    fn check(&self, exchange: &str) -> Result<(), ConfigError> {
        let wrong = |key: &str, text: &str| Err(ConfigError::new(format!("declare.{key}"), text));
        if exchange.is_empty() && self.exchange.is_some() {
            return wrong(
                "exchange",
                "the default exchange is always there: give `exchange` a name, or leave this out",
            );
        }
        if exchange.is_empty() && !self.bindings.is_empty() {
            return wrong(
                "bindings",
                "queues cannot be bound to the default exchange: give `exchange` a name, or leave this out",
            );
        }
        if self.queue.is_none() && !self.bindings.is_empty() {
            return wrong("bindings", "there is no `queue` to bind");
        }
        if self.queue_type == QueueType::Quorum && !self.durable {
            return wrong("durable", "a quorum queue is always durable");
        }
        if self.queue.as_deref() == Some("") {
            return wrong("queue", "must not be empty");
        }
        short("declare.queue", self.queue.as_deref().unwrap_or_default())?;
        self.bindings.iter().try_for_each(|key| short("declare.bindings", key))
    }
}

/// AMQP's short strings take 255 bytes.
fn short(key: &str, text: &str) -> Result<(), ConfigError> {
    match ShortString::try_new(text) {
        Ok(_) => Ok(()),
        Err(_) => Err(ConfigError::new(key, "is longer than 255 bytes")),
    }
}

/// The broker's address, with the defaults of this gateway.
pub(super) fn uri(text: &str) -> Result<AMQPUri, String> {
    let no_address = "is not an address such as `amqp://user:password@host:5672/vhost`";
    let url = Url::parse(text).map_err(|error| format!("{no_address}: {error}"))?;
    if !matches!(url.scheme(), "amqp" | "amqps") || url.host_str().is_none_or(str::is_empty) {
        return Err(no_address.to_owned());
    }
    let mut uri: AMQPUri = text.parse().map_err(|error| format!("{no_address}: {error}"))?;
    if let Some(Host::Ipv6(ip)) = url.host() {
        // The library reads names only, and would go to its default host.
        uri.authority.host = ip.to_string();
    }
    if uri.vhost.is_empty() {
        // By the letter a trailing slash names the virtual host "", which nobody has.
        "/".clone_into(&mut uri.vhost);
    }
    uri.query.heartbeat.get_or_insert(HEARTBEAT_S);
    uri.query.connection_timeout.get_or_insert(TCP_TIMEOUT_MS);
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, host, vhost) in [
            ("amqp://h", "h", "/"),
            ("amqp://h/", "h", "/"),
            ("amqp://h/%2f", "h", "/"),
            ("amqps://u:p@h:5671/shop", "h", "shop"),
            ("amqp://10.0.0.1:5673", "10.0.0.1", "/"),
            ("amqp://[::1]:5673/x", "::1", "x"),
        ] {
            let uri = uri(text).unwrap();
            assert_eq!((uri.authority.host.as_str(), uri.vhost.as_str()), (host, vhost), "{text}");
            assert_eq!(uri.query.heartbeat, Some(HEARTBEAT_S));
        }
        assert_eq!(uri("amqp://h?heartbeat=42").unwrap().query.heartbeat, Some(42));
        for text in ["", "h", "http://h", "amqp://", "amqp://h?heartbeat=x"] {
            assert!(uri(text).unwrap_err().contains("is not an address"), "{text}");
        }
    }
}
