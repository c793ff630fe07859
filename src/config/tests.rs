//! Loading, as a user meets it: a file, the environment, and what is said about mistakes.

use std::path::Path;

use schemars::{Schema, SchemaGenerator};

use super::destinations::OnDeadLetter;
use super::load::{Backends, Format, parse};
use super::{Config, Destination, Duration, Errors, Receiver};
use crate::domain::grant::Grant;

/// A transport `stdout` without settings, and `post` that needs a `url`.
struct Few;

impl Backends for Few {
    fn engines(&self) -> Vec<&'static str> {
        vec!["sqlite", "postgres"]
    }

    fn transports(&self) -> Vec<&'static str> {
        vec!["stdout", "post"]
    }

    fn check(&self, destination: &Destination) -> Result<(), (String, String)> {
        let known = if destination.transport == "post" { "url" } else { "" };
        for name in destination.settings.keys() {
            if name != known {
                return Err((name.clone(), format!("unknown field `{name}`, expected `{known}`")));
            }
        }
        if !known.is_empty() && !destination.settings.contains_key(known) {
            return Err((known.to_owned(), "is missing".to_owned()));
        }
        Ok(())
    }

    fn formats(&self) -> Vec<Format> {
        vec![
            Format { name: "hook", keys: &["secrets"], needs: &[] },
            Format { name: "queue", keys: &["unwrapped", "sources"], needs: &["type", "authorize"] },
        ]
    }

    fn check_receiver(&self, receiver: &Receiver) -> Vec<(&'static str, String)> {
        let wrong = receiver.format == "hook" && receiver.unwrapped.is_some();
        if wrong { vec![("unwrapped", "means nothing here".to_owned())] } else { Vec::new() }
    }

    fn schemas(&self, _: &mut SchemaGenerator) -> Vec<(&'static str, Schema)> {
        let post = schemars::json_schema!({
            "type": "object",
            "properties": { "url": { "description": "Where to.", "type": "string", "examples": ["https://x/"] } },
            "required": ["url"],
            "additionalProperties": false,
        });
        let stdout =
            schemars::json_schema!({ "type": "object", "properties": {}, "additionalProperties": false });
        vec![("stdout", stdout), ("post", post)]
    }
}

fn load_with(text: &str, variables: &[(&str, &str)]) -> Result<Config, Errors> {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    parse(Some((Path::new("x.toml"), text)), variables, &Few)
}

fn load(text: &str) -> Result<Config, Errors> {
    load_with(text, &[])
}

/// That loading `text` says exactly these lines (each up to the length given).
#[track_caller]
fn says(text: &str, expected: &[&str]) {
    let errors = load(text).expect_err("refused").to_string();
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{errors}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "expected {expected:?} in:\n{errors}");
    }
}

const SHOP: &str = "[auth.keys.shop]\nsecrets = [\"0123456789abcdef\"]\ngrants = [\"publish:*\"]\n";

#[test]
fn without_a_file_everything_goes_to_stdout_on_loopback() {
    let config = parse(None, [], &Few).unwrap();
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.stores["main"].url.expose().as_str(), "sqlite:oncegate-data/oncegate.db");
    assert_eq!(config.auth.anonymous, Some(true));
    assert_eq!(config.destinations["stdout"].transport, "stdout");
    assert!(config.routes[0].types[0].matches("any.thing"));
    assert_eq!(config.routes[0].destinations, ["stdout"]);
}

#[test]
fn an_empty_file_is_as_good_as_none() {
    let config = load("").unwrap();
    assert_eq!(config.auth.anonymous, Some(true));
    assert!(config.destinations.contains_key("stdout"));
}

#[test]
fn the_defaults_are_the_documented_ones() {
    let config =
        load("[destinations.a]\ntransport = \"stdout\"\n[[routes]]\ntypes = [\"*\"]\ndestinations = [\"a\"]")
            .unwrap();
    let destination = &config.destinations["a"];
    assert_eq!(destination.timeout, Duration::from_secs(15));
    assert_eq!(destination.retry.max_attempts, 20);
    assert_eq!(destination.retry.initial, Duration::from_secs(1));
    assert_eq!(destination.retry.max, Duration::from_hours(1));
    assert_eq!(destination.breaker.failures, 5);
    assert_eq!(destination.breaker.open, Duration::from_secs(30));
    assert_eq!(config.durability.outbox_stale_time(), std::time::Duration::from_secs(15));
    assert_eq!(config.durability.keep_dead_letters, Duration::from_hours(30 * 24));
    assert_eq!(config.history.keep, Duration::from_hours(24));
    assert_eq!(config.idempotency.window, Duration::from_hours(24));
    assert_eq!(config.deduplication.window, Duration::from_hours(24));
    assert_eq!(config.server.limits.body.bytes(), 1 << 20);
    assert_eq!(config.server.limits.batch, 1000);
    assert!(!config.destinations.contains_key("stdout"));
}

#[test]
fn a_whole_file_is_read() {
    let config = load(
        r#"
        [auth.keys.shop]
        secrets = ["0123456789abcdef", "fedcba9876543210"]
        tenant = "acme"
        grants = ["publish:order.*", "operate:read", "publish:*@orders"]
        [destinations.orders]
        transport = "post"
        timeout = "PT2S"
        retry = { max_attempts = 3 }
        url = "https://example.com"
        [[routes]]
        types = ["order.*"]
        destinations = ["orders"]
        [messages."order.created"]
        deduplicate = { window = "7d", on_duplicate = "conflict", scope = "store" }
        idempotency = "required"
        [[deduplication.rules]]
        members_named = ["IdempotencyKey"]
        [[deduplication.policies]]
        types = ["a.*"]
        "#,
    )
    .unwrap();
    assert_eq!(config.auth.anonymous, Some(false));
    assert_eq!(config.auth.keys["shop"].grants[1], Grant::OperateRead);
    let orders = &config.destinations["orders"];
    assert_eq!((orders.timeout, orders.retry.max_attempts), (Duration::from_secs(2), 3));
    assert_eq!(orders.settings["url"].as_str(), Some("https://example.com"));
    assert_eq!(orders.settings.len(), 1);
    let deduplicate = config.messages["order.created"].deduplicate.as_ref().unwrap();
    assert!(deduplicate.required);
    assert_eq!(deduplicate.window, Some(Duration::from_hours(7 * 24)));
    assert!(config.deduplication.policies[0].required);
}

#[test]
fn unknown_keys_are_refused_by_their_whole_name_and_line() {
    says(
        "[server]\nlisen = \"x\"",
        &["x.toml:2: server.lisen: there is no such key; did you mean `listen`?"],
    );
    says("\n[sever]\n", &["x.toml:2: sever: there is no such key; did you mean `server`?"]);
    says(
        "[server.limits]\ncolour = 1",
        &["x.toml:2: server.limits.colour: there is no such key; here may stand body, "],
    );
    says(
        "[destinations.orders]\ntransport = \"post\"\nurl = \"x\"\ncolour = \"red\"\n[[routes]]\ntypes = [\"*\"]\ndestinations = [\"orders\"]",
        &["x.toml:4: destinations.orders.colour: there is no such key"],
    );
    says(
        "[destinations.orders]\ntransport = \"stdout\"\nretry = { max_attemps = 3 }\n[[routes]]\ntypes = [\"*\"]\ndestinations = [\"orders\"]",
        &[
            "x.toml:3: destinations.orders.retry.max_attemps: there is no such key; did you mean `max_attempts`?",
        ],
    );
}

#[test]
fn every_mistake_is_told_at_once() {
    says(
        r#"[server]
listen = "nonsense"
drain_timeout = 30
[destinations.orders]
timeout = "0s"
[destinations.bills]
transport = "psot"
format = "xml"
[[routes]]
types = ["a*b", "x"]
destinations = ["orders"]
[[routes]]
typos = []
[[routes]]
types = ["y"]
destinations = ["order", "bills"]
[auth.keys.shop]
secrets = []
grants = ["admin", "publish:*@nowhere"]
[durability]
mode = "severless"
"#,
        &[
            "x.toml:2: server.listen: invalid socket address",
            "x.toml:3: server.drain_timeout: 30 has no unit: write \"30s\"",
            "x.toml:4: destinations.orders.transport: is missing",
            "x.toml:7: destinations.bills.transport: there is no transport `psot`; did you mean `post`?",
            "x.toml:8: destinations.bills.format: `xml` is not one of plain, cloudevents",
            "x.toml:10: routes[0].types[0]: `a*b` is not a pattern",
            "x.toml:12: routes[1].types: is missing",
            "x.toml:13: routes[1].typos: there is no such key; did you mean `types`?",
            "x.toml:16: routes[2].destinations[0]: there is no destination `order`; did you mean `orders`?",
            "x.toml:18: auth.keys.shop.secrets: holds one secret",
            "x.toml:19: auth.keys.shop.grants[0]: `admin` is not a grant",
            "x.toml:19: auth.keys.shop.grants[1]: there is no destination `nowhere`",
            "x.toml:21: durability.mode: `severless` is not one of balanced, serverless, serverless-with-outbox",
        ],
    );
}

#[test]
fn a_syntax_error_has_its_line() {
    says("[server]\nlisten = \n", &["x.toml:2: not TOML: "]);
}

#[test]
fn listening_to_others_needs_a_decision() {
    let open = "[server]\nlisten = \"0.0.0.0:80\"\n";
    says(open, &["x.toml:2: server.listen: 0.0.0.0:80 can be reached from other machines"]);
    says("[server]\nlisten = \"[::ffff:1.2.3.4]:80\"\n", &["x.toml:2: server.listen: "]);
    assert_eq!(load(&format!("{open}[auth]\nanonymous = true")).unwrap().auth.anonymous, Some(true));
    assert_eq!(load(&format!("{open}{SHOP}")).unwrap().auth.anonymous, Some(false));
    assert_eq!(load("[server]\nlisten = \"[::1]:80\"").unwrap().auth.anonymous, Some(true));
    assert_eq!(load(SHOP).unwrap().auth.anonymous, Some(false));
    says("[auth]\nanonymous = false", &["x.toml:2: auth.anonymous: nobody could call"]);
    // A mistake in a key does not count as none at all.
    says(&format!("{open}[auth.keys.a]\nsecrets = [\"xyz\"]"), &["x.toml:3: auth.keys.a.grants: is missing"]);
}

#[test]
fn what_cannot_work_is_refused() {
    let route =
        "[[routes]]\ntypes = [\"*\"]\ndestinations = [\"a\"]\n[destinations.a]\ntransport = \"stdout\"\n";
    let with = |lines: &str| format!("{route}{lines}");
    says(&with("timeout = \"0s\""), &["x.toml:6: destinations.a.timeout: must be longer than nothing"]);
    says(&with("max_in_flight = 0"), &["x.toml:6: destinations.a.max_in_flight: 0 is out of range"]);
    says(
        &with("retry.max_attempts = 0"),
        &["x.toml:6: destinations.a.retry.max_attempts: 0 is out of range"],
    );
    says(
        &with("retry = { initial = \"2s\", max = \"1s\" }"),
        &["x.toml:6: destinations.a.retry.max: is shorter"],
    );
    says(&with("breaker.failures = 0"), &["x.toml:6: destinations.a.breaker.failures: 0 is out of range"]);
    says(
        "[destinations.a]\ntransport = \"stdout\"",
        &["x.toml: routes: there are destinations, but no route to them"],
    );
    says(
        "[[routes]]\ntypes = [\"*\"]\ndestinations = [\"a\"]",
        &["x.toml:3: routes[0].destinations[0]: there is no destination `a`: add `[destinations.a]`"],
    );
    says("[server.limits]\nbody = 0", &["x.toml:2: server.limits.body: "]);
    says("[server.limits]\njson_depth = 128", &["x.toml:2: server.limits.json_depth: 128 is out of range"]);
    says("[server.limits]\nheader_timeout = \"0s\"", &["x.toml:2: server.limits.header_timeout: "]);
    says(
        "[stores.main]\nurl = \"mysql://u:topsecret@h/d\"",
        &["x.toml:2: stores.main.url: there is no store `mysql:`; a URL begins with `sqlite:`, `postgres:`"],
    );
    says(
        "[stores.main]\nurl = \"topsecret\"",
        &["x.toml:2: stores.main.url: is not a URL; it begins with `sqlite:`"],
    );
    says(
        "[stores.\"a b\"]\nurl = \"sqlite:x\"\ntenants = [\"t\"]",
        &["x.toml:1: stores.\"a b\": a name has"],
    );
    says("[stores.b]\nurl = \"sqlite:x\"", &["x.toml:1: stores.b.tenants: names no tenant"]);
    says(
        "[stores.b]\nurl = \"sqlite:x\"\ntenants = [\"t\"]\n[stores.c]\nurl = \"sqlite:y\"\ntenants = [\"u\", \"t\"]",
        &["x.toml:6: stores.c.tenants[1]: `t` is in `stores.b.tenants` as well"],
    );
    says(
        "[stores.b]\nurl = \"sqlite:x\"\ntenants = [\"t\", \"t\", \"\"]",
        &[
            "x.toml:3: stores.b.tenants[1]: `t` stands in this list twice",
            "x.toml:3: stores.b.tenants[2]: is 1 to 255 printable characters",
        ],
    );
    says(
        "[stores.main]\nurl = \"sqlite:x\"\n[stores.b]\nurl = \"sqlite://./x\"\ntenants = [\"t\"]",
        &["x.toml:4: stores.b.url: is that of `stores.main` as well: each store needs a database of its own"],
    );
    says("[stores.b]\ntenants = [\"t\"]", &["x.toml:1: stores.b.url: is that of `stores.main` as well"]);
    says("[messages.\"a.*\"]", &["x.toml:1: messages.\"a.*\": names one type exactly"]);
    says(
        "[messages.a]\nschema = \"none.json\"",
        &["x.toml:2: messages.a.schema: `none.json` cannot be read"],
    );
    says("[messages.a]\ndeduplicate = { window = \"0s\" }", &["x.toml:2: messages.a.deduplicate.window: "]);
    says(
        "[[deduplication.rules]]\ntemplate = \"{a}\"",
        &["x.toml:1: deduplication.rules[0].types: is needed"],
    );
    says("[[deduplication.rules]]\ntypes = [\"*\"]", &["x.toml:1: deduplication.rules[0]: needs `template`"]);
    says(
        "[[deduplication.policies]]\nwindow = \"1h\"",
        &["x.toml:1: deduplication.policies[0].types: is missing"],
    );
    says("[telemetry]\nlog_level = \"loud=very\"", &["x.toml:2: telemetry.log_level: "]);
    says(
        &format!("{SHOP}[auth.keys.other]\nsecrets = [\"0123456789abcdef\"]\ngrants = []"),
        &["x.toml:2: auth.keys.shop.secrets[0]: is also the secret of `other`"],
    );
}

#[test]
fn what_follows_from_a_mistake_is_not_told_as_well() {
    says(
        "[destinations.a]\ntransport = 7\n[[routes]]\ntypes = [\"*\"]\ndestinations = [\"a\"]",
        &["x.toml:2: destinations.a.transport: invalid type: integer `7`, expected a string"],
    );
}

#[test]
fn tokens_are_configured_safely() {
    let jwt = |jwks: &str| format!("[auth.jwt]\nissuer = \"i\"\naudience = \"a\"\njwks = \"{jwks}\"");
    assert!(load(&jwt("https://id.example.com/jwks")).is_ok());
    assert!(load(&jwt("http://127.0.0.1:1/jwks")).is_ok());
    says(&jwt("http://id.example.com/jwks"), &["x.toml:4: auth.jwt.jwks: keys may only come over `https:`"]);
    says(&jwt("ftp://id.example.com/jwks"), &["x.toml:4: auth.jwt.jwks: is neither"]);
    says(&jwt("none.json"), &["x.toml:4: auth.jwt.jwks: the file `none.json` cannot be read"]);
}

#[test]
fn the_environment_goes_over_the_file() {
    let config = load_with(
        "[server]\nlisten = \"127.0.0.1:1\"",
        &[
            ("ONCEGATE__SERVER__LISTEN", "127.0.0.1:2"),
            ("ONCEGATE__SERVER__LIMITS__BATCH", "7"),
            ("ONCEGATE__TELEMETRY__LOG_LEVEL", "debug"),
            ("ONCEGATE__AUTH__KEYS__SHOP__SECRETS", "[\"0123456789\"]"),
            ("ONCEGATE__AUTH__KEYS__SHOP__GRANTS", "[\"publish:*\"]"),
            // A number where a text is wanted is a text.
            ("ONCEGATE__AUTH__KEYS__SHOP__TENANT", "42"),
        ],
    )
    .unwrap();
    assert_eq!(config.server.listen.port(), 2);
    assert_eq!(config.server.limits.batch, 7);
    assert_eq!(config.telemetry.log_level, "debug");
    assert_eq!(config.auth.keys["shop"].tenant.as_deref(), Some("42"));
    assert_eq!(config.auth.keys["shop"].secrets[0].expose().as_str(), "0123456789");
}

#[test]
fn a_mistake_in_the_environment_names_the_variable() {
    let errors = load_with("", &[("ONCEGATE__SERVER__COLOUR", "red"), ("ONCEGATE__HISTORY__KEEP", "5")])
        .unwrap_err()
        .to_string();
    assert!(errors.contains("ONCEGATE__SERVER__COLOUR: server.colour: there is no such key"), "{errors}");
    assert!(errors.contains("ONCEGATE__HISTORY__KEEP: history.keep: "), "{errors}");
}

#[test]
fn dead_letters_block_ordered_targets_only() {
    let config = load(
        r#"
        [destinations.a]
        transport = "stdout"
        ordered = true
        [destinations.b]
        transport = "stdout"
        ordered = true
        on_dead_letter = "block"
        [destinations.c]
        transport = "stdout"
        [[routes]]
        types = ["*"]
        destinations = ["a", "b", "c"]
        [handlers.h]
        types = ["*"]
        url = "http://h"
        ordered = true
        on_dead_letter = "continue"
        "#,
    )
    .unwrap();
    let orders = ["a", "b", "c"].map(|name| config.destinations[name].order());
    assert_eq!(orders, [Some(OnDeadLetter::Continue), Some(OnDeadLetter::Block), None]);
    assert_eq!(config.handlers["h"].order(), Some(OnDeadLetter::Continue));
    let errors = load(
        r#"
        [destinations.a]
        transport = "stdout"
        on_dead_letter = "block"
        [[routes]]
        types = ["*"]
        destinations = ["a"]
        [handlers.h]
        types = ["*"]
        url = "http://h"
        on_dead_letter = "block"
        "#,
    )
    .unwrap_err()
    .to_string();
    assert!(errors.contains("destinations.a.on_dead_letter: needs `ordered = true`"), "{errors}");
    assert!(errors.contains("handlers.h.on_dead_letter: needs `ordered = true`"), "{errors}");
}

#[test]
fn a_configuration_prints_no_secret() {
    let config = load("[stores.main]\nurl = \"postgres://u:hunter2@h/d\"\n[auth.keys.a]\nsecrets = [\"hunter2-and-more\"]\ngrants = []").unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(!toml::to_string(&config).unwrap().contains("hunter2"));
}

/// The example with every key set: `#key = …` and `#[header]` without their `#`.
fn everything(example: &str) -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(key) if key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '[' || c == '"') => {
            key.to_owned()
        }
        _ => line.to_owned(),
    };
    example.lines().map(|text| line(text) + "\n").collect()
}

#[test]
fn the_example_is_the_defaults() {
    let example = super::example(&Few);
    let config = load(&example).unwrap();
    assert_eq!(toml::to_string(&config).unwrap(), toml::to_string(&load("").unwrap()).unwrap());
}

#[test]
fn the_example_shows_every_key() {
    let schema = super::schema(&Few);
    let example = everything(&super::example(&Few));
    let table: toml::Table = example.parse().unwrap_or_else(|error| panic!("{error}\n{example}"));
    for key in super::schema::keys(&schema) {
        let parts: Vec<&str> = key.split('.').collect();
        assert!(occurs(&toml::Value::Table(table.clone()), &parts), "{key} is missing in\n{example}");
    }
}

fn occurs(value: &toml::Value, parts: &[&str]) -> bool {
    let Some((first, rest)) = parts.split_first() else { return true };
    match value {
        toml::Value::Table(table) if *first == "*" => table.values().any(|value| occurs(value, rest)),
        toml::Value::Array(array) if *first == "*" => array.iter().any(|value| occurs(value, rest)),
        toml::Value::Table(table) => table.get(*first).is_some_and(|value| occurs(value, rest)),
        _ => false,
    }
}

#[test]
fn the_example_with_every_key_set_is_accepted() {
    let folder = std::env::temp_dir().join(format!("oncegate-example-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("schemas")).unwrap();
    std::fs::write(folder.join("schemas/order-created.json"), "{}").unwrap();
    let text = everything(&super::example(&Few));
    let loaded = parse(Some((&folder.join("x.toml"), &text)), [], &Few);
    std::fs::remove_dir_all(&folder).unwrap();
    let config = loaded.unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    assert!(config.auth.jwt.is_some() && config.destinations.len() == 2);
}

#[test]
fn the_schema_accepts_the_example_and_refuses_what_loading_refuses() {
    let schema = super::schema(&Few);
    let validator = jsonschema::validator_for(&schema).unwrap();
    let json = |text: &str| serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
    let example = json(&everything(&super::example(&Few)));
    let errors: Vec<String> =
        validator.iter_errors(&example).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    assert!(validator.is_valid(&json("")));
    for wrong in [
        "sever = {}",
        "[server]\nlisen = \"x\"",
        "[server]\ndrain_timeout = 30",
        "[destinations.a]\ntransport = \"psot\"",
        "[destinations.a]\ntransport = \"stdout\"\nurl = \"x\"",
        "[destinations.a]\ntransport = \"post\"",
        "[durability]\nmode = \"severless\"",
    ] {
        assert!(!validator.is_valid(&json(wrong)), "{wrong}");
    }
}
