//! `[durability]` and `[endpoints]`: what fits which mode.

use super::Found;
use crate::config::destinations::SendMode;
use crate::config::durability::{LONGEST_PASS, MOST_ROWS, Mode};
use crate::config::key::Key;
use crate::config::{Config, Duration};

impl Found {
    pub(super) fn durability(&mut self, config: &Config) {
        let key = Key::of(["durability"]);
        let durability = &config.durability;
        if let Some(stale) = durability.outbox_stale_time {
            self.positive(key.name("outbox_stale_time"), stale);
        }
        let least = Duration::from_secs(1);
        if durability.inbox_stale_time.is_some_and(|stale| stale < least) {
            self.add(key.name("inbox_stale_time"), format!("is at least {least}"));
        }
        self.positive(key.name("keep_handled"), durability.keep_handled);
        self.positive(key.name("keep_dead_letters"), durability.keep_dead_letters);
        self.within(key.name("max_batch_size"), durability.max_batch_size, 1, MOST_ROWS);
        self.within(key.name("batch_size"), durability.batch_size, 1, durability.max_batch_size);
        let shortest = Duration::from_secs(1);
        self.within(key.name("max_pass_duration"), durability.max_pass_duration, shortest, LONGEST_PASS);
        self.within(
            key.name("pass_duration"),
            durability.pass_duration,
            shortest,
            durability.max_pass_duration,
        );
        self.in_mode(config);
    }

    /// What cannot work in the mode.
    fn in_mode(&mut self, config: &Config) {
        let mode = config.durability.mode;
        for (name, destination) in &config.destinations {
            if destination.ordered && destination.mode == Some(SendMode::Inline) && mode == Mode::Balanced {
                self.add(
                    Key::of(["destinations", name, "mode"]),
                    "what is sent inline waits for no other message: `ordered = true` needs the outbox",
                );
            }
        }
        if mode == Mode::ServerlessWithOutbox && config.endpoints.durability.is_none() {
            self.add(
                Key::of(["endpoints", "durability", "authorize"]),
                "is needed in `serverless-with-outbox`: write \"grant\" (callers with the grant `durability` may run \
                 passes) or \"anonymous\" (everybody who reaches the endpoint may)",
            );
        }
        if mode.is_serverless() && config.intake.notify {
            self.add(
                Key::of(["intake", "notify"]),
                format!("nobody listens in the mode `{}`: leave the key out", mode.as_str()),
            );
        }
        if mode != Mode::Serverless {
            return;
        }
        for (name, receiver) in &config.receivers {
            if receiver.deduplicate_with_inbox {
                self.add(
                    Key::of(["receivers", name, "deduplicate_with_inbox"]),
                    "stores a delivery, and nothing is stored in the mode `serverless`",
                );
            }
        }
        for (name, destination) in &config.destinations {
            let key = Key::of(["destinations", name]);
            if destination.ordered {
                self.add(
                    key.name("ordered"),
                    "nothing is stored in the mode `serverless`, so no message can wait for its turn: use \
                     `serverless-with-outbox`",
                );
            }
            if destination.paused {
                self.add(
                    key.name("paused"),
                    "nothing is stored in the mode `serverless`, so nothing can wait for a paused destination: take \
                     it out of the routes instead",
                );
            }
        }
    }
}

/// What the configuration says and its mode overrides, a line each, with the key: said at start.
pub fn overridden(config: &Config) -> Vec<String> {
    let mode = config.durability.mode;
    let (said, instead) = match mode {
        Mode::Balanced => return Vec::new(),
        Mode::Serverless => (SendMode::Outbox, "its messages are sent before the publish is answered"),
        Mode::ServerlessWithOutbox => (SendMode::Inline, "its messages are stored before they are sent"),
    };
    let word = match said {
        SendMode::Outbox => "outbox",
        SendMode::Inline => "inline",
    };
    let mut lines: Vec<String> = config
        .destinations
        .iter()
        .filter(|(_, destination)| destination.mode == Some(said))
        .map(|(name, _)| {
            let key = Key::of(["destinations", name, "mode"]);
            format!("{key}: `{word}` is overridden by durability.mode = \"{}\": {instead}", mode.as_str())
        })
        .collect();
    if mode == Mode::Serverless {
        lines.extend(config.handlers.keys().map(|name| {
            let key = Key::of(["handlers", name]);
            format!(
                "{key}: in durability.mode = \"serverless\" it runs by invoke only; publishes do not reach it"
            )
        }));
    }
    lines
}
