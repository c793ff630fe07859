//! Where a message goes: the routes, or the destinations that the publisher names.

use std::collections::BTreeMap;

use super::{Error, Result};
use crate::auth::Principal;
use crate::domain::delivery::Target;
use crate::domain::message::Draft;
use crate::domain::routing::{Table, Unroutable};

/// The routing table and the names that it may use.
#[derive(Clone, Debug)]
pub struct Routing {
    pub table: Table,
    pub destinations: Destinations,
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

impl Routing {
    /// The targets of a draft, each once.
    ///
    /// # Errors
    /// `Forbidden` where the principal may not publish to a destination that it names; `Unroutable` where a
    /// name is unknown, or nobody takes the message and that is to be refused.
    pub fn targets(&self, principal: &Principal, draft: &Draft) -> Result<Vec<Target>> {
        let targets = match &draft.destinations {
            Some(names) => self.named(principal, &draft.kind, names)?,
            None => self
                .table
                .route(&draft.kind)
                .into_iter()
                .filter_map(|name| self.destinations.get(name))
                .cloned()
                .collect(),
        };
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
