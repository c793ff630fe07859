//! The certificate that messages of Amazon SNS are signed with: what of it verifies a signature.

use aws_lc_rs::signature::{
    RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey,
};
use x509_parser::pem::parse_x509_pem;

use crate::domain::Timestamp;

/// Certificates larger than this are none of SNS's (which have about 2 KiB).
pub const LARGEST_BYTES: usize = 64 * 1024;

/// A certificate, read. Its chain is not looked at: SNS's certificates are trusted for where they come from.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    /// `SubjectPublicKeyInfo`, DER.
    key: Vec<u8>,
    /// Seconds of Unix time.
    not_before_s: i64,
    not_after_s: i64,
}

/// `SignatureVersion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `1`: RSA with SHA-1.
    Sha1,
    /// `2`: RSA with SHA-256.
    Sha256,
}

/// Why a signature is not taken for SNS's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    #[error("the certificate has expired, or is not valid yet")]
    Expired,
    #[error("the signature does not match: another certificate, or the message was changed on its way")]
    NoMatch,
}

impl Certificate {
    /// Reads the first certificate of a PEM text.
    ///
    /// # Errors
    /// What it is not, for people.
    pub fn from_pem(text: &[u8]) -> Result<Self, &'static str> {
        if text.len() > LARGEST_BYTES {
            return Err("is too large to be a certificate");
        }
        let (_, pem) = parse_x509_pem(text).map_err(|_| "is not a certificate in the PEM format")?;
        let certificate = pem.parse_x509().map_err(|_| "is not an X.509 certificate")?;
        let validity = certificate.validity();
        Ok(Self {
            key: certificate.public_key().raw.to_vec(),
            not_before_s: validity.not_before.timestamp(),
            not_after_s: validity.not_after.timestamp(),
        })
    }

    /// Whether `signature` was made over `signed` with this certificate's key.
    ///
    /// # Errors
    /// Why not.
    pub fn verify(
        &self,
        version: Version,
        signed: &[u8],
        signature: &[u8],
        now: Timestamp,
    ) -> Result<(), VerifyError> {
        if !(self.not_before_s..=self.not_after_s).contains(&now.timestamp()) {
            return Err(VerifyError::Expired);
        }
        let algorithm = match version {
            Version::Sha1 => &RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
            Version::Sha256 => &RSA_PKCS1_2048_8192_SHA256,
        };
        UnparsedPublicKey::new(algorithm, &self.key)
            .verify(signed, signature)
            .map_err(|_| VerifyError::NoMatch)
    }
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate").field("not_after_s", &self.not_after_s).finish_non_exhaustive()
    }
}
