//! `oncegate doctor`: what is wrong, and what to do about it.
//!
//! Looks at what a running gateway would use, and changes nothing. A check is a function that adds lines to the
//! report.

use std::io::ErrorKind as IoErrorKind;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use super::{Source, health, print};
use crate::config::Config;
use crate::domain::Clock;
use crate::server::stores;
use crate::store;
use crate::store::status::Readiness;
use crate::transport::guard::{Reach, is_public};
use crate::transport::registry::{self, Endpoint};

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// A clock that is further off than this makes schedules and logs hard to follow.
const SKEW: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Ok,
    /// Works, with something to know.
    Note,
    /// Keeps the gateway, or a part of it, from its work.
    Wrong,
}

/// What was found.
#[derive(Default)]
struct Report {
    text: String,
    wrong: bool,
}

impl Report {
    /// `next`: what to do; empty where there is nothing to do.
    fn add(&mut self, level: Level, what: &str, found: &str, next: &str) {
        let word = match level {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Wrong => "WRONG",
        };
        self.wrong |= level == Level::Wrong;
        self.text.push_str(&format!("{word:<6}{what:<26}{found}\n"));
        if !next.is_empty() {
            self.text.push_str(&format!("{:<8}{next}\n", ""));
        }
    }
}

pub(super) async fn run(source: &Source) -> anyhow::Result<ExitCode> {
    // A refused configuration is told with every key that is wrong, as by every command.
    let config = source.load()?;
    let mut report = Report::default();
    configuration(&config, &mut report);
    for name in config.store_names() {
        look_at_store(name, &config, &mut report).await;
    }
    for (name, destination) in &config.destinations {
        let what = format!("destinations.{name}");
        let settings = destination.settings.clone();
        // The configuration was accepted, so that its settings are sound.
        let endpoint = registry::endpoint(&destination.transport, settings).ok().flatten();
        look_at_endpoint(&what, &destination.transport, endpoint, &mut report).await;
    }
    for (name, handler) in &config.handlers {
        let endpoint = handler.url().ok().and_then(|url| Endpoint::of_url(&url, Reach::Any));
        look_at_endpoint(&format!("handlers.{name}"), "webhook", endpoint, &mut report).await;
    }
    look_at_port("server.listen", config.server.listen, &mut report).await;
    if let Some(admin) = config.server.admin_listen {
        look_at_port("server.admin_listen", admin, &mut report).await;
    }
    print(&report.text)?;
    Ok(if report.wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn configuration(config: &Config, report: &mut Report) {
    let file = config.file.as_ref().map(|file| file.display().to_string());
    report.add(Level::Ok, "configuration", &file.unwrap_or_else(|| "no file: the defaults".into()), "");
    let public = !config.server.listen.ip().to_canonical().is_loopback();
    if public && config.auth.anonymous == Some(true) {
        report.add(
            Level::Note,
            "auth",
            "everybody who reaches the port may do everything",
            "Add `[auth.keys.NAME]` or `[auth.jwt]` and take `auth.anonymous = true` out.",
        );
    }
}

async fn look_at_store(name: &str, config: &Config, report: &mut Report) {
    let what = format!("stores.{name}");
    let settings = config.store(name);
    if let Some(file) = store::embedded_file(&settings.url.expose())
        && !file.exists()
    {
        let found = format!("{} is not there yet; it is made at start", file.display());
        return report.add(Level::Ok, &what, &found, "");
    }
    let clock = Clock::system();
    let store = match stores::open_lazily(&settings, &clock) {
        Ok(store) => store,
        Err(error) => {
            return report.add(Level::Wrong, &what, &error.to_string(), "Correct its `url`.");
        }
    };
    let (ready, checkup) = (store.readiness().await, store.checkup().await);
    store.close().await;
    match &ready {
        Ok(Readiness::Ready) => report.add(Level::Ok, &what, "reached, and its schema is up to date", ""),
        Ok(Readiness::NotMigrated) if config.migrates(name) => {
            report.add(Level::Ok, &what, "reached; its schema is brought up to date at start", "");
        }
        Ok(Readiness::NotMigrated) => report.add(
            Level::Wrong,
            &what,
            "reached, but its schema is not up to date: writes are answered 503",
            &format!("Run `oncegate storage migrate --store {name}`."),
        ),
        Err(error) => {
            let next = format!(
                "Start the database, or correct `{what}.url`. Until then its requests are answered 503; nothing is lost."
            );
            report.add(Level::Wrong, &what, &error.to_string(), &next);
        }
    }
    let Ok(checkup) = checkup else { return };
    if !checkup.durable {
        report.add(
            Level::Note,
            &what,
            "synchronous_commit is off: what was answered 2xx may be lost when the database crashes",
            "Set `synchronous_commit = on` for the role or the database.",
        );
    }
    let ahead = checkup.now - clock.now();
    if ahead.abs().to_std().unwrap_or_default() > SKEW {
        let way = if ahead > chrono::Duration::zero() { "ahead of" } else { "behind" };
        let found = format!("its clock is {} s {way} this machine's", ahead.num_seconds().abs());
        report.add(
            Level::Note,
            &what,
            &found,
            "Synchronise both clocks. The database's decides when messages are due.",
        );
    }
}

async fn look_at_endpoint(what: &str, transport: &str, endpoint: Option<Endpoint>, report: &mut Report) {
    let Some(endpoint) = endpoint else {
        return report.add(Level::Ok, what, &format!("{transport}: nothing to reach"), "");
    };
    let place = format!("{}:{}", endpoint.host, endpoint.port);
    if transport == "webhook" && proxied() {
        return report.add(Level::Ok, what, &format!("{place}, through a proxy: not tried"), "");
    }
    const WAITS: &str = "Its messages wait in the store meanwhile.";
    let resolved =
        tokio::time::timeout(PATIENCE, tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)));
    let addresses: Vec<SocketAddr> = match resolved.await {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(_)) | Err(_) => {
            let next = format!("Correct `{what}.url`, or the name's DNS. {WAITS}");
            return report.add(Level::Wrong, what, &format!("`{}` does not resolve", endpoint.host), &next);
        }
    };
    if endpoint.reach == Reach::Public && !addresses.iter().any(|address| is_public(address.ip())) {
        let next = format!("Set `{what}.allow_private = true` if it is meant to go there. {WAITS}");
        let found = format!("`{}` resolves to private addresses only, which are refused", endpoint.host);
        return report.add(Level::Wrong, what, &found, &next);
    }
    let next = || format!("Start it, or correct `{what}.url`. {WAITS}");
    match tokio::time::timeout(PATIENCE, TcpStream::connect(addresses.as_slice())).await {
        Ok(Ok(_)) => report.add(Level::Ok, what, &format!("{place} takes connections"), ""),
        Ok(Err(error)) => report.add(Level::Wrong, what, &format!("{place}: {error}"), &next()),
        Err(_) => report.add(Level::Wrong, what, &format!("{place} does not answer"), &next()),
    }
}

/// Whether requests over HTTP leave through a proxy.
fn proxied() -> bool {
    const NAMES: [&str; 6] =
        ["https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];
    NAMES.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

async fn look_at_port(what: &str, listen: SocketAddr, report: &mut Report) {
    match TcpListener::bind(listen).await {
        Ok(_) => report.add(Level::Ok, what, &format!("{listen} is free"), ""),
        Err(error) if error.kind() == IoErrorKind::AddrInUse => {
            if health::ask(listen, "/healthz").await.is_ok_and(|(status, _)| status == 200) {
                return report.add(Level::Ok, what, &format!("a gateway runs on {listen}"), "");
            }
            let next = format!("Stop what listens there, or change `{what}`.");
            report.add(Level::Wrong, what, &format!("{listen} is in use by something else"), &next);
        }
        Err(error) => {
            let next = format!("Change `{what}` to an address of this machine and a port that it may open.");
            report.add(Level::Wrong, what, &format!("{listen}: {error}"), &next);
        }
    }
}
