//! What is wrong with a configuration, and where.

use std::fmt;

use super::key::Key;

/// Everything that was found wrong, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub Vec<Problem>);

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The whole key, such as `destinations.orders.timeout`; empty: the file as a whole.
    pub key: Key,
    /// What is wrong with it and what to do.
    pub text: String,
    /// Where it is written.
    pub place: Place,
}

/// Where a value comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A file's line, from 1.
    Line(String, usize),
    /// A file as a whole.
    File(String),
    /// An environment variable.
    Variable(String),
    /// The defaults, or the lack of something.
    #[default]
    Nowhere,
}

impl Problem {
    pub fn new(key: Key, text: impl Into<String>) -> Self {
        Self { key, text: text.into(), place: Place::Nowhere }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(file, line) => write!(f, "{file}:{line}: "),
            Self::File(file) => write!(f, "{file}: "),
            Self::Variable(name) => write!(f, "{name}: "),
            Self::Nowhere => Ok(()),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place)?;
        if self.key.is_empty() { f.write_str(&self.text) } else { write!(f, "{}: {}", self.key, self.text) }
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

/// The one of `known` that `written` was probably meant to be.
pub(super) fn closest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let tolerated = (written.chars().count() / 3).clamp(1, 3);
    known
        .into_iter()
        .map(|name| (distance(&written.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= tolerated)
        .min()
        .map(|(_, name)| name)
}

/// In how many letters two words differ (insertions, deletions, replacements, exchanged neighbours).
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![vec![0; other.len() + 1]; one.len() + 1];
    for i in 0..=one.len() {
        for j in 0..=other.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
                let mut least = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                    least = least.min(rows[i - 2][j - 2] + 1);
                }
                least
            };
        }
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant() {
        let known = ["timeout", "transport", "format", "url"];
        assert_eq!(closest("timeuot", known), Some("timeout"));
        assert_eq!(closest("Transport", known), Some("transport"));
        assert_eq!(closest("uri", known), Some("url"));
        assert_eq!(closest("colour", known), None);
        assert_eq!(closest("", known), None);
    }
}
