//! The identity of an HTTP request: its `Idempotency-Key`, and the fingerprint of everything in it that is
//! input.

use sha2::{Digest, Sha256};

/// The longest key, in characters, without its quotes.
pub const MAX_KEY: usize = 255;

/// What of the headers a publish reads as input, beside `ce-*` and `message-header-*`. Not the trace context:
/// a retry has another one and is the same request.
const INPUT_HEADERS: [&str; 12] = [
    "content-type",
    "message-id",
    "source",
    "subject",
    "deduplication-id",
    "partition-key",
    "correlation-id",
    "causation-id",
    "deliver-at",
    "delay",
    "deliver-by",
    "destinations",
];

/// Reads the key from the values of all `Idempotency-Key` lines; `None` if there are none.
///
/// A key is quoted, as the IETF draft has it (an RFC 9651 Item that is a String; parameters are passed over),
/// or bare, as most clients send it. Both are the same key. Bytes beyond ASCII are taken as UTF-8 in either.
///
/// # Errors
/// What is wrong with it, as a sentence for the caller: a key that cannot be read never counts as none.
pub fn parse_key<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Result<Option<String>, String> {
    let mut lines = lines.into_iter();
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err("Idempotency-Key is there more than once; send it once.".to_owned());
    }
    let text = std::str::from_utf8(line).map_err(|_| "Idempotency-Key must be ASCII or UTF-8.".to_owned())?;
    let text = text.trim_matches([' ', '\t']);
    let key = match text.strip_prefix('"') {
        Some(rest) => quoted(text, rest).ok_or("Idempotency-Key is badly quoted: write \"KEY\", with \\ before a quote or backslash inside, or KEY without quotes.")?,
        None if text.contains('"') => {
            return Err("Idempotency-Key is badly quoted: a quote stands inside of it or at its end only.".to_owned());
        }
        None => text.to_owned(),
    };
    if key.is_empty() {
        return Err("Idempotency-Key is empty; send 1 to 255 characters, such as a UUID.".to_owned());
    }
    if key.chars().count() > MAX_KEY {
        return Err(format!("Idempotency-Key is longer than {MAX_KEY} characters."));
    }
    if key.chars().any(char::is_control) {
        return Err("Idempotency-Key contains control characters.".to_owned());
    }
    Ok(Some(key))
}

/// The text of a quoted key; `rest` is `text` without its first quote.
fn quoted(text: &str, rest: &str) -> Option<String> {
    if text.is_ascii() {
        return match sfv::Parser::new(text).parse::<sfv::Item>().ok()?.bare_item {
            sfv::BareItem::String(key) => Some(key.as_str().to_owned()),
            _ => None,
        };
    }
    let mut key = String::with_capacity(rest.len());
    let mut characters = rest.chars();
    loop {
        match characters.next()? {
            '"' => break,
            '\\' => key.push(characters.next().filter(|next| matches!(next, '"' | '\\'))?),
            other => key.push(other),
        }
    }
    characters.next().is_none().then_some(key)
}

/// Whether a request header, by its name in lower case, is input of a publish.
pub fn is_input_header(name: &str) -> bool {
    INPUT_HEADERS.contains(&name) || name.starts_with("ce-") || name.starts_with("message-header-")
}

/// What a fingerprint is taken of.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub method: &'a str,
    /// The path as it was requested, not the route's template.
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub body: &'a [u8],
}

/// The fingerprint of a request: SHA-256 over its method, path, query, input headers (by name; lines of the
/// same name in their order) and body. Every part is preceded by its length, so that none runs into the next.
/// `headers` are all of the request's; those that are no input are passed over.
pub fn fingerprint<'a>(input: Input<'_>, headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> [u8; 32] {
    let mut read: Vec<(String, &[u8])> = headers
        .into_iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value))
        .filter(|(name, _)| is_input_header(name))
        .collect();
    read.sort_by(|one, other| one.0.cmp(&other.0)); // stable: lines of one name keep their order
    let mut hash = Sha256::new();
    hash.update([1_u8, u8::from(input.query.is_some())]); // the version of this scheme first
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    part(input.method.as_bytes());
    part(input.path.as_bytes());
    part(input.query.unwrap_or_default().as_bytes());
    part(&(read.len() as u64).to_be_bytes());
    for (name, value) in read {
        part(name.as_bytes());
        part(value);
    }
    part(input.body);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(line: &str) -> Result<Option<String>, String> {
        parse_key([line.as_bytes()])
    }

    #[test]
    fn quoted_and_bare_are_the_same_key() {
        for (line, expected) in [
            ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
            ("\"8e03978e-40d5-43dd-bc93-6894a57f9324\"", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
            ("\"a \\\"b\\\" \\\\\"", "a \"b\" \\"),
            ("  \"a \" ", "a "),
            (" a b ", "a b"),
            ("\"a\";version=1", "a"),
            ("\u{e9}", "\u{e9}"),
            ("\"\u{e9}\\\\\"", "\u{e9}\\"),
            ("?1", "?1"),
            ("'a'", "'a'"),
        ] {
            assert_eq!(key(line), Ok(Some(expected.into())), "{line}");
        }
        assert_eq!(parse_key([]), Ok(None));
    }

    #[test]
    fn what_cannot_be_read_is_never_none() {
        let long = "k".repeat(256);
        for line in [
            "",
            "  ",
            "\"\"",
            "\"",
            "\"a",
            "a\"",
            "a\"b",
            "\"a\"b",
            "\"a\", \"b\"",
            "\"a\\b\"",
            "\"\u{e9}",
            "\"\u{e9}\"x",
            "\"\u{e9}\\n\"",
            "a\tb",
            "a\0",
            "\"a\u{7f}\"",
            "a\u{85}b",
            &long,
            &format!("\"{long}\""),
        ] {
            assert!(key(line).is_err(), "{line:?}");
        }
        assert!(key(&"k".repeat(255)).is_ok());
        assert!(key(&"\u{e9}".repeat(255)).is_ok());
        assert!(parse_key([b"\xff".as_slice()]).is_err());
        assert!(parse_key([b"a".as_slice(), b"a".as_slice()]).unwrap_err().contains("more than once"));
    }

    const INPUT: Input<'static> =
        Input { method: "POST", path: "/v1/publish/order", query: Some("a=1"), body: b"{}" };

    fn with<'a>(headers: &[(&'a str, &'a str)]) -> [u8; 32] {
        fingerprint(INPUT, headers.iter().map(|(name, value)| (*name, value.as_bytes())))
    }

    #[test]
    fn everything_that_is_input_changes_the_fingerprint() {
        let headers = [("content-type", b"application/json".as_slice()), ("ce-type", b"a".as_slice())];
        let base = fingerprint(INPUT, headers);
        for input in [
            Input { method: "PUT", ..INPUT },
            Input { path: "/v1/publish/other", ..INPUT },
            Input { query: Some("a=2"), ..INPUT },
            Input { query: None, ..INPUT },
            Input { body: b"{ }", ..INPUT },
        ] {
            assert_ne!(fingerprint(input, headers), base, "{input:?}");
        }
        for name in [
            "content-type",
            "ce-type",
            "CE-Source",
            "Message-Header-X",
            "deduplication-id",
            "deliver-at",
            "delay",
        ] {
            assert_ne!(with(&[(name, "x")]), with(&[(name, "y")]), "{name}");
            assert_ne!(with(&[(name, "x")]), with(&[]), "{name}");
        }
    }

    #[test]
    fn what_is_no_input_does_not() {
        for name in
            ["traceparent", "tracestate", "user-agent", "authorization", "idempotency-key", "date", "prefer"]
        {
            assert_eq!(with(&[(name, "x")]), with(&[]), "{name}");
        }
        assert_eq!(with(&[("source", "s"), ("subject", "t")]), with(&[("Subject", "t"), ("SOURCE", "s")]));
        assert_ne!(with(&[("ce-a", "1"), ("ce-a", "2")]), with(&[("ce-a", "2"), ("ce-a", "1")]));
    }

    type Parts = (String, String, Option<String>, String, Vec<(String, String)>);

    proptest! {
        #[test]
        fn quoting_changes_no_key(text in "[^\\p{Cc}\"]{1,200}") {
            let bare = text.trim_matches(' ');
            prop_assume!(!bare.is_empty());
            let quoted = format!("\"{}\"", bare.replace('\\', "\\\\").replace('"', "\\\""));
            prop_assert_eq!(key(&quoted), Ok(Some(bare.to_owned())));
            prop_assert_eq!(key(bare), Ok(Some(bare.to_owned())));
        }

        #[test]
        fn any_bytes_are_a_key_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_ne!(parse_key([bytes.as_slice()]), Ok(None));
        }

        #[test]
        fn different_parts_never_give_the_same_fingerprint(
            one in ("[a/]{0,4}", "[a/]{0,4}", proptest::option::of("[a/]{0,3}"), "[a/]{0,4}",
                proptest::collection::vec(("ce-[a-b]{1,2}", "[a/]{0,3}"), 0..3)),
            other in ("[a/]{0,4}", "[a/]{0,4}", proptest::option::of("[a/]{0,3}"), "[a/]{0,4}",
                proptest::collection::vec(("ce-[a-b]{1,2}", "[a/]{0,3}"), 0..3)),
        ) {
            let normal = |mut parts: Parts| {
                parts.4.sort_by(|a, b| a.0.cmp(&b.0));
                parts
            };
            let hash = |parts: &Parts| {
                let input = Input { method: &parts.0, path: &parts.1, query: parts.2.as_deref(), body: parts.3.as_bytes() };
                fingerprint(input, parts.4.iter().map(|(name, value)| (name.as_str(), value.as_bytes())))
            };
            let same = hash(&one) == hash(&other);
            prop_assert_eq!(same, normal(one) == normal(other));
        }
    }
}
