//! One channel in confirm mode, and the messages that are on their way over it.
//!
//! One task owns the channel: delivery tags are then given out in the order in which frames are queued, which
//! the client library does not see to itself.
//!
//! A mandatory message that no queue takes comes back (`basic.return`) *before* its confirm. The library hands
//! what came back to whichever confirm completes next, and confirms of several messages at once complete in no
//! order; so under load it is handed to a neighbour as often as not. Taken at its word, the neighbour would be
//! sent twice and the message lost. Here nothing is settled before everything that came back by then is seen,
//! and what came back is told by what it says it is: see [`Session::settle`].

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Poll;
use tokio::time::Instant;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, Stream, StreamExt};
use lapin::message::BasicReturnMessage;
use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation, ErrorKind};
use tokio::sync::oneshot;

use super::failure;
use crate::domain::delivery::Failure;

/// One message to publish.
pub(super) struct Publish {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) body: Bytes,
    pub(super) reply: oneshot::Sender<Result<(), Failure>>,
}

/// A message that was published and is not settled.
struct Pending {
    since: Instant,
    identity: Identity,
    body_bytes: usize,
    reply: oneshot::Sender<Result<(), Failure>>,
    /// The broker's words, where it or one that looks the same came back.
    returned: Option<String>,
}

/// By what a returned message is recognised. Two messages that are alike in this get the same routing key; what
/// comes back of one is taken for both, so that the doubt costs a duplicate at worst.
#[derive(PartialEq, Eq)]
struct Identity {
    routing_key: ShortString,
    message_id: Option<ShortString>,
}

type Outcome = (u64, lapin::Result<Confirmation>);

/// See the module.
pub(super) struct Session {
    channel: Arc<Channel>,
    next: u64,
    pending: HashMap<u64, Pending>,
    in_flight: FuturesUnordered<BoxFuture<'static, Outcome>>,
}

impl Session {
    pub(super) fn new(channel: Channel) -> Self {
        Self {
            channel: Arc::new(channel),
            next: 0,
            pending: HashMap::new(),
            in_flight: FuturesUnordered::new(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Since when the oldest message waits for its confirm.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.pending.values().map(|pending| pending.since).min()
    }

    /// Queues a message on the channel; its reply comes with its confirm.
    pub(super) fn publish(&mut self, publish: Publish, now: Instant) {
        let Publish { exchange, routing_key, properties, body, reply } = publish;
        let number = self.next;
        self.next += 1;
        let identity =
            Identity { routing_key: routing_key.clone(), message_id: properties.message_id().clone() };
        let pending = Pending { since: now, identity, body_bytes: body.len(), reply, returned: None };
        self.pending.insert(number, pending);
        let channel = Arc::clone(&self.channel);
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        self.in_flight.push(Box::pin(async move {
            let outcome = async {
                channel.basic_publish(exchange, routing_key, options, &body, properties).await?.await
            };
            (number, outcome.await)
        }));
    }

    /// Waits for confirms and settles what can be settled. Pends for ever while nothing is in flight.
    ///
    /// # Errors
    /// The channel's or the connection's end, in the broker's words where it gave some. The session is of no
    /// more use then; [`Session::fail`] settles what is left.
    pub(super) async fn settle(&mut self) -> Result<(), Lost> {
        let Some(first) = self.in_flight.next().await else {
            return std::future::pending().await;
        };
        let mut ready = vec![first];
        self.drain(&mut ready).await;
        let mut lost = None;
        while !ready.is_empty() {
            self.barrier();
            // All that is ready by here was completed by confirms that have been worked off as a whole. What came
            // back of it was handed to a confirm that is complete as well: to one of these, or of those.
            let certain = ready.len();
            self.drain(&mut ready).await;
            for (_, outcome) in &mut ready {
                if let Ok(confirmation) = outcome
                    && let Some(returned) = take_returned(confirmation)
                {
                    self.mark(&returned);
                }
            }
            let settled: Vec<Outcome> = ready.drain(..certain).collect();
            self.conclude(settled, &mut lost);
        }
        lost.map_or(Ok(()), Err)
    }

    /// Everything that is complete at this moment.
    async fn drain(&mut self, ready: &mut Vec<Outcome>) {
        std::future::poll_fn(|cx| {
            while let Poll::Ready(Some(outcome)) = std::pin::Pin::new(&mut self.in_flight).poll_next(cx) {
                ready.push(outcome);
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Waits until the library has worked off the confirm that it is at. It holds the lock of its confirms for
    /// as long as one takes, and this call goes through the same lock; whatever it waits for beyond that is of
    /// no interest.
    fn barrier(&self) {
        let confirms = self.channel.wait_for_confirms();
        let _ = futures::FutureExt::now_or_never(confirms);
    }

    /// Notes that a message came back, at all that it can be.
    fn mark(&mut self, returned: &BasicReturnMessage) {
        let identity = Identity {
            routing_key: returned.routing_key.clone(),
            message_id: returned.properties.message_id().clone(),
        };
        let text = failure::returned(returned);
        for pending in self.pending.values_mut().filter(|pending| pending.identity == identity) {
            pending.returned = Some(text.clone());
        }
    }

    fn conclude(&mut self, settled: Vec<Outcome>, lost: &mut Option<Lost>) {
        for (_, outcome) in &settled {
            if let Err(error) = outcome {
                Lost::note(lost, error);
            }
        }
        for (number, outcome) in settled {
            let Some(pending) = self.pending.remove(&number) else { continue };
            let result = match outcome {
                Ok(_) if pending.returned.is_some() => {
                    Err(failure::unroutable(pending.returned.unwrap_or_default()))
                }
                Ok(Confirmation::Ack(_)) => Ok(()),
                Ok(Confirmation::Nack(_)) => Err(failure::nacked()),
                Ok(Confirmation::NotRequested) => Err(failure::unconfirmed()),
                Err(_) => Err(match &*lost {
                    Some(lost) => lost.failure(pending.body_bytes),
                    None => failure::unconfirmed(),
                }),
            };
            // The attempt may have been given up on meanwhile: the message comes again, with the same id.
            let _ = pending.reply.send(result);
        }
    }

    /// Settles everything that is left as failed.
    pub(super) fn fail(self, lost: &Lost) {
        for pending in self.pending.into_values() {
            let _ = pending.reply.send(Err(lost.failure(pending.body_bytes)));
        }
    }
}

fn take_returned(confirmation: &mut Confirmation) -> Option<BasicReturnMessage> {
    match confirmation {
        Confirmation::Ack(returned) | Confirmation::Nack(returned) => returned.take(),
        Confirmation::NotRequested => None,
    }
}

/// Why a session ended.
#[derive(Clone, Debug)]
pub(super) struct Lost {
    pub(super) error: lapin::Error,
}

impl Lost {
    /// Remembers `error`: the first, but what the broker said before what followed from it.
    fn note(lost: &mut Option<Self>, error: &lapin::Error) {
        let said = |error: &lapin::Error| matches!(error.kind(), ErrorKind::ProtocolError(_));
        if lost.as_ref().is_none_or(|known| said(error) && !said(&known.error)) {
            *lost = Some(Self { error: error.clone() });
        }
    }

    fn failure(&self, body_bytes: usize) -> Failure {
        failure::lost(&self.error, body_bytes)
    }
}
