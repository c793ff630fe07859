//! Which destinations and handlers a message type goes to.

use std::fmt;
use std::str::FromStr;

/// A pattern over dotted names: `*` is every name, `prefix.*` every name that begins with `prefix.` at any
/// depth, anything else exactly itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub enum Pattern {
    Any,
    /// With the dot, e.g. `order.`.
    Prefix(String),
    Exact(String),
}

impl Pattern {
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Prefix(prefix) => name.len() > prefix.len() && name.starts_with(prefix.as_str()),
            Self::Exact(exact) => name == exact,
        }
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let (stem, wildcard) = match text.strip_suffix(".*") {
            Some(stem) => (stem, true),
            None => (text, false),
        };
        if stem.is_empty()
            || stem.contains('*')
            || stem.trim() != stem
            || stem.chars().any(|c| c.is_whitespace() && c != ' ')
        {
            return Err(format!(
                "`{text}` is not a pattern: write `*` (everything), `prefix.*` (everything below a prefix), or an exact name"
            ));
        }
        Ok(if wildcard { Self::Prefix(format!("{stem}.")) } else { Self::Exact(stem.to_owned()) })
    }
}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
            Self::Exact(exact) => f.write_str(exact),
        }
    }
}

/// What to do with a message type that nobody takes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Unroutable {
    /// Answered 422 `unroutable`, nothing stored.
    #[default]
    Refuse,
    /// Answered 202 with empty lists, and counted.
    Accept,
}

/// One line of the table: these types go to these names.
#[derive(Clone, Debug)]
pub struct Route {
    pub types: Vec<Pattern>,
    pub targets: Vec<String>,
}

/// A table of routes. Routes that match add up, each name once, in the order of the table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    routes: Vec<Route>,
}

impl Table {
    pub fn new(routes: Vec<Route>) -> Self {
        Self { routes }
    }

    /// The names that `message_type` goes to.
    pub fn route<'a>(&'a self, message_type: &str) -> Vec<&'a str> {
        let mut names: Vec<&str> = Vec::new();
        for route in &self.routes {
            if route.types.iter().any(|pattern| pattern.matches(message_type)) {
                for name in &route.targets {
                    if !names.contains(&name.as_str()) {
                        names.push(name);
                    }
                }
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    #[test]
    fn patterns() {
        assert!(pattern("*").matches("anything.at.all"));
        assert!(pattern("order.*").matches("order.created"));
        assert!(pattern("order.*").matches("order.line.added"));
        assert!(!pattern("order.*").matches("order"));
        assert!(!pattern("order.*").matches("orders.created"));
        assert!(pattern("order").matches("order"));
        assert!(!pattern("order").matches("Order"));
    }

    #[test]
    fn what_is_not_a_pattern_says_how_to_write_one() {
        for text in ["", "*.created", "or*der", "order.*.x*", " a", "a\tb", ".*"] {
            assert!(text.parse::<Pattern>().unwrap_err().contains("is not a pattern"), "{text}");
        }
    }

    #[test]
    fn routes_add_up_and_name_each_target_once() {
        let table = Table::new(vec![
            Route { types: vec![pattern("order.*")], targets: vec!["a".into(), "b".into()] },
            Route { types: vec![pattern("*")], targets: vec!["b".into(), "c".into()] },
        ]);
        assert_eq!(table.route("order.created"), ["a", "b", "c"]);
        assert_eq!(table.route("other"), ["b", "c"]);
        assert!(Table::default().route("other").is_empty());
    }
}
