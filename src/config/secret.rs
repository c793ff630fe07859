//! Values that must not be seen.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::ArcSwap;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A secret: written as a string, or as where it is found. Never printed and never serialised.
///
/// Clones share the value: when [`reload_all`] has read a file again, every clone gives the new one. So keep the
/// `Secret`, and ask it each time.
#[derive(Clone)]
pub struct Secret(Arc<Inner>);

struct Inner {
    source: Source,
    value: ArcSwap<String>,
}

/// Where a secret comes from.
#[derive(Clone, PartialEq, Eq)]
enum Source {
    Inline,
    Env(String),
    File(PathBuf),
}

/// Files larger than this are not secrets.
const LARGEST_FILE_BYTES: u64 = 64 * 1024;

/// Every secret that is read from a file and still in use.
static FROM_FILES: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

impl Secret {
    /// A secret whose value is known.
    pub fn new(value: impl Into<String>) -> Self {
        Self(Arc::new(Inner { source: Source::Inline, value: ArcSwap::from_pointee(value.into()) }))
    }

    /// The value of the environment variable `name`.
    ///
    /// # Errors
    /// What is wrong with the variable, for people.
    pub fn from_env(name: &str) -> Result<Self, String> {
        let source = Source::Env(name.to_owned());
        let value = source.read()?;
        Ok(Self(Arc::new(Inner { source, value: ArcSwap::from_pointee(value) })))
    }

    /// The content of the file at `path`, without the newline at its end.
    ///
    /// # Errors
    /// What is wrong with the file, for people.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let source = Source::File(path.to_owned());
        let value = source.read()?;
        let inner = Arc::new(Inner { source, value: ArcSwap::from_pointee(value) });
        let mut all = FROM_FILES.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&inner));
        Ok(Self(inner))
    }

    /// The value as it is now. Do not log it, and do not keep it.
    pub fn expose(&self) -> Arc<String> {
        self.0.value.load_full()
    }
}

/// Reads again every secret that comes from a file, wherever it is held. (A process's own environment does not
/// change from outside; what stands in the configuration file is read again with it.) A secret whose file cannot
/// be read keeps its value. Returns what went wrong.
pub fn reload_all() -> Vec<String> {
    let all: Vec<Arc<Inner>> =
        FROM_FILES.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect();
    let mut errors = Vec::new();
    for secret in all {
        match secret.source.read() {
            Ok(value) => secret.value.store(Arc::new(value)),
            Err(error) => errors.push(error),
        }
    }
    errors.sort();
    errors.dedup();
    errors
}

impl Source {
    fn read(&self) -> Result<String, String> {
        let (value, whence) = match self {
            Self::Inline => return Err("a secret that is written out cannot be read again".into()),
            Self::Env(name) => {
                let value = std::env::var(name).map_err(|error| match error {
                    std::env::VarError::NotPresent => format!("the environment variable `{name}` is not set"),
                    std::env::VarError::NotUnicode(_) => {
                        format!("the environment variable `{name}` is not UTF-8")
                    }
                })?;
                (value, format!("the environment variable `{name}`"))
            }
            Self::File(path) => (read_file(path)?, format!("the file `{}`", path.display())),
        };
        if value.is_empty() {
            return Err(format!("{whence} is empty"));
        }
        Ok(value)
    }
}

fn read_file(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("cannot read the file `{}`: {error}", path.display());
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > LARGEST_FILE_BYTES {
        return Err(format!("the file `{}` is too large to be a secret ({size} bytes)", path.display()));
    }
    let mut text = std::fs::read_to_string(path).map_err(failed)?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.source {
            Source::Inline => f.write_str("Secret(…)"),
            Source::Env(name) => write!(f, "Secret(… from ${name})"),
            Source::File(path) => write!(f, "Secret(… from {})", path.display()),
        }
    }
}

/// Equal when the values are. For tests and for noticing a change; authentication compares in constant time
/// elsewhere.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for Secret {}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Secret;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a secret: a string, { env = \"NAME\" } or { file = \"PATH\" }")
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Secret, E> {
                if value.is_empty() {
                    Err(E::custom("a secret must not be empty"))
                } else {
                    Ok(Secret::new(value))
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Secret, A::Error> {
                let one = "write exactly one of `env` and `file`";
                let (key, place) =
                    map.next_entry::<String, String>()?.ok_or_else(|| de::Error::custom(one))?;
                if map.next_key::<String>()?.is_some() {
                    return Err(de::Error::custom(one));
                }
                match key.as_str() {
                    "env" => Secret::from_env(&place),
                    "file" => Secret::from_file(Path::new(&place)),
                    _ => Err(one.to_owned()),
                }
                .map_err(de::Error::custom)
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A secret: a string, the name of an environment variable, or the path of a file that holds it (read again on SIGHUP).",
            "anyOf": [
                { "type": "string", "minLength": 1 },
                { "type": "object", "properties": { "env": { "type": "string" } }, "required": ["env"], "additionalProperties": false },
                { "type": "object", "properties": { "file": { "type": "string" } }, "required": ["file"], "additionalProperties": false },
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Holder {
        secret: Secret,
    }

    fn read(text: &str) -> Result<Secret, String> {
        toml::from_str::<Holder>(&format!("secret = {text}"))
            .map(|holder| holder.secret)
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_secret_does_not_print() {
        let secret = read("\"hunter2\"").unwrap();
        assert_eq!(*secret.expose(), "hunter2");
        assert!(!format!("{secret:?}").contains("hunter2"));
    }

    #[test]
    fn a_file_is_read_again_and_its_clones_follow() {
        let path = std::env::temp_dir().join(format!("oncegate-secret-{}", std::process::id()));
        std::fs::write(&path, "one\n").unwrap();
        let secret = read(&format!("{{ file = '{}' }}", path.display())).unwrap();
        let clone = secret.clone();
        assert_eq!(*clone.expose(), "one");
        std::fs::write(&path, "two\r\n").unwrap();
        assert_eq!(*clone.expose(), "one");
        assert!(reload_all().is_empty());
        assert_eq!(*clone.expose(), "two");
        std::fs::remove_file(&path).unwrap();
        assert!(reload_all().iter().any(|error| error.contains("oncegate-secret")));
        assert_eq!(*clone.expose(), "two");
    }

    #[test]
    fn what_is_none_says_why() {
        for (text, expected) in [
            ("\"\"", "must not be empty"),
            ("{}", "exactly one"),
            ("{ env = \"A\", file = \"B\" }", "exactly one"),
            ("{ vault = \"A\" }", "exactly one"),
            ("{ env = \"ONCEGATE_TEST_NOT_SET\" }", "`ONCEGATE_TEST_NOT_SET` is not set"),
            ("{ file = \"/does/not/exist\" }", "cannot read the file `/does/not/exist`"),
            ("7", "a secret: a string"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
