//! Compares which ids of dynamic tables have which rows with the CPU's, exactly, and the rows that begin anew.

use std::collections::BTreeSet;

use rankine_cuda::Buffer;
use rankine_embedding::cuda::{
    DynamicColumns, DynamicTables, Error, Feature, Hotness, Ids, InitialWeights, Layout, LocalTables, LongIds,
};
use rankine_embedding::membership::{Admission, IfFull, InitialRows, SHARED_ROW};
use rankine_embedding::rows::{RowPart, Rows};
use rankine_embedding::{
    Dtype, DynamicRows, Eviction, Membership, Optimizer, Pooling, TableSpec, UpdateRule,
};

use super::{Bench, Body, CASES, Outcome, Random};

pub(crate) const BODIES: &[Body] = &[
    ("ids_have_the_rows_that_the_cpu_gives_them", 6 * CASES, ids_have_the_cpus_rows),
    ("a_shard_takes_more_ids_than_it_has_rows", CASES, a_shard_takes_more_ids_than_it_has_rows),
    ("many_evictions_keep_ids_findable", 2, many_evictions_keep_ids_findable),
    ("rows_of_new_ids_begin_anew", 2 * CASES, rows_of_new_ids_begin_anew),
    ("a_full_table_names_the_first_id", CASES, a_full_table_names_the_first_id),
];

/// Slots of batches.
const SLOTS: usize = 3;

/// Dynamic tables on the CPU and on the GPU, and columns that look them up.
struct Case {
    layout: Layout,
    weights: InitialWeights,
    /// The dynamic tables, by number.
    tables: Vec<(usize, Membership)>,
    on_gpu: DynamicTables,
}

/// The ids of a column, as samples have them.
struct Column {
    offsets: Vec<u32>,
    ids: Vec<u64>,
}

fn rows(words: &mut Random) -> DynamicRows {
    let shared = Eviction::None { if_full: IfFull::Shared };
    let steps = 1 + words.below(4);
    DynamicRows {
        capacity: words.one_of(&[1, 7, 33, 200, 1_500, 5_000, 40_000]),
        admit_after: words.one_of(&[1, 1, 2, 3, 9]),
        evict: words.one_of(&[shared, Eviction::Lru, Eviction::Lfu, Eviction::Ttl { steps }]),
    }
}

impl Case {
    fn new(bench: &Bench, layout: Layout, words: &mut Random) -> Result<Self, Error> {
        let weights = InitialWeights { seed: words.below(1 << 60), drawn: words.below(5) as usize };
        let dynamic = layout.tables().iter().enumerate();
        let dynamic = dynamic.filter_map(|(number, table)| Some((number, Membership::new(table.dynamic?))));
        let on_gpu = DynamicTables::new(&bench.device, None, &layout, SLOTS, weights, true)?;
        Ok(Self {
            weights,
            tables: dynamic.collect(),
            on_gpu: on_gpu.expect("there are dynamic tables"),
            layout,
        })
    }

    /// Several tables, some of which are dynamic, with several columns each.
    fn random(bench: &Bench, words: &mut Random) -> Result<Self, Error> {
        let count = 1 + words.below(4);
        let tables: Vec<_> = (0..count)
            .map(|number| {
                let dynamic = (number + 1 == count || words.below(3) > 0).then(|| rows(words));
                table(number, 4, dynamic, Dtype::Fp32)
            })
            .collect();
        let columns = (0..tables.len() as u64 + words.below(4)).map(|_| match words.below(2) {
            0 => Hotness::Fixed(words.one_of(&[1, 1, 2, 9])),
            _ => Hotness::Ragged { max: words.one_of(&[1, 4, 20]) },
        });
        let columns: Vec<_> = columns.collect();
        let samples = words.one_of(&[1, 2, 63, 700, 3_000]);
        Self::new(bench, layout(samples, &tables, &columns)?, words)
    }

    /// Draws a batch: ids of all columns.
    fn batch(&self, words: &mut Random, draw: &mut dyn FnMut(&mut Random) -> u64) -> (usize, Vec<Column>) {
        let room = self.layout.samples();
        let samples = if words.below(4) == 0 { words.below(room as u64 + 1) as usize } else { room };
        let column = |number: usize| {
            let (mut offsets, mut ids) = (vec![0], Vec::new());
            for _ in 0..samples {
                let size = match self.layout.columns()[number] {
                    Hotness::Fixed(ids) => ids as u64,
                    Hotness::Ragged { max } => words.below(max as u64 + 1),
                };
                ids.extend((0..size).map(|_| if self.layout.is_dynamic(number) { draw(words) } else { 0 }));
                offsets.push(ids.len() as u32);
            }
            Column { offsets, ids }
        };
        (samples, (0..self.layout.columns().len()).map(column).collect())
    }

    /// The columns of a table.
    fn columns(&self, table: usize) -> Vec<usize> {
        let features = self.layout.features().iter();
        let own = features.filter(|feature| feature.table == table).map(|feature| feature.column);
        own.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The ids of a table's look-ups, sample by sample, then column by column, and the place of each in the batch.
    fn keys(&self, table: usize, samples: usize, batch: &[Column]) -> (Vec<u64>, Vec<usize>) {
        let (mut keys, mut places) = (Vec::new(), Vec::new());
        for sample in 0..samples {
            for column in self.columns(table) {
                let Column { offsets, ids } = &batch[column];
                let own = offsets[sample] as usize..offsets[sample + 1] as usize;
                keys.extend(&ids[own.clone()]);
                places.extend(own.map(|at| self.layout.ids_begin(column) + at));
            }
        }
        (keys, places)
    }

    /// Compares the rows that both give the ids of a batch: as the rows of a step, or without changing anything.
    fn compare(
        &mut self,
        bench: &Bench,
        (samples, batch): (usize, &[Column]),
        step: Option<u64>,
    ) -> Result<Vec<Admission>, libtest_mimic::Failed> {
        let input = Input::new(bench, &self.layout, samples, batch)?;
        let slot = step.unwrap_or(0) as usize % SLOTS;
        // SAFETY: the input lives until the lane has been waited for, and has the layout's sizes.
        unsafe {
            match step {
                Some(step) => self.on_gpu.admit(&bench.lane, input.long_ids(), slot, step)?,
                None => {
                    let columns = DynamicColumns::new(&bench.device, &self.layout)?;
                    self.on_gpu.find(&bench.lane, &columns, input.long_ids())?;
                }
            }
        }
        let found = input.ids.read(&bench.lane)?;
        let mut admissions = Vec::new();
        for at in 0..self.tables.len() {
            let number = self.tables[at].0;
            let (keys, places) = self.keys(number, samples, batch);
            let membership = &mut self.tables[at].1;
            let admission = match step {
                Some(step) => membership.admit(step, &keys),
                None => Admission {
                    rows: keys.iter().map(|&key| membership.find(key).unwrap_or(SHARED_ROW)).collect(),
                    ..Admission::default()
                },
            };
            for (look_up, (&row, &place)) in admission.rows.iter().zip(&places).enumerate() {
                if u64::from(found[place]) != row {
                    let (key, own) = (keys[look_up], found[place]);
                    return Err(format!(
                        "{step:?}: look-up {look_up} of table {number}, {:?}: id {key} has row {own} instead of {row}",
                        membership.rows()
                    )
                    .into());
                }
            }
            admissions.push(admission);
        }
        Ok(admissions)
    }

    /// Compares keys, scores, counts, and what was changed.
    fn compare_state(&self, bench: &Bench, step: u64) -> Outcome {
        for ((number, expected), (own_number, found)) in
            self.tables.iter().zip(self.on_gpu.read(&bench.lane)?)
        {
            let rows = expected.rows();
            assert_eq!(*number, own_number);
            if found.saved() != expected.saved() {
                return Err(format!("step {step}: table {number}, {rows:?}: the ids differ").into());
            }
            if found.changed() != expected.changed() {
                return Err(format!("step {step}: table {number}, {rows:?}: the changes differ").into());
            }
            if found.counts() != expected.counts() {
                let (found, expected) = (found.counts(), expected.counts());
                return Err(format!("step {step}: {rows:?}: {found:?} instead of {expected:?}").into());
            }
        }
        let states = self.on_gpu.states(&bench.lane)?;
        let full = self.tables.iter().map(|(_, membership)| membership.keys());
        assert!(states.iter().map(|state| state.rows).eq(full), "{states:?}");
        Ok(())
    }
}

fn table(number: u64, dim: usize, dynamic: Option<DynamicRows>, dtype: Dtype) -> TableSpec {
    let rows = dynamic.map_or(5, |rows| rows.table_rows());
    TableSpec { name: format!("t{number}"), rows, dim, dtype, dynamic }
}

/// A feature per column; tables take turns.
fn layout(samples: usize, tables: &[TableSpec], columns: &[Hotness]) -> Result<Layout, Error> {
    let mut vector_offset = 0;
    let feature = |column: usize| {
        let table = column % tables.len();
        let own = vector_offset;
        vector_offset += tables[table].dim.next_multiple_of(4);
        Feature { column, table, vector_offset: own, pooling: Pooling::Sum }
    };
    let features: Vec<_> = (0..columns.len()).map(feature).collect();
    Layout::new(1, samples, vector_offset, tables, columns, &features)
}

/// A batch on the GPU.
struct Input {
    long_ids: Buffer<u64>,
    ids: Buffer<u32>,
    offsets: Buffer<u32>,
    samples: Buffer<u32>,
}

impl Input {
    fn new(bench: &Bench, layout: &Layout, samples: usize, batch: &[Column]) -> Result<Self, Error> {
        let mut long_ids = vec![u64::MAX; layout.long_ids()];
        let mut ids = vec![u32::MAX; layout.ids()];
        let mut offsets = vec![0; layout.offsets()];
        for (number, column) in batch.iter().enumerate() {
            if layout.is_dynamic(number) {
                long_ids[layout.long_ids_begin(number)..][..column.ids.len()].copy_from_slice(&column.ids);
            } else {
                let own = &mut ids[layout.ids_begin(number)..][..column.ids.len()];
                own.iter_mut().zip(&column.ids).for_each(|(to, &id)| *to = id as u32);
            }
            if matches!(layout.columns()[number], Hotness::Ragged { .. }) {
                let own = &mut offsets[layout.offsets_begin(number)..][..=layout.samples()];
                own.fill(column.ids.len() as u32);
                own[..=samples].copy_from_slice(&column.offsets);
            }
        }
        Ok(Self {
            long_ids: Buffer::of(&bench.device, &long_ids)?,
            ids: Buffer::of(&bench.device, &ids)?,
            offsets: Buffer::of(&bench.device, &offsets)?,
            samples: Buffer::of(&bench.device, &[samples as u32])?,
        })
    }

    fn ids(&self) -> Ids {
        Ids {
            ids: self.ids.pointer(),
            factors: rankine_cuda::Pointer::NULL,
            offsets: self.offsets.pointer(),
            samples: self.samples.pointer(),
        }
    }

    fn long_ids(&self) -> LongIds {
        LongIds { ids: self.long_ids.pointer(), rows: self.ids() }
    }
}

/// The inverse of the hash that chooses shards, so that tests can choose an id's shard.
fn id_of_hash(hash: u64) -> u64 {
    let unshift = |hash: u64, by: u32| (0..64 / by).fold(hash, |own, _| hash ^ own >> by);
    let hash = unshift(hash, 31).wrapping_mul(0x3196_42B2_D24D_8EC3);
    let hash = unshift(hash, 27).wrapping_mul(0x96DE_1B17_3F11_9089);
    unshift(hash, 30).wrapping_sub(0x9E37_79B9_7F4A_7C15)
}

/// Draws ids: few or many, small numbers or hashes, and adversarial ones with equal hashes of shards.
fn drawn(words: &mut Random, step: u64) -> impl FnMut(&mut Random) -> u64 + use<> {
    let distinct = words.one_of(&[1, 3, 50, 2_000, 100_000, 1 << 40]);
    let kind = words.below(5);
    let moves = words.one_of(&[0, 1, distinct / 3]);
    move |words| {
        let number = (words.unit().powi(3) * distinct as f64) as u64 + step * moves;
        match kind {
            0 => number,
            1 => id_of_hash(number),
            2 => id_of_hash(number << 20),
            3 if words.below(50) == 0 => words.one_of(&[0, 1, u64::MAX, u64::MAX - 1, 1 << 63]),
            _ => number.wrapping_mul(0x9E37_79B9_7F4A_7C15),
        }
    }
}

fn ids_have_the_cpus_rows(bench: &Bench, words: &mut Random) -> Outcome {
    let mut case = Case::random(bench, words)?;
    let begins = words.below(8);
    let kind = words.below(1 << 40);
    for step in 1..=12 {
        // The same distribution in each step, so that ids return.
        let mut draw = drawn(&mut Random { seed: kind, next: 0 }, step);
        if step == begins {
            case.tables.iter_mut().for_each(|(_, membership)| membership.begin_tracking());
            case.on_gpu.begin_tracking(&bench.lane)?;
        }
        let (samples, batch) = case.batch(words, &mut draw);
        case.compare(bench, (samples, &batch), Some(step))?;
        let (samples, batch) = case.batch(words, &mut draw);
        case.compare(bench, (samples, &batch), None)?;
        if step % 4 == 3 {
            case.compare_state(bench, step)?;
        }
        if step == 7 && begins > 7 {
            // As if training were resumed.
            let read = case.on_gpu.read(&bench.lane)?;
            case.on_gpu = DynamicTables::new(&bench.device, None, &case.layout, SLOTS, case.weights, true)?
                .expect("there are dynamic tables");
            case.on_gpu.write(&bench.lane, &read, step)?;
            for (_, membership) in &mut case.tables {
                let saved = membership.saved();
                *membership = Membership::new(*membership.rows());
                membership.restore(&saved).map_err(|error| error.to_string())?;
                membership.continue_from(step);
            }
        }
    }
    case.compare_state(bench, 12)
}

/// Batches with more new ids than a shard has rows, and than are sorted at a time.
fn a_shard_takes_more_ids_than_it_has_rows(bench: &Bench, words: &mut Random) -> Outcome {
    let rows = DynamicRows { capacity: words.one_of(&[500, 1_900, 3_000]), ..rows(words) };
    let tables = [table(0, 4, Some(rows), Dtype::Fp32)];
    let mut case = Case::new(bench, layout(8_000, &tables, &[Hotness::Fixed(1)])?, words)?;
    let all_new = words.below(2) == 0;
    for step in 1..=4 {
        let mut next = step * 1_000_000;
        let mut draw = |words: &mut Random| {
            next += 1;
            let number = if all_new { next } else { words.below(9_000) };
            number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
        };
        let (samples, batch) = case.batch(words, &mut draw);
        case.compare(bench, (samples, &batch), Some(step))?;
    }
    case.compare_state(bench, 4)
}

/// The index is made anew when many ids have left it.
fn many_evictions_keep_ids_findable(bench: &Bench, words: &mut Random) -> Outcome {
    let evict = words.one_of(&[Eviction::Lru, Eviction::Lfu]);
    let rows = DynamicRows { capacity: 4_000, admit_after: 1, evict };
    let tables = [table(0, 4, Some(rows), Dtype::Fp32)];
    let mut case = Case::new(bench, layout(1_000, &tables, &[Hotness::Fixed(1)])?, words)?;
    for step in 1..=40 {
        let mut draw =
            |words: &mut Random| (step * 700 + words.below(2_000)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let (samples, batch) = case.batch(words, &mut draw);
        case.compare(bench, (samples, &batch), Some(step))?;
    }
    case.compare_state(bench, 40)
}

/// The rows of new ids have the weights and the state of the start of training, in the table and in others whose rows
/// follow; all other rows are as before.
fn rows_of_new_ids_begin_anew(bench: &Bench, words: &mut Random) -> Outcome {
    let evict = words.one_of(&[Eviction::Lru, Eviction::Lfu]);
    let dynamic = DynamicRows { capacity: 300, admit_after: 1, evict };
    let dtype = words.one_of(&[Dtype::Fp32, Dtype::Bf16, Dtype::Fp16]);
    let first = TableSpec { dynamic: None, ..table(1, 1, Some(dynamic), Dtype::Fp32) };
    let dim = words.one_of(&[1, 4, 7, 12, 130]);
    let tables = [table(0, dim, Some(dynamic), dtype), first];
    let feature = |table, vector_offset| Feature { column: 0, table, vector_offset, pooling: Pooling::Sum };
    let behind = dim.next_multiple_of(4);
    let features = [feature(0, 0), feature(1, behind)];
    let rules = [
        UpdateRule::Sgd,
        UpdateRule::Adagrad { initial_accumulator: 0.1, epsilon: 1e-8 },
        UpdateRule::RowwiseAdagrad { initial_accumulator: 0.2, epsilon: 1e-8 },
        UpdateRule::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8 },
        UpdateRule::Ftrl { beta: 1.0, l1: 0.0, l2: 0.1 },
    ];
    let optimizer =
        |words: &mut Random| Optimizer { rule: words.one_of(&rules), learning_rate: 0.1, weight_decay: 0.0 };
    let optimizers = [optimizer(words), optimizer(words)];
    let layout = Layout::new(1, 100, behind + 4, &tables, &[Hotness::Fixed(2)], &features)?;
    let layout = layout.with_optimizers(&optimizers);
    let mut case = Case::new(bench, layout, words)?;
    let weights = InitialWeights { drawn: 1, ..case.weights };
    case.on_gpu = DynamicTables::new(&bench.device, None, &case.layout, SLOTS, weights, false)?
        .expect("there are some");
    let mut local = LocalTables::initialized(&bench.device, case.layout.clone(), &bench.lane, weights)?;
    local.track_updates()?;
    for step in 1..=5 {
        let before = words_of(&local, bench)?;
        let mut draw =
            |words: &mut Random| (step * 90 + words.below(200)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let (samples, batch) = case.batch(words, &mut draw);
        let admission = case.compare(bench, (samples, &batch), Some(step))?.swap_remove(0);
        // SAFETY: the tables are of the layout.
        unsafe { local.begin_rows(&bench.lane, &case.on_gpu, step as usize % SLOTS) }?;
        let after = words_of(&local, bench)?;
        for (number, (part, (before, after))) in
            parts(&local, bench).iter().zip(before.iter().zip(&after)).enumerate()
        {
            let initial = match number {
                0 => InitialRows::new(tables[0].initial_bound(), weights.seed, 0),
                _ => InitialRows::zeros(),
            };
            let each = before.chunks_exact(part.layout.words).zip(after.chunks_exact(part.layout.words));
            for (row, (before, after)) in each.enumerate() {
                let new = admission.new_rows.iter().find(|new| new.row == row as u64);
                let Some(new) = new else {
                    if before != after {
                        return Err(format!("row {row} of table {number} changes").into());
                    }
                    continue;
                };
                let mut values = vec![0.0; tables[number].dim];
                initial.fill(new.key, &mut values);
                values.iter_mut().for_each(|value| *value = tables[number].dtype.nearest(*value));
                let rule = optimizers[number].rule;
                let mut state =
                    vec![0.0; if rule.is_rowwise() { 1 } else { values.len() } * rule.state_names().len()];
                rule.initialize(&values, &mut state);
                let mut found = vec![0.0; values.len()];
                part.layout.read_weights(after, &mut found);
                let kinds = part.layout.state().iter();
                let kinds = kinds.flat_map(|&first| &after[first..first + part.layout.state_words()]);
                let found_state: Vec<_> = kinds.copied().collect();
                if found != values || found_state != state {
                    let id = new.key;
                    return Err(format!(
                        "{rule:?}, {dtype:?}: row {row} of id {id} begins with {found:?} {found_state:?} instead of \
                         {values:?} {state:?}"
                    )
                    .into());
                }
            }
        }
        local.check(&bench.lane)?;
    }
    Ok(())
}

fn parts(local: &LocalTables, bench: &Bench) -> Vec<RowPart> {
    local.rows(&bench.lane).parts().to_vec()
}

/// The words of all rows, table by table.
fn words_of(local: &LocalTables, bench: &Bench) -> Result<Vec<Vec<f32>>, libtest_mimic::Failed> {
    let rows = local.rows(&bench.lane);
    let of_part = |(number, part): (usize, &RowPart)| {
        let mut words = Vec::new();
        Ok(rows.read(number, 0..part.rows.len(), &mut words)?.to_vec())
    };
    rows.parts().iter().enumerate().map(of_part).collect()
}

fn a_full_table_names_the_first_id(bench: &Bench, words: &mut Random) -> Outcome {
    let if_full = words.one_of(&[IfFull::Fail, IfFull::Shared]);
    let rows = DynamicRows {
        capacity: words.one_of(&[5, 3_000]),
        admit_after: words.one_of(&[1, 2]),
        evict: Eviction::None { if_full },
    };
    let tables = [table(0, 4, None, Dtype::Fp32), table(1, 4, Some(rows), Dtype::Fp32)];
    let mut case = Case::new(bench, layout(900, &tables, &[Hotness::Fixed(1); 4])?, words)?;
    for step in 1..=4 {
        let mut draw = |words: &mut Random| words.below(200 * rows.capacity);
        let (samples, batch) = case.batch(words, &mut draw);
        let admission = case.compare(bench, (samples, &batch), Some(step))?.swap_remove(0);
        let full = case.on_gpu.full_table(&bench.lane, step as usize % SLOTS)?;
        let (keys, _) = case.keys(1, samples, &batch);
        let refused = admission.refused.first().filter(|_| if_full == IfFull::Fail).map(|&first| keys[first]);
        if full.as_ref().map(|full| full.key) != refused {
            return Err(format!("step {step}: {full:?}, but id {refused:?} is refused first").into());
        }
        if let Some(full) = full {
            assert_eq!((full.table.as_str(), full.keys), ("t1", case.tables[0].1.keys()));
        }
    }
    Ok(())
}
