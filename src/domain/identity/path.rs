//! The place of a member in the data: a dotted path (`order.lines.0.sku`) or a JSON Pointer (`/order/id`).

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::facts::Facts;
use crate::domain::json;

/// Names from the outside in. In an array a name that is a number is the element's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(Vec<String>);

impl Path {
    /// Reads a path: a JSON Pointer (RFC 6901) if it begins with `/`, else names parted by dots.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("names no member: write one, such as `order.id` or `/order/id`".to_owned());
        }
        if let Some(pointer) = text.strip_prefix('/') {
            let names = pointer.split('/').map(json::unescape).collect::<Option<_>>();
            return names.map(Self).ok_or_else(|| {
                format!("`{text}` is not a JSON Pointer: write `~` in a name as `~0` and `/` as `~1`")
            });
        }
        if text.split('.').any(|name| name.trim().is_empty()) {
            return Err(format!("`{text}` has an empty name between its dots"));
        }
        Ok(Self(text.split('.').map(str::to_owned).collect()))
    }

    /// The value at this place, in the data.
    pub(super) fn find<'a>(&self, facts: &Facts<'a>) -> Option<&'a RawValue> {
        let (first, rest) = self.0.split_first()?;
        let outermost = match facts.members() {
            Some(members) => last(members, first)?,
            None => step(facts.root()?, first)?,
        };
        rest.iter().try_fold(outermost, |value, name| step(value, name))
    }
}

/// The value of the last member of this name: of doubles it is the last that counts, as in most readers.
fn last<'a>(members: &[(Cow<'a, str>, &'a RawValue)], name: &str) -> Option<&'a RawValue> {
    members.iter().rev().find(|(found, _)| found == name).map(|(_, value)| *value)
}

fn step<'a>(value: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    match json::kind(value) {
        json::Kind::Object => last(&json::members(value)?, name),
        json::Kind::Array => {
            let is_index =
                name.bytes().all(|byte| byte.is_ascii_digit()) && (name == "0" || !name.starts_with('0'));
            let index = is_index.then(|| name.parse::<usize>().ok()).flatten()?;
            json::elements(value, index)?.get(index).copied()
        }
        _ => None,
    }
}

/// The text of a value that can be part of an id: a string that is not empty, or a number or boolean as it is
/// written. `None` for null, an empty string, an object, an array.
pub(super) fn usable(raw: &RawValue) -> Option<Cow<'_, str>> {
    match json::kind(raw) {
        json::Kind::String => json::string(raw).filter(|text| !text.is_empty()),
        json::Kind::Number | json::Kind::Boolean => Some(Cow::Borrowed(raw.get())),
        json::Kind::Null | json::Kind::Array | json::Kind::Object => None,
    }
}
