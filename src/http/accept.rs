//! Whether a request accepts JSON (RFC 9110, 12.5.1).

use axum::http::{HeaderMap, header};

use super::problem::{Problem, kinds};

/// 406 where `Accept` excludes both JSON and problem documents, the only forms of an answer. Ranges that
/// cannot be read are passed over; a header in which none can be read asks for nothing.
pub fn json(headers: &HeaderMap) -> Result<(), Problem> {
    let mut values = headers.get_all(header::ACCEPT).iter().peekable();
    if values.peek().is_none() {
        return Ok(());
    }
    let mut ranges = Vec::new();
    for value in values {
        ranges.extend(value.to_str().unwrap_or_default().split(',').filter_map(Range::parse));
    }
    let acceptable = ranges.is_empty()
        || takes(&ranges, "application", "json")
        || takes(&ranges, "application", "problem+json");
    if acceptable {
        return Ok(());
    }
    Err(Problem::new(
        kinds::NOT_ACCEPTABLE,
        "The `Accept` header excludes JSON, in which this operation answers. Accept `application/json`, or leave it out.",
    ))
}

struct Range {
    kind: String,
    subtype: String,
    wanted: bool,
}

impl Range {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let (kind, subtype) = parts.next()?.split_once('/')?;
        if kind.is_empty() || subtype.is_empty() {
            return None;
        }
        let weight = parts.find_map(|part| {
            let (name, value) = part.split_once('=')?;
            name.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse::<f32>().unwrap_or(1.0))
        });
        Some(Self {
            kind: kind.to_ascii_lowercase(),
            subtype: subtype.to_ascii_lowercase(),
            wanted: weight.is_none_or(|weight| weight > 0.0),
        })
    }

    /// How exactly this range names a media type; `None`: it does not.
    fn matches(&self, kind: &str, subtype: &str) -> Option<u8> {
        match (self.kind.as_str(), self.subtype.as_str()) {
            ("*", "*") => Some(0),
            (this, "*") if this == kind => Some(1),
            (this, that) if this == kind && that == subtype => Some(2),
            _ => None,
        }
    }
}

/// The most exact range that names the type decides.
fn takes(ranges: &[Range], kind: &str, subtype: &str) -> bool {
    ranges
        .iter()
        .filter_map(|range| Some((range.matches(kind, subtype)?, range.wanted)))
        .max()
        .is_some_and(|(_, wanted)| wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(value: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, value.parse().unwrap());
        json(&headers).is_ok()
    }

    #[test]
    fn json_is_accepted_unless_excluded() {
        assert!(json(&HeaderMap::new()).is_ok());
        for value in [
            "*/*",
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/*;q=0.1",
            "text/html, */*;q=0.8",
            "application/problem+json",
            "",
            "nonsense",
        ] {
            assert!(accepts(value), "{value}");
        }
        for value in [
            "text/html",
            "application/xml, text/*",
            "application/json;q=0",
            "*/*, application/json;q=0, application/problem+json; q=0.000",
            "application/cloudevents+json",
        ] {
            assert!(!accepts(value), "{value}");
        }
        assert!(accepts("*/*;q=0, application/json"));
    }
}
