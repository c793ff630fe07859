//! From values to the sections, collecting every mistake instead of stopping at the first.

use serde::Deserialize;
use toml::{Table, Value};

use super::Config;
use super::env::Origin;
use super::errors::{Problem, closest};
use super::key::{Key, Removed};

/// After so many mistakes reading ends.
const MOST_PROBLEMS: usize = 100;

/// What could be read, and what could not.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// With defaults in the place of what could not be read.
    pub config: Config,
    pub problems: Vec<Problem>,
    /// What was taken out, so that keys found in `config` can be told as in the file.
    pub removed: Removed,
}

/// Reads `table`. What cannot be read is told, taken out, and the rest is tried again.
pub(super) fn read(mut table: Table, origins: &[Origin]) -> Read {
    let mut result = Read::default();
    let mut as_text: Vec<Key> = Vec::new();
    for _ in 0..MOST_PROBLEMS {
        let mut track = serde_path_to_error::Track::new();
        let tracked = serde_path_to_error::Deserializer::new(Value::Table(table.clone()), &mut track);
        let error = match Config::deserialize(tracked) {
            Ok(config) => {
                result.config = config;
                break;
            }
            Err(error) => error,
        };
        let key = Key::from(track.path());
        let original = result.removed.original(&key);
        // A variable's `7` may be meant as the text "7".
        if let Some(origin) = origins.iter().find(|origin| origin.key == original)
            && !as_text.contains(&original)
            && let Some(value) = key.find(&mut table)
            && !value.is_str()
        {
            *value = Value::String(origin.text.clone());
            as_text.push(original);
            continue;
        }
        let problem = explain(&original, error.message());
        // A key that was wrong, and so taken out, is not also missing.
        if !result.problems.iter().any(|told| told.key == problem.key) {
            result.problems.push(problem);
        }
        // Where serde's path ends in something that is not there, what is around it goes.
        let mut bad = Some(key);
        while let Some(key) = bad {
            if key.remove(&mut table) {
                let original = result.removed.original(&key);
                result.removed.remember(original);
                break;
            }
            bad = key.parent();
            if bad.is_none() {
                return result;
            }
        }
    }
    result
}

/// What serde says, in words for somebody who edits a file.
fn explain(key: &Key, message: &str) -> Problem {
    let message = message.trim();
    if let Some(name) = between(message, "missing field `", "`") {
        return Problem::new(key.name(name), "is missing, and needed here");
    }
    if let Some(name) = between(message, "unknown field `", "`") {
        // serde's path ends in the unknown key itself.
        return Problem::new(key.clone(), unknown_key(name, message));
    }
    if let Some(name) = between(message, "unknown variant `", "`") {
        let known = quoted_names(message);
        return Problem::new(key.clone(), format!("`{name}` is not one of {}", known[1..].join(", ")));
    }
    let message = message.replace("invalid type: map", "invalid type: table");
    Problem::new(key.clone(), message)
}

/// What to say of a key that is not known, given serde's message.
pub(super) fn unknown_key(name: &str, message: &str) -> String {
    let names = quoted_names(message);
    let known = names.get(1..).unwrap_or_default();
    match closest(name, known.iter().copied()) {
        Some(meant) => format!("there is no such key; did you mean `{meant}`?"),
        None if known.is_empty() => "there is no such key".into(),
        None => format!("there is no such key; here may stand {}", known.join(", ")),
    }
}

/// Everything that stands in backquotes.
fn quoted_names(message: &str) -> Vec<&str> {
    message.split('`').skip(1).step_by(2).collect()
}

pub(super) fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.strip_prefix(before)?.split_once(after).map(|(inner, _)| inner)
}
