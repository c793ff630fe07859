//! JSON Schemas of message types: what of the data violates one, and what one says of the identity.

use std::fmt;

use serde_json::Value;

use super::message::BodyAt;
use super::{Place, json};

/// No more violations than these are told.
const MAX_PLACES: usize = 50;
/// A violation is told in this many characters at most: it quotes the value.
const MAX_DETAIL: usize = 300;
/// Where a schema says what the identity is: a dotted path, a JSON Pointer, or a template.
const IDENTITY: &str = "x-deduplication-identity";

/// A compiled schema. The draft is the one that `$schema` names, else 2020-12; references are resolved within
/// the document only, nothing is fetched.
pub struct Schema {
    validator: jsonschema::Validator,
    deduplication_identity: Option<String>,
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schema")
            .field("deduplication_identity", &self.deduplication_identity)
            .finish_non_exhaustive()
    }
}

impl Schema {
    /// Compiles the text of a schema.
    ///
    /// # Errors
    /// It is no JSON, no schema, or refers to something outside of itself.
    pub fn compile(text: &[u8]) -> Result<Self, String> {
        let schema: Value =
            serde_json::from_slice(text).map_err(|error| format!("is not valid JSON: {error}"))?;
        let validator = jsonschema::options().offline().build(&schema).map_err(|error| {
            format!("is not a JSON Schema that can be used: {}", shorten(error.to_string()))
        })?;
        let deduplication_identity = match schema.get(IDENTITY) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => return Err(format!("has an `{IDENTITY}` that is not a string")),
        };
        Ok(Self { validator, deduplication_identity })
    }

    /// What `x-deduplication-identity` says.
    pub fn deduplication_identity(&self) -> Option<&str> {
        self.deduplication_identity.as_deref()
    }

    /// Everything in the data that violates the schema. The places are JSON Pointers into what was sent, in which
    /// the data stands at `at`; in data that is encoded there, the place within it is told in the text.
    ///
    /// # Errors
    /// The places, in the order of the document.
    pub fn check(&self, data: &[u8], at: BodyAt) -> Result<(), Vec<Place>> {
        let prefix = match at {
            BodyAt::Root => "",
            BodyAt::Member(place) | BodyAt::Encoded(place) => place,
        };
        let value: Value = match serde_json::from_slice(data) {
            Ok(value) => value,
            Err(_) if json::document(data).is_ok() => {
                return Err(vec![Place::new(
                    prefix,
                    "nests too deep, or holds a number that is too large, to be checked",
                )]);
            }
            Err(error) => {
                return Err(vec![Place::new(
                    prefix,
                    format!("the type's schema asks for JSON; not valid JSON: {error}"),
                )]);
            }
        };
        let places: Vec<Place> = self
            .validator
            .iter_errors(&value)
            .take(MAX_PLACES)
            .map(|error| {
                let (within, text) = (error.instance_path().to_string(), error.to_string());
                match at {
                    BodyAt::Encoded(_) if !within.is_empty() => {
                        Place::new(prefix, shorten(format!("{within}: {text}")))
                    }
                    BodyAt::Encoded(_) => Place::new(prefix, shorten(text)),
                    _ => Place::new(format!("{prefix}{within}"), shorten(text)),
                }
            })
            .collect();
        if places.is_empty() { Ok(()) } else { Err(places) }
    }
}

fn shorten(text: String) -> String {
    match text.char_indices().nth(MAX_DETAIL) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &[u8] = br##"{
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "x-deduplication-identity": "order.id",
        "type": "object",
        "required": ["order"],
        "properties": {
            "order": { "$ref": "#/$defs/order" },
            "a/b": { "type": "string" }
        },
        "$defs": { "order": { "type": "object", "properties": { "id": { "type": "integer" } } } }
    }"##;

    fn pointers(data: &[u8]) -> Vec<String> {
        let schema = Schema::compile(SCHEMA).unwrap();
        let places = schema.check(data, BodyAt::Member("/data")).err().unwrap_or_default();
        places.into_iter().map(|place| place.pointer).collect()
    }

    #[test]
    fn violations_are_told_with_their_places() {
        assert_eq!(pointers(br#"{"order":{"id":1}}"#), [""; 0]);
        assert_eq!(pointers(br#"{"order":{"id":"x"},"a/b":1}"#).len(), 2);
        assert!(pointers(br#"{"order":{"id":"x"},"a/b":1}"#).contains(&"/data/order/id".to_owned()));
        assert!(pointers(br#"{"order":{"id":"x"},"a/b":1}"#).contains(&"/data/a~1b".to_owned()));
        assert_eq!(pointers(b"{}"), ["/data"]);
        for data in [b"".as_slice(), b"{", b"\xff", b"text", b"[", b"1e999"] {
            assert_eq!(pointers(data), ["/data"], "{data:?}");
        }
    }

    #[test]
    fn into_encoded_data_no_pointer_leads() {
        let schema = Schema::compile(SCHEMA).unwrap();
        let places = schema.check(br#"{"order":{"id":"x"}}"#, BodyAt::Encoded("/dataBase64")).unwrap_err();
        assert_eq!(places[0].pointer, "/dataBase64");
        assert!(places[0].detail.starts_with("/order/id: "), "{places:?}");
    }

    #[test]
    fn deep_data_is_a_violation_and_no_crash() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(pointers(deep.as_bytes()), ["/data"]);
    }

    #[test]
    fn what_is_told_is_bounded() {
        let schema = Schema::compile(br#"{"type":"array","items":{"type":"string"}}"#).unwrap();
        let data = format!("[{}]", vec!["1"; 1000].join(","));
        assert_eq!(schema.check(data.as_bytes(), BodyAt::Root).unwrap_err().len(), MAX_PLACES);
        let schema = Schema::compile(br#"{"type":"integer"}"#).unwrap();
        let long = format!("\"{}\"", "x".repeat(10_000));
        let places = schema.check(long.as_bytes(), BodyAt::Root).unwrap_err();
        assert!(places[0].detail.chars().count() <= MAX_DETAIL + 1);
    }

    #[test]
    fn the_identity_is_read() {
        assert_eq!(Schema::compile(SCHEMA).unwrap().deduplication_identity(), Some("order.id"));
        assert_eq!(Schema::compile(b"{}").unwrap().deduplication_identity(), None);
        assert!(Schema::compile(br#"{"x-deduplication-identity":1}"#).is_err());
    }

    #[test]
    fn what_is_no_schema_is_refused_and_nothing_is_fetched() {
        for text in [
            b"{".as_slice(),
            br#"{"type":"nothing"}"#,
            br#"{"$ref":"https://example.com/schema.json"}"#,
            br#"{"$ref":"file:///etc/passwd"}"#,
            br##"{"$ref":"#/missing"}"##,
            b"5",
        ] {
            assert!(Schema::compile(text).is_err(), "{}", String::from_utf8_lossy(text));
        }
    }
}
