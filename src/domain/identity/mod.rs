//! The identity of the work that a message asks for: its deduplication id, and what is done with it.
//!
//! *Deriving* gives an id, in this order: what the publisher set; the rules of the configuration; the type's
//! own contract. No rule overwrites an id that is set. *Enforcing* is separate: only where a type (or a policy)
//! says so is a second message with the same id a duplicate.
//!
//! Everything is compiled at start ([`Identity::compile`]), so that a template which names something
//! impossible stops the node instead of losing duplicates later. A message that no rule and no contract
//! concerns is not parsed.

mod enforce;
mod facts;
mod handler;
mod path;
mod rules;
mod template;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

pub use enforce::{Enforcement, OnDuplicate, Scope, WorkKey};
pub use facts::Facts;
pub use handler::{HandlerDeduplication, IdFrom};
pub use path::Path;
pub use rules::{By, RuleOptions};
pub use template::Template;

use super::message::DraftDeduplication;
use super::routing::Pattern;
use rules::Rule;

/// What is known of message types, rules and policies.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// In order: the first that gives an id wins.
    pub rules: Vec<RuleOptions>,
    /// By the exact name of the type.
    pub types: BTreeMap<String, TypeOptions>,
    /// In order: the first that matches a type without an enforcement of its own.
    pub policies: Vec<PolicyOptions>,
}

/// What one message type says of its identity.
#[derive(Clone, Debug, Default)]
pub struct TypeOptions {
    /// A dotted path, a JSON Pointer, or a template if it holds a `{`.
    pub deduplication_identity: Option<String>,
    /// The same, from `x-deduplication-identity` of its JSON Schema; the former counts if both are there.
    pub schema_identity: Option<String>,
    pub enforcement: Option<Enforcement>,
}

/// Enforcement for types that have none of their own.
#[derive(Clone, Debug)]
pub struct PolicyOptions {
    pub types: Vec<Pattern>,
    pub enforcement: Enforcement,
}

/// Why the options could not be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct CompileError {
    pub origin: Origin,
    pub detail: String,
}

/// Which of the options is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// By its place.
    Rule(usize),
    /// `deduplication_identity` of this type.
    Type(String),
    /// `x-deduplication-identity` in the schema of this type.
    Schema(String),
}

/// Compiled: derives ids, and says what is enforced.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    rules: Vec<Rule>,
    contracts: HashMap<String, Template>,
    enforced: HashMap<String, Enforcement>,
    policies: Vec<PolicyOptions>,
}

/// A deduplication id and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    pub id: String,
    pub source: Source,
}

/// Where a deduplication id comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Publisher,
    /// The rule at this place, counted from 0.
    Rule(usize),
    Contract,
}

impl Source {
    /// The name that the API has for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Publisher => "publisher",
            Self::Rule(_) => "rule",
            Self::Contract => "contract",
        }
    }

    /// The rule's place, where it is one.
    pub fn rule(self) -> Option<usize> {
        match self {
            Self::Rule(place) => Some(place),
            Self::Publisher | Self::Contract => None,
        }
    }
}

impl Identity {
    /// Compiles the options.
    ///
    /// # Errors
    /// All of them that can never give an id, each with what to do.
    pub fn compile(options: &Options) -> Result<Self, Vec<CompileError>> {
        let mut errors = Vec::new();
        let mut fail = |origin, detail| errors.push(CompileError { origin, detail });
        let mut compiled = Self { policies: options.policies.clone(), ..Self::default() };
        for (place, rule) in options.rules.iter().enumerate() {
            match Rule::compile(rule) {
                Ok(rule) => compiled.rules.push(rule),
                Err(detail) => fail(Origin::Rule(place), detail),
            }
        }
        for (name, options) in &options.types {
            let said = [
                (&options.deduplication_identity, Origin::Type(name.clone())),
                (&options.schema_identity, Origin::Schema(name.clone())),
            ];
            for (text, origin) in said {
                let Some(text) = text else { continue };
                match Template::contract(text) {
                    Ok(template) => {
                        compiled.contracts.entry(name.clone()).or_insert(template);
                    }
                    Err(detail) => fail(origin, detail),
                }
            }
            if let Some(enforcement) = options.enforcement {
                compiled.enforced.insert(name.clone(), enforcement);
            }
        }
        if errors.is_empty() { Ok(compiled) } else { Err(errors) }
    }

    /// The deduplication id of a message, if it has one. Parses the body only if a rule that concerns the type
    /// asks for a member of it, and then once.
    pub fn derive(&self, said: &DraftDeduplication, facts: &Facts<'_>) -> Option<Derived> {
        match said {
            DraftDeduplication::OptOut => return None,
            DraftDeduplication::Id(id) => return Some(Derived { id: id.clone(), source: Source::Publisher }),
            DraftDeduplication::Derive => {}
        }
        let by_rule = self.rules.iter().enumerate().find_map(|(place, rule)| {
            rule.id(facts).map(|id| Derived { id: storable(id), source: Source::Rule(place) })
        });
        by_rule.or_else(|| {
            let id = self.contracts.get(facts.kind())?.render(facts)?;
            Some(Derived { id: storable(id), source: Source::Contract })
        })
    }

    /// What is enforced for messages of this type: what the type says itself, else the first policy that
    /// matches it.
    pub fn enforcement(&self, kind: &str) -> Option<Enforcement> {
        self.enforced.get(kind).copied().or_else(|| {
            let matches = |policy: &&PolicyOptions| policy.types.iter().any(|pattern| pattern.matches(kind));
            self.policies.iter().find(matches).map(|policy| policy.enforcement)
        })
    }
}

/// The longest derived id that is kept as it is, in characters; what a publisher may set is bounded by
/// [`Limits`](super::Limits).
const MAX_DERIVED: usize = 512;

/// A derived id as it can be stored and sent: one that is too long, or holds control characters, becomes
/// `sha256:` and the hexadecimal SHA-256 of its UTF-8, so that it still tells the same work from other work.
fn storable(id: String) -> String {
    let fits = id.len() <= MAX_DERIVED || id.chars().count() <= MAX_DERIVED;
    if fits && !id.chars().any(char::is_control) {
        return id;
    }
    format!("sha256:{}", facts::sha256_hex(id.as_bytes()))
}
