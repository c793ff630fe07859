//! Reading a request's body: with a limit, in a bounded time, and not compressed.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, header};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::problem::{Problem, kinds};

/// Reads the whole body.
///
/// 415 for a `Content-Encoding`; 413 by `Content-Length`, or as soon as more than `limit` bytes came; 408
/// when it is not whole within `timeout`; 400 when the client breaks it off.
pub async fn read(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    timeout: Duration,
) -> Result<Bytes, Problem> {
    let whole = read_limited(headers, body, limit, timeout).await;
    whole.map_err(|problem| {
        if problem.kind() == kinds::TOO_LARGE { too_large(limit, "server.limits.body") } else { problem }
    })
}

/// As [`read`], for a limit that is not the server's own.
pub async fn read_limited(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    timeout: Duration,
) -> Result<Bytes, Problem> {
    let too_large = |limit| too_large(limit, "the receiver's `body`");
    not_encoded(headers)?;
    let hint = body.size_hint();
    if hint.lower() > limit as u64 {
        return Err(too_large(limit));
    }
    if hint.exact() == Some(0) {
        return Ok(Bytes::new());
    }
    match tokio::time::timeout(timeout, Limited::new(body, limit).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.downcast_ref::<LengthLimitError>().is_some() => Err(too_large(limit)),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a request's body ended early");
            Err(Problem::malformed(
                "The body ended before it was whole; nothing was stored. Repeat the request.",
            ))
        }
        Err(_) => Err(Problem::new(
            kinds::REQUEST_TIMEOUT,
            format!(
                "The body did not arrive within {} s; nothing was stored. Repeat the request.",
                timeout.as_secs_f32()
            ),
        )
        .header(header::CONNECTION, HeaderValue::from_static("close"))),
    }
}

fn not_encoded(headers: &HeaderMap) -> Result<(), Problem> {
    for value in headers.get_all(header::CONTENT_ENCODING) {
        if !value.as_bytes().eq_ignore_ascii_case(b"identity") {
            return Err(Problem::new(
                kinds::UNSUPPORTED_MEDIA_TYPE,
                "The body has a `Content-Encoding`, which the gateway does not undo. Send it as it is, without that header.",
            )
            .header(header::ACCEPT_ENCODING, HeaderValue::from_static("identity")));
        }
    }
    Ok(())
}

fn too_large(limit: usize, setting: &str) -> Problem {
    Problem::new(
        kinds::TOO_LARGE,
        format!("The body is larger than {limit} bytes ({setting}). Send less at a time."),
    )
    .header(header::CONNECTION, HeaderValue::from_static("close"))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_of(headers: &[(&'static str, &'static str)], body: Body) -> Result<Bytes, Problem> {
        let headers =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
        read(&headers.collect(), body, 4, Duration::from_millis(50)).await
    }

    fn chunks(parts: &[&'static str]) -> Body {
        let parts: Vec<_> = parts.iter().map(|part| Ok::<_, std::io::Error>(Bytes::from(*part))).collect();
        Body::from_stream(futures::stream::iter(parts))
    }

    #[tokio::test]
    async fn a_body_is_limited_with_and_without_a_length() {
        assert_eq!(read_of(&[], Body::from("1234")).await.unwrap(), "1234");
        assert_eq!(read_of(&[], chunks(&["12", "34"])).await.unwrap(), "1234");
        assert_eq!(read_of(&[], Body::empty()).await.unwrap(), "");
        assert_eq!(read_of(&[], Body::from("12345")).await.unwrap_err().kind(), kinds::TOO_LARGE);
        assert_eq!(read_of(&[], chunks(&["123", "45"])).await.unwrap_err().kind(), kinds::TOO_LARGE);
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_waited_for_only_so_long() {
        let never = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(read_of(&[], never).await.unwrap_err().kind(), kinds::REQUEST_TIMEOUT);
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_malformed() {
        let broken = vec![Ok(Bytes::from("1")), Err(std::io::Error::other("reset"))];
        let broken = Body::from_stream(futures::stream::iter(broken));
        assert_eq!(read_of(&[], broken).await.unwrap_err().kind(), kinds::MALFORMED_REQUEST);
    }

    #[tokio::test]
    async fn compressed_bodies_are_refused() {
        let gzip = read_of(&[("content-encoding", "gzip")], Body::from("1")).await.unwrap_err();
        assert_eq!(gzip.kind(), kinds::UNSUPPORTED_MEDIA_TYPE);
        assert_eq!(read_of(&[("content-encoding", "Identity")], Body::from("1")).await.unwrap(), "1");
    }
}
