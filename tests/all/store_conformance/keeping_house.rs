//! Purging, migrating, closing.

use std::time::Duration;

use oncegate::domain::claim::{ClaimKey, ClaimKind};
use oncegate::domain::delivery::Target;
use oncegate::store::claims::NewClaim;
use oncegate::store::status::{Purged, Readiness, Retention};
use oncegate::store::{self, ErrorKind};

use super::backends::Bench;
use super::build::*;

const SHORTLY: Retention = Retention { receipts: SHORT, dead_letters: SHORT };

/// Two claims of each of three kinds, two dead letters, two receipts; all over after [`SHORT`].
async fn fill(bench: &Bench) {
    for n in 0..2 {
        let work = claiming(message(), &format!("w{n}"), SHORT);
        let other = message();
        put(&bench.store, vec![work.clone(), other.clone()]).await;
        let owner = token();
        assert_eq!(take_as(&bench.store, &orders(), 10, HOUR, owner).await.len(), 2);
        let batch = [done(row(&work, 0)), dead(row(&other, 0), owner)];
        bench.store.settle(&batch).await.unwrap();
        bench.store.claim(&claim(&n.to_string(), token(), SHORT)).await.unwrap();
        let handler = NewClaim {
            key: ClaimKey::new(ClaimKind::Handler, &["h"], &n.to_string()),
            kind: ClaimKind::Handler,
            ..claim(&n.to_string(), token(), SHORT)
        };
        bench.store.claim(&handler).await.unwrap();
        bench.store.confirm(handler.key, handler.token, SHORT).await.unwrap().unwrap();
    }
}

pub async fn what_is_over_is_purged(bench: &Bench) {
    fill(bench).await;
    bench.pass(LONGER).await;
    let purged = bench.store.purge(100, &SHORTLY).await.unwrap();
    let expected = Purged { handler_claims: 2, claims: 4, dead_letters: 2, receipts: 2, more: false };
    assert_eq!(purged, expected);
    for table in ["deliveries", "deduplication", "dead_letters", "receipts"] {
        assert_eq!(bench.count(table).await, 0, "{table}");
    }
    assert_eq!(bench.store.purge(100, &SHORTLY).await.unwrap(), Purged::default());
}

pub async fn what_is_not_over_is_kept(bench: &Bench) {
    fill(bench).await;
    put(&bench.store, vec![work("lasting"), to(message(), &[Target::destination("old")])]).await;
    bench.pass(LONGER).await;
    let keep = Retention { receipts: HOUR, dead_letters: HOUR };
    let purged = bench.store.purge(100, &keep).await.unwrap();
    assert_eq!((purged.dead_letters, purged.receipts), (0, 0));
    assert_eq!((bench.count("dead_letters").await, bench.count("receipts").await), (2, 2));
    assert!(bench.store.claim_of(work_key("lasting")).await.unwrap().is_some());
    assert_eq!(bench.count("deliveries").await, 2);
}

/// NServiceBus.Persistence.Sql#778: cleaning 80M rows deadlocked with inserts.
pub async fn purging_is_bounded(bench: &Bench) {
    for n in 0..5 {
        bench.store.claim(&claim(&n.to_string(), token(), SHORT)).await.unwrap();
    }
    bench.pass(LONGER).await;
    let mut counts = Vec::new();
    for _ in 0..4 {
        let purged = bench.store.purge(2, &SHORTLY).await.unwrap();
        counts.push((purged.claims, purged.more));
    }
    assert_eq!(counts, [(2, true), (2, true), (1, false), (0, false)]);
}

pub async fn many_may_migrate_at_once(bench: &Bench) {
    let (url, options) = bench.empty_database().await;
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (url, options) = (url.clone(), options.clone());
        tasks.push(tokio::spawn(async move {
            let store = store::open(&url, &options).await.unwrap();
            let applied = store.migrate().await.unwrap();
            assert_eq!(store.readiness().await.unwrap(), Readiness::Ready);
            put(&store, vec![message()]).await;
            store.close().await;
            applied
        }));
    }
    let mut applied = Vec::new();
    for task in tasks {
        applied.extend(task.await.unwrap());
    }
    let all = applied.len();
    applied.dedup();
    assert_eq!(all, applied.len(), "each migration was applied once");
    let store = store::open(&url, &options).await.unwrap();
    assert!(store.migrate().await.unwrap().is_empty());
    assert_eq!(take(&store, &orders(), 100, Duration::from_secs(60)).await.len(), 8);
    store.close().await;
}

pub async fn a_closed_store_is_unavailable(bench: &Bench) {
    put(&bench.store, vec![message()]).await;
    let other = bench.another().await;
    other.close().await;
    let error = accept(&other, request(vec![message()])).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert_eq!(other.backlog().await.unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(bench.count("deliveries").await, 1);
}
