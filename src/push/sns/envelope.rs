//! The JSON object that Amazon SNS posts, and the bytes of it that are signed.
//!
//! Signed are some of its members only: never `MessageAttributes`, nor what the HTTP headers say again.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;

use super::certificate::Version;
use crate::domain::json;

/// What SNS sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    pub kind: Kind,
    pub message_id: String,
    pub topic: String,
    pub message: String,
    pub timestamp: String,
    pub subject: Option<String>,
    /// Names and values in their order; a binary value stays base64.
    pub attributes: Vec<(String, String)>,
    pub(super) signature: Option<String>,
    pub(super) signature_version: Option<String>,
    /// As it was sent: nobody has looked yet whether it is SNS's.
    pub(super) certificate_url: Option<String>,
}

/// `Type`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Notification,
    SubscriptionConfirmation(Confirmation),
    UnsubscribeConfirmation(Confirmation),
}

/// What the two confirmations have besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirmation {
    pub token: String,
    /// As it was sent: nobody has looked yet whether it is SNS's.
    pub subscribe_url: String,
}

/// The signature of an envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature<'a> {
    pub version: Version,
    pub bytes: Vec<u8>,
    pub certificate_url: &'a str,
}

impl Envelope {
    /// Reads a body, whatever its content type says (SNS says `text/plain`).
    ///
    /// # Errors
    /// What is wrong with it: a sentence for people.
    pub fn read(body: &[u8], json_depth: usize) -> Result<Self, String> {
        if json::is_deeper_than(body, json_depth) {
            return Err(format!("The body nests objects and arrays deeper than {json_depth} levels."));
        }
        let raw = json::document(body).map_err(|detail| format!("The body is {detail}."))?;
        let members = Members(json::members(raw).ok_or("The body is no JSON object, as SNS sends it.")?);
        let kind = match members.text("Type")?.as_deref() {
            Some("Notification") => Kind::Notification,
            Some("SubscriptionConfirmation") => Kind::SubscriptionConfirmation(members.confirmation()?),
            Some("UnsubscribeConfirmation") => Kind::UnsubscribeConfirmation(members.confirmation()?),
            _ => return Err("The body has no `Type` that SNS sends over HTTP.".to_owned()),
        };
        Ok(Self {
            kind,
            message_id: members.needed("MessageId")?,
            topic: members.needed("TopicArn")?,
            message: members.needed("Message")?,
            timestamp: members.needed("Timestamp")?,
            subject: members.text("Subject")?,
            attributes: members.attributes()?,
            signature: members.text("Signature")?,
            signature_version: members.text("SignatureVersion")?,
            certificate_url: members.text("SigningCertURL")?,
        })
    }

    /// Its signature.
    ///
    /// # Errors
    /// It has none that could be verified: why.
    pub fn signature(&self) -> Result<Signature<'_>, &'static str> {
        let version = match self.signature_version.as_deref() {
            Some("1") => Version::Sha1,
            Some("2") => Version::Sha256,
            Some(_) => return Err("its `SignatureVersion` is neither 1 nor 2"),
            None => return Err("it has no `SignatureVersion`"),
        };
        let text = self.signature.as_deref().ok_or("it has no `Signature`")?;
        let bytes = STANDARD.decode(text).map_err(|_| "its `Signature` is not base64")?;
        let certificate_url = self.certificate_url.as_deref().ok_or("it has no `SigningCertURL`")?;
        Ok(Signature { version, bytes, certificate_url })
    }

    /// The canonical string: names and decoded values, each followed by a newline, in the order of the names'
    /// bytes ("Verifying the signatures of Amazon SNS messages").
    pub fn signed(&self) -> String {
        let confirmation = match &self.kind {
            Kind::Notification => None,
            Kind::SubscriptionConfirmation(it) | Kind::UnsubscribeConfirmation(it) => Some(it),
        };
        let subject = self.subject.as_deref().filter(|_| confirmation.is_none());
        let pairs = [
            ("Message", Some(self.message.as_str())),
            ("MessageId", Some(&self.message_id)),
            ("Subject", subject),
            ("SubscribeURL", confirmation.map(|it| it.subscribe_url.as_str())),
            ("Timestamp", Some(&self.timestamp)),
            ("Token", confirmation.map(|it| it.token.as_str())),
            ("TopicArn", Some(&self.topic)),
            ("Type", Some(self.kind.name())),
        ];
        let mut text = String::new();
        for (name, value) in pairs {
            if let Some(value) = value {
                for part in [name, "\n", value, "\n"] {
                    text.push_str(part);
                }
            }
        }
        text
    }
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Notification => "Notification",
            Self::SubscriptionConfirmation(_) => "SubscriptionConfirmation",
            Self::UnsubscribeConfirmation(_) => "UnsubscribeConfirmation",
        }
    }
}

struct Members<'a>(json::Members<'a>);

impl<'a> Members<'a> {
    /// A member's value. A name that is there twice is refused: who reads the other one would read what was not
    /// signed.
    fn value(&self, name: &str) -> Result<Option<&'a RawValue>, String> {
        let mut found = self.0.iter().filter(|(member, _)| member == name).map(|(_, value)| *value);
        let first = found.next();
        if found.next().is_some() {
            return Err(format!("The body has `{name}` more than once."));
        }
        Ok(first)
    }

    fn text(&self, name: &str) -> Result<Option<String>, String> {
        match self.value(name)? {
            None => Ok(None),
            Some(raw) if json::kind(raw) == json::Kind::Null => Ok(None),
            Some(raw) => json::text(raw).map(Some).ok_or_else(|| format!("`{name}` must be a string.")),
        }
    }

    fn needed(&self, name: &str) -> Result<String, String> {
        self.text(name)?.ok_or_else(|| format!("The body has no `{name}`."))
    }

    fn confirmation(&self) -> Result<Confirmation, String> {
        Ok(Confirmation { token: self.needed("Token")?, subscribe_url: self.needed("SubscribeURL")? })
    }

    fn attributes(&self) -> Result<Vec<(String, String)>, String> {
        let wrong = || "`MessageAttributes` must be an object of objects with `Type` and `Value`.".to_owned();
        let Some(raw) = self.value("MessageAttributes")? else { return Ok(Vec::new()) };
        if json::kind(raw) == json::Kind::Null {
            return Ok(Vec::new());
        }
        let all = json::members(raw).ok_or_else(wrong)?;
        let one = |(name, raw): (Cow<'_, str>, &RawValue)| {
            let value = Members(json::members(raw).ok_or_else(wrong)?).text("Value")?.ok_or_else(wrong)?;
            Ok((name.into_owned(), value))
        };
        all.into_iter().map(one).collect()
    }
}
