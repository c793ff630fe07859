//! The question of CloudEvents' webhooks whether they may send here ("HTTP 1.1 Web Hooks for Event Delivery", 4):
//! an OPTIONS with `WebHook-Request-Origin`. The answer's headers are the consent; its status alone is none.
//!
//! Whoever asks is told yes: what it sends then has to prove itself like any other. A callback URL is never asked
//! for.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, header};

use super::{Handshake, Refusal, Request, headers};

const REQUEST_ORIGIN: &str = "webhook-request-origin";
const REQUEST_RATE: &str = "webhook-request-rate";
const ALLOWED_ORIGIN: HeaderName = HeaderName::from_static("webhook-allowed-origin");
const ALLOWED_RATE: HeaderName = HeaderName::from_static("webhook-allowed-rate");

/// The consent.
///
/// # Errors
/// It is no such question, or one that cannot be answered.
pub fn answer(request: &Request<'_>) -> Result<Handshake, Refusal> {
    let Some(origin) = headers::text(request.headers, REQUEST_ORIGIN).map_err(Refusal::malformed)? else {
        return Err(Refusal::Method);
    };
    let origin = origin.trim();
    let sound = (1..=255).contains(&origin.len())
        && origin.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~:/[]".contains(&byte));
    let Some(origin) = HeaderValue::from_str(origin).ok().filter(|_| sound) else {
        return Err(Refusal::malformed(format!(
            "The header `{REQUEST_ORIGIN}` is not the name of a sender."
        )));
    };
    // Per minute. What it asks for is granted; the gateway answers 503 where it is too much.
    let asked = headers::text(request.headers, REQUEST_RATE).map_err(Refusal::malformed)?;
    let rate = match asked.map(str::trim) {
        Some(text) if text.parse::<u32>().is_ok_and(|rate| rate > 0) => HeaderValue::from_str(text).ok(),
        _ => None,
    };
    Ok(Handshake {
        headers: vec![
            (ALLOWED_ORIGIN, origin),
            (ALLOWED_RATE, rate.unwrap_or(HeaderValue::from_static("*"))),
            (header::ALLOW, HeaderValue::from_static("POST")),
        ],
        body: Bytes::new(),
    })
}
