//! Helpers shared by several test modules.

use std::path::Path;

use proptest::prelude::*;

use crate::io::{Rung, probe};
use crate::samples::Samples;
use crate::schema::{
    Categorical, Dense, DenseDtype, DenseFunction, DenseTransform, Hotness, Label, Pooling, Schema,
    VocabularyKind,
};

#[path = "../../../tests/support/file_calls.rs"]
pub(crate) mod file_calls;
#[path = "../../../tests/support/files.rs"]
mod files;
#[path = "../../../tests/support/seccomp.rs"]
#[allow(dead_code, reason = "no commands are run here")]
pub(crate) mod seccomp;
#[path = "../../../tests/support/skipped.rs"]
mod skipped;

pub(crate) use files::tree;
pub(crate) use skipped::skipped;

/// Returns the rungs that work in a folder and reports the others as skipped. Only io_uring may be refused or, if the
/// kernel offers it, direct reading, which not every file system supports.
#[track_caller]
pub(crate) fn working_rungs(dir: &Path) -> Vec<Rung> {
    let offered = io_uring::IoUring::new(8).is_ok();
    let mut working = Vec::new();
    for (rung, outcome) in probe(dir) {
        let refusable = match rung {
            Rung::UringDirect => true,
            Rung::UringBuffered => !offered,
            Rung::Pread | Rung::Mmap | Rung::ObjectStore => false,
        };
        match outcome {
            Ok(()) => working.push(rung),
            Err(why) if refusable => skipped(format_args!("{rung} is refused: {why}")),
            Err(why) => panic!("{rung} is refused: {why}"),
        }
    }
    working
}

/// Generates schemas of up to two labels, three dense and three categorical columns.
pub(crate) fn any_schema() -> impl Strategy<Value = Schema> {
    let rows = prop::option::weighted(0.75, 1..1u64 << 40);
    let column = (rows, 0..4u32, any::<bool>(), any::<bool>(), any::<bool>());
    let columns = prop::collection::vec(column, 0..4);
    (1..3usize, any::<bool>(), 0..4usize, any::<bool>(), columns).prop_map(
        |(labels, weight, dense, half, columns)| Schema {
            labels: (0..labels).map(|i| Label::new(format!("label{i}"))).collect(),
            weight: weight.then(|| "weight".into()),
            dense: (0..dense)
                .map(|i| Dense {
                    name: format!("I{i}"),
                    transform: DenseTransform::plain(DenseFunction::None),
                })
                .collect(),
            dense_dtype: if half { DenseDtype::F16 } else { DenseDtype::F32 },
            sequences: Vec::new(),
            categorical: columns
                .into_iter()
                .enumerate()
                .map(|(i, (rows, hot, ragged, mean, weighted))| Categorical {
                    name: format!("C{i}"),
                    rows,
                    hotness: if ragged { Hotness::Ragged { max: hot } } else { Hotness::Fixed(hot.max(1)) },
                    pooling: if mean { Pooling::Mean } else { Pooling::Sum },
                    vocabulary: rows.map_or(VocabularyKind::Open, |_| VocabularyKind::Identity),
                    weighted: ragged && weighted,
                    shares: None,
                })
                .collect(),
        },
    )
}

/// Generates up to `most` samples of any schema; dense values are small integers, which every storage type holds
/// exactly.
pub(crate) fn any_samples(most: usize) -> impl Strategy<Value = (Schema, Samples)> {
    (any_schema(), 1..=most, any::<u64>()).prop_map(|(schema, len, seed)| {
        let samples = samples_of(&schema, len, seed);
        (schema, samples)
    })
}

/// Generates `len` samples of a schema from a seed.
pub(crate) fn samples_of(schema: &Schema, len: usize, seed: u64) -> Samples {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 24
    };
    let mut samples = Samples::new(schema);
    samples.len = len;
    for labels in &mut samples.labels {
        // Some label columns have missing labels in some samples.
        let gaps = next() % 2 == 0;
        labels.extend((0..len).map(|_| match next() % 8 {
            0 if gaps => f32::NAN,
            number => (number & 1) as f32,
        }));
    }
    if schema.weight.is_some() {
        samples.weights.extend((0..len).map(|_| (next() % 100) as f32 / 8.0));
    }
    samples.dense.extend((0..len * schema.dense.len()).map(|_| (next() % 2001) as f32 - 1000.0));
    for (column, bags) in schema.categorical.iter().zip(&mut samples.categorical) {
        for _ in 0..len {
            let size = match column.hotness {
                Hotness::Fixed(size) => u64::from(size),
                Hotness::Ragged { max } => next() % (u64::from(max) + 1),
            };
            let ids = (0..size).map(|_| match (column.rows, next()) {
                (Some(rows), number) => number % rows,
                // Keys of all widths, and the lowest and the highest ones.
                (None, number) if number % 4 == 0 => 0_u64.wrapping_sub(number % 3),
                (None, number) => (next() << 40 ^ next()) >> (number % 64),
            });
            bags.push(ids.collect::<Vec<_>>());
            if column.weighted {
                bags.weights.extend((0..size).map(|_| (1 + next() % 100) as f32 / 8.0));
            }
        }
    }
    samples
}

/// A dataset in a temporary folder, and the samples of its training part.
pub(crate) struct TestDataset {
    home: tempfile::TempDir,
    pub(crate) schema: Schema,
    pub(crate) samples: Samples,
}

impl TestDataset {
    pub(crate) fn dir(&self) -> std::path::PathBuf {
        self.home.path().join("data")
    }
}

/// Writes a dataset with two labels, weights, dense columns and all kinds of categorical columns. The first dense
/// column is the sample's number. The evaluation part is a tenth of the training part.
pub(crate) fn dataset(samples: usize, block_samples: u32) -> TestDataset {
    let column = |name: &str, rows, hotness| Categorical {
        name: name.into(),
        rows: Some(rows),
        hotness,
        pooling: Pooling::Sum,
        vocabulary: VocabularyKind::Identity,
        weighted: false,
        shares: None,
    };
    let dense =
        |name: &str| Dense { name: name.into(), transform: DenseTransform::plain(DenseFunction::None) };
    let schema = Schema {
        labels: vec![Label::new("click"), Label::new("buy")],
        weight: Some("weight".into()),
        dense: vec![dense("number"), dense("other")],
        dense_dtype: DenseDtype::F32,
        sequences: Vec::new(),
        categorical: vec![
            column("C0", 1 << 20, Hotness::Fixed(1)),
            column("C1", 1000, Hotness::Fixed(3)),
            column("C2", 50, Hotness::Ragged { max: 4 }),
        ],
    };
    let mut train = samples_of(&schema, samples, 1);
    for (number, row) in train.dense.chunks_mut(2).enumerate() {
        row[0] = number as f32;
    }
    let home = tempfile::tempdir().unwrap();
    let dir = rankine_base::publish::PartialDir::create(&home.path().join("data")).unwrap();
    let mut writer = crate::write::DatasetWriter::new(&dir, schema.clone(), block_samples).unwrap();
    writer.push(crate::Part::Train, &train).unwrap();
    writer.push(crate::Part::Eval, &samples_of(&schema, samples.div_ceil(10), 2)).unwrap();
    writer.finish(origin()).unwrap();
    dir.publish().unwrap();
    TestDataset { home, schema, samples: train }
}

/// Fails unless the popularity in a dataset's folder is what a pass over the samples counts.
pub(crate) fn assert_popularity_of_samples(dir: &Path) {
    let path = dir.join(crate::popularity::FILE_NAME);
    let written = std::fs::read(&path).unwrap();
    let dataset = crate::Dataset::open(dir).unwrap();
    crate::counting::count(&dataset, std::num::NonZeroUsize::MIN, &mut |_| ()).unwrap();
    assert!(written == std::fs::read(&path).unwrap());
}

/// Returns a sample origin.
pub(crate) fn origin() -> crate::origin::Origin {
    use crate::generate::{GenerateSpec, Generation, Shape};
    let shape = Shape::load("dlrm").unwrap();
    let spec = GenerateSpec { shape, rows_cap: None, samples: 1, eval_samples: 0, alpha: 1.1, seed: 0 };
    crate::origin::Origin::Generated(Generation { spec, auc_achievable: None })
}
