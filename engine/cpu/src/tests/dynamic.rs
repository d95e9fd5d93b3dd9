//! Dynamic tables: against tables with one row per id, on one rank and on several.

use rankine_embedding::cpu::Table;
use rankine_embedding::membership::{Eviction, FullTable, IfFull, InitialRows, SavedMembership};
use rankine_embedding::{
    Dtype, DynamicRows, EmbeddingPlan, Exchange, Membership, Optimizer, Pooling, RoundCapacity, TablePlan,
    TableSpec, UpdateRule,
};
use rankine_model::{
    FeatureSpec, HeadSpec, Interaction, Model, ModelSpec, TrainingRules, initial_parameters,
};
use rankine_reader::Samples;
use rankine_reader::samples::Bags;
use rankine_topology::{Rank, Topology};

use super::oracle::{rows_of, uniform};
use crate::{CpuModel, Sharding};

const SEED: u64 = 5;

/// Two columns that share a table whose rows are given to ids, and one with a table of ten rows.
fn model(rows: DynamicRows, dtype: Dtype, sparse: UpdateRule) -> Model {
    let dynamic =
        TableSpec { name: "ids".into(), rows: rows.table_rows(), dim: 6, dtype, dynamic: Some(rows) };
    let fixed = TableSpec { name: "fixed".into(), rows: 10, dim: 6, dtype: Dtype::Fp32, dynamic: None };
    let feature = |column: &str, table, pooling, weighted| FeatureSpec {
        column: column.into(),
        table,
        pooling,
        weighted,
    };
    let spec = ModelSpec {
        dense_columns: 2,
        bottom_mlp: vec![6],
        interaction: Interaction::Dot,
        wide: true,
        top_mlp: vec![5],
        heads: vec![HeadSpec { label: "label".into(), label_number: 0, weight: 1.0 }],
        tables: vec![fixed, dynamic],
        features: vec![
            feature("one", 1, Pooling::Sum, true),
            feature("few", 0, Pooling::Mean, false),
            feature("two", 1, Pooling::Mean, false),
        ],
        attention: Vec::new(),
    };
    let of = |rule| Optimizer { rule, learning_rate: 0.05, weight_decay: 0.0 };
    let dense = of(UpdateRule::Sgd);
    let rules = TrainingRules {
        dense,
        dense_clip_norm: None,
        tables: vec![of(UpdateRule::Sgd), of(sparse)],
        wide: of(UpdateRule::Adagrad { initial_accumulator: 0.1, epsilon: 1e-8 }),
    };
    Model { spec, rules }
}

const ADAGRAD: UpdateRule = UpdateRule::Adagrad { initial_accumulator: 0.1, epsilon: 1e-8 };

fn rows(capacity: u64, admit_after: u8, evict: Eviction) -> DynamicRows {
    DynamicRows { capacity, admit_after, evict }
}

/// Samples with up to three ids of `distinct` in each bag; the smallest and the largest number are among them.
fn batch(samples: usize, distinct: u64, seed: u64) -> Samples {
    let numbers = uniform(seed, 0, 16 * samples);
    let mut numbers = numbers.iter().map(|number| (f64::from(*number) + 1.0) / 2.0);
    let mut below = |limit: u64| (numbers.next().unwrap_or(0.5) * limit as f64) as u64;
    let key = |number: u64| match number {
        0 => 0,
        1 => u64::MAX,
        number => number.wrapping_mul(0x9E37_79B9_7F4A_7C15),
    };
    let mut categorical = vec![Bags::default(); 3];
    let mut label = Vec::new();
    for _ in 0..samples {
        let weighted: Vec<_> = (0..below(4)).map(|_| (key(below(distinct)), below(5) as f32 / 2.0)).collect();
        categorical[0].push_weighted(weighted);
        categorical[1].push([below(10)]);
        let bag: Vec<_> = (0..below(4)).map(|_| key(below(distinct))).collect();
        categorical[2].push(bag);
        label.push(below(2) as f32);
    }
    let dense = uniform(seed, 1, 2 * samples);
    Samples { len: samples, labels: vec![label], weights: Vec::new(), dense, dense_columns: 2, categorical }
}

/// The keys of the table's look-ups: sample by sample, then column by column.
fn keys(batch: &Samples) -> Vec<u64> {
    let of_sample = |sample| [0, 2].map(|column: usize| batch.categorical[column].bag(sample)).concat();
    (0..batch.len).flat_map(of_sample).collect()
}

fn saved(model: &CpuModel) -> SavedMembership {
    model.memberships().next().unwrap().1.saved()
}

fn row_bits(model: &CpuModel) -> Vec<Vec<u32>> {
    rows_of(model).iter().map(|row| row.iter().map(|weight| weight.to_bits()).collect()).collect()
}

/// As long as no id loses its row, a model learns what it learns with one row per id, to the bit.
#[test]
fn rows_of_ids_learn_as_other_rows_do() {
    for (dtype, rule) in [
        (Dtype::Fp32, ADAGRAD),
        (Dtype::Bf16, UpdateRule::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-4 }),
        (Dtype::Fp16, UpdateRule::RowwiseAdagrad { initial_accumulator: 0.1, epsilon: 1e-8 }),
    ] {
        let model = model(rows(100, 2, Eviction::Lru), dtype, rule);
        let batches: Vec<_> = (0..6).map(|number| batch(40, 60, number)).collect();
        let mut membership = Membership::new(rows(100, 2, Eviction::Lru));
        let mut admissions = Vec::new();
        for (step, batch) in (1..).zip(&batches) {
            admissions.push(membership.admit(step, &keys(batch)).rows);
        }
        let keys_of_rows: Vec<_> = membership.keys_of_rows().collect();
        assert!(membership.counts().unadmitted_lookups > 10 && membership.counts().evicted == 0);
        let mut fixed = model.clone();
        fixed.spec.tables[1].dynamic = None;
        let tables =
            fixed.all_tables().into_iter().enumerate().map(|(number, (table, optimizer))| match number {
                0 => Table::initialized(table, optimizer, SEED, 0),
                1 => {
                    let whole = Table::initialized(table.clone(), optimizer, SEED, 1);
                    let initial = InitialRows::new(table.initial_bound(), SEED, 1);
                    Table::filled(table, optimizer, |row, weights| match keys_of_rows[row as usize] {
                        Some(key) => initial.fill(key, weights),
                        None => weights.copy_from_slice(whole.weights(row)),
                    })
                }
                _ => Table::zeroed(table, optimizer),
            });
        // Rounding needs a seed, which tables that are filled do not have.
        let round = dtype != Dtype::Fp32;
        let tables: Vec<_> = tables.collect();
        let mut ours = CpuModel::initialized(&model, SEED);
        if round {
            // Weights are compared after the first step, before which only rows of ids are set.
            ours.train_step(&batches[0], 0.0).unwrap();
            for (row, key) in keys_of_rows.iter().enumerate().skip(1) {
                let row = row as u64;
                let key_now = ours.memberships().next().unwrap().1.keys_of_rows().nth(row as usize).unwrap();
                if key_now.is_some() {
                    assert_eq!(key_now, *key);
                    let mut weights = vec![0.0; 6];
                    ours.gather(1, row..row + 1, (6, &mut weights));
                    assert_eq!(weights, tables[1].weights(row), "row {row}");
                }
            }
            continue;
        }
        let mut theirs = CpuModel::new(&fixed, initial_parameters(&fixed.spec, SEED), tables);
        for (batch, rows) in batches.iter().zip(&admissions) {
            let mut translated = batch.clone();
            let mut next = rows.iter();
            for sample in 0..batch.len {
                for column in [0, 2] {
                    let bags = &mut translated.categorical[column];
                    let bag = bags.offsets[sample] as usize..bags.offsets[sample + 1] as usize;
                    bags.ids[bag].iter_mut().for_each(|id| *id = *next.next().unwrap());
                }
            }
            let losses = [ours.train_step(batch, 1.0), theirs.train_step(&translated, 1.0)];
            let [loss, expected] = losses.map(|outcome| outcome.unwrap().loss.to_bits());
            assert_eq!(loss, expected);
            let (mut logits, mut expected) = (Vec::new(), Vec::new());
            ours.logits(batch, &mut logits);
            theirs.logits(&translated, &mut expected);
            assert_eq!(logits, expected);
        }
        let expected = row_bits(&theirs);
        for (row, found) in row_bits(&ours).iter().enumerate() {
            // Rows that no id has differ: their weights are of no use.
            let of_table = row.checked_sub(10).filter(|row| *row < keys_of_rows.len());
            if of_table.is_none_or(|row| row == 0 || keys_of_rows[row].is_some()) {
                assert_eq!(*found, expected[row], "row {row}");
            }
        }
    }
}

fn over_ranks(model: &Model, ranks: usize, kind: usize) -> CpuModel {
    let topology = Topology::new(ranks, 1).unwrap();
    let all: Vec<_> = Rank::first(ranks).collect();
    let tables = model.all_tables().into_iter().map(|(table, _)| {
        let plan = match kind {
            0 => TablePlan::replicated(&table),
            1 => TablePlan::row_wise(&table, Exchange::Rows),
            2 => TablePlan::row_wise(&table, Exchange::Pooled),
            3 => TablePlan::table_wise(&table, Exchange::Rows, Rank(ranks - 1)),
            _ => TablePlan::column_wise(&table, Exchange::Rows, &all),
        };
        TablePlan { round: RoundCapacity { vectors: 4, ids: 5 }, ..plan }
    });
    let plan = EmbeddingPlan { topology, tables: tables.collect() };
    CpuModel::over_ranks(model, SEED, Sharding { plan, shard_dense_update: false, threads: 2 }).unwrap()
}

/// Which ids have rows does not depend on the ranks, and rows are equal but for the rounding of sums.
#[test]
fn ranks_give_rows_to_the_same_ids() {
    for (evict, rule) in [
        (Eviction::Lru, ADAGRAD),
        (Eviction::Lfu, UpdateRule::RowwiseAdagrad { initial_accumulator: 0.1, epsilon: 1e-8 }),
        (Eviction::Ttl { steps: 2 }, UpdateRule::Ftrl { beta: 1.0, l1: 0.0, l2: 0.001 }),
        (Eviction::None { if_full: IfFull::Skip }, ADAGRAD),
        (Eviction::None { if_full: IfFull::Shared }, ADAGRAD),
    ] {
        let model = model(rows(25, 2, evict), Dtype::Fp32, rule);
        let batches: Vec<_> = (0..8).map(|number| batch(12, 80, number)).collect();
        let train = |model: &mut CpuModel| -> Vec<f64> {
            batches.iter().map(|batch| model.train_step(batch, 1.0).unwrap().loss).collect()
        };
        let mut one = CpuModel::initialized(&model, SEED);
        let losses = train(&mut one);
        let counts = one.dynamic_tables()[0].counts;
        assert!(counts.unadmitted_lookups > 0 && counts.admitted > 20, "{counts:?}");
        assert_eq!(counts.evicted > 0, !matches!(evict, Eviction::None { .. }), "{counts:?}");
        for (ranks, kind) in [(2, 0), (2, 1), (4, 1), (2, 2), (4, 3), (4, 4), (2, 4)] {
            let case = format!("{evict:?} on {ranks} ranks, placement {kind}");
            let mut several = over_ranks(&model, ranks, kind);
            for (loss, expected) in train(&mut several).iter().zip(&losses) {
                assert!((loss - expected).abs() < 1e-5, "{case}: {loss} {expected}");
            }
            assert_eq!(saved(&several), saved(&one), "{case}");
            assert_eq!(several.dynamic_tables(), one.dynamic_tables());
            for (found, expected) in rows_of(&several).iter().flatten().zip(rows_of(&one).iter().flatten()) {
                assert!((found - expected).abs() < 1e-4, "{case}: {found} {expected}");
            }
            assert!(several.diverged_ranks().is_empty(), "{case}");
            let mut again = over_ranks(&model, ranks, kind);
            train(&mut again);
            assert_eq!(row_bits(&again), row_bits(&several), "{case}");
        }
    }
}

/// A batch with one sample and these ids in its first column.
fn sample(ids: &[u64]) -> Samples {
    let mut batch = batch(1, 2, 0);
    batch.categorical[0] = Bags::default();
    batch.categorical[0].push_weighted(ids.iter().map(|&id| (id, 1.0)));
    batch.categorical[2] = Bags::default();
    batch.categorical[2].push([]);
    batch
}

/// The state of a row of a table and of the first-order terms of both columns.
fn row_and_terms(model: &CpuModel, row: u64) -> Vec<Vec<f32>> {
    let of_tables = model.on_each_rank(|_, state| {
        let parts = state.rows.parts().iter().enumerate().filter(|(_, part)| [1, 2, 4].contains(&part.table));
        let read = |(number, _)| Ok(state.rows.read(number, row..row + 1, &mut Vec::new())?.to_vec());
        parts.map(read).collect::<Result<Vec<_>, rankine_embedding::rows::RowsError>>()
    });
    of_tables.unwrap().remove(0)
}

/// A row begins anew with each id, in all tables and with its optimizer state, also in a step that is skipped.
#[test]
fn rows_begin_anew_with_each_id() {
    let model = model(rows(1, 1, Eviction::Lru), Dtype::Fp32, ADAGRAD);
    let initial = |key| {
        let mut weights = vec![0.0; 6];
        InitialRows::new(model.spec.tables[1].initial_bound(), SEED, 1).fill(key, &mut weights);
        let row = [&weights[..], &[0.1; 6]].concat();
        let term = vec![0.0, 0.1, 0.0, 0.0];
        vec![row, term.clone(), term]
    };
    let mut ours = CpuModel::initialized(&model, SEED);
    ours.train_step(&sample(&[7]), 1.0).unwrap();
    let trained = row_and_terms(&ours, 1);
    assert_ne!(trained[0], initial(7)[0]);
    assert_ne!(trained[1], initial(7)[1]);
    for (key, skipped) in [(8, true), (u64::MAX, true), (7, true)] {
        let mut batch = sample(&[key]);
        batch.dense[0] = f32::NAN;
        let outcome = ours.train_step(&batch, 1.0).unwrap();
        assert_eq!(outcome.skipped.is_some(), skipped);
        assert_eq!(row_and_terms(&ours, 1), initial(key), "key {key}");
        assert_eq!(saved(&ours).keys.keys, [key]);
    }
    // Over capacity, the second id of a batch looks up the shared row, which is trained.
    let shared = row_and_terms(&ours, 0);
    ours.train_step(&sample(&[7, 9]), 1.0).unwrap();
    assert_eq!(saved(&ours).keys.keys, [7]);
    assert_ne!(row_and_terms(&ours, 0)[0], shared[0]);
    // Scoring admits nothing: unknown ids look up the shared row.
    let (mut of_one, mut of_other) = (Vec::new(), Vec::new());
    ours.logits(&sample(&[123]), &mut of_one);
    ours.logits(&sample(&[456]), &mut of_other);
    assert_eq!(of_one, of_other);
    assert_eq!(saved(&ours).keys.keys, [7]);
}

#[test]
fn a_full_table_does_what_the_job_says() {
    let full = |if_full| {
        let model = model(rows(2, 1, Eviction::None { if_full }), Dtype::Fp32, ADAGRAD);
        let mut ours = CpuModel::initialized(&model, SEED);
        ours.train_step(&sample(&[1, 2]), 1.0).unwrap();
        ours
    };
    let error = full(IfFull::Fail).train_step(&sample(&[2, 3]), 1.0).unwrap_err();
    assert_eq!(error, FullTable { table: "ids".into(), key: 3, keys: 2, capacity: 2 });
    assert!(error.to_string().contains("table ids has no row for id 3: 2 ids have its 2 rows"), "{error}");
    // Skipped ids are as ids that the bag never had.
    let (mut skips, mut without) = (full(IfFull::Skip), full(IfFull::Skip));
    let losses = [skips.train_step(&sample(&[3, 2, 3]), 1.0), without.train_step(&sample(&[2]), 1.0)];
    let [loss, expected] = losses.map(|outcome| outcome.unwrap().loss);
    assert_eq!(loss.to_bits(), expected.to_bits());
    assert_eq!(row_bits(&skips), row_bits(&without));
    assert_eq!(skips.dynamic_tables()[0].counts.unadmitted_lookups, 2);
    let mut shares = full(IfFull::Shared);
    let shared = row_and_terms(&shares, 0);
    shares.train_step(&sample(&[3]), 1.0).unwrap();
    assert_ne!(row_and_terms(&shares, 0), shared);
}
