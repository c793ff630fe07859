//! What proves those who push: tokens of Google's and Microsoft's kind, secrets in a header or in the query; and
//! where a push can make the gateway go, which is nowhere but to SNS.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use oncegate::config::proof::{ApiKey, Oidc};
use oncegate::domain::Clock;
use oncegate::gateway::documents::Documents;
use oncegate::gateway::proof::{Denied, Proof};
use oncegate::push::What;
use oncegate::transport::guard::{Client, Proxies, Reach};
use serde_json::{Value, json};

use crate::push::{Asked, SIGNED_S, receiver};
use crate::support::push::{
    RecordingProxy, Sample, TOPIC, confirmation, notification, path, signed, subscribe_url,
};
use crate::support::receiver::{Answer, Receiver};

fn at(seconds: i64) -> Clock {
    let clock = Clock::system();
    clock.set(chrono::DateTime::from_timestamp(seconds, 0).unwrap());
    clock
}

fn by_token(settings: &str, clock: &Clock) -> Proof {
    let oidc: Oidc = toml::from_str(settings).unwrap();
    Proof::new(Some(oidc), None, clock).unwrap()
}

fn pubsub(clock: &Clock, change: (&str, &str)) -> Proof {
    let jwks = path("keys/pubsub-oidc-jwks.json").display().to_string();
    let settings = format!(
        "issuer = 'https://accounts.google.com'\naudience = 'https://gateway.example.com/push/pubsub'\n\
         email = 'pusher@demo-proj.iam.gserviceaccount.com'\njwks = '{jwks}'"
    );
    by_token(&settings.replace(change.0, change.1), clock)
}

#[tokio::test]
async fn the_token_of_pubsub_is_for_us_from_its_service_account_and_not_over() {
    let sample = Sample::read("pubsub-10-oidc-bearer");
    let check = async |proof: Proof| proof.check(&sample.headers, None).await;
    assert_eq!(check(pubsub(&at(SIGNED_S), ("", ""))).await, Ok(()));
    for change in [
        ("/push/pubsub", "/push/other"),
        ("pusher@", "somebody@"),
        ("https://accounts.google.com", "https://accounts.example.com"),
    ] {
        let denied = check(pubsub(&at(SIGNED_S), change)).await;
        assert!(matches!(denied, Err(Denied::Unproven(_))), "{change:?}: {denied:?}");
    }
    for seconds in [SIGNED_S + 1800 + 61, SIGNED_S + 86_400] {
        assert!(matches!(check(pubsub(&at(seconds), ("", ""))).await, Err(Denied::Unproven(_))));
    }
    let none = pubsub(&at(SIGNED_S), ("", "")).check(&HeaderMap::new(), None).await;
    assert!(matches!(none, Err(Denied::Unproven(_))));
}

struct Entra {
    key: EncodingKey,
    server: Receiver,
}

impl Entra {
    async fn start() -> Self {
        let key =
            EncodingKey::from_rsa_pem(&std::fs::read(path("keys/sns-signing-key.pem")).unwrap()).unwrap();
        let mut jwk = serde_json::to_value(Jwk::from_encoding_key(&key, Algorithm::RS256).unwrap()).unwrap();
        jwk["kid"] = json!("entra-1");
        let set = json!({ "keys": [jwk] }).to_string();
        let server = Receiver::scripted(move |_, _| Answer::status(200).body(&set)).await;
        Self { key, server }
    }

    fn token(&self, claims: &Value) -> HeaderMap {
        let header = Header { kid: Some("entra-1".to_owned()), ..Header::new(Algorithm::RS256) };
        let token = jsonwebtoken::encode(&header, claims, &self.key).unwrap();
        let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        [(http::header::AUTHORIZATION, value)].into_iter().collect()
    }
}

#[tokio::test]
async fn the_token_of_event_grid_is_from_entra_and_for_event_grid() {
    let entra = Entra::start().await;
    let clock = at(SIGNED_S);
    let proof = by_token(
        &format!(
            "issuer = 'https://sts.windows.net/tenant/'\naudience = 'app'\njwks = '{}'\n\
             claims = {{ appid = '4962773b-9cdb-44cf-a8bf-237846a00ab7' }}",
            entra.server.url("/keys")
        ),
        &clock,
    );
    let claims = json!({
        "iss": "https://sts.windows.net/tenant/", "aud": "app", "exp": SIGNED_S + 60, "nbf": SIGNED_S - 60,
        "appid": "4962773b-9cdb-44cf-a8bf-237846a00ab7",
    });
    assert_eq!(proof.check(&entra.token(&claims), None).await, Ok(()));
    for (name, value) in [
        ("iss", json!("https://sts.windows.net/other/")),
        ("aud", json!("other")),
        ("appid", json!("other")),
        ("appid", Value::Null),
        ("exp", json!(SIGNED_S - 61)),
        ("nbf", json!(SIGNED_S + 61)),
    ] {
        let mut changed = claims.clone();
        changed[name] = value;
        let denied = proof.check(&entra.token(&changed), None).await;
        assert!(matches!(denied, Err(Denied::Unproven(_))), "{changed}: {denied:?}");
    }
    assert_eq!(entra.server.count(), 1, "the key set is kept");
}

#[tokio::test]
async fn keys_that_cannot_be_had_say_nothing_against_a_token() {
    let entra = Entra::start().await;
    entra.server.script(|_, _| Answer::status(503));
    let settings = format!("issuer = 'i'\naudience = 'a'\njwks = '{}'", entra.server.url("/keys"));
    let proof = by_token(&settings, &at(SIGNED_S));
    let token = entra.token(&json!({ "iss": "i", "aud": "a", "exp": SIGNED_S + 60 }));
    assert_eq!(proof.check(&token, None).await, Err(Denied::NotVerifiable));
}

#[tokio::test]
async fn a_secret_stands_once_in_its_place() {
    let clock = Clock::system();
    let proof = |text: &str| {
        let key: ApiKey = toml::from_str(text).unwrap();
        Proof::new(None, Some(key), &clock).unwrap()
    };
    let header = proof("header = 'X-Api-Key'\nvalue = ['old', 'new']");
    let with = |values: &[&str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("x-api-key", HeaderValue::from_str(value).unwrap());
        }
        headers
    };
    for (values, good) in [
        (&["old"][..], true),
        (&["new"], true),
        (&[], false),
        (&[""], false),
        (&["ol"], false),
        (&["oldx"], false),
        (&["OLD"], false),
        (&["old", "old"], false),
    ] {
        assert_eq!(header.check(&with(values), Some("x-api-key=old")).await.is_ok(), good, "{values:?}");
    }
    let query = proof("query = 'code'\nvalue = 'a+b/c='");
    for (text, good) in [
        (Some("code=a%2Bb%2Fc%3D"), true),
        (Some("x=1&code=a%2Bb/c="), true),
        (Some("code=a+b/c="), false),
        (Some("code="), false),
        (Some("CODE=a%2Bb%2Fc%3D"), false),
        (Some("code=a%2Bb%2Fc%3D&code=a%2Bb%2Fc%3D"), false),
        (Some(""), false),
        (None, false),
    ] {
        assert_eq!(query.check(&HeaderMap::new(), text).await.is_ok(), good, "{text:?}");
    }
    assert!(header.is_asked() && !Proof::new(None, None, &clock).unwrap().is_asked());
}

/// What a gateway does with a push: it asks for what the format needs, and for what it wants confirmed.
async fn push(format: &Asked, documents: &Documents, body: &Value) -> Result<What, String> {
    let sample = Sample::read("sns-02-notification-v1").body(Bytes::from(body.to_string()));
    let mut read = format.read(&sample).map_err(|refusal| refusal.to_string())?;
    if let What::Needs(url) = &read.what {
        let document = documents.get(url).await?;
        read = format.read_with(&sample, Some(&document)).map_err(|refusal| refusal.to_string())?;
    }
    if let What::Confirm(url) = &read.what {
        documents.ask(url).await?;
    }
    Ok(read.what)
}

const PATH: &str = "/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem";

const FORGED: [&str; 23] = [
    "http://sns.us-east-1.amazonaws.com",
    "https://s3.amazonaws.com/attacker-bucket",
    "https://sns.s3.amazonaws.com",
    "https://sns.s3-us-west-2.amazonaws.com",
    "https://sns.amazonaws.com",
    "https://sns.us-east-1.amazonaws.com.evil.example",
    "https://sns.us-east-1.amazonaws.com.",
    "https://sns.us-east-1.amazonaws.com.cn",
    "https://evil.example#sns.us-east-1.amazonaws.com",
    "https://evil.example?sns.us-east-1.amazonaws.com",
    "https://evil.example\\.sns.us-east-1.amazonaws.com",
    "https://sns.us-east-1.amazonaws.com@evil.example",
    "https://evil.example@sns.us-east-1.amazonaws.com",
    "https://sns.us-east-1.amazonaws.com:443",
    "https://sns.us-east-1.amazonaws.com:8443",
    "https://127.0.0.1",
    "https://[::1]",
    "https://[::ffff:169.254.169.254]",
    "http://169.254.169.254/latest/meta-data",
    "https://localhost",
    "file://",
    "ftp://sns.us-east-1.amazonaws.com",
    "",
];

/// novuhq/novu#11056, #11223; Mailtrain-org/mailtrain#1392.
#[tokio::test]
async fn forged_urls_make_no_request() {
    let proxy = RecordingProxy::start();
    let proxies = Proxies::new(Some(&proxy.url()), Some(&proxy.url()), None).unwrap();
    let client = Client::new(Reach::Public, Duration::from_secs(5), &proxies).unwrap();
    let documents = Documents::new(client.leaving_unresolved_to_proxies(), Clock::system());
    let now_s = Clock::system().now().timestamp();
    let settings = format!("format = 'sns'\ntype = 't'\nhandler = 'h'\nsources = {{ '{TOPIC}' = {{}} }}");
    let fetching = receiver(&settings).at(now_s);
    let certificate = path("keys/sns-signing-cert.pem");
    let pinned = receiver(&format!("{settings}\ncertificate = '{}'", certificate.display())).at(now_s);
    let good = subscribe_url("t");
    let rest = good.strip_prefix("https://sns.us-east-1.amazonaws.com").unwrap();
    for host in FORGED {
        for kind in [notification("m", "x"), confirmation("SubscriptionConfirmation", "t", &good)] {
            for path in [PATH, ""] {
                let mut forged = signed(kind.clone());
                forged["SigningCertURL"] = json!(format!("{host}{path}"));
                for format in [&fetching, &pinned] {
                    let error = push(format, &documents, &forged).await.unwrap_err();
                    assert!(error.contains("SigningCertURL"), "{host}{path}: {error}");
                }
            }
        }
        // Signed by SNS itself, as far as anybody can tell.
        let confirming = signed(confirmation("SubscriptionConfirmation", "t", &format!("{host}{rest}")));
        let error = push(&pinned, &documents, &confirming).await.unwrap_err();
        assert!(error.contains("SubscribeURL"), "{host}: {error}");
    }
    let ended = signed(confirmation("UnsubscribeConfirmation", "t", &good));
    assert!(matches!(push(&pinned, &documents, &ended).await, Ok(What::Notice(_))));
    let unsigned = notification("m", "x");
    assert!(push(&fetching, &documents, &unsigned).await.is_err());
    assert_eq!(proxy.seen(), Vec::<String>::new());

    // What is SNS's is asked for, through the proxy (whose authority is not trusted here).
    assert!(push(&fetching, &documents, &signed(notification("m", "x"))).await.is_err());
    let confirming = signed(confirmation("SubscriptionConfirmation", "t", &good));
    assert!(push(&pinned, &documents, &confirming).await.is_err());
    assert_eq!(proxy.seen(), vec!["CONNECT sns.us-east-1.amazonaws.com:443"; 2]);
}
