//! Query parameters: strict, so that a misspelt one is told and not ignored.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;

use super::problem::Problem;
use crate::gateway::Place;

/// A query's parameters, each named once. Read them with [`take`](Self::take), then call
/// [`finish`](Self::finish): what is left over is unknown.
#[derive(Debug, Default)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Decodes `application/x-www-form-urlencoded` text.
    pub fn parse(text: Option<&str>) -> Result<Self, Problem> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for part in text.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            if pairs.iter().any(|(known, _)| *known == name) {
                return Err(Problem::malformed_at(format!("query {name}"), "stands more than once"));
            }
            pairs.push((name, value));
        }
        Ok(Self { pairs })
    }

    /// The parameter's value, where it stands. An empty value is there.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let place = self.pairs.iter().position(|(known, _)| known == name)?;
        Some(self.pairs.swap_remove(place).1)
    }

    /// The parameter `limit`: a whole number from 1 on.
    pub fn take_limit(&mut self) -> Result<Option<u32>, Problem> {
        let Some(text) = self.take("limit") else { return Ok(None) };
        match text.parse::<i32>().map(u32::try_from) {
            Ok(Ok(limit)) if limit > 0 => Ok(Some(limit)),
            _ => Err(Problem::malformed_at("query limit", "has to be a whole number from 1 on")),
        }
    }

    /// Refuses what nobody took.
    pub fn finish(self) -> Result<(), Problem> {
        if self.pairs.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = self.pairs.iter().map(|(name, _)| format!("`{name}`")).collect();
        let errors = self
            .pairs
            .iter()
            .map(|(name, _)| Place::new(format!("query {name}"), "this operation has no such parameter"))
            .collect();
        Err(Problem::malformed(format!(
            "Unknown query parameters: {}. Leave them out, or correct their names.",
            names.join(", ")
        ))
        .errors(errors))
    }
}

fn decode(text: &str) -> Result<String, Problem> {
    let text = text.replace('+', " ");
    match percent_decode_str(&text).decode_utf8() {
        Ok(decoded) => Ok(decoded.into_owned()),
        Err(_) => {
            Err(Problem::malformed("The query cannot be read: it has to be UTF-8 after percent-decoding."))
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::parse(parts.uri.query())
    }
}

/// For operations that take no query parameters: any is refused.
#[derive(Debug)]
pub struct NoQuery;

impl<S: Send + Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        if parts.uri.query().is_some_and(|text| !text.is_empty()) {
            Query::parse(parts.uri.query())?.finish()?;
        }
        Ok(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_taken_once() {
        let mut query = Query::parse(Some("type=order.%C3%A9&cursor=&b=x+y")).unwrap();
        assert_eq!(query.take("type").as_deref(), Some("order.é"));
        assert_eq!(query.take("cursor").as_deref(), Some(""));
        assert_eq!(query.take("limit"), None);
        assert_eq!(query.take("b").as_deref(), Some("x y"));
        query.finish().unwrap();
        Query::parse(None).unwrap().finish().unwrap();
        Query::parse(Some("&")).unwrap().finish().unwrap();
    }

    #[test]
    fn unknown_double_and_unreadable_parameters_are_told() {
        let unknown = Query::parse(Some("lmit=5&x")).unwrap().finish().unwrap_err();
        assert!(unknown.detail().contains("`lmit`, `x`"), "{}", unknown.detail());
        assert!(Query::parse(Some("a=1&a=2")).unwrap_err().detail().contains("query a"));
        assert!(Query::parse(Some("a=%ff")).is_err());
    }
}
