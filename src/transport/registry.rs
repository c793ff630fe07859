//! The one place that names the transports.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use url::{Host, Url};

use super::guard::Reach;
use super::rabbitmq::RabbitMq;
use super::stdout::Stdout;
use super::webhook::Webhook;
use super::{Common, ConfigError, Context, Shared, settings};

/// One way to reach destinations: how its settings are read, checked and used. Implemented once per folder.
pub(super) trait Kind {
    /// The value of `transport` in a destination.
    const NAME: &'static str;
    /// The destination's keys besides those that every destination has. Refuses unknown ones.
    type Config: DeserializeOwned + JsonSchema;

    /// What can be found wrong without connecting to anything.
    fn check(config: &Self::Config, common: &Common) -> Result<(), ConfigError>;

    /// Where it connects to; `None`: nowhere. Called after `check`.
    fn endpoint(_config: &Self::Config) -> Option<Endpoint> {
        None
    }

    /// The transport. Connects to nothing yet, or does so in the background: a target that is down is no
    /// reason for a node not to start. Called within a Tokio runtime, after `check`.
    fn build(
        name: &str,
        config: Self::Config,
        common: &Common,
        context: &Context,
    ) -> Result<Shared, ConfigError>;
}

/// Where a destination is on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    /// Which addresses the host may resolve to.
    pub reach: Reach,
}

impl Endpoint {
    /// The host and port of a URL; `None` where its scheme has no usual port and it names none.
    pub fn of_url(url: &Url, reach: Reach) -> Option<Self> {
        let host = match url.host()? {
            Host::Ipv6(ip) => ip.to_string(),
            other => other.to_string(),
        };
        Some(Self { host, port: url.port_or_known_default()?, reach })
    }
}

/// A [`Kind`] without its type.
struct Entry {
    name: &'static str,
    check: fn(toml::Table, &Common) -> Result<(), ConfigError>,
    build: fn(&str, toml::Table, &Common, &Context) -> Result<Shared, ConfigError>,
    endpoint: fn(toml::Table) -> Result<Option<Endpoint>, ConfigError>,
    schema: fn(&mut SchemaGenerator) -> Schema,
}

const fn entry<K: Kind>() -> Entry {
    Entry {
        name: K::NAME,
        check: |table, common| K::check(&settings::read(table)?, common),
        build: |name, table, common, context| {
            let config = settings::read(table)?;
            K::check(&config, common)?;
            K::build(name, config, common, context)
        },
        endpoint: |table| Ok(K::endpoint(&settings::read(table)?)),
        schema: |generator| K::Config::json_schema(generator),
    }
}

/// The transports, in the order in which the documentation tells of them.
const TRANSPORTS: &[Entry] = &[entry::<Stdout>(), entry::<Webhook>(), entry::<RabbitMq>()];

/// The names that `transport` takes.
pub fn names() -> impl Iterator<Item = &'static str> {
    TRANSPORTS.iter().map(|entry| entry.name)
}

/// Whether a destination's settings are sound, as far as that can be told without connecting. `settings` is
/// its table without the keys that every destination has.
///
/// # Errors
/// What is wrong, by its key below the destination.
pub fn check(transport: &str, settings: toml::Table, common: &Common) -> Result<(), ConfigError> {
    (find(transport)?.check)(settings, common)
}

/// The transport of the destination `name`; checks its settings first. To be called within a Tokio runtime;
/// connections are made in the background, so that a target that is down fails nothing here.
///
/// # Errors
/// As [`check`].
pub fn build(
    name: &str,
    transport: &str,
    settings: toml::Table,
    common: &Common,
    context: &Context,
) -> Result<Shared, ConfigError> {
    (find(transport)?.build)(name, settings, common, context)
}

/// Where a destination is on the network, as far as its settings tell; for who looks whether it is there.
///
/// # Errors
/// As [`check`].
pub fn endpoint(transport: &str, settings: toml::Table) -> Result<Option<Endpoint>, ConfigError> {
    (find(transport)?.endpoint)(settings)
}

/// The JSON schema of each transport's settings, by its name; without the keys that every destination has.
pub fn schemas(generator: &mut SchemaGenerator) -> Vec<(&'static str, Schema)> {
    TRANSPORTS.iter().map(|entry| (entry.name, (entry.schema)(generator))).collect()
}

fn find(transport: &str) -> Result<&'static Entry, ConfigError> {
    TRANSPORTS.iter().find(|entry| entry.name == transport).ok_or_else(|| {
        let known: Vec<_> = names().collect();
        ConfigError::new(
            "transport",
            format!("there is no transport `{transport}`; there are {}", known.join(", ")),
        )
    })
}
