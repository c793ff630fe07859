//! HTTP by hand: for requests that no client library would send.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An answer, taken apart.
#[derive(Clone, Debug)]
pub struct RawAnswer {
    pub status: u16,
    /// Names in lower case, in the order they came.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl RawAnswer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }
}

/// Sends these bytes to `127.0.0.1:port` on a connection of its own and reads one answer.
pub async fn send(port: u16, request: &[u8]) -> RawAnswer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connect");
    stream.write_all(request).await.expect("send");
    tokio::time::timeout(Duration::from_secs(30), read(&mut stream)).await.expect("an answer within 30 s")
}

/// Reads one answer: by its `Content-Length`, by chunks, or to the end of the connection.
pub async fn read(stream: &mut TcpStream) -> RawAnswer {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = find(&bytes, b"\r\n\r\n") {
            break end;
        }
        assert!(
            more(stream, &mut bytes).await,
            "the connection ended before the answer's head did: {bytes:?}"
        );
    };
    let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
    let mut lines = text.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .expect("a status line");
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut answer = RawAnswer { status, headers, body: bytes.split_off(head + 4) };
    if let Some(length) = answer.header("content-length") {
        let length: usize = length.parse().expect("a Content-Length");
        while answer.body.len() < length {
            assert!(more(stream, &mut answer.body).await, "the answer's body is cut off");
        }
    } else if answer.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        while find(&answer.body, b"0\r\n\r\n").is_none() {
            assert!(more(stream, &mut answer.body).await, "the answer's last chunk is missing");
        }
        answer.body = unchunk(&answer.body);
    } else {
        while more(stream, &mut answer.body).await {}
    }
    answer
}

async fn more(stream: &mut TcpStream, into: &mut Vec<u8>) -> bool {
    let mut buffer = [0_u8; 16 * 1024];
    let count = stream.read(&mut buffer).await.unwrap_or(0);
    into.extend_from_slice(&buffer[..count]);
    count > 0
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = find(bytes, b"\r\n") {
        let size =
            std::str::from_utf8(&bytes[..end]).ok().and_then(|hex| usize::from_str_radix(hex, 16).ok());
        let Some(size) = size.filter(|size| *size > 0) else { break };
        body.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[end + 2 + size + 2..];
    }
    body
}
