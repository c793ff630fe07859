//! Upstash QStash ("Verify signatures").
//!
//! `Upstash-Signature` is a token (JWT, HS256) over the body's digest; QStash signs with the current key, and the
//! receiver knows the next one, too. The token's `sub` is the URL that QStash was told to send to: `sources` lists
//! those that the receiver takes. The body goes on as it was sent, `Upstash-Message-Id` is the message's id,
//! `Upstash-Retried` counts the attempts before this one.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{
    Defaults, Format, Identity, Kind, Made, Message, Push, Refusal, Request, What, headers, signature,
};
use crate::config::{Receiver, Secret};
use crate::domain::Timestamp;
use crate::domain::message::Draft;

pub const KIND: Kind = Kind {
    name: "qstash",
    keys: &["secrets", "sources"],
    needs: &["type"],
    // Some plans allow for more, and for longer.
    defaults: Defaults { body_bytes: 10 << 20, deadline: Duration::from_secs(28) },
    acknowledges: |_| true,
    // 489 with `Upstash-NonRetryable-Error` is not sent again.
    retries: |status| status != 489,
    make,
};

const SIGNATURE: &str = "upstash-signature";
/// By how much QStash's clock and this one may differ.
const LEEWAY_S: i64 = 30;

fn make(receiver: &Receiver) -> Made {
    match super::lacks_type(receiver) {
        Some(problem) => Err(vec![problem]),
        None => Ok(Box::new(QStash { secrets: super::secrets(receiver) })),
    }
}

struct QStash {
    /// None: the sender proves itself otherwise.
    secrets: Vec<Secret>,
}

impl Format for QStash {
    fn verifies(&self) -> bool {
        !self.secrets.is_empty()
    }

    fn read(&self, request: &Request<'_>, _: Option<&[u8]>) -> Result<Push, Refusal> {
        let source = match self.verifies() {
            true => Some(
                verify(&self.secrets, request.headers, request.body, request.now)
                    .map_err(Refusal::Unproven)?,
            ),
            false => None,
        };
        let id = headers::needed(request.headers, "upstash-message-id").map_err(Refusal::malformed)?;
        let content_type = headers::text(request.headers, "content-type").map_err(Refusal::malformed)?;
        let mut draft = Draft { id: Some(id.to_owned()), body: request.body.clone(), ..Draft::default() };
        draft.envelope.content_type = content_type.map(str::to_owned);
        headers::trace(&mut draft, request.headers);
        let attempts = headers::attempts_after(request.headers, "upstash-retried");
        let messages = vec![Message { draft, identity: Identity::Sender }];
        Ok(Push { source, what: What::Messages { messages, attempts } })
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    exp: i64,
    nbf: i64,
    body: String,
}

/// The URL that the request was signed for.
///
/// # Errors
/// Why it is not QStash's.
fn verify(secrets: &[Secret], headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<String, String> {
    let token = headers::needed(headers, SIGNATURE)?;
    let malformed = || format!("The header `{SIGNATURE}` is no token of QStash's.");
    let (signed, code) = token.rsplit_once('.').ok_or_else(malformed)?;
    let (header, claims) = signed.split_once('.').ok_or_else(malformed)?;
    let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| malformed());
    let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| malformed())?;
    if header.alg != "HS256" || !signature::matches(secrets, &[signed.as_bytes()], &[decode(code)?]) {
        return Err(signature::NO_MATCH.to_owned());
    }
    let claims: Claims = serde_json::from_slice(&decode(claims)?).map_err(|_| malformed())?;
    let now_s = now.timestamp();
    if claims.iss != "Upstash" {
        return Err("Its token is from another issuer.".to_owned());
    }
    if now_s >= claims.exp.saturating_add(LEEWAY_S) || now_s < claims.nbf.saturating_sub(LEEWAY_S) {
        return Err("Its token has expired, or is not valid yet.".to_owned());
    }
    let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(body));
    if claims.body.trim_end_matches('=') != digest {
        return Err("The body was changed on its way.".to_owned());
    }
    Ok(claims.sub)
}
