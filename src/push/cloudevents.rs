//! CloudEvents 1.0 over HTTP, in the three modes: whatever sends them (Knative's triggers, Dapr's sidecar, Eventarc,
//! an SDK). An event is read as a publish reads it; a batch is handled in its order.
//!
//! Nothing of a request is echoed: to Knative, an event in an answer is a new event. An answer without a body means
//! `SUCCESS` to Dapr.

use std::time::Duration;

use super::{Defaults, Format, Handshake, Identity, Kind, Made, Message, Push, Refusal, Request, What};
use super::{handshake, headers};
use crate::config::Receiver;
use crate::domain::cloudevents::{self, Mode};
use crate::domain::message::Draft;

pub const KIND: Kind = Kind {
    name: "cloudevents",
    keys: &[],
    needs: &["authorize"],
    defaults: Defaults { body_bytes: 4 << 20, deadline: Duration::from_secs(25) },
    acknowledges: |_| true,
    // Knative sends again what is answered 404, 408, 409, 429 or 5xx; Dapr drops what is answered 404.
    retries: |status| matches!(status, 408 | 409 | 429) || status >= 500,
    make,
};

struct CloudEvents;

fn make(_: &Receiver) -> Made {
    Ok(Box::new(CloudEvents))
}

impl Format for CloudEvents {
    fn verifies(&self) -> bool {
        false
    }

    fn read(&self, request: &Request<'_>, _: Option<&[u8]>) -> Result<Push, Refusal> {
        let drafts = events(request)?.ok_or_else(|| {
            Refusal::malformed(
                "The request has no event: neither a CloudEvents content type nor the header `ce-specversion`.",
            )
        })?;
        let message = |draft| Message { draft, identity: Identity::Event };
        let attempts = headers::attempts_after(request.headers, "upstash-retried");
        let messages = drafts.into_iter().map(message).collect();
        Ok(Push { source: None, what: What::Messages { messages, attempts } })
    }

    fn options(&self, request: &Request<'_>) -> Result<Handshake, Refusal> {
        handshake::answer(request)
    }
}

/// The events of a request, whatever its mode; `None`: it has none.
///
/// # Errors
/// What is wrong with them.
pub(super) fn events(request: &Request<'_>) -> Result<Option<Vec<Draft>>, Refusal> {
    let Request { headers, body, limits, now, .. } = *request;
    let content_type = headers::text(headers, "content-type").map_err(Refusal::malformed)?;
    let mut drafts = match content_type.and_then(cloudevents::mode) {
        Some(Mode::Structured) => vec![cloudevents::structured(body, limits, now)?],
        Some(Mode::Batch) => return Ok(Some(cloudevents::batch(body, limits, now)?)),
        Some(Mode::Unsupported) => {
            return Err(Refusal::UnsupportedMediaType(
                "CloudEvents are read in their JSON format: `application/cloudevents+json` or \
                 `application/cloudevents-batch+json`."
                    .to_owned(),
            ));
        }
        None if headers.contains_key("ce-specversion") => {
            let all = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
            vec![cloudevents::binary(all, content_type, body.clone(), limits, now)?]
        }
        None => return Ok(None),
    };
    for draft in &mut drafts {
        headers::trace(draft, headers);
    }
    Ok(Some(drafts))
}
