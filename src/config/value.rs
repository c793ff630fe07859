//! Values with units.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::domain::duration;

/// A duration of the configuration, written `30s` or `PT30S`. Stands for the standard library's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(pub std::time::Duration);

impl Duration {
    pub const fn from_secs(seconds: u64) -> Self {
        Self(std::time::Duration::from_secs(seconds))
    }

    pub const fn from_hours(hours: u64) -> Self {
        Self::from_secs(hours * 60 * 60)
    }

    pub const fn get(self) -> std::time::Duration {
        self.0
    }
}

impl Deref for Duration {
    type Target = std::time::Duration;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl From<Duration> for std::time::Duration {
    fn from(duration: Duration) -> Self {
        duration.0
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&duration::format(self.0))
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = Duration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration with its unit, such as \"30s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
                duration::parse(text).map(Duration).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Duration, E> {
                Err(E::custom(format!("{number} has no unit: write \"{number}s\" for seconds")))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for Duration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "oncegate-duration",
            "pattern": "^[0-9Pp].*[A-Za-z]$",
        })
    }
}

/// A number of bytes, written `256KiB`, `1MiB`, `10MB`, or as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1000),
    ("B", 1),
];

impl ByteSize {
    pub const fn kib(number: u64) -> Self {
        Self(number << 10)
    }

    pub const fn mib(number: u64) -> Self {
        Self(number << 20)
    }

    /// The number of bytes, as large as memory can be addressed.
    pub fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(end);
        let unit = unit.trim_start();
        let factor = match unit {
            "" => Some(1),
            unit => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|(_, factor)| *factor),
        };
        match (digits.parse::<u64>(), factor) {
            (Ok(number), Some(factor)) => number.checked_mul(factor).map(Self),
            _ => None,
        }
        .ok_or_else(|| {
            format!(
                "`{text}` is not a size: write a whole number with its unit, such as `256KiB`, `1MiB`, `10MB`"
            )
        })
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = &UNITS[..3];
        match binary.iter().find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor)) {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size, such as \"1MiB\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                ByteSize::parse(text).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<ByteSize, E> {
                u64::try_from(number).map(ByteSize).map_err(|_| E::custom(format!("{number} is not a size")))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for ByteSize {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "integer"],
            "format": "oncegate-size",
            "pattern": r"^[0-9]+ *([KMG]iB|[kKMG]B|B)?$",
            "minimum": 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Both {
        duration: Duration,
        size: ByteSize,
    }

    fn read(text: &str) -> Result<Both, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn values_with_units() {
        let both = read("duration = \"90s\"\nsize = \"1MiB\"").unwrap();
        assert_eq!((both.duration, both.size), (Duration::from_secs(90), ByteSize::mib(1)));
        for (text, bytes) in
            [("\"2 kb\"", 2000), ("\"3GiB\"", 3 << 30), ("4096", 4096), ("\"7\"", 7), ("\"7B\"", 7)]
        {
            assert_eq!(read(&format!("duration = \"1s\"\nsize = {text}")).unwrap().size.0, bytes, "{text}");
        }
    }

    #[test]
    fn values_without_a_meaning_say_how_to_write_one() {
        for (duration, size, expected) in [
            ("30", "1", "write \"30s\""),
            ("\"1x\"", "1", "is not a duration"),
            ("\"1s\"", "-1", "is not a size"),
            ("\"1s\"", "\"1 parsec\"", "is not a size"),
            ("\"1s\"", "\"99999999999GiB\"", "is not a size"),
            ("true", "1", "a duration with its unit"),
        ] {
            let error = read(&format!("duration = {duration}\nsize = {size}")).unwrap_err();
            assert!(error.contains(expected), "{duration} {size}: {error}");
        }
    }

    #[test]
    fn sizes_are_written_as_they_are_read() {
        for text in ["1MiB", "256KiB", "1000B", "0B", "3GiB"] {
            assert_eq!(ByteSize::parse(text).unwrap().to_string(), text);
        }
    }
}
