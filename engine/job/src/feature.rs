//! `[[feature]]`: categorical columns that are made of a dataset's numbers.

use std::fmt;

use rankine_reader::buckets::BUCKETS_MAX;
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};

/// `[[feature]]`: a further categorical column, whose ids are the buckets of a dense column. The dense column
/// remains. A model learns one vector per bucket, so it can follow an effect that rises and falls with the number.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Feature {
    /// The dense column of the dataset; `"*"` stands for each one that no other `[[feature]]` names.
    pub column: String,
    /// The buckets. A number N makes N buckets with about the same number of training samples each, or with one number
    /// each, if it is frequent or there are no more than N distinct ones. `"log"` begins buckets at 0 and at the powers
    /// of 2 from 2^-20 to 2^40 and their negatives. A list gives the lower bounds of the buckets in ascending order;
    /// values below the first are one more bucket. The list and `"log"` are in the units of the raw data, before the
    /// transform of the column.
    pub buckets: Buckets,
    /// Name of the new column, for `[[table]]`, for example. Without it, the name of the dense column with
    /// `_buckets`.
    pub name: Option<String>,
}

/// How numbers are divided into buckets.
#[derive(Debug, Clone, PartialEq)]
pub enum Buckets {
    /// This number of them, each with about as many samples of the training part.
    Quantiles(u32),
    /// At the powers of 2.
    Log,
    /// At these numbers, in the units of the raw data.
    Boundaries(Vec<f64>),
}

impl fmt::Display for Buckets {
    /// Formats the value as in a job file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quantiles(count) => count.fmt(f),
            Self::Log => f.write_str("\"log\""),
            Self::Boundaries(boundaries) => fmt::Debug::fmt(boundaries, f),
        }
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Buckets {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Buckets".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "oneOf": [
                { "type": "integer", "minimum": 2, "maximum": BUCKETS_MAX },
                { "type": "string", "enum": ["log"] },
                { "type": "array", "items": { "type": "number" } }
            ]
        })
    }
}

impl<'de> Deserialize<'de> for Buckets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BucketsVisitor)
    }
}

struct BucketsVisitor;

impl<'de> Visitor<'de> for BucketsVisitor {
    type Value = Buckets;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 2 to {BUCKETS_MAX}, \"log\", or a list of ascending numbers")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Buckets, E> {
        match value {
            "log" => Ok(Buckets::Log),
            _ => Err(E::invalid_value(Unexpected::Str(value), &self)),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Buckets, E> {
        match u32::try_from(value) {
            Ok(count @ 2..=BUCKETS_MAX) => Ok(Buckets::Quantiles(count)),
            _ => Err(E::invalid_value(Unexpected::Unsigned(value), &self)),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Buckets, E> {
        match u64::try_from(value) {
            Ok(value) => self.visit_u64(value),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(value), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Buckets, A::Error> {
        let mut boundaries = Vec::new();
        while let Some(boundary) = list.next_element()? {
            boundaries.push(boundary);
        }
        Ok(Buckets::Boundaries(boundaries))
    }
}

impl Feature {
    /// Returns the name of the new column. Without one in the job, `_buckets` follows the name of the dense column.
    pub fn name(&self) -> String {
        self.name_for(&self.column)
    }

    /// Returns the name of the new column for a dense column.
    pub(super) fn name_for(&self, column: &str) -> String {
        self.name.clone().unwrap_or_else(|| format!("{column}_buckets"))
    }

    /// Whether the feature stands for all dense columns that no other one names.
    pub(super) fn is_of_others(&self) -> bool {
        self.column == "*"
    }

    /// Returns what is wrong with the buckets, without knowing the column.
    pub(super) fn problem(&self) -> Option<String> {
        let Buckets::Boundaries(boundaries) = &self.buckets else { return None };
        if boundaries.is_empty() {
            return Some("a list needs at least one boundary".into());
        }
        if boundaries.len() >= BUCKETS_MAX as usize {
            let count = boundaries.len() + 1;
            return Some(format!("the list makes {count} buckets; there can be {BUCKETS_MAX}"));
        }
        if let Some(boundary) = boundaries.iter().find(|boundary| !boundary.is_finite()) {
            return Some(format!("a boundary must be a finite number, not {boundary}"));
        }
        let falls = boundaries.windows(2).find(|pair| pair[0] >= pair[1])?;
        Some(format!("the boundaries must ascend, but {} comes after {}", falls[1], falls[0]))
    }
}
