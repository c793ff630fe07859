//! How often something may happen: `100/s`, `600/min`, `1000/1h`.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Duration;
use crate::domain::duration;

/// So many requests in so much time; they may come all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub requests: NonZeroU32,
    pub per: Duration,
}

impl Rate {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is not a rate: write a number and a time, such as `100/s`, `600/1m`, `1000/1h`")
        };
        let (requests, per) = text.split_once('/').unwrap_or((text, "1s"));
        let requests = requests.trim().parse().map_err(|_| wrong())?;
        let per = per.trim();
        let per = if per.starts_with(|c: char| c.is_ascii_alphabetic() && c != 'P') {
            format!("1{per}")
        } else {
            per.to_owned()
        };
        let per = duration::parse(&per).map_err(|_| wrong())?;
        if per < std::time::Duration::from_millis(1) {
            return Err(wrong());
        }
        Ok(Self { requests, per: Duration(per) })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.requests, duration::format(self.per.get()))
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = Rate;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rate, such as \"100/s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Rate, E> {
                Rate::parse(text).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Rate, E> {
                Rate::parse(&number.to_string()).map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for Rate {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Rate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer"], "pattern": r"^[1-9][0-9]*( */ *\S+)?$", "minimum": 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_and_a_time() {
        let seconds = |text: &str| {
            let rate = Rate::parse(text).unwrap();
            (rate.requests.get(), rate.per.get().as_secs())
        };
        assert_eq!(seconds("100/s"), (100, 1));
        assert_eq!(seconds("5"), (5, 1));
        assert_eq!(seconds("600/1m"), (600, 60));
        assert_eq!(seconds("9 / PT1H"), (9, 3600));
        for bad in ["", "0/s", "-1/s", "x/s", "5/", "5/0s", "5/soon"] {
            assert!(Rate::parse(bad).unwrap_err().contains("is not a rate"), "{bad}");
        }
    }
}
