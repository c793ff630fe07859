//! Dead letters: what was given up on, and what an operator does about it.
//!
//! The HTTP edge and the command line share these rules. Every change is logged with the principal. A replay
//! moves rows back to the queue in commits of [`COMMIT`]; it goes only to targets that there are, and is never
//! a duplicate of its own message's first try.

mod answer;

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use utoipa::ToSchema;
use uuid::Uuid;

pub use answer::{DeadLetter, DiscardAnswer, Left, Page, ReplayAnswer, Summary, SummaryItem};

use super::{Error, Gateway, Place, Result, may_read, may_write};
use crate::auth::Principal;
use crate::delivery::Engine;
use crate::domain::delivery::{DeadKind, Target};
use crate::domain::fields::{self, Limits};
use crate::domain::{Message, Timestamp, forms, json, native};
use crate::store::Shared;
use crate::store::dead_letters::{self as stored, Claims, Cursor, Duplicates, Edit, Replay, Selection};

/// Of a page, if nobody says.
const LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1_000;
/// A page ends before its bodies come to more.
const PAGE_BYTES: u64 = 8 * 1024 * 1024;
/// Dead letters in one commit.
const COMMIT: u32 = 1_000;
/// Dead letters in one call.
const MAX_CALL: u64 = 10_000;
/// Of those that a replay leaves, so many are told.
const MAX_LEFT: u32 = 1_000;

/// Which dead letters; all that are given must hold.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = DeadLetterFilter)]
pub struct Filter {
    /// Of messages of this type, to the letter.
    pub r#type: Option<String>,
    /// For this destination.
    pub destination: Option<String>,
    /// For this handler.
    pub handler: Option<String>,
    /// Given up on for this reason.
    pub error_kind: Option<String>,
    /// Given up on at this moment or later.
    #[schema(format = DateTime)]
    pub from: Option<String>,
    /// Given up on before this moment.
    #[schema(format = DateTime)]
    pub until: Option<String>,
}

/// A page of the list.
#[derive(Clone, Debug, Default)]
pub struct Query {
    pub filter: Filter,
    /// 100 if left out; 1,000 at most.
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

/// What is to be replayed: `ids` or `filter`.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"filter": {"destination": "orders", "errorKind": "AttemptsExhausted"}}))]
pub struct ReplayRequest {
    /// These; ids that are unknown count 0.
    pub ids: Option<Vec<String>>,
    /// All that it names; an empty filter names all.
    pub filter: Option<Filter>,
    /// Also those whose work another message has claimed meanwhile.
    #[serde(default)]
    pub force: bool,
}

/// What is to be discarded: `ids` or `filter`.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"ids": ["01930e6c-5a7d-7c3e-9d2b-6f1a2b3c4d5e"]}))]
pub struct DiscardRequest {
    /// These; ids that are unknown count 0.
    pub ids: Option<Vec<String>>,
    /// All that it names; an empty filter names all.
    pub filter: Option<Filter>,
    /// Whether the same work may be published again at once: frees the deduplication id of the message, unless
    /// another message has it. True if left out.
    pub release_deduplication: Option<bool>,
}

/// What is done with dead letters, over one store.
pub struct DeadLetters<'a> {
    store: Shared,
    /// The targets that there are.
    targets: Vec<Target>,
    /// Told of what is due, where deliveries run in this process.
    engine: Option<&'a Engine>,
    limits: Limits,
}

impl Gateway {
    /// Those of a tenant's store.
    pub fn dead_letters(&self, tenant: &str) -> DeadLetters<'_> {
        let node = self.stores.of(tenant);
        DeadLetters {
            store: Arc::clone(&node.store),
            targets: node.engine.targets().into_iter().map(|view| view.target).collect(),
            engine: Some(&node.engine),
            limits: self.settings.limits,
        }
    }
}

impl DeadLetters<'_> {
    /// For a process that delivers nothing itself: the nodes find what is due.
    pub fn apart(store: Shared, targets: Vec<Target>, limits: Limits) -> Self {
        Self { store, targets, engine: None, limits }
    }

    /// A page of them, oldest first.
    ///
    /// # Errors
    /// `Malformed` for a filter or cursor that cannot be read.
    pub async fn list(&self, principal: &Principal, query: Query) -> Result<Page> {
        may_read(principal)?;
        let asked = stored::Query {
            tenant: principal.tenant.clone(),
            filter: query.filter.read("query ")?,
            limit: query.limit.unwrap_or(LIMIT).clamp(1, MAX_LIMIT),
            body_bytes: PAGE_BYTES,
            after: query.cursor.as_deref().map(parse_cursor).transpose()?,
        };
        let page = self.store.dead_letters(&asked).await?;
        Ok(Page {
            items: page.items.iter().map(DeadLetter::from).collect(),
            next_cursor: page.next.map(write_cursor),
        })
    }

    /// One of them.
    ///
    /// # Errors
    /// `NotFound` when there is none, or it is another tenant's.
    pub async fn get(&self, principal: &Principal, id: &str) -> Result<DeadLetter> {
        may_read(principal)?;
        self.find(principal, id).await.map(|found| DeadLetter::from(&found))
    }

    async fn find(&self, principal: &Principal, id: &str) -> Result<stored::DeadLetter> {
        let Ok(id) = Uuid::try_parse(id) else { return Err(not_found()) };
        self.store.dead_letter(&principal.tenant, id).await?.ok_or_else(not_found)
    }

    /// Changes what its message carries: `body` is a JSON object with `data` or `dataBase64`, `contentType`,
    /// `headers`; what is not there stays.
    ///
    /// # Errors
    /// `NotFound`; `Malformed` for what a message may not hold.
    pub async fn edit(&self, principal: &Principal, id: &str, body: &Bytes) -> Result<DeadLetter> {
        may_write(principal)?;
        let found = self.find(principal, id).await?;
        let edit = self.read_edit(&found.message, body)?;
        let edited = self.store.edit_dead_letter(&principal.tenant, found.id, &edit).await?;
        let edited = edited.ok_or_else(not_found)?;
        tracing::info!(
            dead_letter = %found.id, message = %found.message.id, principal = %principal.name,
            data = edit.body.is_some(), content_type = edit.content_type.is_some(),
            headers = edit.headers.is_some(), "dead letter edited"
        );
        Ok(DeadLetter::from(&edited))
    }

    /// Reads the change as a message of which only these members are said.
    fn read_edit(&self, message: &Message, body: &Bytes) -> Result<Edit> {
        if json::is_deeper_than(body, self.limits.json_depth) {
            let levels = self.limits.json_depth;
            return Err(Error::malformed(format!("The body nests deeper than {levels} levels.")));
        }
        let raw =
            json::document(body).map_err(|detail| Error::malformed(format!("The body is {detail}.")))?;
        let members =
            json::members(raw).ok_or_else(|| Error::malformed("The body must be a JSON object."))?;
        let mut places = Vec::new();
        let mut object = json::ObjectWriter::new();
        object.text("type", &message.kind);
        let said = |name: &str| {
            members.iter().any(|(other, value)| {
                other == name && (name == "data" || json::kind(value) != json::Kind::Null)
            })
        };
        for (name, value) in &members {
            match name.as_ref() {
                "data" | "dataBase64" | "contentType" | "headers" => {
                    object.raw(name, value.get());
                }
                _ => places.push(Place::new(
                    format!("/{}", json::escape(name)),
                    "cannot be changed; only data, dataBase64, contentType and headers can",
                )),
            }
        }
        if !places.is_empty() {
            return Err(Error::malformed_at("Some members cannot be changed; `errors` names them.", places));
        }
        if !said("contentType") {
            object.text_if("contentType", message.envelope.content_type.as_deref());
        }
        // Only what is new is checked: what is stored was, and its times may have passed.
        let draft = native::one(&object.finish().into(), &self.limits, message.accepted_at).map_err(wrong)?;
        let data = said("data") || said("dataBase64");
        Ok(Edit {
            body: data.then_some(draft.body),
            // `data` gives a message that had none its content type.
            content_type: draft.envelope.content_type.filter(|_| data || said("contentType")),
            headers: said("headers").then_some(draft.envelope.headers),
        })
    }

    /// Moves them back to their targets, the first accepted first.
    ///
    /// # Errors
    /// `Malformed` without exactly one of ids and filter; the store's. What earlier commits moved stays moved.
    pub async fn replay(&self, principal: &Principal, request: ReplayRequest) -> Result<ReplayAnswer> {
        may_write(principal)?;
        let duplicates = if request.force { Duplicates::Replay } else { Duplicates::Keep };
        let selection = select(principal, request.ids, request.filter)?;
        let mut replay = Replay { selection, targets: self.targets.clone(), duplicates, limit: COMMIT };
        let mut replayed = 0;
        while replayed < MAX_CALL {
            let moved = match self.store.replay_dead_letters(&replay).await {
                Ok(moved) => moved,
                Err(error) => {
                    tracing::warn!(replayed, principal = %principal.name, "dead letters replayed in part");
                    return Err(error.into());
                }
            };
            let number: u64 = moved.iter().map(|(_, number)| number).sum();
            for (target, number) in &moved {
                tracing::info!(
                    target_name = %target.name, kind = target.kind.as_str(), number,
                    force = request.force, principal = %principal.name, "dead letters replayed"
                );
                if let Some(engine) = self.engine {
                    engine.note_due(target, std::time::Duration::ZERO);
                    engine.note_strays(target);
                }
            }
            replayed += number;
            if number < u64::from(COMMIT) {
                break;
            }
        }
        let remaining = self.store.count_replayable(&replay).await?;
        replay.limit = MAX_LEFT;
        let left = self.store.hindrances(&replay).await?;
        Ok(ReplayAnswer { replayed, remaining, errors: left.into_iter().map(Left::from).collect() })
    }

    /// Deletes them.
    ///
    /// # Errors
    /// `Malformed` without exactly one of ids and filter; the store's. What earlier commits deleted is gone.
    pub async fn discard(&self, principal: &Principal, request: DiscardRequest) -> Result<DiscardAnswer> {
        may_write(principal)?;
        let claims =
            if request.release_deduplication.unwrap_or(true) { Claims::Release } else { Claims::Keep };
        let selection = select(principal, request.ids, request.filter)?;
        let mut discarded = 0;
        while discarded < MAX_CALL {
            let number = self.store.discard_dead_letters(&selection, claims, COMMIT).await?;
            if number == 0 {
                break;
            }
            discarded += number;
            tracing::info!(
                number, released_claims = claims == Claims::Release, filter = ?selection.filter,
                principal = %principal.name, "dead letters discarded"
            );
        }
        if let Some(engine) = self.engine.filter(|_| discarded > 0) {
            // What they blocked goes on.
            for target in self.targets.iter().filter(|target| engine.order(target).is_some()) {
                engine.note_due(target, std::time::Duration::ZERO);
            }
        }
        let remaining = self.store.count_dead_letters(&selection).await?;
        Ok(DiscardAnswer { discarded, remaining })
    }

    /// How many there are, by type, target and kind of error.
    ///
    /// # Errors
    /// `Forbidden`; the store's.
    pub async fn summary(&self, principal: &Principal) -> Result<Summary> {
        may_read(principal)?;
        let groups = self.store.summarise_dead_letters(&principal.tenant).await?;
        Ok(Summary { items: groups.into_iter().map(SummaryItem::from).collect() })
    }
}

fn not_found() -> Error {
    Error::NotFound {
        detail: "There is no such dead letter: unknown, replayed, discarded or expired.".into(),
    }
}

fn wrong(error: forms::Error) -> Error {
    match error {
        forms::Error::Malformed { detail, places } => Error::malformed_at(detail, places),
        forms::Error::TooMany { .. } => Error::malformed(error.to_string()),
    }
}

/// Exactly one of the two.
fn select(principal: &Principal, ids: Option<Vec<String>>, filter: Option<Filter>) -> Result<Selection> {
    let (ids, filter) = match (ids, filter) {
        // What is no id is the id of nothing.
        (Some(ids), None) => {
            let ids = ids.iter().filter_map(|id| Uuid::try_parse(id).ok()).collect();
            (Some(ids), stored::Filter::default())
        }
        (None, Some(filter)) => (None, filter.read("/filter/")?),
        (None, None) => {
            let detail = "Say which: `ids`, or `filter` (an empty one, `{}`, means all).";
            return Err(Error::malformed(detail));
        }
        (Some(_), Some(_)) => return Err(Error::malformed("Give either `ids` or `filter`, not both.")),
    };
    Ok(Selection { tenant: principal.tenant.clone(), ids, filter })
}

impl Filter {
    /// `place`: what stands before a member's name where it is told.
    fn read(self, place: &str) -> Result<stored::Filter> {
        let wrong = |name: &str, detail: String| {
            let place = Place::new(format!("{place}{name}"), detail.clone());
            Error::malformed_at(format!("`{name}` {detail}."), vec![place])
        };
        let time = |name: &str, text: Option<String>| -> Result<Option<Timestamp>> {
            text.as_deref().map(fields::time).transpose().map_err(|detail| wrong(name, detail))
        };
        let target = match (self.destination, self.handler) {
            (Some(name), None) => Some(Target::destination(&name)),
            (None, Some(name)) => Some(Target::handler(&name)),
            (None, None) => None,
            (Some(_), Some(_)) => {
                return Err(wrong("handler", "and `destination` cannot both be there".into()));
            }
        };
        let kinds = || DeadKind::ALL.map(DeadKind::as_str).join(", ");
        let error_kind = self.error_kind.map(|text| {
            DeadKind::parse(&text).ok_or_else(|| wrong("errorKind", format!("must be one of {}", kinds())))
        });
        Ok(stored::Filter {
            kind: self.r#type,
            target,
            error_kind: error_kind.transpose()?,
            from: time("from", self.from)?,
            until: time("until", self.until)?,
        })
    }
}

/// The moment in microseconds, and the id.
fn write_cursor(cursor: Cursor) -> String {
    format!("{:016x}{}", cursor.failed_at.timestamp_micros(), cursor.id.simple())
}

fn parse_cursor(text: &str) -> Result<Cursor> {
    let read = || {
        let (moment, id) = text.split_at_checked(16)?;
        let failed_at = Timestamp::from_timestamp_micros(i64::from_str_radix(moment, 16).ok()?)?;
        let cursor = Cursor { failed_at, id: Uuid::try_parse(id).ok()? };
        (write_cursor(cursor) == text).then_some(cursor)
    };
    read().ok_or_else(|| {
        Error::malformed_at(
            "`cursor` must be the `nextCursor` of the page before.",
            vec![Place::new("query cursor", "is not a cursor")],
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written_and_nothing_else_is() {
        let moment = Timestamp::from_timestamp_micros(1_764_550_000_123_456).unwrap();
        let cursor =
            Cursor { failed_at: moment, id: Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_00ab) };
        let text = write_cursor(cursor);
        assert_eq!(parse_cursor(&text).unwrap(), cursor);
        for bad in ["", "x", &text[1..], &format!("{text}0"), &text.to_uppercase(), "ü".repeat(24).as_str()]
        {
            assert!(parse_cursor(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_filter_says_what_is_wrong_with_it() {
        let filter = |json: &str| serde_json::from_str::<Filter>(json).unwrap().read("/filter/");
        let all = r#"{"type":"t","handler":"h","errorKind":"Expired","from":"2026-01-01T00:00:00Z","until":"2026-01-02T00:00:00Z"}"#;
        let read = filter(all).unwrap();
        assert_eq!((read.target, read.error_kind), (Some(Target::handler("h")), Some(DeadKind::Expired)));
        for (json, place) in [
            (r#"{"errorKind":"expired"}"#, "/filter/errorKind"),
            (r#"{"from":"yesterday"}"#, "/filter/from"),
            (r#"{"destination":"a","handler":"a"}"#, "/filter/handler"),
        ] {
            let Err(Error::Malformed { errors, .. }) = filter(json) else { panic!("{json}") };
            assert_eq!(errors[0].pointer, place);
        }
    }
}
