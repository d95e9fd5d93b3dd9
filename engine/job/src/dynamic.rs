//! `rows` of a `[[table]]`: rows that are given to ids as they come.

use std::fmt;

use rankine_embedding::membership::{CAPACITY_MAX, DynamicRows, Eviction, IfFull};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use super::guard::IdPolicy;
use super::values::{AdmitAfter, Count};

/// `rows` of a `[[table]]`: the table gives its rows to ids as they come, instead of having one row per id of the
/// dataset. Ids without a row look up one shared row. A step first admits the new ids of its batch, in the order of
/// their first look-up. A step that is skipped because a value is not finite admits ids, too. On GPUs, not supported
/// with several nodes or rows in host memory.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TableRows {
    /// Whether rows are given to ids as they come; always true, and may be left out.
    #[serde(default = "default_dynamic")]
    pub dynamic: bool,
    /// Number of ids that can have a row at the same time: a number, or a text such as `"50M"`. It is rounded up to a
    /// multiple of the table's shards: up to 4096, of at least 1024 rows each. An id belongs to one of them by its
    /// hash, and takes a row of that shard only; a shard may be full a little before all others are.
    pub capacity: Capacity,
    /// Look-ups after which an id gets a row. Look-ups of ids without a row are counted in about 4 to 8 bytes per row
    /// of the capacity. These counts are approximate: they may be too high, and are halved from time to time.
    #[serde(default = "default_admit_after")]
    pub admit_after: AdmitAfter,
    /// Which id loses its row to a new one if there is no free row. Ids of the same batch never do: the new one then
    /// looks up the shared row.
    #[serde(default)]
    pub evict: Evict,
    /// Steps without a look-up after which an id loses its row; only with `evict = "ttl"`, which requires it.
    pub ttl_steps: Option<Count>,
}

/// Which id loses its row to a new one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Evict {
    /// None: further ids get no row, and `ids_out_of_range` of the table decides: `fail` ends the training, `skip`
    /// removes them from their bags, `oov` lets them look up the shared row.
    None,
    /// The one whose last look-up is the oldest.
    #[default]
    Lru,
    /// The one with the fewest look-ups.
    Lfu,
    /// As `lru`. An id without a look-up in the last `ttl_steps` steps counts as new.
    Ttl,
}

impl Evict {
    /// Returns the name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Ttl => "ttl",
        }
    }
}

fn default_dynamic() -> bool {
    true
}

fn default_admit_after() -> AdmitAfter {
    AdmitAfter::new(1).expect("a constant in range")
}

/// A number of rows that remembers how it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    rows: u64,
    text: Option<String>,
}

impl Capacity {
    const EXPECTED: &str = "a whole number of rows from 1 to 100000000000, or a text such as \"50M\"";

    /// Returns the number of rows.
    pub fn get(&self) -> u64 {
        self.rows
    }

    fn of(rows: u64, text: Option<String>) -> Option<Self> {
        (1..=CAPACITY_MAX).contains(&rows).then_some(Self { rows, text })
    }

    /// Reads a number with the suffix k, M or G.
    fn parse(text: &str) -> Option<Self> {
        let units = [("k", 3), ("M", 6), ("G", 9)];
        let with_unit = units.iter().find_map(|&(unit, zeros)| Some((text.strip_suffix(unit)?, zeros)));
        let (number, zeros) = with_unit.unwrap_or((text, 0));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let has_dot_alone = number.contains('.') && fraction.is_empty();
        if whole.is_empty()
            || has_dot_alone
            || fraction.len() > zeros
            || !is_number(whole)
            || !is_number(fraction)
        {
            return None;
        }
        let digits = format!("{whole}{fraction:0<zeros$}");
        Self::of(digits.parse().ok()?, Some(text.to_owned()))
    }
}

/// As a job file has it.
impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => write!(f, "\"{text}\""),
            None => self.rows.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for Capacity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CapacityVisitor;

        impl Visitor<'_> for CapacityVisitor {
            type Value = Capacity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(Capacity::EXPECTED)
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Capacity, E> {
                let capacity = u64::try_from(number).ok().and_then(|rows| Capacity::of(rows, None));
                capacity.ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Capacity, E> {
                let capacity = Capacity::of(number, None);
                capacity.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Capacity, E> {
                Capacity::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_any(CapacityVisitor)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Capacity {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Capacity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "oneOf": [
                { "type": "integer", "minimum": 1, "maximum": CAPACITY_MAX },
                { "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?[kMG]?$" }
            ]
        })
    }
}

impl TableRows {
    /// Returns the rows of a table of which ids out of range have this policy.
    pub(super) fn of_table(&self, policy: IdPolicy) -> DynamicRows {
        let evict = match (self.evict, self.ttl_steps) {
            (Evict::None, _) => Eviction::None {
                if_full: match policy {
                    IdPolicy::Fail => IfFull::Fail,
                    IdPolicy::Skip => IfFull::Skip,
                    IdPolicy::Oov => IfFull::Shared,
                },
            },
            (Evict::Ttl, Some(steps)) => Eviction::Ttl { steps: steps.get() },
            // A job with a missing number of steps has a conflict.
            (Evict::Lru | Evict::Ttl, _) => Eviction::Lru,
            (Evict::Lfu, _) => Eviction::Lfu,
        };
        DynamicRows { capacity: self.capacity.get(), admit_after: self.admit_after.get(), evict }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_are_numbers_with_units() {
        let rows = |text: &str| Capacity::parse(text).map(|capacity| capacity.get());
        assert_eq!(rows("50M"), Some(50_000_000));
        assert_eq!(rows("1.5k"), Some(1500));
        assert_eq!(rows("0.000000001G"), Some(1));
        assert_eq!(rows("7"), Some(7));
        for wrong in
            ["", "M", "0", "1.5", "1.k", ".5k", "-1", "+1", "1e3", "50 M", "50MB", "1.0001k", "100.1G"]
        {
            assert_eq!(rows(wrong), None, "{wrong}");
        }
        assert_eq!(rows("100G"), Some(CAPACITY_MAX));
        assert_eq!(rows("99999999999999999999999G"), None);
    }
}
