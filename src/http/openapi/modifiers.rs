//! What is the same in every operation, said once.

use std::collections::BTreeMap;

use utoipa::Modify;
use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{OpenApi, Ref, RefOr, Response, Schema, Type};

use super::text_header;
use crate::http::problem;

/// How callers authenticate.
pub struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut OpenApi) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("An API key, or a token of the configured identity provider."))
            .build();
        document
            .components
            .get_or_insert_default()
            .add_security_scheme("bearer", SecurityScheme::Http(bearer));
    }
}

/// Every answer names its request.
pub struct RequestId;

impl Modify for RequestId {
    fn modify(&self, document: &mut OpenApi) {
        for item in document.paths.paths.values_mut() {
            let operations =
                [&mut item.get, &mut item.post, &mut item.delete, &mut item.patch, &mut item.put];
            for operation in operations.into_iter().flatten() {
                for response in operation.responses.responses.values_mut() {
                    if let RefOr::T(response) = response {
                        let header =
                            text_header("The request's id, as the log and problem documents have it.");
                        response.headers.insert("X-Request-Id".to_owned(), header.into());
                    }
                }
            }
        }
    }
}

/// Problems are told once: an operation refers to them.
pub struct SharedProblems;

impl Modify for SharedProblems {
    fn modify(&self, document: &mut OpenApi) {
        let mut shared = BTreeMap::new();
        for item in document.paths.paths.values_mut() {
            let operations =
                [&mut item.get, &mut item.post, &mut item.delete, &mut item.patch, &mut item.put];
            for operation in operations.into_iter().flatten() {
                for response in operation.responses.responses.values_mut() {
                    let Some(name) = problem_name(response) else { continue };
                    let told = std::mem::replace(response, Ref::from_response_name(&name).into());
                    shared.insert(name, told);
                }
            }
        }
        document.components.get_or_insert_default().responses.extend(shared);
    }
}

/// `StoreUnavailableOrOverloaded`, from the kinds that the response has examples of.
fn problem_name(response: &RefOr<Response>) -> Option<String> {
    let RefOr::T(response) = response else { return None };
    let RefOr::T(content) = response.content.get(problem::MEDIA_TYPE)? else { return None };
    let names: Vec<String> =
        content.examples.keys().map(|slug| slug.split('-').map(capitalised).collect()).collect();
    Some(names.join("Or"))
}

fn capitalised(word: &str) -> String {
    let mut characters = word.chars();
    characters.next().map(|first| first.to_uppercase().chain(characters).collect()).unwrap_or_default()
}

/// Schemas of requests: their optional members may be null.
const REQUESTS: [&str; 8] = [
    "NewMessage",
    "CloudEvent",
    "ClaimRequest",
    "ClaimRenewal",
    "DeadLetterEdit",
    "DeadLetterFilter",
    "ReplayRequest",
    "DiscardRequest",
];

/// An optional member of an answer is left out and never null.
pub struct NoNulls;

impl Modify for NoNulls {
    fn modify(&self, document: &mut OpenApi) {
        let Some(components) = &mut document.components else { return };
        for (name, schema) in &mut components.schemas {
            if REQUESTS.contains(&name.as_str()) {
                continue;
            }
            let RefOr::T(Schema::Object(object)) = schema else { continue };
            for (name, member) in &mut object.properties {
                if !object.required.contains(name) {
                    not_null(member);
                }
            }
        }
    }
}

fn not_null(member: &mut RefOr<Schema>) {
    match member {
        RefOr::T(Schema::Object(object)) => object.schema_type = without_null(&object.schema_type),
        RefOr::T(Schema::Array(array)) => array.schema_type = without_null(&array.schema_type),
        RefOr::T(Schema::OneOf(choices)) => {
            choices.items.retain(|item| !is_null(item));
            if let [only] = choices.items.as_slice() {
                *member = only.clone();
            }
        }
        _ => {}
    }
}

fn is_null(item: &RefOr<Schema>) -> bool {
    matches!(item, RefOr::T(Schema::Object(object)) if object.schema_type == SchemaType::Type(Type::Null))
}

fn without_null(kind: &SchemaType) -> SchemaType {
    let SchemaType::Array(kinds) = kind else { return kind.clone() };
    match kinds.iter().filter(|kind| **kind != Type::Null).cloned().collect::<Vec<_>>() {
        kinds if kinds.len() == 1 => SchemaType::Type(kinds[0].clone()),
        kinds => SchemaType::Array(kinds),
    }
}
