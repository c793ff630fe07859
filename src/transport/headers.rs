//! The headers of an HTTP request, for those who send any.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::domain::delivery::{DeadKind, Delivery, Failure, Fault};
use crate::domain::standard_webhooks::{self as signing, Key};
use crate::domain::{Clock, wire};

/// Names and values as HTTP has them.
pub(super) fn written<'a>(named: Vec<(Cow<'a, str>, Cow<'a, str>)>) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::with_capacity(named.len() + 8);
    for (name, value) in named {
        let written = HeaderName::try_from(&*name).ok().zip(HeaderValue::try_from(&*value).ok());
        // Whatever was accepted can be written: if not, the message can never be sent.
        let (name, value) = written.ok_or_else(|| {
            let text = format!("the header `{name}` cannot be written in HTTP");
            Failure::new(Fault::Message(DeadKind::Refused), text)
        })?;
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Signs a request as Standard Webhooks say, once with each of `keys`; without keys it stays as it is.
pub(super) fn sign(
    headers: &mut HeaderMap,
    delivery: &Delivery,
    keys: Result<Vec<Key>, String>,
    clock: &Clock,
) -> Result<(), Failure> {
    let broken = |text: String| Failure::new(Fault::Target, format!("the secret {text}"));
    let keys = keys.map_err(broken)?;
    if keys.is_empty() {
        return Ok(());
    }
    // Signed is what is sent: the id as it stands in the header.
    let id = wire::encode(&delivery.message.id);
    let timestamp_s = clock.now().timestamp();
    let signatures: Vec<_> =
        keys.iter().map(|key| key.sign(&id, timestamp_s, &delivery.message.body)).collect();
    for (name, value) in [
        (signing::ID_HEADER, id),
        (signing::TIMESTAMP_HEADER, timestamp_s.to_string()),
        (signing::SIGNATURE_HEADER, signatures.join(" ")),
    ] {
        let value = HeaderValue::try_from(value).map_err(|error| broken(error.to_string()))?;
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(())
}
