//! A secret that is being replaced: one, or several in a list.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};

use super::Secret;

/// One secret, or several in a list.
#[derive(Clone, Debug)]
pub struct Secrets(Vec<Secret>);

impl Secrets {
    pub fn iter(&self) -> impl Iterator<Item = &Secret> {
        self.0.iter()
    }
}

impl<'de> Deserialize<'de> for Secrets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Secrets;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a secret, or a list of secrets")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Secrets, E> {
                Secret::deserialize(text.into_deserializer()).map(|secret| Secrets(vec![secret]))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Secrets, A::Error> {
                Secret::deserialize(MapAccessDeserializer::new(map)).map(|secret| Secrets(vec![secret]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Secrets, A::Error> {
                let mut secrets = Vec::new();
                while let Some(secret) = list.next_element()? {
                    secrets.push(secret);
                }
                if secrets.is_empty() {
                    return Err(de::Error::custom(
                        "the list holds no secret: leave the key out for requests without a signature",
                    ));
                }
                Ok(Secrets(secrets))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for Secrets {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Secrets".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<Secret>();
        json_schema!({ "anyOf": [one, { "type": "array", "items": one, "minItems": 1 }] })
    }
}
