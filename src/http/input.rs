//! A request that has been read whole: the last argument of handlers that take a body.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, Method, Uri, header};
use serde::de::DeserializeOwned;

use super::app::App;
use super::body;
use super::problem::{Problem, kinds};
use crate::domain::{json, media};

#[derive(Debug)]
pub struct Input {
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl FromRequest<App> for Input {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let limits = &app.limits;
        let body = body::read(&parts.headers, body, limits.body_bytes, limits.body_timeout).await?;
        Ok(Self { method: parts.method, uri: parts.uri, headers: parts.headers, body })
    }
}

impl Input {
    /// The content type as it stands; `None`: there is no such header.
    pub fn content_type(&self) -> Result<Option<&str>, Problem> {
        let mut values = self.headers.get_all(header::CONTENT_TYPE).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(Problem::malformed_at("header Content-Type", "stands more than once"));
        }
        let text = value.to_str().map(str::trim);
        text.map(Some).map_err(|_| Problem::malformed_at("header Content-Type", "has to be visible ASCII"))
    }

    /// A JSON body, read into `T`.
    ///
    /// 415 for another content type; 400 with the place, and the line and column, of what cannot be read.
    pub fn json<T: DeserializeOwned>(&self, max_depth: usize) -> Result<T, Problem> {
        self.form(&["application/json"])?;
        if json::is_deeper_than(&self.body, max_depth) {
            return Err(Problem::malformed(format!(
                "The body nests objects and arrays deeper than {max_depth} levels."
            )));
        }
        let mut reader = serde_json::Deserializer::from_slice(&self.body);
        let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let pointer = pointer(error.path());
            Problem::malformed_at(pointer, error.into_inner().to_string())
        })?;
        reader.end().map_err(|error| Problem::malformed(format!("The body is not valid JSON: {error}.")))?;
        Ok(value)
    }

    /// The form of the body among `forms` (media types in lower case): the place in `forms`.
    ///
    /// 415, with what is taken instead, where it is none of them or not in UTF-8.
    pub fn form(&self, forms: &[&'static str]) -> Result<&'static str, Problem> {
        let refused = |what: String| {
            let taken = forms.join(", ");
            let problem = Problem::new(
                kinds::UNSUPPORTED_MEDIA_TYPE,
                format!(
                    "{what} This operation takes {taken}; `POST /v1/publish/{{type}}` takes a body of any content type."
                ),
            );
            match taken.parse() {
                Ok(value) => problem.header(header::ACCEPT, value),
                Err(_) => problem,
            }
        };
        let Some(content_type) = self.content_type()? else {
            return Err(refused("The request has no `Content-Type`.".to_owned()));
        };
        let Some(form) = forms.iter().find(|form| media::is(content_type, form)) else {
            return Err(refused(format!(
                "The content type `{}` is not read here.",
                media::essence(content_type)
            )));
        };
        match charset(content_type) {
            Some(charset) if !charset.eq_ignore_ascii_case("utf-8") => {
                Err(refused(format!("The body has to be in UTF-8, not in `{charset}`.")))
            }
            _ => Ok(form),
        }
    }
}

/// A path as a JSON Pointer (RFC 6901).
fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    path.iter()
        .map(|segment| match segment {
            Segment::Seq { index } => format!("/{index}"),
            Segment::Map { key } | Segment::Enum { variant: key } => format!("/{}", json::escape(key)),
            // Something that has no name, such as a member whose name is not whole.
            Segment::Unknown => String::new(),
        })
        .collect()
}

/// The `charset` parameter of a media type, unquoted.
fn charset(content_type: &str) -> Option<&str> {
    content_type.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(content_type: Option<&str>) -> Input {
        let mut headers = HeaderMap::new();
        if let Some(value) = content_type {
            headers.insert(header::CONTENT_TYPE, value.parse().unwrap());
        }
        Input { method: Method::POST, uri: Uri::from_static("/"), headers, body: Bytes::new() }
    }

    #[test]
    fn forms_are_told_apart_by_their_media_type() {
        let forms = ["application/json", "application/cloudevents+json"];
        for (content_type, form) in [
            ("application/json", forms[0]),
            ("Application/JSON; charset=\"UTF-8\"", forms[0]),
            ("application/cloudevents+json;charset=utf-8", forms[1]),
        ] {
            assert_eq!(input(Some(content_type)).form(&forms).unwrap(), form);
        }
        for content_type in [None, Some("text/plain"), Some("application/json; charset=latin1"), Some("json")]
        {
            let refused = input(content_type).form(&forms).unwrap_err();
            assert_eq!(refused.kind(), kinds::UNSUPPORTED_MEDIA_TYPE, "{content_type:?}");
            assert!(refused.detail().contains("application/cloudevents+json"));
        }
    }

    #[test]
    fn json_that_cannot_be_read_is_told_with_its_place() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Body {
            #[serde(rename = "a/b")]
            list: Vec<u8>,
        }
        let read = |body: &'static str| {
            let mut input = input(Some("application/json"));
            input.body = Bytes::from(body);
            input.json::<Body>(3)
        };
        assert_eq!(read(r#"{"a/b":[1]}"#).unwrap().list, [1]);
        for (body, pointer, detail) in [
            (r#"{"a/b":[1,"x"]}"#, "/a~1b/1", "line 1 column 13"),
            (r#"{"b":1}"#, "/b", "unknown field `b`"),
            ("{", "", "EOF"),
            ("{}", "", "missing field"),
        ] {
            let problem = read(body).unwrap_err();
            assert_eq!(problem.places()[0].pointer, pointer, "{body}");
            assert!(problem.places()[0].detail.contains(detail), "{:?}", problem.places());
        }
        assert!(read(r#"{"a/b":[1]} x"#).unwrap_err().detail().contains("not valid JSON"));
        assert!(read("[[[[").unwrap_err().detail().contains("deeper than 3"));
    }

    #[test]
    fn two_content_types_are_none() {
        let mut input = input(Some("text/plain"));
        input.headers.append(header::CONTENT_TYPE, "text/html".parse().unwrap());
        assert_eq!(input.content_type().unwrap_err().kind(), kinds::MALFORMED_REQUEST);
    }
}
