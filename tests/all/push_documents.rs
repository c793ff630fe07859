//! Documents that a push needs: fetched once, few, and within limits.

use std::sync::Arc;
use std::time::Duration;

use oncegate::domain::Clock;
use oncegate::gateway::documents::Documents;
use oncegate::transport::guard::{Client, Proxies, Reach};
use url::Url;

use crate::support::receiver::{Answer, Receiver};

fn documents(reach: Reach, clock: &Clock) -> Documents {
    let client = Client::new(reach, Duration::from_secs(5), &Proxies::none()).unwrap();
    Documents::new(client, clock.clone())
}

fn url(receiver: &Receiver, path: &str) -> Url {
    receiver.url(path).parse().unwrap()
}

#[tokio::test]
async fn a_document_is_fetched_once_and_again_after_a_day() {
    let server = Receiver::scripted(|n, _| Answer::status(200).body(&format!("document {n}"))).await;
    let clock = Clock::system();
    let documents = Arc::new(documents(Reach::Any, &clock));
    let url = url(&server, "/a.pem");
    let all = (0..16).map(|_| {
        let (documents, url) = (Arc::clone(&documents), url.clone());
        tokio::spawn(async move { documents.get(&url).await.unwrap() })
    });
    for got in futures::future::join_all(all).await {
        assert_eq!(got.unwrap(), "document 0");
    }
    assert_eq!(server.count(), 1);
    clock.advance(Duration::from_secs(25 * 3600));
    assert_eq!(documents.get(&url).await.unwrap(), "document 1");
    clock.advance(Duration::from_secs(25 * 3600));
    server.script(|_, _| Answer::status(500));
    assert_eq!(documents.get(&url).await.unwrap(), "document 1", "it is as good as it was");
    assert_eq!(server.count(), 3);
}

#[tokio::test]
async fn what_is_not_given_whole_is_not_kept() {
    let documents = documents(Reach::Any, &Clock::system());
    let elsewhere = Receiver::start().await;
    let target = elsewhere.url("/");
    let server = Receiver::scripted(move |n, _| match n {
        0 => Answer::status(404),
        1 => Answer::status(302).header("location", &target),
        2 => Answer::status(200).body(&"x".repeat(64 * 1024 + 1)),
        _ => Answer::status(200).body("good"),
    })
    .await;
    let url = url(&server, "/a.pem");
    for expected in ["404", "302", "more than 65536 bytes"] {
        let error = documents.get(&url).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(documents.get(&url).await.unwrap(), "good");
    assert_eq!(elsewhere.count(), 0, "redirects are not followed");
}

#[tokio::test]
async fn made_up_urls_make_few_requests() {
    let documents = documents(Reach::Any, &Clock::system());
    let server = Receiver::scripted(|_, _| Answer::status(404)).await;
    for n in 0..200 {
        assert!(documents.get(&url(&server, &format!("/{n}.pem"))).await.is_err());
    }
    assert!((60..=120).contains(&server.count()), "sixty a minute: {}", server.count());
}

#[tokio::test]
async fn private_addresses_are_not_asked() {
    let documents = documents(Reach::Public, &Clock::system());
    let server = Receiver::start().await;
    let error = documents.get(&url(&server, "/a.pem")).await.unwrap_err();
    assert!(error.contains("private"), "{error}");
    assert_eq!(server.count(), 0);
}
