//! Durations as people write them: `30s`, `1h 30m`, or ISO 8601 (`PT30S`, `P1DT12H`).

use std::time::Duration;

/// Longer than this is taken for a slip, and could leave the range of times: a hundred years.
pub const LONGEST: Duration = Duration::from_secs(36_525 * 86_400);

/// Reads a duration. ISO 8601 years and months are refused, because their length depends on when they begin.
///
/// # Errors
/// What is wrong, and how to write it instead.
pub fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let parsed =
        if text.starts_with(['P', 'p']) { iso8601(text) } else { humantime::parse_duration(text).ok() };
    match parsed {
        Some(duration) if duration > LONGEST => {
            Err(format!("`{}` is not a duration of at most a hundred years", shorten(text)))
        }
        Some(duration) => Ok(duration),
        None => Err(format!(
            "`{}` is not a duration: write it as `30s`, `1h 30m`, or in ISO 8601 as `PT30S`",
            shorten(text)
        )),
    }
}

/// Writes a duration as [`parse`] reads it, in the largest unit that is exact: `24h`, `90s`, `250ms`.
pub fn format(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let units: [(&str, u128); 7] = [
        ("d", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
        ("ns", 1),
    ];
    for (unit, length) in units {
        // One day is written `24h`, as everybody does; days come from two on.
        if nanos > 0 && nanos.is_multiple_of(length) && (unit != "d" || nanos > length) {
            return format!("{}{unit}", nanos / length);
        }
    }
    "0s".into()
}

fn shorten(text: &str) -> String {
    text.chars().take(40).collect()
}

/// `P[nW]` or `P[nD][T[nH][nM][n[.n]S]]`; a fraction is allowed on the seconds only.
fn iso8601(text: &str) -> Option<Duration> {
    let upper = text.to_ascii_uppercase();
    let rest = upper.strip_prefix('P')?;
    let (date, time) = match rest.split_once('T') {
        Some((date, time)) if !time.is_empty() => (date, time),
        Some(_) => return None,
        None => (rest, ""),
    };
    if date.is_empty() && time.is_empty() {
        return None;
    }
    let days = units(date, &[('W', 7 * 86_400), ('D', 86_400)])?;
    days.checked_add(units(time, &[('H', 3_600), ('M', 60), ('S', 1)])?)
}

/// The sum of `text`'s numbers, each followed by its unit, in the order of `units` (name, seconds).
fn units(mut text: &str, units: &[(char, u64)]) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    let mut left = units.iter();
    while !text.is_empty() {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',')?;
        let number = &text[..end];
        let unit = text[end..].chars().next()?;
        let &(_, seconds) = left.find(|(name, _)| *name == unit)?;
        sum = sum.checked_add(quantity(number, seconds)?)?;
        text = &text[end + unit.len_utf8()..];
    }
    Some(sum)
}

fn quantity(number: &str, seconds: u64) -> Option<Duration> {
    let (whole, fraction) = match number.split_once(['.', ',']) {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (number, None),
    };
    let whole = Duration::from_secs(whole.parse::<u64>().ok()?.checked_mul(seconds)?);
    let Some(fraction) = fraction else { return Some(whole) };
    if seconds != 1 || fraction.is_empty() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let nanos: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    whole.checked_add(Duration::from_nanos(nanos.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_writing() {
        for (text, seconds) in [
            ("30s", 30),
            ("1h 30m", 5_400),
            ("0s", 0),
            ("PT30S", 30),
            ("pt1h30m", 5_400),
            ("P1DT12H", 129_600),
            ("P2W", 1_209_600),
            ("PT0S", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse("PT1.5S"), Ok(Duration::from_millis(1_500)));
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn what_is_none_says_how_to_write_one() {
        for text in [
            "",
            "30",
            "-30s",
            "soon",
            "P",
            "PT",
            "P1DT",
            "P1M",
            "P1Y",
            "PT1.5H",
            "PT1H2H",
            "PT1S1M",
            "P-1D",
            "PTS",
            "PT.S",
            "PT99999999999999999999S",
            "P99999999999999999D",
            "36526d",
        ] {
            assert!(parse(text).unwrap_err().contains("is not a duration"), "{text}");
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        for millis in [0, 1, 999, 1_000, 90_061_001] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse(&format(duration)), Ok(duration));
        }
        for (text, expected) in
            [("1d", "24h"), ("30d", "30d"), ("90s", "90s"), ("60s", "1m"), ("PT0.25S", "250ms"), ("0s", "0s")]
        {
            assert_eq!(format(parse(text).unwrap()), expected);
        }
    }
}
