//! Signatures with a shared secret: HMAC-SHA256 over the bytes as they came.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::config::Secret;
use crate::domain::Timestamp;

pub const NO_MATCH: &str = "No signature matches: another secret, or the body was changed on its way.";

/// Whether one of `codes` is that of `parts`, one after the other, under one of `secrets`. The whole text of a
/// secret is the key. Compared in constant time.
pub fn matches(secrets: &[Secret], parts: &[&[u8]], codes: &[Vec<u8>]) -> bool {
    secrets.iter().any(|secret| {
        let key = secret.expose();
        // HMAC takes keys of any length; the error is that of other algorithms' interface.
        let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("HMAC takes a key of any length");
        for part in parts {
            mac.update(part);
        }
        codes.iter().any(|code| mac.clone().verify_slice(code).is_ok())
    })
}

/// Whether `signed_s` (seconds of Unix time) is within `tolerance` of `now`.
///
/// # Errors
/// Which way it is off.
pub fn fresh(signed_s: i64, now: Timestamp, tolerance: Duration) -> Result<(), &'static str> {
    let tolerance_s = i64::try_from(tolerance.as_secs()).unwrap_or(i64::MAX);
    let age_s = now.timestamp().saturating_sub(signed_s);
    if age_s > tolerance_s {
        return Err("It was signed too long ago, or the clocks differ.");
    }
    if age_s < tolerance_s.saturating_neg() {
        return Err("It was signed in the future: the clocks differ.");
    }
    Ok(())
}

/// The bytes that hexadecimal digits stand for.
pub fn hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // printf 'a.b' | openssl dgst -sha256 -hmac new
    const BY_NEW: &str = "de20b91962c81bce418281c83f80626e040c26dcd52e6e22136792a2d4a54416";

    #[test]
    fn any_secret_and_any_code_may_match_and_no_other_does() {
        let (old, new) = (Secret::new("old"), Secret::new("new"));
        let code = hex(BY_NEW.as_bytes()).unwrap();
        let mut wrong = code.clone();
        wrong[31] ^= 1;
        let parts: &[&[u8]] = &[b"a", b".", b"b"];
        assert!(matches(&[old.clone(), new.clone()], parts, &[wrong.clone(), code.clone()]));
        assert!(!matches(std::slice::from_ref(&old), parts, std::slice::from_ref(&code)));
        assert!(!matches(std::slice::from_ref(&new), &[b"a.c"], std::slice::from_ref(&code)));
        for none in [wrong, code[..31].to_vec(), Vec::new()] {
            assert!(!matches(&[old.clone(), new.clone()], parts, &[none]));
        }
        assert!(!matches(&[], parts, std::slice::from_ref(&code)) && !matches(&[new], parts, &[]));
    }

    #[test]
    fn the_tolerance_goes_both_ways() {
        let now = chrono::DateTime::from_timestamp(1_000_000, 999_000_000).unwrap();
        let tolerance = Duration::from_secs(300);
        for (signed_s, expected) in
            [(999_700, true), (1_000_300, true), (999_699, false), (1_000_301, false), (i64::MIN, false)]
        {
            assert_eq!(fresh(signed_s, now, tolerance).is_ok(), expected, "{signed_s}");
        }
        assert!(fresh(i64::MIN, now, Duration::MAX).is_ok());
    }

    #[test]
    fn hexadecimal_digits_come_in_pairs() {
        assert_eq!(hex(b"00fFa1").unwrap(), [0, 0xff, 0xa1]);
        assert_eq!(hex(b"").unwrap(), b"");
        for none in ["0", "0g", "+1", "é", " 0"] {
            assert_eq!(hex(none.as_bytes()), None, "{none}");
        }
    }
}
