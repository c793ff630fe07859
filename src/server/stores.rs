//! Opening stores.
//!
//! One store: a node does not start on what only a person can mend (a wrong URL, a file that cannot be made, a
//! schema that cannot be brought up to date); a server that is down is waited for in the background.
//! Several: whatever is wrong with one of them is told, tried again, and holds up no other.

use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::config::{self, Config};
use crate::domain::Clock;
use crate::store::{self, ErrorKind};

/// How long a start waits for the schemas of several stores.
const PATIENCE: Duration = Duration::from_secs(5);
/// Before a schema is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Opens the store `name` as the configuration says; an embedded one is made, and its schema brought up to date.
///
/// # Errors
/// The URL is wrong, or an embedded store cannot be opened.
pub async fn connect(config: &Config, name: &str, clock: &Clock) -> anyhow::Result<store::Shared> {
    let settings = config.store(name);
    let opened = store::open(&settings.url.expose(), &options(&settings, clock)).await;
    opened.with_context(|| format!("stores.{name}.url"))
}

/// Opens a store and touches nothing yet.
///
/// # Errors
/// The URL is wrong.
pub fn open_lazily(settings: &config::Store, clock: &Clock) -> store::Result<store::Shared> {
    store::open_lazily(&settings.url.expose(), &options(settings, clock))
}

fn options(settings: &config::Store, clock: &Clock) -> store::Options {
    store::Options {
        pooler: match settings.pooler {
            config::stores::Pooler::None => store::Pooler::None,
            config::stores::Pooler::Transaction => store::Pooler::Transaction,
        },
        max_connections: settings.max_connections,
        clock: clock.clone(),
        ..store::Options::default()
    }
}

/// Opens every store, `main` first, and has their schemas brought up to date where that is wished.
pub(super) async fn open_all(
    config: &Config,
    clock: &Clock,
    stop: &CancellationToken,
) -> anyhow::Result<Vec<(String, store::Shared)>> {
    let names: Vec<String> = config.store_names().map(str::to_owned).collect();
    if let [name] = names.as_slice() {
        return Ok(vec![(name.clone(), open_only(config, name, clock, stop).await?)]);
    }
    let (mut opened, mut tried) = (Vec::new(), Vec::new());
    for name in names {
        let settings = config.store(&name);
        let store = open_lazily(&settings, clock).with_context(|| format!("stores.{name}.url"))?;
        if config.migrates(&name) {
            let (say_tried, first_try) = oneshot::channel();
            tokio::spawn(keep_migrating(name.clone(), store.clone(), stop.clone(), Some(say_tried)));
            tried.push(first_try);
        }
        opened.push((name, store));
    }
    // What is not up to date by then goes on in the background.
    let _ = tokio::time::timeout(PATIENCE, futures::future::join_all(tried)).await;
    Ok(opened)
}

/// Opens the only store and brings its schema up to date. What only time can mend (a server that is down) is
/// tried again in the background; everything else is an error at once.
async fn open_only(
    config: &Config,
    name: &str,
    clock: &Clock,
    stop: &CancellationToken,
) -> anyhow::Result<store::Shared> {
    let store = connect(config, name, clock).await?;
    if !config.migrates(name) {
        return Ok(store);
    }
    match store.migrate().await {
        Ok(applied) => say_migrated(name, &applied),
        Err(error) if error.kind == ErrorKind::Unavailable && store.engine() != "sqlite" => {
            say_unreached(name, &error);
            tokio::spawn(keep_migrating(name.to_owned(), store.clone(), stop.clone(), None));
        }
        Err(error) => {
            return Err(error)
                .with_context(|| format!("stores.{name}: the schema could not be brought up to date"));
        }
    }
    Ok(store)
}

/// Tries until it is done. `first_try`: told of the first end, whichever it is.
async fn keep_migrating(
    name: String,
    store: store::Shared,
    stop: CancellationToken,
    mut first_try: Option<oneshot::Sender<()>>,
) {
    let mut said: Option<String> = None;
    loop {
        // Without `first_try` the first one was made elsewhere.
        if first_try.is_none() {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
        let tried = store.migrate().await;
        let first = first_try.take().map(|waiting| waiting.send(()));
        match tried {
            Ok(applied) => return say_migrated(&name, &applied),
            Err(error) if error.kind == ErrorKind::Unavailable && first.is_none() => {
                tracing::debug!(store = %name, %error, "the store is not reached");
            }
            Err(error) if error.kind == ErrorKind::Unavailable => say_unreached(&name, &error),
            Err(error) => {
                let text = error.to_string();
                if said.as_ref() != Some(&text) {
                    tracing::error!(store = %name, error = %text, "the schema could not be brought up to date; tried again");
                    said = Some(text);
                }
            }
        }
    }
}

fn say_unreached(name: &str, error: &store::Error) {
    tracing::warn!(store = name, %error, "the store is not reached; starting all the same, its requests are answered 503 until it is");
}

fn say_migrated(name: &str, applied: &[String]) {
    for migration in applied {
        tracing::info!(store = name, %migration, "migrated the store");
    }
}
