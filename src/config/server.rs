//! `[server]`

use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ByteSize, Duration, Rate};

/// The HTTP server.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    /// The address and port to listen on. Anything but a loopback address needs `[auth]`.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// Another address and port, for `/healthz`, `/readyz` and `/metrics`; `/metrics` is answered nowhere else then. Left
    /// out: `listen` answers everything.
    #[schemars(with = "Option<String>", extend("examples" = ["127.0.0.1:8081"]))]
    pub admin_listen: Option<SocketAddr>,
    /// After SIGTERM, how long requests and deliveries that have begun may take to end. What is left then is in
    /// the store, and another node or the next start takes it.
    pub drain_timeout: Duration,
    /// What a client can ask for at most.
    pub limits: Limits,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            admin_listen: None,
            drain_timeout: Duration::from_secs(20),
            limits: Limits::default(),
        }
    }
}

/// What a client can ask for at most.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The largest request body, for a batch too.
    pub body: ByteSize,
    /// The most messages in one batch.
    pub batch: u32,
    /// The most connections at once; further ones wait to be accepted.
    pub connections: u32,
    /// How long a client may take to send a request's head, and how long a connection may be idle before it.
    pub header_timeout: Duration,
    /// How long a client may take to send a request's body.
    pub body_timeout: Duration,
    /// How deep arrays and objects may nest in a JSON body that the gateway reads; at most 127.
    pub json_depth: u8,
    /// How far ahead a message may be scheduled.
    pub deliver_horizon: Duration,
    /// How often one principal may ask, on each node: `100/s`, `600/1m`. Over it requests are answered 429. Left out:
    /// as often as it likes.
    #[schemars(extend("examples" = ["100/s"]))]
    pub rate: Option<Rate>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: ByteSize::mib(1),
            batch: 1000,
            connections: 4096,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            json_depth: 64,
            deliver_horizon: Duration::from_hours(365 * 24),
            rate: None,
        }
    }
}
