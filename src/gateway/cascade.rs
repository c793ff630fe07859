//! What a handler's answer publishes: CloudEvents, or the messages of a reply.

use std::sync::Arc;

use bytes::Bytes;

use super::prepare::{Batch, By, Keeping, Way};
use super::{Preparer, Result};
use crate::auth::Principal;
use crate::domain::message::{Draft, Message};
use crate::domain::{Clock, Limits, cloudevents, json, media, native};
use crate::store::accept;
use crate::transport::{REPLY_JSON, Reply};
use crate::{delivery, domain};

/// Reads replies, and prepares what they publish as a publish would be.
#[derive(Clone)]
pub struct Cascades {
    pub preparer: Preparer,
    pub limits: Limits,
    pub clock: Clock,
}

/// A reply, read.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// What an invoke is answered with, where the reply says it.
    pub response: Option<Bytes>,
    pub drafts: Vec<Draft>,
}

impl Cascades {
    /// What a reply says, as it stands.
    ///
    /// # Errors
    /// Why it cannot be read, for operators.
    pub(super) fn parts(&self, reply: &Reply) -> Result<Parts, String> {
        let now = self.clock.now();
        let read = |error: domain::forms::Error| error.to_string();
        if media::is(&reply.content_type, REPLY_JSON) {
            return self.reply(&reply.body);
        }
        let drafts = match cloudevents::mode(&reply.content_type) {
            Some(cloudevents::Mode::Structured) => {
                vec![cloudevents::structured(&reply.body, &self.limits, now).map_err(read)?]
            }
            Some(cloudevents::Mode::Batch) => {
                cloudevents::batch(&reply.body, &self.limits, now).map_err(read)?
            }
            Some(cloudevents::Mode::Unsupported) | None => {
                return Err(format!("`{}` is not a form of CloudEvents that is read", reply.content_type));
            }
        };
        Ok(Parts { response: None, drafts })
    }

    /// `{"response": …, "messages": […]}`
    fn reply(&self, body: &Bytes) -> Result<Parts, String> {
        if json::is_deeper_than(body, self.limits.json_depth.saturating_add(2)) {
            return Err("the reply nests objects and arrays too deeply".to_owned());
        }
        let root = json::document(body).map_err(|detail| format!("the reply is {detail}"))?;
        let members = json::members(root).ok_or("the reply is not a JSON object")?;
        let mut parts = Parts::default();
        for (name, value) in members {
            let bytes = Bytes::copy_from_slice(value.get().as_bytes());
            match name.as_ref() {
                "response" => parts.response = Some(bytes),
                "messages" if json::kind(value) == json::Kind::Null => {}
                "messages" => {
                    parts.drafts = native::batch(&bytes, &self.limits, self.clock.now())
                        .map_err(|error| format!("`messages` of the reply: {error}"))?;
                }
                other => return Err(format!("`{other}` is not a member of a reply")),
            }
        }
        Ok(parts)
    }

    /// The messages that `drafts` become, caused by `handled`.
    ///
    /// # Errors
    /// Why one of them cannot be accepted, for operators.
    pub(super) fn prepare(
        &self,
        handler: &str,
        handled: &Message,
        drafts: Vec<Draft>,
    ) -> Result<Vec<accept::Message>, String> {
        let now = self.clock.now();
        // The handler is the operator's: it may publish whatever is routed, within the message's tenant.
        let principal = Principal {
            name: format!("handler:{handler}"),
            tenant: handled.tenant.clone(),
            ..Principal::anonymous()
        };
        let by = By { principal: &principal, idempotency_key: None, way: Way::Cascade };
        let mut batch = Batch::default();
        for (index, mut draft) in drafts.into_iter().enumerate() {
            draft.envelope.causation_id = Some(handled.id.clone());
            if draft.correlation_id.is_none() {
                draft.correlation_id =
                    Some(handled.correlation_id.clone().unwrap_or_else(|| handled.id.clone()));
            }
            if draft.envelope.traceparent.is_none() {
                draft.envelope.traceparent.clone_from(&handled.envelope.traceparent);
                draft.envelope.tracestate.clone_from(&handled.envelope.tracestate);
            }
            let prepared = self.preparer.prepare(&by, draft, now);
            batch.add(prepared.map_err(|error| format!("message {index} of the reply: {error}"))?);
        }
        Ok(batch.messages)
    }
}

impl delivery::Cascade for Cascades {
    fn read(&self, handler: &str, handled: &Message, reply: &Reply) -> Result<Vec<accept::Message>, String> {
        let parts = self.parts(reply)?;
        let messages = self.prepare(handler, handled, parts.drafts)?;
        if self.preparer.keeping == Keeping::Claims && !messages.is_empty() {
            return Err("in the durability mode `serverless` only an invoked handler can publish".to_owned());
        }
        Ok(messages)
    }
}

/// For use as a trait object.
impl Cascades {
    pub fn shared(self) -> Arc<dyn delivery::Cascade> {
        Arc::new(self)
    }
}
