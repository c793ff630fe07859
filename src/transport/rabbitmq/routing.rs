//! Routing keys made of a message's members.

use crate::domain::Message;

/// A compiled routing key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RoutingKey(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Type,
    Tenant,
    PartitionKey,
    Subject,
    Source,
    Id,
    Header(String),
}

impl RoutingKey {
    /// Compiles `text`.
    ///
    /// # Errors
    /// What is wrong in it and what may stand there.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) =
                after.split_once('}').ok_or_else(|| format!("`{text}` has a `{{` without its `}}`"))?;
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(Part::parse(name)?);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }

    /// The routing key of `message`; a member that it does not have is empty.
    pub(super) fn render(&self, message: &Message) -> String {
        self.0.iter().map(|part| part.value(message)).collect()
    }
}

impl Part {
    fn parse(name: &str) -> Result<Self, String> {
        Ok(match name {
            "@type" => Self::Type,
            "@tenant" => Self::Tenant,
            "@partitionKey" => Self::PartitionKey,
            "@subject" => Self::Subject,
            "@source" => Self::Source,
            "@id" => Self::Id,
            _ => match name.strip_prefix("@header.") {
                Some(header) if !header.is_empty() => Self::Header(header.to_ascii_lowercase()),
                _ => {
                    return Err(format!(
                        "there is no `{{{name}}}`; there are {{@type}}, {{@tenant}}, {{@partitionKey}}, {{@subject}}, {{@source}}, {{@id}} and {{@header.NAME}}"
                    ));
                }
            },
        })
    }

    fn value<'a>(&'a self, message: &'a Message) -> &'a str {
        let envelope = &message.envelope;
        let value = match self {
            Self::Text(text) => Some(text),
            Self::Type => Some(&message.kind),
            Self::Tenant => Some(&message.tenant),
            Self::PartitionKey => message.partition_key.as_ref(),
            Self::Subject => envelope.subject.as_ref(),
            Self::Source => envelope.source.as_ref(),
            Self::Id => Some(&message.id),
            Self::Header(name) => envelope.headers.get(name),
        };
        value.map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::message::Envelope;

    fn message() -> Message {
        Message {
            id: "m".into(),
            kind: "order.created".into(),
            tenant: "acme".into(),
            body: bytes::Bytes::new(),
            deduplication_id: None,
            partition_key: Some("7".into()),
            correlation_id: None,
            deliver_at: None,
            deliver_by: None,
            accepted_at: chrono::DateTime::UNIX_EPOCH,
            envelope: Envelope {
                headers: [("region".to_owned(), "eu".to_owned())].into(),
                ..Envelope::default()
            },
        }
    }

    #[test]
    fn members_stand_where_they_are_named() {
        for (text, key) in [
            ("orders", "orders"),
            ("", ""),
            ("{@type}", "order.created"),
            ("{@tenant}.{@type}.{@partitionKey}", "acme.order.created.7"),
            ("x.{@header.Region}.{@id}", "x.eu.m"),
            ("{@subject}{@source}-", "-"),
        ] {
            assert_eq!(RoutingKey::parse(text).unwrap().render(&message()), key, "{text}");
        }
    }

    #[test]
    fn what_is_unknown_says_what_there_is() {
        for text in ["{type}", "{@typo}", "{@header.}", "{}"] {
            assert!(RoutingKey::parse(text).unwrap_err().contains("{@type}"), "{text}");
        }
        assert!(RoutingKey::parse("{@type").is_err());
    }
}
