//! The answer of a publish: rendered once, before the commit, so that what is kept for replay is what is said.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::publish::{Answer, AnswerKind, BatchAnswer, Form, Outcome, PublishAnswer, Replayed, SendOutcome};
use crate::domain::Timestamp;
use crate::domain::delivery::{Target, TargetKind};
use crate::domain::identity::OnDuplicate;
use crate::store::accept::{self, MessageOutcome};
use crate::store::claims::ClaimState;

/// What of each message the answer tells, whatever becomes of it.
#[derive(Clone, Debug)]
pub(super) struct Element {
    pub id: String,
    pub kind: String,
    pub tenant: String,
    pub deduplication_id: Option<String>,
    pub deduplication_source: Option<&'static str>,
    pub targets: Vec<Target>,
    pub deliver_at: Option<Timestamp>,
    pub on_duplicate: OnDuplicate,
    /// What became of it at each destination, where the request sends what it stored.
    pub outcomes: Option<BTreeMap<String, SendOutcome>>,
}

/// Renders the answer of one request.
#[derive(Clone, Debug)]
pub(super) struct Renderer {
    pub form: Form,
    pub elements: Vec<Element>,
}

/// Before the body in what is kept.
#[derive(Serialize, Deserialize)]
struct Head {
    duplicate: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    location: Option<String>,
}

impl Renderer {
    /// The answer, given what became of each message; not replayed.
    pub fn answer(&self, outcomes: &[MessageOutcome]) -> Answer {
        let mut parts: Vec<PublishAnswer> =
            self.elements.iter().zip(outcomes).map(|(element, outcome)| element.answer(outcome)).collect();
        let (kind, location, body) = match self.form {
            Form::Batch => (AnswerKind::Accepted, None, to_json(&BatchAnswer { messages: parts })),
            Form::Single => {
                let one = parts.swap_remove(0);
                let kind = match one.outcome {
                    Outcome::Accepted => AnswerKind::Accepted,
                    Outcome::Duplicate => AnswerKind::Duplicate,
                };
                (kind, one.id.as_deref().map(location), to_json(&one))
            }
        };
        Answer { kind, location, body, replayed: Replayed::No }
    }

    /// Whether these outcomes refuse the request: a single message whose type answers duplicates with a
    /// conflict, or whose work somebody is still at, who may fail: to acknowledge it as a duplicate could lose it.
    /// A batch is never refused for its duplicates; what is still being done is told as `pending`.
    pub fn refuses(&self, outcomes: &[MessageOutcome]) -> bool {
        let [MessageOutcome::Duplicate(first)] = outcomes else { return false };
        self.form == Form::Single
            && (first.claim.state == ClaimState::Claimed
                || self.elements[0].on_duplicate == OnDuplicate::Conflict)
    }
}

impl accept::Answer for Renderer {
    fn render(&self, outcomes: &[MessageOutcome]) -> Option<Bytes> {
        (!self.refuses(outcomes)).then(|| keep(&self.answer(outcomes)))
    }
}

impl Element {
    /// Says that every destination waits.
    pub fn tell_outcomes(&mut self) {
        let destinations = self.targets.iter().filter(|target| target.kind == TargetKind::Destination);
        let pending = destinations.map(|target| (target.name.to_string(), SendOutcome::Pending));
        self.outcomes = Some(pending.collect());
    }

    fn answer(&self, outcome: &MessageOutcome) -> PublishAnswer {
        let names = |kind| {
            self.targets.iter().filter(|t| t.kind == kind).map(|t| t.name.to_string()).collect::<Vec<_>>()
        };
        let mut answer = PublishAnswer {
            id: Some(self.id.clone()),
            outcome: Outcome::Accepted,
            state: None,
            deduplication_id: self.deduplication_id.clone(),
            deduplication_source: self.deduplication_source.map(str::to_owned),
            first_seen_at: None,
            expires_at: None,
            destinations: names(TargetKind::Destination),
            handlers: names(TargetKind::Handler),
            deliver_at: self.deliver_at,
            outcomes: self.outcomes.clone(),
        };
        match outcome {
            MessageOutcome::Accepted { expires_at } => answer.expires_at = *expires_at,
            MessageOutcome::Duplicate(first) => {
                answer.outcome = Outcome::Duplicate;
                answer.outcomes = None;
                // A duplicate of another tenant's is told without its id.
                answer.id =
                    if first.claim.tenant == self.tenant { first.claim.message_id.clone() } else { None };
                let state = match first.claim.state {
                    ClaimState::Claimed => accept::MessageState::Pending,
                    ClaimState::Confirmed => first.state,
                };
                answer.state = Some(state.as_str().to_owned());
                answer.first_seen_at = Some(first.claim.first_seen_at);
                answer.expires_at = Some(first.claim.expires_at);
            }
        }
        answer
    }
}

fn location(id: &str) -> String {
    use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
    const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    format!("/v1/messages/{}", utf8_percent_encode(id, SEGMENT))
}

fn to_json<T: Serialize>(value: &T) -> Bytes {
    // Plain structs of strings, times and lists always serialise.
    Bytes::from(serde_json::to_vec(value).unwrap_or_default())
}

/// What is kept for replay: a line of JSON, then the body as it was sent.
pub(super) fn keep(answer: &Answer) -> Bytes {
    let head = Head { duplicate: answer.kind == AnswerKind::Duplicate, location: answer.location.clone() };
    let mut bytes = serde_json::to_vec(&head).unwrap_or_default();
    bytes.push(b'\n');
    bytes.extend_from_slice(&answer.body);
    bytes.into()
}

/// The answer that [`keep`] kept; `None` if it cannot be read.
pub(super) fn kept(bytes: &Bytes) -> Option<Answer> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let head: Head = serde_json::from_slice(&bytes[..end]).ok()?;
    Some(Answer {
        kind: if head.duplicate { AnswerKind::Duplicate } else { AnswerKind::Accepted },
        location: head.location,
        body: bytes.slice(end + 1..),
        replayed: Replayed::Yes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element() -> Element {
        Element {
            id: "a b".into(),
            kind: "order.created".into(),
            tenant: String::new(),
            deduplication_id: None,
            deduplication_source: None,
            targets: vec![Target::destination("orders")],
            deliver_at: None,
            on_duplicate: OnDuplicate::Acknowledge,
            outcomes: None,
        }
    }

    #[test]
    fn what_is_kept_is_what_was_said() {
        let renderer = Renderer { form: Form::Single, elements: vec![element()] };
        let said = renderer.answer(&[MessageOutcome::Accepted { expires_at: None }]);
        assert_eq!(said.location.as_deref(), Some("/v1/messages/a%20b"));
        let replayed = kept(&keep(&said)).unwrap();
        assert_eq!(replayed, Answer { replayed: Replayed::Yes, ..said });
    }

    #[test]
    fn a_batch_of_nothing_has_an_empty_list() {
        let renderer = Renderer { form: Form::Batch, elements: vec![] };
        assert_eq!(renderer.answer(&[]).body, r#"{"messages":[]}"#);
    }
}
