//! `/v1/push/{receiver}`: brokers and webhook senders push here. Who they are is the receiver's to say, not the API
//! keys'.

use std::io::Read as _;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::app::App;
use super::body;
use super::openapi::problems;
use super::path::Path;
use super::problem::{Problem, kinds};
use crate::gateway::receive::{Answer, Call, Receiver};

problems!(PushProblems:
    MALFORMED_REQUEST, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, REQUEST_TIMEOUT, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE,
    SCHEMA_VIOLATION, UNROUTABLE, DEDUPLICATION_ID_MISSING, PUSH_AGAIN, INTERNAL, STORE_UNAVAILABLE, OVERLOADED,
    OUTCOME_UNKNOWN,
);

problems!(HandshakeProblems: MALFORMED_REQUEST, NOT_FOUND, METHOD_NOT_ALLOWED, INTERNAL);

/// Push to a receiver
///
/// What a broker or a webhook sender sends, in the receiver's format. The sender proves itself as the receiver asks:
/// by a token, a signature or a shared secret. 200 means that what was pushed is handled, published, or given up on
/// for good; 500 that it is to be pushed again.
#[utoipa::path(
    post,
    path = "/v1/push/{receiver}",
    operation_id = "push",
    tag = "push",
    params(("receiver" = String, Path, description = "The receiver's name.", min_length = 1, max_length = 64,
        example = "incoming")),
    request_body(description = "What the sender sends.", content(
        (Object = "application/json"),
        (Object = "application/cloudevents+json"),
        (Vec<Object> = "application/cloudevents-batch+json"),
        (String = "text/plain"),
        (Vec<u8> = "*/*"),
    )),
    responses(
        (status = "2XX", description = "Taken. The body is empty, but for the answer to a handshake."),
        PushProblems,
    ),
)]
pub async fn push(State(app): State<App>, path: Path<String>, request: Request) -> Result<Response, Problem> {
    let call = read(&app, &path.0, request).await?;
    let gateway = Arc::clone(&app.gateway);
    match app.run(async move { gateway.receive(call).await }).await? {
        Answer::Done(status) => Ok(StatusCode::from_u16(status).unwrap_or(StatusCode::OK).into_response()),
        Answer::Handshake(handshake) => {
            let mut response = Response::new(Body::from(handshake.body));
            response.headers_mut().extend(handshake.headers);
            Ok(response)
        }
    }
}

/// Ask whether a receiver may be pushed to
///
/// The handshake of CloudEvents' webhooks: `WebHook-Request-Origin` is answered with `WebHook-Allowed-Origin`.
#[utoipa::path(
    options,
    path = "/v1/push/{receiver}",
    operation_id = "mayPush",
    tag = "push",
    params(
        ("receiver" = String, Path, description = "The receiver's name.", min_length = 1, max_length = 64,
            example = "incoming"),
        ("WebHook-Request-Origin" = Option<String>, Header, description = "Who asks.", nullable = false,
            example = "eventgrid.azure.net"),
    ),
    responses(
        (status = 200, description = "It may.", headers(
            ("WebHook-Allowed-Origin" = String, description = "Who may."),
            ("WebHook-Allowed-Rate" = String, description = "How often in a minute, or `*`."),
        )),
        HandshakeProblems,
    ),
)]
pub async fn may_push(
    State(app): State<App>,
    path: Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    let call = Call {
        receiver: app.gateway.receiver(&path.0)?,
        method: Method::OPTIONS,
        headers: parts.headers,
        query: parts.uri.query().map(str::to_owned),
        body: Bytes::new(),
    };
    let handshake = app.gateway.receive_options(&call)?;
    let mut response = Response::new(Body::from(handshake.body));
    response.headers_mut().extend(handshake.headers);
    Ok(response)
}

/// Who pushes is decided before the body is read.
async fn read(app: &App, name: &str, request: Request) -> Result<Call, Problem> {
    let receiver = app.gateway.receiver(name)?;
    let (parts, body) = request.into_parts();
    app.gateway.prove(&receiver, &parts.headers, parts.uri.query()).await?;
    let body = whole(app, &receiver, &parts.headers, body).await?;
    Ok(Call {
        receiver,
        method: parts.method,
        headers: parts.headers,
        query: parts.uri.query().map(str::to_owned),
        body,
    })
}

/// The body as it was signed: gzip is undone, within the receiver's limit.
async fn whole(app: &App, receiver: &Receiver, headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    let (limit, timeout) = (receiver.body_bytes, app.limits.body_timeout);
    let gzip = |value: &axum::http::HeaderValue| {
        matches!(value.to_str().map(str::to_ascii_lowercase).as_deref(), Ok("gzip" | "x-gzip"))
    };
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    let is_gzip = encodings.next().is_some_and(gzip) && encodings.next().is_none();
    if !is_gzip {
        return body::read_limited(headers, body, limit, timeout).await;
    }
    let packed = body::read_limited(&HeaderMap::new(), body, limit, timeout).await?;
    let mut unpacked = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    flate2::read::MultiGzDecoder::new(&packed[..])
        .take(most)
        .read_to_end(&mut unpacked)
        .map_err(|_| Problem::malformed("The body is not gzip, as its `Content-Encoding` says."))?;
    if unpacked.len() > limit {
        return Err(Problem::new(
            kinds::TOO_LARGE,
            format!("The body is larger than {limit} bytes once it is decompressed (the receiver's `body`)."),
        ));
    }
    Ok(Bytes::from(unpacked))
}
