//! The trace context of an attempt.

use std::borrow::Cow;

use crate::domain::{Random, wire};

/// The value of a header, with the gateway's own span in the place of the publisher's where it is
/// `traceparent`: the trace and its flags stay (W3C Trace Context, 3.2.2.4), so that the target's work hangs
/// below this attempt. A CloudEvents attribute of that name tells of the event's making, and stays.
pub(super) fn own_span<'a>(name: &str, value: Cow<'a, str>, random: Random) -> Cow<'a, str> {
    if name != wire::TRACEPARENT {
        return value;
    }
    let mut parts = value.splitn(4, '-');
    let (Some(version), Some(trace), Some(_), Some(flags)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return value;
    };
    let span = u64::from_be_bytes(random.bytes()).max(1); // zero is no span
    Cow::Owned(format!("{version}-{trace}-{span:016x}-{flags}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_stays_and_the_span_is_new() {
        let before = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let after = own_span("traceparent", before.into(), Random);
        assert_eq!(wire::traceparent(&after), Some(&*after));
        assert_ne!(after, before);
        assert_eq!((&after[..36], &after[52..]), (&before[..36], &before[52..]));
        assert_eq!(own_span("ce-traceparent", before.into(), Random), before);
        assert_eq!(own_span("id", "a-b-c-d".into(), Random), "a-b-c-d");
    }
}
