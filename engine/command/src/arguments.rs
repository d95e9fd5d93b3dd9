//! Parsers for argument values that several commands share.

use std::time::Duration;

use jiff::SignedDuration;
use rankine_base::InvalidValue;
use rankine_job::{Count, NonNegative, RankCount, ThreadCount};
use rankine_model::overlap::Overlap;
use rankine_reader::Part;

/// Parses a count of at least one. Digits may be grouped: 1_000_000.
pub(crate) fn count(text: &str) -> Result<Count, InvalidValue> {
    whole(text)
        .and_then(Count::new)
        .ok_or_else(|| InvalidValue::expected(text, "a whole number of 1 or more"))
}

/// Parses a number of threads.
pub(crate) fn threads(text: &str) -> Result<ThreadCount, InvalidValue> {
    whole(text)
        .and_then(|number| ThreadCount::new(number.try_into().ok()?))
        .ok_or_else(|| InvalidValue::expected(text, "a whole number from 1 to 4096"))
}

/// Parses a number of ranks or nodes.
pub(crate) fn ranks(text: &str) -> Result<RankCount, InvalidValue> {
    whole(text)
        .and_then(|number| RankCount::new(number.try_into().ok()?))
        .ok_or_else(|| InvalidValue::expected(text, "a whole number from 1 to 4096"))
}

/// Parses a time above 0, such as 90s, 10m or 2h.
pub(crate) fn duration(text: &str) -> Result<Duration, InvalidValue> {
    let parsed = text.parse::<SignedDuration>().and_then(Duration::try_from);
    let parsed = parsed.map_err(|error| InvalidValue::new(text, error.to_string()))?;
    match parsed.is_zero() {
        true => Err(InvalidValue::expected(text, "a time above 0, such as 10m")),
        false => Ok(parsed),
    }
}

/// Parses a finite number of 0 or more.
pub(crate) fn non_negative(text: &str) -> Result<NonNegative, InvalidValue> {
    text.parse()
        .ok()
        .and_then(NonNegative::new)
        .ok_or_else(|| InvalidValue::expected(text, "a number of 0 or more"))
}

/// Parses a part of a dataset.
pub(crate) fn part(text: &str) -> Result<Part, InvalidValue> {
    [Part::Train, Part::Eval, Part::Validation]
        .into_iter()
        .find(|part| part.name() == text)
        .ok_or_else(|| InvalidValue::expected(text, "train, eval or validation"))
}

/// Parses the name of an overlap.
pub(crate) fn overlap(text: &str) -> Result<Overlap, InvalidValue> {
    Overlap::ALL.into_iter().find(|overlap| overlap.name() == text).ok_or_else(|| {
        InvalidValue::expected(text, format!("one of {}", Overlap::ALL.map(Overlap::name).join(", ")))
    })
}

/// Parses a size: a whole number of bytes, or a number with a binary unit (`1.5GiB`) or a decimal one (`80GB`).
/// Fractions of a byte are dropped.
pub(crate) fn bytes(text: &str) -> Result<u64, InvalidValue> {
    parse_bytes(text).ok_or_else(|| InvalidValue::expected(text, "a size such as 512MiB, 1.5GiB or 80GB"))
}

fn parse_bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, u128); 10] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1000),
        ("KB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let unit = UNITS.iter().find_map(|&(unit, bytes)| Some((text.strip_suffix(unit)?.trim_end(), bytes)));
    let Some((number, unit)) = unit else { return whole(text) };
    let (number, fraction) = match number.split_once('.') {
        Some((number, fraction)) if unit > 1 => (number, fraction),
        Some(_) => return None,
        None => (number, "0"),
    };
    // 18 digits resolve single bytes of a TiB, and their product with the unit fits in 128 bits.
    if fraction.is_empty() || fraction.len() > 18 || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let part = fraction.parse::<u128>().ok()? * unit / 10u128.pow(fraction.len() as u32);
    u64::try_from(u128::from(whole(number)?) * unit + part).ok()
}

/// Parses digits, which may be grouped.
fn whole(text: &str) -> Option<u64> {
    let digits = text.replace('_', "");
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_or_decimal_units() {
        for (text, expected) in [
            ("4096", 4096),
            ("4_096", 4096),
            ("7B", 7),
            ("3KiB", 3 << 10),
            ("512 MiB", 512 << 20),
            ("2GiB", 2 << 30),
            ("1.5GiB", 3 << 29),
            ("2TiB", 2 << 40),
            ("0.001KiB", 1),
            ("12kB", 12_000),
            ("12KB", 12_000),
            ("0.25MB", 250_000),
            ("80GB", 80_000_000_000),
            ("1.5TB", 1_500_000_000_000),
            ("16777215.999999TiB", u64::MAX - 1_099_511),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for wrong in [
            "",
            "GiB",
            ".5GiB",
            "1.GiB",
            "1.5",
            "1.5B",
            "-1KiB",
            "+1KiB",
            "1e3KiB",
            "1.+5GiB",
            "2 G",
            "1.5.5GB",
            "nanGB",
            "16777216TiB",
            "99999999999TiB",
        ] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_outside_of_their_range_are_refused() {
        assert_eq!(count("1_000_000"), Ok(Count::new(1_000_000).unwrap()));
        assert!(count("0").is_err() && count("").is_err() && count("-1").is_err());
        assert_eq!((ranks("1").map(RankCount::get), ranks("4096").map(RankCount::get)), (Ok(1), Ok(4096)));
        assert!(ranks("0").is_err() && ranks("4097").is_err() && ranks("4294967297").is_err());
        assert_eq!(
            (threads("1").map(ThreadCount::get), threads("4096").map(ThreadCount::get)),
            (Ok(1), Ok(4096))
        );
        assert!(threads("0").is_err() && threads("4097").is_err() && threads("4294967297").is_err());
        assert_eq!(non_negative("0.25").map(NonNegative::get), Ok(0.25));
        assert!(non_negative("-1").is_err() && non_negative("nan").is_err());
        assert_eq!((part("train"), part("eval")), (Ok(Part::Train), Ok(Part::Eval)));
        assert!(part("test").is_err());
        for one in Overlap::ALL {
            assert_eq!(overlap(one.name()), Ok(one));
        }
        assert!(overlap("nothing").unwrap_err().why.contains(", dense-update"));
    }
}
