//! What `rankine inspect` shows about queries that are in their own history.

use std::fmt::{self, Display};

use rankine_reader::Dataset;
use rankine_reader::own_history::{OwnHistory, own_histories};

/// Samples that are read, in whole blocks: enough to see a leak, and read in well under a second.
const SAMPLES: u64 = 1 << 16;

/// The columns of a dataset that are in their own history, and how often.
pub(super) fn of(dataset: &Dataset) -> rankine_base::Result<Vec<OwnHistory>> {
    own_histories(dataset, SAMPLES)
}

/// A line about one column.
pub(super) struct Line<'a>(pub(super) &'a OwnHistory);

impl Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OwnHistory { sequence, column, query, samples, share, share_of_positives, share_of_negatives } =
            self.0;
        let percent = |share: f64| format!("{:.2}%", share * 100.0);
        write!(
            f,
            "  `{query}` is in `{column}` of {sequence} in {} of the first {samples} samples",
            percent(*share)
        )?;
        if let (Some(positives), Some(negatives)) = (share_of_positives, share_of_negatives) {
            write!(f, " (positives {}, negatives {})", percent(*positives), percent(*negatives))?;
        }
        Ok(())
    }
}
