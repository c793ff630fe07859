//! What the receiver writes about a request.

use std::fmt::Write;

use axum::body::Bytes;
use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::domain::Timestamp;

/// What was found of a request's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Valid,
    Invalid(String),
    /// It is signed, and no secret was given to verify it with.
    NotChecked,
    Unsigned,
}

impl Verdict {
    fn text(&self) -> String {
        match self {
            Self::Valid => "valid".to_owned(),
            Self::Invalid(why) => format!("invalid: {why}"),
            Self::NotChecked => "not checked: give --secret to verify it".to_owned(),
            Self::Unsigned => "none".to_owned(),
        }
    }
}

/// One request and its answer.
#[derive(Clone, Debug)]
pub struct Received {
    /// From 1.
    pub number: u64,
    pub at: Timestamp,
    pub method: String,
    /// With the query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub verdict: Verdict,
    pub status: u16,
}

/// Headers that every request has and that say nothing of the message.
const NOISE: [&str; 7] =
    ["host", "accept", "accept-encoding", "content-length", "user-agent", "connection", "transfer-encoding"];

impl Received {
    /// Several lines for people, with an empty one at the end.
    pub fn readable(&self) -> String {
        let mut text = String::new();
        let mut line = |line: std::fmt::Arguments<'_>| {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{line}");
        };
        line(format_args!(
            "#{} {} {} at {} -> {}",
            self.number,
            self.method,
            visible(&self.path),
            self.at.format("%H:%M:%S%.3f"),
            self.status
        ));
        for (name, value) in &self.headers {
            if !NOISE.contains(&name.as_str()) {
                line(format_args!("{name}: {}", visible(&String::from_utf8_lossy(value.as_bytes()))));
            }
        }
        line(format_args!("signature: {}", self.verdict.text()));
        match std::str::from_utf8(&self.body) {
            Ok("") => line(format_args!("(no body)")),
            Ok(body) => line(format_args!("{}", visible(body))),
            Err(_) => line(format_args!("({} bytes) {}", self.body.len(), STANDARD.encode(&self.body))),
        }
        text.push('\n');
        text
    }

    /// One JSON object and a newline.
    pub fn json_line(&self) -> String {
        let mut headers = serde_json::Map::new();
        for name in self.headers.keys() {
            let values: Vec<_> = self
                .headers
                .get_all(name)
                .iter()
                .map(|value| String::from_utf8_lossy(value.as_bytes()))
                .collect();
            headers.insert(name.to_string(), values.join(", ").into());
        }
        let mut object = json!({
            "number": self.number,
            "at": self.at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true),
            "method": self.method,
            "path": self.path,
            "headers": headers,
            "signature": self.verdict.text(),
            "status": self.status,
        });
        match std::str::from_utf8(&self.body) {
            Ok(body) => object["body"] = body.into(),
            Err(_) => object["bodyBase64"] = STANDARD.encode(&self.body).into(),
        }
        format!("{object}\n")
    }
}

/// `text` with its control characters written out, so that what a stranger sends does not steer the terminal.
fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && !matches!(c, '\n' | '\t') {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(body: &'static [u8]) -> Received {
        let mut headers = HeaderMap::new();
        headers.insert("host", "localhost".parse().unwrap());
        headers.insert("message-type", "order.created".parse().unwrap());
        Received {
            number: 1,
            at: chrono::DateTime::from_timestamp(1_700_000_000, 0).unwrap(),
            method: "POST".to_owned(),
            path: "/hook".to_owned(),
            headers,
            body: Bytes::from_static(body),
            verdict: Verdict::Valid,
            status: 200,
        }
    }

    #[test]
    fn people_see_the_message_and_no_noise() {
        let text = received(b"{\"sku\":\"A\"}").readable();
        assert_eq!(
            text,
            "#1 POST /hook at 22:13:20.000 -> 200\nmessage-type: order.created\nsignature: valid\n{\"sku\":\"A\"}\n\n"
        );
    }

    #[test]
    fn a_terminal_is_not_steered() {
        assert!(received(b"a\x1b[2Jb").readable().contains("a\\u{1b}[2Jb"));
    }

    #[test]
    fn programs_get_every_header_and_the_bytes() {
        let line = received(b"\xff\x00").json_line();
        let object: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(object["headers"]["host"], "localhost");
        assert_eq!(object["bodyBase64"], "/wA=");
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&received(b"x").json_line()).unwrap()["body"],
            "x"
        );
    }
}
