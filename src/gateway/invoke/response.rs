//! What an invoke is answered with; also what is kept of it for replay.

use std::fmt;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use http::{HeaderMap, HeaderName, header};
use serde::{Deserialize, Serialize};

use crate::gateway::publish::Replayed;

/// The headers of a handler's response that pass through and are replayed. No others: a `Set-Cookie` would be
/// replayed to somebody else.
const PASSED: [HeaderName; 7] = [
    header::CONTENT_TYPE,
    header::CONTENT_LANGUAGE,
    header::LOCATION,
    header::ETAG,
    header::LAST_MODIFIED,
    header::CACHE_CONTROL,
    header::RETRY_AFTER,
];

/// An answer.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Body,
    pub replayed: Replayed,
}

/// Its body.
pub enum Body {
    Whole(Bytes),
    /// Too large to be kept: it goes on as it comes.
    Streamed(BoxStream<'static, Result<Bytes, String>>),
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(body) => write!(f, "Whole({} bytes)", body.len()),
            Self::Streamed(_) => f.write_str("Streamed"),
        }
    }
}

/// Before the body in what is kept.
#[derive(Serialize, Deserialize)]
struct Head {
    status: u16,
    /// The body was too large, or there was none to be had: nothing follows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    tombstone: bool,
    headers: Vec<(String, String)>,
}

/// What was kept.
#[derive(Debug)]
pub(super) enum Kept {
    Response(Response),
    /// Of a response with this status.
    Tombstone(u16),
}

impl Response {
    pub(super) fn whole(status: u16, headers: Vec<(String, String)>, body: Bytes) -> Self {
        Self { status, headers, body: Body::Whole(body), replayed: Replayed::No }
    }

    /// What is kept of it, if its body is not over `max_bytes`; else its tombstone.
    pub(super) fn keep(&self, max_bytes: usize) -> Bytes {
        match &self.body {
            Body::Whole(body) if body.len() <= max_bytes => {
                let head = Head { status: self.status, tombstone: false, headers: self.headers.clone() };
                let mut bytes = to_line(&head);
                bytes.extend_from_slice(body);
                bytes.into()
            }
            _ => tombstone(self.status),
        }
    }
}

/// What is kept of work whose response is not.
pub(super) fn tombstone(status: u16) -> Bytes {
    to_line(&Head { status, tombstone: true, headers: Vec::new() }).into()
}

fn to_line(head: &Head) -> Vec<u8> {
    // A plain struct of numbers and strings always serialises.
    let mut bytes = serde_json::to_vec(head).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// What [`Response::keep`] kept; `None` if it cannot be read.
pub(super) fn kept(bytes: &Bytes) -> Option<Kept> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let head: Head = serde_json::from_slice(&bytes[..end]).ok()?;
    if head.tombstone {
        return Some(Kept::Tombstone(head.status));
    }
    let body = Body::Whole(bytes.slice(end + 1..));
    let Head { status, headers, .. } = head;
    Some(Kept::Response(Response { status, headers, body, replayed: Replayed::Yes }))
}

/// Of a handler's headers, those that pass.
pub(super) fn passed(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |name: &HeaderName| headers.get(name)?.to_str().ok().map(str::to_owned);
    PASSED.iter().filter_map(|name| Some((name.as_str().to_owned(), text(name)?))).collect()
}

/// `begun`, and then what is still to come of `rest`.
pub(super) fn going_on(begun: Bytes, rest: reqwest::Response) -> Body {
    let rest = rest.bytes_stream().map(|chunk| chunk.map_err(crate::transport::guard::describe));
    Body::Streamed(stream::once(async { Ok(begun) }).chain(rest).boxed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_was_said() {
        let headers = vec![("location".to_owned(), "/x".to_owned())];
        let said = Response::whole(201, headers.clone(), Bytes::from_static(b"a\nb"));
        let Some(Kept::Response(replayed)) = kept(&said.keep(3)) else { panic!("no response") };
        assert_eq!((replayed.status, replayed.headers, replayed.replayed), (201, headers, Replayed::Yes));
        assert!(matches!(replayed.body, Body::Whole(body) if body == "a\nb"));
        assert!(matches!(kept(&said.keep(2)), Some(Kept::Tombstone(201))));
    }

    #[test]
    fn only_listed_headers_pass() {
        let mut headers = HeaderMap::new();
        for name in ["set-cookie", "etag", "connection", "x-own", "content-type"] {
            headers.insert(HeaderName::from_static(name), http::HeaderValue::from_static("v"));
        }
        let names: Vec<_> = passed(&headers).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["content-type", "etag"]);
    }
}
