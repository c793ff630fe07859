//! The trace context of an attempt.

use std::borrow::Cow;

use crate::domain::{Random, wire};

/// Puts the gateway's own span in the place of the publisher's: the trace and its flags stay (W3C Trace
/// Context, 3.2.2.4), so that the target's work hangs below this attempt.
pub(super) fn own_span(headers: &mut wire::Headers<'_>, random: Random) {
    for (name, value) in headers {
        if name.ends_with(wire::TRACEPARENT)
            && let Some((version, rest)) = value.split_once('-')
            && let Some((trace, rest)) = rest.split_once('-')
            && let Some((_, flags)) = rest.split_once('-')
        {
            let span = u64::from_be_bytes(random.bytes()).max(1); // zero is no span
            *value = Cow::Owned(format!("{version}-{trace}-{span:016x}-{flags}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_stays_and_the_span_is_new() {
        let before = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let mut headers: wire::Headers<'_> =
            vec![("id", "a-b-c-d".into()), ("ce-traceparent", before.into())];
        own_span(&mut headers, Random);
        assert_eq!(headers[0].1, "a-b-c-d");
        let after = headers[1].1.as_ref();
        assert_eq!(wire::traceparent(after), Some(after));
        assert_ne!(after, before);
        assert_eq!((&after[..36], &after[52..]), (&before[..36], &before[52..]));
    }
}
