//! Rows go from any placement to any other and stay what they are.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::cpu::{HostRows, RankTables, Table};
use crate::optimizer::{Optimizer, UpdateRule};
use crate::placement::{EmbeddingPlan, Exchange, FrequentRows, TablePlan};
use crate::random::UniformField;
use crate::table::TableSpec;
use crate::topology::Topology;

const RULES: [UpdateRule; 4] = [
    UpdateRule::Sgd,
    UpdateRule::Adagrad { initial_accumulator: 0.5, epsilon: 1e-3 },
    UpdateRule::RowwiseAdagrad { initial_accumulator: 0.5, epsilon: 1e-3 },
    UpdateRule::Adam { beta1: 0.5, beta2: 0.75, epsilon: 1e-3 },
];

fn spec(rows: u64, dim: usize, dtype: Dtype) -> TableSpec {
    TableSpec { name: "t".into(), rows, dim, dtype }
}

fn optimizer(rule: UpdateRule) -> Optimizer {
    Optimizer { rule, ..Optimizer::sgd(0.1) }
}

/// A table all of whose words differ, state too.
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

/// What a part is as it is saved.
struct Saved {
    columns: Range<usize>,
    rows: RowSet,
    weights: Vec<u8>,
    state: Vec<Vec<f32>>,
}

/// Takes everything out of ranks, as saving does: what a rank speaks for, or what was touched of it.
fn taken(rows: &dyn Rows, dtype: Dtype, chosen: &[Choice]) -> Vec<Saved> {
    let snapshot = Snapshot::of(rows, chosen, None).unwrap();
    let saved = |(number, part): (usize, &RowPart)| {
        let words = snapshot.read(number, 0..part.rows.len(), &mut Vec::new()).unwrap().to_vec();
        let mut saved = Saved {
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

fn put(rows: &mut dyn RowsMut, dtype: Dtype, saved: &[Saved]) {
    // What is listed goes before the others, so it comes last.
    for listed in [false, true] {
        for Saved { columns, rows: of, weights, state } in saved {
            if matches!(of, RowSet::Listed(_)) == listed {
                let state = state.iter().map(Vec::as_slice).collect();
                let piece = PlacedRows {
                    table: 0,
                    columns: columns.clone(),
                    rows: of.clone(),
                    dtype,
                    weights,
                    state,
                };
                place(rows, &piece).unwrap();
            }
        }
    }
}

/// Plans of all kinds for a table over some ranks.
fn plans(spec: &TableSpec, ranks: usize) -> Vec<TablePlan> {
    let all: Vec<_> = (0..ranks).collect();
    let frequent = FrequentRows::listed((0..spec.rows).filter(|row| row % 3 == 1).collect());
    vec![
        TablePlan::replicated(spec),
        TablePlan::hybrid(spec, Exchange::Rows, frequent),
        TablePlan::row_wise(spec, Exchange::Rows),
        TablePlan::table_wise(spec, Exchange::Rows, ranks - 1),
        TablePlan::column_wise(spec, Exchange::Rows, &all),
    ]
}

fn ranks(spec: &TableSpec, rule: UpdateRule, plan: &TablePlan, ranks: usize) -> Vec<RankTables> {
    let topology = Topology::new(ranks, 1).unwrap();
    let plan = Arc::new(EmbeddingPlan { topology, tables: vec![plan.clone()] });
    let field = Some(UniformField::new(1, 0));
    let rank = |rank| RankTables::initialized(plan.clone(), rank, [(spec.clone(), optimizer(rule), field)]);
    (0..ranks).map(rank).collect()
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
        let mut saved = taken(&rows, dtype, &Choice::all(&rows));
        for (from, to) in [(4, 1), (1, 3), (3, 8), (8, 2)] {
            for (plan, next) in plans(&spec, from).iter().zip(plans(&spec, to).iter().rev()) {
                for (plan, count) in [(plan, from), (next, to)] {
                    let mut ranks = ranks(&spec, rule, plan, count);
                    ranks.iter_mut().for_each(|rank| put(&mut rank.rows_mut(), dtype, &saved));
                    saved = ranks
                        .iter()
                        .flat_map(|rank| taken(&rank.rows(), dtype, &Choice::all(&rank.rows())))
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
        let chosen = Choice::touched(&rows).unwrap().unwrap();
        assert_eq!(chosen[0].positions, RowSet::from(touched.to_vec()));
        put(&mut whole(&mut other), Dtype::Fp32, &taken(&rows, Dtype::Fp32, &chosen));
        (0..100).for_each(|row| assert_eq!(other.row(row), table.row(row)));
        let rows = HostRows::new([(RowPart::whole(0, &other), &other)]);
        assert_eq!(Choice::touched(&rows), Ok(None));
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
        let mut touched = Touched::none(300);
        touched.mark(&rows.iter().copied().collect::<Vec<_>>());
        let [first, end] = [among[0].min(among[1]), among[0].max(among[1])];
        prop_assert_eq!(touched.among(first..end), rows.range(first..end).copied().collect::<Vec<_>>());
        prop_assert!((0..400).all(|row| touched.has(row) == rows.contains(&row)));
    }
}

#[test]
fn marks_of_many_rows_are_listed_in_order() {
    const ROWS: u64 = 1_000_003;
    let mut touched = Touched::none(ROWS);
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
    let snapshot = [Choice { part: 0, positions: positions.clone().into() }];
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
    assert_eq!(snapshot.parts()[0].rows, RowSet::from(positions));
}
