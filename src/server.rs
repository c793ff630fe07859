//! Wiring, start and drain of a node.
//!
//! Start: the stores are opened (and migrated: [`stores`]), destinations are built, deliveries begin, then the port opens.
//! A server store that is down delays nothing: requests are answered 503 until it is there, and so is
//! `/readyz`. Stop, on SIGTERM or SIGINT: the port closes, requests that have begun end, what is held in
//! memory is given back, attempts under way end within `server.drain_timeout`, what they came to is stored.

mod flush;
pub mod stores;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::durability::Mode;
use crate::config::identity::Messages;
use crate::config::{self, Config};
use crate::delivery::pace::Pace;
use crate::delivery::{Background, Cascade, Engine, Gates, HandlerOptions, Options, TargetOptions, breaker};
use crate::domain::delivery::{Format, Target};
use crate::domain::fields;
use crate::domain::routing::{Route, Table};
use crate::domain::{Clock, Random};
use crate::gateway::documents::Documents;
use crate::gateway::invoke::{Invoked, Invoker, OnAmbiguous};
use crate::gateway::proof::Proof;
use crate::gateway::receive::{Common, Receiver, Receivers};
use crate::gateway::{
    self, Cascades, Destinations, Gateway, Keeping, Parts, Preparer, Routing, Settings, StoreNode, Stores,
};
use crate::http::edge::Edge;
use crate::store::deliveries::Receipt;
use crate::store::intake::Notifying;
use crate::store::{self, group};
use crate::telemetry::Metrics;
use crate::telemetry::trace::Traces;
use crate::{auth, gateway as use_cases, http, push, transport};

/// How far a lease outlasts the timeout of the attempt under it.
const LEASE_MARGIN: Duration = Duration::from_secs(5);

pub use flush::flush;

/// Reads the configuration as it is now.
pub type Reload = Arc<dyn Fn() -> Result<Config, config::Errors> + Send + Sync>;

/// Runs a node until SIGTERM or SIGINT; a second one ends it at once. SIGHUP reads secrets and `[auth]` again.
///
/// # Errors
/// What keeps it from starting.
pub async fn run_until_signalled(config: Config, reload: Reload) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let asked = stop.clone();
    tokio::spawn(async move {
        for first in [true, false] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if !first {
                tracing::warn!("told to stop a second time: ending at once; leases will end by themselves");
                std::process::exit(1);
            }
            tracing::info!("told to stop: draining");
            asked.cancel();
        }
    });
    run(config, reload, stop).await
}

/// Runs a node until `stop`, then drains it. `reload` is asked on SIGHUP.
///
/// # Errors
/// What keeps it from starting.
pub async fn run(config: Config, reload: Reload, stop: CancellationToken) -> anyhow::Result<()> {
    let clock = Clock::system();
    let random = Random;
    for line in config::overridden(&config) {
        tracing::warn!("{line}");
    }
    let otlp = config.telemetry.otlp_endpoint.as_ref().map(url::Url::as_str);
    let metrics = Metrics::new(otlp).map_err(anyhow::Error::msg).context("telemetry.otlp_endpoint")?;
    let traces = Traces::new(otlp).map_err(anyhow::Error::msg).context("telemetry.otlp_endpoint")?;
    let stores = stores::open_all(&config, &clock, &stop).await?;
    let authenticator =
        Arc::new(auth::Credentials::new(&config.auth, clock.clone()).context("auth.jwt: no HTTP client")?);
    let hangup = signal(SignalKind::hangup())?;
    tokio::spawn(reload_on(hangup, reload, Arc::clone(&authenticator)));
    // Bound before anything is taken from the store: a port that is in use is found at once.
    let listener = TcpListener::bind(config.server.listen)
        .await
        .with_context(|| format!("server.listen: cannot listen on {}", config.server.listen))?;
    let address = listener.local_addr()?;
    let admin = match config.server.admin_listen {
        Some(admin) => Some(
            TcpListener::bind(admin)
                .await
                .with_context(|| format!("server.admin_listen: cannot listen on {admin}"))?,
        ),
        None => None,
    };

    let gateway = assemble(&config, stores, &clock, metrics, traces)?;
    let app = http::app::App {
        gateway: Arc::clone(&gateway),
        authenticator,
        limits: http::Limits {
            body_bytes: config.server.limits.body.bytes(),
            body_timeout: config.server.limits.body_timeout.get(),
        },
        metrics_authorize: config.telemetry.metrics_authorize,
        passes: config.endpoints.durability(),
        rate: (config.server.limits.rate)
            .and_then(|rate| http::rate::Limiter::new(rate.requests, rate.per.get())),
    };
    let port = if admin.is_some() { http::Port::Public } else { http::Port::Only };
    let edge = Edge::new(http::router(app.clone(), port), clock.clone(), random);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "listening on http://{address}");
    let started = clock.monotonic();
    let limits = http::serve::Limits {
        connections: config.server.limits.connections as usize,
        header_timeout: config.server.limits.header_timeout.get(),
    };
    // It answers for as long as there is something to ask about.
    let drained = CancellationToken::new();
    if let Some(admin) = admin {
        let edge = Edge::new(http::router(app, http::Port::Admin), clock.clone(), random);
        tracing::info!("the node's own state is on http://{}", admin.local_addr()?);
        tokio::spawn(http::serve::serve(admin, edge, limits, drained.clone(), Duration::ZERO));
    }
    let moves = config.intake.enabled && !config.durability.mode.is_serverless();
    let moving: Vec<_> = (gateway.stores().iter().filter(|_| moves))
        .map(|node| {
            let notify = config.intake.notify && config.store(&node.name).can_notify();
            let options = use_cases::intake::Options {
                poll: config.intake.poll.get(),
                notify: if notify { Notifying::On } else { Notifying::Off },
                body_bytes: config.server.limits.body.bytes(),
                receipts: receipts(&config),
            };
            let (gateway, node) = (Arc::clone(&gateway), Arc::clone(node));
            tokio::spawn(use_cases::intake::run(gateway, node, options, stop.clone()))
        })
        .collect();
    let deadline = config.server.drain_timeout.get();
    let cut_off = http::serve::serve(listener, edge, limits, stop.clone(), deadline).await;
    if cut_off > 0 {
        tracing::warn!(connections = cut_off, "requests were still running at the deadline and were cut off");
    }
    tracing::debug!(up_for = ?clock.monotonic().saturating_duration_since(started), "no more requests; draining");
    for moving in moving {
        // A group that has begun ends; it says itself what went wrong with it.
        let _ = moving.await;
    }
    gateway.drain(deadline).await;
    drained.cancel();
    tracing::info!("drained");
    Ok(())
}

/// The use cases over these stores. Deliveries begin where the durability mode makes them in the background.
fn assemble(
    config: &Config,
    stores: Vec<(String, store::Shared)>,
    clock: &Clock,
    metrics: Metrics,
    traces: Traces,
) -> anyhow::Result<Arc<Gateway>> {
    let random = Random;
    let preparer = Preparer { metrics: metrics.clone(), traces: traces.clone(), ..preparer(config, random)? };
    let cascades =
        Cascades { preparer: preparer.clone(), limits: field_limits(config), clock: clock.clone() };
    let context = transport_context(config, clock, random)?;
    let mut targets = build_targets(config, &context)?;
    let handlers = build_handlers(config, &context)?;
    targets.extend(handler_targets(config, &handlers, &cascades.clone().shared())?);
    let invoker = Invoker::new(
        invoked(config, handlers),
        cascades,
        config.idempotency.lease.get(),
        config.idempotency.max_response.bytes(),
    );
    let receivers = receivers(config, clock, &context)?;
    let gates = if stores.len() > 1 { Gates::of_several() } else { Gates::default() };
    let begin = |(name, store): (String, store::Shared)| {
        let options = Options { gates: gates.clone(), ..engine_options(config) };
        let labelled = metrics.of_store(&name);
        let engine = Engine::start(
            &name,
            Arc::clone(&store),
            targets.clone(),
            options,
            clock.clone(),
            random,
            labelled,
        );
        StoreNode::new(&name, store, engine, &metrics, group_limits(config))
    };
    let mut nodes = stores.into_iter().map(|(name, store)| {
        let tenants = config.store(&name).tenants;
        (begin((name, store)), tenants)
    });
    let (main, _) = nodes.next().context("a node has a store")?;
    let stores = Stores::new(main, nodes.collect());
    Ok(Gateway::new(Parts {
        stores,
        preparer,
        invoker,
        receivers,
        settings: Settings {
            mode: config.durability.mode,
            inline: inline(config),
            pass: pass_settings(config),
            limits: field_limits(config),
            claim_window: config.deduplication.window.get(),
            idempotency_window: config.idempotency.window.get(),
        },
        clock: clock.clone(),
        random,
        metrics,
        traces,
    }))
}

/// Secrets are replaced wherever they are held, and who may call. The rest of the configuration needs a start.
async fn reload_on(mut hangup: Signal, reload: Reload, credentials: Arc<auth::Credentials>) {
    while hangup.recv().await.is_some() {
        let reload = Arc::clone(&reload);
        let read = tokio::task::spawn_blocking(move || (config::secret::reload_all(), reload())).await;
        let Ok((problems, config)) = read else { continue };
        for problem in problems {
            tracing::warn!(%problem, "a secret could not be read again; the one before stays");
        }
        match config {
            Ok(config) => match credentials.reload(&config.auth) {
                Ok(()) => tracing::info!("read secrets and the callers' credentials again"),
                Err(error) => tracing::error!(%error, "the callers' credentials stay as they were"),
            },
            Err(errors) => {
                for problem in errors.0 {
                    tracing::error!(%problem, "the configuration is refused; the callers' credentials stay as they were");
                }
            }
        }
    }
}

fn receivers(config: &Config, clock: &Clock, context: &transport::Context) -> anyhow::Result<Receivers> {
    let common = Common {
        keep_handled: config.durability.keep_handled.get(),
        lease: config.durability.inbox_stale_time(),
    };
    let build = |(name, receiver): (&String, &config::Receiver)| {
        let made = push::registry::build(receiver).map_err(|problems| {
            let (key, text) = problems.into_iter().next().unwrap_or(("format", String::new()));
            anyhow::anyhow!("receivers.{name}.{key}: {text}")
        })?;
        let proof = Proof::new(receiver.oidc.clone(), receiver.api_key.clone(), clock)
            .with_context(|| format!("receivers.{name}.oidc: no HTTP client"))?;
        Ok((name.clone(), Receiver::new(name, receiver.clone(), made, proof, &common)))
    };
    let all: Vec<_> = config.receivers.iter().map(build).collect::<anyhow::Result<_>>()?;
    let reach = transport::guard::Reach::Public;
    let client = transport::guard::Client::new(reach, Duration::from_secs(10), &context.proxies)
        .map_err(anyhow::Error::msg)?;
    Ok(Receivers::new(all, Documents::new(client.leaving_unresolved_to_proxies(), clock.clone())))
}

/// Every target that the configuration names.
pub fn targets(config: &Config) -> Vec<Target> {
    let destinations = config.destinations.keys().map(|name| Target::destination(name));
    destinations.chain(config.handlers.keys().map(|name| Target::handler(name))).collect()
}

fn transport_context(config: &Config, clock: &Clock, random: Random) -> anyhow::Result<transport::Context> {
    let connect = match config.durability.mode.is_serverless() {
        true => transport::Connect::WhenNeeded,
        false => transport::Connect::AtOnce,
    };
    let proxies = transport::guard::Proxies::from_env().map_err(anyhow::Error::msg)?;
    Ok(transport::Context { clock: clock.clone(), random, connect, proxies })
}

/// The handlers by name, as they are called by deliveries and invokes alike.
type Handlers = BTreeMap<String, Arc<transport::Handler>>;

fn build_handlers(config: &Config, context: &transport::Context) -> anyhow::Result<Handlers> {
    let max_reply_bytes = config.server.limits.body.bytes();
    let build = |(name, handler): (&String, &config::Handler)| {
        let built = transport::Handler::new(handler.clone(), max_reply_bytes, context);
        let built = built.map_err(|text| anyhow::anyhow!("handlers.{name}: {text}"))?;
        Ok((name.clone(), Arc::new(built)))
    };
    config.handlers.iter().map(build).collect()
}

fn handler_targets(
    config: &Config,
    handlers: &Handlers,
    cascade: &Arc<dyn Cascade>,
) -> anyhow::Result<Vec<TargetOptions>> {
    let target = |(name, transport): (&String, &Arc<transport::Handler>)| {
        let handler = &config.handlers[name];
        let deduplicate = handler
            .deduplication(config.deduplication.window)
            .map_err(|text| anyhow::anyhow!("handlers.{name}.deduplicate.from: {text}"))?;
        Ok(TargetOptions {
            target: Target::handler(name),
            timeout: handler.timeout.get(),
            lease: config.durability.inbox_stale_time(),
            stale: config.durability.inbox_stale_time(),
            max_in_flight: handler.concurrency as usize,
            pace: pace(handler.rate, config.durability.inbox_stale_time()),
            retry: config::destinations::Retry::from(handler.retry).into(),
            breaker: breaker_settings(handler.breaker),
            paused: false,
            order: handler.order(),
            transport: Arc::clone(transport) as transport::Shared,
            handler: Some(HandlerOptions {
                deduplicate,
                keep_handled: config.durability.keep_handled.get(),
                cascade: Arc::clone(cascade),
                policies: handler.on_error.iter().map(config::on_error::OnError::policy).collect(),
            }),
        })
    };
    handlers.iter().map(target).collect()
}

fn invoked(config: &Config, handlers: Handlers) -> BTreeMap<String, Invoked> {
    let invoked = |(name, transport): (String, Arc<transport::Handler>)| {
        let on_ambiguous = match config.handlers[&name].on_ambiguous {
            config::handlers::OnAmbiguous::Release => OnAmbiguous::Release,
            config::handlers::OnAmbiguous::Keep => OnAmbiguous::Keep,
        };
        (name, Invoked { transport, on_ambiguous })
    };
    handlers.into_iter().map(invoked).collect()
}

fn breaker_settings(breaker: config::destinations::Breaker) -> breaker::Settings {
    breaker::Settings { failures: breaker.failures, open: breaker.open.get() }
}

fn pace(rate: Option<config::Rate>, lease: Duration) -> Option<Arc<Pace>> {
    rate.and_then(|rate| Pace::new(rate.requests, rate.per.get(), lease)).map(Arc::new)
}

fn build_targets(config: &Config, context: &transport::Context) -> anyhow::Result<Vec<TargetOptions>> {
    let stale = config.durability.outbox_stale_time();
    config
        .destinations
        .iter()
        .map(|(name, destination)| {
            let timeout = destination.timeout.get();
            let common = transport::Common {
                timeout,
                format: match destination.format {
                    config::destinations::Format::Plain => Format::Plain,
                    config::destinations::Format::CloudEvents => Format::CloudEvents,
                },
                max_in_flight: destination.max_in_flight.map(|count| count as usize),
            };
            let settings = destination.settings.clone();
            let transport =
                transport::registry::build(name, &destination.transport, settings, &common, context)
                    .map_err(|error| anyhow::anyhow!("destinations.{name}.{}: {}", error.key, error.text))?;
            Ok(TargetOptions {
                target: Target::destination(name),
                timeout,
                lease: stale.max(timeout + LEASE_MARGIN),
                stale,
                max_in_flight: common.max_in_flight.unwrap_or_else(|| transport.default_in_flight()),
                pace: pace(destination.rate, stale.max(timeout + LEASE_MARGIN)),
                retry: destination.retry.into(),
                breaker: breaker_settings(destination.breaker),
                paused: destination.paused,
                order: destination.order(),
                transport,
                handler: None,
            })
        })
        .collect()
}

/// The destinations whose messages are sent before the answer, in the mode `balanced`.
fn inline(config: &Config) -> BTreeSet<Target> {
    let inline = (config.destinations.iter())
        .filter(|(_, destination)| destination.mode == Some(config::destinations::SendMode::Inline));
    inline.map(|(name, _)| Target::destination(name)).collect()
}

/// The bounds of durability passes.
pub(crate) fn pass_settings(config: &Config) -> gateway::pass::Settings {
    let durability = &config.durability;
    gateway::pass::Settings {
        duration: durability.pass_duration.get(),
        max_duration: durability.max_pass_duration.get(),
        batch_size: durability.batch_size,
        max_batch_size: durability.max_batch_size,
        retention: retention(config),
        intake_body_bytes: config.intake.enabled.then(|| config.server.limits.body.bytes()),
    }
}

fn retention(config: &Config) -> store::status::Retention {
    store::status::Retention {
        receipts: config.history.keep.get(),
        dead_letters: config.durability.keep_dead_letters.get(),
    }
}

fn engine_options(config: &Config) -> Options {
    let options = Options::default();
    let background = match config.durability.mode.is_serverless() {
        true => Background::Off,
        false => Background::On,
    };
    Options {
        background,
        memory_bytes: share(options.memory_bytes, config),
        purge_every: config.deduplication.cleanup_interval.get(),
        retention: retention(config),
        receipt: receipts(config),
        ..options
    }
}

fn receipts(config: &Config) -> Receipt {
    if config.history.keep.get().is_zero() { Receipt::Drop } else { Receipt::Keep }
}

/// The memory of all stores together is that of one, as far as each can still work with its share.
fn share(of_one: usize, config: &Config) -> usize {
    (of_one / config.stores.len().max(1)).max(8 << 20)
}

fn group_limits(config: &Config) -> group::Limits {
    let limits = group::Limits::default();
    group::Limits { queued_bytes: share(limits.queued_bytes, config), ..limits }
}

fn routing(config: &Config) -> Routing {
    let routes = config
        .routes
        .iter()
        .map(|route| Route { types: route.types.clone(), targets: route.destinations.clone() })
        .collect();
    Routing {
        table: Table::new(routes),
        destinations: Destinations::new(config.destinations.keys().map(String::as_str)),
        handlers: gateway::Handlers::new(
            config.handlers.iter().map(|(name, handler)| (name.as_str(), handler.types.clone())),
        ),
        ordered: ordered(config),
        unroutable: config.routing.unroutable,
    }
}

fn ordered(config: &Config) -> BTreeSet<Target> {
    let destinations = config.destinations.iter().filter(|(_, destination)| destination.ordered);
    let handlers = config.handlers.iter().filter(|(_, handler)| handler.ordered);
    let destinations = destinations.map(|(name, _)| Target::destination(name));
    destinations.chain(handlers.map(|(name, _)| Target::handler(name))).collect()
}

/// What is done with messages, but for telemetry: that of `serve` is not this one's.
pub(crate) fn preparer(config: &Config, random: Random) -> anyhow::Result<Preparer> {
    Ok(Preparer {
        routing: routing(config),
        messages: Messages::compile(config)
            .map_err(|problems| anyhow::anyhow!("{}", config::Errors(problems)))?,
        keeping: match config.durability.mode {
            Mode::Serverless => Keeping::Claims,
            Mode::Balanced | Mode::ServerlessWithOutbox => Keeping::Deliveries,
        },
        random,
        metrics: Metrics::new(None).map_err(anyhow::Error::msg)?,
        traces: Traces::default(),
    })
}

/// What a message's members may be.
pub fn field_limits(config: &Config) -> fields::Limits {
    let limits = &config.server.limits;
    fields::Limits {
        json_depth: usize::from(limits.json_depth),
        batch: limits.batch as usize,
        deliver_horizon: Some(limits.deliver_horizon.get()),
        ..fields::Limits::default()
    }
}
