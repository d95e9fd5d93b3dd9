//! How much a model's predictions depend on each column: its values are permuted among the samples, and the model is
//! evaluated again.

use std::collections::BTreeMap;
use std::ops::Range;

use rankine_base::{Error, Stop};
use rankine_embedding::random::philox4x32;
use rankine_engine_cpu::CpuModel;
use rankine_model::evaluation::{EvalMetrics, Evaluation, JudgedHead, Metrics};
use rankine_reader::schema::Categorical;
use rankine_reader::stream::StreamOptions;
use rankine_reader::{Bags, BatchStream, Dataset, Part, Samples, Schema};
use serde::Serialize;

use crate::training::{EvaluationOptions, Event, Observer, TrainError};

/// How importance is measured.
#[derive(Debug, Clone, Copy)]
pub struct ImportanceOptions {
    /// At most this many samples are used, at even distances in the part; they are kept in memory.
    pub samples: u64,
    /// The seed of the permutations.
    pub seed: u64,
}

/// The importance of all columns.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Importance {
    /// Samples that were used.
    pub samples: u64,
    /// The seed of the permutations.
    pub seed: u64,
    /// The metrics of these samples as they are.
    pub undisturbed: EvalMetrics,
    /// One entry per column, the largest loss of AUC of the first head first.
    pub columns: Vec<ColumnImportance>,
}

/// The importance of a column.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ColumnImportance {
    /// The name of the column, or of the sequence, whose columns are permuted together.
    pub column: String,
    /// "dense", "categorical" or "sequence".
    pub kind: &'static str,
    /// What its permutation costs the first head; absent if no sample has the label.
    #[serde(flatten)]
    pub first: Option<MetricsLoss>,
    /// The same of every head, by label. Empty if the model has one head.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub heads: BTreeMap<String, Option<MetricsLoss>>,
}

/// What a permutation costs. Negative numbers are noise: the metrics were better by chance.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MetricsLoss {
    /// The AUC without the permutation, less the AUC with it; `None` if all labels are equal.
    pub auc_loss: Option<f64>,
    /// The log loss with the permutation, less the log loss without it.
    pub log_loss_increase: f64,
}

impl MetricsLoss {
    fn between(before: Option<Metrics>, after: Option<Metrics>) -> Option<Self> {
        let (before, after) = (before?, after?);
        let auc_loss = before.auc.zip(after.auc).map(|(before, after)| before - after);
        Some(Self { auc_loss, log_loss_increase: after.log_loss - before.log_loss })
    }
}

/// A column of the dataset, with the categorical columns that are computed from its numbers; or a sequence, whose
/// columns stay together.
struct Column<'a> {
    name: &'a str,
    kind: &'static str,
    dense: Option<usize>,
    categorical: Vec<usize>,
}

impl<'a> Column<'a> {
    fn all(schema: &'a Schema) -> Vec<Self> {
        let buckets_of = |name: &str| {
            let columns = schema.categorical.iter().enumerate();
            let own = columns.filter(|(_, column)| column.buckets().is_some_and(|(of, _)| of == name));
            own.map(|(number, _)| number).collect()
        };
        let dense = schema.dense.iter().enumerate().map(|(number, column)| Self {
            name: &column.name,
            kind: "dense",
            dense: Some(number),
            categorical: buckets_of(&column.name),
        });
        let alone =
            |column: &Categorical| column.buckets().is_none() && schema.sequence_of(&column.name).is_none();
        let stored = schema.categorical.iter().enumerate().filter(|(_, column)| alone(column));
        let categorical = stored.map(|(number, column)| Self {
            name: &column.name,
            kind: "categorical",
            dense: None,
            categorical: vec![number],
        });
        let sequences = schema.sequences.iter().zip(schema.columns_of_sequences());
        let sequences = sequences.map(|(sequence, categorical)| Self {
            name: &sequence.name,
            kind: "sequence",
            dense: None,
            categorical,
        });
        dense.chain(categorical).chain(sequences).collect()
    }
}

/// A model, and samples on which it is evaluated again and again.
pub(crate) struct Permutations<'e> {
    pub(crate) model: &'e mut CpuModel,
    pub(crate) heads: Vec<JudgedHead>,
    pub(crate) dataset: &'e Dataset,
    pub(crate) batches: EvaluationOptions,
    pub(crate) stop: Option<&'e Stop>,
    pub(crate) observer: &'e mut dyn Observer,
}

impl Permutations<'_> {
    /// Measures the importance of each column for the samples of a part.
    pub(crate) fn importance(
        &mut self,
        part: Part,
        options: ImportanceOptions,
    ) -> Result<Importance, TrainError> {
        let samples = self.read(part, options.samples)?;
        let dataset = self.dataset;
        let columns = Column::all(dataset.schema());
        let total = samples.len as u64 * (columns.len() as u64 + 1);
        let undisturbed = self.metrics(&samples, None, 0..total)?;
        let mut found = Vec::with_capacity(columns.len());
        for (number, column) in columns.iter().enumerate() {
            let order = permutation(samples.len, number as u64, options.seed);
            let done = samples.len as u64 * (number as u64 + 1);
            let after = self.metrics(&samples, Some((column, &order)), done..total)?;
            let heads = undisturbed.heads.iter().zip(after.heads.values());
            let loss = |((label, before), after): ((&String, &Option<Metrics>), &Option<Metrics>)| {
                (label.clone(), MetricsLoss::between(*before, *after))
            };
            found.push(ColumnImportance {
                column: column.name.to_owned(),
                kind: column.kind,
                first: MetricsLoss::between(undisturbed.first, after.first),
                heads: heads.map(loss).collect(),
            });
        }
        let auc_loss = |column: &ColumnImportance| column.first?.auc_loss;
        let key = |column: &ColumnImportance| auc_loss(column).unwrap_or(f64::NEG_INFINITY);
        found.sort_by(|one, other| key(other).total_cmp(&key(one)));
        Ok(Importance { samples: samples.len as u64, seed: options.seed, undisturbed, columns: found })
    }

    /// Reads at most `count` samples of a part, at even distances.
    fn read(&self, part: Part, count: u64) -> Result<Samples, TrainError> {
        let (dataset, EvaluationOptions { batch_size, io }) = (self.dataset, self.batches);
        let total = dataset.samples(part);
        let stream = StreamOptions { io, ..StreamOptions::one_epoch(batch_size) };
        let mut kept = Samples::new(dataset.schema());
        let share =
            |number: u64| u128::from(number) * u128::from(count.min(total)) / u128::from(total.max(1));
        let mut number = 0;
        for batch in BatchStream::open(dataset.part(part)?, &stream)? {
            let batch = &batch?.samples;
            let ids = |samples: &Samples, column: usize| samples.categorical[column].ids.len();
            let fits = |column| u32::try_from(ids(&kept, column) + ids(batch, column)).is_ok();
            if !(0..kept.categorical.len()).all(fits) {
                let what = "the samples have 2^32 ids of one column or more: lower --importance-samples";
                return Err(Error::too_large(1 << 32, what).into());
            }
            for sample in 0..batch.len {
                if share(number + 1) > share(number) {
                    kept.append(batch, sample..sample + 1);
                }
                number += 1;
            }
            self.check_stop()?;
        }
        Ok(kept)
    }

    /// Evaluates the samples, with one column permuted. `progress` are the samples scored before, and in the end.
    fn metrics(
        &mut self,
        samples: &Samples,
        permuted: Option<(&Column<'_>, &[usize])>,
        progress: Range<u64>,
    ) -> Result<EvalMetrics, TrainError> {
        let mut evaluation = Evaluation::new(&self.heads);
        let (mut batch, mut logits) = (Samples::new(self.dataset.schema()), Vec::new());
        for start in (0..samples.len).step_by(self.batches.batch_size) {
            let range = start..samples.len.min(start + self.batches.batch_size);
            batch.clear();
            batch.append(samples, range.clone());
            if let Some((column, order)) = permuted {
                permute(&mut batch, samples, column, &order[range]);
            }
            logits.clear();
            self.model.logits(&batch, &mut logits);
            if logits.iter().any(|logit| logit.is_nan()) {
                let dir = self.dataset.dir().display();
                let what = format!("the model's predictions on {dir} are not finite");
                return Err(TrainError::NotFinite(what));
            }
            evaluation.add(&batch, &logits);
            let samples = progress.start + evaluation.samples();
            self.observer.observe(Event::Evaluating { samples, total: progress.end, bytes_read: 0 });
            self.check_stop()?;
        }
        Ok(EvalMetrics::from(evaluation.metrics().as_slice()))
    }

    fn check_stop(&self) -> Result<(), TrainError> {
        self.stop.and_then(Stop::asked).map_or(Ok(()), |cause| Err(TrainError::EvaluationStopped(cause)))
    }
}

/// Gives the samples of a batch the values that a column has in the samples `from` of all.
fn permute(batch: &mut Samples, all: &Samples, column: &Column<'_>, from: &[usize]) {
    if let Some(dense) = column.dense {
        let values = batch.dense.iter_mut().skip(dense).step_by(all.dense_columns);
        values.zip(from).for_each(|(value, &other)| *value = all.dense[other * all.dense_columns + dense]);
    }
    for &number in &column.categorical {
        let mut bags = Bags::default();
        from.iter().for_each(|&other| bags.push_bag(&all.categorical[number], other));
        batch.categorical[number] = bags;
    }
}

/// Returns a permutation of the numbers below `count`: they are sorted by random words.
fn permutation(count: usize, column: u64, seed: u64) -> Vec<usize> {
    let key = [seed as u32, (seed >> 32) as u32];
    let word = |&number: &usize| {
        let [first, second, third, _] =
            philox4x32([number as u32, (number as u64 >> 32) as u32, column as u32, 0], key);
        [first, second, third]
    };
    let mut order: Vec<_> = (0..count).collect();
    order.sort_by_cached_key(word);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_depend_on_column_and_seed() {
        let order = permutation(1000, 3, 7);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
        assert_eq!(order, permutation(1000, 3, 7));
        for other in
            [permutation(1000, 2, 7), permutation(1000, 3, 8), permutation(1000, 3, 7 | 1 << 32), sorted]
        {
            let same = order.iter().zip(&other).filter(|(one, other)| one == other).count();
            assert!(same < 10, "{same}");
        }
    }

    #[test]
    fn bags_and_numbers_move_whole() {
        let all = Samples {
            len: 3,
            labels: vec![vec![0.0, 1.0, 0.0]],
            dense: vec![1.0, 10.0, 2.0, 20.0, 3.0, 30.0],
            dense_columns: 2,
            categorical: vec![
                Bags {
                    offsets: vec![0, 2, 2, 3],
                    ids: vec![5, 6, 7],
                    weights: vec![0.5, 0.25, 2.0]
                };
                2
            ],
            ..Samples::default()
        };
        let mut batch = all.slice(1..3);
        let column = Column { name: "a", kind: "dense", dense: Some(1), categorical: vec![0] };
        permute(&mut batch, &all, &column, &[2, 0]);
        assert_eq!(batch.dense, [2.0, 30.0, 3.0, 10.0]);
        assert_eq!(
            batch.categorical[0],
            Bags { offsets: vec![0, 1, 3], ids: vec![7, 5, 6], weights: vec![2.0, 0.5, 0.25] }
        );
        assert_eq!(batch.categorical[1], Bags { offsets: vec![0, 0, 1], ids: vec![7], weights: vec![2.0] });
        assert_eq!(batch.labels, [[1.0, 0.0]]);
    }
}
