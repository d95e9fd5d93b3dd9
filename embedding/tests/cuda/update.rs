//! Updates of tables on one GPU are bitwise equal to the CPU's, for every rule.
//!
//! Gradients are small multiples of a power of two, so that their sums are exact in any order: what remains is the
//! rules' arithmetic, which must equal the CPU's.

use std::collections::BTreeSet;

use half::{bf16, f16};
use libtest_mimic::Failed;
use rankine_cuda::Buffer;
use rankine_cuda::kernels::{self, Element, Rate};
use rankine_embedding::cpu::{self, FeatureSlot, Route, Table};
use rankine_embedding::cuda::{Feature, Hotness, InitialWeights, Layout, LocalTables, UpdateInputs};
use rankine_embedding::rows::{RowSelection, Rows, gather};
use rankine_embedding::{Dtype, Optimizer, Pooling, Step, TableSpec, UpdateRule};

use super::local::{Column, DeviceIds};
use super::{Bench, Body, CASES, Outcome, Random};

pub(crate) const RULES: [UpdateRule; 9] = [
    UpdateRule::Sgd,
    UpdateRule::Momentum { momentum: 0.9, nesterov: false },
    UpdateRule::Momentum { momentum: 0.9, nesterov: true },
    UpdateRule::Adagrad { initial_accumulator: 0.0, epsilon: 1e-8 },
    UpdateRule::Adagrad { initial_accumulator: 0.1, epsilon: 1e-3 },
    UpdateRule::RowwiseAdagrad { initial_accumulator: 0.1, epsilon: 1e-3 },
    UpdateRule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
    UpdateRule::Ftrl { beta: 0.5, l1: 1e-3, l2: 0.0 },
    UpdateRule::Ftrl { beta: 1.0, l1: 0.0, l2: 0.2 },
];
const STEPS: u64 = 50;
const DTYPES: [Dtype; 3] = [Dtype::Fp32, Dtype::Bf16, Dtype::Fp16];
/// Weights of which the first 1, 2, 4 and 8 add up to a power of two.
const MEAN_WEIGHTS: [f32; 8] = [1.0, 3.0, 2.0, 2.0, 8.0, 4.0, 4.0, 8.0];
const POOLINGS: [Pooling; 2] = [Pooling::Sum, Pooling::Mean];
pub(crate) const KINDS: [Hotness; 4] =
    [Hotness::Fixed(1), Hotness::Fixed(3), Hotness::Fixed(4), Hotness::Ragged { max: 8 }];

pub(crate) const BODIES: &[Body] = &[
    ("tables_learn_as_on_the_cpu_in_f32", CASES, tables_learn_as_on_the_cpu::<f32>),
    ("tables_learn_as_on_the_cpu_in_bf16", CASES, tables_learn_as_on_the_cpu::<bf16>),
    ("rows_of_every_rule_and_width_learn", 1, rows_of_every_rule_and_width_learn),
    ("rows_that_all_samples_name_learn", CASES, rows_that_all_samples_name_learn),
    ("updates_have_the_same_bits_each_time", CASES, updates_have_the_same_bits_each_time),
    ("tables_learn_with_weights_in_f32", CASES, tables_learn_with_weights::<f32>),
    ("tables_learn_with_weights_in_bf16", CASES, tables_learn_with_weights::<bf16>),
    ("tables_learn_with_weights_in_f16", CASES, tables_learn_with_weights::<f16>),
    ("rows_that_all_samples_name_learn_with_weights", CASES, rows_that_all_samples_name_learn_with_weights),
    (
        "updates_with_weights_have_the_same_bits_each_time",
        CASES,
        updates_with_weights_have_the_same_bits_each_time,
    ),
];

/// Tables with their optimizers, and columns that look them up.
pub(crate) struct Case {
    pub(crate) layout: Layout,
    pub(crate) optimizers: Vec<Optimizer>,
    pub(crate) stride: usize,
    pub(crate) seed: u64,
    /// Whether the weights of ids have as few bits as can be, so that more than sums of gradients is exact.
    pub(crate) has_plain_weights: bool,
}

impl Case {
    /// Tables with the given rows and elements, each learning by its own rule, some with weight decay; and features
    /// that look them up in turn, each in one of a few columns.
    pub(crate) fn new(
        words: &mut Random,
        samples: usize,
        tables: &[(u64, usize, UpdateRule)],
        features: usize,
        kinds: &[Hotness],
    ) -> Result<Self, Failed> {
        Self::of(words, samples, tables, (features, kinds, false))
    }

    /// The same, perhaps with weights in most of the columns that can have some.
    fn of(
        words: &mut Random,
        samples: usize,
        tables: &[(u64, usize, UpdateRule)],
        (features, kinds, has_weights): (usize, &[Hotness], bool),
    ) -> Result<Self, Failed> {
        let optimizer = |&(_, _, rule): &(u64, usize, UpdateRule)| {
            let weight_decay = words.one_of(&[0.0, 0.01]);
            Optimizer { rule, learning_rate: 0.125, weight_decay }
        };
        let optimizers: Vec<_> = tables.iter().map(optimizer).collect();
        let spec = |(number, &(rows, dim, _)): (usize, &(u64, usize, UpdateRule))| TableSpec {
            name: format!("t{number}"),
            rows,
            dim,
            dtype: words.one_of(&DTYPES),
            dynamic: None,
        };
        let specs: Vec<_> = tables.iter().enumerate().map(spec).collect();
        let columns: Vec<_> = (0..features.div_ceil(2)).map(|_| words.one_of(kinds)).collect();
        let mut is_weighted =
            |column: &Hotness| has_weights && matches!(column, Hotness::Ragged { .. }) && words.below(6) > 0;
        let weighted: Vec<_> = columns.iter().map(&mut is_weighted).collect();
        let of_columns: Vec<_> = columns.iter().map(|_| words.one_of(&POOLINGS)).collect();
        let gap = words.one_of(&[0, 4, 8]);
        let mut stride = gap;
        let feature = |number: usize| {
            let (column, table, vector_offset) = (number / 2, number % tables.len(), stride);
            stride += specs[table].dim.next_multiple_of(4) + gap;
            // A third of a number cannot be summed exactly.
            let pooling = match columns[column] {
                Hotness::Fixed(3) => Pooling::Sum,
                // A column's factors follow from one pooling.
                _ if weighted[column] => of_columns[column],
                _ => words.one_of(&POOLINGS),
            };
            Feature { column, table, vector_offset, pooling }
        };
        let features: Vec<_> = (0..features).map(feature).collect();
        let layout = Layout::new(1, samples, stride, &specs, &columns, &features)?.with_weights(&weighted)?;
        let (layout, seed) = (layout.with_optimizers(&optimizers), words.below(1 << 40));
        Ok(Self { layout, optimizers, stride, seed, has_plain_weights: false })
    }

    pub(crate) fn on_cpu(&self) -> Vec<Table> {
        let tables = self.layout.tables().iter().zip(&self.optimizers).enumerate();
        let of = |(number, (table, &optimizer)): (usize, (&TableSpec, &Optimizer))| {
            Table::initialized(table.clone(), optimizer, self.seed, number as u32)
        };
        tables.map(of).collect()
    }

    /// The ids of a batch, which may have fewer samples than fit: from uniform rows to almost all look-ups of one
    /// row.
    pub(crate) fn batch(&self, words: &mut Random) -> Vec<Column> {
        let all = self.layout.samples();
        let samples = words.one_of(&[all, all, all.div_ceil(2)]);
        let column = |(number, hotness): (usize, &Hotness)| {
            let features = self.layout.features().iter().filter(|feature| feature.column == number);
            let rows = features.map(|feature| self.layout.tables()[feature.table].rows).min().unwrap_or(1);
            let skew = words.one_of(&[1, 4, 30]);
            let mut offsets = vec![0];
            for sample in 0..samples {
                let size = match *hotness {
                    Hotness::Fixed(ids) => ids as u32,
                    Hotness::Ragged { .. } => words.one_of(&[0, 1, 2, 4, 8]),
                };
                offsets.push(offsets[sample] + size);
            }
            let ids = (0..offsets[samples]).map(|_| (words.unit().powi(skew) * rows as f64) as u64).collect();
            let feature = self.layout.features().iter().find(|feature| feature.column == number);
            let pooling = feature.map_or(Pooling::Sum, |feature| feature.pooling);
            let weights = self.layout.is_weighted(number).then(|| {
                let of_bag = |bag: &[u32]| self.exact_weights(words, pooling, (bag[1] - bag[0]) as usize);
                offsets.windows(2).flat_map(of_bag).collect()
            });
            Column { offsets, ids, weights }
        };
        self.layout.columns().iter().enumerate().map(column).collect()
    }

    /// Weights of a bag whose factors have few bits: sums have few different weights, and the weights of a mean add up
    /// to a power of two.
    fn exact_weights(&self, words: &mut Random, pooling: Pooling, ids: usize) -> Vec<f32> {
        match (pooling, self.has_plain_weights) {
            (Pooling::Sum, false) => (0..ids).map(|_| words.one_of(&[0.25, 0.5, 1.0, 2.0, 3.0])).collect(),
            (Pooling::Sum, true) => (0..ids).map(|_| words.one_of(&[0.5, 1.0])).collect(),
            (Pooling::Mean, true) => vec![words.one_of(&[0.1, 3.0]); ids],
            (Pooling::Mean, false) => {
                let (mut weights, scale) =
                    (MEAN_WEIGHTS[..ids].to_vec(), words.one_of(&[0.125, 1.0, 1024.0]));
                weights.iter_mut().for_each(|weight| *weight *= scale);
                let turn = words.below(ids.max(1) as u64) as usize;
                weights.rotate_left(turn);
                weights
            }
        }
    }

    /// The rows that a batch looks up, each with its table.
    pub(crate) fn named(&self, batch: &[Column]) -> Vec<(usize, u64)> {
        let of =
            |&Feature { column, table, .. }: &Feature| batch[column].ids.iter().map(move |&id| (table, id));
        self.layout.features().iter().flat_map(of).collect()
    }

    /// Gradients whose sums are exact in any order.
    pub(crate) fn exact_gradients<T: Element>(&self, words: &mut Random) -> Vec<T> {
        let number = |_| T::of((words.below(63) as f32 - 31.0) / 64.0);
        self.with_gaps((0..self.layout.elements()).map(number).collect())
    }

    /// Gradients of which the sums of the squares of a row's sums are exact in any order, too: few are not zero, so
    /// that the sums have few bits even if thousands of look-ups are of one row.
    pub(crate) fn exact_to_squares<T: Element>(&self, words: &mut Random) -> Vec<T> {
        let number = |_| match words.below(128) {
            0 => T::of(1.0 / 64.0),
            1 => T::of(-1.0 / 64.0),
            _ => T::of(0.0),
        };
        self.with_gaps((0..self.layout.elements()).map(number).collect())
    }

    /// Poisons the gaps between the vectors, which nothing may read.
    pub(crate) fn with_gaps<T: Element>(&self, mut gradients: Vec<T>) -> Vec<T> {
        let mut of_feature = vec![false; self.stride];
        for feature in self.layout.features() {
            of_feature[feature.vector_offset..][..self.layout.tables()[feature.table].dim].fill(true);
        }
        for sample in gradients.chunks_exact_mut(self.stride) {
            let between = sample.iter_mut().zip(&of_feature).filter(|(_, of_feature)| !**of_feature);
            between.for_each(|(number, _)| *number = T::of(f32::NAN));
        }
        gradients
    }

    fn update_on_cpu<T: Element>(&self, tables: &mut [Table], batch: &[Column], gradients: &[T], step: Step) {
        let gradients: Vec<f32> = gradients.iter().map(|gradient| gradient.value()).collect();
        for (number, table) in tables.iter_mut().enumerate() {
            let features = self.layout.features().iter().filter(|feature| feature.table == number);
            let of = |feature: &Feature| cpu::Feature {
                bags: batch[feature.column].bags(),
                pooling: feature.pooling,
                slot: FeatureSlot { stride: self.stride, offset: feature.vector_offset },
            };
            let features: Vec<_> = features.map(of).collect();
            if !features.is_empty() {
                let mut route = Route::default();
                route.build(&features, table.spec().rows);
                table.update(&route, &features, &gradients, step);
            }
        }
    }
}

/// Tables on a GPU, with a step's parameters.
struct OnGpu<'a> {
    case: &'a Case,
    bench: &'a Bench,
    tables: LocalTables,
}

impl<'a> OnGpu<'a> {
    fn new(bench: &'a Bench, case: &'a Case) -> Result<Self, Failed> {
        let (layout, drawn) = (case.layout.clone(), case.layout.tables().len());
        let mut tables = LocalTables::initialized(
            &bench.device,
            layout,
            &bench.lane,
            InitialWeights { seed: case.seed, drawn },
        )?;
        tables.track_updates()?;
        Ok(Self { case, bench, tables })
    }

    fn update<T: Element>(&self, batch: &[Column], gradients: &[T], step: Step, stop: u32) -> Outcome {
        let Bench { device, lane } = self.bench;
        let rates = self.case.optimizers.iter().map(|optimizer| Rate::from(optimizer.at(step)));
        let ids = DeviceIds::new(self.bench, &self.case.layout, batch)?;
        // Scaled without rounding, as the loss of fp16 is.
        let scaled: Vec<_> = gradients.iter().map(|gradient| T::of(4.0 * gradient.value())).collect();
        let (gradients, scale) = (Buffer::of(device, &scaled)?, Buffer::of(device, &[0.25f32])?);
        let stop = Buffer::of(device, &[stop])?;
        let rates = Buffer::of(device, &rates.collect::<Vec<_>>())?;
        let at = Buffer::of(device, &[kernels::Step { number: step.number, ..Default::default() }])?;
        // SAFETY: the buffers have the sizes that the layout says, and live until the lane has been waited for.
        unsafe {
            self.tables.route(lane, ids.ids())?;
            let inputs = UpdateInputs {
                rates: rates.pointer(),
                step: at.pointer(),
                scale: scale.pointer(),
                stop: stop.pointer(),
            };
            self.tables.update(lane, ids.ids(), gradients.pointer(), inputs)?;
        }
        Ok(self.tables.check(lane)?)
    }

    /// All weights, table by table and row by row.
    fn weights(&self) -> Result<Vec<Vec<f32>>, Failed> {
        let mut rows = Vec::new();
        for (number, table) in self.case.layout.tables().iter().enumerate() {
            let mut weights = vec![0.0; table.rows as usize * table.dim];
            gather(
                &self.tables.rows(&self.bench.lane),
                number,
                0..table.rows,
                false,
                (table.dim, &mut weights),
            )?;
            rows.extend(weights.chunks_exact(table.dim).map(<[f32]>::to_vec));
        }
        Ok(rows)
    }

    fn compare(&self, tables: &[Table], number: u64) -> Outcome {
        let rows = tables.iter().flat_map(|table| (0..table.spec().rows).map(move |row| (table, row)));
        for (have, (table, row)) in self.weights()?.iter().zip(rows) {
            let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
            if let Some(column) = have.iter().zip(table.weights(row)).position(differs) {
                let (name, have, expected) = (&table.spec().name, have[column], table.weights(row)[column]);
                let element = format!("step {number}, table {name}, row {row}, column {column}");
                return Err(format!("{element}: {have}, not {expected}: {:?}", self.case.layout).into());
            }
        }
        Ok(())
    }
}

/// Trains on the GPU and on the CPU; some steps must not be applied.
fn learn<T: Element>(bench: &Bench, case: &Case, words: &mut Random, steps: u64) -> Outcome {
    let (gpu, mut cpu) = (OnGpu::new(bench, case)?, case.on_cpu());
    let mut named = BTreeSet::new();
    for number in 1..=steps {
        let (batch, gradients) = (case.batch(words), case.exact_gradients::<T>(words));
        let step = Step { number, rate_factor: 1.0 / number as f64 };
        if words.below(10) == 0 {
            gpu.update(&batch, &gradients, step, 1)?;
            continue;
        }
        gpu.update(&batch, &gradients, step, 0)?;
        case.update_on_cpu(&mut cpu, &batch, &gradients, step);
        named.extend(case.named(&batch));
        if number == 1 || number == steps {
            gpu.compare(&cpu, number)?;
        }
    }
    let rows = gpu.tables.rows(&bench.lane);
    if updated(&rows)? == named { Ok(()) } else { Err("other rows are reported as updated".into()) }
}

/// The rows that a rank is responsible for and that are recorded as updated, each with its table.
pub(crate) fn updated(rows: &dyn Rows) -> Result<BTreeSet<(usize, u64)>, Failed> {
    let mut found = BTreeSet::new();
    for RowSelection { part, positions } in RowSelection::touched(rows)?.ok_or("no book was kept")? {
        let part = &rows.parts()[part];
        found.extend(positions.iter().map(|position| (part.table, part.rows.row(position))));
    }
    Ok(found)
}

pub(crate) fn random_case(words: &mut Random, samples: &[usize]) -> Result<Case, Failed> {
    any_case(words, samples, (&KINDS, false))
}

/// The same with weights in most of the columns.
pub(crate) fn weighted_case(words: &mut Random, samples: &[usize]) -> Result<Case, Failed> {
    let ragged = Hotness::Ragged { max: 8 };
    any_case(words, samples, (&[Hotness::Fixed(1), Hotness::Fixed(4), ragged, ragged, ragged], true))
}

fn any_case(
    words: &mut Random,
    samples: &[usize],
    (kinds, has_weights): (&[Hotness], bool),
) -> Result<Case, Failed> {
    let widest = words.one_of(&[4, 16, 64, 128, 128, 256, 1024]);
    let table = |_: u64| {
        let dim = words.one_of(&[1, 3, 4, 16, 20, 64, 100, 128, 132, 256, 512, 1000, 1024]);
        (words.one_of(&[1, 3, 40, 2_000]), widest.min(dim), words.one_of(&RULES))
    };
    let tables: Vec<_> = (0..4).map(table).collect();
    let tables = &tables[..1 + words.below(4) as usize];
    let features = tables.len() + words.below(3) as usize;
    let samples = words.one_of(samples);
    Case::of(words, samples, tables, (features, kinds, has_weights))
}

fn tables_learn_as_on_the_cpu<T: Element>(bench: &Bench, words: &mut Random) -> Outcome {
    let case = random_case(words, &[1, 2, 63, 64, 65, 300])?;
    learn::<T>(bench, &case, words, STEPS)
}

fn tables_learn_with_weights<T: Element>(bench: &Bench, words: &mut Random) -> Outcome {
    let case = weighted_case(words, &[1, 2, 63, 64, 65, 300])?;
    learn::<T>(bench, &case, words, STEPS)
}

fn rows_that_all_samples_name_learn_with_weights(bench: &Bench, words: &mut Random) -> Outcome {
    let dim = words.one_of(&[4, 16, 48, 128]);
    let rows = words.one_of(&[[1, 1, 1], [1, 2, 1], [3, 1, 900]]);
    let tables = rows.map(|rows| (rows, dim, words.one_of(&RULES)));
    let samples = words.one_of(&[511, 512, 513, 2_000]);
    let mut case = Case::of(words, samples, &tables, (5, &[Hotness::Ragged { max: 8 }], true))?;
    // Thousands of look-ups of a row are added up.
    case.has_plain_weights = true;
    learn::<bf16>(bench, &case, words, 3)
}

fn rows_of_every_rule_and_width_learn(bench: &Bench, words: &mut Random) -> Outcome {
    for dim in [1, 4, 13, 16, 17, 64, 99, 128, 200, 256, 700, 1024] {
        let tables = RULES.map(|rule| (50, dim, rule));
        let case = Case::new(words, 100, &tables, tables.len(), &KINDS)?;
        learn::<f32>(bench, &case, words, 4)?;
        learn::<bf16>(bench, &case, words, 4)?;
    }
    Ok(())
}

fn rows_that_all_samples_name_learn(bench: &Bench, words: &mut Random) -> Outcome {
    let dim = words.one_of(&[4, 16, 48, 128]);
    let rows = words.one_of(&[[1, 1, 1], [1, 2, 1], [3, 1, 900]]);
    let tables = rows.map(|rows| (rows, dim, words.one_of(&RULES)));
    let samples = words.one_of(&[511, 512, 513, 4096, 30_000]);
    let case = Case::new(words, samples, &tables, 5, &[Hotness::Fixed(1)])?;
    learn::<bf16>(bench, &case, words, 3)
}

fn updates_have_the_same_bits_each_time(bench: &Bench, words: &mut Random) -> Outcome {
    let case = random_case(words, &[65, 1000, 4097])?;
    have_the_same_bits(bench, words, &case)
}

fn updates_with_weights_have_the_same_bits_each_time(bench: &Bench, words: &mut Random) -> Outcome {
    let case = weighted_case(words, &[65, 1000, 4097])?;
    have_the_same_bits(bench, words, &case)
}

fn have_the_same_bits(bench: &Bench, words: &mut Random, case: &Case) -> Outcome {
    let batches: Vec<_> = (0..3).map(|_| case.batch(words)).collect();
    let numbers = (0..case.layout.elements()).map(|_| words.unit() as f32 - 0.5);
    let gradients = case.with_gaps(numbers.collect());
    let mut first = None;
    for _ in 0..2 {
        let gpu = OnGpu::new(bench, case)?;
        for (number, batch) in (1..).zip(&batches) {
            gpu.update(batch, &gradients, Step { number, rate_factor: 1.0 }, 0)?;
        }
        let bits: Vec<_> = gpu.weights()?.concat().into_iter().map(f32::to_bits).collect();
        if first.get_or_insert_with(|| bits.clone()) != &bits {
            return Err("the second run has other bits".into());
        }
    }
    Ok(())
}
