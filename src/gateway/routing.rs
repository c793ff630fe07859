//! Where a message goes: the routes, or the destinations that the publisher names; and the handlers of its type.

use std::collections::{BTreeMap, BTreeSet};

use super::{Error, Result};
use crate::auth::Principal;
use crate::domain::Message;
use crate::domain::delivery::Target;
use crate::domain::message::Draft;
use crate::domain::ordering::OrderKey;
use crate::domain::routing::{Pattern, Table, Unroutable};
use crate::store::accept::NewDelivery;

/// The routing table and the names that it may use.
#[derive(Clone, Debug)]
pub struct Routing {
    pub table: Table,
    pub destinations: Destinations,
    pub handlers: Handlers,
    /// Those that get the messages of a key one after the other.
    pub ordered: BTreeSet<Target>,
    pub unroutable: Unroutable,
}

/// Every configured destination, by its name.
#[derive(Clone, Debug, Default)]
pub struct Destinations(BTreeMap<String, Target>);

impl Destinations {
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self(names.into_iter().map(|name| (name.to_owned(), Target::destination(name))).collect())
    }

    fn get(&self, name: &str) -> Option<&Target> {
        self.0.get(name)
    }
}

/// Which handlers handle which types.
#[derive(Clone, Debug, Default)]
pub struct Handlers(Vec<(Target, Vec<Pattern>)>);

impl Handlers {
    pub fn new<'a>(handlers: impl IntoIterator<Item = (&'a str, Vec<Pattern>)>) -> Self {
        Self(handlers.into_iter().map(|(name, types)| (Target::handler(name), types)).collect())
    }

    /// The handlers of a type, in the order of their names.
    pub fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Target> {
        let handles = move |types: &[Pattern]| types.iter().any(|pattern| pattern.matches(kind));
        self.0.iter().filter(move |(_, types)| handles(types)).map(|(target, _)| target)
    }
}

impl Routing {
    /// The targets of a draft, each once: those of the routes, or else the destinations that the publisher names;
    /// and the type's handlers. Who may publish the type to named destinations only reaches these and nothing beside
    /// them.
    ///
    /// # Errors
    /// `Forbidden` where the principal may not publish to a destination that it names; `Unroutable` where a
    /// name is unknown, or nobody takes the message and that is to be refused.
    pub fn targets(&self, principal: &Principal, draft: &Draft) -> Result<Vec<Target>> {
        let mut targets = match &draft.destinations {
            Some(names) => self.named(principal, &draft.kind, names)?,
            None => self
                .table
                .route(&draft.kind)
                .into_iter()
                .filter_map(|name| self.destinations.get(name).cloned())
                .collect(),
        };
        if draft.destinations.is_none() || principal.may_publish(&draft.kind) {
            targets.extend(self.handlers.of(&draft.kind).cloned());
        }
        if targets.is_empty() && self.unroutable == Unroutable::Refuse {
            return Err(Error::Unroutable {
                detail: format!(
                    "No route and no handler takes messages of type `{}`, so nothing was stored. Add the type to \
                     a route, name `destinations`, or set `routing.unroutable = \"accept\"`.",
                    draft.kind
                ),
            });
        }
        Ok(targets)
    }

    /// The row of a message for `target`.
    pub(super) fn row(&self, target: Target, message: &Message) -> NewDelivery {
        let key = || OrderKey::new(&message.tenant, message.partition_key.as_deref());
        let order = self.ordered.contains(&target).then(key);
        NewDelivery { order, ..NewDelivery::waiting(target) }
    }

    fn named(&self, principal: &Principal, kind: &str, names: &[String]) -> Result<Vec<Target>> {
        let mut targets: Vec<Target> = Vec::with_capacity(names.len());
        for name in names {
            // Before it is looked up: who may not publish there does not learn whether it exists.
            if !principal.may_publish_to(kind, name) {
                return Err(Error::Forbidden {
                    detail: format!(
                        "Naming the destination `{name}` needs the grant `publish:{kind}@{name}`."
                    ),
                });
            }
            let Some(target) = self.destinations.get(name) else {
                return Err(Error::Unroutable {
                    detail: format!(
                        "There is no destination `{name}`; nothing was stored. `GET /v1/targets` lists them."
                    ),
                });
            };
            if !targets.contains(target) {
                targets.push(target.clone());
            }
        }
        Ok(targets)
    }
}
