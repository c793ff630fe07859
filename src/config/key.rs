//! Where a value stands in a configuration: `routes[0].types`, `messages."order.created".schema`.

use std::fmt;

use toml::Value;

/// The whole way to a value, from the top.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(Vec<Step>);

/// One step down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Name(String),
    Index(usize),
}

impl Key {
    /// The key with these names.
    pub fn of<const N: usize>(names: [&str; N]) -> Self {
        names.into_iter().fold(Self::default(), |key, name| key.name(name))
    }

    /// One further down, by name.
    #[must_use]
    pub fn name(&self, name: &str) -> Self {
        self.with(Step::Name(name.to_owned()))
    }

    /// One further down, by place in an array.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.with(Step::Index(index))
    }

    /// Further down by a dotted text, as serde and the transports tell it: `declare.queue`, `headers.x[1]`.
    #[must_use]
    pub fn dotted(&self, text: &str) -> Self {
        text.split('.').filter(|part| !part.is_empty()).fold(self.clone(), |key, part| key.name(part))
    }

    fn with(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key that this one is in.
    pub fn parent(&self) -> Option<Self> {
        let (_, parent) = self.0.split_last()?;
        Some(Self(parent.to_vec()))
    }

    pub fn starts_with(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// The value at this key.
    pub(super) fn find<'a>(&self, table: &'a mut toml::Table) -> Option<&'a mut Value> {
        let (first, rest) = self.0.split_first()?;
        let Step::Name(name) = first else { return None };
        rest.iter().try_fold(table.get_mut(name)?, |value, step| match (step, value) {
            (Step::Name(name), Value::Table(table)) => table.get_mut(name),
            (Step::Index(index), Value::Array(array)) => array.get_mut(*index),
            _ => None,
        })
    }

    /// Takes the value at this key out.
    pub(super) fn remove(&self, table: &mut toml::Table) -> bool {
        let Some((last, parent)) = self.0.split_last() else { return false };
        let parent = Self(parent.to_vec());
        match last {
            Step::Name(name) if parent.is_empty() => table.remove(name).is_some(),
            Step::Name(name) => match parent.find(table) {
                Some(Value::Table(table)) => table.remove(name).is_some(),
                _ => false,
            },
            Step::Index(index) => match parent.find(table) {
                Some(Value::Array(array)) if *index < array.len() => {
                    array.remove(*index);
                    true
                }
                _ => false,
            },
        }
    }
}

/// Elements that were taken out of arrays, so that the others can still be called by the place that they have
/// in the file.
#[derive(Debug, Default)]
pub(super) struct Removed(std::collections::BTreeSet<Key>);

impl Removed {
    /// Remembers that `key` (as in the file) was taken out.
    pub fn remember(&mut self, key: Key) {
        if matches!(key.0.last(), Some(Step::Index(_))) {
            self.0.insert(key);
        }
    }

    /// The key in the file for one in what is left.
    pub fn original(&self, key: &Key) -> Key {
        key.0.iter().fold(Key::default(), |original, step| match step {
            Step::Name(_) => original.with(step.clone()),
            Step::Index(index) => {
                let mut index = *index;
                for removed in &self.0 {
                    if let Some((Step::Index(gone), parent)) = removed.0.split_last()
                        && parent == original.0
                        && *gone <= index
                    {
                        index += 1;
                    }
                }
                original.index(index)
            }
        })
    }
}

impl From<serde_path_to_error::Path> for Key {
    fn from(path: serde_path_to_error::Path) -> Self {
        use serde_path_to_error::Segment;
        Self(
            path.iter()
                .filter_map(|segment| match segment {
                    Segment::Map { key } => Some(Step::Name(key.clone())),
                    Segment::Seq { index } => Some(Step::Index(*index)),
                    Segment::Enum { .. } | Segment::Unknown => None,
                })
                .collect(),
        )
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Name(name) => {
                    if number > 0 {
                        f.write_str(".")?;
                    }
                    f.write_str(&quoted(name))?;
                }
            }
        }
        Ok(())
    }
}

/// A name as TOML writes it: bare where that is allowed.
pub(super) fn quoted(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(bare) { name.to_owned() } else { format!("{name:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_written_as_in_the_file() {
        assert_eq!(
            Key::of(["destinations", "orders"]).dotted("declare.queue").to_string(),
            "destinations.orders.declare.queue"
        );
        assert_eq!(Key::of(["routes"]).index(1).name("types").to_string(), "routes[1].types");
        assert_eq!(
            Key::of(["messages", "order.created", "schema"]).to_string(),
            "messages.\"order.created\".schema"
        );
    }

    #[test]
    fn values_are_taken_out() {
        let mut table: toml::Table = "a = { b = [1, { c = 2 }] }\nd = 3".parse().unwrap();
        assert!(Key::of(["a", "b"]).index(1).name("c").remove(&mut table));
        assert!(!Key::of(["a", "b"]).index(1).name("c").remove(&mut table));
        assert!(!Key::of(["a", "x", "y"]).remove(&mut table));
        assert!(Key::of(["a", "b"]).index(0).remove(&mut table));
        assert!(Key::of(["d"]).remove(&mut table));
        assert_eq!(table, "a = { b = [{}] }".parse().unwrap());
    }

    #[test]
    fn places_stay_those_of_the_file() {
        let mut removed = Removed::default();
        let routes = Key::of(["routes"]);
        removed.remember(routes.index(2));
        removed.remember(routes.index(0));
        removed.remember(routes.index(3).name("types").index(0));
        assert_eq!(removed.original(&routes.index(0)), routes.index(1));
        assert_eq!(
            removed.original(&routes.index(1).name("types").index(0)).to_string(),
            "routes[3].types[1]"
        );
        assert_eq!(removed.original(&Key::of(["other"]).index(0)), Key::of(["other"]).index(0));
    }
}
