//! `[[handlers.NAME.on_error]]`

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Duration;
use crate::domain::duration;
use crate::domain::policy::{self, Kind, Policy};

/// What becomes of messages that the handler failed on in one of some ways.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OnError {
    /// Which failures: `timeout` (no answer in time), `unreachable` (no connection), `lost` (the connection broke before
    /// the answer), `invalid-reply` (it publishes what cannot be accepted), a status such as `409`, `4xx`, `5xx`, or `*`.
    /// The last three leave out what is the handler's own fault (it is not reached, 429, 503 and the like), which waits
    /// for the handler at no attempts: a policy is about that only where it names it exactly.
    #[schemars(extend("examples" = [["timeout", "409"]]))]
    pub kinds: Vec<Kind>,
    /// How long to wait before the second attempt, the third, and so on: a list such as `["now", "10s", "1m"]`, one
    /// such value, or `"never"`. All failed attempts at the message count, of whatever kind. Left out: as the handler's
    /// `retry` says.
    #[serde(default)]
    #[schemars(extend("examples" = [["now", "10s", "1m"]]))]
    pub retry: Option<Delays>,
    /// When these are used up: `dead-letter`, `discard` (the message is gone; that is logged, counted, and said by its
    /// receipt), or `pause` (the handler is paused on all nodes, and the message waits for it).
    #[serde(default)]
    #[schemars(extend("examples" = ["pause"]))]
    pub then: Then,
    /// For how long `then = "pause"` pauses. Left out: until it is resumed (`POST /v1/targets/{name}/resume`).
    #[serde(default)]
    #[schemars(extend("examples" = ["10m"]))]
    pub pause_for: Option<Duration>,
}

/// What becomes of a message when the attempts are used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Then {
    /// It is kept among the dead letters.
    #[default]
    DeadLetter,
    /// It is gone.
    Discard,
    /// It waits, and the handler with it.
    Pause,
}

impl OnError {
    /// For use on failures.
    pub fn policy(&self) -> Policy {
        let delays = |delays: &Delays| delays.0.iter().map(|delay| delay.get()).collect();
        Policy {
            kinds: self.kinds.clone(),
            retry: self.retry.as_ref().map(delays),
            then: match self.then {
                Then::DeadLetter => policy::Then::DeadLetter,
                Then::Discard => policy::Then::Discard,
                Then::Pause => policy::Then::Pause(self.pause_for.map(Duration::get)),
            },
        }
    }
}

/// Waits before further attempts, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delays(pub Vec<Duration>);

impl Delays {
    fn parse(text: &str) -> Result<Duration, String> {
        if text == "now" {
            return Ok(Duration::default());
        }
        duration::parse(text).map(Duration).map_err(|_| {
            format!("`{text}` is not a wait: write `now` or a duration such as `10s`, or a list of them, or `never` alone")
        })
    }
}

impl Serialize for Delays {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_empty() {
            return serializer.serialize_str("never");
        }
        let written = |delay: &Duration| if delay.is_zero() { "now".to_owned() } else { delay.to_string() };
        serializer.collect_seq(self.0.iter().map(written))
    }
}

impl<'de> Deserialize<'de> for Delays {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            One(String),
            Several(Vec<String>),
        }
        let wrong = serde::de::Error::custom::<String>;
        let delays = match Written::deserialize(deserializer) {
            Ok(Written::One(text)) if text == "never" => Ok(Vec::new()),
            Ok(Written::One(text)) => Self::parse(&text).map(|delay| vec![delay]),
            Ok(Written::Several(texts)) => texts.iter().map(|text| Self::parse(text)).collect(),
            Err(_) => {
                Err("write \"now\", \"never\", a duration such as \"10s\", or a list of them".to_owned())
            }
        };
        delays.map(Self).map_err(wrong)
    }
}

impl JsonSchema for Delays {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Delays".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let delay = r"^(now|[0-9Pp].*[A-Za-z])$";
        json_schema!({
            "anyOf": [
                { "const": "never" },
                { "type": "string", "pattern": delay },
                { "type": "array", "items": { "type": "string", "pattern": delay } },
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<OnError, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_policy_is_read() {
        let read = |text: &str| read(&format!("kinds = ['*']\n{text}")).unwrap().policy();
        let seconds = |all: &[u64]| Some(all.iter().copied().map(std::time::Duration::from_secs).collect());
        assert_eq!(read("").retry, None);
        assert_eq!(read("retry = 'never'").retry, Some(vec![]));
        assert_eq!(read("retry = 'now'").retry, seconds(&[0]));
        assert_eq!(read("retry = '1m'").retry, seconds(&[60]));
        assert_eq!(read("retry = ['now', '10s', '1h']").retry, seconds(&[0, 10, 3_600]));
        assert_eq!(read("then = 'discard'").then, policy::Then::Discard);
        let paused = policy::Then::Pause(Some(std::time::Duration::from_secs(600)));
        assert_eq!(read("then = 'pause'\npause_for = '10m'").then, paused);
    }

    #[test]
    fn what_is_none_says_how_to_write_one() {
        for (text, expected) in [
            ("kinds = ['2xx']", "is no kind of failure"),
            ("kinds = ['*']\nretry = 'soon'", "is not a wait"),
            ("kinds = ['*']\nretry = ['never']", "is not a wait"),
            ("kinds = ['*']\nretry = 10", "write \"now\""),
            ("kinds = ['*']\nthen = 'drop'", "unknown variant"),
            ("retry = 'now'", "missing field `kinds`"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
