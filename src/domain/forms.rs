//! What the forms that messages are written in (native, CloudEvents) have in common: how what is wrong with
//! them is told, and how members are read.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::fields::FieldError;
use super::message::Draft;
use super::{Limits, Place, Timestamp, json};

/// No more places than these are told.
const MAX_PLACES: usize = 50;

/// Why a body gives no drafts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is not the form, or some of its members hold what they may not. `detail` is a sentence for people.
    #[error("{detail}")]
    Malformed { detail: String, places: Vec<Place> },
    /// More messages than `limit` in one batch.
    #[error("more than {limit} messages in one batch")]
    TooMany { limit: usize },
}

impl Error {
    pub(super) fn malformed(detail: impl Into<String>) -> Self {
        Self::Malformed { detail: detail.into(), places: Vec::new() }
    }

    /// Of one message that stands at `prefix`: empty, or `/` and its place in the batch.
    pub(super) fn at(mut places: Vec<Place>, form: Form) -> Self {
        let detail = match places.first() {
            Some(Place { pointer, detail }) => match form {
                Form::Batch => {
                    let element = pointer.split('/').nth(1).unwrap_or_default();
                    let rest = pointer.get(element.len() + 1..).unwrap_or_default();
                    if rest.is_empty() {
                        format!("Element {element} of the batch, counted from 0, {detail}.")
                    } else {
                        format!("Element {element} of the batch, counted from 0: `{rest}` {detail}.")
                    }
                }
                Form::Single if pointer.is_empty() => format!("The message {detail}."),
                Form::Single => format!("`{pointer}` {detail}."),
            },
            None => "The message is malformed.".to_owned(),
        };
        places.truncate(MAX_PLACES);
        Self::Malformed { detail, places }
    }
}

/// Whether a body is one message, or many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Single,
    Batch,
}

/// How the bytes of a message's data are kept.
#[derive(Clone, Copy, Debug)]
pub(super) enum Carry<'a> {
    /// As a part of the request's body, which is little more than that.
    Share(&'a Bytes),
    /// As a copy, so that one message does not hold the memory of a whole batch.
    Copy,
}

impl Carry<'_> {
    pub(super) fn bytes(self, text: &str) -> Bytes {
        match self {
            // `text` was read from `body` without being copied.
            Self::Share(body) => body.slice_ref(text.as_bytes()),
            Self::Copy => Bytes::copy_from_slice(text.as_bytes()),
        }
    }
}

/// What a form's reader of one message needs to know.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub carry: Carry<'a>,
    pub limits: &'a Limits,
    pub now: Timestamp,
}

/// The reader of one message: its value and the place where it stands.
pub(super) type ReadOne = fn(&RawValue, &str, Context<'_>) -> Result<Draft, Vec<Place>>;

/// Reads a body that is one message.
pub(super) fn single(body: &Bytes, limits: &Limits, now: Timestamp, read: ReadOne) -> Result<Draft, Error> {
    let raw = document(body, limits.json_depth)?;
    let context = Context { carry: Carry::Share(body), limits, now };
    read(raw, "", context).map_err(|places| Error::at(places, Form::Single))
}

/// Reads a body that is an array of messages.
pub(super) fn array(
    body: &Bytes,
    limits: &Limits,
    now: Timestamp,
    read: ReadOne,
) -> Result<Vec<Draft>, Error> {
    let raw = document(body, limits.json_depth.saturating_add(1))?;
    let elements = json::elements(raw, limits.batch)
        .ok_or_else(|| Error::malformed("The body must be a JSON array of messages."))?;
    all(elements.into_iter().map(Ok), limits, now, read)
}

/// Reads every element of a batch, and tells of all that are wrong.
pub(super) fn all<'a>(
    elements: impl ExactSizeIterator<Item = Result<&'a RawValue, String>>,
    limits: &Limits,
    now: Timestamp,
    read: ReadOne,
) -> Result<Vec<Draft>, Error> {
    if elements.len() > limits.batch {
        return Err(Error::TooMany { limit: limits.batch });
    }
    let context = Context { carry: Carry::Copy, limits, now };
    let mut drafts = Vec::with_capacity(elements.len());
    let mut places = Vec::new();
    for (index, element) in elements.enumerate() {
        let prefix = format!("/{index}");
        let read = match element {
            Ok(raw) => read(raw, &prefix, context),
            Err(detail) => Err(vec![Place::new(prefix, detail)]),
        };
        match read {
            Ok(draft) => drafts.push(draft),
            Err(more) => places.extend(more),
        }
        if places.len() >= MAX_PLACES {
            break;
        }
    }
    if places.is_empty() { Ok(drafts) } else { Err(Error::at(places, Form::Batch)) }
}

fn document(body: &[u8], depth: usize) -> Result<&RawValue, Error> {
    if json::is_deeper_than(body, depth) {
        return Err(Error::malformed(format!(
            "The body nests objects and arrays deeper than {depth} levels."
        )));
    }
    json::document(body).map_err(|detail| Error::malformed(format!("The body is {detail}.")))
}

/// Reads the members of one message, and collects what is wrong with them.
pub(super) struct Reader<'a> {
    prefix: &'a str,
    places: Vec<Place>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(prefix: &'a str) -> Self {
        Self { prefix, places: Vec::new() }
    }

    /// `path` is the rest of the pointer, with its slash.
    pub(super) fn wrong(&mut self, path: &str, detail: impl Into<String>) {
        self.places.push(Place::new(format!("{}{path}", self.prefix), detail));
    }

    /// Whether more than will be told is wrong already.
    pub(super) fn is_full(&self) -> bool {
        self.places.len() >= MAX_PLACES
    }

    /// A string; null is absent.
    pub(super) fn text<'r>(&mut self, path: &str, raw: &'r RawValue) -> Option<Cow<'r, str>> {
        match json::kind(raw) {
            json::Kind::Null => None,
            json::Kind::String => {
                let text = json::string(raw);
                if text.is_none() {
                    self.wrong(path, "must be valid Unicode");
                }
                text
            }
            _ => {
                self.wrong(path, "must be a string");
                None
            }
        }
    }

    /// A string that is the source of something else.
    pub(super) fn parsed<T>(
        &mut self,
        path: &str,
        raw: &RawValue,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.text(path, raw)?;
        parse(&text).map_err(|detail| self.wrong(path, detail)).ok()
    }

    /// The draft, if nothing was wrong with its members, neither as they were read nor as they are now.
    pub(super) fn finish(
        mut self,
        draft: Draft,
        context: Context<'_>,
        place: impl Fn(FieldError, &str) -> Place,
    ) -> Result<Draft, Vec<Place>> {
        if let Err(errors) = draft.check(context.limits, context.now) {
            for found in errors.into_iter().map(|error| place(error, self.prefix)) {
                if !self.places.iter().any(|known| known.pointer == found.pointer) {
                    self.places.push(found);
                }
            }
        }
        if self.places.is_empty() { Ok(draft) } else { Err(self.places) }
    }
}

/// Base64 as RFC 4648 has it, padded or not.
pub(super) fn base64(text: &str) -> Result<Bytes, String> {
    use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
    use base64::engine::{DecodePaddingMode, Engine as _};
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    LENIENT.decode(text).map(Bytes::from).map_err(|_| "must be base64 (RFC 4648)".to_owned())
}

/// The bytes that a JSON value stands for, given its media type: text where it is a string and the media type
/// is not JSON, else the value's source text, untouched.
pub(super) fn data(
    reader: &mut Reader<'_>,
    raw: &RawValue,
    content_type: &str,
    carry: Carry<'_>,
) -> Option<Bytes> {
    if json::kind(raw) == json::Kind::String && !super::media::is_json(content_type) {
        return reader.text("/data", raw).map(|text| Bytes::copy_from_slice(text.as_bytes()));
    }
    Some(carry.bytes(raw.get()))
}
