//! Who calls, and what they may do. Decided from the request's head, before its body is read.

pub use crate::domain::grant::Grant;

/// An authenticated caller (or the anonymous one).
#[derive(Clone, Debug)]
pub struct Principal {
    /// The API key's name, `sub` of a token, or `anonymous`.
    pub name: String,
    /// Empty: none.
    pub tenant: String,
    pub grants: Vec<Grant>,
}
