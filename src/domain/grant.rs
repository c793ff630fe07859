//! What a caller may do.

use std::fmt;
use std::str::FromStr;

use super::routing::Pattern;

/// One permission, as configurations and tokens write it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub enum Grant {
    /// `publish:TYPE` or `publish:TYPE@DESTINATION`.
    Publish { types: Pattern, destinations: Option<Pattern> },
    /// `invoke:TYPE`
    Invoke(Pattern),
    /// `durability`
    Durability,
    /// `claim:SCOPE`
    Claim(Pattern),
    /// `operate:read`
    OperateRead,
    /// `operate:write`
    OperateWrite,
    /// `operate`: both.
    Operate,
}

impl FromStr for Grant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, of) = match text.split_once(':') {
            Some((kind, of)) => (kind, Some(of)),
            None => (text, None),
        };
        match (kind, of) {
            ("publish", Some(of)) => {
                let (types, destinations) = match of.split_once('@') {
                    Some((types, destinations)) => (types, Some(destinations.parse()?)),
                    None => (of, None),
                };
                Ok(Self::Publish { types: types.parse()?, destinations })
            }
            ("invoke", Some(types)) => Ok(Self::Invoke(types.parse()?)),
            ("claim", Some(scopes)) => Ok(Self::Claim(scopes.parse()?)),
            ("durability", None) => Ok(Self::Durability),
            ("operate", None) => Ok(Self::Operate),
            ("operate", Some("read")) => Ok(Self::OperateRead),
            ("operate", Some("write")) => Ok(Self::OperateWrite),
            ("publish" | "invoke" | "claim", None) => {
                Err(format!("the grant `{text}` does not say of what: write `{text}:*` for everything"))
            }
            _ => Err(format!(
                "`{text}` is not a grant: write `publish:TYPE`, `publish:TYPE@DESTINATION`, `invoke:TYPE`, \
                 `claim:SCOPE`, `durability`, `operate:read`, `operate:write` or `operate`"
            )),
        }
    }
}

impl TryFrom<String> for Grant {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Grant> for String {
    fn from(grant: Grant) -> Self {
        grant.to_string()
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Publish { types, destinations: None } => write!(f, "publish:{types}"),
            Self::Publish { types, destinations: Some(names) } => write!(f, "publish:{types}@{names}"),
            Self::Invoke(types) => write!(f, "invoke:{types}"),
            Self::Durability => f.write_str("durability"),
            Self::Claim(scopes) => write!(f, "claim:{scopes}"),
            Self::OperateRead => f.write_str("operate:read"),
            Self::OperateWrite => f.write_str("operate:write"),
            Self::Operate => f.write_str("operate"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for text in [
            "publish:order.*",
            "publish:*",
            "publish:order.*@orders",
            "publish:*@*",
            "invoke:*",
            "claim:billing",
            "durability",
            "operate:read",
            "operate:write",
            "operate",
        ] {
            assert_eq!(text.parse::<Grant>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_none_says_how_to_write_one() {
        for text in ["", "admin", "operate:everything", "durability:x", "Publish:*", "operate "] {
            assert!(text.parse::<Grant>().unwrap_err().contains("is not a grant"), "{text}");
        }
        assert!("publish".parse::<Grant>().unwrap_err().contains("publish:*"));
        for text in ["publish:", "publish:a@", "publish:*x", "claim:a\tb"] {
            assert!(text.parse::<Grant>().unwrap_err().contains("is not a pattern"), "{text}");
        }
    }
}
