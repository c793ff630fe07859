//! JSON read without being interpreted: members and elements as the source text they were, so that nothing is
//! re-encoded and no number loses digits.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object, in their order, doubles included.
pub type Members<'a> = Vec<(Cow<'a, str>, &'a RawValue)>;

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Null,
    Boolean,
    Number,
    String,
    Array,
    Object,
}

/// The kind of a value, by its first byte.
pub fn kind(raw: &RawValue) -> Kind {
    match raw.get().as_bytes().first() {
        Some(b'n') => Kind::Null,
        Some(b't' | b'f') => Kind::Boolean,
        Some(b'"') => Kind::String,
        Some(b'[') => Kind::Array,
        Some(b'{') => Kind::Object,
        _ => Kind::Number,
    }
}

/// The text of a string; `None` for any other kind, and for a string that escapes half a surrogate pair.
pub fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Text<'_>>(raw.get()).ok().map(|text| text.0)
}

/// [`string`], owned; `None` for what is no string at all.
pub fn text(raw: &RawValue) -> Option<String> {
    (kind(raw) == Kind::String).then(|| string(raw)).flatten().map(Cow::into_owned)
}

/// A whole document as one value.
///
/// # Errors
/// It is not JSON: the reason, with line and column.
pub fn document(bytes: &[u8]) -> Result<&RawValue, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("not valid JSON: {error}"))
}

/// The members of an object; `None` if the value is none.
pub fn members(raw: &RawValue) -> Option<Members<'_>> {
    serde_json::from_str::<Object<'_>>(raw.get()).ok().map(|object| object.0)
}

/// The elements of an array, at most `limit` + 1 of them kept; `None` if the value is none.
pub fn elements(raw: &RawValue, limit: usize) -> Option<Vec<&RawValue>> {
    let mut deserializer = serde_json::Deserializer::from_str(raw.get());
    (&mut deserializer).deserialize_seq(Elements { limit, lifetime: PhantomData }).ok()
}

/// Whether objects and arrays are nested deeper than `max`, in what may or may not be JSON.
pub fn is_deeper_than(bytes: &[u8], max: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for &byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                if depth > max {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// The same JSON without white space between its tokens: one line, otherwise byte for byte.
pub fn compact(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let (mut in_string, mut escaped) = (false, false);
    for character in json.chars() {
        match character {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            ' ' | '\t' | '\n' | '\r' if !in_string => continue,
            _ => {}
        }
        out.push(character);
    }
    out
}

/// A member's name as a token of a JSON Pointer (RFC 6901).
pub fn escape(token: &str) -> Cow<'_, str> {
    if token.contains(['~', '/']) {
        Cow::Owned(token.replace('~', "~0").replace('/', "~1"))
    } else {
        Cow::Borrowed(token)
    }
}

/// A token of a JSON Pointer as the name it stands for; `None`: a `~` that escapes nothing.
pub fn unescape(token: &str) -> Option<String> {
    let mut out = String::with_capacity(token.len());
    let mut characters = token.chars();
    while let Some(character) = characters.next() {
        out.push(match character {
            '~' => match characters.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            other => other,
        });
    }
    Some(out)
}

/// Text as a JSON string.
pub fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Writes an object on one line, its members in the order in which they are given.
#[derive(Debug)]
pub struct ObjectWriter(String);

impl Default for ObjectWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl ObjectWriter {
    pub fn new() -> Self {
        Self("{".to_owned())
    }

    /// A member whose value is JSON already.
    pub fn raw(&mut self, name: &str, json: &str) -> &mut Self {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.0.push_str(&quote(name));
        self.0.push(':');
        self.0.push_str(json);
        self
    }

    pub fn text(&mut self, name: &str, text: &str) -> &mut Self {
        self.raw(name, &quote(text))
    }

    pub fn text_if(&mut self, name: &str, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.text(name, text),
            None => self,
        }
    }

    pub fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}

struct Object<'a>(Members<'a>);

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some((name, value)) = map.next_entry::<Text<'de>, &'de RawValue>()? {
            members.push((name.0, value));
        }
        Ok(Object(members))
    }
}

struct Elements<'a> {
    limit: usize,
    lifetime: PhantomData<&'a ()>,
}

impl<'de> Visitor<'de> for Elements<'de> {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element::<&'de RawValue>()? {
            if elements.len() <= self.limit {
                elements.push(element);
            }
        }
        Ok(elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_source_text() {
        let raw = document(br#" {"a" : 1.10, "b\u0063":[1, 2] , "a":"x"} "#).unwrap();
        let members = members(raw).unwrap();
        let seen: Vec<_> = members.iter().map(|(name, value)| (name.as_ref(), value.get())).collect();
        assert_eq!(seen, [("a", "1.10"), ("bc", "[1, 2]"), ("a", "\"x\"")]);
    }

    #[test]
    fn depth_is_counted_outside_strings() {
        assert!(!is_deeper_than(br#"[["[[[\"[["]]"#, 2));
        assert!(is_deeper_than(b"[[[", 2));
        assert!(is_deeper_than(&b"[".repeat(1_000_000), 64));
    }

    #[test]
    fn a_very_deep_document_does_not_overflow_the_stack() {
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        let raw = document(deep.as_bytes()).unwrap();
        assert_eq!(elements(raw, 10).unwrap().len(), 1);
        assert_eq!(compact(deep.as_str()), deep);
    }

    #[test]
    fn compacting_leaves_strings_alone() {
        assert_eq!(compact("{ \"a b\" :\n[1,\t\"c \\\" d\"]\r\n}"), r#"{"a b":[1,"c \" d"]}"#);
    }

    #[test]
    fn pointers_are_escaped() {
        assert_eq!(escape("a/b~c"), "a~1b~0c");
        assert_eq!(unescape("a~1b~0c").as_deref(), Some("a/b~c"));
        assert_eq!(unescape("a~2"), None);
        assert_eq!(unescape("a~"), None);
    }

    #[test]
    fn what_is_no_utf8_or_no_json_is_refused() {
        for bytes in [b"\xff".as_slice(), b"\"\xff\"", b"{", b"", b"1 2", b"{\"a\":\"\n\"}", b"\xef\xbb\xbf1"]
        {
            assert!(document(bytes).is_err(), "{bytes:?}");
        }
        assert!(string(document(br#""\ud800""#).unwrap()).is_none());
    }
}
