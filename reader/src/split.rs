//! Splits of rows in two: into a training and an evaluation part when raw files are converted, and into samples to
//! train on and samples for validation when a model is trained.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use rankine_base::error::InvalidValue;

/// A split of rows: some of them are held out, the others are trained on.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Split {
    /// No row is held out.
    #[default]
    None,
    /// The last share of all rows, `round(share * rows)` rows. When raw files are converted, bad rows count, too.
    Last {
        /// Above 0 and below 1.
        share: f64,
    },
    /// Each row is held out with this probability, by a hash of the seed and the row's number: always the same rows.
    Random {
        /// Above 0 and below 1.
        share: f64,
        /// The seed that determines the rows.
        seed: u64,
    },
}

/// Parses a share of rows; the error says why it is none.
pub(crate) fn share(text: &str) -> Result<f64, &'static str> {
    match text.parse() {
        Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
        Ok(_) => Err("the share must be above 0 and below 1"),
        Err(_) => Err("the share is not a number"),
    }
}

/// Returns the bound below which a share of all 64-bit hashes is, rounded down.
pub(crate) fn hashes_below(share: f64) -> u64 {
    (share * 2.0_f64.powi(64)) as u64
}

impl FromStr for Split {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let refuse = |why: &str| {
            InvalidValue::is_not(
                text,
                format!(
                    "a split ({why}): write last:0.2 (holds out the last fifth of the rows), \
                     random:0.1:SEED (a random tenth) or none"
                ),
            )
        };
        let share = |text: &str| share(text).map_err(refuse);
        match text.split(':').collect::<Vec<_>>()[..] {
            ["none"] => Ok(Self::None),
            ["last", part] => Ok(Self::Last { share: share(part)? }),
            ["random", part, seed] => {
                let seed = seed.parse().map_err(|_| refuse("the seed is not a whole number"))?;
                Ok(Self::Random { share: share(part)?, seed })
            }
            ["random", _] => Err(refuse("it lacks a seed")),
            _ => Err(refuse("unknown kind")),
        }
    }
}

/// Reads the text of [`FromStr`].
impl<'de> Deserialize<'de> for Split {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Split {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Last { share } => write!(f, "last:{share}"),
            Self::Random { share, seed } => write!(f, "random:{share}:{seed}"),
        }
    }
}

/// Which rows are held out, by their number among all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldOut {
    None,
    All,
    From(u64),
    HashBelow { below: u64, seed: u64 },
}

impl HeldOut {
    /// Returns the rows that a split of `rows` rows holds out; other splits than [`Split::Last`] do not depend on
    /// their number.
    pub(crate) fn of(split: Split, rows: u64) -> Self {
        match split {
            Split::None => Self::None,
            Split::Last { share } => Self::From(rows - (rows as f64 * share).round() as u64),
            Split::Random { share, seed } => Self::HashBelow { below: hashes_below(share), seed },
        }
    }

    #[inline]
    pub(crate) fn contains(self, row: u64) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::From(first) => row >= first,
            Self::HashBelow { below, seed } => xxh3_64_with_seed(&row.to_le_bytes(), seed) < below,
        }
    }

    /// Returns how many rows of a range are held out.
    pub(crate) fn count(self, rows: std::ops::Range<u64>) -> u64 {
        match self {
            Self::None => 0,
            Self::All => rows.end - rows.start,
            Self::From(first) => rows.end - first.clamp(rows.start, rows.end),
            Self::HashBelow { .. } => rows.filter(|&row| self.contains(row)).count() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn splits_are_parsed_and_written() {
        for (text, split) in [
            ("last:0.2", Split::Last { share: 0.2 }),
            ("random:0.1:7", Split::Random { share: 0.1, seed: 7 }),
            ("none", Split::None),
        ] {
            assert_eq!(text.parse::<Split>().unwrap(), split);
            assert_eq!(split.to_string(), text);
        }
        for (text, why) in [
            ("last:1", "above 0 and below 1"),
            ("last:nan", "above 0 and below 1"),
            ("last:0", "above 0 and below 1"),
            ("random:0:1", "above 0 and below 1"),
            ("random:0.5:-1", "the seed is not a whole number"),
            ("random:0.5", "lacks a seed"),
            ("first:0.5", "random:0.1:SEED"),
        ] {
            let error = text.parse::<Split>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_rows(
            rows in 1..500_u64,
            share in 0.01..0.99_f64,
            seed in any::<u64>(),
            from in any::<prop::sample::Index>(),
            to in any::<prop::sample::Index>(),
        ) {
            let (from, to) = (from.index(rows as usize) as u64, to.index(rows as usize) as u64);
            let range = from.min(to)..from.max(to) + 1;
            for split in [Split::None, Split::Last { share }, Split::Random { share, seed }] {
                let held_out = HeldOut::of(split, rows);
                let count = range.clone().filter(|&row| held_out.contains(row)).count() as u64;
                prop_assert_eq!(held_out.count(range.clone()), count);
            }
            let last = HeldOut::of(Split::Last { share }, rows).count(0..rows);
            prop_assert_eq!(last, (rows as f64 * share).round() as u64);
        }
    }

    #[test]
    fn random_splits_hold_out_their_share_and_differ_by_seed() {
        let held_out = |seed| HeldOut::of(Split::Random { share: 0.1, seed }, 0);
        let rows = 100_000;
        let count = held_out(1).count(0..rows) as f64;
        // Five standard deviations of a binomial distribution.
        assert!((count - 0.1 * rows as f64).abs() < 5.0 * (0.09 * rows as f64).sqrt(), "{count}");
        let both = (0..rows).filter(|&row| held_out(1).contains(row) && held_out(2).contains(row)).count();
        assert!((both as f64 - 0.01 * rows as f64).abs() < 5.0 * (0.01 * rows as f64).sqrt(), "{both}");
    }
}
