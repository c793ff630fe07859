//! `[receivers.NAME]`

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::proof::{ApiKey, Oidc};
use super::{ByteSize, Duration, Secrets};
use crate::domain::routing::Pattern;

/// An endpoint of the gateway's (`POST /v1/push/NAME`) to which a broker or a webhook sender pushes. What comes is
/// verified, and then run by a handler or published.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Receiver {
    /// What is pushed; docs/receivers.md has a chapter for each format.
    #[schemars(extend("examples" = ["pubsub"]))]
    pub format: String,
    /// The handler that runs what is pushed, whatever its `types`. Either this or `publish`.
    #[serde(default)]
    #[schemars(extend("examples" = ["rebuild"]))]
    pub handler: Option<String>,
    /// Publishes what is pushed, by the routes. Either this or `handler`.
    #[serde(default)]
    #[schemars(extend("examples" = [false]))]
    pub publish: Option<bool>,
    /// The message type of what says none itself. Needed for `pubsub` and `sns`.
    #[serde(default, rename = "type")]
    #[schemars(extend("examples" = ["order.created"]))]
    pub kind: Option<String>,
    /// The tenant that the messages belong to. Left out: none.
    #[serde(default)]
    #[schemars(extend("examples" = ["acme"]))]
    pub tenant: Option<String>,
    /// `anonymous`: anybody may push. To be said where nothing proves the sender.
    #[serde(default)]
    #[schemars(extend("examples" = ["anonymous"]))]
    pub authorize: Authorize,
    /// A token that the sender sends with every request.
    #[serde(default)]
    pub oidc: Option<Oidc>,
    /// A secret that the sender sends with every request.
    #[serde(default, skip_serializing)]
    #[schemars(extend("examples" = [{ "header": "x-api-key", "value": "replace-me-by-32-random-characters" }]))]
    pub api_key: Option<ApiKey>,
    /// What requests are signed with; several while one is being replaced, any may match.
    #[serde(default, skip_serializing)]
    #[schemars(extend("examples" = [["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]]))]
    pub secrets: Option<Secrets>,
    /// How old, or how far in the future, a signature's time may be.
    #[serde(default)]
    #[schemars(extend("examples" = ["5m"]))]
    pub tolerance: Option<Duration>,
    /// A certificate (PEM) that signatures are verified with, instead of the one that a request names.
    #[serde(default)]
    #[schemars(extend("examples" = ["sns.pem"]))]
    pub certificate: Option<PathBuf>,
    /// Who confirms a subscription: `automatic` (the gateway), or `operator` (what comes is logged).
    #[serde(default)]
    #[schemars(extend("examples" = ["automatic"]))]
    pub confirm: Option<Confirm>,
    /// The names that may push (a topic's ARN, a subscription's name) and what is different for each:
    /// `sources = { "NAME" = {} }` lists one. Left out: any name.
    #[serde(default)]
    #[schemars(extend("examples" = [{ "projects/my-project/subscriptions/orders": {} }]))]
    pub sources: Option<BTreeMap<String, Source>>,
    /// Whether the subscription pushes messages without a wrapper.
    #[serde(default)]
    #[schemars(extend("examples" = [false]))]
    pub unwrapped: Option<bool>,
    /// The message types that may be pushed: exact, `prefix.*`, or `*`.
    #[serde(default)]
    #[schemars(extend("examples" = [["order.*"]]))]
    pub types: Option<Vec<Pattern>>,
    /// Recognises what is pushed again: the delivery is stored with the message's id before the handler runs. For
    /// `handler` only.
    #[serde(default)]
    pub deduplicate_with_inbox: bool,
    /// The status of what is handled (or given up on for good): 200 to 299. Left out: 200.
    #[serde(default)]
    #[schemars(extend("examples" = [200]))]
    pub success_status: Option<u16>,
    /// The status of what is to be pushed again: 400 to 599. Left out: 500.
    #[serde(default)]
    #[schemars(extend("examples" = [500]))]
    pub retry_status: Option<u16>,
    /// When the answer has to be there; what still runs goes on and is answered as to be pushed again. Left out: a
    /// little less than the sender waits.
    #[serde(default)]
    #[schemars(extend("examples" = ["9s"]))]
    pub deadline: Option<Duration>,
    /// The largest request, once it is decompressed. Left out: what fits the sender.
    #[serde(default)]
    #[schemars(extend("examples" = ["1MiB"]))]
    pub body: Option<ByteSize>,
}

/// Where what is pushed goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way<'a> {
    Handler(&'a str),
    Publish,
}

/// `handler` or `publish`, as a receiver or a source says; `None`: neither. The second is wrong.
fn way(handler: Option<&str>, publish: Option<bool>) -> Result<Option<Way<'_>>, ()> {
    match (handler, publish.unwrap_or(false)) {
        (Some(_), true) => Err(()),
        (Some(name), false) => Ok(Some(Way::Handler(name))),
        (None, true) => Ok(Some(Way::Publish)),
        (None, false) => Ok(None),
    }
}

impl Receiver {
    /// Where what is pushed goes; `None`: it says nothing, or both.
    pub fn way(&self) -> Option<Way<'_>> {
        way(self.handler.as_deref(), self.publish).ok().flatten()
    }

    /// Whether it says both ways.
    pub fn says_both_ways(&self) -> bool {
        way(self.handler.as_deref(), self.publish).is_err()
    }

    /// What may be left out of most formats, and is set.
    pub fn special_keys(&self) -> impl Iterator<Item = &'static str> {
        let set = [
            ("secrets", self.secrets.is_some()),
            ("tolerance", self.tolerance.is_some()),
            ("certificate", self.certificate.is_some()),
            ("confirm", self.confirm.is_some()),
            ("sources", self.sources.is_some()),
            ("unwrapped", self.unwrapped.is_some()),
            ("types", self.types.is_some()),
        ];
        set.into_iter().filter(|(_, set)| *set).map(|(name, _)| name)
    }
}

impl Source {
    /// Where what comes from it goes; `None`: as its receiver says.
    pub fn way(&self) -> Option<Way<'_>> {
        way(self.handler.as_deref(), self.publish).ok().flatten()
    }

    /// Whether it says both ways.
    pub fn says_both_ways(&self) -> bool {
        way(self.handler.as_deref(), self.publish).is_err()
    }
}

/// What is different for what comes from one topic or subscription. What is left out is as the receiver says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Source {
    /// The message type.
    #[serde(rename = "type")]
    #[schemars(extend("examples" = ["order.created"]))]
    pub kind: Option<String>,
    /// The handler that runs it.
    #[schemars(extend("examples" = ["rebuild"]))]
    pub handler: Option<String>,
    /// Whether it is published by the routes.
    #[schemars(extend("examples" = [false]))]
    pub publish: Option<bool>,
    /// Whether what is pushed again is recognised.
    #[schemars(extend("examples" = [true]))]
    pub deduplicate_with_inbox: Option<bool>,
}

/// Who may push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Authorize {
    /// Whoever proves to be the sender.
    #[default]
    Proof,
    /// Anybody.
    Anonymous,
}

/// Who confirms a subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Confirm {
    /// The gateway, once the request is verified and its topic is one of `sources`.
    #[default]
    Automatic,
    /// A person: the URL is logged, and nothing is asked for.
    Operator,
}
