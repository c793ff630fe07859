//! The envelope: `{"message": {"data", "attributes", "messageId", "publishTime", "orderingKey"}, "subscription",
//! "deliveryAttempt"}`. Members of two words come in camel case, in snake case, or both.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use serde_json::value::RawValue;

use super::Received;
use crate::domain::json;
use crate::push::Refusal;

const CONFIG: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, CONFIG);
/// Gmail says that its notifications have this.
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, CONFIG);

pub(super) fn read(body: &Bytes, json_depth: usize) -> Result<Received, Refusal> {
    if json::is_deeper_than(body, json_depth) {
        let detail = format!("The body nests objects and arrays deeper than {json_depth} levels.");
        return Err(Refusal::malformed(detail));
    }
    let root = json::document(body).map_err(|detail| Refusal::malformed(format!("The body is {detail}.")))?;
    envelope(root).map_err(|detail| {
        Refusal::malformed(format!(
            "{detail} A subscription without a wrapper needs `unwrapped = true` in the receiver."
        ))
    })
}

fn envelope(root: &RawValue) -> Result<Received, String> {
    let outer = Members::of(root, "The body")?;
    let message = outer.find("message")?.ok_or("The body has no `message`.")?;
    let message = Members::of(message, "`message`")?;
    let data = match message.text(["data", "data"])? {
        Some(text) => STANDARD
            .decode(text.as_bytes())
            .or_else(|_| URL_SAFE.decode(text.as_bytes()))
            .map_err(|_| "`data` is not base64.")?,
        None => Vec::new(),
    };
    let attributes = message.attributes()?;
    if data.is_empty() && attributes.is_empty() {
        return Err("The message has neither data nor an attribute.".to_owned());
    }
    let id = message.text(["messageId", "message_id"])?.filter(|id| !id.is_empty());
    Ok(Received {
        data: Bytes::from(data),
        id: Some(id.ok_or("The message has no `messageId`.")?),
        subscription: outer.text(["subscription", "subscription"])?,
        publish_time: message.text(["publishTime", "publish_time"])?,
        ordering_key: message.text(["orderingKey", "ordering_key"])?.filter(|key| !key.is_empty()),
        content_type: None,
        attributes,
        attempts: outer.number(["deliveryAttempt", "delivery_attempt"])?.unwrap_or(1).max(1),
    })
}

struct Members<'a>(json::Members<'a>);

impl<'a> Members<'a> {
    fn of(raw: &'a RawValue, what: &str) -> Result<Self, String> {
        json::members(raw).map(Self).ok_or_else(|| format!("{what} is no JSON object."))
    }

    /// A member; null is absent.
    fn find(&self, name: &str) -> Result<Option<&'a RawValue>, String> {
        let mut found = self.0.iter().filter(|(member, _)| member == name);
        let Some((_, raw)) = found.next() else { return Ok(None) };
        if found.next().is_some() {
            return Err(format!("`{name}` is there more than once."));
        }
        Ok(Some(*raw).filter(|raw| json::kind(raw) != json::Kind::Null))
    }

    /// A member that may be spelt in two ways.
    fn either(&self, [camel, snake]: [&str; 2]) -> Result<Option<&'a RawValue>, String> {
        Ok(self.find(camel)?.or(self.find(snake)?))
    }

    fn text(&self, names: [&str; 2]) -> Result<Option<String>, String> {
        let Some(raw) = self.either(names)? else { return Ok(None) };
        json::text(raw).map(Some).ok_or_else(|| format!("`{}` is no string.", names[0]))
    }

    fn number(&self, names: [&str; 2]) -> Result<Option<u32>, String> {
        let Some(raw) = self.either(names)? else { return Ok(None) };
        let number = raw.get().trim_matches('"').parse();
        number.map(Some).map_err(|_| format!("`{}` is no whole number.", names[0]))
    }

    fn attributes(&self) -> Result<Vec<(String, String)>, String> {
        let Some(raw) = self.find("attributes")? else { return Ok(Vec::new()) };
        let members = Members::of(raw, "`attributes`")?;
        let text = |(name, raw): &(std::borrow::Cow<'_, str>, &RawValue)| {
            let value = json::text(raw).ok_or_else(|| format!("The attribute `{name}` is no string."))?;
            Ok((name.clone().into_owned(), value))
        };
        members.0.iter().map(text).collect()
    }
}
