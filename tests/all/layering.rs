//! The import table: which room may name which. `docs/architecture.md` shows it; here it is held.
//!
//! The source is scanned, not compiled: comments and strings are taken out, and every path that begins at the
//! crate (`crate::…`, or enough `super::`) is looked at, grouped or not, in `use` or in an expression.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A room and what it may name besides itself.
const TABLE: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("config", &["domain"]),
    ("telemetry", &["domain", "config"]),
    ("store", &["domain", "config", "telemetry"]),
    ("transport", &["domain", "config", "telemetry"]),
    ("push", &["domain", "config", "telemetry"]),
    ("auth", &["domain", "config", "telemetry"]),
    ("delivery", &["domain", "config", "telemetry", "store", "transport", "push", "auth"]),
    ("durability", &["domain", "config", "telemetry", "store", "transport", "push", "auth", "delivery"]),
    (
        "gateway",
        &["domain", "config", "telemetry", "store", "transport", "push", "auth", "delivery", "durability"],
    ),
    ("http", &["domain", "config", "telemetry", "auth", "gateway"]),
];

/// May name everything.
const WIRING: &[&str] = &["server", "cli", "main", "lib"];

/// Rooms whose folders (engines, transports) are private, and known to the room's registry alone.
const REGISTRIES: &[&str] = &["store", "transport"];

/// Folders of those rooms that serve every engine.
const COMMON: &[&str] = &["group", "guard"];

/// At this length there is a second thing in a file.
const MAX_LINES: usize = 500;

#[test]
fn every_room_names_only_what_the_table_lets_it() {
    let broken: Vec<String> = sources()
        .iter()
        .flat_map(|source| {
            violations(&source.module, &source.text).into_iter().map(|room| source.says(&room))
        })
        .collect();
    assert!(broken.is_empty(), "the import table is broken:\n{}", broken.join("\n"));
}

#[test]
fn every_room_stands_in_the_table() {
    for source in sources() {
        let room = &source.module[0];
        let known = WIRING.contains(&room.as_str()) || TABLE.iter().any(|(name, _)| name == room);
        assert!(known, "{} is in no room of the table", source.path.display());
    }
}

#[test]
fn engines_and_transports_are_private_and_named_by_their_registry_alone() {
    let sources = sources();
    for room in REGISTRIES {
        let engines: BTreeSet<&str> = sources
            .iter()
            .filter(|source| source.module[0] == *room && source.module.len() > 1 && source.in_folder())
            .map(|source| source.module[1].as_str())
            .filter(|folder| !COMMON.contains(folder))
            .collect();
        for source in &sources {
            let tokens = tokens(&source.text);
            let own_room = source.module == [*room];
            for engine in &engines {
                let inside =
                    source.module.len() > 1 && source.module[0] == *room && source.module[1] == *engine;
                let registry = source.module == [*room, "registry"];
                if own_room {
                    let public = tokens.windows(3).any(|three| three == ["pub", "mod", *engine]);
                    assert!(!public, "{}: {engine} must be private", source.path.display());
                }
                let named = paths(&source.module, &tokens)
                    .iter()
                    .any(|path| path.len() > 1 && path[0] == *room && path[1] == *engine);
                assert!(inside || registry || !named, "{} names {room}::{engine}", source.path.display());
            }
        }
    }
}

#[test]
fn no_file_is_too_long() {
    for source in sources() {
        let lines = source.text.lines().count();
        assert!(
            lines <= MAX_LINES,
            "{} has {lines} lines: look for the second thing in it",
            source.path.display()
        );
    }
}

#[test]
fn a_planted_import_is_found() {
    let module = |path: &str| path.split("::").map(str::to_owned).collect::<Vec<_>>();
    let found = |at: &str, text: &str| violations(&module(at), text);
    assert_eq!(found("domain::retry", "use crate::store::Error;"), ["store"]);
    assert_eq!(found("domain", "use super::store;"), ["store"]);
    assert_eq!(
        found("http::publish", "use crate::{auth, store::{self, Store}, domain};"),
        ["store", "store"]
    );
    assert_eq!(found("http::publish", "fn f() -> crate :: transport::Ack { todo() }"), ["transport"]);
    assert_eq!(found("http::a::b", "type T = super::super::super::delivery::Loop;"), ["delivery"]);
    assert_eq!(found("config", "use crate::{domain, /* , */ gateway as g};"), ["gateway"]);
    assert_eq!(found("store::sqlite", "macro_rules! m { () => { $crate::http::X } }"), ["http"]);
    // What must not be found.
    assert!(found("domain", "// use crate::store;\n/* crate::store /* nested */ */ fn f() {}").is_empty());
    assert!(
        found("domain", r####"const S: &str = "crate::store"; const R: &str = r#"use crate::http;"#;"####)
            .is_empty()
    );
    assert!(found("domain", "pub(crate) fn f<'a>(c: char) -> bool { c == '\"' || c == '\\'' }").is_empty());
    assert!(found("gateway::publish", "use crate::store::accept; use super::error;").is_empty());
    assert!(found("server", "use crate::{http, store, transport};").is_empty());
    assert!(found("store::accept", "use super::claims; mod tests { use super::super::error; }").is_empty());
}

/// The rooms that this module names and may not, in order.
fn violations(module: &[String], text: &str) -> Vec<String> {
    let Some((_, allowed)) = TABLE.iter().find(|(name, _)| *name == module[0]) else { return Vec::new() };
    let is_room = |name: &str| TABLE.iter().any(|(room, _)| *room == name) || WIRING.contains(&name);
    paths(module, &tokens(text))
        .into_iter()
        .map(|path| path.into_iter().next().unwrap_or_default())
        .filter(|room| is_room(room) && *room != module[0] && !allowed.contains(&room.as_str()))
        .collect()
}

/// Every path of the tokens that begins at the crate's root, without the `crate`.
fn paths(module: &[String], tokens: &[&str]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at] == "crate" && tokens.get(at + 1) == Some(&"::") {
            expand(&[], tokens, at + 2, &mut found);
        } else if tokens[at] == "super" && tokens.get(at + 1) == Some(&"::") {
            let mut ups = 0;
            while tokens.get(at) == Some(&"super") && tokens.get(at + 1) == Some(&"::") {
                ups += 1;
                at += 2;
            }
            // Inside an inline module one `super` less goes up: then this base lies too high, and what
            // follows is no room.
            let base = &module[..module.len().saturating_sub(ups)];
            expand(base, tokens, at, &mut found);
            continue;
        }
        at += 1;
    }
    found
}

/// Follows a path or a group of paths from `at`; returns where it ends.
fn expand(base: &[String], tokens: &[&str], mut at: usize, found: &mut Vec<Vec<String>>) -> usize {
    let mut path = base.to_vec();
    loop {
        match tokens.get(at) {
            Some(&"{") => {
                at += 1;
                while tokens.get(at).is_some_and(|token| *token != "}") {
                    at = expand(&path, tokens, at, found);
                    while tokens.get(at).is_some_and(|token| !matches!(*token, "," | "}")) {
                        at += 1;
                    }
                    if tokens.get(at) == Some(&",") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            Some(name) => path.push((*name).to_owned()),
            None => break,
        }
        at += 1;
        if tokens.get(at) != Some(&"::") {
            break;
        }
        at += 1;
    }
    found.push(path);
    at
}

/// Names, `::` and single marks; comments, strings and characters are left out.
fn tokens(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let begin = at;
        at += match bytes[at] {
            b'/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            b'/' if rest.starts_with("/*") => block_comment(rest),
            b'"' => string(rest),
            b'r' | b'b' | b'c' if raw_string(rest).is_some() => raw_string(rest).unwrap_or(1),
            b'\'' => character(rest),
            b':' if rest.starts_with("::") => 2,
            byte if byte.is_ascii_alphanumeric() || byte == b'_' => {
                rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
            }
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
        let token = &text[begin..at];
        let skip = token.starts_with("//")
            || token.starts_with("/*")
            || token.contains('"')
            || token.starts_with('\'')
            || token.trim().is_empty();
        if !skip {
            tokens.push(token);
        }
    }
    tokens
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn string(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of `r"…"`, `br#"…"#` and the like.
fn raw_string(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r"].into_iter().find(|prefix| rest.starts_with(prefix))?;
    let hashes = rest[prefix.len()..].bytes().take_while(|byte| *byte == b'#').count();
    let body = prefix.len() + hashes;
    if rest.as_bytes().get(body) != Some(&b'"') {
        return None;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let length = rest[body + 1..].find(&end)?;
    Some(body + 1 + length + end.len())
}

/// The length of a character's literal; of a lifetime, one.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => {
            // The escaped character itself may be a quote.
            chars.next();
            rest.char_indices().skip(3).find(|(_, c)| *c == '\'').map_or(rest.len(), |(at, _)| at + 1)
        }
        Some(_) => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 1,
        },
        None => 1,
    }
}

struct Source {
    path: PathBuf,
    /// The path of its module, from the room on.
    module: Vec<String>,
    text: String,
}

impl Source {
    fn says(&self, room: &str) -> String {
        format!("{} names {room}", self.path.display())
    }

    /// Whether it lies in a folder of its room's folder (an engine of several files).
    fn in_folder(&self) -> bool {
        self.path.strip_prefix(src()).is_ok_and(|path| path.components().count() > 2)
    }
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    let mut folders = vec![src()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let relative = path.strip_prefix(src()).unwrap().with_extension("");
                let mut module: Vec<String> = relative
                    .components()
                    .map(|part| part.as_os_str().to_string_lossy().into_owned())
                    .collect();
                if module.len() > 1 && module.last().is_some_and(|last| last == "mod") {
                    module.pop();
                }
                let text = fs::read_to_string(&path).unwrap();
                sources.push(Source { path, module, text });
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}
