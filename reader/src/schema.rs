//! The columns of a dataset: labels, weight, dense features and categorical features.

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use rankine_base::error::{Error, Result};

pub use crate::hotness::Hotness;
pub use crate::label::Label;
use crate::label::is_share;
pub use crate::sequence::{Keep, Sequence, UnequalLengths};
pub use crate::vocabulary_kind::VocabularyKind;

/// The maximum number of ids per bag, which bounds the memory that a few bytes can request.
pub const HOTNESS_MAX: u32 = 1 << 16;
/// The most rows of a table: with this bound, no size of a table in bytes exceeds 64 bits.
pub const ROWS_MAX: u64 = 1 << 40;

/// The columns of a dataset, in the order in which blocks store them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schema {
    /// The labels to predict, one entry per label head.
    pub labels: Vec<Label>,
    /// The name of the column of sample weights, if any; without it every sample has weight 1.
    pub weight: Option<String>,
    /// Numeric features.
    pub dense: Vec<Dense>,
    /// How numeric features are stored.
    pub dense_dtype: DenseDtype,
    /// Categorical features: each sample has a bag of ids.
    pub categorical: Vec<Categorical>,
    /// Categorical features whose bags have the same number of ids in each sample.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sequences: Vec<Sequence>,
}

/// The storage type of dense features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DenseDtype {
    /// IEEE half precision: 2 bytes, 11 bits of significand.
    F16,
    /// IEEE single precision: 4 bytes.
    F32,
}

impl DenseDtype {
    /// Rounds values to what is read back after storing them.
    pub(crate) fn round(self, values: &mut [f32]) {
        if self == Self::F16 {
            values.iter_mut().for_each(|value| *value = self.rounded(*value));
        }
    }

    /// Returns what is read back after storing a value.
    pub(crate) fn rounded(self, value: f32) -> f32 {
        match self {
            Self::F16 => half::f16::from_f32(value).to_f32(),
            Self::F32 => value,
        }
    }

    /// Returns the bytes per value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// Returns the largest finite value.
    pub fn largest(self) -> f32 {
        match self {
            Self::F16 => half::f16::MAX.to_f32(),
            Self::F32 => f32::MAX,
        }
    }
}

impl fmt::Display for DenseDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
        })
    }
}

/// A numeric feature and the transformation that is applied to the raw number before it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dense {
    /// The column's name.
    pub name: String,
    /// The transformation from the raw number to the stored one; prediction applies it too.
    pub transform: DenseTransform,
}

/// `stored = (f(raw) - mean) / deviation`, or `missing` if the raw value is absent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseTransform {
    /// The function applied first.
    pub function: DenseFunction,
    /// Subtracted after the function.
    pub mean: f64,
    /// Divided by after the mean is subtracted; never 0.
    pub deviation: f64,
}

/// The function applied to a raw number before standardization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenseFunction {
    /// `f(x) = x`
    None,
    /// `f(x) = sign(x) ln(1 + |x|)`
    SignedLog1p,
    /// `f(x) = ln(max(x, 0) + 1)`, as in MLPerf.
    MlperfLog,
}

impl DenseFunction {
    /// Applies the function.
    pub fn apply(self, x: f64) -> f64 {
        match self {
            Self::None => x,
            Self::SignedLog1p => libm::copysign(libm::log1p(x.abs()), x),
            Self::MlperfLog => libm::log1p(x.max(0.0)),
        }
    }
}

impl DenseTransform {
    /// Returns a transformation without standardization.
    pub fn plain(function: DenseFunction) -> Self {
        Self { function, mean: 0.0, deviation: 1.0 }
    }

    /// Returns whether numbers are standardized.
    pub(crate) fn standardizes(&self) -> bool {
        *self != Self::plain(self.function)
    }

    /// Transforms a raw value to the stored one. A missing value becomes 0: the mean if the column is standardized,
    /// otherwise f(0).
    pub fn apply(&self, raw: Option<f64>) -> f32 {
        raw.map_or(0.0, |x| ((self.function.apply(x) - self.mean) / self.deviation) as f32)
    }
}

/// Formats the formula: `(log1p(x) - 1.5) / 2`, `mlperf-log(x)`, `x`.
impl fmt::Display for DenseTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { function, mean, deviation } = *self;
        let of = match function {
            DenseFunction::None => "x",
            DenseFunction::SignedLog1p => "log1p(x)",
            DenseFunction::MlperfLog => "mlperf-log(x)",
        };
        if self == &Self::plain(function) {
            return f.write_str(of);
        }
        let sign = if mean.is_sign_negative() { '+' } else { '-' };
        write!(f, "({of} {sign} {}) / {deviation}", mean.abs())
    }
}

/// A categorical feature: each sample has a bag of ids, each id a row of the column's table, or the key of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Categorical {
    /// The column's name.
    pub name: String,
    /// Rows of the table: every stored id is less than this. `None` if the vocabulary is open, and ids are keys of 64
    /// bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// The number of ids per bag.
    pub hotness: Hotness,
    /// How the rows of a bag become one vector.
    pub pooling: Pooling,
    /// Whether each id of a bag has a weight, by which its row is multiplied.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub weighted: bool,
    /// The mapping from raw categories to ids.
    pub vocabulary: VocabularyKind,
    /// The earlier categorical column whose vocabulary, and therefore kind and rows, this column shares: an id means
    /// the same category in both. The other column must have its own vocabulary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<String>,
}

/// How the rows of a bag become one vector. An empty bag becomes zeros in both cases. If ids have weights, each row is
/// multiplied by the weight of its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The sum of the rows.
    Sum,
    /// The sum divided by the number of ids, or by the sum of their weights.
    Mean,
}

/// Returns whether a name is a valid file name, as column names must be.
#[doc(hidden)]
pub fn is_column_name(name: &str) -> bool {
    !(name.is_empty() || name.starts_with('.') || name.contains(['/', '\\', '\0', '\n', '\t']))
}

impl Categorical {
    /// Returns the dense column and the boundaries of a column whose ids are computed from numbers; `None` if it is
    /// stored.
    pub fn buckets(&self) -> Option<(&str, &[f32])> {
        match &self.vocabulary {
            VocabularyKind::Buckets { of, boundaries } => Some((of, boundaries)),
            VocabularyKind::Exact { .. }
            | VocabularyKind::Hash
            | VocabularyKind::Open
            | VocabularyKind::Identity => None,
        }
    }

    /// Returns whether the vocabulary is open, so that ids are keys of 64 bits.
    pub fn is_open(&self) -> bool {
        self.vocabulary == VocabularyKind::Open
    }

    /// Describes its table for messages: `7 rows (hash)`, `keys (open)`.
    pub fn table(&self) -> String {
        match self.rows {
            Some(rows) => format!("{rows} rows ({})", self.vocabulary),
            None => format!("keys ({})", self.vocabulary),
        }
    }

    /// Checks that it has rows unless its vocabulary is open.
    fn check_rows(&self) -> Result<()> {
        match self.rows {
            None if self.is_open() => Ok(()),
            Some(_) if self.is_open() => Err(Error::column(
                &self.name,
                "has an open vocabulary, whose ids are no rows, but states rows",
            )),
            None | Some(0) => Err(Error::column(&self.name, "has a table without rows")),
            Some(rows) if rows > ROWS_MAX => {
                let what = format_args!("has a table of {rows} rows; the limit is {ROWS_MAX}");
                Err(Error::column(&self.name, what))
            }
            Some(_) => Ok(()),
        }
    }

    /// Returns whether an id can occur in the column: a row of its table, or any key.
    pub fn admits(&self, id: u64) -> bool {
        self.rows.is_none_or(|rows| id < rows)
    }
}

impl Schema {
    /// Returns the categorical columns that blocks store and raw rows have. The other ones follow them, and are
    /// computed from dense columns: see [`VocabularyKind::Buckets`].
    pub fn stored_categorical(&self) -> &[Categorical] {
        let end = self.categorical.iter().position(|column| column.buckets().is_some());
        &self.categorical[..end.unwrap_or(self.categorical.len())]
    }

    /// Returns the categorical columns that are computed from dense columns.
    pub fn bucket_columns(&self) -> &[Categorical] {
        &self.categorical[self.stored_categorical().len()..]
    }

    /// Returns the schema without the columns that are computed from others.
    pub fn stored(&self) -> Self {
        Self { categorical: self.stored_categorical().to_vec(), ..self.clone() }
    }

    /// Checks what the types cannot express.
    ///
    /// # Errors
    /// [`Error::Columns`] for a table without rows, an open vocabulary with rows, a deviation of 0, a duplicate name, a
    /// column that shares a vocabulary which does not exist, or a schema without labels.
    pub fn validate(&self) -> Result<()> {
        if self.labels.is_empty() {
            return Err(Error::columns(None, "the schema has no label column"));
        }
        let mut names: Vec<&str> = self.names().collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::columns(None, format!("the schema has two columns named `{}`", twice[0])));
        }
        for name in names {
            if !is_column_name(name) {
                let what = format!(
                    "column name {name:?} is not a valid file name: it must not contain a slash, tab \
                     or line break, or start with a dot"
                );
                return Err(Error::columns(None, what));
            }
        }
        let numbers: HashMap<&str, usize> =
            (0..).zip(&self.categorical).map(|(number, column)| (column.name.as_str(), number)).collect();
        for (number, column) in self.categorical.iter().enumerate() {
            self.owner_among(number, |name| numbers.get(name).copied())?;
            column.check_rows()?;
            if column.weighted && !column.hotness.varies() {
                return Err(Error::column(&column.name, "has weights, but bags of one size: they must vary"));
            }
            if column.hotness == Hotness::Fixed(0) {
                return Err(Error::column(&column.name, "has a fixed hotness of 0"));
            }
            if column.hotness.max() > HOTNESS_MAX {
                return Err(Error::column(
                    &column.name,
                    format_args!("has bags of {} ids; the limit is {HOTNESS_MAX}", column.hotness.max()),
                ));
            }
        }
        self.check_buckets()?;
        self.check_sequences()?;
        for Label { name, negatives_kept } in &self.labels {
            if let Some(share) = negatives_kept.filter(|&share| !is_share(share)) {
                let what = format_args!("has negatives_kept {share}: a share is above 0 and at most 1");
                return Err(Error::column(name, what));
            }
        }
        for column in &self.dense {
            let transform = column.transform;
            if transform.deviation == 0.0 || !transform.deviation.is_finite() || !transform.mean.is_finite() {
                return Err(Error::column(
                    &column.name,
                    format_args!(
                        "cannot be standardized with mean {} and deviation {}",
                        transform.mean, transform.deviation
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Checks the columns that are computed from dense columns.
    fn check_buckets(&self) -> Result<()> {
        for column in self.bucket_columns() {
            let refuse =
                |why: String| Err(Error::column(&column.name, format_args!("has no valid buckets: {why}")));
            let Some((of, boundaries)) = column.buckets() else {
                return refuse("it is stored, but comes after a column that is computed".into());
            };
            if !self.dense.iter().any(|dense| dense.name == of) {
                return refuse(format!("there is no dense column {of}"));
            }
            let is_ascending =
                boundaries.is_sorted() && boundaries.iter().all(|boundary| boundary.is_finite());
            if !is_ascending {
                return refuse("its boundaries are not finite and ascending".into());
            }
            if !column.admits(boundaries.len() as u64) {
                let (count, table) = (boundaries.len(), column.table());
                return refuse(format!("{count} boundaries make more buckets than its {table}"));
            }
            if column.hotness != Hotness::Fixed(1) || column.shares.is_some() {
                return refuse("each sample has one bucket, and no vocabulary to share".into());
            }
        }
        Ok(())
    }

    /// Returns the number of the categorical column that owns the vocabulary of column `number`: itself unless it
    /// shares one.
    ///
    /// # Errors
    /// [`Error::Columns`] if it shares with a column that does not exist, comes later, has other rows or another
    /// kind, or shares one itself.
    #[doc(hidden)]
    pub fn vocabulary_owner(&self, number: usize) -> Result<usize> {
        self.owner_among(number, |name| {
            self.categorical[..number].iter().position(|other| other.name == name)
        })
    }

    /// The same with `number_of`, which returns the number of a categorical column by its name.
    fn owner_among(&self, number: usize, number_of: impl Fn(&str) -> Option<usize>) -> Result<usize> {
        let column = &self.categorical[number];
        let Some(with) = &column.shares else { return Ok(number) };
        let owner = number_of(with).filter(|&owner| owner < number);
        let refuse = |why: &str| {
            Error::column(&column.name, format_args!("cannot share the vocabulary of {with}: {why}"))
        };
        let owner = owner.ok_or_else(|| refuse("no earlier categorical column has that name"))?;
        let other = &self.categorical[owner];
        if other.shares.is_some() {
            return Err(refuse("that column itself shares another vocabulary"));
        }
        if (other.rows, &other.vocabulary) != (column.rows, &column.vocabulary) {
            return Err(refuse("its rows or kind differ"));
        }
        Ok(owner)
    }

    /// Lets the bags of ragged columns be as large as in another schema of the same columns.
    pub(crate) fn keep_larger_bags(&mut self, other: &Self) {
        for (column, other) in self.categorical.iter_mut().zip(&other.categorical) {
            if let Hotness::Ragged { max } = &mut column.hotness {
                *max = (*max).max(other.hotness.max());
            }
        }
    }

    /// Returns whether negatives of a label were downsampled.
    #[doc(hidden)]
    pub fn is_downsampled(&self) -> bool {
        self.labels.iter().any(|label| label.negatives_kept.is_some())
    }

    /// Returns the names of all columns in storage order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let labels = self.labels.iter().map(|column| column.name.as_str());
        let weight = self.weight.iter().map(String::as_str);
        let dense = self.dense.iter().map(|column| column.name.as_str());
        let categorical = self.categorical.iter().map(|column| column.name.as_str());
        labels.chain(weight).chain(dense).chain(categorical)
    }

    /// Returns the default number of samples per block: the largest power of two whose block is estimated at 2 MiB or
    /// less, since reads of 0.5 to 2 MiB keep a disk busy without using much memory.
    #[doc(hidden)]
    pub fn default_block_samples(&self) -> u32 {
        const TARGET_BITS: u64 = 2 * 8 * 1024 * 1024;
        let categorical: u64 = self
            .categorical
            .iter()
            .map(|column| {
                let id_bits = u64::from(column.rows.map_or(u64::BITS, crate::bits::width));
                let weight_bits = if column.weighted { u64::from(u32::BITS) } else { 0 };
                u64::from(column.hotness.max()) * (id_bits + weight_bits)
            })
            .sum();
        let dense = (self.dense.len() * self.dense_dtype.bytes() * 8) as u64;
        let sample_bits =
            self.labels.len() as u64 + self.weight.iter().len() as u64 * 32 + dense + categorical;
        let samples = (TARGET_BITS / sample_bits.max(1)).clamp(256, 65536);
        1 << samples.ilog2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_show_columns_as_formulas_and_words() {
        let transform = |function, mean, deviation| DenseTransform { function, mean, deviation };
        for (transform, text) in [
            (DenseTransform::plain(DenseFunction::None), "x"),
            (DenseTransform::plain(DenseFunction::MlperfLog), "mlperf-log(x)"),
            (transform(DenseFunction::SignedLog1p, 1.5, 2.0), "(log1p(x) - 1.5) / 2"),
            (transform(DenseFunction::None, -0.25, 1.0), "(x + 0.25) / 1"),
        ] {
            assert_eq!(transform.to_string(), text);
        }
        assert_eq!([DenseDtype::F16, DenseDtype::F32].map(|dtype| dtype.to_string()), ["f16", "f32"]);
        assert_eq!(VocabularyKind::Exact { min_count: 3 }.to_string(), "exact with min_count 3");
        assert_eq!(
            [VocabularyKind::Hash, VocabularyKind::Identity, VocabularyKind::Open]
                .map(|kind| kind.to_string()),
            ["hash", "identity", "open"]
        );
        let shown = [vec![0.5], vec![1.0, 2.0, 3.0, 4.0, 5.0]]
            .map(|list| buckets("age", list).vocabulary.to_string());
        assert_eq!(shown[0], "buckets of age at 0.5");
        assert_eq!(shown[1], "buckets of age at 1, 2, 3, 4, ...");
        assert_eq!([Hotness::Fixed(2), Hotness::Ragged { max: 5 }].map(|h| h.to_string()), ["2", "up to 5"]);
    }

    fn column(name: &str) -> Categorical {
        Categorical {
            name: name.into(),
            rows: Some(10),
            hotness: Hotness::Fixed(1),
            pooling: Pooling::Sum,
            vocabulary: VocabularyKind::Hash,
            weighted: false,
            shares: None,
        }
    }

    fn buckets(of: &str, boundaries: Vec<f32>) -> Categorical {
        let vocabulary = VocabularyKind::Buckets { of: of.into(), boundaries };
        Categorical { vocabulary, ..column("buckets") }
    }

    /// A label, a weight, a dense column, and two categorical ones, the second of which shares the first one's
    /// vocabulary.
    fn schema() -> Schema {
        let transform = DenseTransform { function: DenseFunction::None, mean: 2.0, deviation: 4.0 };
        Schema {
            labels: vec![Label::new("label")],
            weight: Some("weight".into()),
            dense: vec![Dense { name: "age".into(), transform }],
            dense_dtype: DenseDtype::F16,
            sequences: Vec::new(),
            categorical: vec![column("film"), Categorical { shares: Some("film".into()), ..column("last") }],
        }
    }

    #[test]
    fn schemas_that_types_cannot_rule_out_are_refused() {
        schema().validate().unwrap();
        type Change = fn(&mut Schema);
        let cases: [(Change, &str); 34] = [
            (|schema| schema.labels.clear(), "no label column"),
            (|schema| schema.categorical[0].weighted = true, "film has weights, but bags of one size"),
            (
                |schema| schema.labels[0].negatives_kept = Some(0.0),
                "label has negatives_kept 0: a share is above 0",
            ),
            (|schema| schema.labels[0].negatives_kept = Some(-0.1), "negatives_kept -0.1"),
            (|schema| schema.labels[0].negatives_kept = Some(1.5), "negatives_kept 1.5"),
            (|schema| schema.labels[0].negatives_kept = Some(f64::NAN), "negatives_kept NaN"),
            (|schema| schema.labels[0].name = "last".into(), "two columns named `last`"),
            (|schema| schema.weight = Some("age".into()), "two columns named `age`"),
            (|schema| schema.dense[0].name = "film".into(), "two columns named `film`"),
            (|schema| schema.dense[0].name = String::new(), "is not a valid file name"),
            (|schema| schema.dense[0].name = ".age".into(), "is not a valid file name"),
            (|schema| schema.dense[0].name = "a/ge".into(), "is not a valid file name"),
            (|schema| schema.dense[0].name = "a\nge".into(), "is not a valid file name"),
            (|schema| schema.categorical[1].rows = Some(9), "its rows or kind differ"),
            (|schema| schema.categorical[1].vocabulary = VocabularyKind::Identity, "its rows or kind differ"),
            (
                |schema| schema.categorical[1].shares = Some("films".into()),
                "no earlier categorical column has that name",
            ),
            (
                |schema| schema.categorical[1].shares = Some("last".into()),
                "no earlier categorical column has that name",
            ),
            (|schema| schema.categorical.swap(0, 1), "no earlier categorical column has that name"),
            (
                |schema| {
                    let shares = Some("last".into());
                    schema.categorical.push(Categorical { shares, ..column("third") });
                },
                "that column itself shares another vocabulary",
            ),
            (
                |schema| {
                    schema.categorical.truncate(1);
                    schema.categorical[0].rows = Some(0);
                },
                "a table without rows",
            ),
            (
                |schema| {
                    schema.categorical.truncate(1);
                    schema.categorical[0].vocabulary = VocabularyKind::Open;
                },
                "film has an open vocabulary, whose ids are no rows",
            ),
            (
                |schema| {
                    schema.categorical.truncate(1);
                    schema.categorical[0].rows = None;
                },
                "film has a table without rows",
            ),
            (
                |schema| {
                    let open = Categorical { vocabulary: VocabularyKind::Open, rows: None, ..column("film") };
                    schema.categorical[0] = open;
                },
                "its rows or kind differ",
            ),
            (
                |schema| schema.categorical[0].rows = Some(u64::MAX),
                "a table of 18446744073709551615 rows; the limit is 10995",
            ),
            (|schema| schema.categorical[0].hotness = Hotness::Fixed(0), "a fixed hotness of 0"),
            (|schema| schema.categorical[0].hotness = Hotness::Ragged { max: 65_537 }, "the limit is 65536"),
            (|schema| schema.categorical.push(buckets("year", vec![0.0])), "there is no dense column year"),
            (|schema| schema.categorical.push(buckets("age", vec![1.0, 0.0])), "not finite and ascending"),
            (|schema| schema.categorical.push(buckets("age", vec![f32::NAN])), "not finite and ascending"),
            (
                |schema| schema.categorical.push(buckets("age", vec![0.0; 10])),
                "more buckets than its 10 rows",
            ),
            (
                |schema| schema.categorical.insert(0, buckets("age", vec![0.0])),
                "it is stored, but comes after",
            ),
            (
                |schema| {
                    let hotness = Hotness::Ragged { max: 1 };
                    schema.categorical.push(Categorical { hotness, ..buckets("age", vec![0.0]) });
                },
                "each sample has one bucket",
            ),
            (|schema| schema.dense[0].transform.deviation = 0.0, "cannot be standardized"),
            (|schema| schema.dense[0].transform.mean = f64::INFINITY, "cannot be standardized"),
        ];
        for (change, what) in cases {
            let mut changed = schema();
            change(&mut changed);
            let error = changed.validate().unwrap_err().to_string();
            assert!(error.contains(what), "{error} does not contain: {what}");
        }
        let mut most = schema();
        most.categorical[0].hotness = Hotness::Ragged { max: 65_536 };
        most.categorical[1].hotness = Hotness::Ragged { max: 0 };
        most.validate().unwrap();
        assert_eq!([0, 1].map(|number| most.vocabulary_owner(number).unwrap()), [0, 0]);
        assert!(most.names().eq(["label", "weight", "age", "film", "last"]));
    }

    #[test]
    fn numbers_are_transformed_as_documented() {
        // Each side is within a few roundings of the exact logarithm.
        let close =
            |value: f64, expected: f64| (value - expected).abs() <= 4.0 * f64::EPSILON * expected.abs();
        for x in [-3.0, -0.5, 0.0, 0.5, 1e6] {
            assert_eq!(DenseFunction::None.apply(x), x);
            let signed = if x < 0.0 { -(1.0 - x).ln() } else { (1.0 + x).ln() };
            assert!(close(DenseFunction::SignedLog1p.apply(x), signed), "{x}");
            let floored = if x < 0.0 { 0.0 } else { (1.0 + x).ln() };
            assert!(close(DenseFunction::MlperfLog.apply(x), floored), "{x}");
        }
        let standardized = DenseTransform { function: DenseFunction::None, mean: 2.0, deviation: 4.0 };
        assert_eq!([Some(10.0), Some(2.0), None].map(|raw| standardized.apply(raw)), [2.0, 0.0, 0.0]);
        assert_eq!((DenseDtype::F16.bytes(), DenseDtype::F32.bytes()), (2, 4));
        assert_eq!((DenseDtype::F16.largest(), DenseDtype::F32.largest()), (65504.0, f32::MAX));
        let mut values = [1.0 / 3.0];
        DenseDtype::F32.round(&mut values);
        assert_eq!(values, [1.0 / 3.0]);
        // Eleven bits of 1/3: 1365 / 4096.
        DenseDtype::F16.round(&mut values);
        assert_eq!(values, [1365.0 / 4096.0]);
    }

    #[test]
    fn a_hotness_admits_its_sizes() {
        let admitted = |hotness: Hotness| (0..5).filter(|&count| hotness.admits(count)).collect::<Vec<_>>();
        assert_eq!(admitted(Hotness::Fixed(3)), [3]);
        assert_eq!(admitted(Hotness::Ragged { max: 3 }), [0, 1, 2, 3]);
        assert_eq!([Hotness::Fixed(3), Hotness::Ragged { max: 7 }].map(Hotness::max), [3, 7]);
        assert_eq!([Hotness::Fixed(3), Hotness::Ragged { max: 3 }].map(Hotness::varies), [false, true]);
    }

    /// 2 MiB are 2^24 bits.
    #[test]
    fn default_blocks_hold_a_power_of_two_of_samples_in_2_mib() {
        let samples = |labels: usize, weight: bool, dense: usize, dtype, (rows, max): (u64, u32)| {
            let schema = Schema {
                labels: vec![Label::new("label"); labels],
                weight: weight.then(|| "weight".into()),
                dense: vec![schema().dense[0].clone(); dense],
                dense_dtype: dtype,
                sequences: Vec::new(),
                categorical: vec![Categorical {
                    rows: Some(rows),
                    hotness: Hotness::Ragged { max },
                    ..column("c")
                }],
            };
            schema.default_block_samples()
        };
        // 1 + 4 x 16 + 3 x 21 = 128 bits: 2^17 samples, limited to 65536.
        assert_eq!(samples(1, false, 4, DenseDtype::F16, (1 << 20, 3)), 65_536);
        // 2 + 32 + 14 x 32 + 2 x 15 = 512 bits, and one bit more.
        assert_eq!(samples(2, true, 14, DenseDtype::F32, ((1 << 15) - 1, 2)), 32_768);
        assert_eq!(samples(3, true, 14, DenseDtype::F32, ((1 << 15) - 1, 2)), 16_384);
        assert_eq!(samples(1, false, 0, DenseDtype::F16, (u64::MAX, 65_536)), 256);
    }
}
