//! What a handler recognises work by.

use std::time::Duration;

use super::facts::Facts;
use super::path::{Path, usable};
use crate::domain::message::Message;

/// Where a handler finds the id of the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdFrom {
    /// The message's deduplication id.
    DeduplicationId,
    /// A member of the data.
    Member(Path),
    /// One of the message's own headers, in lower case.
    Header(String),
}

/// A handler's deduplication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerDeduplication {
    pub from: IdFrom,
    /// Whether a message without an id is given up on.
    pub required: bool,
    /// How long work that was done is remembered.
    pub window: Duration,
}

impl HandlerDeduplication {
    /// The id of the work that `message` asks for; an empty one is none.
    pub fn id(&self, message: &Message) -> Option<String> {
        let id = match &self.from {
            IdFrom::DeduplicationId => message.deduplication_id.clone(),
            IdFrom::Member(path) => {
                let facts = Facts::of_message(message);
                path.find(&facts).and_then(usable).map(std::borrow::Cow::into_owned)
            }
            IdFrom::Header(name) => message.envelope.headers.get(name).cloned(),
        };
        id.filter(|id| !id.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::domain::Clock;
    use crate::domain::message::Envelope;

    fn message() -> Message {
        Message {
            id: "m".into(),
            kind: "t".into(),
            tenant: String::new(),
            body: Bytes::from_static(br#"{"sku":"A-1","n":7,"none":null}"#),
            deduplication_id: Some("d".into()),
            partition_key: None,
            correlation_id: None,
            deliver_at: None,
            deliver_by: None,
            accepted_at: Clock::system().now(),
            envelope: Envelope { headers: [("x".to_owned(), "h".to_owned())].into(), ..Envelope::default() },
        }
    }

    #[test]
    fn the_id_is_where_the_handler_says() {
        let id = |from| HandlerDeduplication { from, required: true, window: Duration::ZERO }.id(&message());
        let member = |path| id(IdFrom::Member(Path::parse(path).unwrap()));
        assert_eq!(id(IdFrom::DeduplicationId).as_deref(), Some("d"));
        assert_eq!(id(IdFrom::Header("x".into())).as_deref(), Some("h"));
        assert_eq!(id(IdFrom::Header("y".into())), None);
        assert_eq!(member("sku").as_deref(), Some("A-1"));
        assert_eq!(member("/n").as_deref(), Some("7"));
        assert_eq!((member("none"), member("other")), (None, None));
    }
}
