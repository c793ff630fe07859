//! The formats, one line each.

use super::Kind;

/// Every format, in the order in which they are listed to people.
pub const FORMATS: [&Kind; 10] = [
    &super::cloudevents::KIND,
    &super::eventbridge::KIND,
    &super::eventgrid::KIND,
    &super::github::KIND,
    &super::native::KIND,
    &super::pubsub::KIND,
    &super::qstash::KIND,
    &super::sns::KIND,
    &super::standard_webhooks::KIND,
    &super::stripe::KIND,
];

/// The format with this name.
pub fn find(name: &str) -> Option<&'static Kind> {
    FORMATS.into_iter().find(|kind| kind.name == name)
}

/// Their names.
pub fn names() -> impl Iterator<Item = &'static str> {
    FORMATS.into_iter().map(|kind| kind.name)
}
