//! A message's members as HTTP headers, as `POST /v1/publish/{type}` takes them.
//!
//! Values are taken as they stand, in UTF-8. A header that may stand once and stands twice is refused: which
//! of the two was meant is not for the gateway to guess.

use std::collections::BTreeMap;

use axum::http::HeaderMap;

use super::problem::{Place, Problem};
use crate::domain::fields::{self, Field, FieldError};
use crate::domain::message::{Draft, DraftDeduplication};
use crate::domain::{duration, wire};

/// Before the name of one of the message's own headers.
const OWN: &str = "message-header-";

/// What the headers say of the message `kind`; its body and content type are still to come. Every place that
/// is wrong is told at once.
pub fn draft(kind: String, headers: &HeaderMap) -> Result<Draft, Problem> {
    let mut reader = Reader { headers, errors: Vec::new() };
    let mut draft = Draft {
        kind,
        id: reader.text("message-id", Field::Id),
        deduplication: DraftDeduplication::said(reader.text("deduplication-id", Field::DeduplicationId)),
        partition_key: reader.text("partition-key", Field::PartitionKey),
        correlation_id: reader.text("correlation-id", Field::CorrelationId),
        deliver_at: reader.parsed("deliver-at", Field::DeliverAt, fields::time),
        delay: reader.parsed("delay", Field::Delay, duration::parse),
        deliver_by: reader.parsed("deliver-by", Field::DeliverBy, fields::time),
        destinations: reader.list("destinations", Field::Destinations),
        ..Draft::default()
    };
    draft.envelope.source = reader.text("source", Field::Source);
    draft.envelope.subject = reader.text("subject", Field::Subject);
    draft.envelope.causation_id = reader.text("causation-id", Field::CausationId);
    draft.envelope.headers = reader.own();
    if reader.errors.is_empty() { Ok(draft) } else { Err(refused(reader.errors)) }
}

/// 400 with the places of members that are headers.
pub fn refused(errors: Vec<FieldError>) -> Problem {
    wrong(errors.into_iter().map(FieldError::in_headers).collect())
}

/// Puts the caller's trace context (W3C) into a draft, unless the message brings one of its own. What cannot
/// be read is passed over, as the specification has it.
pub fn trace(draft: &mut Draft, headers: &HeaderMap) {
    if draft.envelope.traceparent.is_some() {
        return;
    }
    let parent = headers.get(wire::TRACEPARENT).and_then(|value| value.to_str().ok());
    draft.envelope.traceparent = parent.and_then(wire::traceparent).map(str::to_owned);
    let states: Vec<_> =
        headers.get_all(wire::TRACESTATE).iter().filter_map(|value| value.to_str().ok()).collect();
    draft.envelope.tracestate = match draft.envelope.traceparent {
        Some(_) => wire::tracestate(&states.join(",")).map(str::to_owned),
        None => None,
    };
}

/// Refuses members as headers where the body says it all: a `Deduplication-Id` that is silently passed over
/// would be a promise that nobody keeps.
pub fn none(headers: &HeaderMap) -> Result<(), Problem> {
    let errors: Vec<Place> = headers
        .keys()
        .map(axum::http::HeaderName::as_str)
        .filter(|name| ONLY_OURS.contains(name) || name.starts_with(OWN))
        .map(|name| {
            Place::new(format!("header {name}"), "belongs to `POST /v1/publish/{type}`; say it in the body")
        })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(wrong(errors)) }
}

/// Headers that nothing between a client and the gateway sets for reasons of its own.
const ONLY_OURS: [&str; 7] =
    ["message-id", "deduplication-id", "partition-key", "deliver-at", "delay", "deliver-by", "destinations"];

/// 400 with these places.
fn wrong(errors: Vec<Place>) -> Problem {
    let detail = match errors.as_slice() {
        [only] => format!("{}: {}", only.pointer, only.detail),
        several => format!("{} places of the request are wrong; `errors` names them.", several.len()),
    };
    Problem::malformed(detail).errors(errors)
}

struct Reader<'a> {
    headers: &'a HeaderMap,
    errors: Vec<FieldError>,
}

impl Reader<'_> {
    fn text(&mut self, name: &str, field: Field) -> Option<String> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next()?;
        if values.next().is_some() {
            self.errors.push(FieldError::new(field, "stands more than once"));
            return None;
        }
        match std::str::from_utf8(value.as_bytes()) {
            Ok(text) => Some(text.to_owned()),
            Err(_) => {
                self.errors.push(FieldError::new(field, "has to be UTF-8"));
                None
            }
        }
    }

    fn parsed<T>(&mut self, name: &str, field: Field, parse: fn(&str) -> Result<T, String>) -> Option<T> {
        let text = self.text(name, field.clone())?;
        parse(&text).map_err(|detail| self.errors.push(FieldError::new(field, detail))).ok()
    }

    /// A list (RFC 9110, 5.6.1): separated by commas, over one line or several.
    fn list(&mut self, name: &str, field: Field) -> Option<Vec<String>> {
        let mut names = None;
        for value in self.headers.get_all(name) {
            let Ok(text) = std::str::from_utf8(value.as_bytes()) else {
                self.errors.push(FieldError::new(field, "has to be UTF-8"));
                return None;
            };
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned);
            names.get_or_insert_with(Vec::new).extend(parts);
        }
        names
    }

    fn own(&mut self) -> BTreeMap<String, String> {
        let mut own = BTreeMap::new();
        for key in self.headers.keys() {
            let Some(name) = key.as_str().strip_prefix(OWN) else { continue };
            if let Some(value) = self.text(key.as_str(), Field::Header(name.to_owned())) {
                own.insert(name.to_owned(), value);
            }
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(
                name.parse::<HeaderName>().unwrap(),
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            );
        }
        map
    }

    #[test]
    fn every_member_has_its_header() {
        let draft = draft(
            "order.created".into(),
            &headers(&[
                ("Message-Id", "m-1"),
                ("Source", "/shop"),
                ("Subject", "Größe"),
                ("Deduplication-Id", "d-1"),
                ("Partition-Key", "p-1"),
                ("Correlation-Id", "c-1"),
                ("Causation-Id", "c-0"),
                ("Deliver-At", "2030-01-02T03:04:05+01:00"),
                ("Deliver-By", "2030-01-03T00:00:00Z"),
                ("Destinations", "orders, audit,"),
                ("Destinations", "third"),
                ("Message-Header-X-Region", "eu"),
                ("X-Other", "not ours"),
            ]),
        )
        .unwrap();
        assert_eq!((draft.kind.as_str(), draft.id.as_deref()), ("order.created", Some("m-1")));
        assert_eq!(draft.deduplication, DraftDeduplication::Id("d-1".into()));
        assert_eq!(draft.partition_key.as_deref(), Some("p-1"));
        assert_eq!(draft.correlation_id.as_deref(), Some("c-1"));
        assert_eq!(fields::format_time(draft.deliver_at.unwrap()), "2030-01-02T02:04:05Z");
        assert_eq!(fields::format_time(draft.deliver_by.unwrap()), "2030-01-03T00:00:00Z");
        assert_eq!(draft.destinations.unwrap(), ["orders", "audit", "third"]);
        let envelope = draft.envelope;
        assert_eq!(envelope.source.as_deref(), Some("/shop"));
        assert_eq!(envelope.subject.as_deref(), Some("Größe"));
        assert_eq!(envelope.causation_id.as_deref(), Some("c-0"));
        assert_eq!(envelope.headers, BTreeMap::from([("x-region".to_owned(), "eu".to_owned())]));
    }

    #[test]
    fn nothing_is_said_by_what_is_not_there() {
        assert_eq!(
            draft("t".into(), &HeaderMap::new()).unwrap(),
            Draft { kind: "t".into(), ..Draft::default() }
        );
        let empty = draft("t".into(), &headers(&[("Deduplication-Id", ""), ("Delay", "30s")])).unwrap();
        assert_eq!(empty.deduplication, DraftDeduplication::OptOut);
        assert_eq!(empty.delay, Some(Duration::from_secs(30)));
    }

    #[test]
    fn all_places_that_are_wrong_are_told() {
        let mut bad = headers(&[
            ("Message-Id", "a"),
            ("Message-Id", "b"),
            ("Deliver-At", "soon"),
            ("Delay", "1 parsec"),
        ]);
        bad.insert("subject", HeaderValue::from_bytes(b"\xff").unwrap());
        let problem = draft("t".into(), &bad).unwrap_err();
        let places: Vec<_> = problem.places().iter().map(|place| place.pointer.as_str()).collect();
        assert_eq!(places, ["header Message-Id", "header Deliver-At", "header Delay", "header Subject"]);
    }

    #[test]
    fn members_as_headers_beside_a_body_that_says_it_all_are_refused() {
        none(&headers(&[("Correlation-Id", "of a proxy"), ("Source", "x")])).unwrap();
        assert!(none(&headers(&[("Deduplication-Id", "x")])).is_err());
        assert!(none(&headers(&[("Message-Header-a", "x")])).is_err());
    }

    #[test]
    fn the_trace_context_is_taken_whole_or_not_at_all() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let request = headers(&[("traceparent", parent), ("tracestate", "a=1"), ("tracestate", "b=2")]);
        let mut draft = Draft::default();
        trace(&mut draft, &request);
        assert_eq!(draft.envelope.traceparent.as_deref(), Some(parent));
        assert_eq!(draft.envelope.tracestate.as_deref(), Some("a=1,b=2"));

        let mut other = Draft::default();
        trace(&mut other, &headers(&[("traceparent", "00-nonsense"), ("tracestate", "a=1")]));
        assert_eq!((other.envelope.traceparent, other.envelope.tracestate), (None, None));

        let mut own = Draft::default();
        own.envelope.traceparent = Some("its own".into());
        trace(&mut own, &request);
        assert_eq!(own.envelope.traceparent.as_deref(), Some("its own"));
    }
}
