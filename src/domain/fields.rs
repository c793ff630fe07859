//! What the members of a message may hold. Every form of publish ends in [`Draft::check`], so that all of
//! them refuse the same things, and nothing passes that a store or a transport would choke on.

use std::time::Duration;

use super::message::{Draft, DraftDeduplication};
use super::{Timestamp, media, wire};

/// The bounds of what a publisher hands in. Lengths count characters, unless they say bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Id, type, partition key, correlation id, causation id, content type, name of a destination.
    pub name: usize,
    /// Source and subject.
    pub text: usize,
    /// Deduplication id.
    pub deduplication_id: usize,
    /// How many headers of its own a message may have.
    pub headers: usize,
    /// Name of one of its own headers.
    pub header_name: usize,
    /// Value of one of its own headers, in bytes.
    pub header_value_bytes: usize,
    /// How many destinations it may name.
    pub destinations: usize,
    /// How deep objects and arrays may be nested in a JSON body that the gateway reads.
    pub json_depth: usize,
    /// Messages in one batch.
    pub batch: usize,
    /// How far ahead a delivery may be scheduled; `None`: as far as there are dates.
    pub deliver_horizon: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            name: 255,
            text: 1024,
            deduplication_id: 512,
            headers: 64,
            header_name: 128,
            header_value_bytes: 4096,
            destinations: 64,
            json_depth: 64,
            batch: 1000,
            deliver_horizon: None,
        }
    }
}

/// A place in a request that is wrong: a JSON Pointer (RFC 6901) into the body, `header NAME`, or
/// `query NAME`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Place {
    pub pointer: String,
    pub detail: String,
}

impl Place {
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }
}

/// A member of a message, whatever the form calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    Id,
    Type,
    Source,
    Subject,
    Data,
    ContentType,
    DeduplicationId,
    PartitionKey,
    CorrelationId,
    CausationId,
    DeliverAt,
    Delay,
    DeliverBy,
    Destinations,
    Headers,
    /// One of the message's own headers, by its name.
    Header(String),
}

impl Field {
    /// The member's names: in the native form, as an HTTP header, as a CloudEvents attribute.
    fn names(&self) -> [&str; 3] {
        match self {
            Self::Id => ["id", "Message-Id", "id"],
            Self::Type => ["type", "Message-Type", "type"],
            Self::Source => ["source", "Source", "source"],
            Self::Subject => ["subject", "Subject", "subject"],
            Self::Data => ["data", "Content-Type", "data"],
            Self::ContentType => ["contentType", "Content-Type", "datacontenttype"],
            Self::DeduplicationId => ["deduplicationId", "Deduplication-Id", "deduplicationid"],
            Self::PartitionKey => ["partitionKey", "Partition-Key", "partitionkey"],
            Self::CorrelationId => ["correlationId", "Correlation-Id", "correlationid"],
            Self::CausationId => ["causationId", "Causation-Id", "causationid"],
            Self::DeliverAt => ["deliverAt", "Deliver-At", "deliverat"],
            Self::Delay => ["delay", "Delay", "delay"],
            Self::DeliverBy => ["deliverBy", "Deliver-By", "deliverby"],
            Self::Destinations => ["destinations", "Destinations", "destinations"],
            Self::Headers => ["headers", "Message-Header-*", ""],
            Self::Header(name) => [name, name, name.strip_prefix("ce-").unwrap_or(name)],
        }
    }

    /// The member's name in the native form, for people.
    pub fn name(&self) -> &str {
        self.names()[0]
    }
}

/// A member that holds what it may not. `detail` says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    pub field: Field,
    pub detail: String,
}

impl FieldError {
    pub fn new(field: Field, detail: impl Into<String>) -> Self {
        Self { field, detail: detail.into() }
    }

    /// The place in a native form that stands at `prefix` (a JSON Pointer, empty for the whole body).
    pub fn in_native(self, prefix: &str) -> Place {
        let pointer = match &self.field {
            Field::Header(name) => format!("{prefix}/headers/{}", super::json::escape(name)),
            other => format!("{prefix}/{}", other.name()),
        };
        Place::new(pointer, self.detail)
    }

    /// The place in a request whose headers are the message's members.
    pub fn in_headers(self) -> Place {
        let pointer = match &self.field {
            Field::Header(name) => format!("header Message-Header-{name}"),
            Field::Type => "path".to_owned(),
            other => format!("header {}", other.names()[1]),
        };
        Place::new(pointer, self.detail)
    }

    /// The place in a structured CloudEvent that stands at `prefix`.
    pub fn in_cloudevent(self, prefix: &str) -> Place {
        Place::new(format!("{prefix}/{}", super::json::escape(self.field.names()[2])), self.detail)
    }

    /// The place in a binary CloudEvent.
    pub fn in_cloudevent_headers(self) -> Place {
        let pointer = match &self.field {
            Field::ContentType | Field::Data => "header Content-Type".to_owned(),
            other => format!("header ce-{}", other.names()[2]),
        };
        Place::new(pointer, self.detail)
    }
}

impl Draft {
    /// Everything that is wrong with this draft's members.
    ///
    /// # Errors
    /// One entry per member that holds what it may not.
    pub fn check(&self, limits: &Limits, now: Timestamp) -> Result<(), Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut check = |field: Field, verdict: Result<(), String>| {
            if let Err(detail) = verdict {
                errors.push(FieldError::new(field, detail));
            }
        };
        check(Field::Type, message_type(&self.kind, limits));
        let deduplication_id = match &self.deduplication {
            DraftDeduplication::Id(id) => Some(id),
            DraftDeduplication::Derive | DraftDeduplication::OptOut => None,
        };
        for (field, value, max) in [
            (Field::Id, &self.id, limits.name),
            (Field::DeduplicationId, &deduplication_id.cloned(), limits.deduplication_id),
            (Field::PartitionKey, &self.partition_key, limits.name),
            (Field::CorrelationId, &self.correlation_id, limits.name),
            (Field::CausationId, &self.envelope.causation_id, limits.name),
            (Field::Source, &self.envelope.source, limits.text),
            (Field::Subject, &self.envelope.subject, limits.text),
        ] {
            if let Some(value) = value {
                check(field, text(value, max));
            }
        }
        if let Some(value) = &self.envelope.content_type {
            check(Field::ContentType, content_type(value, limits));
        }
        check(Field::Headers, count(self.envelope.headers.len(), limits.headers, "headers"));
        for (name, value) in &self.envelope.headers {
            let verdict = own_header_name(name, limits).and_then(|()| own_header_value(value, limits));
            check(Field::Header(name.clone()), verdict);
        }
        if let Some(names) = &self.destinations {
            check(Field::Destinations, destinations(names, limits));
        }
        self.check_times(limits, now, &mut check);
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    fn check_times(
        &self,
        limits: &Limits,
        now: Timestamp,
        check: &mut impl FnMut(Field, Result<(), String>),
    ) {
        if self.deliver_at.is_some() && self.delay.is_some() {
            check(Field::Delay, Err("give either deliverAt or delay, not both".to_owned()));
        }
        let from_delay = self.delay.map(|delay| {
            chrono::Duration::from_std(delay)
                .ok()
                .and_then(|delay| now.checked_add_signed(delay))
                .ok_or_else(|| "is too far ahead".to_owned())
        });
        let due = match (self.deliver_at, from_delay) {
            (Some(at), _) => Some((Field::DeliverAt, Ok(at))),
            (None, Some(at)) => Some((Field::Delay, at)),
            (None, None) => None,
        };
        let mut due_at = None;
        if let Some((field, at)) = due {
            match at.and_then(|at| moment(at).map(|()| at)) {
                Ok(at) => {
                    due_at = Some(at);
                    check(field, horizon(at, now, limits));
                }
                Err(detail) => check(field, Err(detail)),
            }
        }
        if let Some(by) = self.deliver_by {
            let verdict = moment(by).and_then(|()| {
                if by < now {
                    Err("lies in the past".to_owned())
                } else if due_at.is_some_and(|at| by < at) {
                    Err("lies before the moment from which the message may be delivered".to_owned())
                } else {
                    Ok(())
                }
            });
            check(Field::DeliverBy, verdict);
        }
    }
}

/// Reads an RFC 3339 time; what is finer than a microsecond is cut off.
///
/// # Errors
/// It is none, or not between 1970 and 9999.
pub fn time(text: &str) -> Result<Timestamp, String> {
    let parsed = chrono::DateTime::parse_from_rfc3339(text)
        .map_err(|_| "must be an RFC 3339 time, such as 2026-01-31T03:00:00Z".to_owned())?;
    // Going by the number of microseconds turns a leap second into the second after it, which stores can hold.
    let micros = parsed.timestamp_micros();
    let time = Timestamp::from_timestamp_micros(micros).ok_or("must lie between 1970 and 9999")?;
    moment(time).map(|()| time)
}

/// Writes a time as RFC 3339 in UTC, with as many digits as it needs.
pub fn format_time(time: Timestamp) -> String {
    time.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)
}

/// What a message's type may be.
///
/// # Errors
/// What is wrong with it.
pub fn message_type(value: &str, limits: &Limits) -> Result<(), String> {
    if value.is_empty() {
        return Err("is needed: it says what the message is, such as order.created".to_owned());
    }
    text(value, limits.name)?;
    if value.chars().any(char::is_whitespace) {
        return Err("must not contain white space".to_owned());
    }
    Ok(())
}

/// A text of 1 to `max` printable characters.
///
/// # Errors
/// What is wrong with it.
pub fn text(value: &str, max: usize) -> Result<(), String> {
    if value.is_empty() {
        return Err("must not be empty; leave it out instead".to_owned());
    }
    // No character is shorter than a byte, so most values need no counting.
    if value.len() > max && value.chars().count() > max {
        return Err(format!("must not be longer than {max} characters"));
    }
    no_control(value)
}

/// A media type that can stand in a header.
///
/// # Errors
/// What is wrong with it.
pub fn content_type(value: &str, limits: &Limits) -> Result<(), String> {
    text(value, limits.name)?;
    if !value.is_ascii() || !media::is_valid(value) {
        return Err("must be a media type, such as application/json".to_owned());
    }
    Ok(())
}

/// The name of one of a message's own headers, in lower case.
///
/// # Errors
/// It is no HTTP token, too long, or means something else on the wire.
pub fn own_header_name(name: &str, limits: &Limits) -> Result<(), String> {
    if !wire::is_token(name) {
        return Err(
            "is not a header name: only letters, digits and !#$%&'*+-.^_`|~ may stand in it".to_owned()
        );
    }
    if name.len() > limits.header_name {
        return Err(format!("the name must not be longer than {} characters", limits.header_name));
    }
    if wire::is_reserved(name) {
        return Err("this name is reserved: the gateway sets that header itself, from the message's members"
            .to_owned());
    }
    Ok(())
}

fn own_header_value(value: &str, limits: &Limits) -> Result<(), String> {
    if value.len() > limits.header_value_bytes {
        return Err(format!("must not be longer than {} bytes", limits.header_value_bytes));
    }
    no_control(value)
}

fn no_control(value: &str) -> Result<(), String> {
    if value.chars().any(char::is_control) {
        return Err("must not contain control characters".to_owned());
    }
    Ok(())
}

fn count(found: usize, max: usize, what: &str) -> Result<(), String> {
    if found > max { Err(format!("must not be more than {max} {what}")) } else { Ok(()) }
}

fn destinations(names: &[String], limits: &Limits) -> Result<(), String> {
    if names.is_empty() {
        return Err("must name at least one destination; leave it out to follow the routes".to_owned());
    }
    count(names.len(), limits.destinations, "destinations")?;
    names.iter().try_for_each(|name| text(name, limits.name).map_err(|detail| format!("each name {detail}")))
}

fn moment(time: Timestamp) -> Result<(), String> {
    use chrono::Datelike;
    if (1970..=9999).contains(&time.year()) {
        Ok(())
    } else {
        Err("must lie between 1970 and 9999".to_owned())
    }
}

fn horizon(at: Timestamp, now: Timestamp, limits: &Limits) -> Result<(), String> {
    match limits.deliver_horizon {
        Some(horizon) if (at - now).to_std().is_ok_and(|ahead| ahead > horizon) => {
            Err(format!("must not lie further ahead than {}", super::duration::format(horizon)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
