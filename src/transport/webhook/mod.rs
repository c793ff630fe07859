//! Webhooks: the message's body in a POST, its members as headers, signed as Standard Webhooks say.
//!
//! A 2xx acknowledges. No connection is the target's fault; what happens after the request was sent tells
//! nothing certain, and counts as an attempt.

mod config;
mod request;

use std::time::Duration;

use async_trait::async_trait;

use super::guard::{Client, Reach, describe};
use super::registry::{Endpoint, Kind};
use super::{Ack, Common, ConfigError, Context, Shared, Transport, answer};
use crate::domain::Clock;
use crate::domain::delivery::{Delivery, Failure, Fault, Format};

pub use config::Config;

/// Connecting gets this share of an attempt, so that a host that is not there is told from a slow answer.
const CONNECT_SHARE: f64 = 0.6;
/// And never more than this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The transport `webhook`.
pub(super) struct Webhook;

impl Kind for Webhook {
    const NAME: &'static str = "webhook";
    type Config = Config;

    fn check(config: &Config, _: &Common) -> Result<(), ConfigError> {
        config.check()
    }

    fn endpoint(config: &Config) -> Option<Endpoint> {
        let reach = if config.allow_private { Reach::Any } else { Reach::Public };
        Endpoint::of_url(&config.url().ok()?, reach)
    }

    fn build(_: &str, config: Config, common: &Common, context: &Context) -> Result<Shared, ConfigError> {
        let reach = if config.allow_private { Reach::Any } else { Reach::Public };
        let connect_timeout = common.timeout.mul_f64(CONNECT_SHARE).min(CONNECT_TIMEOUT);
        let client = Client::new(reach, connect_timeout, &context.proxies)
            .map_err(|text| ConfigError::new("transport", text))?;
        Ok(std::sync::Arc::new(Sender {
            client,
            config,
            timeout: common.timeout,
            format: common.format,
            clock: context.clock.clone(),
        }))
    }
}

struct Sender {
    client: Client,
    config: Config,
    timeout: Duration,
    format: Format,
    clock: Clock,
}

#[async_trait]
impl Transport for Sender {
    async fn send(&self, delivery: &Delivery) -> Result<Ack, Failure> {
        let headers = self.headers(delivery)?;
        let url = self.config.url().map_err(|text| Failure::new(Fault::Target, text))?;
        let request = match self.client.post(url).await {
            Ok(request) => request,
            Err(refused) => return Err(Failure::new(Fault::Target, format!("{refused}; {}", config::HINT))),
        };
        let sent = request.headers(headers).body(delivery.message.body.clone()).timeout(self.timeout).send();
        match sent.await {
            Ok(response) => answer::read(response, &self.clock).await,
            Err(error) => {
                let fault = if error.is_connect() { Fault::Target } else { Fault::Attempt };
                let timeout = error.is_timeout() && !error.is_connect();
                let text = describe(error);
                let text =
                    if timeout { format!("no answer within {:?}: {text}", self.timeout) } else { text };
                Err(Failure::new(fault, text))
            }
        }
    }
}
