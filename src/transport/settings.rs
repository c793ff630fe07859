//! From a destination's table to a transport's own configuration.

use std::fmt;

use serde::de::DeserializeOwned;

/// A destination's settings are not what its transport takes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.message())]
pub struct ConfigError {
    /// The key below the destination, dotted (`declare.queue`); empty: the destination itself.
    pub key: String,
    /// What is wrong with it and what to do, without the key.
    pub text: String,
}

impl ConfigError {
    pub fn new(key: impl Into<String>, text: impl fmt::Display) -> Self {
        Self { key: key.into(), text: text.to_string() }
    }

    fn message(&self) -> String {
        if self.key.is_empty() { self.text.clone() } else { format!("`{}`: {}", self.key, self.text) }
    }
}

/// Reads `settings` as a transport's configuration, unknown keys refused.
pub(super) fn read<C: DeserializeOwned>(settings: toml::Table) -> Result<C, ConfigError> {
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(toml::Value::Table(settings), &mut track);
    C::deserialize(tracked).map_err(|error: toml::de::Error| {
        let text = error.message().trim().to_owned();
        let mut key = track.path().to_string();
        if key == "." {
            key.clear();
        }
        // A missing key is told at the table that lacks it.
        if let Some(missing) = between(&text, "missing field `", "`") {
            let dot = if key.is_empty() { "" } else { "." };
            key = format!("{key}{dot}{missing}");
            return ConfigError::new(key, "is needed here, and missing");
        }
        ConfigError::new(key, text)
    })
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let rest = text.strip_prefix(before)?;
    rest.split_once(after).map(|(inner, _)| inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Outer {
        url: String,
        inner: Option<Inner>,
        #[serde(default)]
        map: BTreeMap<String, Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Inner {
        size: u8,
    }

    fn key(text: &str) -> String {
        read::<Outer>(text.parse().unwrap()).unwrap_err().key
    }

    #[test]
    fn errors_name_the_key() {
        assert_eq!(key("url = 'x'\ncolour = 'red'"), "colour");
        assert_eq!(key("url = 1"), "url");
        assert_eq!(key(""), "url");
        assert_eq!(key("url = 'x'\ninner = { size = 'big' }"), "inner.size");
        assert_eq!(key("url = 'x'\ninner = { size = 1, shape = 2 }"), "inner.shape");
        assert_eq!(key("url = 'x'\nmap.Orders = {}"), "map.Orders.size");
    }
}
