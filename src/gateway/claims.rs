//! Claims for consumers that read the broker themselves: claim with a lease, renew, confirm, release.
//!
//! A consumer claims (scope, id) before it does the work and confirms afterwards. Whoever comes second is told
//! that the work is done, or that somebody is at it. A consumer that died holds nothing up for longer than
//! its lease; one that was slow finds its token refused.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Error, Gateway, Place, Result};
use crate::auth::Principal;
use crate::domain::claim::{ClaimKey, ClaimKind};
use crate::domain::{Token, duration};
use crate::store::claims::{Claim, ClaimState, Claimed as Stored, NewClaim};

/// If a consumer does not say.
const LEASE: Duration = Duration::from_secs(30);
const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
const MAX_SCOPE_CHARS: usize = 255;
const MAX_ID_CHARS: usize = 512;

/// Asks for a claim.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimRequest {
    /// What the id is an id in, such as the consumer's name.
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    pub scope: String,
    /// The identity of the work, usually the message's `deduplication-id`, else its `id`.
    #[schema(min_length = 1, max_length = 512, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    pub id: String,
    /// How long nobody else may claim it: `30s`, `PT30S`. 30 s if left out, at most 24 h.
    #[schema(example = "30s")]
    pub lease: Option<String>,
    /// For whoever looks the claim up.
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    pub message_id: Option<String>,
}

/// Names a claim that the caller holds.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimHolder {
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    pub scope: String,
    #[schema(min_length = 1, max_length = 512, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    pub id: String,
    /// As it was given when the claim was granted.
    #[schema(pattern = "^[0-7][0-9a-f]{15}$")]
    pub token: String,
}

/// Asks for another lease of a claim that the caller holds.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimRenewal {
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    pub scope: String,
    #[schema(min_length = 1, max_length = 512, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    pub id: String,
    /// As it was given when the claim was granted.
    #[schema(pattern = "^[0-7][0-9a-f]{15}$")]
    pub token: String,
    /// From now. 30 s if left out, at most 24 h.
    #[schema(example = "30s")]
    pub lease: Option<String>,
}

/// What became of a request for a claim.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum ClaimAnswer {
    /// Do the work, then confirm.
    #[serde(rename_all = "camelCase")]
    Claimed { token: String, lease_until: DateTime<Utc> },
    /// The work is done.
    #[serde(rename_all = "camelCase")]
    Duplicate { first_seen_at: DateTime<Utc>, expires_at: DateTime<Utc> },
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RenewAnswer {
    pub lease_until: DateTime<Utc>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum ConfirmAnswer {
    /// Remembered until then.
    #[serde(rename_all = "camelCase")]
    Confirmed { expires_at: DateTime<Utc> },
}

/// A claim, looked up.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Claim)]
pub struct ClaimView {
    pub scope: String,
    pub id: String,
    /// `claimed` or `confirmed`.
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    pub first_seen_at: DateTime<Utc>,
    /// While it is claimed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<DateTime<Utc>>,
    /// The lease's end while claimed, then the window's.
    pub expires_at: DateTime<Utc>,
}

impl Gateway {
    /// Claims, or says that the work is done.
    ///
    /// # Errors
    /// `ClaimHeld` while somebody else holds it.
    pub async fn claim(&self, principal: &Principal, request: ClaimRequest) -> Result<ClaimAnswer> {
        let key = claim_key(principal, &request.scope, &request.id)?;
        if let Some(id) = &request.message_id {
            check_text("messageId", id, MAX_SCOPE_CHARS)?;
        }
        let new = NewClaim {
            key,
            kind: ClaimKind::Consumer,
            lease: lease(request.lease.as_deref())?,
            scope: request.scope,
            id: request.id,
            tenant: principal.tenant.clone(),
            token: self.random.token(),
            message_id: request.message_id,
            fingerprint: None,
        };
        match self.store(principal).claim(&new).await? {
            Stored::Granted(claim) => {
                Ok(ClaimAnswer::Claimed { token: write_token(claim.token), lease_until: claim.expires_at })
            }
            Stored::Held(claim) if claim.state == ClaimState::Confirmed => {
                tracing::info!(scope = %new.scope, id = %new.id, "duplicate: a consumer's work is done already");
                Ok(ClaimAnswer::Duplicate {
                    first_seen_at: claim.first_seen_at,
                    expires_at: claim.expires_at,
                })
            }
            Stored::Held(claim) => {
                Err(Error::ClaimHeld { retry_after: claim.expires_in.max(Duration::from_secs(1)) })
            }
        }
    }

    /// Pushes the lease's end.
    ///
    /// # Errors
    /// `ClaimLost` when the token no longer holds.
    pub async fn renew_claim(&self, principal: &Principal, holder: ClaimRenewal) -> Result<RenewAnswer> {
        let key = claim_key(principal, &holder.scope, &holder.id)?;
        let lease = lease(holder.lease.as_deref())?;
        let claim = self
            .store(principal)
            .renew(key, read_token(&holder.token)?, lease)
            .await?
            .ok_or(Error::ClaimLost)?;
        Ok(RenewAnswer { lease_until: claim.expires_at })
    }

    /// Says that the work is done. Saying so again gives the same answer.
    ///
    /// # Errors
    /// `ClaimLost` when the token no longer holds.
    pub async fn confirm_claim(&self, principal: &Principal, holder: ClaimHolder) -> Result<ConfirmAnswer> {
        let key = claim_key(principal, &holder.scope, &holder.id)?;
        let window = self.settings.claim_window;
        let claim = self
            .store(principal)
            .confirm(key, read_token(&holder.token)?, window)
            .await?
            .ok_or(Error::ClaimLost)?;
        Ok(ConfirmAnswer::Confirmed { expires_at: claim.expires_at })
    }

    /// Gives the claim back, undone.
    ///
    /// # Errors
    /// `ClaimLost` when the token no longer holds.
    pub async fn release_claim(&self, principal: &Principal, holder: ClaimHolder) -> Result<()> {
        let key = claim_key(principal, &holder.scope, &holder.id)?;
        if self.store(principal).release(key, read_token(&holder.token)?).await? {
            Ok(())
        } else {
            Err(Error::ClaimLost)
        }
    }

    /// The claim of a consumer's that stands; for operators also that of a published message, whose scope is
    /// its type.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn look_up_claim(&self, principal: &Principal, scope: &str, id: &str) -> Result<ClaimView> {
        check_text("scope", scope, MAX_SCOPE_CHARS)?;
        check_text("id", id, MAX_ID_CHARS)?;
        let operates = principal.may_read();
        if !operates && !principal.may_claim(scope) {
            return Err(forbidden(scope));
        }
        let parts = [principal.tenant.as_str(), scope];
        let mut claim =
            self.store(principal).claim_of(ClaimKey::new(ClaimKind::Consumer, &parts, id)).await?;
        if claim.is_none() && operates {
            claim = self.store(principal).claim_of(ClaimKey::new(ClaimKind::Work, &parts, id)).await?;
        }
        let claim = claim.filter(|claim| claim.id == id).ok_or_else(|| Error::NotFound {
            detail: "Nobody holds this id in this scope: it was never claimed, was released, or has expired."
                .into(),
        })?;
        Ok(view(scope, claim))
    }
}

fn view(scope: &str, claim: Claim) -> ClaimView {
    let claimed = claim.state == ClaimState::Claimed;
    ClaimView {
        scope: scope.to_owned(),
        id: claim.id,
        state: if claimed { "claimed" } else { "confirmed" }.to_owned(),
        message_id: claim.message_id,
        first_seen_at: claim.first_seen_at,
        lease_until: claimed.then_some(claim.expires_at),
        expires_at: claim.expires_at,
    }
}

fn claim_key(principal: &Principal, scope: &str, id: &str) -> Result<ClaimKey> {
    check_text("scope", scope, MAX_SCOPE_CHARS)?;
    check_text("id", id, MAX_ID_CHARS)?;
    if !principal.may_claim(scope) {
        return Err(forbidden(scope));
    }
    Ok(ClaimKey::new(ClaimKind::Consumer, &[&principal.tenant, scope], id))
}

fn forbidden(scope: &str) -> Error {
    Error::Forbidden { detail: format!("Claims of the scope `{scope}` need the grant `claim:{scope}`.") }
}

fn check_text(name: &str, text: &str, max_chars: usize) -> Result<()> {
    let problem = if text.is_empty() {
        "must not be empty".to_owned()
    } else if text.chars().count() > max_chars {
        format!("must not be longer than {max_chars} characters")
    } else if text.chars().any(char::is_control) {
        "must not hold control characters".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::malformed_at(format!("`{name}` {problem}."), vec![Place::new(format!("/{name}"), problem)]))
}

fn lease(text: Option<&str>) -> Result<Duration> {
    let Some(text) = text else { return Ok(LEASE) };
    let wrong = |detail: String| {
        Error::malformed_at(format!("`lease` {detail}."), vec![Place::new("/lease", detail)])
    };
    let lease = duration::parse(text).map_err(|error| wrong(error.to_string()))?;
    // Zero is not "none": a lease that has ended before it begins protects nothing.
    if lease < Duration::from_millis(1) || lease > MAX_LEASE {
        return Err(wrong("must be more than nothing and at most 24 h".into()));
    }
    Ok(lease)
}

/// A string, because not every JSON reader keeps 63 bits of a number.
fn write_token(token: Token) -> String {
    format!("{:016x}", token.0)
}

fn read_token(text: &str) -> Result<Token> {
    i64::from_str_radix(text, 16).ok().filter(|token| *token >= 0).map(Token).ok_or_else(|| {
        let detail = "is not a token that this gateway gives";
        Error::malformed_at(format!("`token` {detail}."), vec![Place::new("/token", detail)])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_wire() {
        for token in [Token(0), Token(1), Token(i64::MAX)] {
            assert_eq!(read_token(&write_token(token)).unwrap(), token);
        }
        assert!(read_token("-1").is_err() && read_token("zz").is_err() && read_token("").is_err());
    }

    #[test]
    fn a_lease_of_nothing_is_refused_and_none_is_the_default() {
        assert_eq!(lease(None).unwrap(), LEASE);
        assert_eq!(lease(Some("5s")).unwrap(), Duration::from_secs(5));
        assert!(lease(Some("0s")).is_err() && lease(Some("25h")).is_err() && lease(Some("soon")).is_err());
    }
}
