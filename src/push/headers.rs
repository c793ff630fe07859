//! What a request's headers say.

use http::HeaderMap;

use crate::domain::message::Draft;
use crate::domain::wire;

/// A header's text; `None`: it is not there.
///
/// # Errors
/// It is there twice, or not visible ASCII: a sentence for people.
pub fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, String> {
    let mut all = headers.get_all(name).iter();
    let Some(value) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return Err(format!("The header `{name}` is there more than once."));
    }
    match value.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(format!("The header `{name}` is not ASCII.")),
    }
}

/// As [`text`], of a header that has to be there and not be empty.
///
/// # Errors
/// It is not, or as [`text`].
pub fn needed<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, String> {
    text(headers, name)?
        .filter(|text| !text.is_empty())
        .ok_or_else(|| format!("The header `{name}` is missing."))
}

/// The number of this attempt, where the header `name` counts those before it.
pub fn attempts_after(headers: &HeaderMap, name: &str) -> u32 {
    let before = headers.get(name).and_then(|value| value.to_str().ok()?.trim().parse::<u32>().ok());
    before.unwrap_or(0).saturating_add(1)
}

/// Gives `draft` the trace that the request is part of, unless it has one.
pub fn trace(draft: &mut Draft, headers: &HeaderMap) {
    let envelope = &mut draft.envelope;
    if envelope.traceparent.is_some() {
        return;
    }
    let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    envelope.traceparent = value(wire::TRACEPARENT).and_then(wire::traceparent).map(str::to_owned);
    if envelope.traceparent.is_some() && envelope.tracestate.is_none() {
        envelope.tracestate = value(wire::TRACESTATE).and_then(wire::tracestate).map(str::to_owned);
    }
}
