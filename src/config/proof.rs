//! How those that push prove themselves, as far as it is the same for every format.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use super::Secrets;

/// A token (JWT, OpenID Connect) that the sender sends as `Authorization: Bearer TOKEN`: that of a Google service
/// account (Pub/Sub), or of Microsoft Entra (Event Grid).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Oidc {
    /// The `iss` that a token must have, to the letter.
    #[schemars(extend("examples" = ["https://accounts.google.com"]))]
    pub issuer: String,
    /// The `aud` that a token must have (or have among others).
    #[schemars(extend("examples" = ["https://gateway.example.com/v1/push/orders"]))]
    pub audience: String,
    /// The `email` that a token must have, verified by its issuer (`email_verified`). Needed for Google's tokens:
    /// everybody can have one with any audience.
    #[serde(default)]
    #[schemars(extend("examples" = ["pusher@my-project.iam.gserviceaccount.com"]))]
    pub email: Option<String>,
    /// Other claims that a token must have: each this text, or a list with it among others.
    #[serde(default)]
    #[schemars(extend("examples" = [{ "appid": "4962773b-9cdb-44cf-a8bf-237846a00ab7" }]))]
    pub claims: BTreeMap<String, String>,
    /// The issuer's public keys (JWKS): the URL of the set (`https:`; `http:` on loopback only), or the path of a
    /// file.
    #[schemars(extend("examples" = ["https://www.googleapis.com/oauth2/v3/certs"]))]
    pub jwks: String,
}

impl Oidc {
    /// Makes the path of a file relative to the configuration's folder.
    pub fn relative_to(&mut self, base: &std::path::Path) {
        if super::auth::jwks_url(&self.jwks).is_none() {
            self.jwks = base.join(&self.jwks).display().to_string();
        }
    }
}

/// Google's issuer, in both its spellings.
const GOOGLE: [&str; 2] = ["https://accounts.google.com", "accounts.google.com"];

impl Oidc {
    /// What is wrong with it: the key below this section, and why.
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        for (name, value) in [("issuer", &self.issuer), ("audience", &self.audience), ("jwks", &self.jwks)] {
            if value.is_empty() {
                problems.push((name, "must not be empty".to_owned()));
            }
        }
        if GOOGLE.contains(&self.issuer.as_str()) && self.email.is_none() {
            problems.push((
                "email",
                "everybody can have a token of Google's with this audience: name the service account"
                    .to_owned(),
            ));
        }
        if self.email.as_ref().is_some_and(String::is_empty) {
            problems.push(("email", "must not be empty; leave it out instead".to_owned()));
        }
        if let Some(problem) = super::auth::key_set_problem(&self.jwks).filter(|_| !self.jwks.is_empty()) {
            problems.push(("jwks", problem));
        }
        problems
    }
}

/// A secret that the sender sends with every request.
#[derive(Clone, Debug, Serialize)]
pub struct ApiKey {
    #[serde(flatten)]
    pub place: Place,
    /// Any of them may match.
    #[serde(skip_serializing)]
    pub value: Secrets,
}

/// Where a secret stands in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// The value of this header; the name in lower case.
    Header(String),
    /// The value of this parameter of the URL's query.
    Query(String),
}

impl<'de> Deserialize<'de> for ApiKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;

        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Written {
            header: Option<String>,
            query: Option<String>,
            value: Secrets,
        }
        let Written { header, query, value } = Written::deserialize(deserializer)?;
        let place = match (header, query) {
            (Some(name), None) => {
                if !crate::domain::wire::is_token(&name) {
                    return Err(D::Error::custom(format!("`{name}` is not the name of a header")));
                }
                Place::Header(name.to_ascii_lowercase())
            }
            (None, Some(name)) if !name.is_empty() => Place::Query(name),
            _ => return Err(D::Error::custom("write `value`, and exactly one of `header` and `query`")),
        };
        Ok(Self { place, value })
    }
}

impl JsonSchema for ApiKey {
    fn schema_name() -> Cow<'static, str> {
        "ApiKey".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let value = generator.subschema_for::<Secrets>();
        let in_place = |name: &str, description: &str| {
            json_schema!({
                "type": "object",
                "properties": {
                    name: { "type": "string", "minLength": 1, "description": description },
                    "value": value.clone(),
                },
                "required": [name, "value"],
                "additionalProperties": false,
            })
        };
        json_schema!({
            "description": "A secret that the sender sends with every request, in a header or in the URL's query.",
            "anyOf": [in_place("header", "The header's name."), in_place("query", "The parameter's name.")],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Holder {
        key: ApiKey,
    }

    #[test]
    fn a_secret_stands_in_a_header_or_in_the_query() {
        let read = |text: &str| toml::from_str::<Holder>(&format!("key = {text}")).map(|holder| holder.key);
        let header = read("{ header = 'X-Api-Key', value = 'a' }").unwrap();
        assert_eq!(header.place, Place::Header("x-api-key".to_owned()));
        let query = read("{ query = 'code', value = ['a', 'b'] }").unwrap();
        assert_eq!((query.place, query.value.iter().count()), (Place::Query("code".to_owned()), 2));
        for (text, expected) in [
            ("{ value = 'a' }", "exactly one"),
            ("{ header = 'a', query = 'b', value = 'c' }", "exactly one"),
            ("{ query = '', value = 'c' }", "exactly one"),
            ("{ header = 'a b', value = 'c' }", "not the name of a header"),
            ("{ header = 'a' }", "value"),
            ("{ header = 'a', value = '' }", "must not be empty"),
            ("{ header = 'a', value = 'b', colour = 'red' }", "colour"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.message().contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_token_of_googles_needs_its_service_account() {
        let mut oidc = Oidc {
            issuer: "https://accounts.google.com".to_owned(),
            audience: "a".to_owned(),
            email: None,
            claims: BTreeMap::new(),
            jwks: "https://keys.test/".to_owned(),
        };
        let keys = |oidc: &Oidc| oidc.problems().into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        assert_eq!(keys(&oidc), ["email"]);
        oidc.email = Some("pusher@x.test".to_owned());
        assert!(keys(&oidc).is_empty());
        oidc.jwks = "http://keys.test/".to_owned();
        oidc.audience.clear();
        assert_eq!(keys(&oidc), ["audience", "jwks"]);
    }
}
