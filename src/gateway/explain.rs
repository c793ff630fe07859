//! A dry run of publish: which id by which rule, which targets, whether the work is taken; and why not.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::prepare::{By, Way};
use super::{Error, Gateway, Preparer, Result};
use crate::auth::Principal;
use crate::domain::delivery::TargetKind;
use crate::domain::identity::Derived;
use crate::domain::message::{Draft, DraftDeduplication};
use crate::store;
use crate::store::claims::{Claim, ClaimState};

/// What would become of a message.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deduplication_id: Option<String>,
    /// `publisher`, `rule` or `contract`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deduplication_source: Option<String>,
    /// The rule's place in `deduplication.rules`, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
    pub destinations: Vec<String>,
    pub handlers: Vec<String>,
    /// Who has taken the work, where somebody has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<ExplainedClaim>,
    /// In words: what publishing it now would come to, and why.
    pub notes: Vec<String>,
}

/// The claim of the work.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedClaim {
    /// `claimed` or `confirmed`.
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    pub first_seen_at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
}

impl Gateway {
    /// Explains what publishing `draft` now would come to. Writes nothing.
    ///
    /// # Errors
    /// `Forbidden` for a type that the principal may not publish.
    pub async fn explain(&self, principal: &Principal, draft: Draft) -> Result<Explanation> {
        explain(&self.preparer, Some(self.store(principal)), principal, &draft).await
    }
}

/// Explains what publishing `draft` now would come to. Writes nothing. Without a store nothing is taken.
///
/// # Errors
/// `Forbidden` for a type that the principal may not publish; the store's.
pub async fn explain(
    preparer: &Preparer,
    store: Option<&store::Shared>,
    principal: &Principal,
    draft: &Draft,
) -> Result<Explanation> {
    if !principal.may_publish(&draft.kind) {
        return Err(Error::Forbidden {
            detail: format!("Explaining messages of type `{0}` needs the grant `publish:{0}`.", draft.kind),
        });
    }
    let mut told = Explanation::default();
    let derived = preparer.derive(&By { principal, idempotency_key: None, way: Way::Request }, draft);
    told.identity(draft, derived.as_ref());
    let mut refused = false;
    let mut refuse = |told: &mut Explanation, why: String| {
        told.notes.push(format!("It would be refused: {why}"));
        refused = true;
    };
    if let Err(error) = preparer.check_schema(draft) {
        let Error::SchemaViolation { errors, .. } = &error else { return Err(error) };
        let places: Vec<_> =
            errors.iter().map(|place| format!("{} {}", place.pointer, place.detail)).collect();
        refuse(&mut told, format!("the data violates the type's schema: {}.", places.join("; ")));
    }
    match preparer.routing.targets(principal, draft) {
        Ok(targets) => {
            for target in targets {
                match target.kind {
                    TargetKind::Destination => told.destinations.push(target.name.to_string()),
                    TargetKind::Handler => told.handlers.push(target.name.to_string()),
                }
            }
        }
        Err(Error::Unroutable { detail } | Error::Forbidden { detail }) => refuse(&mut told, detail),
        Err(error) => return Err(error),
    }
    if preparer.messages.key_required.contains(&draft.kind) {
        told.notes.push("Its type needs an `Idempotency-Key` header.".into());
    }
    let Some(enforcement) = preparer.messages.identity.enforcement(&draft.kind) else {
        told.notes.push("Nothing is deduplicated at publish: neither the type nor a policy says so.".into());
        return Ok(told);
    };
    let Some(derived) = derived else {
        if enforcement.required {
            refuse(&mut told, "its type needs a deduplication id, and it has none.".into());
        } else {
            told.notes.push("Without a deduplication id it would pass as it is.".into());
        }
        return Ok(told);
    };
    let work = enforcement.work_key(&principal.tenant, &draft.kind, &derived.id);
    let claim = match store {
        Some(store) => store.claim_of(work.key).await?.filter(|claim| claim.id == derived.id),
        None => None,
    };
    told.claim(principal, claim);
    if !refused && told.claim.is_none() {
        told.notes.push("The work is not taken: it would be accepted.".into());
    }
    Ok(told)
}

impl Explanation {
    fn identity(&mut self, draft: &Draft, derived: Option<&Derived>) {
        if let Some(derived) = derived {
            self.deduplication_id = Some(derived.id.clone());
            self.deduplication_source = Some(derived.source.as_str().to_owned());
            self.rule = derived.source.rule();
            return;
        }
        self.notes.push(match draft.deduplication {
            DraftDeduplication::OptOut => "It has no deduplication id: its publisher opted out.".into(),
            _ => "It has no deduplication id: its publisher set none, and no rule and no contract gives one."
                .into(),
        });
    }

    fn claim(&mut self, principal: &Principal, claim: Option<Claim>) {
        let Some(claim) = claim else { return };
        let same_tenant = claim.tenant == principal.tenant;
        self.notes.push(format!(
            "It would be a duplicate: the work is taken since {} and until {}.",
            claim.first_seen_at.to_rfc3339(),
            claim.expires_at.to_rfc3339()
        ));
        self.claim = Some(ExplainedClaim {
            state: if claim.state == ClaimState::Claimed { "claimed" } else { "confirmed" }.to_owned(),
            message_id: claim.message_id.filter(|_| same_tenant),
            first_seen_at: claim.first_seen_at,
            expires_at: claim.expires_at,
        });
    }
}
