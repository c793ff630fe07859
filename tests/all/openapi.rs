//! The OpenAPI document: committed, complete, and true.

use std::collections::BTreeSet;

use oncegate::http::{openapi, routes};
use serde_json::Value;

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/openapi.json");

fn document() -> Value {
    serde_json::from_str(openapi::json()).expect("the document is JSON")
}

/// `METHOD path` of every operation in the document.
fn documented() -> BTreeSet<String> {
    let document = document();
    let paths = document["paths"].as_object().expect("paths");
    let operations = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().expect("a path item").keys();
        methods.map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    operations.collect()
}

/// `just openapi` writes it anew.
#[test]
fn the_committed_document_is_the_generated_one() {
    if std::env::var_os("ONCEGATE_WRITE_OPENAPI").is_some() {
        std::fs::write(COMMITTED, openapi::json()).expect("write the document");
    }
    let committed = std::fs::read_to_string(COMMITTED).unwrap_or_default();
    assert!(committed == openapi::json(), "openapi/openapi.json is out of date: run `just openapi`");
}

#[test]
fn every_route_is_documented_and_the_other_way_round() {
    let registered = routes::operations().into_iter().map(|route| format!("{} {}", route.method, route.path));
    assert_eq!(registered.collect::<BTreeSet<_>>(), documented());
}

#[test]
fn every_operation_can_be_called_from_a_generated_client() {
    let document = document();
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")));
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("a path item") {
            let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
            assert!(
                id.starts_with(|c: char| c.is_ascii_lowercase()),
                "{method} {path} has no operationId: `{id}`"
            );
            assert!(ids.insert(id), "{method} {path}: its operationId is taken");
            assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{method} {path}");
            // Who pushes proves itself to the receiver.
            let secured = path.starts_with("/v1/") && !path.starts_with("/v1/push/");
            assert_eq!(operation["security"].is_array(), secured, "{method} {path}");
            for (status, response) in operation["responses"].as_object().expect("responses") {
                let shared =
                    response["$ref"].as_str().and_then(|reference| document.pointer(&reference[1..]));
                let is_problem =
                    shared.unwrap_or(response)["content"]["application/problem+json"].is_object();
                assert_eq!(is_problem, status.starts_with(['4', '5']), "{method} {path} {status}");
            }
            for status in ["401", "403", "406", "500"] {
                if (path.as_str(), status) == ("/v1/invoke/{type}", "406") {
                    continue; // it answers what the handler does
                }
                let told = operation["responses"][status].is_object();
                assert!(told || !secured, "{method} {path} does not tell of {status}");
            }
        }
    }
}

/// No reference leads nowhere.
#[test]
fn every_reference_resolves() {
    fn check(document: &Value, value: &Value) {
        match value {
            Value::Object(members) => {
                if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
                    let pointer = reference.strip_prefix('#').expect("references stay in the document");
                    assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
                }
                members.values().for_each(|member| check(document, member));
            }
            Value::Array(elements) => elements.iter().for_each(|element| check(document, element)),
            _ => {}
        }
    }
    let document = document();
    check(&document, &document);
}
