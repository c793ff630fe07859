//! Media types (RFC 9110, 8.3.1): as much of them as decides how a body is read.

/// The type and subtype without parameters, as they stand: `text/plain; charset=utf-8` gives `text/plain`.
/// Compare it without regard to case.
pub fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// Whether the body is JSON: `application/json`, or any subtype that ends in `+json`.
pub fn is_json(content_type: &str) -> bool {
    let Some((kind, subtype)) = essence(content_type).split_once('/') else { return false };
    (kind.eq_ignore_ascii_case("application") && subtype.eq_ignore_ascii_case("json"))
        || subtype.rsplit_once('+').is_some_and(|(_, suffix)| suffix.eq_ignore_ascii_case("json"))
}

/// Whether `content_type` is `expected` (lower case, without parameters).
pub fn is(content_type: &str, expected: &str) -> bool {
    essence(content_type).eq_ignore_ascii_case(expected)
}

/// Whether `content_type` has the form `type/subtype` of two tokens.
pub fn is_valid(content_type: &str) -> bool {
    essence(content_type)
        .split_once('/')
        .is_some_and(|(kind, subtype)| super::wire::is_token(kind) && super::wire::is_token(subtype))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_recognised_whatever_its_case_and_parameters() {
        for text in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/vnd.a+json",
            "image/x+JSON ;a=b",
        ] {
            assert!(is_json(text), "{text}");
        }
        for text in
            ["", "json", "text/json", "application/jsonp", "application/json-seq", "application/x-ndjson"]
        {
            assert!(!is_json(text), "{text}");
        }
    }

    #[test]
    fn parameters_do_not_change_the_type() {
        assert!(is("Text/Plain;charset=\"utf-8\"", "text/plain"));
        assert!(!is("text/plainer", "text/plain"));
        assert!(is_valid("text/plain; charset=utf-8"));
        for text in ["", "text", "text/", "/plain", "te xt/plain", "text/pl@in"] {
            assert!(!is_valid(text), "{text}");
        }
    }
}
