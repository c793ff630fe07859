//! The task that keeps the connection.
//!
//! The library's own recovery is off: with it, what was pending when a connection broke is told only once the
//! connection is back or given up on. Here it fails at once, and the connection is made again, for ever, with
//! a growing pause of at most [`LONGEST_PAUSE`].

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use lapin::options::ConfirmSelectOptions;
use lapin::{Channel, Connection, ConnectionProperties, Event};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, timeout};

use super::config::{self, Config};
use super::failure;
use super::session::{Lost, Publish, Session};
use super::topology;
use crate::domain::Random;

/// The pause after the first connection that failed; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// How long the broker may take from the TCP connection to a channel that is ready.
const SETUP_TIMEOUT: Duration = Duration::from_secs(15);
/// How often the connection is looked at when nothing happens.
const CHECK: Duration = Duration::from_secs(1);
/// How long messages that are on their way are waited for when the destination is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that is made only when there is something to send is closed when nothing was sent for so long.
const IDLE: Duration = Duration::from_secs(10);
/// How many messages are taken up before confirms are looked at again.
const TAKEN_AT_ONCE: usize = 256;

/// What can be expected of the connection.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// There is none: it is made when there is something to send.
    Idle,
    /// It is being made for the first time, or because there is something to send.
    Connecting,
    Up,
    /// Messages cannot be published now, for this reason.
    Down(Arc<str>),
    /// The broker takes no messages for now, for this reason.
    Blocked(Arc<str>),
}

pub(super) struct Supervisor {
    pub(super) name: String,
    pub(super) config: Config,
    pub(super) random: Random,
    pub(super) publishes: mpsc::Receiver<Publish>,
    pub(super) state: Arc<watch::Sender<State>>,
    /// Where a connection is made only when there is something to send: told when there is.
    pub(super) wanted: Option<Arc<Notify>>,
    /// What came while a connection that is wanted was being made.
    pub(super) kept: Vec<Publish>,
    /// No confirm takes longer than this on a connection that is worth keeping.
    pub(super) stuck_after: Duration,
}

/// How a connection came to its end.
enum End {
    /// The destination was closed.
    Closed,
    /// It was not used.
    Idle,
    Lost(String),
}

/// How publishing over a channel came to its end.
enum Ended {
    Closed,
    Idle,
    Lost(Lost),
}

impl Supervisor {
    /// Runs until every sender of publishes is gone.
    pub(super) async fn run(mut self) {
        let mut failed = 0_u32;
        loop {
            if !self.is_wanted().await {
                return;
            }
            let connected = {
                let setup = timeout(SETUP_TIMEOUT, self.connect());
                self.unless_closed(setup).await
            };
            let reason = match connected {
                None => return,
                Some(Ok(Ok(connection))) => {
                    failed = 0;
                    match self.serve(&connection).await {
                        End::Closed => return close(connection).await,
                        End::Idle => {
                            close(connection).await;
                            continue;
                        }
                        End::Lost(reason) => {
                            tracing::warn!(
                                destination = self.name,
                                reason,
                                "lost the connection to RabbitMQ"
                            );
                            // In order, if it can still be had: the broker is told, and nothing is left behind.
                            tokio::spawn(close(connection));
                            reason
                        }
                    }
                }
                Some(Ok(Err(reason))) => {
                    failed += 1;
                    reason
                }
                Some(Err(_)) => {
                    failed += 1;
                    format!("the broker did not complete a connection within {SETUP_TIMEOUT:?}")
                }
            };
            if failed == 1 {
                tracing::warn!(destination = self.name, reason, "cannot connect to RabbitMQ; trying on");
            }
            let reason: Arc<str> = reason.into();
            self.state.send_replace(State::Down(Arc::clone(&reason)));
            for publish in self.kept.drain(..) {
                let _ = publish.reply.send(Err(failure::unconnected(&reason)));
            }
            if self.wanted.is_some() {
                // The next one who has something to send has it tried again.
                continue;
            }
            let ceiling = FIRST_PAUSE.saturating_mul(1 << failed.min(8)).min(LONGEST_PAUSE);
            let pause = ceiling / 2 + self.random.jitter(ceiling / 2);
            if self.unless_closed(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    /// Waits until a connection is wanted; `false` when the destination was closed.
    async fn is_wanted(&mut self) -> bool {
        let Some(wanted) = self.wanted.clone() else { return true };
        tokio::select! {
            () = wanted.notified() => true,
            publish = self.publishes.recv() => {
                // Handed over to a connection that was just being closed.
                self.state.send_replace(State::Connecting);
                self.kept.extend(publish);
                !self.kept.is_empty()
            }
        }
    }

    /// Runs `work`, failing what is to be published meanwhile (keeping it, where the connection is made for it);
    /// `None` when the destination was closed.
    async fn unless_closed<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                publish = self.publishes.recv() => {
                    if self.wanted.is_some() {
                        self.kept.push(publish?);
                        continue;
                    }
                    let reason = match &*self.state.borrow() {
                        State::Down(reason) => Arc::clone(reason),
                        _ => "there is no connection to RabbitMQ".into(),
                    };
                    // Nobody waits for it any more: the message comes again.
                    let _ = publish?.reply.send(Err(failure::unconnected(&reason)));
                }
            }
        }
    }

    /// A connection. The future holds nothing of this.
    fn connect(&self) -> impl Future<Output = Result<Connection, String>> + use<> {
        let uri = config::uri(&self.config.url.expose()).map_err(|text| format!("`url` {text}"));
        let name = format!("oncegate: {}", self.name);
        async move {
            let properties = ConnectionProperties::default().with_connection_name(name.into());
            Connection::connect_uri(uri?, properties)
                .await
                .map_err(|error| format!("cannot connect: {error}"))
        }
    }

    /// Publishes over this connection until it is lost. A channel that the broker closes is opened again.
    async fn serve(&mut self, connection: &Connection) -> End {
        let mut events = pin!(connection.events_listener());
        loop {
            let opened = timeout(SETUP_TIMEOUT, open(connection, &self.config)).await;
            let channel = match opened {
                Ok(Ok(channel)) => channel,
                Ok(Err(reason)) => return End::Lost(reason),
                Err(_) => return End::Lost("the broker did not open a channel".to_owned()),
            };
            if !connection.status().blocked() {
                self.state.send_replace(State::Up);
            }
            let mut session = Session::new(channel);
            for publish in self.kept.drain(..) {
                session.publish(publish, Instant::now());
            }
            match self.publish(connection, &mut session, events.as_mut()).await {
                Ended::Idle => return End::Idle,
                Ended::Closed => {
                    let rest = async { while !session.is_idle() && session.settle().await.is_ok() {} };
                    // What is not confirmed by then is stored, and comes again.
                    let _ = timeout(CLOSE_TIMEOUT, rest).await;
                    return End::Closed;
                }
                Ended::Lost(lost) => {
                    let reason = lost.error.to_string();
                    session.fail(&lost);
                    if !connection.status().connected() || !lost.error.is_amqp_soft_error() {
                        return End::Lost(reason);
                    }
                    tracing::warn!(destination = self.name, reason, "RabbitMQ closed the channel");
                }
            }
        }
    }

    /// Publishes over one channel until it is lost, not needed, or the destination is closed.
    async fn publish(
        &mut self,
        connection: &Connection,
        session: &mut Session,
        mut events: std::pin::Pin<&mut (impl Stream<Item = Event> + Send)>,
    ) -> Ended {
        let mut used = Instant::now();
        let mut check = tokio::time::interval(CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut taken = Vec::new();
        loop {
            tokio::select! {
                biased;
                settled = session.settle() => {
                    if let Err(lost) = settled {
                        return Ended::Lost(lost);
                    }
                    used = Instant::now();
                }
                count = self.publishes.recv_many(&mut taken, TAKEN_AT_ONCE) => {
                    if count == 0 {
                        return Ended::Closed;
                    }
                    let now = Instant::now();
                    used = now;
                    for publish in taken.drain(..) {
                        session.publish(publish, now);
                    }
                }
                Some(event) = events.next() => match event {
                    Event::ConnectionBlocked(reason) => {
                        tracing::warn!(destination = self.name, reason, "RabbitMQ blocks publishers");
                        let reason = format!("RabbitMQ blocks publishers: {reason}");
                        self.state.send_replace(State::Blocked(reason.into()));
                    }
                    Event::ConnectionUnblocked => {
                        self.state.send_replace(State::Up);
                    }
                    Event::Error(error) if !connection.status().connected() => return Ended::Lost(Lost { error }),
                    _ => {}
                },
                _ = check.tick() => {
                    let stuck = session.oldest().is_some_and(|oldest| oldest.elapsed() > self.stuck_after);
                    if stuck || !connection.status().connected() {
                        let why = if stuck { "the broker confirms nothing" } else { "the connection is closed" };
                        return Ended::Lost(Lost { error: std::io::Error::other(why).into() });
                    }
                    if self.wanted.is_some() && session.is_idle() && used.elapsed() > IDLE {
                        // Who still sees it up hands a message over to be kept for the next connection.
                        self.state.send_replace(State::Idle);
                        return Ended::Idle;
                    }
                }
            }
        }
    }
}

/// A channel in confirm mode, with everything declared that is to be.
async fn open(connection: &Connection, config: &Config) -> Result<Channel, String> {
    let told = |error: lapin::Error| format!("cannot open a channel: {error}");
    if let Some(declare) = &config.declare {
        // On a channel of its own: what the broker refuses closes it.
        let channel = connection.create_channel().await.map_err(told)?;
        topology::declare(&channel, &config.exchange, declare)
            .await
            .map_err(|error| format!("`declare`: {error}"))?;
        // Nothing depends on how it ends.
        let _ = channel.close(200, "".into()).await;
    }
    let channel = connection.create_channel().await.map_err(told)?;
    channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(told)?;
    Ok(channel)
}

/// Ends a connection in order, unless that takes too long.
async fn close(connection: Connection) {
    // One that is closed already says so.
    let _ = timeout(CLOSE_TIMEOUT, connection.close(200, "".into())).await;
}
