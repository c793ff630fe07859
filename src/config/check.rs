//! What a type cannot say: limits, names that must be defined, combinations that cannot work.

pub(super) mod durability;
mod receivers;
mod stores;

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::destinations::{Breaker, OnDeadLetter, Retry};
use super::errors::{Problem, closest};
use super::identity::Messages;
use super::key::Key;
use super::load::Backends;
use super::messages::Deduplicate;
use super::on_error::{OnError, Then};
use super::read::unknown_key;
use super::{Config, Duration};
use crate::domain::grant::Grant;
use crate::domain::routing::Pattern;

/// No attempt takes longer.
const LONGEST_TIMEOUT: Duration = Duration::from_hours(24);
/// Of a schedule of attempts.
const MOST_DELAYS: usize = 100;
const LONGEST_DELAY: Duration = Duration::from_hours(24 * 365);

/// What a table names, whether or not its definition can be read.
#[derive(Debug)]
pub(super) struct Defined {
    destinations: BTreeSet<String>,
    routes: bool,
    handlers: BTreeSet<String>,
    credentials: bool,
}

impl Defined {
    pub fn of(table: &Table) -> Self {
        let filled = |value: Option<&Value>| match value {
            Some(Value::Table(table)) => !table.is_empty(),
            Some(Value::Array(array)) => !array.is_empty(),
            Some(_) => true,
            None => false,
        };
        let in_auth = |name| table.get("auth").and_then(|auth| auth.get(name));
        let names = |section: &str| match table.get(section) {
            Some(Value::Table(table)) => table.keys().cloned().collect(),
            _ => BTreeSet::new(),
        };
        Self {
            destinations: names("destinations"),
            routes: filled(table.get("routes")),
            handlers: names("handlers"),
            credentials: filled(in_auth("keys")) || filled(in_auth("jwt")),
        }
    }

    /// Neither a destination nor a route nor a handler: everything goes to `stdout`.
    pub fn routes_nothing(&self) -> bool {
        self.destinations.is_empty() && !self.routes && self.handlers.is_empty()
    }
}

/// Everything that is wrong. Decides, too, whether anonymous access is allowed where that was not said.
pub(super) fn check(config: &mut Config, defined: &Defined, backends: &dyn Backends) -> Vec<Problem> {
    let mut found = Found::default();
    found.server(config);
    found.stores(config, backends);
    found.durability(config);
    found.anonymous(config, defined);
    found.credentials(config, defined);
    found.destinations(config, backends);
    found.handlers(config);
    found.receivers(config, defined, backends);
    found.routes(config, defined);
    found.identity(config);
    found.intake(config);
    found.telemetry(config);
    found.0
}

#[derive(Default)]
struct Found(Vec<Problem>);

impl Found {
    fn add(&mut self, key: Key, text: impl Into<String>) {
        self.0.push(Problem::new(key, text));
    }

    fn positive(&mut self, key: Key, duration: Duration) {
        if duration.is_zero() {
            self.add(key, "must be longer than nothing");
        }
    }

    fn window(&mut self, key: &Key, window: Option<Duration>) {
        if let Some(window) = window {
            self.positive(key.name("window"), window);
        }
    }

    fn within<N: PartialOrd + std::fmt::Display>(&mut self, key: Key, number: N, least: N, most: N) {
        if number < least || number > most {
            self.add(key, format!("{number} is out of range: write {least} to {most}"));
        }
    }

    /// A name that a user gives, and that appears in answers, logs and metrics.
    fn name(&mut self, key: &Key, name: &str) {
        let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > 64 || !name.chars().all(sound) {
            self.add(key.clone(), "a name has 1 to 64 letters, digits, `-`, `_` and `.`");
        }
    }

    fn server(&mut self, config: &Config) {
        if config.server.admin_listen.is_some_and(|admin| admin == config.server.listen && admin.port() != 0)
        {
            self.add(
                Key::of(["server", "admin_listen"]),
                "is the address of `server.listen`: give it a port of its own",
            );
        }
        let limits = &config.server.limits;
        let key = Key::of(["server", "limits"]);
        let largest = 256 << 20;
        if limits.body.0 == 0 || limits.body.0 > largest {
            self.add(key.name("body"), format!("{} is out of range: write 1B to 256MiB", limits.body));
        }
        self.within(key.name("batch"), limits.batch, 1, 100_000);
        self.within(key.name("connections"), limits.connections, 1, 1_000_000);
        self.within(key.name("json_depth"), limits.json_depth, 1, 127);
        self.positive(key.name("header_timeout"), limits.header_timeout);
        self.positive(key.name("body_timeout"), limits.body_timeout);
        self.positive(key.name("deliver_horizon"), limits.deliver_horizon);
    }

    fn anonymous(&mut self, config: &mut Config, defined: &Defined) {
        let loopback = config.server.listen.ip().to_canonical().is_loopback();
        config.auth.anonymous = Some(match (config.auth.anonymous, defined.credentials) {
            (Some(false), false) => {
                self.add(
                    Key::of(["auth", "anonymous"]),
                    "nobody could call: without anonymous access, add `[auth.keys.NAME]` or `[auth.jwt]`",
                );
                false
            }
            (Some(said), _) => said,
            (None, true) => false,
            (None, false) if loopback => true,
            (None, false) => {
                self.add(
                    Key::of(["server", "listen"]),
                    format!(
                        "{} can be reached from other machines, where everybody could do everything: \
                         add `[auth.keys.NAME]` or `[auth.jwt]`, listen on 127.0.0.1, or say `auth.anonymous = true`",
                        config.server.listen
                    ),
                );
                false
            }
        });
    }

    fn credentials(&mut self, config: &Config, defined: &Defined) {
        let keys = Key::of(["auth", "keys"]);
        let mut seen: BTreeMap<String, &str> = BTreeMap::new();
        for (name, api_key) in &config.auth.keys {
            let key = keys.name(name);
            self.name(&key, name);
            self.grants(&key.name("grants"), &api_key.grants, defined);
            if api_key.secrets.is_empty() || api_key.secrets.len() > 2 {
                self.add(key.name("secrets"), "holds one secret, or two while one is being replaced");
            }
            if let Some(tenant) = &api_key.tenant
                && !is_tenant(tenant)
            {
                self.add(key.name("tenant"), "is 1 to 255 printable characters; leave it out for none");
            }
            for (index, secret) in api_key.secrets.iter().enumerate() {
                let place = key.name("secrets").index(index);
                let secret = secret.expose();
                if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
                    self.add(
                        place.clone(),
                        "cannot be sent in a header: use visible ASCII characters without spaces",
                    );
                }
                match seen.insert((*secret).clone(), name) {
                    Some(other) if other != name => {
                        self.add(
                            place,
                            format!("is also the secret of `{other}`: each caller needs its own"),
                        );
                    }
                    _ => {}
                }
            }
        }
        let Some(jwt) = &config.auth.jwt else { return };
        let key = Key::of(["auth", "jwt"]);
        for (name, value) in
            [("issuer", &jwt.issuer), ("audience", &jwt.audience), ("grants_claim", &jwt.grants_claim)]
        {
            if value.is_empty() {
                self.add(key.name(name), "must not be empty");
            }
        }
        self.grants(&key.name("grants"), &jwt.grants, defined);
        if *jwt.leeway > std::time::Duration::from_secs(600) {
            self.add(
                key.name("leeway"),
                "is at most 10m: a longer one would honour tokens that are long expired",
            );
        }
        if let Some(problem) = super::auth::key_set_problem(&jwt.jwks) {
            self.add(key.name("jwks"), problem);
        }
    }

    fn grants(&mut self, key: &Key, grants: &[Grant], defined: &Defined) {
        for (index, grant) in grants.iter().enumerate() {
            if let Grant::Publish { destinations: Some(Pattern::Exact(name)), .. } = grant {
                self.destination(key.index(index), name, defined);
            }
        }
    }

    /// A destination that something names.
    fn destination(&mut self, key: Key, name: &str, defined: &Defined) {
        if defined.destinations.contains(name) || (defined.routes_nothing() && name == "stdout") {
            return;
        }
        let known = defined.destinations.iter().map(String::as_str);
        self.add(
            key,
            match closest(name, known) {
                Some(meant) => format!("there is no destination `{name}`; did you mean `{meant}`?"),
                None => format!(
                    "there is no destination `{name}`: add `[destinations.{}]`",
                    super::key::quoted(name)
                ),
            },
        );
    }

    fn destinations(&mut self, config: &Config, backends: &dyn Backends) {
        let transports = backends.transports();
        for (name, destination) in &config.destinations {
            let key = Key::of(["destinations", name]);
            self.name(&key, name);
            self.timeout(&key, destination.timeout);
            if let Some(number) = destination.max_in_flight {
                self.within(key.name("max_in_flight"), number, 1, 10_000);
            }
            self.order(&key, destination.ordered, destination.on_dead_letter);
            self.patience(&key, &destination.retry, &destination.breaker);

            if !transports.contains(&destination.transport.as_str()) {
                let text = match closest(&destination.transport, transports.iter().copied()) {
                    Some(meant) => {
                        format!("there is no transport `{}`; did you mean `{meant}`?", destination.transport)
                    }
                    None => format!(
                        "there is no transport `{}`; there are {}",
                        destination.transport,
                        listed(transports.iter().copied(), "")
                    ),
                };
                self.add(key.name("transport"), text);
            } else if let Err((below, text)) = backends.check(destination) {
                let text = match super::read::between(&text, "unknown field `", "`") {
                    Some(name) => unknown_key(name, &text),
                    None => text,
                };
                self.add(key.dotted(&below), text);
            }
        }
    }

    fn timeout(&mut self, key: &Key, timeout: Duration) {
        self.positive(key.name("timeout"), timeout);
        if timeout > LONGEST_TIMEOUT {
            self.add(key.name("timeout"), format!("is at most {LONGEST_TIMEOUT}"));
        }
    }

    fn order(&mut self, key: &Key, ordered: bool, on_dead_letter: OnDeadLetter) {
        if !ordered && on_dead_letter == OnDeadLetter::Block {
            let text = "needs `ordered = true`: without an order no message waits for another";
            self.add(key.name("on_dead_letter"), text);
        }
    }

    fn patience(&mut self, key: &Key, retry: &Retry, breaker: &Breaker) {
        let retry_key = key.name("retry");
        self.within(retry_key.name("max_attempts"), retry.max_attempts, 1, 1_000_000);
        self.positive(retry_key.name("initial"), retry.initial);
        if retry.max < retry.initial {
            self.add(retry_key.name("max"), format!("is shorter than `initial` ({})", retry.initial));
        }
        self.within(key.name("breaker").name("failures"), breaker.failures, 1, 1_000_000);
        self.positive(key.name("breaker").name("open"), breaker.open);
    }

    fn handlers(&mut self, config: &Config) {
        for (name, handler) in &config.handlers {
            let key = Key::of(["handlers", name]);
            self.name(&key, name);
            if handler.types.is_empty() {
                self.add(key.name("types"), "names no type: write [\"*\"] for all");
            }
            if let Err(text) = handler.url() {
                self.add(key.name("url"), text);
            }
            if let Err(text) = handler.keys() {
                self.add(key.name("secret"), text);
            }
            self.timeout(&key, handler.timeout);
            self.order(&key, handler.ordered, handler.on_dead_letter);
            self.patience(&key, &handler.retry.into(), &handler.breaker);
            self.within(key.name("concurrency"), handler.concurrency, 1, 10_000);
            self.on_error(&key, &handler.on_error);
            if let Some(deduplicate) = &handler.deduplicate {
                let key = key.name("deduplicate");
                self.window(&key, deduplicate.window);
                if let Err(text) = deduplicate.from.compile() {
                    self.add(key.name("from"), text);
                }
            }
        }
    }

    fn on_error(&mut self, key: &Key, policies: &[OnError]) {
        for (index, policy) in policies.iter().enumerate() {
            let key = key.name("on_error").index(index);
            if policy.kinds.is_empty() {
                self.add(key.name("kinds"), "names no kind of failure: write [\"*\"] for all");
            }
            let delays = policy.retry.iter().flat_map(|delays| &delays.0);
            if delays.clone().count() > MOST_DELAYS || delays.clone().any(|delay| *delay > LONGEST_DELAY) {
                self.add(
                    key.name("retry"),
                    format!("is at most {MOST_DELAYS} waits of at most {LONGEST_DELAY} each"),
                );
            }
            if let Some(pause_for) = policy.pause_for {
                self.positive(key.name("pause_for"), pause_for);
                if policy.then != Then::Pause {
                    self.add(
                        key.name("pause_for"),
                        "says how long `then = \"pause\"` pauses: say that, too, or leave it out",
                    );
                }
            }
        }
    }

    fn routes(&mut self, config: &Config, defined: &Defined) {
        if !defined.destinations.is_empty() && !defined.routes {
            let some = defined.destinations.iter().next().map_or("NAME", String::as_str);
            self.add(
                Key::of(["routes"]),
                format!(
                    "there are destinations, but no route to them: add `[[routes]]` with `types = [\"*\"]` and \
                     `destinations = [{some:?}]`"
                ),
            );
        }
        for (index, route) in config.routes.iter().enumerate() {
            let key = Key::of(["routes"]).index(index);
            if route.types.is_empty() {
                self.add(key.name("types"), "names no type: write [\"*\"] for all");
            }
            if route.destinations.is_empty() {
                self.add(key.name("destinations"), "names no destination");
            }
            for (place, name) in route.destinations.iter().enumerate() {
                self.destination(key.name("destinations").index(place), name, defined);
            }
        }
    }

    fn identity(&mut self, config: &Config) {
        if let Err(problems) = Messages::compile(config) {
            self.0.extend(problems);
        }
        for (name, message) in &config.messages {
            let key = Key::of(["messages", name]);
            if !matches!(name.parse(), Ok(Pattern::Exact(_))) {
                self.add(key.clone(), "names one type exactly; patterns stand in routes, rules and policies");
            }
            if message.deduplication_identity.as_deref() == Some("") {
                self.add(key.name("deduplication_identity"), "is empty: leave it out");
            }
            if let Some(Deduplicate { window, .. }) = message.deduplicate {
                self.window(&key.name("deduplicate"), window);
            }
        }
        let deduplication = &config.deduplication;
        let key = Key::of(["deduplication"]);
        self.positive(key.name("window"), deduplication.window);
        self.positive(key.name("cleanup_interval"), deduplication.cleanup_interval);
        for (index, rule) in deduplication.rules.iter().enumerate() {
            let key = key.name("rules").index(index);
            match (&rule.template, &rule.members_named) {
                (Some(_), Some(_)) => {
                    self.add(key.name("members_named"), "stands instead of `template`: keep one of them");
                }
                (None, None) => self.add(key.clone(), "needs `template` or `members_named`"),
                (Some(_), None) if rule.types.is_none() => {
                    self.add(key.name("types"), "is needed with a `template`; write [\"*\"] for every type");
                }
                (None, Some(names)) if names.is_empty() || names.iter().any(String::is_empty) => {
                    self.add(key.name("members_named"), "needs names of members");
                }
                _ => {}
            }
            if rule.types.as_ref().is_some_and(Vec::is_empty) {
                self.add(key.name("types"), "names no type: write [\"*\"] for all");
            }
        }
        for (index, policy) in deduplication.policies.iter().enumerate() {
            let key = key.name("policies").index(index);
            if policy.types.is_empty() {
                self.add(key.name("types"), "names no type: write [\"*\"] for all");
            }
            self.window(&key, policy.window);
        }
        let key = Key::of(["idempotency"]);
        self.positive(key.name("window"), config.idempotency.window);
        let least = Duration::from_secs(1);
        if config.idempotency.lease < least {
            self.add(key.name("lease"), format!("is at least {least}"));
        }
        if config.idempotency.max_response.0 > 64 << 20 {
            self.add(key.name("max_response"), "is at most 64MiB");
        }
    }

    fn telemetry(&mut self, config: &Config) {
        let key = Key::of(["telemetry"]);
        if let Err(error) = tracing_subscriber::EnvFilter::builder().parse(&config.telemetry.log_level) {
            self.add(
                key.name("log_level"),
                format!("{error}: write error, warn, info, debug, trace, or directives such as `info,oncegate=debug`"),
            );
        }
        if let Some(url) = &config.telemetry.otlp_endpoint
            && !matches!(url.scheme(), "http" | "https")
        {
            self.add(key.name("otlp_endpoint"), "must be an `http:` or `https:` URL");
        }
    }
}

fn listed<'a>(names: impl IntoIterator<Item = &'a str>, after: &str) -> String {
    names.into_iter().map(|name| format!("`{name}{after}`")).collect::<Vec<_>>().join(", ")
}

fn is_tenant(name: &str) -> bool {
    !name.is_empty() && name.len() <= 255 && !name.chars().any(char::is_control)
}
