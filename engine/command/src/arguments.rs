//! Parsers for argument values that several commands share.

use std::time::Duration;

use jiff::SignedDuration;
use rankine_base::InvalidValue;
use rankine_base::size::parse_whole;
use rankine_job::{AucTarget, Count, NonNegative, RankCount, ThreadCount};
use rankine_model::overlap::Overlap;
use rankine_reader::Part;

/// Parses a count of at least one. Digits may be grouped: 1_000_000.
pub(crate) fn count(text: &str) -> Result<Count, InvalidValue> {
    parse_whole(text)
        .and_then(Count::new)
        .ok_or_else(|| InvalidValue::expected(text, "a whole number of 1 or more"))
}

/// Parses a number of threads.
pub(crate) fn threads(text: &str) -> Result<ThreadCount, InvalidValue> {
    parse_whole(text)
        .and_then(|number| ThreadCount::new(number.try_into().ok()?))
        .ok_or_else(|| InvalidValue::expected(text, "a whole number from 1 to 4096"))
}

/// Parses a number of ranks or nodes.
pub(crate) fn ranks(text: &str) -> Result<RankCount, InvalidValue> {
    parse_whole(text)
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

/// Parses an AUC to reach.
pub(crate) fn auc_target(text: &str) -> Result<AucTarget, InvalidValue> {
    text.parse()
        .ok()
        .and_then(AucTarget::new)
        .ok_or_else(|| InvalidValue::expected(text, "a number above 0.5 and at most 1"))
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(auc_target("0.75").map(AucTarget::get), Ok(0.75));
        assert!(auc_target("0.5").is_err() && auc_target("1.01").is_err() && auc_target("x").is_err());
        assert!(non_negative("-1").is_err() && non_negative("nan").is_err());
        assert_eq!((part("train"), part("eval")), (Ok(Part::Train), Ok(Part::Eval)));
        assert!(part("test").is_err());
        for one in Overlap::ALL {
            assert_eq!(overlap(one.name()), Ok(one));
        }
        assert!(overlap("nothing").unwrap_err().why.contains(", dense-update"));
    }
}
