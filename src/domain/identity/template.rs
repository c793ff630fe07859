//! Templates: text with members of the message and its data in braces.

use std::borrow::Cow;

use super::facts::Facts;
use super::path::{Path, usable};
use crate::domain::wire;

/// A compiled template, such as `{projectionName}|{occurrenceUtc}`.
///
/// `{a.b}` and `{/a/b}` are members of the data; `{@type}`, `{@id}`, `{@source}`, `{@subject}`, `{@tenant}`,
/// `{@header.NAME}`, `{@idempotencyKey}`, `{@body.sha256}` are the message's. `{{` and `}}` are braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Member(Path),
    Type,
    Id,
    Source,
    Subject,
    Tenant,
    Header(String),
    IdempotencyKey,
    BodySha256,
}

impl Template {
    /// Compiles a template.
    ///
    /// # Errors
    /// What of it can never have a value, or that its braces do not match.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(place) = rest.find(['{', '}']) {
            literal.push_str(&rest[..place]);
            let brace = &rest[place..=place];
            rest = &rest[place + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                literal.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return Err(format!(
                    "`{text}` has a `}}` without a `{{` before it; write `}}}}` for a brace"
                ));
            }
            let Some((inside, after)) = rest.split_once('}') else {
                return Err(format!("`{text}` has a `{{` without a `}}` after it; write `{{{{` for a brace"));
            };
            if inside.contains('{') {
                return Err(format!("`{text}` has a `{{` inside of braces"));
            }
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal)));
            }
            parts.push(Part::parse(inside.trim())?);
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        if parts.is_empty() {
            return Err("is empty".to_owned());
        }
        Ok(Self(parts))
    }

    /// Compiles what derives ids: at least one part must differ from message to message.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), or that every message would get the same id.
    pub(super) fn identity(text: &str) -> Result<Self, String> {
        let template = Self::parse(text)?;
        let same = |part: &Part| matches!(part, Part::Text(_) | Part::Type | Part::Tenant);
        if template.0.iter().all(same) {
            return Err(format!(
                "`{text}` gives every message of a type the same id; name a member in braces, such as `{{order.id}}`"
            ));
        }
        Ok(template)
    }

    /// Compiles a contract: a path, or a template if it holds a brace.
    ///
    /// # Errors
    /// As [`identity`](Self::identity).
    pub(super) fn contract(text: &str) -> Result<Self, String> {
        if text.contains(['{', '}']) {
            return Self::identity(text);
        }
        Path::parse(text).map(|path| Self(vec![Part::Member(path)]))
    }

    /// The text for this message; `None` if any of the parts has no usable value: the member is missing, null,
    /// empty, an object or an array.
    pub fn render(&self, facts: &Facts<'_>) -> Option<String> {
        self.0.iter().map(|part| part.value(facts)).collect()
    }
}

impl std::str::FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

const KNOWN: &str = "@type, @id, @source, @subject, @tenant, @header.NAME, @idempotencyKey and @body.sha256";

impl Part {
    fn parse(inside: &str) -> Result<Self, String> {
        let Some(name) = inside.strip_prefix('@') else {
            return Path::parse(inside)
                .map(Self::Member)
                .map_err(|detail| format!("`{{{inside}}}`: {detail}"));
        };
        Ok(match name {
            "type" => Self::Type,
            "id" => Self::Id,
            "source" => Self::Source,
            "subject" => Self::Subject,
            "tenant" => Self::Tenant,
            "idempotencyKey" => Self::IdempotencyKey,
            "body.sha256" => Self::BodySha256,
            other => match other.strip_prefix("header.").map(str::to_ascii_lowercase) {
                Some(header) if !wire::is_token(&header) => {
                    return Err(format!("`{{{inside}}}` names no header: `{header}` cannot be one's name"));
                }
                Some(header) if wire::is_reserved(&header) => {
                    return Err(format!(
                        "`{{{inside}}}` can never have a value: no message has a header `{header}` of its own, the gateway sets it"
                    ));
                }
                Some(header) => Self::Header(header),
                None => return Err(format!("`{{{inside}}}` is unknown: there are {KNOWN}")),
            },
        })
    }

    fn value<'v>(&'v self, facts: &'v Facts<'_>) -> Option<Cow<'v, str>> {
        let value = match self {
            Self::Text(text) => return Some(Cow::Borrowed(text)),
            Self::Member(path) => return usable(path.find(facts)?),
            Self::BodySha256 => return Some(Cow::Owned(facts.body_sha256())),
            Self::Type => Some(facts.kind()),
            Self::Id => facts.id(),
            Self::Source => facts.source(),
            Self::Subject => facts.subject(),
            Self::Tenant => facts.tenant(),
            Self::Header(name) => facts.headers().get(name).map(String::as_str),
            Self::IdempotencyKey => facts.idempotency_key(),
        };
        value.filter(|text| !text.is_empty()).map(Cow::Borrowed)
    }
}
