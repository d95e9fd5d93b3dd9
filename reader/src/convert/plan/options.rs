//! Options of a conversion, with parsers for their command-line spelling.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;
#[cfg(feature = "parquet")]
use std::sync::Arc;

use rankine_base::error::{Error, InvalidValue, Result};
use rankine_base::stop::Stop;

use crate::convert::plan::{Learning, Plan};
use crate::convert::rows::split::RowSplit;
#[cfg(feature = "parquet")]
use crate::convert::rows::tables::Tables;
use crate::convert::{CATEGORICAL_COLUMNS, DENSE_COLUMNS};
use crate::label::is_share;
use crate::origin::RowFormat;
use crate::schema::{
    Categorical, Dense, DenseDtype, DenseFunction, DenseTransform, Hotness, Label, Pooling, Schema,
    VocabularyKind,
};

/// Maximum number of rows of hashed and identity tables: counting takes nine bytes per row during conversion.
pub const TABLE_ROWS_MAX: u64 = 1 << 32;

/// The sources and options of a conversion.
#[derive(Debug, Clone)]
pub struct ConvertOptions {
    /// The sources, in the order in which their rows count: plain, gzip or zstd, which is detected from their first
    /// bytes.
    pub files: Vec<PathBuf>,
    /// The folder of the dataset or fit, which must not exist or be empty.
    pub out: PathBuf,
    /// Which rows of `files` are for evaluation instead of training.
    pub split: RowSplit,
    /// Sources whose rows are the evaluation part; then `split` must be the default, which holds out no row.
    pub eval: Vec<PathBuf>,
    /// What messages and the dataset call the sources, `files` first and then `eval`, if these are temporary. A source
    /// without an entry is called by its path.
    pub names: Vec<String>,
    /// What happens to rows that cannot be read.
    pub on_bad: OnBad,
    /// The number of bad rows that is allowed.
    pub bad_limit: BadLimit,
    /// Threads that parse; the result does not depend on their number.
    pub threads: NonZeroUsize,
    /// How numbers are stored.
    pub dense_dtype: DenseDtype,
    /// Memory budget in bytes for counting categories while vocabularies are learnt; larger counts are temporarily
    /// written to disk. The result does not depend on it.
    pub memory: u64,
    /// Samples of a block; without it as many as suit the columns, at most 65536. More are an error.
    pub block_samples: Option<NonZeroU32>,
    /// The shares of negatives that the sources were left with, in place of those that the columns state.
    pub negatives_kept: Vec<NegativesKept>,
    /// Ends the conversion with [`Error::Stopped`].
    pub stop: Stop,
    /// Rows in memory, which are read in place of the one source in `files`, as if it were a file of Parquet. Only for
    /// functions that read rows once: [`crate::convert::learn_parquet`] and [`crate::convert::learn_like`], and
    /// [`crate::shards::encode`] if [`crate::convert::KnownColumns::read_rows_once`].
    #[cfg(feature = "parquet")]
    pub tables: Option<Arc<Tables>>,
}

/// The share of negatives that rows were left with, as `0.1` for all labels or `LABEL=0.1` for one.
#[derive(Debug, Clone, PartialEq)]
pub struct NegativesKept {
    /// The label; `None` for all.
    pub label: Option<String>,
    /// Above 0, at most 1; 1 if there was no downsampling.
    pub share: f64,
}

impl FromStr for NegativesKept {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (label, share) = match text.rsplit_once('=') {
            Some((label, share)) => (Some(label.to_owned()), share),
            None => (None, text),
        };
        match share.parse() {
            Ok(share) if is_share(share) => Ok(Self { label, share }),
            _ => Err(InvalidValue::expected(
                text,
                "a share above 0 and at most 1, such as 0.1, or LABEL=SHARE",
            )),
        }
    }
}

impl ConvertOptions {
    /// Returns the defaults for everything except sources and folder.
    pub fn new(files: Vec<PathBuf>, out: PathBuf) -> Self {
        Self {
            files,
            out,
            split: RowSplit::default(),
            eval: Vec::new(),
            names: Vec::new(),
            on_bad: OnBad::Fail,
            bad_limit: BadLimit::default(),
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            dense_dtype: DenseDtype::F16,
            memory: 2 << 30,
            block_samples: None,
            negatives_kept: Vec::new(),
            stop: Stop::default(),
            #[cfg(feature = "parquet")]
            tables: None,
        }
    }

    /// Sets the memory budget for counting categories.
    #[must_use]
    pub fn with_memory(self, memory: u64) -> Self {
        Self { memory, ..self }
    }

    /// Returns the labels of a plan, with the shares of negatives that these options state.
    ///
    /// # Errors
    /// [`Error::Setting`] if a share is of a label that does not exist.
    pub(crate) fn labels(&self, planned: &[Label]) -> Result<Vec<Label>> {
        let mut labels = planned.to_vec();
        for NegativesKept { label: of, share } in &self.negatives_kept {
            let named = |label: &Label| of.as_ref().is_none_or(|of| *of == label.name);
            if !labels.iter().any(named) {
                let names: Vec<_> = labels.iter().map(|label| label.name.as_str()).collect();
                let what = format!(
                    "--negatives-kept {}={share}: no label has that name; the labels are {}",
                    of.as_deref().unwrap_or_default(),
                    names.join(", ")
                );
                return Err(Error::setting("--negatives-kept", what));
            }
            for label in labels.iter_mut().filter(|label| named(label)) {
                label.negatives_kept = Some(*share).filter(|&share| share < 1.0);
            }
        }
        Ok(labels)
    }

    /// Checks what the types cannot express.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.files.is_empty() {
            return Err(Error::setting("files", "no input: give at least one file to convert"));
        }
        if !self.eval.is_empty() && self.split != RowSplit::default() {
            let what = format!(
                "--eval names files for the evaluation part, but --split {} takes it from the other files: \
                 choose one, and with --eval use --split none",
                self.split
            );
            return Err(Error::setting("--eval", what));
        }
        Ok(())
    }
}

/// Options for the columns of Criteo's rows.
#[derive(Debug, Clone, PartialEq)]
pub struct CriteoColumns {
    /// The number of occurrences in the training part from which a category has its own row in an exact vocabulary.
    pub min_count: u64,
    /// The transformation of numbers.
    pub dense: DenseMode,
    /// The vocabulary of columns that `columns` does not name.
    pub vocabulary: VocabularyChoice,
    /// Columns that differ from `vocabulary`.
    pub columns: Vec<ColumnVocabulary>,
}

impl Default for CriteoColumns {
    fn default() -> Self {
        Self { min_count: 1, dense: DenseMode::Log, vocabulary: VocabularyChoice::Exact, columns: Vec::new() }
    }
}

impl CriteoColumns {
    /// Checks what the types cannot express.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.min_count == 0 {
            return Err(no_min_count());
        }
        for (number, column) in self.columns.iter().enumerate() {
            if self.columns[..number].iter().any(|other| other.column == column.column) {
                return Err(Error::setting(
                    "--column",
                    format!("--column is given twice for {}", categorical_name(column.column)),
                ));
            }
        }
        Ok(())
    }

    /// Returns the vocabulary of a column, counted from 0.
    fn vocabulary_of(&self, column: usize) -> VocabularyChoice {
        let own = self.columns.iter().find(|own| own.column == column);
        own.map_or(self.vocabulary, |own| own.vocabulary)
    }

    /// Returns the plan for converting Criteo's rows.
    pub(crate) fn plan(&self, dense_dtype: DenseDtype) -> Plan {
        let (function, standardized) = match self.dense {
            DenseMode::Log => (DenseFunction::SignedLog1p, true),
            DenseMode::Mlperf => (DenseFunction::MlperfLog, false),
        };
        let dense = |column: usize| Dense {
            name: format!("I{}", column + 1),
            transform: DenseTransform::plain(function),
        };
        let categorical = |column: usize| {
            let (rows, vocabulary) = match self.vocabulary_of(column) {
                VocabularyChoice::Exact => (Some(0), VocabularyKind::Exact { min_count: self.min_count }),
                VocabularyChoice::Open => (None, VocabularyKind::Open),
                VocabularyChoice::Hash { rows } => (Some(rows), VocabularyKind::Hash),
                VocabularyChoice::Identity { rows } => (Some(rows), VocabularyKind::Identity),
            };
            Categorical {
                name: categorical_name(column),
                rows,
                hotness: Hotness::Fixed(1),
                pooling: Pooling::Sum,
                vocabulary,
                weighted: false,
                shares: None,
            }
        };
        let draft = Schema {
            labels: vec![Label::new("label")],
            weight: None,
            dense: (0..DENSE_COLUMNS).map(dense).collect(),
            dense_dtype,
            sequences: Vec::new(),
            categorical: (0..CATEGORICAL_COLUMNS).map(categorical).collect(),
        };
        Plan {
            draft,
            standardized: vec![standardized; DENSE_COLUMNS],
            format: RowFormat::CriteoTsv,
            learning: Learning::All,
        }
    }
}

/// Returns the name of a categorical column, counted from 0.
fn categorical_name(column: usize) -> String {
    format!("C{}", column + 1)
}

pub(crate) fn no_min_count() -> Error {
    Error::setting(
        "--min-count",
        "--min-count 0 would give rows to categories that never occur: use 1 to keep every category",
    )
}

/// What happens to a row that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnBad {
    /// The first one ends the conversion.
    Fail,
    /// It is skipped, counted, and named in `bad-rows.jsonl`.
    Skip,
    /// Like [`OnBad::Skip`], and the line is also written to `quarantine.tsv`.
    Quarantine,
}

impl FromStr for OnBad {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "fail" => Ok(Self::Fail),
            "skip" => Ok(Self::Skip),
            "quarantine" => Ok(Self::Quarantine),
            _ => Err(InvalidValue::is_not(
                text,
                "an action for bad rows: choose fail (stop at the first), skip (skip it and name it in \
                 bad-rows.jsonl) or quarantine (like skip, and also write the line to quarantine.tsv)",
            )),
        }
    }
}

/// The number of bad rows that is allowed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BadLimit {
    /// At most this many.
    Rows(u64),
    /// At most this percentage of all rows, in `0..=100`.
    Percent(f64),
}

impl Default for BadLimit {
    /// Returns one percent.
    fn default() -> Self {
        Self::Percent(1.0)
    }
}

impl BadLimit {
    /// Returns whether `bad` of `rows` rows are too many.
    pub(crate) fn exceeded(self, bad: u64, rows: u64) -> bool {
        match self {
            Self::Rows(limit) => bad > limit,
            Self::Percent(limit) => bad as f64 * 100.0 > limit * rows as f64,
        }
    }
}

impl FromStr for BadLimit {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let limit = match text.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.trim_end().parse().ok();
                percent.filter(|percent| (0.0..=100.0).contains(percent)).map(Self::Percent)
            }
            None => text.parse().ok().map(Self::Rows),
        };
        limit.ok_or_else(|| {
            InvalidValue::is_not(
                text,
                "a limit: write a number of rows (1000; 0 allows none) \
                 or a percentage of them (1%, up to 100%)",
            )
        })
    }
}

impl fmt::Display for BadLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rows(rows) => write!(f, "{rows}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// The transformation of dense columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DenseMode {
    /// `sign(x) ln(1 + |x|)`, then standardized with the moments of the training part; a missing number becomes the
    /// mean.
    Log,
    /// `ln(max(x, 0) + 1)` as in MLPerf; a missing number becomes 0.
    Mlperf,
}

impl FromStr for DenseMode {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "log" => Ok(Self::Log),
            "mlperf" => Ok(Self::Mlperf),
            _ => Err(InvalidValue::is_not(
                text,
                "a transformation: choose log (signed logarithm, then standardized) or \
                 mlperf (ln(max(x, 0) + 1))",
            )),
        }
    }
}

impl FromStr for DenseDtype {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "f16" => Ok(Self::F16),
            "f32" => Ok(Self::F32),
            _ => Err(InvalidValue::is_not(text, "a storage type for numbers: choose f16 or f32")),
        }
    }
}

/// How a column maps categories to ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VocabularyChoice {
    /// A list learned from the training part.
    Exact,
    /// [`crate::vocabulary::hash_key`].
    Open,
    /// [`crate::vocabulary::hash_row`].
    Hash {
        /// Rows of the table.
        rows: u64,
    },
    /// The category is the row number in decimal digits.
    Identity {
        /// Rows of the table.
        rows: u64,
    },
}

impl FromStr for VocabularyChoice {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let refuse = |why: String| {
            InvalidValue::is_not(
                text,
                format!(
                    "a vocabulary ({why}): write exact (learned from the training part), hash:ROWS, open \
                     (keys of 64 bits, for dynamic tables), or identity:ROWS (categories are already row numbers)"
                ),
            )
        };
        let rows = |text: &str| match text.parse() {
            Ok(rows) if (1..=TABLE_ROWS_MAX).contains(&rows) => Ok(rows),
            _ => Err(refuse(format!("ROWS must be a number from 1 to {TABLE_ROWS_MAX}"))),
        };
        match text.split_once(':') {
            None if text == "exact" => Ok(Self::Exact),
            None if text == "open" => Ok(Self::Open),
            Some(("hash", count)) => Ok(Self::Hash { rows: rows(count)? }),
            Some(("identity", count)) => Ok(Self::Identity { rows: rows(count)? }),
            None if text == "hash" || text == "identity" => {
                Err(refuse("the number of rows is missing".into()))
            }
            _ => Err(refuse("unknown kind".into())),
        }
    }
}

/// A column with a different kind of vocabulary: `C3=hash:100000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnVocabulary {
    /// The column, counted from 0: `C1` is 0.
    pub column: usize,
    /// Its vocabulary.
    pub vocabulary: VocabularyChoice,
}

impl FromStr for ColumnVocabulary {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let refuse =
            |why: &str| InvalidValue::is_not(text, format!("a column option ({why}): write C3=hash:100000"));
        let (name, vocabulary) = text.split_once('=').ok_or_else(|| refuse("it has no ="))?;
        let column = (0..CATEGORICAL_COLUMNS)
            .find(|&column| categorical_name(column) == name)
            .ok_or_else(|| refuse("categorical columns are C1 to C26"))?;
        Ok(Self { column, vocabulary: vocabulary.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed() {
        assert_eq!("1%".parse::<BadLimit>().unwrap(), BadLimit::default());
        assert_eq!("0".parse::<BadLimit>().unwrap(), BadLimit::Rows(0));
        assert_eq!("quarantine".parse::<OnBad>().unwrap(), OnBad::Quarantine);
        assert_eq!("hash:10".parse::<VocabularyChoice>().unwrap(), VocabularyChoice::Hash { rows: 10 });
        assert_eq!(
            "hash:4294967296".parse::<VocabularyChoice>().unwrap(),
            VocabularyChoice::Hash { rows: 1 << 32 }
        );
        assert_eq!("0%".parse::<BadLimit>().unwrap(), BadLimit::Percent(0.0));
        assert_eq!("100 %".parse::<BadLimit>().unwrap(), BadLimit::Percent(100.0));
        assert_eq!("open".parse::<VocabularyChoice>().unwrap(), VocabularyChoice::Open);
        let own = ColumnVocabulary { column: 0, vocabulary: VocabularyChoice::Exact };
        assert_eq!("C1=exact".parse::<ColumnVocabulary>().unwrap(), own);
        let own = ColumnVocabulary { column: 25, vocabulary: VocabularyChoice::Identity { rows: 4 } };
        assert_eq!("C26=identity:4".parse::<ColumnVocabulary>().unwrap(), own);
    }

    #[test]
    fn bad_rows_up_to_the_limit_are_allowed() {
        for (limit, bad, rows, exceeded) in [
            ("0", 0, 10, false),
            ("0", 1, 1000, true),
            ("3", 3, 3, false),
            ("3", 4, u64::MAX, true),
            ("1%", 1, 100, false),
            ("1%", 2, 199, true),
            ("1%", 2, 200, false),
            ("0%", 1, u64::MAX, true),
            ("100%", 7, 7, false),
        ] {
            assert_eq!(
                limit.parse::<BadLimit>().unwrap().exceeded(bad, rows),
                exceeded,
                "{limit}: {bad} of {rows}"
            );
        }
    }

    #[test]
    fn errors_show_the_way_out() {
        fn refusal<T: FromStr<Err = InvalidValue> + fmt::Debug>(text: &str) -> String {
            text.parse::<T>().unwrap_err().to_string()
        }
        assert!(refusal::<BadLimit>("101%").contains("up to 100%"));
        assert!(refusal::<BadLimit>("-1").contains("a number of rows"));
        assert!(refusal::<OnBad>("ignore").contains("quarantine"));
        assert!(refusal::<VocabularyChoice>("hash").contains("the number of rows is missing"));
        for none in ["hash:0", "identity:0", "hash:4294967297", "identity:4294967297", "hash:-1", "hash:"] {
            assert!(refusal::<VocabularyChoice>(none).contains("ROWS must be a number from 1 to 4294967296"));
        }
        assert!(refusal::<ColumnVocabulary>("C27=exact").contains("C1 to C26"));
        assert!(refusal::<ColumnVocabulary>("C2").contains("no ="));
        assert!(refusal::<DenseMode>("ln").contains("mlperf"));
    }
}
