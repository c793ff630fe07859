//! The rules of the configuration.

use super::facts::Facts;
use super::path::usable;
use super::template::Template;
use crate::domain::routing::Pattern;

/// A rule that derives ids.
#[derive(Clone, Debug)]
pub struct RuleOptions {
    /// The types that it concerns; `None`: every type.
    pub types: Option<Vec<Pattern>>,
    pub by: By,
}

/// How a rule gives an id.
#[derive(Clone, Debug)]
pub enum By {
    Template(String),
    /// The first of these names of members of the data, in this order and without regard to case, that has a
    /// usable value.
    MembersNamed(Vec<String>),
}

/// A compiled rule.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    types: Option<Vec<Pattern>>,
    by: Compiled,
}

#[derive(Clone, Debug)]
enum Compiled {
    Template(Template),
    /// As written, and in lower case.
    MembersNamed(Vec<(String, String)>),
}

impl Rule {
    pub(super) fn compile(options: &RuleOptions) -> Result<Self, String> {
        let by = match &options.by {
            By::Template(text) => Compiled::Template(Template::identity(text)?),
            By::MembersNamed(names) if names.is_empty() || names.iter().any(String::is_empty) => {
                return Err("names no member".to_owned());
            }
            By::MembersNamed(names) => {
                Compiled::MembersNamed(names.iter().map(|name| (name.clone(), name.to_lowercase())).collect())
            }
        };
        Ok(Self { types: options.types.clone(), by })
    }

    /// The id that this rule gives the message, if it concerns its type and gives one.
    pub(super) fn id(&self, facts: &Facts<'_>) -> Option<String> {
        let concerns =
            self.types.as_ref().is_none_or(|types| types.iter().any(|pattern| pattern.matches(facts.kind())));
        if !concerns {
            return None;
        }
        match &self.by {
            Compiled::Template(template) => template.render(facts),
            Compiled::MembersNamed(names) => {
                let members = facts.members()?;
                names.iter().find_map(|(exact, lower)| {
                    let exactly = members.iter().rev().filter(|(name, _)| name == exact);
                    let otherwise =
                        members.iter().filter(|(name, _)| name != exact && name.to_lowercase() == *lower);
                    exactly.chain(otherwise).find_map(|(_, value)| usable(value)).map(String::from)
                })
            }
        }
    }
}
