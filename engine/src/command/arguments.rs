//! Values of arguments that several commands take, read and refused in the same words.

use rankine::job::{Count, NonNegative, RankCount, ThreadCount};
use rankine::overlap::Overlap;
use rankine_reader::Part;

/// A number of which there must be at least one. Digits may be grouped: 1_000_000.
pub(crate) fn count(text: &str) -> Result<Count, String> {
    whole(text).and_then(Count::new).ok_or_else(|| "expected a whole number of 1 or more".into())
}

/// A number of threads.
pub(crate) fn threads(text: &str) -> Result<ThreadCount, String> {
    whole(text)
        .and_then(|number| ThreadCount::new(number.try_into().ok()?))
        .ok_or_else(|| "expected a whole number from 1 to 4096".into())
}

/// A number of ranks, or of nodes.
pub(crate) fn ranks(text: &str) -> Result<RankCount, String> {
    whole(text)
        .and_then(|number| RankCount::new(number.try_into().ok()?))
        .ok_or_else(|| "expected a whole number from 1 to 4096".into())
}

/// A finite number of 0 or more.
pub(crate) fn non_negative(text: &str) -> Result<NonNegative, String> {
    text.parse().ok().and_then(NonNegative::new).ok_or_else(|| "expected a number of 0 or more".into())
}

/// A part of a dataset.
pub(crate) fn part(text: &str) -> Result<Part, String> {
    Part::ALL.into_iter().find(|part| part.name() == text).ok_or_else(|| "expected train or eval".into())
}

/// What an iteration does at the same time.
pub(crate) fn overlap(text: &str) -> Result<Overlap, String> {
    Overlap::ALL
        .into_iter()
        .find(|overlap| overlap.name() == text)
        .ok_or_else(|| format!("expected one of {}", Overlap::ALL.map(Overlap::name).join(", ")))
}

/// A number of bytes, with a binary unit: `512MiB`, `2GiB`, or plain bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let (number, shift) =
        UNITS.iter().find_map(|&(unit, shift)| Some((text.strip_suffix(unit)?, shift))).unwrap_or((text, 0));
    whole(number.trim_end())
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| "expected a size such as 512MiB or 2GiB".into())
}

fn whole(text: &str) -> Option<u64> {
    text.replace('_', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert_eq!(bytes("512 MiB"), Ok(512 << 20));
        assert_eq!(bytes("4096"), Ok(4096));
        for wrong in ["", "2GB", "-1KiB", "1.5GiB", "99999999999TiB", "GiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_outside_of_their_range_are_refused() {
        assert_eq!(count("1_000_000"), Ok(Count::new(1_000_000).unwrap()));
        assert!(count("0").is_err());
        assert!(ranks("0").is_err() && ranks("4097").is_err());
        assert!(threads("0").is_err() && threads("5000000000").is_err());
        assert!(non_negative("-1").is_err() && non_negative("nan").is_err());
        assert_eq!(part("eval"), Ok(Part::Eval));
        assert!(part("test").is_err());
    }
}
