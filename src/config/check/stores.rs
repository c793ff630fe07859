//! `[stores.NAME]` and `[intake]`: URLs, tenants, and databases that are one store's alone.

use std::collections::BTreeMap;

use super::{Found, is_tenant, listed};
use crate::config::key::Key;
use crate::config::load::Backends;
use crate::config::stores::MAIN;
use crate::config::{Config, Store};

impl Found {
    pub(super) fn intake(&mut self, config: &Config) {
        let key = Key::of(["intake"]);
        self.positive(key.name("poll"), config.intake.poll);
        if !config.intake.notify || config.stores.values().any(Store::can_notify) {
            return;
        }
        if config.stores.values().all(|store| store.url.expose().starts_with("sqlite")) {
            self.add(key.name("notify"), "SQLite tells nobody of a commit: leave the key out");
        } else {
            self.add(
                key.name("notify"),
                "nobody can listen through `pooler = \"transaction\"`: leave the key out",
            );
        }
    }

    pub(super) fn stores(&mut self, config: &Config, backends: &dyn Backends) {
        let engines = backends.engines();
        for (name, store) in &config.stores {
            let key = Key::of(["stores", name]);
            self.name(&key, name);
            let url = store.url.expose();
            // The URL itself may hold a password.
            match url.split_once(':') {
                Some((scheme, rest)) if engines.contains(&scheme) => {
                    if rest.trim_start_matches('/').is_empty() {
                        self.add(key.name("url"), format!("says nothing after `{scheme}:`"));
                    }
                }
                Some((scheme, _)) => self.add(
                    key.name("url"),
                    format!(
                        "there is no store `{scheme}:`; a URL begins with {}",
                        listed(engines.iter().copied(), ":")
                    ),
                ),
                None => self.add(
                    key.name("url"),
                    format!("is not a URL; it begins with {}", listed(engines.iter().copied(), ":")),
                ),
            }
            self.within(key.name("max_connections"), store.max_connections, 1, 10_000);
        }
        self.tenants(config);
        self.own_databases(config);
    }

    /// Every tenant is in one store, and every store has some.
    fn tenants(&mut self, config: &Config) {
        let mut stores: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, store) in &config.stores {
            let key = Key::of(["stores", name, "tenants"]);
            if store.tenants.is_empty() && name != MAIN {
                self.add(
                    key.clone(),
                    "names no tenant, so that nothing would ever be in this store: name some, or remove the store",
                );
            }
            for (index, tenant) in store.tenants.iter().enumerate() {
                let place = key.index(index);
                if !is_tenant(tenant) {
                    self.add(place.clone(), "is 1 to 255 printable characters");
                }
                match stores.insert(tenant, name) {
                    Some(other) if other == name => {
                        self.add(place, format!("`{tenant}` stands in this list twice: write it once"));
                    }
                    Some(other) => self.add(
                        place,
                        format!(
                            "`{tenant}` is in `{}` as well: a tenant's messages are in one store",
                            Key::of(["stores", other, "tenants"])
                        ),
                    ),
                    None => {}
                }
            }
        }
    }

    /// Two stores in one database would see each other's rows.
    fn own_databases(&mut self, config: &Config) {
        let mut databases: BTreeMap<String, &str> = BTreeMap::new();
        for name in config.store_names() {
            let url = config.store(name).url.expose();
            let database = match url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:")) {
                Some(path) => std::path::absolute(path)
                    .map_or_else(|_| path.to_owned(), |path| path.display().to_string()),
                None => (*url).clone(),
            };
            if let Some(other) = databases.insert(database, name) {
                self.add(
                    Key::of(["stores", name, "url"]),
                    format!(
                        "is that of `{}` as well: each store needs a database of its own",
                        Key::of(["stores", other])
                    ),
                );
            }
        }
    }
}
