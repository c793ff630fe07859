//! Finding, reading and checking a configuration.

use std::path::{Path, PathBuf};

use schemars::{Schema, SchemaGenerator};
use toml::{Table, Value};

use super::document::Document;
use super::errors::{Errors, Place, Problem};
use super::key::Key;
use super::{Config, Destination, Receiver, Route, check, env, read};
use crate::domain::routing::Pattern;

/// The variable that names the file.
pub const FILE_VARIABLE: &str = "ONCEGATE_CONFIG";

/// The file that is read when none is named and it is there.
pub const DEFAULT_FILE: &str = "oncegate.toml";

/// What the program can connect to. Told from outside, because transports and stores know their own settings.
pub trait Backends {
    /// The engines' URL schemes.
    fn engines(&self) -> Vec<&'static str>;

    /// The transports' names.
    fn transports(&self) -> Vec<&'static str>;

    /// Whether a destination's settings are sound, as far as that can be told without connecting.
    ///
    /// # Errors
    /// The key below the destination (dotted; empty: the destination itself), and what is wrong with it.
    fn check(&self, destination: &Destination) -> Result<(), (String, String)>;

    /// The formats of receivers.
    fn formats(&self) -> Vec<Format>;

    /// What is wrong with a receiver of a format that there is: keys below it, and why.
    fn check_receiver(&self, receiver: &Receiver) -> Vec<(&'static str, String)>;

    /// The JSON Schema of each transport's settings.
    fn schemas(&self, generator: &mut SchemaGenerator) -> Vec<(&'static str, Schema)>;
}

/// A format of receivers, as far as the configuration shows it.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    pub name: &'static str,
    /// Keys that not every format has.
    pub keys: &'static [&'static str],
    /// Other keys that its example needs.
    pub needs: &'static [&'static str],
}

/// Loads the configuration: from `path`, else from the file that `ONCEGATE_CONFIG` names, else from
/// `./oncegate.toml` where that is there, else the defaults; with `ONCEGATE__SECTION__KEY` of `variables` over it.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load(
    path: Option<&Path>,
    variables: impl IntoIterator<Item = (String, String)>,
    backends: &dyn Backends,
) -> Result<Config, Errors> {
    let variables: Vec<_> = variables.into_iter().collect();
    let named = variables.iter().find(|(name, value)| name == FILE_VARIABLE && !value.is_empty());
    let file = match (path, named) {
        (Some(path), _) => Some(path.to_owned()),
        (None, Some((_, value))) => Some(PathBuf::from(value)),
        (None, None) => Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()),
    };
    let text = match &file {
        Some(path) => Some(std::fs::read_to_string(path).map_err(|error| {
            let place = Place::File(path.display().to_string());
            Errors(vec![Problem { key: Key::default(), text: format!("cannot be read: {error}"), place }])
        })?),
        None => None,
    };
    parse(file.as_deref().zip(text.as_deref()), variables, backends)
}

/// Reads the environment of this process, leaving out what is not UTF-8.
pub fn process_environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// As [`load`], from a file's path and text.
pub(super) fn parse(
    file: Option<(&Path, &str)>,
    variables: impl IntoIterator<Item = (String, String)>,
    backends: &dyn Backends,
) -> Result<Config, Errors> {
    let document = match file {
        Some((path, text)) => Document::parse(&path.display().to_string(), text).map_err(Errors)?,
        None => Document::default(),
    };
    let mut table = document.table.clone();
    let (origins, mut problems) = env::overlay(&mut table, variables);
    let base = file.and_then(|(path, _)| path.parent()).unwrap_or(Path::new(""));
    secrets_relative_to(base, &mut table);

    // Names that are defined, even where the definition itself is wrong: that is told once, and there.
    let defined = check::Defined::of(&table);
    let read::Read { mut config, problems: misread, removed } = read::read(table, &origins);
    let damaged: Vec<Key> = misread.iter().map(|problem| problem.key.clone()).collect();
    problems.extend(misread);

    config.file = file.map(|(path, _)| path.to_owned());
    config.stores.entry("main".into()).or_default();
    paths_relative_to(base, &mut config);
    if defined.routes_nothing() {
        config.destinations.insert("stdout".into(), Destination::new("stdout"));
        config.routes.push(Route { types: vec![Pattern::Any], destinations: vec!["stdout".into()] });
    }
    for mut found in check::check(&mut config, &defined, backends) {
        found.key = removed.original(&found.key);
        // What follows from a value that could not be read would only confuse.
        if !damaged.iter().any(|key| key.starts_with(&found.key)) {
            problems.push(found);
        }
    }
    if problems.is_empty() {
        return Ok(config);
    }
    for problem in &mut problems {
        if problem.place == Place::Nowhere {
            let by_variable = origins.iter().find(|origin| problem.key.starts_with(&origin.key));
            problem.place = match by_variable {
                Some(origin) => Place::Variable(origin.variable.clone()),
                None => document.place(&problem.key),
            };
        }
    }
    problems.sort_by(|one, other| one.place.cmp(&other.place));
    Err(Errors(problems))
}

/// Makes `{ file = "PATH" }` relative to the configuration file, wherever a secret may stand.
fn secrets_relative_to(base: &Path, table: &mut Table) {
    fn walk(base: &Path, value: &mut Value) {
        match value {
            Value::Table(table) if table.len() == 1 && table.get("file").is_some_and(Value::is_str) => {
                if let Some(Value::String(file)) = table.get_mut("file") {
                    *file = base.join(&*file).display().to_string();
                }
            }
            Value::Table(table) => table.iter_mut().for_each(|(_, value)| walk(base, value)),
            Value::Array(array) => array.iter_mut().for_each(|value| walk(base, value)),
            _ => {}
        }
    }
    table.iter_mut().for_each(|(_, value)| walk(base, value));
}

fn paths_relative_to(base: &Path, config: &mut Config) {
    for message in config.messages.values_mut() {
        if let Some(path) = &mut message.schema {
            *path = base.join(&*path);
        }
    }
    for receiver in config.receivers.values_mut() {
        if let Some(path) = &mut receiver.certificate {
            *path = base.join(&*path);
        }
        if let Some(oidc) = &mut receiver.oidc
            && super::auth::jwks_url(&oidc.jwks).is_none()
            && !oidc.jwks.is_empty()
        {
            oidc.jwks = base.join(&oidc.jwks).display().to_string();
        }
    }
    if let Some(jwt) = &mut config.auth.jwt
        && jwt.jwks_url().is_none()
    {
        jwt.jwks = base.join(&jwt.jwks).display().to_string();
    }
}
