//! The update of tables on one GPU, by every rule, bit by bit as the CPU's.
//!
//! Gradients are small multiples of a power of two, so that their sums are exact in any order: what is left is the
//! arithmetic of rules, which must be the CPU's.

use std::sync::Arc;

use half::bf16;
use libtest_mimic::{Failed, Trial};
use rankine_cuda::kernels::{Element, Rate};
use rankine_cuda::{Buffer, Device, Lane};
use rankine_embedding::cpu::{self, Bags, FeatureSlot, Route, Table};
use rankine_embedding::cuda::{Feature, Hotness, Ids, Layout, LocalTables};
use rankine_embedding::{Optimizer, Pooling, Step, TableSpec, UpdateRule};

use super::{CASES, Outcome, Words};

const RULES: [UpdateRule; 9] = [
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

type Body = fn(&mut Words) -> Outcome;

pub(crate) fn trials(seed: u64) -> Vec<Trial> {
    let bodies: [(&str, u64, Body); 5] = [
        ("tables_learn_as_on_the_cpu_in_f32", CASES, tables_learn_as_on_the_cpu::<f32>),
        ("tables_learn_as_on_the_cpu_in_bf16", CASES, tables_learn_as_on_the_cpu::<bf16>),
        ("rows_of_every_rule_and_width_learn", 1, rows_of_every_rule_and_width_learn),
        ("rows_that_all_samples_name_learn", CASES, rows_that_all_samples_name_learn),
        ("updates_have_the_same_bits_each_time", CASES, updates_have_the_same_bits_each_time),
    ];
    let trial = |(name, cases, body): (&str, u64, Body)| {
        Trial::test(name, move || {
            (0..cases).try_for_each(|case| {
                body(&mut Words { seed: seed ^ case << 32, next: 0 }).map_err(|failed| {
                    let what = failed.message().unwrap_or_default();
                    format!("seed {seed}, case {case}: {what}").into()
                })
            })
        })
    };
    bodies.into_iter().map(trial).collect()
}

/// Tables with the features that look them up.
struct Case {
    samples: usize,
    stride: usize,
    tables: Vec<(TableSpec, Optimizer)>,
    columns: Vec<Hotness>,
    features: Vec<Feature>,
    seed: u64,
}

/// Ids of a column: of each sample.
type Column = Vec<Vec<u64>>;

impl Case {
    /// `tables` of so many rows and elements, learning by a rule each; some have weight decay.
    fn new(words: &mut Words, samples: usize, tables: &[(u64, usize, UpdateRule)], features: usize) -> Self {
        let table = |(number, &(rows, dim, rule)): (usize, &(u64, usize, UpdateRule))| {
            let weight_decay = words.one_of(&[0.0, 0.01]);
            let spec = TableSpec { name: format!("t{number}"), rows, dim };
            (spec, Optimizer { rule, learning_rate: 0.125, weight_decay })
        };
        let tables: Vec<_> = tables.iter().enumerate().map(table).collect();
        let gap = words.one_of(&[0, 4, 8]);
        let mut stride = gap;
        let mut feature = |number: usize| {
            let table = number % tables.len();
            let place = stride;
            stride += tables[table].0.dim.next_multiple_of(4) + gap;
            Feature { column: number, table, place, pooling: Pooling::Sum }
        };
        let features: Vec<_> = (0..features).map(&mut feature).collect();
        let columns = features.iter().map(|_| Hotness::Fixed(1)).collect();
        Self { samples, stride, tables, columns, features, seed: words.below(1 << 40) }
    }

    fn on_gpu(&self, device: &Arc<Device>, lane: &Lane) -> Result<LocalTables, Failed> {
        let (specs, optimizers): (Vec<_>, Vec<_>) = self.tables.iter().cloned().unzip();
        let layout = Layout::new(1, self.samples, self.stride, &specs, &self.columns, &self.features)?;
        let layout = layout.with_optimizers(&optimizers);
        Ok(LocalTables::initialized(device, layout, lane, self.seed, specs.len())?)
    }

    fn on_cpu(&self) -> Vec<Table> {
        let tables = self.tables.iter().enumerate();
        let of = |(number, (table, optimizer)): (usize, &(TableSpec, Optimizer))| {
            Table::initialized(table.clone(), *optimizer, self.seed, number as u32)
        };
        tables.map(of).collect()
    }

    /// Ids of a batch, from every row alike to almost all look-ups of one row.
    fn ids(&self, words: &mut Words) -> Vec<Column> {
        let of = |feature: &Feature| {
            let (rows, skew) = (self.tables[feature.table].0.rows as f64, words.one_of(&[1, 4, 30]));
            let bag = |_| vec![(words.unit().powi(skew) * rows) as u64];
            (0..self.samples).map(bag).collect()
        };
        self.features.iter().map(of).collect()
    }

    /// Gradients whose sums are exact in any order; between the vectors lies what nothing may read.
    fn exact_gradients<T: Element>(&self, words: &mut Words) -> Vec<T> {
        let number = |_| T::of((words.below(63) as f32 - 31.0) / 64.0);
        self.gradients((0..self.samples * self.stride).map(number).collect())
    }

    fn gradients<T: Element>(&self, mut numbers: Vec<T>) -> Vec<T> {
        for numbers in numbers.chunks_exact_mut(self.stride) {
            let mut of_feature = vec![false; self.stride];
            for feature in &self.features {
                of_feature[feature.place..][..self.tables[feature.table].0.dim].fill(true);
            }
            let between = numbers.iter_mut().zip(of_feature).filter(|(_, of_feature)| !of_feature);
            between.for_each(|(number, _)| *number = T::of(f32::NAN));
        }
        numbers
    }

    fn update_on_cpu<T: Element>(&self, tables: &mut [Table], ids: &[Column], gradients: &[T], step: Step) {
        let gradients: Vec<f32> = gradients.iter().map(|gradient| gradient.value()).collect();
        let flat = |column: &Column| {
            let ends = column.iter().scan(0, |end, bag| {
                *end += bag.len() as u32;
                Some(*end)
            });
            (std::iter::once(0).chain(ends).collect::<Vec<u32>>(), column.concat())
        };
        let flat: Vec<_> = ids.iter().map(flat).collect();
        for (number, table) in tables.iter_mut().enumerate() {
            let features = self.features.iter().filter(|feature| feature.table == number);
            let features: Vec<_> = features
                .map(|feature| cpu::Feature {
                    bags: Bags { offsets: &flat[feature.column].0, ids: &flat[feature.column].1 },
                    pooling: feature.pooling,
                    slot: FeatureSlot { stride: self.stride, offset: feature.place },
                })
                .collect();
            if features.is_empty() {
                continue;
            }
            let mut route = Route::default();
            route.build(&features, table.spec().rows);
            table.update(&route, &features, &gradients, step);
        }
    }
}

/// Tables on a GPU, with what a step takes.
struct OnGpu<'a> {
    case: &'a Case,
    device: Arc<Device>,
    lane: Lane,
    tables: LocalTables,
}

impl<'a> OnGpu<'a> {
    fn new(case: &'a Case) -> Result<Self, Failed> {
        let device = Device::open(0)?;
        let lane = Lane::new(&device)?;
        Ok(Self { case, tables: case.on_gpu(&device, &lane)?, device, lane })
    }

    fn update<T: Element>(&self, ids: &[Column], gradients: &[T], step: Step, stop: u32) -> Outcome {
        let ids: Vec<u32> = ids.iter().flatten().flatten().map(|&id| id as u32).collect();
        let rates = self.case.tables.iter().map(|(_, optimizer)| Rate::from(optimizer.at(step)));
        let ids = Buffer::of(&self.device, &ids)?;
        let offsets = Buffer::of(&self.device, &[0u32])?;
        let samples = Buffer::of(&self.device, &[self.case.samples as u32])?;
        // As the loss of fp16 is scaled: without rounding.
        let scaled: Vec<_> = gradients.iter().map(|gradient| T::of(4.0 * gradient.value())).collect();
        let (gradients, scale) = (Buffer::of(&self.device, &scaled)?, Buffer::of(&self.device, &[0.25f32])?);
        let rates = Buffer::of(&self.device, &rates.collect::<Vec<_>>())?;
        let stop = Buffer::of(&self.device, &[stop])?;
        let of_batch = Ids { ids: ids.pointer(), offsets: offsets.pointer(), samples: samples.pointer() };
        // SAFETY: the buffers have what the layout says, and live until the lane has been waited for.
        unsafe {
            self.tables.route(&self.lane, of_batch)?;
            let (gradients, rates) = (gradients.pointer(), rates.pointer());
            let told = (scale.pointer(), stop.pointer());
            self.tables.update(&self.lane, of_batch, gradients, rates, told)?;
        }
        Ok(self.tables.check(&self.lane)?)
    }

    /// All weights, table by table and row by row.
    fn weights(&self) -> Result<Vec<Vec<f32>>, Failed> {
        let mut rows = Vec::new();
        self.tables.try_for_each_row(
            &self.lane,
            |row| {
                rows.push(row.to_vec());
                Ok(())
            },
            Failed::from,
        )?;
        Ok(rows)
    }

    fn compare(&self, tables: &[Table], number: u64) -> Outcome {
        let rows = tables.iter().flat_map(|table| (0..table.spec().rows).map(move |row| (table, row)));
        for (have, (table, row)) in self.weights()?.iter().zip(rows) {
            let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
            if let Some(column) = have.iter().zip(table.weights(row)).position(differs) {
                let (name, have, expected) = (&table.spec().name, have[column], table.weights(row)[column]);
                let place = format!("step {number}, table {name}, row {row}, column {column}");
                let of = self.case.tables.iter().find(|(spec, _)| &spec.name == name);
                return Err(format!("{place}: {have}, not {expected}: {of:?}").into());
            }
        }
        Ok(())
    }
}

/// Trains on the GPU and on the CPU; of some steps nothing may be written.
fn learn<T: Element>(case: &Case, words: &mut Words, steps: u64) -> Outcome {
    let (gpu, mut cpu) = (OnGpu::new(case)?, case.on_cpu());
    for number in 1..=steps {
        let (ids, gradients) = (case.ids(words), case.exact_gradients::<T>(words));
        let step = Step { number, rate_factor: 1.0 / number as f64 };
        if words.below(10) == 0 {
            gpu.update(&ids, &gradients, step, 1)?;
            continue;
        }
        gpu.update(&ids, &gradients, step, 0)?;
        case.update_on_cpu(&mut cpu, &ids, &gradients, step);
        if number == 1 || number == steps {
            gpu.compare(&cpu, number)?;
        }
    }
    Ok(())
}

fn random_case(words: &mut Words) -> Case {
    let widest = words.one_of(&[4, 16, 64, 128, 128, 256, 1024]);
    let table = |_: u64| {
        let dim = words.one_of(&[1, 3, 4, 16, 20, 64, 100, 128, 132, 256, 512, 1000, 1024]);
        (words.one_of(&[1, 3, 40, 2_000]), widest.min(dim), words.one_of(&RULES))
    };
    let tables: Vec<_> = (0..4).map(table).collect();
    let tables = &tables[..1 + words.below(4) as usize];
    let samples = words.one_of(&[1, 2, 63, 64, 65, 300]);
    let features = tables.len() + words.below(3) as usize;
    Case::new(words, samples, tables, features)
}

fn tables_learn_as_on_the_cpu<T: Element>(words: &mut Words) -> Outcome {
    learn::<T>(&random_case(words), words, STEPS)
}

fn rows_of_every_rule_and_width_learn(words: &mut Words) -> Outcome {
    for dim in [1, 4, 13, 16, 17, 64, 99, 128, 200, 256, 700, 1024] {
        let tables = RULES.map(|rule| (50, dim, rule));
        let case = Case::new(words, 100, &tables, tables.len());
        learn::<f32>(&case, words, 4)?;
        learn::<bf16>(&case, words, 4)?;
    }
    Ok(())
}

fn rows_that_all_samples_name_learn(words: &mut Words) -> Outcome {
    let dim = words.one_of(&[4, 16, 48, 128]);
    let rows = words.one_of(&[[1, 1, 1], [1, 2, 1], [3, 1, 900]]);
    let tables: Vec<_> = rows.iter().map(|&rows| (rows, dim, words.one_of(&RULES))).collect();
    let samples = words.one_of(&[511, 512, 513, 4096, 30_000]);
    let case = Case::new(words, samples, &tables, 5);
    learn::<bf16>(&case, words, 3)
}

fn updates_have_the_same_bits_each_time(words: &mut Words) -> Outcome {
    let mut case = random_case(words);
    case.samples = words.one_of(&[65, 1000, 4097]);
    let ids: Vec<_> = (0..3).map(|_| case.ids(words)).collect();
    let numbers = (0..case.samples * case.stride).map(|_| words.unit() as f32 - 0.5);
    let gradients = case.gradients(numbers.collect());
    let mut first = None;
    for _ in 0..2 {
        let gpu = OnGpu::new(&case)?;
        for (number, ids) in (1..).zip(&ids) {
            gpu.update(ids, &gradients, Step { number, rate_factor: 1.0 }, 0)?;
        }
        let bits: Vec<_> = gpu.weights()?.concat().into_iter().map(f32::to_bits).collect();
        if first.get_or_insert_with(|| bits.clone()) != &bits {
            return Err("the second time has other bits".into());
        }
    }
    Ok(())
}
