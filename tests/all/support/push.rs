//! What senders push: the samples, messages signed as SNS signs them, and a proxy that records where the gateway
//! goes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};

pub const TOPIC: &str = "arn:aws:sns:us-east-1:111122223333:orders";
pub const CERTIFICATE_URL: &str =
    "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem";

/// A file below `tests/push/`.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/push")).join(name)
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A request as it was recorded.
#[derive(Clone, Debug)]
pub struct Sample {
    pub method: Method,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Sample {
    /// Reads `tests/push/samples/NAME.http`.
    pub fn read(name: &str) -> Self {
        let bytes = read(&format!("samples/{name}.http"));
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
        let head = std::str::from_utf8(&bytes[..end]).expect("a head in UTF-8");
        let mut lines = head.split("\r\n");
        let method = lines.next().and_then(|line| line.split(' ').next()).expect("a request line");
        let mut headers = HeaderMap::new();
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let name: HeaderName = name.to_ascii_lowercase().parse().expect("a header's name");
            headers.append(name, HeaderValue::from_bytes(value.trim().as_bytes()).expect("a header's value"));
        }
        let method = method.parse().expect("a method");
        Self { method, headers, body: Bytes::copy_from_slice(&bytes[end + 4..]) }
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.insert(name, value.parse().expect("a header's value"));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.headers.remove(name);
        self
    }

    /// The same with another body.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self.headers.remove("content-length");
        self
    }
}

/// A notification of [`TOPIC`], not signed.
pub fn notification(id: &str, message: &str) -> Value {
    json!({
        "Type": "Notification", "MessageId": id, "TopicArn": TOPIC, "Message": message,
        "Timestamp": "2026-01-01T00:00:00.000Z", "SignatureVersion": "2", "SigningCertURL": CERTIFICATE_URL,
        "UnsubscribeURL": "https://sns.us-east-1.amazonaws.com/?Action=Unsubscribe",
    })
}

/// The confirmation of a subscription of [`TOPIC`], not signed.
pub fn confirmation(kind: &str, token: &str, subscribe_url: &str) -> Value {
    let mut value = notification("c-1", "You have chosen to subscribe.");
    value["Type"] = json!(kind);
    value["Token"] = json!(token);
    value["SubscribeURL"] = json!(subscribe_url);
    value
}

/// The URL that confirms a subscription of [`TOPIC`].
pub fn subscribe_url(token: &str) -> String {
    format!("https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn={TOPIC}&Token={token}")
}

/// Signs an envelope with the key of `keys/sns-signing-cert.pem`, version 2.
pub fn signed(mut envelope: Value) -> Value {
    let key = PrivatePkcs8KeyDer::from_pem_slice(&read("keys/sns-signing-key.pem")).expect("a key");
    let key = RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).expect("an RSA key");
    let mut text = String::new();
    for name in ["Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    {
        if let Some(value) = envelope[name].as_str() {
            text.push_str(&format!("{name}\n{value}\n"));
        }
    }
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature).expect("sign");
    envelope["Signature"] = json!(STANDARD.encode(signature));
    envelope
}

/// A proxy for `HTTPS_PROXY`. It records every request that is made of it, plays the host
/// `sns.us-east-1.amazonaws.com` itself, with a certificate of its own authority, and lets nothing through.
pub struct RecordingProxy {
    port: u16,
    seen: Arc<Mutex<Vec<String>>>,
    played: Arc<Mutex<Played>>,
}

/// How SNS is played.
#[derive(Clone, Copy)]
struct Played {
    status: u16,
    /// A server (of plain HTTP, on loopback) that has the certificates; `None`: it is `keys/sns-signing-cert.pem`.
    certificates: Option<u16>,
}

impl RecordingProxy {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind the proxy");
        let port = listener.local_addr().expect("the proxy's address").port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let played = Arc::new(Mutex::new(Played { status: 200, certificates: None }));
        let tls = Arc::new(server_tls());
        let (shared, answered) = (Arc::clone(&seen), Arc::clone(&played));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, played, tls) = (Arc::clone(&shared), Arc::clone(&answered), Arc::clone(&tls));
                std::thread::spawn(move || serve(stream, &seen, &played, tls));
            }
        });
        Self { port, seen, played }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What requests of SNS are answered with.
    pub fn answer(&self, status: u16) {
        self.played.lock().expect("the play").status = status;
    }

    /// Certificates come from the server on this port.
    pub fn certificates_from(&self, port: u16) {
        self.played.lock().expect("the play").certificates = Some(port);
    }

    /// Every request so far: `CONNECT host:port`, and what came through it.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("the record").clone()
    }

    /// The environment of a gateway that goes through this proxy and trusts its authority.
    pub fn environment(&self) -> [(&'static str, String); 3] {
        let authority = path("keys/tls-authority-cert.pem").display().to_string();
        [("HTTPS_PROXY", self.url()), ("HTTP_PROXY", self.url()), ("SSL_CERT_FILE", authority)]
    }
}

fn server_tls() -> rustls::ServerConfig {
    let certificates = vec![CertificateDer::from_pem_slice(&read("keys/tls-sns-cert.pem")).expect("PEM")];
    let key = PrivateKeyDer::from_pem_slice(&read("keys/tls-sns-key.pem")).expect("PEM");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("TLS versions")
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .expect("a certificate");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<String>>,
    played: &Mutex<Played>,
    tls: Arc<rustls::ServerConfig>,
) {
    let record = |line: &str| seen.lock().expect("the record").push(line.trim_end().to_owned());
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let Some(line) = head(&mut stream) else { return };
    record(line.trim_end_matches("HTTP/1.1"));
    if !line.starts_with("CONNECT sns.us-east-1.amazonaws.com:443 ") {
        let _ =
            stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
    }
    let _ = stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n");
    let connection = rustls::ServerConnection::new(tls).expect("a TLS connection");
    let mut inside = rustls::StreamOwned::new(connection, stream);
    while let Some(line) = head(&mut inside) {
        record(line.trim_end_matches("HTTP/1.1"));
        let Played { status, certificates } = *played.lock().expect("the play");
        let body = match (line.split(' ').nth(1), certificates) {
            (Some(path), Some(port)) if path.ends_with(".pem") => asked_of(port, path),
            (Some(path), None) if path.ends_with(".pem") => read("keys/sns-signing-cert.pem"),
            _ => b"<ok/>".to_vec(),
        };
        let head = format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\n\r\n", body.len());
        if inside.write_all(head.as_bytes()).and_then(|()| inside.write_all(&body)).is_err() {
            return;
        }
        let _ = inside.flush();
    }
}

/// What the server on this port, which plays all of AWS, says of a path of SNS's. The credential's scope tells it
/// that SNS is meant.
pub fn asked_of(port: u16, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    let scope = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/sns/aws4_request, SignedHeaders=host, Signature=x";
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {scope}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("ask");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let head = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    answer.split_off(head + 4)
}

/// The first line of a request whose head is read whole.
fn head(stream: &mut impl Read) -> Option<String> {
    let mut reader = BufReader::with_capacity(1, stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|count| *count > 0)?;
    let mut line = String::new();
    while reader.read_line(&mut line).ok()? > 2 {
        line.clear();
    }
    Some(first.trim_end().to_owned())
}
