//! How often a query is in its own history: the id of a column in the bag of a sequence's column with the same
//! vocabulary. If this holds for most positives and for few negatives, the history has the very event that the label
//! is about, and a model would learn this leak.

use rankine_base::error::Result;
use serde::Serialize;

use crate::dataset::Dataset;
use crate::part::Part;
use crate::schema::Schema;
use crate::stream::{BatchStream, StreamOptions};

/// How often a sequence's column has an id of another column, in some samples of the training part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OwnHistory {
    /// The name of the sequence.
    pub sequence: String,
    /// The sequence's column.
    pub column: String,
    /// The column outside of sequences that has the same vocabulary: the query.
    pub query: String,
    /// The samples that were read.
    pub samples: u64,
    /// The share of them with an id of the query in the history, from 0 to 1.
    pub share: f64,
    /// The share among those whose first label is 1; `None` without such samples.
    pub share_of_positives: Option<f64>,
    /// The share among those whose first label is 0; `None` without such samples.
    pub share_of_negatives: Option<f64>,
}

/// A query and a sequence's column, with counts by the first label: negative, positive, missing.
struct Pair {
    sequence: usize,
    column: usize,
    query: usize,
    samples: [u64; 3],
    found: [u64; 3],
}

impl Pair {
    /// Returns every column of a sequence with each column outside of sequences that shares its vocabulary.
    fn all(schema: &Schema) -> Result<Vec<Self>> {
        let owners = (0..schema.categorical.len()).map(|number| schema.vocabulary_owner(number));
        let owners: Vec<_> = owners.collect::<Result<_>>()?;
        let sequences = schema.columns_of_sequences();
        let is_query = |column: &usize| !sequences.iter().flatten().any(|other| other == column);
        let queries: Vec<_> = (0..owners.len()).filter(is_query).collect();
        let mut pairs = Vec::new();
        for (sequence, columns) in sequences.iter().enumerate() {
            for &column in columns {
                let own = queries.iter().filter(|&&query| owners[query] == owners[column]);
                pairs.extend(own.map(|&query| Self {
                    sequence,
                    column,
                    query,
                    samples: [0; 3],
                    found: [0; 3],
                }));
            }
        }
        Ok(pairs)
    }

    fn result(&self, schema: &Schema) -> OwnHistory {
        let share = |found: u64, samples: u64| (samples > 0).then(|| found as f64 / samples as f64);
        let name = |number: usize| schema.categorical[number].name.clone();
        let samples = self.samples.iter().sum();
        OwnHistory {
            sequence: schema.sequences[self.sequence].name.clone(),
            column: name(self.column),
            query: name(self.query),
            samples,
            share: share(self.found.iter().sum(), samples).unwrap_or(0.0),
            share_of_positives: share(self.found[1], self.samples[1]),
            share_of_negatives: share(self.found[0], self.samples[0]),
        }
    }
}

/// Reads the first `samples` samples of the training part, or more up to the end of a block, and counts in how many a
/// query is in its own history. Returns nothing, and reads nothing, if no column of a sequence shares a vocabulary
/// with a column outside of sequences.
///
/// # Errors
/// As [`BatchStream`].
pub fn own_histories(dataset: &Dataset, samples: u64) -> Result<Vec<OwnHistory>> {
    let schema = dataset.schema();
    let mut pairs = Pair::all(schema)?;
    if pairs.is_empty() || dataset.samples(Part::Train) == 0 {
        return Ok(Vec::new());
    }
    let part = dataset.part(Part::Train)?;
    let options = StreamOptions::one_epoch(part.block_samples as usize);
    let mut read = 0;
    for batch in BatchStream::open(part, &options)? {
        let batch = &batch?.samples;
        for pair in &mut pairs {
            let (queries, histories) = (&batch.categorical[pair.query], &batch.categorical[pair.column]);
            for sample in 0..batch.len {
                let label = batch.labels[0][sample];
                let kind = if label.is_nan() { 2 } else { usize::from(label == 1.0) };
                let history = histories.bag(sample);
                pair.samples[kind] += 1;
                pair.found[kind] += u64::from(queries.bag(sample).iter().any(|id| history.contains(id)));
            }
        }
        read += batch.len as u64;
        if read >= samples {
            break;
        }
    }
    Ok(pairs.iter().map(|pair| pair.result(schema)).collect())
}
