//! Who calls, and what they may do. Decided from the request's head, before its body is read.
//!
//! [`Credentials`] holds what the configuration accepts: API keys (`keys`) and tokens of an identity provider
//! (`token`, whose keys come from `jwks`). What a caller may do is read off its [`Principal`].
//!
//! [`Sender`] verifies the tokens of those that push: they are nobody's principal, and a receiver of their own
//! says whom it takes.

mod credentials;
mod jwks;
mod keys;
mod principal;
mod sender;
mod signed;
mod token;

use async_trait::async_trait;
use http::HeaderMap;

pub use crate::domain::grant::Grant;
pub use credentials::Credentials;
pub use principal::{Principal, Via};
pub use sender::{Sender, Unproven};

/// Recognises callers by a request's headers.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// # Errors
    /// Why the caller is not recognised; the same 401 for all of them.
    async fn authenticate(&self, headers: &HeaderMap) -> Result<Principal, Refusal>;
}

/// Why a caller is not recognised. `detail` is for the caller, `reason` for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    pub detail: &'static str,
    pub reason: String,
}

impl Refusal {
    pub fn new(detail: &'static str, reason: impl Into<String>) -> Self {
        Self { detail, reason: reason.into() }
    }

    pub fn detail(&self) -> &'static str {
        self.detail
    }
}

/// Recognises everybody as the anonymous principal, which may do everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anonymous;

#[async_trait]
impl Authenticator for Anonymous {
    async fn authenticate(&self, _headers: &HeaderMap) -> Result<Principal, Refusal> {
        Ok(Principal::anonymous())
    }
}
