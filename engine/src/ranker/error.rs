//! Why rows cannot be scored, and why a model does not replace another.

use std::path::PathBuf;

use rankine_checkpoint::CheckpointError;

use super::ROWS_MAX;
use crate::features::FeatureError;
use crate::source::SourceError;

/// Why rows cannot be scored. Rows count from 0.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ScoreError {
    /// There are more rows than can be scored at a time.
    #[error("at most {ROWS_MAX} rows can be scored per call, not {rows}: score them in several calls")]
    TooManyRows {
        /// Their number.
        rows: usize,
    },
    /// The features of a row cannot be used.
    #[error(transparent)]
    Features(#[from] FeatureError),
    /// The array for the scores has another length than rows times heads.
    #[error("the output has room for {found} scores, but {} are needed (rows times heads)", rows * heads)]
    ScoresShape {
        /// Number of rows.
        rows: usize,
        /// Heads of the model.
        heads: usize,
        /// Length of the array.
        found: usize,
    },
    /// A score is NaN.
    #[error("the score of row {row} is not a number: numbers of the row are too large for the model")]
    NotANumber {
        /// The row.
        row: usize,
    },
}

impl ScoreError {
    /// Returns the error with row numbers that count from `rows` rows earlier.
    #[cfg(any(feature = "arrow", test))]
    pub(super) fn after_rows(mut self, rows: usize) -> Self {
        match &mut self {
            Self::NotANumber { row } => *row += rows,
            Self::Features(error) => error.shift_rows(rows),
            _ => {}
        }
        self
    }
}

/// Why a model does not replace the one that is scoring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwapError {
    /// It cannot be loaded.
    #[error(transparent)]
    Load(#[from] SourceError),
    /// It has other columns or labels, so that callers would have to change with it.
    #[error(
        "the new model has the columns {}, but {} are being scored: create a new Ranker for this model",
        quoted(found),
        quoted(expected)
    )]
    Columns {
        /// Those of the model that is scoring: labels, dense columns and categorical columns.
        expected: Vec<String>,
        /// Those of the new one.
        found: Vec<String>,
    },
}

/// Why a delta does not change the model that is scoring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// It cannot be read, or is damaged.
    #[error(transparent)]
    Read(#[from] CheckpointError),
    /// It changes another model.
    #[error(
        "{} changes the model of step {base}, but {held}. Apply the deltas since the model that was loaded in their \
         order, or load the later model with `swap`",
        path.display()
    )]
    OtherBase {
        /// The delta.
        path: PathBuf,
        /// Steps of the model that it changes.
        base: u64,
        /// The model that is scoring.
        held: String,
    },
}

fn quoted(names: &[String]) -> String {
    format!("`{}`", names.join("`, `"))
}

#[cfg(test)]
mod tests {
    use rankine_reader::convert::RawColumnError;

    use super::*;

    #[test]
    fn a_model_of_other_columns_is_refused_with_both_lists() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let refused =
            SwapError::Columns { expected: names(&["click", "C1", "C2"]), found: names(&["click"]) };
        assert_eq!(
            refused.to_string(),
            "the new model has the columns `click`, but `click`, `C1`, `C2` are being scored: create a new Ranker \
             for this model"
        );
    }

    #[test]
    fn rows_count_from_those_scored_before() {
        let column = || "age".to_owned();
        let later = |error: ScoreError| error.after_rows(100).to_string();
        assert_eq!(
            later(ScoreError::NotANumber { row: 7 }).split(" is").next(),
            Some("the score of row 107")
        );
        let value =
            RawColumnError::Value { column: column(), row: 0, value: "x".into(), expected: "y".into() };
        let raw = |error: RawColumnError| later(FeatureError::from(error).into());
        assert_eq!(raw(value), "column age, row 100: x is not y");
        let rows = RawColumnError::Rows { column: column(), expected: 3, found: 2 };
        assert_eq!(raw(rows), "column age has 2 rows; expected 3");
    }
}
