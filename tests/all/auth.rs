//! Tokens of an identity provider, with keys made here and served from here; and keys changed while serving.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
};
use base64::Engine as _;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use oncegate::auth::{Authenticator, Credentials, Principal};
use oncegate::config::{self, Secret};
use oncegate::domain::Clock;
use serde_json::{Value, json};

use crate::support::gateway::Gateway;
use crate::support::receiver::{Answer, Receiver};
use crate::support::{eventually, run, when};

/// A key of the identity provider.
struct Signer {
    id: String,
    algorithm: Algorithm,
    key: EncodingKey,
}

impl Signer {
    fn new(id: &str, algorithm: Algorithm) -> Self {
        let random = SystemRandom::new();
        let key = match algorithm {
            Algorithm::ES256 => {
                let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
                EncodingKey::from_ec_der(key.as_ref())
            }
            Algorithm::ES384 => {
                let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, &random).unwrap();
                EncodingKey::from_ec_der(key.as_ref())
            }
            Algorithm::EdDSA => {
                EncodingKey::from_ed_der(Ed25519KeyPair::generate_pkcs8v1(&random).unwrap().as_ref())
            }
            _ => {
                let key = aws_lc_rs::rsa::KeyPair::generate(KeySize::Rsa2048).unwrap();
                let der: Pkcs8V1Der<'_> = key.as_der().unwrap();
                let text = base64::engine::general_purpose::STANDARD.encode(der.as_ref());
                let lines: Vec<&str> =
                    text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
                let pem =
                    format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", lines.join("\n"));
                EncodingKey::from_rsa_pem(pem.as_bytes()).unwrap()
            }
        };
        Self { id: id.to_owned(), algorithm, key }
    }

    /// The public key as the provider shows it; without `alg`, as many do, so that it is told by the key's kind.
    fn public(&self) -> Value {
        let mut jwk =
            serde_json::to_value(Jwk::from_encoding_key(&self.key, self.algorithm).unwrap()).unwrap();
        jwk["kid"] = json!(self.id);
        jwk["use"] = json!("sig");
        jwk.as_object_mut().unwrap().remove("alg");
        jwk
    }

    fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.id.clone()), ..Header::new(self.algorithm) };
        jsonwebtoken::encode(&header, claims, &self.key).unwrap()
    }
}

fn set(signers: &[&Signer]) -> String {
    json!({ "keys": signers.iter().map(|signer| signer.public()).collect::<Vec<_>>() }).to_string()
}

/// An identity provider that shows these keys.
async fn provider(keys: String) -> Receiver {
    Receiver::scripted(move |_, _| Answer::status(200).body(&keys)).await
}

fn claims(clock: &Clock) -> Value {
    let now = clock.now().timestamp();
    json!({
        "iss": "https://id.test/", "aud": ["oncegate", "other"], "sub": "alice", "exp": now + 300, "nbf": now,
        "tenant": "acme", "grants": ["publish:order.*"],
    })
}

fn with(clock: &Clock, name: &str, value: Value) -> Value {
    let mut claims = claims(clock);
    claims[name] = value;
    claims
}

fn auth(jwks: &str) -> config::Auth {
    let text = format!(
        "anonymous = false\n[jwt]\nissuer = \"https://id.test/\"\naudience = \"oncegate\"\njwks = \"{jwks}\"\ntenant_claim = \"tenant\""
    );
    toml::from_str(&text).unwrap()
}

async fn ask(credentials: &Credentials, token: &str) -> Result<Principal, String> {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).unwrap());
    credentials.authenticate(&headers).await.map_err(|refusal| refusal.reason)
}

#[tokio::test]
async fn every_asymmetric_algorithm_is_accepted() {
    let clock = Clock::system();
    for algorithm in [
        Algorithm::RS256,
        Algorithm::RS384,
        Algorithm::RS512,
        Algorithm::PS256,
        Algorithm::PS384,
        Algorithm::PS512,
        Algorithm::ES256,
        Algorithm::ES384,
        Algorithm::EdDSA,
    ] {
        let signer = Signer::new("k1", algorithm);
        let provider = provider(set(&[&signer])).await;
        let credentials = Credentials::new(&auth(&provider.url("/jwks")), clock.clone()).unwrap();
        let alice = ask(&credentials, &signer.sign(&claims(&clock)))
            .await
            .unwrap_or_else(|e| panic!("{algorithm:?}: {e}"));
        assert_eq!((alice.name.as_str(), alice.tenant.as_str()), ("alice", "acme"));
        assert!(alice.may_publish("order.created") && !alice.may_publish("other"));
    }
}

#[tokio::test]
async fn a_token_that_is_not_for_us_or_not_now_is_refused() {
    let clock = Clock::system();
    let now = clock.now().timestamp();
    let signer = Signer::new("k1", Algorithm::ES256);
    let provider = provider(set(&[&signer])).await;
    let credentials = Credentials::new(&auth(&provider.url("/jwks")), clock.clone()).unwrap();
    for (name, value) in [
        ("exp", json!(now - 60)),
        ("exp", Value::Null),
        ("nbf", json!(now + 120)),
        ("aud", json!("other")),
        ("iss", json!("https://id.test")),
        ("sub", Value::Null),
        ("tenant", Value::Null),
    ] {
        let refused = ask(&credentials, &signer.sign(&with(&clock, name, value.clone()))).await.unwrap_err();
        assert!(refused.contains(name), "{name} = {value}: {refused}");
    }
    // Against this program's clock, with the leeway of 30 seconds.
    let token = signer.sign(&with(&clock, "exp", json!(now + 10)));
    assert!(ask(&credentials, &token).await.is_ok());
    clock.advance(Duration::from_secs(35));
    assert!(ask(&credentials, &token).await.is_ok());
    clock.advance(Duration::from_secs(10));
    assert!(ask(&credentials, &token).await.unwrap_err().contains("exp"));
}

#[tokio::test]
async fn a_token_that_the_provider_did_not_sign_is_refused() {
    let clock = Clock::system();
    let (signer, other) = (Signer::new("k1", Algorithm::RS256), Signer::new("k1", Algorithm::RS256));
    let keys = set(&[&signer]);
    let provider = provider(keys.clone()).await;
    let credentials = Credentials::new(&auth(&provider.url("/jwks")), clock.clone()).unwrap();
    let good = signer.sign(&claims(&clock));
    assert!(ask(&credentials, &good).await.is_ok());
    assert!(ask(&credentials, &other.sign(&claims(&clock))).await.is_err());

    let base64 = |bytes: &[u8]| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
    let parts: Vec<&str> = good.split('.').collect();
    let changed = base64(with(&clock, "sub", json!("mallory")).to_string().as_bytes());
    assert!(ask(&credentials, &format!("{}.{changed}.{}", parts[0], parts[2])).await.is_err());

    // No signature, and the public key taken for a shared secret.
    for (alg, signature) in [("none", ""), ("None", ""), ("none", parts[2])] {
        let header = base64(json!({ "alg": alg, "typ": "JWT", "kid": "k1" }).to_string().as_bytes());
        assert!(ask(&credentials, &format!("{header}.{}.{signature}", parts[1])).await.is_err());
    }
    for secret in [keys.as_bytes(), signer.public()["n"].as_str().unwrap().as_bytes()] {
        let header = Header { kid: Some("k1".into()), ..Header::new(Algorithm::HS256) };
        let forged =
            jsonwebtoken::encode(&header, &claims(&clock), &EncodingKey::from_secret(secret).unwrap())
                .unwrap();
        assert!(ask(&credentials, &forged).await.unwrap_err().contains("HS256"));
    }
    // A symmetric key in the set is no key.
    let shared = b"a shared secret of the provider's";
    let oct = json!({ "keys": [signer.public(), { "kty": "oct", "kid": "h", "alg": "HS256", "k": base64(shared) }] });
    provider.script(move |_, _| Answer::status(200).body(&oct.to_string()));
    let header = Header { kid: Some("h".into()), ..Header::new(Algorithm::HS256) };
    let forged =
        jsonwebtoken::encode(&header, &claims(&clock), &EncodingKey::from_secret(shared).unwrap()).unwrap();
    assert!(ask(&credentials, &forged).await.is_err());
}

#[tokio::test]
async fn a_rotated_key_is_found_and_unknown_ones_ask_once_a_minute() {
    let clock = Clock::system();
    let (first, second, never) = (
        Signer::new("k1", Algorithm::ES256),
        Signer::new("k2", Algorithm::ES256),
        Signer::new("k3", Algorithm::ES256),
    );
    let provider = provider(set(&[&first])).await;
    let credentials = Credentials::new(&auth(&provider.url("/jwks")), clock.clone()).unwrap();
    assert_eq!(provider.count(), 0, "nothing is fetched before a token comes");
    for _ in 0..5 {
        assert!(ask(&credentials, &first.sign(&claims(&clock))).await.is_ok());
    }
    assert_eq!(provider.count(), 1);

    let keys = set(&[&first, &second]);
    provider.script(move |_, _| Answer::status(200).body(&keys));
    assert!(ask(&credentials, &second.sign(&claims(&clock))).await.is_err(), "asked less than a minute ago");
    assert_eq!(provider.count(), 1);
    clock.advance(Duration::from_secs(61));
    assert!(ask(&credentials, &second.sign(&claims(&clock))).await.is_ok());
    assert_eq!(provider.count(), 2);

    for _ in 0..5 {
        assert!(ask(&credentials, &never.sign(&claims(&clock))).await.unwrap_err().contains("k3"));
    }
    assert_eq!(provider.count(), 2);

    // The provider is down: what is known goes on being accepted.
    provider.script(|_, _| Answer::status(500));
    clock.advance(Duration::from_secs(61));
    assert!(ask(&credentials, &never.sign(&claims(&clock))).await.is_err());
    assert_eq!(provider.count(), 3);
    assert!(ask(&credentials, &second.sign(&claims(&clock))).await.is_ok());
}

#[tokio::test]
async fn a_withdrawn_key_ends() {
    let clock = Clock::system();
    let (first, second) = (Signer::new("k1", Algorithm::ES256), Signer::new("k2", Algorithm::ES256));
    let provider = provider(set(&[&first, &second])).await;
    let credentials = Credentials::new(&auth(&provider.url("/jwks")), clock.clone()).unwrap();
    assert!(ask(&credentials, &first.sign(&claims(&clock))).await.is_ok());
    let keys = set(&[&second]);
    provider.script(move |_, _| Answer::status(200).body(&keys));
    clock.advance(Duration::from_secs(601));
    // This one only sets the fetch going, beside it.
    assert!(ask(&credentials, &first.sign(&claims(&clock))).await.is_ok());
    eventually(Duration::from_secs(10), "the withdrawn key is refused", async || {
        when(ask(&credentials, &first.sign(&claims(&clock))).await.is_err())
    })
    .await;
}

#[tokio::test]
async fn a_provider_that_cannot_be_asked_is_asked_again_and_never_trusted_blindly() {
    let clock = Clock::system();
    let signer = Signer::new("k1", Algorithm::ES256);
    let keys = set(&[&signer]);
    let token = |clock: &Clock| signer.sign(&claims(clock));
    let elsewhere = provider(keys.clone()).await;
    let redirect = elsewhere.url("/jwks");
    let provider = Receiver::scripted(move |number, _| match number {
        0 => Answer::status(500),
        1 => Answer::status(200).body("not JSON"),
        2 => Answer::status(200).body(&"x".repeat(600 * 1024)),
        3 => Answer::status(302).header("location", &redirect),
        4 => Answer::status(200).body("{\"keys\":[]}"),
        _ => Answer::status(200).body(&keys),
    })
    .await;
    let credentials = Credentials::new(&auth(&provider.url("/jwks")), clock.clone()).unwrap();
    for number in 0..5 {
        let refused = ask(&credentials, &token(&clock)).await.unwrap_err();
        assert!(refused.contains("could not be fetched"), "{number}: {refused}");
        assert!(ask(&credentials, &token(&clock)).await.is_err());
        assert_eq!(provider.count(), number + 1, "not asked again at once");
        clock.advance(Duration::from_secs(6));
    }
    assert_eq!(elsewhere.count(), 0, "a redirect was followed");
    assert!(ask(&credentials, &token(&clock)).await.is_ok());
}

#[tokio::test]
async fn many_at_once_make_one_fetch() {
    let clock = Clock::system();
    let signer = Signer::new("k1", Algorithm::ES256);
    let keys = set(&[&signer]);
    let provider =
        Receiver::scripted(move |_, _| Answer::status(200).body(&keys).after(Duration::from_millis(200)))
            .await;
    let credentials = Arc::new(Credentials::new(&auth(&provider.url("/jwks")), clock.clone()).unwrap());
    let accepted = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (credentials, accepted) = (Arc::clone(&credentials), Arc::clone(&accepted));
            let token = signer.sign(&claims(&clock));
            tokio::spawn(async move {
                ask(&credentials, &token).await.unwrap();
                accepted.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!((accepted.load(Ordering::Relaxed), provider.count()), (20, 1));
}

#[tokio::test]
async fn keys_in_a_file_are_read_again() {
    let clock = Clock::system();
    let (first, second) = (Signer::new("k1", Algorithm::ES256), Signer::new("k2", Algorithm::EdDSA));
    let file = run::fresh_dir("jwks").join("jwks.json");
    fs::write(&file, set(&[&first])).unwrap();
    let credentials = Credentials::new(&auth(file.to_str().unwrap()), clock.clone()).unwrap();
    assert!(ask(&credentials, &first.sign(&claims(&clock))).await.is_ok());
    fs::write(&file, set(&[&second])).unwrap();
    clock.advance(Duration::from_secs(2));
    assert!(ask(&credentials, &second.sign(&claims(&clock))).await.is_ok());
    assert!(ask(&credentials, &first.sign(&claims(&clock))).await.is_err());
}

#[tokio::test]
async fn api_keys_stand_beside_tokens() {
    let clock = Clock::system();
    let signer = Signer::new("k1", Algorithm::ES256);
    let provider = provider(set(&[&signer])).await;
    let mut both = auth(&provider.url("/jwks"));
    let secrets = vec![Secret::new("0123456789abcdef")];
    both.keys.insert("alice".into(), config::auth::Key { secrets, tenant: None, grants: Vec::new() });
    let credentials = Credentials::new(&both, clock.clone()).unwrap();
    let by_key = ask(&credentials, "0123456789abcdef").await.unwrap();
    assert_eq!(provider.count(), 0);
    let by_token = ask(&credentials, &signer.sign(&claims(&clock))).await.unwrap();
    assert_eq!(by_key.name, by_token.name);
    assert_ne!(by_key.identity(), by_token.identity(), "two callers of one name are two");
}

const PUBLISHES: &str = "/v1/publish/order.created";

async fn publish(gateway: &Gateway, secret: Option<&str>) -> (u16, Value, HeaderMap) {
    let mut request = gateway.client().post(gateway.url(PUBLISHES)).body("{}");
    if let Some(secret) = secret {
        request = request.bearer_auth(secret);
    }
    let answer = request.send().await.unwrap();
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    (status, answer.json().await.unwrap_or(Value::Null), headers)
}

#[tokio::test]
async fn missing_and_wrong_credentials_are_401_and_a_missing_grant_403() {
    let gateway = Gateway::start(
        "[auth.keys.shop]\nsecrets = [\"shop-0123456789\"]\ngrants = [\"publish:order.*\"]\n\
         [auth.keys.reader]\nsecrets = [\"reader-0123456789\"]\ngrants = [\"operate:read\"]\n",
    )
    .await;
    assert_eq!(publish(&gateway, Some("shop-0123456789")).await.0, 202);
    assert_eq!(publish(&gateway, Some("reader-0123456789")).await.0, 403);
    let (missing, wrong) = (publish(&gateway, None).await, publish(&gateway, Some("nonsense")).await);
    assert_eq!((missing.0, wrong.0), (401, 401));
    assert_ne!(missing.1["detail"], wrong.1["detail"]);
    for (_, problem, headers) in [missing, wrong] {
        assert_eq!(problem["type"], "/problems/unauthenticated");
        assert!(headers["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
    }
}

#[tokio::test]
async fn sighup_replaces_keys_and_a_refused_file_changes_nothing() {
    let config =
        |secrets: &str| format!("[auth.keys.shop]\nsecrets = [{secrets}]\ngrants = [\"publish:*\"]\n");
    let gateway = Gateway::start(&config("\"old-0123456789\"")).await;
    let file = gateway.dir().join("oncegate.toml");
    let accepted = async |secret: &str| publish(&gateway, Some(secret)).await.0 == 202;
    assert!(accepted("old-0123456789").await);

    fs::write(gateway.dir().join("shop.key"), "new-0123456789\n").unwrap();
    fs::write(&file, config("\"old-0123456789\", { file = \"shop.key\" }")).unwrap();
    gateway.signal("HUP");
    eventually(Duration::from_secs(10), "the new key is accepted", async || {
        when(accepted("new-0123456789").await)
    })
    .await;
    assert!(accepted("old-0123456789").await, "both are accepted while rotating");

    fs::write(&file, "nonsense = true\n").unwrap();
    gateway.signal("HUP");
    eventually(Duration::from_secs(10), "the refusal is logged", async || {
        when(gateway.stderr().contains("nonsense"))
    })
    .await;
    assert!(accepted("old-0123456789").await && accepted("new-0123456789").await);

    fs::write(&file, config("{ file = \"shop.key\" }")).unwrap();
    gateway.signal("HUP");
    eventually(Duration::from_secs(10), "the old key is refused", async || {
        when(!accepted("old-0123456789").await)
    })
    .await;
    assert!(accepted("new-0123456789").await);
    assert!(!gateway.stderr().contains("0123456789"), "a secret was logged");
}
