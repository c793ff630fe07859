//! What the broker's answers mean for a message.

use std::time::Duration;

use lapin::ErrorKind;
use lapin::message::BasicReturnMessage;

use crate::domain::delivery::{DeadKind, Failure, Fault};

/// The connection is looked after without anybody's attempts: they may try again soon.
const RECONNECTED_AFTER: Duration = Duration::from_secs(2);

/// No connection. No attempt reached the broker.
pub(super) fn unconnected(reason: &str) -> Failure {
    Failure::new(Fault::Target, reason).retry_after(Some(RECONNECTED_AFTER))
}

/// How the broker gave a message back.
pub(super) fn returned(message: &BasicReturnMessage) -> String {
    format!(
        "no queue takes it: {} {} (exchange `{}`, routing key `{}`)",
        message.reply_code, message.reply_text, message.exchange, message.routing_key
    )
}

pub(super) fn unroutable(text: String) -> Failure {
    Failure::new(Fault::Target, text)
}

/// The broker could not take it: a queue that is full and rejects, or a fault of the broker's own.
pub(super) fn nacked() -> Failure {
    Failure::new(Fault::Attempt, "the broker refused it (nack): a queue is full, or the broker is at fault")
}

pub(super) fn unconfirmed() -> Failure {
    Failure::new(Fault::Attempt, "the broker did not confirm it")
}

/// What the end of a channel or a connection means for a message that was on it. Whether the broker has it is
/// not known; it is sent again with the same id.
pub(super) fn lost(error: &lapin::Error, body_bytes: usize) -> Failure {
    let text = error.to_string();
    match error.kind() {
        // The channel is gone for what it was told: an exchange that is not there, no permission, ...
        ErrorKind::ProtocolError(said) if error.is_amqp_soft_error() => {
            let said = said.get_message().to_string();
            match refused_size(&said) {
                Some(size) if size == body_bytes => Failure::new(Fault::Message(DeadKind::TooLarge), said),
                Some(_) => {
                    Failure::new(Fault::Attempt, format!("lost beside a message that is too large: {said}"))
                }
                None => Failure::new(Fault::Target, format!("the broker closed the channel: {said}")),
            }
        }
        _ => Failure::new(Fault::Target, format!("the connection was lost: {text}"))
            .retry_after(Some(RECONNECTED_AFTER)),
    }
}

/// `PRECONDITION_FAILED - message size 10 is larger than configured max size 5`: the first number.
fn refused_size(said: &str) -> Option<usize> {
    let (_, rest) = said.split_once("message size ")?;
    let (size, rest) = rest.split_once(' ')?;
    rest.contains("max size").then(|| size.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_brokers_words_about_size_are_understood() {
        let said =
            "PRECONDITION_FAILED - message size 134217729 is larger than configured max size 134217728";
        assert_eq!(refused_size(said), Some(134_217_729));
        assert_eq!(refused_size("PRECONDITION_FAILED - inequivalent arg 'durable'"), None);
    }
}
