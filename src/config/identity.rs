//! From `[messages]` and `[deduplication]` to what the rules work with, compiled once at start.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::errors::Problem;
use super::key::Key;
use super::messages::{Deduplicate, IdempotencyKey, OnDuplicate, Scope};
use super::{Config, Duration};
use crate::domain::identity::{
    By, Enforcement, Identity, OnDuplicate as Answered, Options, Origin, PolicyOptions, RuleOptions,
    Scope as Within, TypeOptions,
};
use crate::domain::schema::Schema;

/// What is known of message types.
#[derive(Clone, Debug, Default)]
pub struct Messages {
    pub identity: Identity,
    /// By type.
    pub schemas: HashMap<String, Arc<Schema>>,
    /// Types that need an `Idempotency-Key`.
    pub key_required: HashSet<String>,
}

impl Messages {
    /// Reads the schemas and compiles the rules.
    ///
    /// # Errors
    /// Everything that can never work, by its key.
    pub fn compile(config: &Config) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut schemas = HashMap::new();
        for (kind, message) in &config.messages {
            let Some(path) = &message.schema else { continue };
            let compiled = std::fs::read(path)
                .map_err(|error| format!("`{}` cannot be read: {error}", path.display()))
                .and_then(|text| {
                    Schema::compile(&text).map_err(|error| format!("`{}` {error}", path.display()))
                });
            match compiled {
                Ok(schema) => drop(schemas.insert(kind.clone(), Arc::new(schema))),
                Err(text) => problems.push(Problem::new(Key::of(["messages", kind, "schema"]), text)),
            }
        }
        let identity = match Identity::compile(&options(config, &schemas)) {
            Ok(identity) => identity,
            Err(errors) => {
                problems.extend(
                    errors.into_iter().map(|error| Problem::new(key(&error.origin, config), error.detail)),
                );
                Identity::default()
            }
        };
        if !problems.is_empty() {
            return Err(problems);
        }
        let needs_key = |message: &super::MessageType| message.idempotency == IdempotencyKey::Required;
        let key_required = config
            .messages
            .iter()
            .filter(|(_, message)| needs_key(message))
            .map(|(kind, _)| kind.clone())
            .collect();
        Ok(Self { identity, schemas, key_required })
    }
}

fn options(config: &Config, schemas: &HashMap<String, Arc<Schema>>) -> Options {
    let window = config.deduplication.window;
    let rules = config.deduplication.rules.iter().filter_map(|rule| {
        let by = match (&rule.template, &rule.members_named) {
            (Some(template), _) => By::Template(template.clone()),
            (None, Some(names)) => By::MembersNamed(names.clone()),
            (None, None) => return None, // refused by `check`
        };
        Some(RuleOptions { types: rule.types.clone(), by })
    });
    let types: BTreeMap<String, TypeOptions> = config
        .messages
        .iter()
        .map(|(kind, message)| {
            let options = TypeOptions {
                deduplication_identity: message.deduplication_identity.clone(),
                schema_identity: schemas
                    .get(kind)
                    .and_then(|schema| schema.deduplication_identity().map(str::to_owned)),
                enforcement: message.deduplicate.as_ref().map(|said| enforcement(said, window)),
            };
            (kind.clone(), options)
        })
        .collect();
    let policies = config.deduplication.policies.iter().map(|policy| PolicyOptions {
        types: policy.types.clone(),
        enforcement: enforcement(&policy.deduplicate(), window),
    });
    Options { rules: rules.collect(), types, policies: policies.collect() }
}

fn enforcement(said: &Deduplicate, window: Duration) -> Enforcement {
    Enforcement {
        required: said.required,
        window: said.window.unwrap_or(window).get(),
        on_duplicate: match said.on_duplicate {
            OnDuplicate::Acknowledge => Answered::Acknowledge,
            OnDuplicate::Conflict => Answered::Conflict,
        },
        scope: match said.scope {
            Scope::Type => Within::Type,
            Scope::Store => Within::Store,
        },
    }
}

/// Where the mistake is written.
fn key(origin: &Origin, config: &Config) -> Key {
    match origin {
        Origin::Rule(place) => {
            let rule = Key::of(["deduplication", "rules"]).index(*place);
            let by_template =
                config.deduplication.rules.get(*place).is_some_and(|rule| rule.template.is_some());
            rule.name(if by_template { "template" } else { "members_named" })
        }
        Origin::Type(kind) => Key::of(["messages", kind, "deduplication_identity"]),
        Origin::Schema(kind) => Key::of(["messages", kind, "schema"]),
    }
}
