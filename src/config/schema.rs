//! The JSON Schema of the configuration, the transports' settings included. Written by the types' doc comments.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::{Backends, Config};

/// The schema (JSON Schema 2020-12), for editors and for `oncegate config example`.
pub fn schema(backends: &dyn Backends) -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let transports = backends.schemas(&mut generator);
    let mut schema = generator.into_root_schema_for::<Config>().to_value();
    schema["title"] = json!("Oncegate configuration");
    // A destination takes the keys of its transport beside the common ones.
    let names: Vec<&str> = transports.iter().map(|(name, _)| *name).collect();
    let by_transport: Vec<Value> = transports
        .iter()
        .map(|(name, settings)| {
            let mut settings = settings.clone().to_value();
            if let Some(settings) = settings.as_object_mut() {
                settings.remove("additionalProperties");
            }
            json!({
                "if": { "properties": { "transport": { "const": name } }, "required": ["transport"] },
                "then": settings,
            })
        })
        .collect();
    if let Some(destination) = schema.pointer_mut("/$defs/Destination").and_then(Value::as_object_mut) {
        destination.remove("additionalProperties");
        destination.insert("unevaluatedProperties".into(), json!(false));
        if let Some(transport) = destination.get_mut("properties").and_then(|all| all.get_mut("transport")) {
            transport["enum"] = json!(names);
        }
        if !by_transport.is_empty() {
            destination.insert("allOf".into(), Value::Array(by_transport));
        }
    }
    receivers(&mut schema, backends);
    schema
}

/// A receiver takes the keys of its format beside those that all have.
fn receivers(schema: &mut Value, backends: &dyn Backends) {
    let formats = backends.formats();
    let Some(receiver) = schema.pointer_mut("/$defs/Receiver").and_then(Value::as_object_mut) else { return };
    receiver.remove("additionalProperties");
    receiver.insert("unevaluatedProperties".into(), json!(false));
    let Some(properties) = receiver.get_mut("properties").and_then(Value::as_object_mut) else { return };
    let names: Vec<&str> = formats.iter().map(|format| format.name).collect();
    if let Some(format) = properties.get_mut("format") {
        format["enum"] = json!(names);
    }
    let all = properties.clone();
    for key in formats.iter().flat_map(|format| format.keys) {
        properties.remove(*key);
    }
    let by_format = formats.iter().map(|format| {
        let mut own = serde_json::Map::new();
        for key in format.keys.iter().chain(format.needs).chain(&["publish"]) {
            let mut property = all.get(*key).cloned().unwrap_or_default();
            if let Some(property) = property.as_object_mut().filter(|_| !format.keys.contains(key)) {
                property.remove("default");
            }
            if *key == "publish" {
                property["examples"] = json!([true]);
            }
            own.insert((*key).to_owned(), property);
        }
        json!({
            "if": { "properties": { "format": { "const": format.name } }, "required": ["format"] },
            "then": { "properties": own },
        })
    });
    let by_format: Vec<Value> = by_format.collect();
    receiver.insert("allOf".into(), Value::Array(by_format));
}

/// A place in a schema, with its references followed.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    root: &'a Value,
    /// As written at the property: its description, default and examples.
    written: &'a Value,
    /// What it is.
    resolved: &'a Value,
}

/// One of several forms of a table.
pub(super) struct Variant<'a> {
    /// The key that says which.
    pub key: &'static str,
    pub name: &'a str,
    pub settings: Node<'a>,
}

/// What a value is, as far as a TOML file shows it.
pub(super) enum Shape<'a> {
    /// A single value, or a list of such.
    Plain,
    /// Keys of its own.
    Table,
    /// Tables by names that the user chooses.
    Map(Node<'a>),
    /// `[[…]]`
    Tables(Node<'a>),
}

impl<'a> Node<'a> {
    pub fn root(schema: &'a Value) -> Self {
        Self::new(schema, schema)
    }

    pub fn new(root: &'a Value, written: &'a Value) -> Self {
        Self { root, written, resolved: resolve(root, written) }
    }

    pub fn shape(&self) -> Shape<'a> {
        let inner = |keyword: &str| self.resolved.get(keyword).map(|inner| Self::new(self.root, inner));
        if self.resolved.get("properties").is_some() {
            return Shape::Table;
        }
        match (inner("items"), inner("additionalProperties")) {
            (Some(items), _) if matches!(items.shape(), Shape::Table) => Shape::Tables(items),
            (_, Some(each)) if matches!(each.shape(), Shape::Table) => Shape::Map(each),
            _ => Shape::Plain,
        }
    }

    /// The keys of a table: those that are needed first, then single values, then tables.
    pub fn properties(&self) -> Vec<(&'a str, Node<'a>)> {
        let all = self.resolved.get("properties").and_then(Value::as_object).into_iter().flatten();
        let mut all: Vec<(&str, Node<'_>)> =
            all.map(|(name, written)| (name.as_str(), Self::new(self.root, written))).collect();
        all.sort_by_key(|(name, node)| {
            (!self.requires(name), !matches!(node.shape(), Shape::Plain), node.instead_of().is_some())
        });
        all
    }

    fn word(&self, keyword: &str) -> Option<&'a str> {
        self.written.get(keyword)?.as_str()
    }

    pub fn requires(&self, name: &str) -> bool {
        let required = self.resolved.get("required").and_then(Value::as_array);
        required.is_some_and(|names| names.iter().any(|other| other == name))
    }

    pub fn description(&self) -> &'a str {
        let described = self.written.get("description").or_else(|| self.resolved.get("description"));
        described.and_then(Value::as_str).unwrap_or_default()
    }

    /// What it is when it is left out.
    pub fn default(&self) -> Option<&'a Value> {
        self.written.get("default").filter(|value| !value.is_null())
    }

    pub fn example(&self) -> Option<&'a Value> {
        self.written.get("examples").or_else(|| self.resolved.get("examples"))?.get(0)
    }

    /// The name that the example gives to an entry of a map.
    pub fn name(&self) -> Option<&'a str> {
        self.word("x-name")
    }

    /// The key that this one stands instead of.
    pub fn instead_of(&self) -> Option<&'a str> {
        self.word("x-instead-of")
    }

    /// Settings by transport or format (the key that says which): for `destinations` and `receivers` only.
    pub fn variants(&self) -> Vec<Variant<'a>> {
        let all = self.resolved.get("allOf").and_then(Value::as_array).into_iter().flatten();
        all.filter_map(|one| {
            let settings = Self::new(self.root, one.get("then")?);
            ["transport", "format"].into_iter().find_map(|key| {
                let name = one.pointer(&format!("/if/properties/{key}/const"))?.as_str()?;
                Some(Variant { key, name, settings })
            })
        })
        .collect()
    }
}

/// Follows references, and takes the one of "this or null".
fn resolve<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    loop {
        let next = if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer))
        } else if let Some([one, null]) = schema.get("anyOf").and_then(Value::as_array).map(Vec::as_slice)
            && null == &json!({ "type": "null" })
        {
            Some(one)
        } else {
            None
        };
        match next {
            Some(next) => schema = next,
            None => return schema,
        }
    }
}

/// Every key that the schema has, as `section.*.key`, for tests.
#[cfg(test)]
pub(super) fn keys(schema: &Value) -> Vec<String> {
    fn walk(node: Node<'_>, prefix: &str, all: &mut Vec<String>) {
        for (name, property) in node.properties() {
            let key = format!("{prefix}{name}");
            match property.shape() {
                Shape::Plain => all.push(key),
                Shape::Table => walk(property, &format!("{key}."), all),
                Shape::Map(each) | Shape::Tables(each) => {
                    walk(each, &format!("{key}.*."), all);
                    for variant in each.variants() {
                        walk(variant.settings, &format!("{key}.*."), all);
                    }
                }
            }
        }
    }
    let mut all = Vec::new();
    walk(Node::root(schema), "", &mut all);
    all
}
