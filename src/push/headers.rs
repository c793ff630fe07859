//! What a request's headers say.

use http::HeaderMap;

/// A header's text; `None`: it is not there.
///
/// # Errors
/// It is there twice, or not visible ASCII: a sentence for people.
pub fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, String> {
    let mut all = headers.get_all(name).iter();
    let Some(value) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return Err(format!("The header `{name}` is there more than once."));
    }
    match value.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(format!("The header `{name}` is not ASCII.")),
    }
}

/// As [`text`], of a header that has to be there and not be empty.
///
/// # Errors
/// It is not, or as [`text`].
pub fn needed<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, String> {
    text(headers, name)?
        .filter(|text| !text.is_empty())
        .ok_or_else(|| format!("The header `{name}` is missing."))
}
