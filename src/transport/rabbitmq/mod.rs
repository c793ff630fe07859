//! RabbitMQ, by AMQP 0.9.1: publisher confirms, `mandatory`, persistent.
//!
//! [`supervisor`] keeps a connection, [`session`] publishes over its channel, many messages at a time. A message
//! is acknowledged when the broker confirmed it and did not give it back. When a connection breaks, what waited
//! for its confirm may be with the broker or not; it is sent again, with the same message id.

mod config;
mod envelope;
mod failure;
mod routing;
mod session;
mod supervisor;
mod topology;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lapin::types::ShortString;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::guard::Reach;
use super::registry::{Endpoint, Kind};
use super::{Ack, Common, ConfigError, Connect, Context, Shared, Transport};
use crate::domain::delivery::{DeadKind, Delivery, Failure, Fault, Format};
use config::Config;
use routing::RoutingKey;
use session::Publish;
use supervisor::{State, Supervisor};

/// How many messages may be on their way at once, where the configuration does not say.
const IN_FLIGHT: usize = 1024;
/// A confirm that takes this many timeouts is none: the connection is made anew.
const STUCK_TIMEOUTS: u32 = 3;
const STUCK_AT_LEAST: Duration = Duration::from_secs(10);

/// The transport `rabbitmq`.
pub(super) struct RabbitMq;

impl Kind for RabbitMq {
    const NAME: &'static str = "rabbitmq";
    type Config = Config;

    fn check(config: &Config, _: &Common) -> Result<(), ConfigError> {
        config.check()
    }

    fn endpoint(config: &Config) -> Option<Endpoint> {
        let authority = config::uri(&config.url.expose()).ok()?.authority;
        Some(Endpoint { host: authority.host, port: authority.port, reach: Reach::Any })
    }

    fn build(name: &str, config: Config, common: &Common, context: &Context) -> Result<Shared, ConfigError> {
        let exchange = ShortString::try_new(config.exchange.as_str())
            .map_err(|_| ConfigError::new("exchange", "is longer than 255 bytes"))?;
        let routing_key =
            RoutingKey::parse(&config.routing_key).map_err(|text| ConfigError::new("routing_key", text))?;
        let (publishes, waiting) = mpsc::channel(common.max_in_flight.unwrap_or(IN_FLIGHT).max(1));
        let begins = match context.connect {
            Connect::AtOnce => State::Connecting,
            Connect::WhenNeeded => State::Idle,
        };
        let state = Arc::new(watch::Sender::new(begins));
        let wanted = Arc::new(Notify::new());
        let supervisor = Supervisor {
            name: name.to_owned(),
            config,
            random: context.random,
            publishes: waiting,
            state: Arc::clone(&state),
            wanted: (context.connect == Connect::WhenNeeded).then(|| Arc::clone(&wanted)),
            kept: Vec::new(),
            stuck_after: common.timeout.saturating_mul(STUCK_TIMEOUTS).max(STUCK_AT_LEAST),
        };
        let task = tokio::spawn(supervisor.run());
        Ok(Arc::new(Publisher {
            exchange,
            routing_key,
            format: common.format,
            timeout: common.timeout,
            state,
            wanted: (context.connect == Connect::WhenNeeded).then_some(wanted),
            publishes: Mutex::new(Some(publishes)),
            task: Mutex::new(Some(task)),
        }))
    }
}

struct Publisher {
    exchange: ShortString,
    routing_key: RoutingKey,
    format: Format,
    timeout: Duration,
    state: Arc<watch::Sender<State>>,
    /// Told when there is something to send, where a connection is made only then.
    wanted: Option<Arc<Notify>>,
    /// `None` once it was closed.
    publishes: Mutex<Option<mpsc::Sender<Publish>>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

#[async_trait]
impl Transport for Publisher {
    async fn send(&self, delivery: &Delivery) -> Result<Ack, Failure> {
        let mut answers = self.send_all(std::slice::from_ref(delivery)).await;
        answers.pop().unwrap_or_else(|| Err(failure::unconfirmed()))
    }

    fn batch(&self) -> usize {
        IN_FLIGHT
    }

    /// All are published before the first confirm is waited for.
    async fn send_all(&self, deliveries: &[Delivery]) -> Vec<Result<Ack, Failure>> {
        let began = tokio::time::Instant::now();
        let deadline = began + self.timeout;
        let connected = tokio::time::timeout_at(deadline, self.connected()).await;
        let connected = connected.unwrap_or_else(|_| Err(self.timed_out()));
        if let Err(failure) = connected {
            return deliveries.iter().map(|_| Err(failure.clone())).collect();
        }
        let mut waiting = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            waiting.push(match self.publish(delivery) {
                Ok((publish, confirmed)) => self.hand_over(publish, deadline).await.map(|()| confirmed),
                Err(failure) => Err(failure),
            });
        }
        let mut answers = Vec::with_capacity(waiting.len());
        for handed_over in waiting {
            answers.push(match handed_over {
                Ok(confirmed) => match tokio::time::timeout_at(deadline, confirmed).await {
                    Ok(confirmed) => confirmed.unwrap_or_else(|_| Err(failure::unconfirmed())),
                    Err(_) => Err(self.timed_out()),
                },
                Err(failure) => Err(failure),
            });
        }
        answers.into_iter().map(|answer| answer.map(|()| Ack::default())).collect()
    }

    fn default_in_flight(&self) -> usize {
        IN_FLIGHT
    }

    async fn close(&self) {
        drop(self.publishes.lock().unwrap_or_else(PoisonError::into_inner).take());
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // A task that panicked is at its end as well.
            let _ = task.await;
        }
    }
}

/// What comes of a publish.
type Confirmed = oneshot::Receiver<Result<(), Failure>>;

impl Publisher {
    /// Waits for the first connection; later, says at once when there is none. Where a connection is made only
    /// when there is something to send, waits for that one.
    async fn connected(&self) -> Result<(), Failure> {
        if let Some(wanted) = &self.wanted {
            let begins = self.state.send_if_modified(|state| {
                let begins = matches!(state, State::Idle | State::Down(_));
                if begins {
                    *state = State::Connecting;
                }
                begins
            });
            if begins {
                wanted.notify_one();
            }
        }
        let mut state = self.state.subscribe();
        let known = state.wait_for(|state| !matches!(state, State::Connecting)).await;
        match known.as_deref() {
            Ok(State::Down(reason) | State::Blocked(reason)) => Err(failure::unconnected(reason)),
            Ok(_) => Ok(()),
            Err(_) => Err(failure::unconnected("the destination is closed")),
        }
    }

    fn publish(&self, delivery: &Delivery) -> Result<(Publish, Confirmed), Failure> {
        let routing_key = ShortString::try_new(self.routing_key.render(&delivery.message)).map_err(|_| {
            let text = "its routing key is longer than AMQP's 255 bytes";
            Failure::new(Fault::Message(DeadKind::Refused), text)
        })?;
        let properties = envelope::properties(delivery, self.format)?;
        let (reply, confirmed) = oneshot::channel();
        let publish = Publish {
            exchange: self.exchange.clone(),
            routing_key,
            properties,
            body: delivery.message.body.clone(),
            reply,
        };
        Ok((publish, confirmed))
    }

    async fn hand_over(&self, publish: Publish, deadline: tokio::time::Instant) -> Result<(), Failure> {
        let closed = || failure::unconnected("the destination is closed");
        let publishes = self.publishes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = tokio::time::timeout_at(deadline, publishes.ok_or_else(closed)?.send(publish)).await;
        sent.map_err(|_| self.timed_out())?.map_err(|_| closed())
    }

    /// An attempt without a confirm. Where the connection is known to be bad, that is the reason.
    fn timed_out(&self) -> Failure {
        match &*self.state.borrow() {
            State::Up | State::Idle => Failure::new(
                Fault::Attempt,
                format!("the broker did not confirm it within {:?}", self.timeout),
            ),
            State::Connecting => failure::unconnected("the broker does not complete a connection"),
            State::Down(reason) | State::Blocked(reason) => failure::unconnected(reason),
        }
    }
}
