//! Who calls, and what they may do. Decided from the request's head, before its body is read.

use crate::domain::routing::Pattern;

/// An authenticated caller (or the anonymous one).
#[derive(Clone, Debug)]
pub struct Principal {
    /// The API key's name, `sub` of a token, or `anonymous`.
    pub name: String,
    /// Empty: none.
    pub tenant: String,
    pub grants: Vec<Grant>,
}

/// What a principal may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// `publish:TYPE` or `publish:TYPE@DESTINATION`.
    Publish { types: Pattern, destinations: Option<Pattern> },
    /// `invoke:TYPE`
    Invoke(Pattern),
    /// `durability`
    Durability,
    /// `claim:SCOPE`
    Claim(Pattern),
    /// `operate:read`; `operate` is both.
    OperateRead,
    /// `operate:write`
    OperateWrite,
}
