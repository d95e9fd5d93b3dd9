//! Rows are moved between all placements and stay the same.

use std::sync::Arc;

use proptest::prelude::*;
use rankine_topology::{Rank, Topology};

use super::*;
use crate::cpu::{HostRows, RankTables, Table};
use crate::optimizer::{Optimizer, UpdateRule};
use crate::placement::{EmbeddingPlan, Exchange, FrequentRows, TablePlan};
use crate::random::UniformField;
use crate::table::TableSpec;

const RULES: [UpdateRule; 4] = [
    UpdateRule::Sgd,
    UpdateRule::Adagrad { initial_accumulator: 0.5, epsilon: 1e-3 },
    UpdateRule::RowwiseAdagrad { initial_accumulator: 0.5, epsilon: 1e-3 },
    UpdateRule::Adam { beta1: 0.5, beta2: 0.75, epsilon: 1e-3 },
];

fn spec(rows: u64, dim: usize, dtype: Dtype) -> TableSpec {
    TableSpec { name: "t".into(), rows, dim, dtype, dynamic: None }
}

fn optimizer(rule: UpdateRule) -> Optimizer {
    Optimizer { rule, ..Optimizer::sgd(0.1) }
}

/// A table in which all words differ, including state.
fn numbered(spec: &TableSpec, rule: UpdateRule) -> Table {
    let mut table = Table::zeroed(spec.clone(), optimizer(rule));
    let layout = table.layout();
    for row in 0..spec.rows {
        let words = table.words_mut(row..row + 1);
        for (column, word) in words.iter_mut().enumerate() {
            let value = (row * 64 + column as u64) as f32 / 8.0 - 3.0;
            *word = if column < layout.dim { spec.dtype.nearest(value) } else { value };
        }
    }
    table
}

/// A part as it is saved.
struct SavedPart {
    columns: Range<usize>,
    rows: RowSet,
    weights: Vec<u8>,
    state: Vec<Vec<f32>>,
}

/// Reads everything from ranks, as saving does: the rows that a rank is responsible for, or the touched ones.
fn taken(rows: &dyn Rows, dtype: Dtype, chosen: &[RowSelection]) -> Vec<SavedPart> {
    let snapshot = Snapshot::of(rows, chosen, None).unwrap();
    let saved = |(number, part): (usize, &RowPart)| {
        let words = snapshot.read(number, 0..part.rows.len(), &mut Vec::new()).unwrap().to_vec();
        let mut saved = SavedPart {
            columns: part.columns.clone(),
            rows: part.rows.clone(),
            weights: Vec::new(),
            state: vec![Vec::new(); part.layout.state().len()],
        };
        if part.layout.rowwise && part.columns.start > 0 {
            saved.state.clear();
        }
        for row in words.chunks_exact(part.layout.words) {
            let mut weights = vec![0; part.layout.dim * dtype.bytes()];
            part.layout.write_weights(row, dtype, &mut weights);
            saved.weights.extend(weights);
            for (state, &begin) in saved.state.iter_mut().zip(part.layout.state()) {
                state.extend_from_slice(&row[begin..begin + part.layout.state_words()]);
            }
        }
        saved
    };
    snapshot.parts().iter().enumerate().map(saved).collect()
}

fn put(rows: &mut dyn RowsMut, dtype: Dtype, saved: &[SavedPart]) {
    // Listed rows take precedence, so they are written last.
    for listed in [false, true] {
        for SavedPart { columns, rows: of, weights, state } in saved {
            if matches!(of, RowSet::Listed(_)) == listed {
                let state = state.iter().map(Vec::as_slice).collect();
                let piece =
                    RowPiece { table: 0, columns: columns.clone(), rows: of.clone(), dtype, weights, state };
                place(rows, &piece).unwrap();
            }
        }
    }
}

/// Plans of all kinds for a table over some ranks.
fn plans(spec: &TableSpec, ranks: usize) -> Vec<TablePlan> {
    let all: Vec<_> = Rank::first(ranks).collect();
    let frequent = FrequentRows::listed((0..spec.rows).filter(|row| row % 3 == 1).collect());
    vec![
        TablePlan::replicated(spec),
        TablePlan::hybrid(spec, Exchange::Rows, frequent),
        TablePlan::row_wise(spec, Exchange::Rows),
        TablePlan::table_wise(spec, Exchange::Rows, Rank(ranks - 1)),
        TablePlan::column_wise(spec, Exchange::Rows, &all),
    ]
}

fn ranks(spec: &TableSpec, rule: UpdateRule, plan: &TablePlan, ranks: usize) -> Vec<RankTables> {
    let topology = Topology::new(ranks, 1).unwrap();
    let plan = Arc::new(EmbeddingPlan { topology, tables: vec![plan.clone()] });
    let field = Some(UniformField::new(1, 0));
    let rank = |rank| RankTables::initialized(plan.clone(), rank, [(spec.clone(), optimizer(rule), field)]);
    Rank::first(ranks).map(rank).collect()
}

/// Each rank is responsible for a share of what all have: every row is saved once, and so are touched rows.
#[test]
fn every_row_has_one_responsible_rank() {
    let spec = spec(23, 8, Dtype::Fp32);
    for plan in plans(&spec, 3) {
        let mut ranks = ranks(&spec, RULES[1], &plan, 3);
        let mut spoken_for = vec![0; 23];
        // A shard's contents for frequent rows are undefined.
        let counts = |part: &RowPart, row| {
            plan.shards.is_empty()
                || matches!(part.rows, RowSet::Listed(_))
                || plan.frequent.index(row).is_none()
        };
        for rank in &ranks {
            for part in rank.rows().parts().iter().filter(|part| part.columns.start == 0) {
                for row in part.own.clone().map(|position| part.rows.row(position)) {
                    spoken_for[row as usize] += u32::from(counts(part, row));
                }
            }
        }
        assert_eq!(spoken_for, [1; 23], "{:?}", plan.placement);

        // Every rank that has a row touches it; only the responsible one saves it.
        for rank in &mut ranks {
            rank.rows_mut().begin_tracking().unwrap();
            let mut rows = rank.rows_mut();
            for table in rows.tables_mut() {
                let all: Vec<_> = (0..table.spec().rows).collect();
                let step = crate::Step { number: 1, rate_factor: 1.0 };
                table.update_summed(&all, &vec![1.0; all.len() * table.spec().dim], None, step);
            }
            drop(rows);
            let rows = rank.rows();
            let touched = RowSelection::touched(&rows).unwrap().expect("tracking was started");
            for (chosen, part) in touched.iter().zip(rows.parts()) {
                assert!(chosen.positions.iter().eq(part.own.clone()), "{:?}", plan.placement);
            }
        }
    }
}

fn whole(table: &mut Table) -> HostRows<&mut Table> {
    HostRows::new([(RowPart::whole(0, table), table)])
}

#[test]
fn rows_go_from_any_placement_to_any_other() {
    for (rule, dtype) in RULES.into_iter().zip([Dtype::Fp32, Dtype::Bf16, Dtype::Fp32, Dtype::Fp16]) {
        let spec = spec(23, 18, dtype);
        let table = numbered(&spec, rule);
        let rows = HostRows::new([(RowPart::whole(0, &table), &table)]);
        let mut saved = taken(&rows, dtype, &RowSelection::all(&rows));
        for (from, to) in [(4, 1), (1, 3), (3, 8), (8, 2)] {
            for (plan, next) in plans(&spec, from).iter().zip(plans(&spec, to).iter().rev()) {
                for (plan, count) in [(plan, from), (next, to)] {
                    let mut ranks = ranks(&spec, rule, plan, count);
                    ranks.iter_mut().for_each(|rank| put(&mut rank.rows_mut(), dtype, &saved));
                    saved = ranks
                        .iter()
                        .flat_map(|rank| taken(&rank.rows(), dtype, &RowSelection::all(&rank.rows())))
                        .collect();
                    let mut weights = vec![0.0; 23 * 18];
                    for listed in [false, true] {
                        for rank in &ranks {
                            gather(&rank.rows(), 0, 0..23, listed, (18, &mut weights)).unwrap();
                        }
                    }
                    let expected: Vec<_> = (0..23).flat_map(|row| table.weights(row)).copied().collect();
                    assert_eq!(weights, expected, "{:?} over {count}", plan.placement);
                    let mut back = Table::zeroed(spec.clone(), optimizer(rule));
                    put(&mut whole(&mut back), dtype, &saved);
                    for row in 0..23 {
                        assert_eq!(back.row(row), table.row(row), "{:?} over {count}: {row}", plan.placement);
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_touched_is_enough() {
    let spec = spec(100, 6, Dtype::Fp32);
    for rule in RULES {
        let mut table = numbered(&spec, rule);
        let mut other = table.clone();
        table.begin_tracking();
        let touched = [3, 4, 5, 31, 32, 33, 99];
        table.update_summed(&touched, &[0.25; 7 * 6], None, crate::Step { number: 1, rate_factor: 1.0 });
        let rows = HostRows::new([(RowPart::whole(0, &table), &table)]);
        let chosen = RowSelection::touched(&rows).unwrap().unwrap();
        assert_eq!(chosen[0].positions, RowSet::from(touched.to_vec()));
        put(&mut whole(&mut other), Dtype::Fp32, &taken(&rows, Dtype::Fp32, &chosen));
        (0..100).for_each(|row| assert_eq!(other.row(row), table.row(row)));
        let rows = HostRows::new([(RowPart::whole(0, &other), &other)]);
        assert_eq!(RowSelection::touched(&rows).unwrap(), None);
    }
}

proptest! {
    #[test]
    fn positions_are_those_of_rows(
        first in 0..9u64, step in 1..5u64, count in 0..20u64,
        listed in prop::collection::btree_set(0..99u64, 0..20),
    ) {
        for set in [RowSet::Every { first, step, count }, RowSet::from(listed.into_iter().collect::<Vec<_>>())] {
            let rows: Vec<_> = set.iter().collect();
            prop_assert_eq!(rows.len() as u64, set.len());
            for row in 0..120 {
                let expected = rows.iter().position(|&own| own == row).map(|at| at as u64);
                prop_assert_eq!(set.position(row), expected);
                prop_assert_eq!(set.before(row), rows.iter().filter(|&&own| own < row).count() as u64);
            }
            let half = set.len() / 2;
            prop_assert_eq!(set.part(half..set.len()).iter().collect::<Vec<_>>(), &rows[half as usize..]);
            let even = RowSet::Every { first: 0, step: 2, count: half };
            let expected: Vec<_> = rows.iter().step_by(2).take(half as usize).copied().collect();
            prop_assert_eq!(set.at(&even).iter().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn marks_are_the_rows_that_were_marked(
        rows in prop::collection::btree_set(0..300u64, 0..40), among in prop::array::uniform2(0..=300u64),
    ) {
        let mut touched = TouchedRows::none(300);
        touched.mark(&rows.iter().copied().collect::<Vec<_>>());
        let [first, end] = [among[0].min(among[1]), among[0].max(among[1])];
        prop_assert_eq!(touched.among(first..end), rows.range(first..end).copied().collect::<Vec<_>>());
        prop_assert!((0..400).all(|row| touched.has(row) == rows.contains(&row)));
    }
}

#[test]
fn marks_of_many_rows_are_listed_in_order() {
    const ROWS: u64 = 1_000_003;
    let mut touched = TouchedRows::none(ROWS);
    // Runs of rows, gaps longer than what one thread lists, and the last row.
    let marked: Vec<_> = (0..ROWS).filter(|row| row % 7 < row / 300_000 || *row == ROWS - 1).collect();
    touched.mark(&marked);
    for among in [0..ROWS, 299_999..700_001, 1..300_000, 131_072..131_072] {
        let expected: Vec<_> = marked.iter().copied().filter(|row| among.contains(row)).collect();
        assert_eq!(touched.among(among.clone()), expected, "{among:?}");
    }
}

#[test]
fn listed_rows_are_copied_as_they_lie() {
    let spec = spec(50_000, 18, Dtype::Bf16);
    let table = numbered(&spec, RULES[3]);
    let rows = HostRows::new([(RowPart::whole(0, &table), &table)]);
    let positions: Vec<_> = (0..spec.rows).filter(|row| row % 5 != 2).collect();
    let snapshot = [RowSelection { part: 0, positions: positions.clone().into() }];
    let snapshot = Snapshot::of(&rows, &snapshot, None).unwrap();
    // A snapshot's rows are copied one by one, a table's by several threads.
    let every_third: Vec<_> = (0..positions.len() as u64).step_by(3).collect();
    let words = rows.parts()[0].layout.words;
    let mut of_snapshot = vec![f32::NAN; every_third.len() * words];
    snapshot.copy_listed(0, &every_third, &mut of_snapshot).unwrap();
    for (&number, words) in every_third.iter().zip(of_snapshot.chunks_exact(words)) {
        let row = positions[number as usize];
        assert_eq!(words, table.words(row..row + 1));
    }
    // Rows that lie together, at positions of the snapshot.
    let mut together = vec![f32::NAN; 5 * words];
    snapshot.copy(0, 7..12, &mut together).unwrap();
    for (row, words) in positions[7..12].iter().zip(together.chunks_exact(words)) {
        assert_eq!(words, table.words(*row..row + 1));
    }
    assert_eq!(snapshot.parts()[0].rows, RowSet::from(positions));
    assert_eq!(RowSelection::touched(&snapshot).unwrap(), None, "a copy keeps no book");
}

#[test]
fn bits_of_words_are_marks_of_rows() {
    let touched = TouchedRows::of(vec![0b101, 0, 1 << 31]);
    assert_eq!(touched.among(0..96), [0, 2, 95]);
}

/// More rows than one thread takes.
#[test]
fn weights_of_many_rows_go_to_their_rows() {
    const ROWS: u64 = 9000;
    let spec = spec(ROWS, 18, Dtype::Bf16);
    let table = numbered(&spec, RULES[3]);
    let listed: Vec<_> = (0..ROWS).map(|position| 2 * position + position % 2).collect();
    let sets = [RowSet::all(ROWS), RowSet::Every { first: 2, step: 3, count: ROWS }, RowSet::from(listed)];
    for set in sets {
        let is_listed = matches!(set, RowSet::Listed(_));
        let part = RowPart { rows: set.clone(), ..RowPart::whole(0, &table) };
        let rows = HostRows::new([(part, &table)]);
        for range in [0..set.row(ROWS - 1) + 1, set.row(10) - 1..set.row(ROWS - 10) + 1] {
            let mut weights = vec![f32::INFINITY; (range.end - range.start) as usize * 18];
            gather(&rows, 0, range.clone(), is_listed, (18, &mut weights)).unwrap();
            for (row, weights) in range.clone().zip(weights.chunks_exact(18)) {
                let expected =
                    set.position(row).map_or_else(|| vec![f32::INFINITY; 18], |at| table.weights(at).into());
                assert_eq!(weights, expected, "{range:?}: row {row}");
            }
        }
    }
}

#[test]
fn a_set_without_rows_is_empty() {
    for (rows, is_empty) in [
        (RowSet::all(0), true),
        (RowSet::all(1), false),
        (RowSet::Every { first: 3, step: 2, count: 0 }, true),
        (RowSet::from(Vec::new()), true),
        (RowSet::from(vec![0]), false),
    ] {
        assert_eq!(rows.is_empty(), is_empty, "{rows:?}");
    }
}

/// Rows whose near neighbours are edited together, as on a GPU. If an edit that claims to set everything does not,
/// the rest is lost.
struct WindowedRows<'a> {
    rows: HostRows<&'a mut Table>,
    gap_words: usize,
    edits: Vec<(Range<u64>, bool)>,
}

impl Rows for WindowedRows<'_> {
    fn parts(&self) -> &[RowPart] {
        self.rows.parts()
    }

    fn read<'a>(
        &'a self,
        part: usize,
        positions: Range<u64>,
        scratch: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], RowsError> {
        self.rows.read(part, positions, scratch)
    }

    fn touched(&self, part: usize) -> Result<Option<TouchedRows>, RowsError> {
        self.rows.touched(part)
    }
}

impl RowsMut for WindowedRows<'_> {
    fn edit(
        &mut self,
        part: usize,
        positions: Range<u64>,
        whole: bool,
        edit: &mut dyn FnMut(&mut [f32]),
    ) -> Result<(), RowsError> {
        self.edits.push((positions.clone(), whole));
        self.rows.edit(part, positions, whole, &mut |words| {
            if whole {
                words.fill(f32::NAN);
            }
            edit(words);
        })
    }

    fn gap_words(&self) -> usize {
        self.gap_words
    }

    fn begin_tracking(&mut self) -> Result<(), RowsError> {
        self.rows.begin_tracking()
    }
}

#[test]
fn near_rows_are_edited_together_and_what_lies_between_them_stays() {
    let spec = spec(40, 4, Dtype::Fp32);
    let rule = RULES[1];
    let from = numbered(&spec, rule);
    // Rows of 8 words: gaps of up to two rows are bridged.
    let (listed, gap_words) = (vec![1, 2, 3, 6, 10, 39], 23);
    let rows = HostRows::new([(RowPart::whole(0, &from), &from)]);
    let chosen = [RowSelection { part: 0, positions: listed.clone().into() }];
    let saved = taken(&rows, Dtype::Fp32, &chosen);
    let mut table = Table::zeroed(spec.clone(), optimizer(rule));
    let zeroed = table.clone();
    let mut to = WindowedRows { rows: whole(&mut table), gap_words, edits: Vec::new() };
    put(&mut to, Dtype::Fp32, &saved);
    assert_eq!(to.edits, [(1..7, false), (10..11, true), (39..40, true)]);
    for row in 0..40 {
        let expected = if listed.contains(&row) { &from } else { &zeroed };
        assert_eq!(table.row(row), expected.row(row), "row {row}");
    }

    // Only weights, as in an export: the existing state stays, so no edit sets everything.
    let mut to = WindowedRows { rows: whole(&mut table), gap_words: 0, edits: Vec::new() };
    let weights: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let piece = RowPiece {
        table: 0,
        columns: 0..4,
        rows: RowSet::from(vec![5]),
        dtype: Dtype::Fp32,
        weights: &weights,
        state: Vec::new(),
    };
    assert_eq!(place(&mut to, &piece).unwrap(), 4);
    assert_eq!(to.edits, [(5..6, false)]);
    assert_eq!(table.row(5), [1.0, 2.0, 3.0, 4.0, 0.5, 0.5, 0.5, 0.5]);
}

#[test]
fn a_row_with_any_broken_number_is_not_finite() {
    let adam = RULES[3];
    // Six weights and two kinds of six numbers of state, with padding between them.
    for (dtype, weight_words) in [(Dtype::Fp32, 6), (Dtype::Bf16, 3), (Dtype::Fp16, 3)] {
        let layout = RowLayout::new(20, (6, dtype), adam, (weight_words, 7));
        assert_eq!((layout.state(), layout.state_words()), (&[weight_words, weight_words + 7][..], 6));
        let counted = |word: usize| {
            word < weight_words || layout.state().iter().any(|&begin| (begin..begin + 6).contains(&word))
        };
        for word in 0..20 {
            for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut row = [0.0; 20];
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut row[word..=word]);
                let dtype = if word < weight_words { dtype } else { Dtype::Fp32 };
                // The last number of the word.
                dtype.put(broken, &mut bytes[4 - dtype.bytes()..]);
                assert_eq!(layout.is_finite(&row), !counted(word), "{dtype:?}, word {word}");
            }
        }
        // The largest finite numbers are finite.
        let mut row = [0.0; 20];
        let largest = if dtype == Dtype::Fp16 { 65_504.0 } else { dtype.nearest(f32::MAX) };
        let weights: Vec<u8> = [largest; 6].iter().flat_map(|value| value.to_le_bytes()).collect();
        layout.set_weights(&mut row, 0, Dtype::Fp32, &weights);
        assert!(layout.is_finite(&row), "{dtype:?}");
        let mut read = [0.0; 6];
        layout.read_weights(&row, &mut read);
        assert_eq!(read, [largest; 6]);
    }
}

#[test]
fn a_saved_row_has_its_weights_and_its_state() {
    let [sgd, adagrad, rowwise, adam] = RULES;
    assert_eq!(saved_row_bytes(&(0..6), Dtype::Fp32, &sgd), 24);
    assert_eq!(saved_row_bytes(&(0..6), Dtype::Bf16, &adagrad), 12 + 24);
    assert_eq!(saved_row_bytes(&(2..6), Dtype::Fp16, &adam), 8 + 32);
    // A row's one number is saved with its first columns.
    assert_eq!(saved_row_bytes(&(0..6), Dtype::Fp32, &rowwise), 24 + 4);
    assert_eq!(saved_row_bytes(&(2..6), Dtype::Fp32, &rowwise), 16);
}

#[test]
fn the_rules_have_the_names_of_job_files_and_of_pytorch() {
    let named = |rule: UpdateRule| (rule.name(), rule.state_names(), rule.is_rowwise());
    let [sgd, adagrad, rowwise, adam] = RULES;
    assert_eq!(named(sgd), ("sgd", &[][..], false));
    let momentum = UpdateRule::Momentum { momentum: 0.5, nesterov: false };
    assert_eq!(named(momentum), ("momentum", &["momentum_buffer"][..], false));
    assert_eq!(named(adagrad), ("adagrad", &["sum"][..], false));
    assert_eq!(named(rowwise), ("rowwise-adagrad", &["sum"][..], true));
    assert_eq!(named(adam), ("adam", &["exp_avg", "exp_avg_sq"][..], false));
    let ftrl = UpdateRule::Ftrl { beta: 1.0, l1: 0.0, l2: 0.0 };
    assert_eq!(named(ftrl), ("ftrl", &["z", "n"][..], false));
}

#[test]
fn a_snapshot_takes_over_the_memory_of_an_older_one() {
    let spec = spec(9, 4, Dtype::Fp32);
    let table = numbered(&spec, RULES[1]);
    let rows = HostRows::new([(RowPart::whole(0, &table), &table)]);
    let chosen =
        |first: u64, step, count| [RowSelection { part: 0, positions: RowSet::Every { first, step, count } }];
    assert_eq!(Snapshot::bytes(&rows, &chosen(2, 1, 3)), 3 * 8 * 4);
    let of = |choice: &[RowSelection], older: Snapshot, room| {
        let snapshot = Snapshot::of(&rows, choice, Some(older)).unwrap();
        assert_eq!(snapshot.room(), room);
        for (position, row) in choice[0].positions.iter().enumerate() {
            let position = position as u64;
            assert_eq!(snapshot.parts()[0].rows.row(position), row);
            let mut scratch = Vec::new();
            let words = snapshot.read(0, position..position + 1, &mut scratch).unwrap();
            assert_eq!(words, table.words(row..row + 1));
            let mut scratch = Vec::new();
            let words = choice[0].words_of(&rows, position..position + 1, &mut scratch).unwrap();
            assert_eq!(words, table.words(row..row + 1));
        }
        assert_eq!(snapshot.parts()[0].own, 0..choice[0].positions.len());
        snapshot
    };
    // As many words as there is room for, then fewer, then more.
    let snapshot = of(&chosen(2, 1, 3), Snapshot::with_room(vec![3 * 8]), 3 * 8 * 4);
    let snapshot = of(&chosen(1, 3, 2), snapshot, 3 * 8 * 4);
    of(&chosen(0, 2, 5), snapshot, 5 * 8 * 4);
}
