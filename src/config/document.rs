//! A TOML file: its values, and the lines that they stand on.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::errors::{Place, Problem};
use super::key::Key;

/// A file that was read.
#[derive(Debug, Default)]
pub(super) struct Document {
    /// What messages call it; `None`: there is no file.
    pub name: Option<String>,
    pub table: toml::Table,
    /// The line of every key, from 1.
    lines: BTreeMap<Key, usize>,
}

impl Document {
    /// Reads a file's text.
    ///
    /// # Errors
    /// Every mistake in its syntax.
    pub fn parse(name: &str, text: &str) -> Result<Self, Vec<Problem>> {
        let (spanned, errors) = DeTable::parse_recoverable(text);
        let table = if errors.is_empty() { text.parse::<toml::Table>() } else { Ok(toml::Table::new()) };
        let mut problems: Vec<Problem> = errors
            .iter()
            .chain(table.as_ref().err())
            .map(|error| {
                let place = match error.span() {
                    Some(span) => Place::Line(name.to_owned(), line_of(text, span.start)),
                    None => Place::File(name.to_owned()),
                };
                Problem {
                    key: Key::default(),
                    text: format!("not TOML: {}", one_line(error.message())),
                    place,
                }
            })
            .collect();
        problems.sort_by(|one, other| one.place.cmp(&other.place));
        match table {
            Ok(table) if problems.is_empty() => {
                let mut lines = BTreeMap::new();
                walk_table(&Key::default(), spanned.get_ref(), text, &mut lines);
                Ok(Self { name: Some(name.to_owned()), table, lines })
            }
            _ => Err(problems),
        }
    }

    /// Where a key is written, or else the nearest one around it.
    pub fn place(&self, key: &Key) -> Place {
        let Some(name) = &self.name else { return Place::Nowhere };
        let mut key = Some(key.clone());
        while let Some(around) = key {
            if let Some(line) = self.lines.get(&around) {
                return Place::Line(name.clone(), *line);
            }
            key = around.parent();
        }
        Place::File(name.clone())
    }
}

fn walk_table(key: &Key, table: &DeTable<'_>, text: &str, lines: &mut BTreeMap<Key, usize>) {
    for (name, value) in table {
        let key = key.name(name.get_ref());
        lines.insert(key.clone(), line_of(text, name.span().start));
        walk_value(&key, value.get_ref(), text, lines);
    }
}

fn walk_value(key: &Key, value: &DeValue<'_>, text: &str, lines: &mut BTreeMap<Key, usize>) {
    match value {
        DeValue::Table(table) => walk_table(key, table, text, lines),
        DeValue::Array(array) => {
            for (index, value) in array.iter().enumerate() {
                let key = key.index(index);
                lines.insert(key.clone(), line_of(text, value.span().start));
                walk_value(&key, value.get_ref(), text, lines);
            }
        }
        _ => {}
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}

fn one_line(text: &str) -> String {
    text.split('\n').map(str::trim).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[server]\nlisten = \"x\"\n\n[[routes]]\ntypes = [\n  \"a\",\n  \"b\",\n]\n[[routes]]\ntypes = []\n[a.b]\nc.d = 1\n";

    #[test]
    fn every_key_has_its_line() {
        let document = Document::parse("x.toml", TEXT).unwrap();
        let line = |key: &Key| match document.place(key) {
            Place::Line(_, line) => line,
            other => panic!("{other:?}"),
        };
        assert_eq!(line(&Key::of(["server", "listen"])), 2);
        assert_eq!(line(&Key::of(["server", "other"])), 1);
        assert_eq!(line(&Key::of(["routes"]).index(0).name("types").index(1)), 7);
        assert_eq!(line(&Key::of(["routes"]).index(1).name("types")), 10);
        assert_eq!(line(&Key::of(["a", "b", "c", "d"])), 12);
        assert_eq!(document.place(&Key::of(["nowhere"])), Place::File("x.toml".into()));
    }

    #[test]
    fn every_mistake_in_the_syntax_is_told_with_its_line() {
        let problems = Document::parse("x.toml", "a = \nb = 1\nb = 2\nc = [1\n").unwrap_err();
        assert!(problems.len() >= 2, "{problems:?}");
        assert_eq!(problems[0].place, Place::Line("x.toml".into(), 1));
        assert!(
            problems.iter().any(|problem| problem.place == Place::Line("x.toml".into(), 3)),
            "{problems:?}"
        );
    }
}
