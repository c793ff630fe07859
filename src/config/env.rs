//! The environment over the file: `ONCEGATE__SECTION__KEY`.
//!
//! Names are compared with the keys that are there without regard to case, `_` standing for any character that
//! a variable's name cannot have: `ONCEGATE__DESTINATIONS__MY_ORDERS__TIMEOUT` finds `my-orders`. A key that is not
//! there yet is made, in lower case. A number steps into an array, or is the next one.

use toml::{Table, Value};

use super::errors::{Place, Problem};
use super::key::Key;

/// What all such variables begin with.
pub(super) const PREFIX: &str = "ONCEGATE__";

/// A value that came from a variable.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub key: Key,
    pub variable: String,
    /// The variable's text, for keys that want a string where it reads as something else.
    pub text: String,
}

/// Lays the variables over `table`, in the order of their names.
pub(super) fn overlay(
    table: &mut Table,
    variables: impl IntoIterator<Item = (String, String)>,
) -> (Vec<Origin>, Vec<Problem>) {
    let mut variables: Vec<_> = variables.into_iter().filter(|(name, _)| name.starts_with(PREFIX)).collect();
    variables.sort();
    let (mut origins, mut problems) = (Vec::new(), Vec::new());
    for (variable, text) in variables {
        let names: Vec<&str> = variable[PREFIX.len()..].split("__").collect();
        match set(table, &names, read(&text)) {
            Ok(key) => origins.push(Origin { key, variable, text }),
            Err((key, why)) => {
                problems.push(Problem { key, text: why, place: Place::Variable(variable) });
            }
        }
    }
    (origins, problems)
}

/// A text as TOML, else as itself.
fn read(text: &str) -> Value {
    // A line break would make more than one key of it.
    if !text.contains(['\n', '\r'])
        && let Ok(mut table) = format!("value = {text}").parse::<Table>()
        && let Some(value) = table.remove("value")
        && table.is_empty()
        && !matches!(value, Value::Datetime(_))
    {
        return value;
    }
    Value::String(text.to_owned())
}

fn set(table: &mut Table, names: &[&str], value: Value) -> Result<Key, (Key, String)> {
    let mut key = Key::default();
    let Some((last, way)) = names.split_last() else { return Err((key, "names no key".into())) };
    if names.iter().any(|name| name.is_empty()) {
        return Err((key, format!("names no key: write `{PREFIX}SECTION__KEY`")));
    }
    let mut place = Slot::Table(table);
    for name in way {
        let next;
        (key, next) = place.step(&key, name)?;
        if next.as_str() == Some("") {
            *next = Value::Table(Table::new());
        }
        place = match next {
            Value::Table(table) => Slot::Table(table),
            Value::Array(array) => Slot::Array(array),
            _ => return Err((key.clone(), format!("is a single value, so `{last}` cannot be set in it"))),
        };
    }
    let (key, slot) = place.step(&key, last)?;
    *slot = value;
    Ok(key)
}

enum Slot<'a> {
    Table(&'a mut Table),
    Array(&'a mut Vec<Value>),
}

impl<'a> Slot<'a> {
    /// The value under `name`; an empty text where there was none.
    fn step(self, key: &Key, name: &str) -> Result<(Key, &'a mut Value), (Key, String)> {
        match self {
            Self::Table(table) => {
                let name = match matching(table, name) {
                    Some(existing) => existing,
                    None => name.to_lowercase(),
                };
                let key = key.name(&name);
                Ok((key, table.entry(name).or_insert_with(|| Value::String(String::new()))))
            }
            Self::Array(array) => {
                let index = name.parse::<usize>().ok().filter(|index| *index <= array.len());
                let Some(index) = index else {
                    return Err((
                        key.clone(),
                        format!("is a list of {}, so `{name}` is no place in it", array.len()),
                    ));
                };
                if index == array.len() {
                    array.push(Value::String(String::new()));
                }
                Ok((key.index(index), &mut array[index]))
            }
        }
    }
}

/// The key of `table` that a variable's `name` means.
fn matching(table: &Table, name: &str) -> Option<String> {
    let plain = |text: &str| -> String {
        text.chars().map(|c| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
    };
    let by = |same: &dyn Fn(&str) -> bool| table.keys().find(|key| same(key)).cloned();
    by(&|key| key.eq_ignore_ascii_case(name)).or_else(|| by(&|key| plain(key) == plain(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(text: &str, variables: &[(&str, &str)]) -> (Table, Vec<Problem>) {
        let mut table: Table = text.parse().unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let (_, problems) = overlay(&mut table, variables);
        (table, problems)
    }

    #[track_caller]
    fn gives(text: &str, variables: &[(&str, &str)], expected: &str) {
        let (table, problems) = over(text, variables);
        assert_eq!(problems, []);
        assert_eq!(table, expected.parse().unwrap());
    }

    #[test]
    fn variables_go_over_the_file() {
        gives(
            "[server]\nlisten = \"a\"",
            &[("ONCEGATE__SERVER__LISTEN", "0.0.0.0:1")],
            "[server]\nlisten = \"0.0.0.0:1\"",
        );
        gives("", &[("ONCEGATE__SERVER__LIMITS__BATCH", "7")], "server.limits.batch = 7");
        gives("", &[("OTHER", "x"), ("ONCEGATE_CONFIG", "x")], "");
        gives("", &[("ONCEGATE__AUTH__ANONYMOUS", "true")], "auth.anonymous = true");
        gives("", &[("ONCEGATE__A__B", "2020-01-01")], "a.b = \"2020-01-01\"");
        gives("", &[("ONCEGATE__A__B", "1 \nc = 2")], "a.b = \"1 \\nc = 2\"");
    }

    #[test]
    fn names_are_found_whatever_their_case() {
        gives(
            "[destinations.Orders]\nurl = 1",
            &[("ONCEGATE__DESTINATIONS__ORDERS__URL", "x")],
            "[destinations.Orders]\nurl = \"x\"",
        );
        gives(
            "[destinations.my-orders]",
            &[("ONCEGATE__DESTINATIONS__MY_ORDERS__URL", "x")],
            "[destinations.my-orders]\nurl = \"x\"",
        );
        gives(
            "[messages.\"a.b\"]",
            &[("ONCEGATE__MESSAGES__A_B__SCHEMA", "x")],
            "[messages.\"a.b\"]\nschema = \"x\"",
        );
    }

    #[test]
    fn lists_are_reached_by_place_and_set_whole() {
        gives("routes = [{ a = 1 }]", &[("ONCEGATE__ROUTES__0__A", "2")], "routes = [{ a = 2 }]");
        gives("routes = [{ a = 1 }]", &[("ONCEGATE__ROUTES__1__A", "2")], "routes = [{ a = 1 }, { a = 2 }]");
        gives("", &[("ONCEGATE__ROUTES", "[{types=[\"*\"]}]")], "routes = [{ types = [\"*\"] }]");
        let (_, problems) = over("routes = []", &[("ONCEGATE__ROUTES__5__A", "2")]);
        assert!(problems[0].text.contains("no place in it"), "{problems:?}");
    }

    #[test]
    fn what_cannot_be_set_says_so() {
        let (_, problems) =
            over("a = 1", &[("ONCEGATE__A__B", "2"), ("ONCEGATE__", "3"), ("ONCEGATE__A____B", "3")]);
        assert_eq!(problems.len(), 3);
        assert_eq!(problems[1].place, Place::Variable("ONCEGATE__A__B".into()));
    }
}
