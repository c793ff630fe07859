//! A complete commented file, written from the schema: what the doc comments say is said once.
//!
//! Lines of text begin with `# `, keys with `#` alone: as it is printed, the example is the defaults; with every
//! such `#` taken away it is a configuration that uses every key.

use std::fmt::Write;

use serde_json::Value;

use super::Backends;
use super::key::quoted;
use super::schema::{Node, Shape, Variant, schema};

/// The order of the sections: from what everybody sets to what few do. A section that is not named comes last.
const ORDER: [&str; 13] = [
    "server",
    "stores",
    "auth",
    "destinations",
    "handlers",
    "receivers",
    "routes",
    "routing",
    "durability",
    "messages",
    "deduplication",
    "idempotency",
    "intake",
];

const WIDTH: usize = 100;

/// The example.
pub fn example(backends: &dyn Backends) -> String {
    let schema = schema(backends);
    let root = Node::root(&schema);
    let mut page = Page::default();
    page.text("Oncegate: every key of the configuration.");
    page.text(
        "Lines that begin with # and a letter are keys, with their defaults where they have one, else with an \
         example. Take the # away to set them.",
    );
    page.text(root.description());
    let mut sections = root.properties();
    sections.sort_by_key(|(name, _)| ORDER.iter().position(|first| first == name).unwrap_or(ORDER.len()));
    for (name, node) in sections {
        page.section(&[name], node, Header::Shown);
    }
    page.0
}

#[derive(Default)]
struct Page(String);

/// Whether a table's header is part of the defaults.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Header {
    Shown,
    Commented,
}

impl Page {
    fn text(&mut self, text: &str) {
        for paragraph in text.split("\n\n") {
            let mut line = String::from("#");
            for word in paragraph.split_whitespace() {
                if line.len() + 1 + word.len() > WIDTH {
                    self.line(&line);
                    line = String::from("#");
                }
                line.push(' ');
                line.push_str(word);
            }
            if line.len() > 1 {
                self.line(&line);
            }
        }
    }

    fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn header(&mut self, path: &[&str], open: &str, close: &str, header: Header) {
        let path: Vec<String> = path.iter().map(|name| quoted(name)).collect();
        let sign = if header == Header::Commented { "#" } else { "" };
        self.line(&format!("{sign}{open}{}{close}", path.join(".")));
    }

    fn section(&mut self, path: &[&str], node: Node<'_>, header: Header) {
        self.line("");
        self.text(node.description());
        match node.shape() {
            Shape::Plain => {}
            Shape::Table => {
                self.header(path, "[", "]", header);
                self.table(path, node, header);
            }
            Shape::Map(each) => self.entries(path, node, each),
            Shape::Tables(each) => self.elements(path, each),
        }
    }

    /// A table's keys, then the tables in it under headers of their own.
    fn table(&mut self, path: &[&str], node: Node<'_>, header: Header) {
        let (plain, tables): (Vec<_>, Vec<_>) =
            node.properties().into_iter().partition(|(_, property)| matches!(property.shape(), Shape::Plain));
        for (name, property) in plain {
            self.key(name, property, node.requires(name));
        }
        for (name, property) in tables {
            let inner = [path, &[name]].concat();
            // What has no default is not there unless it is written.
            let header = if property.default().is_some() { header } else { Header::Commented };
            self.section(&inner, property, header);
        }
    }

    /// One entry of a map; of destinations one per transport, the first with the keys that all have.
    fn entries(&mut self, path: &[&str], node: Node<'_>, each: Node<'_>) {
        let name = node.name().unwrap_or("NAME");
        let header = if path == ["stores"] { Header::Shown } else { Header::Commented };
        let mut variants = each.variants().into_iter();
        self.header(&[path, &[name]].concat(), "[", "]", header);
        let Some(Variant { key, name: first, settings }) = variants.next() else {
            return self.inline("", each, &[]);
        };
        self.key_as(key, each, true, &Value::String(first.into()));
        let common: Vec<&str> = each.properties().into_iter().map(|(name, _)| name).collect();
        self.inline("", settings, &common);
        self.inline("", each, &[key]);
        for Variant { name: variant, settings, .. } in variants {
            self.line("");
            self.text(settings.description());
            let name = format!("{name}-{variant}");
            self.header(&[path, &[name.as_str()]].concat(), "[", "]", header);
            self.line(&format!("#{key} = {variant:?}"));
            self.inline("", settings, &[]);
        }
    }

    /// An element of an array of tables; another one where a key stands instead of others.
    fn elements(&mut self, path: &[&str], each: Node<'_>) {
        self.header(path, "[[", "]]", Header::Commented);
        let (usual, instead): (Vec<_>, Vec<_>) =
            each.properties().into_iter().partition(|(_, property)| property.instead_of().is_none());
        for (name, property) in usual {
            self.key(name, property, each.requires(name));
        }
        for (name, property) in instead {
            self.header(path, "[[", "]]", Header::Commented);
            self.key(name, property, each.requires(name));
        }
    }

    /// A table's keys but for some, tables in it as dotted keys.
    fn inline(&mut self, prefix: &str, node: Node<'_>, but: &[&str]) {
        for (name, property) in node.properties().into_iter().filter(|(name, _)| !but.contains(name)) {
            let key = format!("{prefix}{}", quoted(name));
            match property.shape() {
                Shape::Plain => self.key(&key, property, node.requires(name)),
                Shape::Table => {
                    self.text(property.description());
                    self.inline(&format!("{key}."), property, &[]);
                }
                Shape::Map(each) => {
                    self.text(property.description());
                    self.inline(&format!("{key}.{}.", property.name().unwrap_or("NAME")), each, &[]);
                }
                Shape::Tables(each) => {
                    self.text(property.description());
                    let mut element = Vec::new();
                    for (name, property) in each.properties() {
                        if let Some(value) = property.example().or(property.default()) {
                            element.push(format!("{} = {}", quoted(name), toml(value)));
                        }
                    }
                    self.line(&format!("#{key} = [{{ {} }}]", element.join(", ")));
                }
            }
        }
    }

    fn key(&mut self, name: &str, node: Node<'_>, required: bool) {
        let empty =
            |value: &&Value| *value == &Value::String(String::new()) || *value == &Value::Array(Vec::new());
        let value = match (required, node.default(), node.example()) {
            // A default that is nothing shows nobody how to write one.
            (false, Some(value), None) => value,
            (false, Some(value), Some(_)) if !empty(&value) => value,
            (_, _, Some(example)) => example,
            (_, _, None) => &Value::Null,
        };
        self.key_as(name, node, required, value);
    }

    fn key_as(&mut self, name: &str, node: Node<'_>, required: bool, value: &Value) {
        let node = if !node.variants().is_empty() {
            // Described at the property, not at the table.
            node.properties()
                .into_iter()
                .find(|(other, _)| *other == name)
                .map_or(node, |(_, property)| property)
        } else {
            node
        };
        let mut text = node.description().to_owned();
        if required {
            text.push_str(" Needed.");
        } else if node.default().is_none() && !text.contains("Left out:") {
            text.push_str(" No default.");
        }
        self.text(&text);
        let mut line = String::new();
        let _ = write!(line, "#{name} = {}", toml(value));
        self.line(&line);
    }
}

/// A value as TOML writes it in one line.
fn toml(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let members: Vec<String> =
                members.iter().map(|(name, value)| format!("{} = {}", quoted(name), toml(value))).collect();
            if members.is_empty() { "{}".into() } else { format!("{{ {} }}", members.join(", ")) }
        }
        Value::Array(all) => format!("[{}]", all.iter().map(toml).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}
