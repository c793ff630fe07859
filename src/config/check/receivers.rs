//! `[receivers.NAME]`

use super::{Defined, Found, LONGEST_TIMEOUT, is_tenant, listed};
use crate::config::errors::closest;
use crate::config::key::{Key, quoted};
use crate::config::load::Backends;
use crate::config::receivers::{Receiver, Way};
use crate::config::{ByteSize, Config};

impl Found {
    pub(super) fn receivers(&mut self, config: &Config, defined: &Defined, backends: &dyn Backends) {
        let formats: Vec<&str> = backends.formats().iter().map(|format| format.name).collect();
        for (name, receiver) in &config.receivers {
            let key = Key::of(["receivers", name]);
            self.name(&key, name);
            self.ways(&key, receiver, config, defined);
            self.sources(&key, receiver, config, defined);
            self.common(&key, receiver);
            if formats.contains(&receiver.format.as_str()) {
                for (below, text) in backends.check_receiver(receiver) {
                    self.add(key.name(below), text);
                }
                continue;
            }
            let format = &receiver.format;
            let text = match closest(format, formats.iter().copied()) {
                Some(meant) => format!("there is no format `{format}`; did you mean `{meant}`?"),
                None => format!(
                    "there is no format `{format}`; there are {}",
                    listed(formats.iter().copied(), "")
                ),
            };
            self.add(key.name("format"), text);
        }
    }

    fn ways(&mut self, key: &Key, receiver: &Receiver, config: &Config, defined: &Defined) {
        if receiver.says_both_ways() {
            self.add(key.name("publish"), "stands instead of `handler`: keep one of them");
        } else if receiver.way().is_none() {
            let by_source = receiver.sources.as_ref().is_some_and(|sources| {
                !sources.is_empty() && sources.values().all(|source| source.way().is_some())
            });
            if !by_source {
                self.add(
                    key.clone(),
                    "needs `handler = \"NAME\"` (who runs what is pushed) or `publish = true`",
                );
            }
        }
        self.handler(key, receiver.handler.as_deref(), config, defined);
        if receiver.deduplicate_with_inbox && receiver.way() == Some(Way::Publish) {
            self.add(key.name("deduplicate_with_inbox"), NO_INBOX);
        }
    }

    fn handler(&mut self, key: &Key, name: Option<&str>, config: &Config, defined: &Defined) {
        if name.and_then(|name| config.handlers.get(name)).is_some_and(|handler| handler.ordered) {
            self.add(
                key.name("handler"),
                "is ordered, and pushes are run as they come: publish them instead (`publish = true`)",
            );
        }
        let Some(name) = name.filter(|name| !defined.handlers.contains(*name)) else { return };
        let text = match closest(name, defined.handlers.iter().map(String::as_str)) {
            Some(meant) => format!("there is no handler `{name}`; did you mean `{meant}`?"),
            None => format!("there is no handler `{name}`: add `[handlers.{}]`", quoted(name)),
        };
        self.add(key.name("handler"), text);
    }

    fn sources(&mut self, key: &Key, receiver: &Receiver, config: &Config, defined: &Defined) {
        let Some(sources) = &receiver.sources else { return };
        let key = key.name("sources");
        if sources.is_empty() {
            self.add(
                key.clone(),
                "lists nobody, so that nothing could be pushed: leave it out to take any name",
            );
        }
        for (name, source) in sources {
            let key = key.name(name);
            if name.is_empty() {
                self.add(key.clone(), "is the name of nothing");
            }
            if source.says_both_ways() {
                self.add(key.name("publish"), "stands instead of `handler`: keep one of them");
            }
            self.handler(&key, source.handler.as_deref(), config, defined);
            let way = source.way().or(receiver.way());
            if source.deduplicate_with_inbox == Some(true) && way == Some(Way::Publish) {
                self.add(key.name("deduplicate_with_inbox"), NO_INBOX);
            }
        }
    }

    fn common(&mut self, key: &Key, receiver: &Receiver) {
        if receiver.tenant.as_deref().is_some_and(|tenant| !is_tenant(tenant)) {
            self.add(key.name("tenant"), "is 1 to 255 printable characters; leave it out for none");
        }
        let types = receiver.sources.iter().flatten().filter_map(|(name, source)| {
            let kind = source.kind.as_ref()?;
            Some((key.name("sources").name(name).name("type"), kind))
        });
        for (key, kind) in receiver.kind.iter().map(|kind| (key.name("type"), kind)).chain(types) {
            if let Err(text) = crate::domain::fields::message_type(kind, &crate::domain::Limits::default()) {
                self.add(key, text);
            }
        }
        if let Some(oidc) = &receiver.oidc {
            for (below, text) in oidc.problems() {
                self.add(key.name("oidc").name(below), text);
            }
        }
        if let Some(status) = receiver.success_status {
            self.within(key.name("success_status"), status, 200, 299);
        }
        if let Some(status) = receiver.retry_status {
            self.within(key.name("retry_status"), status, 400, 599);
        }
        if let Some(deadline) = receiver.deadline {
            self.positive(key.name("deadline"), deadline);
            if deadline > LONGEST_TIMEOUT {
                self.add(key.name("deadline"), format!("is at most {LONGEST_TIMEOUT}"));
            }
        }
        if receiver.body.is_some_and(|body| body.0 == 0 || body > ByteSize::mib(256)) {
            self.add(key.name("body"), "is out of range: write 1B to 256MiB");
        }
    }
}

const NO_INBOX: &str = "recognises what a handler has run; what is published is recognised by its type's \
                        `deduplicate`";
