//! Counts over raw files, which have no statistics: every record is read.

use rankine_base::error::Result;

use crate::dataset::Dataset;
use crate::part::Part;
use crate::samples::{LabelCounts, Samples};
use crate::statistics::{self, TableCounter, TableStatistics};
use crate::stream::{BatchStream, StreamOptions};

/// Counts over every record of a part.
#[derive(Debug, Clone)]
pub struct Survey {
    /// Records.
    pub samples: u64,
    /// Records whose label is 1, one number per label column.
    pub positives: Vec<u64>,
    /// How often each row of each table is looked up, one entry per categorical column. Counting takes eight bytes
    /// per row.
    pub tables: Vec<TableStatistics>,
}

/// Reads every record of a part and counts labels and look-ups.
///
/// # Errors
/// [`rankine_base::Error::BadRows`] for the first invalid record; otherwise as [`BatchStream`].
pub fn survey(dataset: &Dataset, part: Part) -> Result<Survey> {
    let schema = dataset.schema();
    let counters = statistics::counters(schema)?;
    let mut labels = vec![LabelCounts::default(); schema.labels.len()];
    let mut samples = 0;
    let part = dataset.part(part)?;
    let options = StreamOptions::one_epoch(part.block_samples as usize);
    for batch in BatchStream::open(part, &options)? {
        let batch: &Samples = &batch?.samples;
        samples += batch.len as u64;
        labels.iter_mut().zip(&batch.labels).for_each(|(sum, labels)| sum.add(LabelCounts::of(labels)));
        counters.iter().zip(&batch.categorical).for_each(|(counter, bags)| counter.add(bags));
    }
    Ok(Survey {
        samples,
        positives: labels.iter().map(|counts| counts.positive).collect(),
        tables: counters.iter().map(TableCounter::statistics).collect(),
    })
}
