//! Tests: models of every kind are loaded as they were saved, and no content of a file makes loading panic.

use std::fs;
use std::num::NonZero;

use rankine_base::Stop;
use rankine_base::sealed::Checksum;
use rankine_embedding::membership::Eviction;
use rankine_embedding::{Dtype, DynamicRows, Optimizer, Pooling};
use rankine_engine_cpu::{ScoringBuffers, ScoringModel};
use rankine_model::{FeatureSpec, HeadSpec, Interaction, Model, TrainingRules};
use rankine_reader::generate::{GenerateSpec, Shape, generate};
use rankine_reader::schema::{DenseFunction, DenseTransform};
use rankine_reader::stream::{BatchStream, StreamOptions};
use rankine_reader::{Columns, Dataset, Part, Samples};
use serde_json::Value;
use tempfile::TempDir;

use super::tensors::put_weights;
use super::*;

const ROWS: [u64; 3] = [5, 7, 11];

/// Generates a dataset of three dense columns and three tables; returns its samples, too.
fn dataset(place: &TempDir) -> (Dataset, Samples) {
    let shape = Shape {
        name: "small".into(),
        dense: 3,
        rows: ROWS.to_vec(),
        hotness: vec![1, 2, 3],
        ragged: true,
        pooling: rankine_reader::schema::Pooling::Sum,
        sequences: Vec::new(),
        churn: None,
    };
    let spec = GenerateSpec { shape, rows_cap: None, samples: 50, eval_samples: 0, alpha: 1.1, seed: 1 };
    let dir = place.path().join("data");
    let threads = NonZero::new(1).unwrap();
    generate(&spec, &dir, threads, &Stop::default(), |_| {}).unwrap();
    let dataset = Dataset::open(&dir).unwrap();
    let mut batches =
        BatchStream::open(dataset.part(Part::Train).unwrap(), &StreamOptions::one_epoch(50)).unwrap();
    let samples = batches.next().unwrap().unwrap().samples.clone();
    (dataset, samples)
}

fn spec(interaction: Interaction, wide: bool) -> ModelSpec {
    let table = |number: usize| TableSpec {
        name: format!("T{number}"),
        rows: ROWS[number],
        dim: 4,
        dtype: [Dtype::Fp32, Dtype::Bf16, Dtype::Fp16][number],
        dynamic: None,
    };
    let feature = |table: usize| FeatureSpec {
        column: format!("C{}", table + 1),
        table,
        pooling: if table == 0 { Pooling::Sum } else { Pooling::Mean },
        weighted: false,
    };
    ModelSpec {
        dense_columns: 3,
        bottom_mlp: vec![6, 4],
        interaction,
        wide,
        top_mlp: vec![5],
        heads: vec![HeadSpec { label: "label".into(), label_number: 0, weight: 1.0 }],
        tables: (0..3).map(table).collect(),
        features: (0..3).map(feature).collect(),
        attention: Vec::new(),
    }
}

fn logits(model: &mut CpuModel, samples: &Samples) -> Vec<f32> {
    let mut logits = Vec::new();
    model.logits(samples, &mut logits);
    logits
}

/// Saves a model that was trained on a dataset.
fn save_model(dataset: &Dataset, dir: &Path, model: &CpuModel) -> Result<(), SavedModelError> {
    let vocabulary = |name: &str| dataset.checked_file(name);
    let columns = Columns::of(dataset);
    let job = "name = \"small\"";
    save(dir, model, &ModelMetadata { steps: 5, job, columns: &columns, vocabulary: &vocabulary })
}

/// Trains a model for five steps, saves it, and returns its folder, samples and predictions for them.
fn saved(spec: ModelSpec, place: &TempDir) -> (PathBuf, Samples, Vec<f32>) {
    let (dataset, samples) = dataset(place);
    let mut model = CpuModel::initialized(&Model::sgd(spec, 0.5), 3);
    for _ in 0..5 {
        model.train_step(&samples, 1.0).unwrap();
    }
    let dir = place.path().join("model");
    save_model(&dataset, &dir, &model).unwrap();
    let logits = logits(&mut model, &samples);
    (dir, samples, logits)
}

#[test]
fn saved_models_of_every_kind_predict_the_same() {
    for (interaction, wide, named) in [
        (Interaction::Dot, false, vec!["bottom.1.bias", "top.0.weight", "embedding.T2"]),
        (Interaction::Cross { layers: 2, rank: None }, false, vec!["cross.1.weight", "cross.1.bias"]),
        (
            Interaction::Cross { layers: 2, rank: Some(2) },
            false,
            vec!["cross.0.v.weight", "cross.1.u.weight", "cross.1.u.bias"],
        ),
        (Interaction::FactorizationMachine, true, vec!["linear.weight", "wide.C3"]),
        (Interaction::Concat, true, vec!["linear.weight", "wide.C1"]),
    ] {
        let place = TempDir::new().unwrap();
        let (dir, samples, expected) = saved(spec(interaction, wide), &place);
        let opened = SavedModel::open(&dir).unwrap();
        assert_eq!(opened.spec, spec(interaction, wide));
        assert_eq!(logits(&mut opened.load(&dir).unwrap(), &samples), expected);
        let bytes = fs::read(dir.join(WEIGHTS_NAME)).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for name in named {
            assert!(tensors.tensor(name).is_ok(), "{interaction:?} has no {name}");
        }
    }
}

/// A saved model has the ids of its rows: it finds them, and looks up the shared row for all others.
#[test]
fn saved_models_know_the_ids_of_their_rows() {
    let place = TempDir::new().unwrap();
    let mut with_ids = spec(Interaction::Concat, true);
    let evict = Eviction::Ttl { steps: 2 };
    for table in [0, 2] {
        let rows = DynamicRows { capacity: 9, admit_after: 1 + table as u8, evict };
        with_ids.tables[table].rows = rows.table_rows();
        with_ids.tables[table].dynamic = Some(rows);
    }
    let (dataset, samples) = dataset(&place);
    let mut model = CpuModel::initialized(&Model::sgd(with_ids.clone(), 0.5), 3);
    for first in [0, 10, 20, 30] {
        let mut batch = samples.slice(first..first + 10);
        if first > 0 {
            // All other ids of this column expire.
            batch.categorical[0].ids.fill(4);
        }
        model.train_step(&batch, 1.0).unwrap();
    }
    let known = |membership: &Membership| {
        let keys: Vec<_> =
            membership.keys_of_rows().flatten().filter(|&key| membership.find(key).is_some()).collect();
        keys.into_iter().map(|key| (key, membership.find(key))).collect::<Vec<_>>()
    };
    let dir = place.path().join("model");
    save_model(&dataset, &dir, &model).unwrap();
    let mut opened = SavedModel::open(&dir).unwrap().load(&dir).unwrap();
    assert_eq!(logits(&mut opened, &samples), logits(&mut model, &samples));
    for ((_, found), (_, expected)) in opened.memberships().zip(model.memberships()) {
        assert_eq!(known(found), known(expected));
        assert!(!known(expected).is_empty());
    }
    // Some have expired, and are not saved.
    let counts = |model: &CpuModel| model.dynamic_tables().iter().map(|table| table.rows).sum::<u64>();
    assert!(counts(&opened) < counts(&model), "{} {}", counts(&opened), counts(&model));
    let scoring = ScoringModel::new(opened);
    let mut scored = vec![0.0; samples.len];
    scoring.logits(&samples, None, &mut ScoringBuffers::default(), &mut scored);
    assert_eq!(scored, logits(&mut model, &samples));
    // A row that occurs twice among the ids is damage, whatever the checksums say.
    let bytes = fs::read(dir.join(WEIGHTS_NAME)).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let keys = tensors.tensor("keys.T0").unwrap().data().to_vec();
    let has_key = tensors.tensor("has_key.T0").unwrap().data().to_vec();
    let taken = has_key.iter().position(|&one| one == 1).unwrap();
    let twice = [&keys[8 * taken..8 * taken + 8]; 10].concat();
    let error = keys::read(&with_ids, &[&twice, &[1; 10]]).unwrap_err();
    assert!(error.contains("the ids of table T0"), "{error}");
}

/// Weights that take several reads and writes are restored, however they were split when they were handed over.
#[test]
fn weights_of_several_runs_are_restored() {
    let place = TempDir::new().unwrap();
    let (dataset, _) = dataset(&place);
    let mut spec = spec(Interaction::Concat, true);
    // 24, 12 and 12 MB in runs of 8 MiB. No table's end is the end of a run.
    spec.tables.iter_mut().for_each(|table| table.rows = 1_500_001);
    let model = CpuModel::initialized(&Model::sgd(spec, 0.5), 3);
    let dir = place.path().join("model");
    save_model(&dataset, &dir, &model).unwrap();
    let weights = |model: &dyn Weights| {
        let mut all = Vec::new();
        let visited = model.try_for_each_run(&mut |run| {
            all.extend(run.iter().map(|weight| weight.to_bits()));
            Ok(())
        });
        visited.unwrap();
        all
    };
    let expected = weights(&model);
    let spec = model.spec();
    assert_eq!(expected.len() as u64, spec.dense_parameters() as u64 + spec.embedding_parameters());
    let saved = SavedModel::verify(&dir).unwrap().0;
    assert!(weights(&saved.load(&dir).unwrap()) == expected, "the weights read differ from those saved");
    assert!(weights(&saved.weights(&dir).unwrap()) == expected, "the weights mapped differ from those saved");
    assert!(weights(&scoring_model(&model).unwrap()) == expected, "a copy has other weights");
}

/// A row has 16 MiB, so a run of 64 MiB has four.
#[test]
fn rows_are_visited_once_and_in_order() {
    let table = |rows| TableSpec { name: "T".into(), rows, dim: 1 << 22, dtype: Dtype::Fp32, dynamic: None };
    for (rows, expected) in [(10, vec![(0, 4), (4, 8), (8, 10)]), (4, vec![(0, 4)]), (1, vec![(0, 1)])] {
        let mut found = Vec::new();
        let visited = for_each_run(&table(rows), |rows, weights| {
            assert_eq!(weights.len() as u64, (rows.end - rows.start) << 22);
            found.push((rows.start, rows.end));
            Ok::<_, SavedModelError>(())
        });
        visited.unwrap();
        assert_eq!(found, expected);
    }
}

/// A model only scores datasets with the columns that it was trained on.
#[test]
fn columns_that_differ_in_anything_are_refused() {
    let place = TempDir::new().unwrap();
    let (dataset, _) = dataset(&place);
    let own = Columns::of(&dataset);
    assert_eq!(own.difference(&dataset), None);
    type Change = fn(&mut Columns);
    let cases: [(&str, Change); 7] = [
        ("it lacks `other`, and has `", |columns| columns.schema.labels[0].name = "other".into()),
        ("it lacks `other`, and has `", |columns| columns.schema.dense[1].name = "other".into()),
        ("it lacks `other`, and has `", |columns| columns.schema.categorical[2].name = "other".into()),
        ("column I3 has", |columns| {
            columns.schema.dense[2].transform = DenseTransform::plain(DenseFunction::SignedLog1p)
        }),
        ("column C2 has 7 rows", |columns| columns.schema.categorical[1].rows = Some(8)),
        ("column C3 has 11 rows", |columns| columns.schema.categorical[2].shares = Some("C1".into())),
        ("differs from the one that the model was trained with", |columns| {
            let (name, bytes, xxh3) = ("vocabulary/C1.tsv".into(), 1, Checksum(1));
            columns.vocabularies.push(FileManifest { name, bytes, xxh3 });
        }),
    ];
    for (words, change) in cases {
        let mut other = own.clone();
        change(&mut other);
        let what = other.difference(&dataset).unwrap();
        assert!(what.contains(words), "{what}");
    }
}

#[test]
fn features_of_other_columns_are_refused() {
    let place = TempDir::new().unwrap();
    let (dir, ..) = saved(spec(Interaction::Concat, true), &place);
    let mut content = content_of(&dir);
    content["spec"]["features"][1]["column"] = "other".into();
    reseal(&dir, &content);
    let error = SavedModel::open(&dir).unwrap_err().to_string();
    assert!(error.contains("its features differ from the categorical columns"), "{error}");
}

#[test]
fn non_finite_weights_are_not_saved() {
    let place = TempDir::new().unwrap();
    let (dataset, samples) = dataset(&place);
    let spec = spec(Interaction::Concat, true);
    let (still, broken) = (Optimizer::sgd(0.0), Optimizer::sgd(f64::INFINITY));
    let rules = TrainingRules::sgd(&spec, 0.0);
    for (rules, expected) in [
        (TrainingRules { dense: broken, ..rules.clone() }, "bottom.0.weight"),
        (TrainingRules { tables: vec![broken, still, still], ..rules.clone() }, "embedding.T0"),
        (TrainingRules { wide: broken, ..rules }, "wide.C1"),
    ] {
        let mut model = CpuModel::initialized(&Model { spec: spec.clone(), rules }, 1);
        // No loss is computed after the last step, so it is not skipped.
        assert!(model.train_step(&samples, 1.0).unwrap().skipped.is_none());
        let dir = place.path().join(expected);
        let error = save_model(&dataset, &dir, &model).unwrap_err();
        assert!(matches!(&error, SavedModelError::NotFinite { tensor } if tensor == expected), "{error}");
        assert!(!dir.exists());
    }
}

#[test]
fn every_weight_of_a_run_is_checked_and_converted() {
    let part = RUN_BYTES / 4;
    let mut weights: Vec<_> = (0..3 * part).map(|number| number as f32 / 7.0).collect();
    for dtype in [Dtype::Fp32, Dtype::Bf16, Dtype::Fp16] {
        let mut bytes = vec![0; weights.len() * dtype.bytes()];
        assert!(put_weights(&weights, dtype, &mut bytes));
        let mut expected = vec![0; dtype.bytes()];
        for (bytes, weight) in bytes.chunks_exact(dtype.bytes()).zip(&weights) {
            dtype.put(*weight, &mut expected);
            assert_eq!(bytes, expected);
        }
        for place in [0, part - 1, part, 2 * part + 5, 3 * part - 1] {
            let weight = std::mem::replace(&mut weights[place], f32::NAN);
            assert!(!put_weights(&weights, dtype, &mut bytes), "{place}");
            weights[place] = weight;
        }
    }
}

/// Collects the JSON pointers of all numbers in a value.
fn numbers(value: &Value, place: &str, out: &mut Vec<String>) {
    match value {
        Value::Number(_) => out.push(place.to_owned()),
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(i, value)| numbers(value, &format!("{place}/{i}"), out));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| numbers(value, &format!("{place}/{key}"), out));
        }
        _ => {}
    }
}

/// Writes `model.json` with other content and a checksum that fits.
fn reseal(dir: &Path, content: &Value) {
    fs::write(dir.join(MANIFEST_NAME), sealed::to_json(KIND, FORMAT, content)).unwrap();
}

fn content_of(dir: &Path) -> Value {
    let text = fs::read(dir.join(MANIFEST_NAME)).unwrap();
    sealed::from_json(KIND, FORMAT, &text).unwrap()
}

/// No number in the model's description makes loading panic or allocate memory for it: a wrong one is an error.
#[test]
fn descriptions_that_do_not_fit_the_weights_are_refused() {
    for interaction in [Interaction::Dot, Interaction::Cross { layers: 2, rank: Some(2) }] {
        let place = TempDir::new().unwrap();
        let (dir, ..) = saved(spec(interaction, true), &place);
        let content = content_of(&dir);
        let mut places = Vec::new();
        numbers(&content["spec"], "/spec", &mut places);
        assert!(places.len() >= 15, "{places:?}");
        for place in places.iter().filter(|place| !place.ends_with("weight")) {
            for number in [0, 1, 2, 8, 1 << 20, 1 << 21, 1 << 32, 1 << 40, 1 << 62, u64::MAX] {
                let mut changed = content.clone();
                let value = changed.pointer_mut(place).unwrap();
                if *value == number {
                    continue;
                }
                *value = number.into();
                reseal(&dir, &changed);
                let outcome = SavedModel::open(&dir).and_then(|opened| opened.load(&dir));
                assert!(
                    matches!(outcome, Err(SavedModelError::Damaged { .. })),
                    "{place} = {number}: {outcome:?}"
                );
            }
        }
        for (place, value) in [
            ("/spec/heads", Value::Array(Vec::new())),
            ("/spec/heads/0/label", "another".into()),
            ("/spec/heads/0/weight", (-1.0).into()),
            ("/spec/features/1/column", "C1".into()),
            ("/spec/tables/1/name", "T0".into()),
            ("/spec/wide", false.into()),
            ("/spec/bottom_mlp", Value::Array(Vec::new())),
            ("/schema/categorical/0/rows", 6.into()),
            ("/schema/labels", Value::Array(Vec::new())),
            ("/weights_stripe_bytes", 0.into()),
            ("/weights_stripe_bytes", (1_u64 << 40).into()),
        ] {
            let mut changed = content.clone();
            *changed.pointer_mut(place).unwrap() = value;
            reseal(&dir, &changed);
            let outcome = SavedModel::open(&dir).and_then(|opened| opened.load(&dir));
            assert!(matches!(outcome, Err(SavedModelError::Damaged { .. })), "{place}: {outcome:?}");
        }
    }
}

/// Weights with a changed header and a checksum that fits it: an error, or the same model.
#[test]
fn forged_headers_of_weights_are_refused() {
    let place = TempDir::new().unwrap();
    let (dir, samples, expected) = saved(spec(Interaction::Dot, true), &place);
    let mut content = content_of(&dir);
    let path = dir.join(WEIGHTS_NAME);
    let whole = fs::read(&path).unwrap();
    let header_end = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let mut refused = 0;
    let mut load = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        content["weights"]["bytes"] = bytes.len().into();
        content["weights"]["xxh3"] = serde_json::to_value(Checksum::of(bytes)).unwrap();
        reseal(&dir, &content);
        match SavedModel::open(&dir).and_then(|opened| opened.load(&dir)) {
            Ok(mut model) => assert_eq!(logits(&mut model, &samples), expected),
            Err(_) => refused += 1,
        }
    };
    load(&whole);
    for at in (0..header_end).step_by(3) {
        let mut bytes = whole.clone();
        bytes[at] = [b'9', b'0', b'"', 255][at % 4];
        load(&bytes);
    }
    for len in [0, 7, 8, header_end - 1, header_end, whole.len() - 1] {
        load(&whole[..len]);
    }
    assert!(refused > header_end / 4, "{refused} in {header_end} bytes");
}
