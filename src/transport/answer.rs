//! What the target answered.

use std::time::Duration;

use reqwest::Response;

use crate::domain::Clock;
use crate::domain::delivery::{Failure, Fault};
use crate::domain::policy::Cause;
use crate::domain::retry::{classify_status, parse_retry_after};
use crate::transport::Ack;

/// How much of an answer's body is read: what is longer costs the connection.
const READ_BYTES: usize = 16 * 1024;
/// How much of it an operator is shown.
const SHOWN_CHARS: usize = 300;
/// How long the rest of an answer may take once its head is there.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// An acknowledgement for a 2xx, else the failure that the status means.
pub(super) async fn read(response: Response, clock: &Clock) -> Result<Ack, Failure> {
    let status = response.status();
    if status.is_success() {
        // The body is read so that the connection can be used again.
        let _ = tokio::time::timeout(BODY_TIMEOUT, read_some(response)).await;
        return Ok(Ack::default());
    }
    Err(failure(response, clock).await)
}

/// The failure that the status of an answer other than 2xx means.
pub(super) async fn failure(response: Response, clock: &Clock) -> Failure {
    let status = response.status();
    let retry_after = response
        .headers()
        .get(http::header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| parse_retry_after(value, clock.now()));
    // The status says it all; the body is read so that the connection can be used again, and to be shown.
    let body = tokio::time::timeout(BODY_TIMEOUT, read_some(response)).await.unwrap_or_default();
    let fault: Fault = classify_status(status.as_u16());
    let shown = shorten(&body);
    let text =
        if shown.is_empty() { format!("answered {status}") } else { format!("answered {status}: {shown}") };
    Failure::new(fault, text).retry_after(retry_after).cause(Cause::Status(status.as_u16()))
}

/// The beginning of the body, as far as it comes.
async fn read_some(mut response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk[..chunk.len().min(READ_BYTES - body.len())]);
        if body.len() == READ_BYTES {
            break;
        }
    }
    body
}

/// The body's beginning on one line.
fn shorten(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let mut words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let mut shown = String::new();
    while let Some(word) = words.next().filter(|_| shown.len() < 4 * SHOWN_CHARS) {
        if !shown.is_empty() {
            shown.push(' ');
        }
        shown.push_str(word);
    }
    match shown.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_shown_on_one_line_and_in_bounds() {
        assert_eq!(shorten(b"<p>\n  no\x1b[2J \t way</p>"), "<p> no [2J way</p>");
        assert_eq!(shorten("\u{e9}".repeat(5000).as_bytes()).chars().count(), SHOWN_CHARS + 1);
        assert_eq!(shorten(b"a ".repeat(5000).as_slice()).chars().count(), SHOWN_CHARS + 1);
        assert_eq!(shorten(b""), "");
    }
}
