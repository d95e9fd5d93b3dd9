//! The rows that a conversion holds out for evaluation: by their number among all rows, or by the text of a column.

use std::fmt;
use std::str::FromStr;

use rankine_base::error::InvalidValue;
use rankine_base::escape::excerpt;
use xxhash_rust::xxh3::xxh3_64;

use crate::convert::number;
use crate::convert::rows::fault::{BadReason, Fault};
use crate::part::Part;
use crate::split::{Split, hashes_below, share};

/// A split of raw rows into a training and an evaluation part.
#[derive(Debug, Clone, PartialEq)]
pub enum RowSplit {
    /// By the number of the row among all rows.
    ByNumber(Split),
    /// By a column of the row, which need not be one that the dataset has.
    ByColumn(ColumnSplit),
}

/// A split by the text of a raw column. It depends on nothing but this text: rows that are converted in several pieces
/// belong to the same parts as if they were converted at once.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnSplit {
    column: String,
    rule: ColumnRule,
}

/// Which texts are held out.
#[derive(Debug, Clone, PartialEq)]
enum ColumnRule {
    /// Texts whose XXH3 (64 bits, seed 0) is below `share * 2^64`, except for the empty text.
    Hash { share: f64 },
    /// Numbers above `number`, or if that is `None`, texts whose bytes are greater than those of `value`.
    After { value: String, number: Option<f64> },
}

impl ColumnSplit {
    /// Returns the name of the column in the files.
    pub fn column(&self) -> &str {
        &self.column
    }

    /// Returns the part of a row with this text in the column; `None` if the text cannot be compared.
    pub(crate) fn part(&self, text: &[u8]) -> Option<Part> {
        let is_held_out = match &self.rule {
            ColumnRule::Hash { share } => !text.is_empty() && xxh3_64(text) < hashes_below(*share),
            ColumnRule::After { number: Some(bound), .. } => number::parse(text)? > *bound,
            ColumnRule::After { number: None, .. } if text.is_empty() || number::parse(text).is_some() => {
                return None;
            }
            ColumnRule::After { value, number: None } => text > value.as_bytes(),
        };
        Some(if is_held_out { Part::Eval } else { Part::Train })
    }

    /// Returns the fault of a row whose text cannot be compared. `field` is the number of the column.
    pub(crate) fn fault(field: usize) -> Fault {
        Fault { reason: BadReason::Split, field: Some(field as u32) }
    }

    /// Describes why a text cannot be compared.
    pub(crate) fn describe(&self, text: &[u8]) -> String {
        let expected = match self.rule {
            ColumnRule::After { number: Some(_), .. } => "a number",
            _ => "a text other than a number",
        };
        format!("{} is not {expected}, as --split {self} compares", excerpt(text))
    }
}

impl Default for RowSplit {
    fn default() -> Self {
        Self::ByNumber(Split::None)
    }
}

impl From<Split> for RowSplit {
    fn from(split: Split) -> Self {
        Self::ByNumber(split)
    }
}

impl FromStr for RowSplit {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let refuse = |why: &str| {
            InvalidValue::is_not(
                text,
                format!(
                    "a split ({why}): write last:0.2 (holds out the last fifth of the rows), random:0.1:SEED (a random \
                     tenth), hash:COLUMN:0.1 (a tenth of the column's values), after:COLUMN:VALUE (rows with greater \
                     values) or none"
                ),
            )
        };
        let named = |column: &str| match column.is_empty() {
            true => Err(refuse("it lacks a column")),
            false => Ok(column.to_owned()),
        };
        let split = match text.split_once(':') {
            // The share has no colon, but the column may have one.
            Some(("hash", rest)) => {
                let (column, part) = rest.rsplit_once(':').ok_or_else(|| refuse("it lacks a share"))?;
                let share = share(part).map_err(refuse)?;
                ColumnSplit { column: named(column)?, rule: ColumnRule::Hash { share } }
            }
            // A time has colons.
            Some(("after", rest)) => {
                let (column, value) = rest.split_once(':').ok_or_else(|| refuse("it lacks a value"))?;
                if value.is_empty() {
                    return Err(refuse("it lacks a value"));
                }
                let number = number::parse(value.as_bytes());
                ColumnSplit {
                    column: named(column)?,
                    rule: ColumnRule::After { value: value.into(), number },
                }
            }
            Some(("last" | "random", _)) => return Ok(Self::ByNumber(text.parse()?)),
            None if text == "none" => return Ok(Self::default()),
            _ => return Err(refuse("unknown kind")),
        };
        Ok(Self::ByColumn(split))
    }
}

impl fmt::Display for RowSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByNumber(split) => split.fmt(f),
            Self::ByColumn(split) => split.fmt(f),
        }
    }
}

impl fmt::Display for ColumnSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rule {
            ColumnRule::Hash { share } => write!(f, "hash:{}:{share}", self.column),
            ColumnRule::After { value, .. } => write!(f, "after:{}:{value}", self.column),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_column(text: &str) -> ColumnSplit {
        let split: RowSplit = text.parse().unwrap();
        assert_eq!(split.to_string(), text);
        let RowSplit::ByColumn(split) = split else { panic!("{split}") };
        split
    }

    #[test]
    fn splits_are_parsed_and_written() {
        for (text, column) in [
            ("hash:user:0.1", "user"),
            ("hash:a:b:0.5", "a:b"),
            ("after:time:2026-11-01T10:00:00", "time"),
            ("after:day:1e3", "day"),
        ] {
            assert_eq!(by_column(text).column(), column);
        }
        for (text, split) in [("none", Split::None), ("last:0.2", Split::Last { share: 0.2 })] {
            assert_eq!(text.parse::<RowSplit>().unwrap(), split.into());
        }
        for (text, why) in [
            ("hash:user", "lacks a share"),
            ("hash:user:1", "above 0 and below 1"),
            ("hash:user:x", "the share is not a number"),
            ("hash::0.1", "lacks a column"),
            ("after:day", "lacks a value"),
            ("after:day:", "lacks a value"),
            ("after::5", "lacks a column"),
            ("before:day:5", "after:COLUMN:VALUE"),
            ("random:0.5", "lacks a seed"),
        ] {
            let error = text.parse::<RowSplit>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    /// XXH3 of these texts, from the reference implementation: of nothing, and of "a".
    #[test]
    fn a_hash_is_below_the_share_of_all_hashes() {
        let part = |share: f64, text: &str| by_column(&format!("hash:user:{share}")).part(text.as_bytes());
        // e6c632b61e964e1f: a share of 0.90146.
        assert_eq!(part(0.9014, "a"), Some(Part::Train));
        assert_eq!(part(0.9015, "a"), Some(Part::Eval));
        // 2d06800538d394c2 would be held out, too.
        assert_eq!(part(0.9, ""), Some(Part::Train), "rows without a value are trained on");
        let held_out = (0..10_000).filter(|n| part(0.1, &format!("u{n}")) == Some(Part::Eval)).count();
        // Five standard deviations of a binomial distribution: 5 * sqrt(10000 * 0.1 * 0.9) = 150.
        assert!(held_out.abs_diff(1000) < 150, "{held_out}");
    }

    #[test]
    fn values_are_compared_as_numbers_or_as_texts() {
        let part = |split: &str, text: &str| by_column(split).part(text.as_bytes());
        let (train, eval) = (Some(Part::Train), Some(Part::Eval));
        for (split, text, expected) in [
            ("after:day:9", "10", eval),
            ("after:day:9", "9", train),
            ("after:day:9", "9.0", train),
            ("after:day:9", "9.5", eval),
            ("after:day:9", "-10", train),
            ("after:day:9", "1e1", eval),
            ("after:day:9", "", None),
            ("after:day:9", "ten", None),
            ("after:day:9", "nan", None),
            ("after:day:2026-11-09", "2026-11-10", eval),
            ("after:day:2026-11-09", "2026-11-09", train),
            ("after:day:2026-11-09", "2026-11-09T00:00:00", eval),
            ("after:day:2026-11-09", "2026-10-31", train),
            ("after:day:2026-11-09", "20261110", None),
            ("after:day:2026-11-09", "", None),
        ] {
            assert_eq!(part(split, text), expected, "{split} {text:?}");
        }
    }
}
