//! Compares tables on one GPU with the CPU's: look-ups and routes of columns of every kind.

use half::{bf16, f16};
use rankine_cuda::kernels::{
    Element, FP8_MULTIPLE, Fp8Scaling, Fp8Vectors, LookUpFp8, Pair, Vectors, transposed_position,
};
use rankine_cuda::{Buffer, E4m3};
use rankine_embedding::cpu::{self, Bags, FeatureSlot, Route, RowWeights, Table};
use rankine_embedding::cuda::{
    Error, Feature, Hotness, Ids, InitialWeights, Layout, LocalRouteSnapshot, LocalTables, LookUpCounts,
};
use rankine_embedding::random::UniformField;
use rankine_embedding::rows::gather;
use rankine_embedding::{Dtype, Optimizer, Pooling, TableSpec};

use super::{Bench, Body, CASES, Outcome, Random};

pub(crate) const BODIES: &[Body] = &[
    ("first_weights_are_the_cpus_or_zeros", CASES, first_weights_are_the_cpus_or_zeros),
    ("vectors_are_the_pooled_rows_in_f32", 2 * CASES, vectors_are_the_pooled_rows::<f32>),
    ("vectors_are_the_pooled_rows_in_bf16", 2 * CASES, vectors_are_the_pooled_rows::<bf16>),
    ("vectors_in_fp8_are_those_in_bf16_rounded", 2 * CASES, vectors_in_fp8_are_those_in_bf16_rounded),
    ("vectors_are_the_weighted_rows_in_f32", 2 * CASES, vectors_are_the_weighted_rows::<f32>),
    ("vectors_are_the_weighted_rows_in_bf16", 2 * CASES, vectors_are_the_weighted_rows::<bf16>),
    ("vectors_are_the_weighted_rows_in_f16", 2 * CASES, vectors_are_the_weighted_rows::<f16>),
    (
        "weighted_vectors_in_fp8_are_those_in_bf16_rounded",
        2 * CASES,
        weighted_vectors_in_fp8_are_those_in_bf16_rounded,
    ),
    ("routes_with_weights_are_the_cpus", 4 * CASES, routes_with_weights_are_the_cpus),
    ("rows_past_two_to_the_31_elements_are_found", 1, rows_past_two_to_the_31_elements_are_found),
    ("fewer_samples_can_be_looked_up", CASES, fewer_samples_can_be_looked_up),
    ("routes_are_the_cpus", 4 * CASES, routes_are_the_cpus),
    ("routes_of_many_look_ups_are_sorted", 2, routes_of_many_look_ups_are_sorted),
    ("models_without_features_look_nothing_up", 1, models_without_features_look_nothing_up),
    ("ids_out_of_range_are_told", CASES, ids_out_of_range_are_told),
];

/// Fill value of memory that nothing may read.
const POISON: u32 = u32::MAX;

const DTYPES: [Dtype; 3] = [Dtype::Fp32, Dtype::Bf16, Dtype::Fp16];

/// A column's ids in a batch.
pub(crate) struct Column {
    pub(crate) offsets: Vec<u32>,
    pub(crate) ids: Vec<u64>,
    /// One per id, if ids have weights.
    pub(crate) weights: Option<Vec<f32>>,
}

impl Column {
    pub(crate) fn bags(&self) -> Bags<'_> {
        Bags { offsets: &self.offsets, ids: &self.ids, weights: self.weights.as_deref() }
    }

    /// The factors of the ids.
    fn factors(&self, pooling: Pooling) -> Vec<f32> {
        let of_bag = |bag| self.bags().factors(bag, pooling).expect("ids have weights");
        (0..self.bags().len()).flat_map(of_bag).collect()
    }

    /// The factor of each row of a bag.
    pub(crate) fn factors_of(&self, bag: usize, pooling: Pooling) -> Vec<f32> {
        let ids = self.bags().bag(bag).len();
        match self.bags().factors(bag, pooling) {
            Some(factors) => factors.collect(),
            None => vec![pooling.scale(ids); ids],
        }
    }
}

/// Tables, and columns that look them up.
pub(crate) struct Case {
    pub(crate) layout: Layout,
    pub(crate) seed: u64,
    /// How many tables have random initial weights; the others have zeros.
    pub(crate) drawn: usize,
}

impl Case {
    pub(crate) fn random(words: &mut Random) -> Result<Self, Error> {
        Self::of(words, false)
    }

    /// With weights in most of the columns that can have some.
    fn weighted(words: &mut Random) -> Result<Self, Error> {
        Self::of(words, true)
    }

    fn of(words: &mut Random, has_weights: bool) -> Result<Self, Error> {
        let tables: Vec<_> = (0..1 + words.below(5))
            .map(|number| {
                let rows = words.one_of(&[1, 3, 40, 500, 2_000, 70_000, 600_000]);
                let dims: &[usize] =
                    if rows > 2_000 { &[1, 3, 4, 16] } else { &[1, 4, 64, 128, 128, 132, 512] };
                TableSpec {
                    name: format!("t{number}"),
                    rows,
                    dim: words.one_of(dims),
                    dtype: words.one_of(&DTYPES),
                    dynamic: None,
                }
            })
            .collect();
        let columns: Vec<_> = (0..1 + words.below(6))
            .map(|_| match words.below(if has_weights { 4 } else { 2 }) {
                0 => Hotness::Fixed(words.one_of(&[1, 1, 2, 3, 9, 30])),
                _ => Hotness::Ragged { max: words.one_of(&[1, 4, 30]) },
            })
            .collect();
        let is_weighted = |column: &Hotness| matches!(column, Hotness::Ragged { .. }) && words.below(4) > 0;
        let weighted: Vec<_> = match has_weights {
            true => columns.iter().map(is_weighted).collect(),
            false => vec![false; columns.len()],
        };
        let (mut features, mut vector_offset) = (Vec::<Feature>::new(), 0);
        for _ in 0..columns.len() as u64 + words.below(3) {
            let table = words.below(tables.len() as u64) as usize;
            vector_offset += words.one_of(&[0, 0, 4, 12]);
            let column = features.len() % columns.len();
            let pooling = match features.get(features.len().wrapping_sub(columns.len())) {
                // A column's factors follow from one pooling.
                Some(other) if weighted[column] => other.pooling,
                _ => words.one_of(&[Pooling::Sum, Pooling::Mean]),
            };
            features.push(Feature { column, table, vector_offset, pooling });
            vector_offset += tables[table].dim.next_multiple_of(4);
        }
        let samples = words.one_of(&[1, 2, 63, 65, 700, 3_000]);
        let stride = vector_offset + words.one_of(&[0, 4]);
        let layout =
            Layout::new(1, samples, stride, &tables, &columns, &features)?.with_weights(&weighted)?;
        Ok(Self { layout, seed: words.below(1 << 60), drawn: words.below(tables.len() as u64 + 1) as usize })
    }

    pub(crate) fn tables(&self, bench: &Bench) -> Result<LocalTables, Error> {
        let weights = InitialWeights { seed: self.seed, drawn: self.drawn };
        LocalTables::initialized(&bench.device, self.layout.clone(), &bench.lane, weights)
    }

    pub(crate) fn cpu_tables(&self, optimizer: Optimizer) -> Vec<Table> {
        let of = |(number, table): (usize, &TableSpec)| match number < self.drawn {
            true => Table::initialized(table.clone(), optimizer, self.seed, number as u32),
            false => Table::zeroed(table.clone(), optimizer),
        };
        self.layout.tables().iter().enumerate().map(of).collect()
    }

    /// Ids of a batch of `samples` samples; all tables of a column have these rows.
    pub(crate) fn batch(&self, words: &mut Random, samples: usize) -> Vec<Column> {
        let column = |(number, hotness): (usize, &Hotness)| {
            let features = self.layout.features().iter().filter(|feature| feature.column == number);
            let rows = features.map(|feature| self.layout.tables()[feature.table].rows).min().unwrap_or(1);
            // From uniform rows to almost all look-ups of one row.
            let skew = words.one_of(&[1, 4, 30]);
            let mut offsets = vec![0];
            for sample in 0..samples {
                let size = match *hotness {
                    Hotness::Fixed(ids) => ids,
                    Hotness::Ragged { max } => words.below(max as u64 + 1) as usize,
                };
                offsets.push(offsets[sample] + size as u32);
            }
            let ids = (0..offsets[samples]).map(|_| (words.unit().powi(skew) * rows as f64) as u64).collect();
            // Also one that is subnormal, and one with which most shares of a mean are 0.
            let weight = |_| match words.below(50) {
                0 => 1e-40,
                1 => 1e30,
                _ => words.unit() as f32 * 3.0 + 0.01,
            };
            let is_weighted = self.layout.is_weighted(number);
            let weights = is_weighted.then(|| (0..offsets[samples]).map(weight).collect());
            Column { offsets, ids, weights }
        };
        self.layout.columns().iter().enumerate().map(column).collect()
    }

    /// The features of a batch that look up a table, with their numbers.
    pub(crate) fn cpu_features<'a>(
        &self,
        columns: &'a [Column],
        table: usize,
    ) -> (Vec<usize>, Vec<cpu::Feature<'a>>) {
        let of_table =
            self.layout.features().iter().enumerate().filter(|(_, feature)| feature.table == table);
        of_table.map(|(number, feature)| (number, self.cpu_feature(columns, feature))).unzip()
    }

    fn cpu_feature<'a>(&self, columns: &'a [Column], feature: &Feature) -> cpu::Feature<'a> {
        let stride = self.layout.elements() / self.layout.samples();
        cpu::Feature {
            bags: columns[feature.column].bags(),
            pooling: feature.pooling,
            slot: FeatureSlot { stride, offset: feature.vector_offset },
        }
    }
}

/// A batch's ids on the GPU.
pub(crate) struct DeviceIds {
    ids: Buffer<u32>,
    factors: Buffer<f32>,
    offsets: Buffer<u32>,
    samples: Buffer<u32>,
}

impl DeviceIds {
    pub(crate) fn new(bench: &Bench, layout: &Layout, columns: &[Column]) -> Result<Self, Error> {
        let (mut all_ids, mut all_offsets) = (vec![POISON; layout.ids()], vec![0; layout.offsets()]);
        let mut all_factors = vec![f32::from_bits(POISON); layout.factors()];
        for (number, column) in columns.iter().enumerate() {
            let Column { offsets, ids, weights } = column;
            if weights.is_some() {
                let feature = layout.features().iter().find(|feature| feature.column == number);
                let factors = column.factors(feature.map_or(Pooling::Sum, |feature| feature.pooling));
                all_factors[layout.factors_begin(number)..][..factors.len()].copy_from_slice(&factors);
            }
            let to = &mut all_ids[layout.ids_begin(number)..];
            to.iter_mut().zip(ids).for_each(|(to, &id)| *to = id as u32);
            if let Hotness::Ragged { .. } = layout.columns()[number] {
                let to = &mut all_offsets[layout.offsets_begin(number)..][..=layout.samples()];
                to.fill(ids.len() as u32);
                to[..offsets.len()].copy_from_slice(offsets);
            }
        }
        Ok(Self {
            ids: Buffer::of(&bench.device, &all_ids)?,
            factors: Buffer::of(&bench.device, &all_factors)?,
            offsets: Buffer::of(&bench.device, &all_offsets)?,
            samples: Buffer::of(&bench.device, &[samples_of(columns) as u32])?,
        })
    }

    pub(crate) fn ids(&self) -> Ids {
        Ids {
            ids: self.ids.pointer(),
            factors: self.factors.pointer(),
            offsets: self.offsets.pointer(),
            samples: self.samples.pointer(),
        }
    }
}

/// Number of samples in a batch with these columns.
fn samples_of(columns: &[Column]) -> usize {
    columns.first().map_or(0, |column| column.offsets.len() - 1)
}

/// Number of samples for a batch: sometimes the most that fit.
fn some_samples(words: &mut Random, layout: &Layout) -> usize {
    let (all, some) = (layout.samples(), words.below(layout.samples() as u64 + 1) as usize);
    words.one_of(&[all, all, some])
}

fn first_weights_are_the_cpus_or_zeros(bench: &Bench, words: &mut Random) -> Outcome {
    let case = Case::random(words)?;
    let tables = case.tables(bench)?;
    let expected = case.cpu_tables(Optimizer::sgd(0.1));
    let of_rows = |table: &Table| (0..table.spec().rows).map(|row| table.weights(row).to_vec()).collect();
    let expected: Vec<Vec<f32>> = expected.iter().flat_map(|table| -> Vec<_> { of_rows(table) }).collect();
    let mut found = Vec::with_capacity(expected.len());
    for (number, table) in case.layout.tables().iter().enumerate() {
        let mut weights = vec![0.0; table.rows as usize * table.dim];
        gather(&tables.rows(&bench.lane), number, 0..table.rows, false, (table.dim, &mut weights))?;
        found.extend(weights.chunks_exact(table.dim).map(<[f32]>::to_vec));
    }
    match found.iter().zip(&expected).position(|(found, expected)| found != expected) {
        None if found.len() == expected.len() => Ok(()),
        at => {
            Err(format!("{} rows of {}, the first difference is at {at:?}", found.len(), expected.len())
                .into())
        }
    }
}

/// The vectors of the first `samples` samples, and poison elsewhere.
fn expected_vectors<T: Element>(case: &Case, columns: &[Column], samples: usize) -> Vec<T> {
    let stride = case.layout.elements() / case.layout.samples();
    let mut expected = vec![poison::<T>(); samples * stride];
    let there = samples_of(columns).min(samples);
    let tables = case.cpu_tables(Optimizer::sgd(0.1));
    for feature in case.layout.features() {
        let table = &tables[feature.table];
        let dim = table.spec().dim;
        let mut pooled = vec![0.0; there * stride];
        table.pool(&case.cpu_feature(columns, feature), 0, &mut pooled);
        for sample in 0..samples {
            let to = &mut expected[sample * stride + feature.vector_offset..][..dim.next_multiple_of(4)];
            to.fill(T::of(0.0));
            if sample < there {
                let from = &pooled[sample * stride + feature.vector_offset..][..dim];
                to.iter_mut().zip(from).for_each(|(to, &from)| *to = T::of(from));
            }
        }
    }
    expected
}

/// An element with all bits set.
fn poison<T: Element>() -> T {
    bytemuck::pod_read_unaligned(&vec![0xff; size_of::<T>()])
}

fn check_vectors<T: Element>(bench: &Bench, case: &Case, columns: &[Column], samples: usize) -> Outcome {
    let tables = case.tables(bench)?;
    let ids = DeviceIds::new(bench, &case.layout, columns)?;
    let stride = case.layout.elements() / case.layout.samples();
    let vectors = Buffer::<T>::filled(&bench.device, samples * stride, 0xff)?;
    // SAFETY: the ids fit the layout, and there are as many vectors.
    unsafe { tables.look_up(&bench.lane, ids.ids(), samples, Vectors::Elements(vectors.pointer())) }?;
    let (found, expected) = (vectors.read(&bench.lane)?, expected_vectors::<T>(case, columns, samples));
    let bits = |element: &T| bytemuck::bytes_of(element).to_vec();
    match found.iter().zip(&expected).position(|(found, expected)| bits(found) != bits(expected)) {
        None => Ok(()),
        Some(at) => {
            let (sample, element, layout) = (at / stride, at % stride, &case.layout);
            let (found, expected) = (found[at], expected[at]);
            Err(format!("sample {sample}, element {element}: {found:?}, not {expected:?}: {layout:?}").into())
        }
    }
}

fn vectors_are_the_pooled_rows<T: Element>(bench: &Bench, words: &mut Random) -> Outcome {
    let case = Case::random(words)?;
    vectors_of::<T>(bench, words, &case)
}

fn vectors_are_the_weighted_rows<T: Element>(bench: &Bench, words: &mut Random) -> Outcome {
    let case = Case::weighted(words)?;
    vectors_of::<T>(bench, words, &case)
}

fn vectors_of<T: Element>(bench: &Bench, words: &mut Random, case: &Case) -> Outcome {
    let samples = some_samples(words, &case.layout);
    let columns = case.batch(words, samples);
    check_vectors::<T>(bench, case, &columns, case.layout.samples())
}

fn fewer_samples_can_be_looked_up(bench: &Bench, words: &mut Random) -> Outcome {
    let case = Case::random(words)?;
    let samples = some_samples(words, &case.layout);
    let columns = case.batch(words, samples);
    let wanted = 1 + words.below(case.layout.samples() as u64) as usize;
    check_vectors::<f32>(bench, &case, &columns, wanted)
}

/// Row by row and transposed; what no look-up writes stays poison, but the transposed matrix has zeros after the last
/// sample.
fn vectors_in_fp8_are_those_in_bf16_rounded(bench: &Bench, words: &mut Random) -> Outcome {
    fp8_vectors_of(bench, words, Case::random)
}

fn weighted_vectors_in_fp8_are_those_in_bf16_rounded(bench: &Bench, words: &mut Random) -> Outcome {
    fp8_vectors_of(bench, words, Case::weighted)
}

fn fp8_vectors_of(
    bench: &Bench,
    words: &mut Random,
    draw: impl Fn(&mut Random) -> Result<Case, Error>,
) -> Outcome {
    let is_short = |table: &TableSpec| table.dim <= LookUpFp8::DIM_MAX;
    let case = loop {
        let case = draw(words)?;
        if case.layout.tables().iter().all(is_short) {
            break case;
        }
    };
    let in_batch = some_samples(words, &case.layout);
    let columns = case.batch(words, in_batch);
    let samples = 1 + words.below(case.layout.samples() as u64) as usize;
    let stride = case.layout.elements() / case.layout.samples();
    let turned_stride = samples.next_multiple_of(FP8_MULTIPLE);
    let learns = words.below(4) > 0;
    let poison = E4m3(0xff);
    let scaling = Fp8Scaling::expecting(words.one_of(&[0.003, 1.0, 70.0]));
    let (on_gpu, ids) = (case.tables(bench)?, DeviceIds::new(bench, &case.layout, &columns)?);
    let rows = Buffer::<E4m3>::filled(&bench.device, samples * stride, 0xff)?;
    let turned = Buffer::<E4m3>::filled(&bench.device, turned_stride * stride, 0xff)?;
    let scalings = Buffer::of(&bench.device, &[scaling])?;
    let vectors = Fp8Vectors {
        rows: rows.pointer(),
        turned: turned.pointer(),
        scaling: scalings.pointer(),
        stride: stride as u32,
        turned_stride: turned_stride as u32,
        learns,
    };
    // SAFETY: the ids fit the layout, and there are as many vectors.
    unsafe { on_gpu.look_up(&bench.lane, ids.ids(), samples, Vectors::<bf16>::Fp8(vectors)) }?;
    let (rows, turned) = (rows.read(&bench.lane)?, turned.read(&bench.lane)?);
    let mut is_written = vec![false; stride];
    for feature in case.layout.features() {
        let dim = case.layout.tables()[feature.table].dim.next_multiple_of(4);
        is_written[feature.vector_offset..][..dim].fill(true);
    }
    let mut largest = 0.0f32;
    let in_bf16 = expected_vectors::<bf16>(&case, &columns, samples);
    for (column, is_written) in is_written.into_iter().enumerate() {
        for sample in 0..turned_stride {
            let expected = match (is_written, sample < samples) {
                (false, _) => poison,
                (true, false) => E4m3(0),
                (true, true) => {
                    let scaled = in_bf16[sample * stride + column].to_f32() * scaling.scale;
                    largest = largest.max(scaled.abs());
                    E4m3::of(scaled)
                }
            };
            let straight = if sample < samples { rows[sample * stride + column] } else { expected };
            let across = turned[column * turned_stride + transposed_position(sample)];
            if straight != expected || across != (if learns { expected } else { poison }) {
                let found = format!("{straight:?} and transposed {across:?}, not {expected:?}");
                let layout = &case.layout;
                return Err(format!("sample {sample}, column {column}: {found}: {learns} {layout:?}").into());
            }
        }
    }
    let expected = if learns { largest } else { 0.0 };
    let found = scalings.read(&bench.lane)?[0].largest;
    if found != expected.to_bits() {
        return Err(format!("the largest is {expected}, not {}", f32::from_bits(found)).into());
    }
    Ok(())
}

fn rows_past_two_to_the_31_elements_are_found(bench: &Bench, words: &mut Random) -> Outcome {
    let table = |rows, dim| TableSpec { name: String::new(), rows, dim, dtype: Dtype::Fp32, dynamic: None };
    let tables = [table(10_000_000, 256), table(1_000, 256)];
    let budget = bench.device.budget()?;
    if budget.free_bytes < 12 << 30 {
        eprintln!(
            "skipped: {:.1} GB of the GPU's memory are free, but 12 are needed",
            budget.free_bytes as f64 / 1e9
        );
        return Ok(());
    }
    let feature = |number| Feature {
        column: number,
        table: number,
        vector_offset: 256 * number,
        pooling: Pooling::Sum,
    };
    let columns = [Hotness::Fixed(1), Hotness::Fixed(1)];
    let layout = Layout::new(1, 1_000, 512, &tables, &columns, &[feature(0), feature(1)])?;
    let case = Case { layout, seed: words.below(1 << 60), drawn: 2 };
    let on_gpu = case.tables(bench)?;
    let mut batch = case.batch(words, 1_000);
    batch[0].ids[0] = tables[0].rows - 1;
    let ids = DeviceIds::new(bench, &case.layout, &batch)?;
    let vectors = Buffer::<f32>::filled(&bench.device, 1_000 * 512, 0xff)?;
    // SAFETY: the ids fit the layout, and there are as many vectors.
    unsafe { on_gpu.look_up(&bench.lane, ids.ids(), 1_000, Vectors::Elements(vectors.pointer())) }?;
    let found = vectors.read(&bench.lane)?;
    for (number, (table, column)) in tables.iter().zip(&batch).enumerate() {
        let field = UniformField::new(case.seed, number as u32);
        for (sample, &id) in column.ids.iter().enumerate() {
            let mut expected = [0.0; 256];
            field.fill_row(id, table.initial_bound(), &mut expected);
            if found[sample * 512 + number * 256..][..256] != expected {
                return Err(format!("row {id} of table {number} differs").into());
            }
        }
    }
    Ok(())
}

/// The expected route of a batch.
fn expected_route(case: &Case, columns: &[Column]) -> LocalRouteSnapshot {
    let layout = &case.layout;
    let mut expected = LocalRouteSnapshot { rows: Vec::new(), starts: Vec::new(), sorted: Vec::new() };
    for (table, spec) in layout.tables().iter().enumerate() {
        let (numbers, features) = case.cpu_features(columns, table);
        if features.is_empty() {
            continue;
        }
        let mut route = Route::default();
        route.build(&features, spec.rows);
        for (index, &row) in route.rows.iter().enumerate() {
            let slot = expected.rows.len() as u32;
            expected.rows.push(layout.locate(table, row).1 as u32);
            expected.starts.push(expected.sorted.len() as u32);
            expected.sorted.extend(route.bags_of(index).map(|bag| Pair {
                slot,
                bag: (numbers[bag.feature] as u32) << layout.sample_bits() | bag.sample as u32,
            }));
        }
    }
    expected.starts.push(expected.sorted.len() as u32);
    expected
}

fn check_route(found: &LocalRouteSnapshot, expected: &LocalRouteSnapshot) -> Outcome {
    if found == expected {
        return Ok(());
    }
    let sizes = |route: &LocalRouteSnapshot| (route.rows.len(), route.sorted.len());
    let differs = found.sorted.iter().zip(&expected.sorted).position(|(found, expected)| found != expected);
    let row = found.rows.iter().zip(&expected.rows).position(|(found, expected)| found != expected);
    let (have, wanted) = (sizes(found), sizes(expected));
    Err(format!("{have:?} rows and look-ups of {wanted:?}; the first that differ are {row:?}, {differs:?}")
        .into())
}

/// The look-ups of a batch, table by table.
fn expected_counts(case: &Case, columns: &[Column]) -> Vec<LookUpCounts> {
    let counts = case.layout.tables().iter().enumerate().map(|(table, spec)| {
        let (features, mut route) = (case.cpu_features(columns, table).1, Route::default());
        if !features.is_empty() {
            route.build(&features, spec.rows);
        }
        let look_ups = (0..route.rows.len()).map(|index| route.bags_of(index).count() as u64).sum();
        LookUpCounts { look_ups, distinct_rows: route.rows.len() as u64 }
    });
    counts.collect()
}

fn routes_are_the_cpus(bench: &Bench, words: &mut Random) -> Outcome {
    let case = Case::random(words)?;
    routes_of(bench, words, &case)
}

fn routes_with_weights_are_the_cpus(bench: &Bench, words: &mut Random) -> Outcome {
    let case = Case::weighted(words)?;
    routes_of(bench, words, &case)
}

fn routes_of(bench: &Bench, words: &mut Random, case: &Case) -> Outcome {
    let tables = case.tables(bench)?;
    // The second route is built in memory that the first one has used.
    for _ in 0..2 {
        let samples = some_samples(words, &case.layout);
        let columns = case.batch(words, samples);
        let ids = DeviceIds::new(bench, &case.layout, &columns)?;
        // SAFETY: the ids fit the layout.
        unsafe { tables.route(&bench.lane, ids.ids()) }?;
        tables.check(&bench.lane)?;
        let found = tables.snapshot(&bench.lane)?;
        check_route(&found, &expected_route(case, &columns))
            .map_err(|failed| format!("{}: {:?}", failed.message().unwrap_or_default(), case.layout))?;
        let (counts, expected) = (tables.counts(&bench.lane)?, expected_counts(case, &columns));
        if counts != expected {
            return Err(format!("{counts:?}, not {expected:?}: {:?}", case.layout).into());
        }
    }
    Ok(())
}

fn routes_of_many_look_ups_are_sorted(bench: &Bench, words: &mut Random) -> Outcome {
    // More tiles than the GPU runs at once.
    let table = |rows| TableSpec { name: String::new(), rows, dim: 4, dtype: Dtype::Fp32, dynamic: None };
    let tables = [table(5_000_000), table(3), table(40_000_000)];
    let columns = [Hotness::Fixed(70), Hotness::Fixed(3), Hotness::Ragged { max: 20 }, Hotness::Fixed(1)];
    let feature = |column, table| Feature { column, table, vector_offset: 4 * column, pooling: Pooling::Sum };
    let features = [feature(0, 0), feature(1, 1), feature(2, 2), feature(3, 0)];
    let layout = Layout::new(1, 30_000, 16, &tables, &columns, &features)?;
    let case = Case { layout, seed: 1, drawn: 0 };
    let tables = case.tables(bench)?;
    let columns = case.batch(words, 30_000);
    let ids = DeviceIds::new(bench, &case.layout, &columns)?;
    let expected = expected_route(&case, &columns);
    for _ in 0..3 {
        // SAFETY: the ids fit the layout.
        unsafe { tables.route(&bench.lane, ids.ids()) }?;
        tables.check(&bench.lane)?;
        check_route(&tables.snapshot(&bench.lane)?, &expected)?;
    }
    Ok(())
}

fn models_without_features_look_nothing_up(bench: &Bench, _: &mut Random) -> Outcome {
    let layout = Layout::new(1, 3, 8, &[], &[], &[])?;
    let case = Case { layout, seed: 1, drawn: 0 };
    let tables = case.tables(bench)?;
    let ids = DeviceIds::new(bench, &case.layout, &[])?;
    let vectors = Buffer::<f32>::filled(&bench.device, 24, 0)?;
    // SAFETY: there are no ids, and as many vectors as samples.
    unsafe {
        tables.look_up(&bench.lane, ids.ids(), 3, Vectors::Elements(vectors.pointer()))?;
        tables.route(&bench.lane, ids.ids())?;
    }
    tables.check(&bench.lane)?;
    check_route(&tables.snapshot(&bench.lane)?, &expected_route(&case, &[]))
}

fn ids_out_of_range_are_told(bench: &Bench, words: &mut Random) -> Outcome {
    let case = Case::random(words)?;
    let tables = case.tables(bench)?;
    let layout = &case.layout;
    let mut columns = case.batch(words, layout.samples());
    let number = words.below(columns.len() as u64) as usize;
    let features: Vec<_> = layout.features().iter().filter(|feature| feature.column == number).collect();
    let rows = features.iter().map(|feature| layout.tables()[feature.table].rows).max().unwrap_or(1);
    let wrong = words.one_of(&[rows, u64::from(u32::MAX)]);
    let Some(id) = columns[number].ids.last_mut() else { return Ok(()) };
    *id = wrong;
    let ids = DeviceIds::new(bench, layout, &columns)?;
    // SAFETY: the ids fit the layout.
    unsafe { tables.route(&bench.lane, ids.ids()) }?;
    match tables.check(&bench.lane) {
        Err(Error::Ids { count }) if count as usize == features.len() => Ok(()),
        other => Err(format!("{other:?}, but {} features look the id up", features.len()).into()),
    }
}
