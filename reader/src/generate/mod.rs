//! Synthetic datasets of any size: ids follow a power law, and labels come from a teacher, whose AUC is known.
//!
//! Every sample depends only on the seed, its part and its number, and every block is made by one thread from its
//! samples. Any number of threads therefore gives the same bytes, with memory for a few blocks (and the frequency
//! counters, nine bytes per row). Functions of libm come from the crate of that name, so that all machines give the
//! same bytes.

mod churn;
mod effect;
mod interest;
mod power_law;
mod teacher;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use half::f16;
use rankine_base::error::{Error, Result};
use rankine_base::publish::PartialDir;
use rankine_base::stop::Stop;

use crate::dataset::Manifest;
use crate::ordered::ordered_map;
use crate::origin::Origin;
use crate::part::Part;
use crate::rng::Rng;
use crate::samples::Samples;
use crate::schema::{DenseFunction, Hotness, Schema};
use crate::write::DatasetWriter;

pub use crate::origin::{GenerateSpec, Generation};
pub use crate::shape::{ChurnShape, SequenceShape, Shape};
use churn::Churn;
use effect::{Category, SQRT_3};
use interest::Interest;
pub use power_law::PowerLaw;
use teacher::Teacher;

/// Samples between two checks for a stop request.
const SAMPLES_BETWEEN_LOOKS: u64 = 1 << 10;

/// Generates a dataset into a folder that must not exist yet. `progress` is called with the samples done so far.
///
/// # Errors
/// [`Error::Setting`] or [`Error::Columns`] for an impossible spec; [`Error::Exists`]; [`Error::Io`];
/// [`Error::Stopped`] after a stop request, in which case nothing of the folder remains.
pub fn generate(
    spec: &GenerateSpec,
    dir: &Path,
    threads: NonZeroUsize,
    stop: &Stop,
    mut progress: impl FnMut(u64),
) -> Result<Manifest> {
    if spec.samples == 0 {
        return Err(Error::setting("samples", "a dataset needs at least one training sample"));
    }
    if !(0.0..=10.0).contains(&spec.alpha) {
        return Err(Error::setting("alpha", format!("alpha {} is not within 0 to 10", spec.alpha)));
    }
    if spec.rows_cap == Some(0) {
        return Err(Error::setting("rows", "tables cannot be capped at 0 rows"));
    }
    let partial = PartialDir::create(dir)?;
    let schema = spec.shape.schema(spec.rows_cap);
    let block_samples = schema.default_block_samples();
    let generator = Generator::new(spec, schema.clone(), stop);
    let mut writer = DatasetWriter::new(&partial, schema, block_samples)?;
    let encoder = writer.encoder();
    let histogram = ScoreHistogram::new();
    let mut done = 0;
    for (part, samples) in [(Part::Train, spec.samples), (Part::Eval, spec.eval_samples)] {
        let blocks = (0..samples.div_ceil(u64::from(block_samples))).map(Ok);
        let work = |block: u64| {
            let first = block * u64::from(block_samples);
            let range = first..samples.min(first + u64::from(block_samples));
            let samples = generator.samples(part, range, |logit, label| {
                if part == Part::Eval {
                    histogram.add(logit, label);
                }
            })?;
            Ok((samples.len as u64, encoder.encode(part, block, &samples)?))
        };
        ordered_map(threads, stop, blocks, work, |(samples, block)| {
            done += samples;
            progress(done);
            writer.push_block(&block)
        })?;
    }
    let generation = Generation { spec: spec.clone(), auc_achievable: histogram.auc() };
    let manifest = writer.finish(Origin::Generated(generation))?;
    stop.check()?;
    partial.publish()?;
    Ok(manifest)
}

/// Generates samples of a part without writing them, and returns them with the teacher's logit of each. No model can be
/// expected to have a lower log loss than these logits.
///
/// # Errors
/// [`Error::Columns`] for an impossible spec.
#[doc(hidden)]
pub fn samples_with_logits(
    spec: &GenerateSpec,
    part: Part,
    range: std::ops::Range<u64>,
) -> Result<(Samples, Vec<f64>)> {
    let schema = spec.shape.schema(spec.rows_cap);
    schema.validate()?;
    let mut logits = Vec::new();
    let samples =
        Generator::new(spec, schema, &Stop::default()).samples(part, range, |logit, _| logits.push(logit))?;
    Ok((samples, logits))
}

/// Generates samples one by one.
struct Generator {
    seed: u64,
    schema: Schema,
    /// The columns of each sequence, which come after all others.
    sequences: Vec<Vec<usize>>,
    laws: Vec<PowerLaw>,
    churn: Churn,
    dense: Vec<LogCount>,
    teacher: Teacher,
    stop: Stop,
}

/// A dense feature: `ln(1 + count)` of a count whose logarithm has this mean and deviation.
#[derive(Debug, Clone, Copy)]
struct LogCount {
    mean: f64,
    deviation: f64,
}

impl Generator {
    fn new(spec: &GenerateSpec, schema: Schema, stop: &Stop) -> Self {
        let mut rng = Rng::from_parts(&[spec.seed, 0xde_75e0]);
        let log_count =
            |_| LogCount { mean: 1.0 + 3.0 * rng.unit_f64(), deviation: 0.8 + 0.7 * rng.unit_f64() };
        let dense: Vec<LogCount> = (0..schema.dense.len()).map(log_count).collect();
        let moments: Vec<_> = dense.iter().map(|dense| (dense.mean, dense.deviation)).collect();
        let rows = spec.shape.categories(spec.rows_cap).into_iter();
        let laws = rows.map(|rows| PowerLaw::new(rows, spec.alpha));
        let sequences = schema.columns_of_sequences();
        let interests = spec.shape.queries().into_iter().zip(&sequences).zip(&schema.sequences);
        let interests = interests
            .map(|((query, columns), sequence)| {
                Interest::new(spec.seed, query[0], columns.clone(), sequence.max)
            })
            .collect();
        Self {
            seed: spec.seed,
            laws: laws.collect(),
            churn: Churn::new(spec),
            teacher: Teacher::new(spec.seed, &moments, spec.shape.rows.len(), interests),
            sequences,
            dense,
            schema,
            stop: stop.clone(),
        }
    }

    /// Generates a range of a part's samples; `judge` is called with the teacher's logit and the label of each.
    fn samples(
        &self,
        part: Part,
        range: std::ops::Range<u64>,
        mut judge: impl FnMut(f64, bool),
    ) -> Result<Samples> {
        let mut samples = Samples::new(&self.schema);
        let mut drawn = vec![Vec::new(); self.laws.len()];
        for number in range {
            if number.is_multiple_of(SAMPLES_BETWEEN_LOOKS) {
                self.stop.check()?;
            }
            let time = self.churn.time(part, number);
            let mut rng = Rng::from_parts(&[self.seed, part as u64, number]);
            for dense in &self.dense {
                samples.dense.push(dense.draw(&mut rng));
            }
            let single = self.laws.len() - self.sequences.iter().map(Vec::len).sum::<usize>();
            for (column, bag) in drawn.iter_mut().enumerate().take(single) {
                let ids = match self.schema.categorical[column].hotness {
                    Hotness::Fixed(ids) => ids,
                    Hotness::Ragged { max } => rng.below(u64::from(max) + 1) as u32,
                };
                self.draw((column, time), ids, &mut rng, bag);
            }
            for (columns, sequence) in self.sequences.iter().zip(&self.schema.sequences) {
                let positions = rng.below(u64::from(sequence.max) + 1) as u32;
                for &column in columns {
                    self.draw((column, time), positions, &mut rng, &mut drawn[column]);
                }
            }
            for (column, (bags, drawn)) in samples.categorical.iter_mut().zip(&drawn).enumerate() {
                bags.push(drawn.iter().map(|&category| self.id(column, category)));
            }
            samples.len += 1;
            let logit = self.teacher.logit(&samples, &drawn);
            let label = rng.unit_f64() < 1.0 / (1.0 + libm::exp(-logit));
            samples.labels[0].push(f32::from(u8::from(label)));
            judge(logit, label);
        }
        Ok(samples)
    }

    /// Draws the categories of a column in a sample at a time.
    fn draw(&self, (column, time): (usize, u64), ids: u32, rng: &mut Rng, bag: &mut Vec<Category>) {
        bag.clear();
        let rank = |_| self.laws[column].rank(rng.unit_f64());
        bag.extend((0..ids).map(rank).map(|rank| self.churn.category(column, rank, time)));
    }

    /// Returns the id of a category of a column.
    fn id(&self, column: usize, category: Category) -> u64 {
        self.churn.key(column, category).unwrap_or_else(|| self.laws[column].row(category.rank))
    }
}

impl LogCount {
    /// Returns the stored value, rounded to half precision as it is stored: the teacher uses the values that the
    /// model will.
    fn draw(&self, rng: &mut Rng) -> f32 {
        // A sum of four uniform numbers is close enough to normal, and the same on every machine.
        let normal = ((0..4).map(|_| rng.unit_f64()).sum::<f64>() - 2.0) * SQRT_3;
        let count = libm::floor(libm::exp(self.mean + self.deviation * normal));
        f16::from_f64(DenseFunction::MlperfLog.apply(count)).to_f32()
    }
}

/// A histogram of positive and negative labels by the teacher's logit. Bins are so fine that ties within one change
/// at most the sixth digit of the AUC: bounded memory for any number of samples.
struct ScoreHistogram {
    bins: Vec<[AtomicU64; 2]>,
}

impl ScoreHistogram {
    const BINS: usize = 1 << 20;
    /// Logits with a greater magnitude share the outermost bins.
    const RANGE: f64 = 32.0;

    fn new() -> Self {
        Self { bins: (0..Self::BINS).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect() }
    }

    fn add(&self, logit: f64, label: bool) {
        let unit = (logit / Self::RANGE + 1.0) / 2.0;
        let bin = ((unit * Self::BINS as f64) as usize).min(Self::BINS - 1);
        self.bins[bin][usize::from(label)].fetch_add(1, Ordering::Relaxed);
    }

    fn auc(&self) -> Option<f64> {
        let (mut negatives, mut positives, mut ordered) = (0u128, 0u128, 0u128);
        for [negative, positive] in &self.bins {
            let (n, p) =
                (u128::from(negative.load(Ordering::Relaxed)), u128::from(positive.load(Ordering::Relaxed)));
            // Twice the correctly ordered pairs; a tie counts half.
            ordered += p * (2 * negatives + n);
            negatives += n;
            positives += p;
        }
        let pairs = 2 * negatives * positives;
        (pairs > 0).then(|| ordered as f64 / pairs as f64)
    }
}

#[cfg(test)]
mod tests;
