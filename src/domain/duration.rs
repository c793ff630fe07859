//! Durations as people write them: `30s`, `1h30m`, or ISO 8601 (`PT30S`).

use std::time::Duration;

/// Longer than this is taken for a slip (and would not fit the stores' clocks): a hundred years.
pub const LONGEST: Duration = Duration::from_secs(36_525 * 24 * 60 * 60);

const MILLI: f64 = 0.001;
const MINUTE: f64 = 60.0;
const HOUR: f64 = 60.0 * MINUTE;
const DAY: f64 = 24.0 * HOUR;
const WEEK: f64 = 7.0 * DAY;

/// Reads a duration: numbers with a unit (`ms`, `s`, `m`, `h`, `d`, `w`), the larger unit first, as in `90s`,
/// `1h30m`, `1.5h`; or ISO 8601 without years and months (whose length is not fixed), as in `PT30S`, `P1DT12H`.
///
/// # Errors
/// A text for people that says how to write one.
pub fn parse(text: &str) -> Result<Duration, String> {
    let read = match text.strip_prefix(['P', 'p']) {
        Some(iso) => parse_iso(iso),
        None => parse_units(text),
    };
    match read {
        Some(seconds) if seconds <= LONGEST.as_secs_f64() => {
            // Rounded to the resolution of the stores, so that `0.1s` is what it says.
            Duration::try_from_secs_f64(seconds)
                .map(|exact| Duration::from_micros((exact.as_nanos().saturating_add(500) / 1000) as u64))
                .map_err(|_| malformed(text))
        }
        Some(_) => Err(format!("`{text}` is longer than a hundred years")),
        None => Err(malformed(text)),
    }
}

/// Writes a duration as [`parse`] reads it, in the largest unit that is exact: `24h`, `90s`, `250ms`.
pub fn format(duration: Duration) -> String {
    let micros = duration.as_micros();
    if micros == 0 {
        return "0s".into();
    }
    for (unit, length) in [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000)] {
        // A day is written as `24h`, as everybody does, and as days from two on.
        if micros % length == 0 && (unit != "d" || micros > length) {
            return format!("{}{unit}", micros / length);
        }
    }
    format!("{}ms", micros as f64 / 1000.0)
}

fn malformed(text: &str) -> String {
    format!(
        "`{text}` is not a duration: write a number with its unit, such as `500ms`, `30s`, `5m`, `24h`, `30d`, or ISO 8601 such as `PT30S`"
    )
}

/// `1h30m`: units in falling order, each once.
fn parse_units(text: &str) -> Option<f64> {
    let mut seconds = 0.0;
    let mut rest = text;
    let mut last = f64::INFINITY;
    while !rest.is_empty() {
        let (number, after) = number(rest)?;
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let unit = match &after[..letters] {
            "ms" => MILLI,
            "s" => 1.0,
            "m" => MINUTE,
            "h" => HOUR,
            "d" => DAY,
            "w" => WEEK,
            _ => return None,
        };
        if unit >= last {
            return None;
        }
        last = unit;
        seconds += number * unit;
        rest = &after[letters..];
    }
    last.is_finite().then_some(seconds)
}

/// What follows the `P` of an ISO 8601 duration.
fn parse_iso(text: &str) -> Option<f64> {
    let upper = text.to_ascii_uppercase();
    let (date, time) = match upper.split_once('T') {
        Some((_, "")) => return None,
        Some((date, time)) => (date, time),
        None => (upper.as_str(), ""),
    };
    if date.is_empty() && time.is_empty() {
        return None;
    }
    Some(
        iso_part(date, &[('W', WEEK), ('D', DAY)])?
            + iso_part(time, &[('H', HOUR), ('M', MINUTE), ('S', 1.0)])?,
    )
}

fn iso_part(text: &str, units: &[(char, f64)]) -> Option<f64> {
    let mut seconds = 0.0;
    let mut rest = text;
    let mut units = units.iter();
    while !rest.is_empty() {
        let (number, after) = number(rest)?;
        let designator = after.chars().next()?;
        let (_, unit) = units.find(|(letter, _)| *letter == designator)?;
        seconds += number * unit;
        rest = &after[designator.len_utf8()..];
    }
    Some(seconds)
}

/// A number with at most one point (ISO 8601 also allows a comma), and what follows it.
fn number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    if !digits.starts_with(|c: char| c.is_ascii_digit()) || !digits.ends_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    digits.replace(',', ".").parse().ok().map(|number| (number, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_notations() {
        for (text, millis) in [
            ("0s", 0),
            ("250ms", 250),
            ("30s", 30_000),
            ("0.1s", 100),
            ("1.5h", 5_400_000),
            ("1h30m", 5_400_000),
            ("24h", 86_400_000),
            ("2d12h", 216_000_000),
            ("1w", 604_800_000),
            ("PT30S", 30_000),
            ("PT0.5S", 500),
            ("pt0,5s", 500),
            ("PT1H30M", 5_400_000),
            ("P1D", 86_400_000),
            ("P1DT12H", 129_600_000),
            ("P1W", 604_800_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_none_says_how_to_write_one() {
        for text in [
            "", "30", "s", "-5s", "+5s", "5 s", "5x", "1m1h", "1s1s", "1.s", ".5s", "1.2.3s", "P", "PT",
            "P1Y", "P1M", "PT1", "P1H", "PT1S1M", "1e3s", "٣s", "infs", "NaNs", "5sé",
        ] {
            assert!(parse(text).unwrap_err().contains("is not a duration"), "{text}");
        }
        for text in ["999999d", "P99999999999999999999D", &format!("{}s", "9".repeat(400))] {
            assert!(parse(text).unwrap_err().contains("hundred years"), "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (text, expected) in [
            ("24h", "24h"),
            ("1d", "24h"),
            ("30d", "30d"),
            ("90s", "90s"),
            ("60s", "1m"),
            ("PT0.25S", "250ms"),
            ("0s", "0s"),
        ] {
            let duration = parse(text).unwrap();
            assert_eq!(format(duration), expected);
            assert_eq!(parse(&format(duration)), Ok(duration));
        }
    }
}
