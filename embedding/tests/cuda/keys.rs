//! Rows that are not pooled, but are parts of the keys of a sequence's positions: looked up position by position, and
//! updated with the gradients at their positions, with the bits of the CPU's.

use half::{bf16, f16};
use libtest_mimic::Failed;
use rankine_cuda::Buffer;
use rankine_cuda::kernels::{self, Element, Rate, Vectors};
use rankine_embedding::cpu::{self, Bags, FeatureSlot, Route, Table};
use rankine_embedding::cuda::{
    Feature, Hotness, InitialWeights, KeyPart, KeySequence, Layout, LocalTables, UpdateInputs,
};
use rankine_embedding::rows::gather;
use rankine_embedding::{Dtype, Optimizer, Pooling, Step, TableSpec};

use super::local::{Column, DeviceIds};
use super::{Bench, Body, CASES, Outcome, Random};

pub(crate) const BODIES: &[Body] = &[
    ("keys_are_the_rows_of_positions_in_f32", CASES, keys_are_the_rows_of_positions::<f32>),
    ("keys_are_the_rows_of_positions_in_bf16", CASES, keys_are_the_rows_of_positions::<bf16>),
    ("keys_are_the_rows_of_positions_in_f16", CASES, keys_are_the_rows_of_positions::<f16>),
];

const STEPS: u64 = 4;

/// Two sequences: of columns 1 and 2, and of column 3. Column 0 is pooled, and so is column 1 by another feature, as
/// first-order terms are.
struct Case {
    layout: Layout,
    optimizer: Optimizer,
    seed: u64,
    stride: usize,
}

impl Case {
    fn random(words: &mut Random) -> Result<Self, Failed> {
        let table = |number: usize, words: &mut Random| TableSpec {
            name: format!("t{number}"),
            rows: words.one_of(&[1, 40, 2_000, 70_000]),
            dim: words.one_of(&[1, 4, 7, 16, 64, 132]),
            dtype: words.one_of(&[Dtype::Fp32, Dtype::Bf16, Dtype::Fp16]),
            dynamic: None,
        };
        let tables: Vec<_> = (0..3).map(|number| table(number, words)).collect();
        let dim = |table: usize| tables[table].dim.next_multiple_of(4);
        let pair = Hotness::Ragged { max: words.one_of(&[1, 9, 50]) };
        let columns = [Hotness::Fixed(1), pair, pair, Hotness::Ragged { max: 12 }];
        // In the places of the sums; the last is pooled.
        let (mut features, mut stride) = (Vec::new(), 4);
        for (column, table) in [(0, 0), (1, 0), (2, 1), (3, 2), (1, 2)] {
            features.push(Feature { column, table, vector_offset: stride, pooling: Pooling::Sum });
            stride += dim(table);
        }
        let part = |sequence, offset| Some(KeyPart { sequence, offset });
        let sequences = [
            KeySequence { column: words.one_of(&[1, 2]), stride: dim(0) + dim(1) },
            KeySequence { column: 3, stride: dim(2) },
        ];
        let keys = [None, part(0, 0), part(0, dim(0)), part(1, 0), None];
        let samples = words.one_of(&[1, 65, 700]);
        let optimizer = Optimizer::sgd(0.125);
        let layout = Layout::new(1, samples, stride, &tables, &columns, &features)?;
        let layout = layout.with_keys(&sequences, &keys)?.with_optimizers(&[optimizer; 3]);
        Ok(Self { layout, optimizer, seed: words.below(1 << 40), stride })
    }

    fn on_cpu(&self) -> Vec<Table> {
        let tables = self.layout.tables().iter().enumerate();
        tables
            .map(|(number, table)| {
                Table::initialized(table.clone(), self.optimizer, self.seed, number as u32)
            })
            .collect()
    }

    fn batch(&self, words: &mut Random, samples: usize) -> Vec<Column> {
        let mut offsets = vec![vec![0]; 4];
        for sample in 0..samples {
            for column in 0..4 {
                let size = match self.layout.columns()[column] {
                    _ if column == 2 => offsets[1][sample + 1] - offsets[1][sample],
                    Hotness::Fixed(ids) => ids as u32,
                    Hotness::Ragged { max } => words.below(max as u64 + 1) as u32,
                };
                let end = offsets[column][sample] + size;
                offsets[column].push(end);
            }
        }
        let rows = |column: usize| {
            let features = self.layout.features().iter().filter(move |feature| feature.column == column);
            features.map(|feature| self.layout.tables()[feature.table].rows).min().unwrap_or(1)
        };
        let ids = |column: usize, offsets: Vec<u32>| {
            let count = offsets[samples];
            let ids = (0..count).map(|_| (words.unit().powi(3) * rows(column) as f64) as u64).collect();
            Column { offsets, ids, weights: None }
        };
        let mut ids = ids;
        offsets.into_iter().enumerate().map(|(column, offsets)| ids(column, offsets)).collect()
    }

    /// The features of a table as the CPU has them: positions are bags with one id each.
    fn cpu_features<'a>(
        &self,
        batch: &'a [Column],
        single: &'a [u32],
        table: usize,
    ) -> Vec<cpu::Feature<'a>> {
        let of_table =
            self.layout.features().iter().enumerate().filter(|(_, feature)| feature.table == table);
        let of = |(number, feature): (usize, &Feature)| {
            let column = &batch[feature.column];
            let (vectors, pooled) = (self.layout.elements(), column.bags());
            let begin = |sequence| vectors + self.layout.keys_begin(sequence);
            let [pair, other] = [self.stride_of(0), self.stride_of(1)];
            let slot = |stride, offset| FeatureSlot { stride, offset };
            let (bags, slot) = match number {
                1 => (None, slot(pair, begin(0))),
                2 => (None, slot(pair, begin(0) + self.layout.tables()[0].dim.next_multiple_of(4))),
                3 => (None, slot(other, begin(1))),
                _ => (Some(pooled), slot(self.stride, feature.vector_offset)),
            };
            let ids = &column.ids;
            let bags = bags.unwrap_or(Bags { offsets: &single[..=ids.len()], ids, weights: None });
            cpu::Feature { bags, pooling: Pooling::Sum, slot }
        };
        of_table.map(of).collect()
    }

    fn stride_of(&self, sequence: usize) -> usize {
        let dim = |table: usize| self.layout.tables()[table].dim.next_multiple_of(4);
        if sequence == 0 { dim(0) + dim(1) } else { dim(2) }
    }
}

fn keys_are_the_rows_of_positions<T: Element>(bench: &Bench, words: &mut Random) -> Outcome {
    let (Bench { device, lane }, case) = (bench, Case::random(words)?);
    let layout = &case.layout;
    let weights = InitialWeights { seed: case.seed, drawn: 3 };
    let tables = LocalTables::initialized(device, layout.clone(), lane, weights)?;
    let mut on_cpu = case.on_cpu();
    let elements = layout.elements() + layout.key_elements();
    let most = layout.columns().iter().map(|hotness| layout.samples() * hotness.max()).max().unwrap_or(0);
    let single: Vec<u32> = (0..=most as u32).collect();
    for number in 1..=STEPS {
        let (all, some) = (layout.samples(), words.below(layout.samples() as u64 + 1) as usize);
        let samples = words.one_of(&[all, some]);
        let batch = case.batch(words, samples);
        let ids = DeviceIds::new(bench, layout, &batch)?;
        let vectors = Buffer::<T>::filled(device, layout.elements(), 0xff)?;
        let keys = Buffer::<T>::filled(device, layout.key_elements(), 0xff)?;
        let place = Vectors::WithKeys { vectors: vectors.pointer(), keys: keys.pointer() };
        // SAFETY: the ids fit the layout, and there are as many vectors and keys.
        unsafe { tables.look_up(lane, ids.ids(), layout.samples(), place) }?;
        let mut found = vectors.read(lane)?;
        found.extend(keys.read(lane)?);
        let poison = bytemuck::pod_read_unaligned::<T>(&vec![0xff; size_of::<T>()]);
        let mut expected = vec![poison; elements];
        for (table, spec) in layout.tables().iter().enumerate() {
            for feature in case.cpu_features(&batch, &single, table) {
                let bags = if feature.slot.stride == case.stride && feature.slot.offset < case.stride {
                    layout.samples()
                } else {
                    feature.bags.len()
                };
                for bag in 0..bags {
                    let to = &mut expected[feature.slot.offset + bag * feature.slot.stride..];
                    let mut sum = vec![0.0; spec.dim.next_multiple_of(4)];
                    let rows = if bag < feature.bags.len() { feature.bags.bag(bag) } else { &[] };
                    for &row in rows {
                        sum.iter_mut().zip(on_cpu[table].weights(row).iter()).for_each(|(sum, w)| *sum += w);
                    }
                    to.iter_mut().zip(sum).for_each(|(to, sum)| *to = T::of(sum));
                }
            }
        }
        // Zeros of either sign are equal: some weights are -0, and a sum that starts with 0 is 0.
        let bits = |value: T| bytemuck::bytes_of(&value).to_vec();
        let differ = |(found, expected): (&T, &T)| {
            let are_zeros = found.value() == 0.0 && expected.value() == 0.0;
            !are_zeros && bits(*found) != bits(*expected)
        };
        if let Some(at) = found.iter().zip(&expected).position(differ) {
            let (found, expected, vectors) = (found[at], expected[at], layout.elements());
            let element = format!("step {number}, element {at} ({vectors} are of vectors)");
            return Err(format!("{element}: {found:?}, not {expected:?}: {layout:?}").into());
        }
        // Their sums are exact in any order.
        let gradients: Vec<_> =
            (0..elements).map(|_| T::of((words.below(63) as f32 - 31.0) / 64.0)).collect();
        let step = Step { number, rate_factor: 1.0 };
        let rates = Buffer::of(device, &[Rate::from(case.optimizer.at(step)); 3])?;
        let (on_gpu, scale) = (Buffer::of(device, &gradients)?, Buffer::of(device, &[1.0f32])?);
        let stop = Buffer::of(device, &[0u32])?;
        let at = Buffer::of(device, &[kernels::Step { number, ..Default::default() }])?;
        // SAFETY: the buffers have the sizes that the layout says, and live until the lane has been waited for.
        unsafe {
            tables.route(lane, ids.ids())?;
            let inputs = UpdateInputs {
                rates: rates.pointer(),
                step: at.pointer(),
                scale: scale.pointer(),
                stop: stop.pointer(),
            };
            tables.update(lane, ids.ids(), on_gpu.pointer(), inputs)?;
        }
        tables.check(lane)?;
        let values: Vec<f32> = gradients.iter().map(|gradient| gradient.value()).collect();
        for (table, on_cpu) in on_cpu.iter_mut().enumerate() {
            let features = case.cpu_features(&batch, &single, table);
            let mut route = Route::default();
            route.build(&features, on_cpu.spec().rows);
            on_cpu.update(&route, &features, &values, step);
            let (rows, dim) = (on_cpu.spec().rows, on_cpu.spec().dim);
            let mut found = vec![0.0; rows as usize * dim];
            gather(&tables.rows(lane), table, 0..rows, false, (dim, &mut found))?;
            for (row, found) in (0..rows).zip(found.chunks_exact(dim)) {
                let expected = on_cpu.weights(row);
                if found.iter().zip(expected.iter()).any(|(a, b)| a.to_bits() != b.to_bits()) {
                    return Err(
                        format!("step {number}, table {table}, row {row}: {found:?}: {layout:?}").into()
                    );
                }
            }
        }
    }
    Ok(())
}
