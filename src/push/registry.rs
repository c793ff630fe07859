//! The formats, one line each.

use super::{Format, Kind, Problem};
use crate::config::Receiver;
use crate::config::receivers::Authorize;

/// Every format, in the order in which they are listed to people.
pub const FORMATS: [&Kind; 10] = [
    &super::cloudevents::KIND,
    &super::eventbridge::KIND,
    &super::eventgrid::KIND,
    &super::github::KIND,
    &super::native::KIND,
    &super::pubsub::KIND,
    &super::qstash::KIND,
    &super::sns::KIND,
    &super::standard_webhooks::KIND,
    &super::stripe::KIND,
];

/// The format with this name.
pub fn find(name: &str) -> Option<&'static Kind> {
    FORMATS.into_iter().find(|kind| kind.name == name)
}

/// Reads the requests of `receiver`.
///
/// # Errors
/// What is wrong with its settings.
pub fn build(receiver: &Receiver) -> Result<(&'static Kind, Box<dyn Format>), Vec<Problem>> {
    let kind =
        find(&receiver.format).ok_or_else(|| vec![("format", "there is no such format".to_owned())])?;
    let mut problems = Vec::new();
    let mut wrong = |key: &'static str, text: String| problems.push((key, text));
    for key in receiver.special_keys().filter(|key| !kind.keys.contains(key)) {
        wrong(key, format!("means nothing for `{}`: leave it out", kind.name));
    }
    if let Some(status) = receiver.success_status.filter(|status| !(kind.acknowledges)(*status)) {
        wrong("success_status", format!("{status} is no acknowledgement to senders of `{}`", kind.name));
    }
    if let Some(status) = receiver.retry_status.filter(|status| !(kind.retries)(*status)) {
        wrong(
            "retry_status",
            format!("senders of `{}` do not send again what is answered {status}", kind.name),
        );
    }
    let format =
        (kind.make)(receiver).map_err(|more| more.into_iter().for_each(|(key, text)| wrong(key, text)));
    let asks = receiver.oidc.is_some() || receiver.api_key.is_some();
    match (&format, receiver.authorize) {
        (_, Authorize::Anonymous) if asks => {
            wrong(
                "authorize",
                "says that anybody may push, and `oidc` or `api_key` who may: keep one".to_owned(),
            );
        }
        (Ok(format), Authorize::Proof) if !asks && !format.verifies() => wrong(
            "authorize",
            "nothing proves who pushes: give `oidc`, `api_key` or what the format verifies by, or say \
             `authorize = \"anonymous\"`"
                .to_owned(),
        ),
        _ => {}
    }
    match format {
        Ok(format) if problems.is_empty() => Ok((kind, format)),
        _ => Err(problems),
    }
}
