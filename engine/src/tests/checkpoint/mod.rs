//! A bad checkpoint is never taken for a good one, and a good one always remains: whatever fails, and whenever.
//!
//! With `RANKINE_TEST_LONG` set, tests go through hundreds of seeds and ten thousand flipped bits.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rankine_base::Stop;
use rankine_base::sealed::Checksum;
use rankine_checkpoint::*;
use rankine_embedding::{Dtype, Optimizer, Pooling, TableSpec, UpdateRule};
use rankine_engine_cpu::CpuModel;
use rankine_model::{FeatureSpec, HeadSpec, Interaction, Model, ModelSpec, TrainingRules};
use rankine_reader::generate::{GenerateSpec, Shape, generate};
use rankine_reader::stream::{BatchStream, StreamOptions};
use rankine_reader::{Dataset, Part, Samples, Split};
use tempfile::TempDir;
use xxhash_rust::xxh3::Xxh3;

use self::simulated::Simulated;

mod dynamic;
mod parts;
mod simulated;

const ROWS: [u64; 3] = [50, 7, 400];
const DIR: &str = "checkpoints";

fn spec() -> ModelSpec {
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
        pooling: Pooling::Sum,
        weighted: false,
    };
    ModelSpec {
        dense_columns: 3,
        bottom_mlp: vec![6, 4],
        interaction: Interaction::Concat,
        wide: true,
        top_mlp: vec![5],
        heads: vec![HeadSpec { label: "label".into(), label_number: 0, weight: 1.0 }],
        tables: (0..3).map(table).collect(),
        features: (0..3).map(feature).collect(),
        attention: Vec::new(),
    }
}

fn learning(spec: ModelSpec) -> Model {
    let by = |rule| Optimizer { rule, ..Optimizer::sgd(0.1) };
    let rules = TrainingRules {
        dense: by(UpdateRule::Adam { beta1: 0.5, beta2: 0.75, epsilon: 1e-3 }),
        dense_clip_norm: None,
        tables: vec![
            by(UpdateRule::Adagrad { initial_accumulator: 0.1, epsilon: 1e-3 }),
            by(UpdateRule::RowwiseAdagrad { initial_accumulator: 0.1, epsilon: 1e-3 }),
            by(UpdateRule::Momentum { momentum: 0.5, nesterov: false }),
        ],
        wide: by(UpdateRule::Ftrl { beta: 1.0, l1: 0.0, l2: 0.0 }),
    };
    Model { spec, rules }
}

/// Batches with few look-ups per table.
fn batches() -> Vec<Samples> {
    let place = TempDir::new().unwrap();
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
    let spec = GenerateSpec { shape, rows_cap: None, samples: 120, eval_samples: 0, alpha: 1.1, seed: 1 };
    let dir = place.path().join("data");
    generate(&spec, &dir, NonZero::new(1).unwrap(), &Stop::default(), |_| {}).unwrap();
    let part = Dataset::open(&dir).unwrap().part(Part::Train).unwrap();
    let stream = BatchStream::open(part, &StreamOptions::one_epoch(10)).unwrap();
    stream.map(|batch| batch.unwrap().samples.clone()).collect()
}

fn fresh() -> CpuModel {
    CpuModel::initialized(&learning(spec()), 3)
}

/// A fingerprint of the state of a model.
fn fingerprint(model: &CpuModel) -> u64 {
    let of_ranks = model.on_each_rank(|_, state| {
        let mut hash = Xxh3::new();
        let mut scratch = Vec::new();
        let dense =
            state.dense.iter().flat_map(|dense| std::iter::once(&dense.parameters).chain(&dense.state));
        dense.for_each(|numbers| hash.update(bytemuck::cast_slice(numbers)));
        for (number, part) in state.rows.parts().iter().enumerate() {
            hash.update(bytemuck::cast_slice(
                state.rows.read(number, part.own.clone(), &mut scratch).unwrap(),
            ));
        }
        Ok::<_, CheckpointError>(hash.digest())
    });
    of_ranks.unwrap()[0]
}

fn manifest(step: u64, base: Option<Base>) -> Manifest {
    let model = learning(spec());
    Manifest {
        version: "test".into(),
        train: TrainState { step, ..TrainState::default() },
        seed: 3,
        order: OrderState { shuffle: false, window_blocks: 1, validation: Split::None },
        data: DataIdentity {
            samples: 120,
            block_samples: 10,
            schema: Checksum(1),
            blocks: Checksum(2),
            vocabularies: Vec::new(),
            raw: Vec::new(),
        },
        dense: RuleState::of(&model.rules.dense),
        tables: TableState::all(&model),
        spec: model.spec,
        device: None,
        ranks: 1,
        nodes: 1,
        base,
        shards: Vec::new(),
        files: Vec::new(),
    }
}

/// Saves a model as training does: all of it, or the rows touched since a full checkpoint.
fn save(
    files: &Arc<dyn Files>,
    model: &CpuModel,
    step: u64,
    base: Option<Base>,
) -> Result<PublishedCheckpoint, CheckpointError> {
    let draft = Draft::begin(Arc::clone(files), Path::new(DIR), step)?;
    let manifest = manifest(step, base);
    let written = model.on_each_rank(|rank, state| {
        let chosen = match &manifest.base {
            Some(_) => Chosen::changed(&state)?,
            None => Chosen::all(&state),
        };
        write_shard(&**files, draft.path(), rank, &manifest, (&state, &chosen))
    });
    match written {
        Ok(shards) => draft.publish(manifest, shards, &[("job.toml", "name = \"small\"\n")]),
        Err(error) => {
            draft.abandon();
            Err(error)
        }
    }
}

/// A model with the state of a checkpoint.
fn loaded(checkpoint: &Checkpoint) -> CpuModel {
    let mut model = fresh();
    let (dense, memberships) = (checkpoint.dense().unwrap(), checkpoint.memberships().unwrap());
    let steps = checkpoint.manifest().train.step;
    model.restore(steps, &dense, memberships, |rows| checkpoint.load_rows(rows)).unwrap();
    model
}

/// A training whose state after each step is known.
struct Course {
    batches: Vec<Samples>,
    /// By steps done.
    fingerprints: Vec<u64>,
}

/// Steps between two checkpoints, and between full ones, in checkpoints.
const EVERY: u64 = 2;
const WHOLE_EVERY: u64 = 3;
const STEPS: u64 = 12;
const KEEP: usize = 2;

impl Course {
    fn new() -> Self {
        let (batches, mut model) = (batches(), fresh());
        let mut fingerprints = vec![fingerprint(&model)];
        for step in 0..STEPS {
            model.train_step(&batches[step as usize], 1.0).unwrap();
            fingerprints.push(fingerprint(&model));
        }
        Self { batches, fingerprints }
    }

    /// Trains from the latest checkpoint to the end, with checkpoints. Steps of published ones are pushed to
    /// `published`; errors of saving go to `failed`, which may end it.
    fn run(
        &self,
        files: &Arc<dyn Files>,
        published: &mut Vec<u64>,
        failed: &mut dyn FnMut(CheckpointError) -> bool,
    ) -> Option<CpuModel> {
        let (found, damaged) = match latest(files, Path::new(DIR)) {
            Ok(found) => found,
            Err(error) => return failed(error).then(fresh),
        };
        for damaged in damaged {
            let _ = set_aside(&**files, Path::new(DIR), damaged.step);
        }
        let (mut model, first) = match &found {
            Some(checkpoint) => (loaded(checkpoint), checkpoint.manifest().train.step),
            None => (fresh(), 0),
        };
        assert_eq!(
            fingerprint(&model),
            self.fingerprints[first as usize],
            "step {first} was not restored exactly"
        );
        let (mut whole, mut additions): (Option<Base>, _) = (None, 0);
        for step in first + 1..=STEPS {
            model.train_step(&self.batches[step as usize - 1], 1.0).unwrap();
            assert_eq!(
                fingerprint(&model),
                self.fingerprints[step as usize],
                "step {step} has another result"
            );
            if step % EVERY > 0 {
                continue;
            }
            additions += 1;
            let base = whole.clone().filter(|_| additions < WHOLE_EVERY);
            let is_whole = base.is_none();
            match save(files, &model, step, base) {
                Ok(done) => {
                    published.push(step);
                    if is_whole {
                        (whole, additions) = (Some(Base { step, xxh3: done.xxh3 }), 0);
                        model.begin_tracking();
                    }
                    let needs = |step| {
                        let opened = Checkpoint::open(files, &Path::new(DIR).join(step_name(step)));
                        let base = |found: &Checkpoint| found.base().map(|base| base.manifest().train.step);
                        opened.as_ref().map(base).ok().map(|base| Needs { base, ..Needs::default() })
                    };
                    if let Err(error) = prune(&**files, Path::new(DIR), KEEP, needs)
                        && !failed(error)
                    {
                        return None;
                    }
                }
                Err(error) => {
                    whole = None;
                    if !failed(error) {
                        return None;
                    }
                }
            }
        }
        Some(model)
    }

    /// The latest good checkpoint: it is of a published step, or of a later one, and holds the model's state at that
    /// step. No folder with the name of a checkpoint is bad: only power failures damage files.
    #[track_caller]
    fn check(&self, files: &Arc<dyn Files>, published: &[u64], what: &str) {
        let (found, damaged) = latest(files, Path::new(DIR)).unwrap();
        assert!(damaged.is_empty(), "{what}: {damaged:?}");
        for (step, path) in list(&**files, Path::new(DIR)).unwrap() {
            let verified = Checkpoint::open(files, &path).and_then(|checkpoint| checkpoint.verify());
            verified.unwrap_or_else(|error| panic!("{what}: step {step}: {error}"));
        }
        let last = published.last().copied().unwrap_or(0);
        let Some(checkpoint) = found else {
            assert_eq!(last, 0, "{what}: step {last} was published, and is gone");
            return;
        };
        let step = checkpoint.manifest().train.step;
        assert!(step >= last, "{what}: step {last} was published, and {step} is the latest");
        let model = loaded(&checkpoint);
        assert_eq!(
            fingerprint(&model),
            self.fingerprints[step as usize],
            "{what}: step {step} has another state"
        );
    }
}

fn long() -> bool {
    std::env::var_os("RANKINE_TEST_LONG").is_some()
}

/// Pseudo-random numbers: Knuth's MMIX generator.
fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

fn simulated() -> (Arc<Simulated>, Arc<dyn Files>) {
    let simulated = Arc::new(Simulated::default());
    let files: Arc<dyn Files> = Arc::clone(&simulated) as _;
    (simulated, files)
}

/// Power fails before each operation: a good checkpoint remains, no older than the last published one, and training
/// from it has the same result.
#[test]
fn power_may_fail_before_any_operation() {
    let course = Course::new();
    let (_, files) = simulated();
    let counting = Arc::new(FaultyFiles::new(files, 0, Fault::Kill));
    course.run(&(Arc::clone(&counting) as Arc<dyn Files>), &mut Vec::new(), &mut |error| panic!("{error}"));
    let operations = counting.operations();
    assert!(operations > 150, "{operations}");
    let seeds = if long() { 300 } else { 4 };
    for seed in 0..seeds {
        let mut next = numbers(seed);
        for at in 1..=operations {
            // Each seed tests other operations; in the long version, all seeds test all.
            if !long() && !(at + seed).is_multiple_of(seeds) {
                continue;
            }
            let what = format!("seed {seed}, operation {at}");
            let (disk, files) = simulated();
            // The first failure ends the run, as the power failure does.
            let cut: Arc<dyn Files> = Arc::new(FaultyFiles::new(files, at, Fault::Error(5)));
            let mut published = Vec::new();
            let ended = course.run(&cut, &mut published, &mut |_| false);
            let back: Arc<dyn Files> = Arc::new(disk.after_power_failure(&mut next));
            course.check(&back, &published, &what);
            if ended.is_none() && at.is_multiple_of(7) {
                let model = course.run(&back, &mut published, &mut |error| panic!("{what}: {error}"));
                assert_eq!(fingerprint(&model.unwrap()), course.fingerprints[STEPS as usize], "{what}");
            }
        }
    }
}

/// One operation fails, and training continues: a published checkpoint exists, a failed one has removed none, and a
/// later one is saved again.
#[test]
fn any_operation_may_fail() {
    let course = Course::new();
    let faults = [
        (Fault::Error(5), false),
        // A direct write may be refused without losing anything.
        (Fault::Error(22), false),
        (Fault::Error(28), false),
        (Fault::Short, true),
        (Fault::Interrupted, false),
    ];
    for (number, (fault, heals)) in faults.into_iter().enumerate() {
        // Together the faults fail all operations; in the long version, each of them does.
        let (mut at, stride) = if long() { (1, 1) } else { (1 + number as u64, 5) };
        loop {
            let (disk, files) = simulated();
            let faulty = Arc::new(FaultyFiles::new(files, at, fault));
            let (mut published, mut failures) = (Vec::new(), 0);
            course.run(&(Arc::clone(&faulty) as Arc<dyn Files>), &mut published, &mut |_| {
                failures += 1;
                true
            });
            let what = format!("{fault:?} at operation {at}");
            assert!(failures <= 1 && !(heals && failures > 0), "{what}: {failures} failures");
            let files: Arc<dyn Files> = Arc::clone(&disk) as _;
            course.check(&files, &published, &what);
            let after: Arc<dyn Files> = Arc::new(disk.after_power_failure(&mut numbers(at)));
            course.check(&after, &published, &what);
            // The first two read the folder: if one fails, training does not start.
            let begun = at > 2 || failures == 0;
            // The last checkpoint is saved again, unless it is the one that failed.
            let saved = published.last().is_some_and(|&last| last >= STEPS - EVERY);
            assert!(saved || !begun, "{what}: {published:?}");
            if at > faulty.operations() {
                break;
            }
            at += stride;
        }
        assert!(at > 150);
    }
}

/// Every file of the checkpoints, with its length.
fn files_of(files: &Arc<dyn Files>) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for (_, path) in list(&**files, Path::new(DIR)).unwrap() {
        for name in files.names(&path).unwrap() {
            let path = path.join(name);
            found.push((path.clone(), files.open(&path).unwrap().size().unwrap()));
        }
    }
    found
}

#[test]
fn every_flipped_bit_is_found() {
    let course = Course::new();
    let (disk, files) = simulated();
    course.run(&files, &mut Vec::new(), &mut |error| panic!("{error}"));
    let (all, mut next) = (files_of(&files), numbers(1));
    assert_eq!(all.len(), 3 * 4, "{all:?}");
    for _ in 0..if long() { 10_000 } else { 400 } {
        let (path, len) = &all[next() as usize % all.len()];
        let bit = next() % (len * 8);
        // The line breaks at the ends of manifests and indexes are the only bytes without meaning.
        if path.extension().is_some_and(|of| of == "json") && bit / 8 == len - 1 {
            continue;
        }
        let flip = |bytes: &mut Vec<u8>| bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        disk.change(path, flip);
        let dir = path.parent().unwrap();
        let opened = Checkpoint::open(&files, dir).and_then(|checkpoint| checkpoint.verify());
        assert!(opened.is_err(), "bit {bit} of {path:?}");
        disk.change(path, flip);
    }
    // A truncated or extended file is detected, too.
    for (path, len) in &all {
        for change in [-1i64, 1] {
            // A manifest without its last line break means the same.
            if change < 0 && path.ends_with("manifest.json") {
                continue;
            }
            let mut kept = Vec::new();
            disk.change(path, |bytes| {
                kept = bytes.clone();
                bytes.resize((*len as i64 + change) as usize, 0);
            });
            let opened = Checkpoint::open(&files, path.parent().unwrap()).and_then(|found| found.verify());
            assert!(opened.is_err(), "{path:?} by {change}");
            disk.change(path, |bytes| *bytes = kept);
        }
    }
    let (_, damaged) = latest(&files, Path::new(DIR)).unwrap();
    assert!(damaged.is_empty(), "{damaged:?}");
}

/// Full checkpoints of steps 2, 4 and 6 of an untrained model.
fn three() -> (Arc<Simulated>, Arc<dyn Files>) {
    let (disk, files) = simulated();
    for step in [2, 4, 6] {
        save(&files, &fresh(), step, None).unwrap();
    }
    (disk, files)
}

fn names_of(files: &Arc<dyn Files>) -> Vec<String> {
    let mut names = files.names(Path::new(DIR)).unwrap();
    names.sort_unstable();
    names
}

fn flip_a_bit(disk: &Simulated, step: u64) {
    let shard = Path::new(DIR).join(step_name(step)).join("shard-00000.safetensors");
    disk.change(&shard, |bytes| *bytes.last_mut().unwrap() ^= 1);
}

/// Any one operation of looking for the latest checkpoint fails: that ends it, and no checkpoint is skipped.
#[test]
fn an_error_of_reading_is_not_damage() {
    let (_, files) = three();
    let counting = Arc::new(FaultyFiles::new(Arc::clone(&files), 0, Fault::Kill));
    latest(&(Arc::clone(&counting) as Arc<dyn Files>), Path::new(DIR)).unwrap();
    let operations = counting.operations();
    assert!(operations > 10, "{operations}");
    // EIO, EACCES, EISDIR, ENOENT, ESTALE.
    for code in [5, 13, 21, 2, 116] {
        for at in 1..=operations {
            let faulty: Arc<dyn Files> =
                Arc::new(FaultyFiles::new(Arc::clone(&files), at, Fault::Error(code)));
            let error = latest(&faulty, Path::new(DIR)).unwrap_err();
            let what = format!("error {code} at operation {at}: {error}");
            match &error {
                CheckpointError::Io { .. } if at == 1 => {}
                CheckpointError::Unreadable { path, why } => {
                    assert!(path.ends_with("step-6"), "{what}");
                    assert!(
                        matches!(**why, CheckpointError::Io { .. } | CheckpointError::Missing(_)),
                        "{what}"
                    );
                    assert!(what.contains("--restart") && what.contains("Nothing was changed"), "{what}");
                    assert_eq!(what.contains("Put the missing files back"), code == 2, "{what}");
                }
                _ => panic!("{what}"),
            }
            assert_eq!(names_of(&files), ["step-2", "step-4", "step-6"], "{what}");
        }
    }
}

/// A checkpoint of another version may be intact: it is neither skipped nor called damaged.
#[test]
fn another_version_is_not_damage() {
    for name in ["manifest.json", "shard-00000.json"] {
        let (disk, files) = three();
        let path = Path::new(DIR).join("step-6").join(name);
        let mut old = Vec::new();
        disk.change(&path, |bytes| {
            old = bytes.clone();
            let text = String::from_utf8(bytes.clone()).unwrap();
            *bytes = text.replacen("\"format\": 1", "\"format\": 2", 1).into_bytes();
        });
        if name != "manifest.json" {
            // The manifest has the checksum of what the newer version wrote.
            let manifest = Path::new(DIR).join("step-6/manifest.json");
            let mut new = Vec::new();
            disk.change(&path, |bytes| new = bytes.clone());
            let sums = [&old, &new].map(|bytes| Checksum::of(bytes).to_string());
            disk.change(&manifest, |bytes| {
                let text = String::from_utf8(bytes.clone()).unwrap().replace(&sums[0], &sums[1]);
                let content = &text[text.find("\"content\": ").unwrap() + 11..text.rfind('}').unwrap()];
                let content = content.trim();
                let at = text.find("\"xxh3\": \"").unwrap() + 9;
                let sum = Checksum::of(content.as_bytes()).to_string();
                *bytes = [&text[..at], &sum, &text[at + 16..]].concat().into_bytes();
            });
        }
        let error = latest(&files, Path::new(DIR)).unwrap_err();
        let CheckpointError::Unreadable { why, .. } = &error else { panic!("{name}: {error}") };
        assert!(matches!(**why, CheckpointError::Version { .. }), "{name}: {error}");
        assert!(error.to_string().contains("of format 2"), "{name}: {error}");
        assert_eq!(names_of(&files), ["step-2", "step-4", "step-6"]);
    }
}

/// The base of an incremental checkpoint is part of it: without the base, nobody can say whether it is good.
#[test]
fn a_missing_base_is_not_damage() {
    let course = Course::new();
    let (_, files) = simulated();
    course.run(&files, &mut Vec::new(), &mut |error| panic!("{error}"));
    let addition = list(&*files, Path::new(DIR)).unwrap().into_iter().find_map(|(step, path)| {
        let base = Checkpoint::open(&files, &path).unwrap().base()?.manifest().train.step;
        Some((step, base))
    });
    let (step, base) = addition.expect("most checkpoints are incremental");
    let (at, elsewhere) = (Path::new(DIR).join(step_name(base)), Path::new("elsewhere"));
    files.rename(&at, elsewhere).unwrap();
    let before = names_of(&files);
    let error = latest(&files, Path::new(DIR)).unwrap_err();
    let CheckpointError::Unreadable { path, why } = &error else { panic!("{error}") };
    assert!(path.ends_with(step_name(step)), "{error}");
    assert!(matches!(&**why, CheckpointError::Missing(missing) if *missing == at), "{error}");
    assert_eq!(names_of(&files), before);
    files.rename(elsewhere, &at).unwrap();
    assert!(latest(&files, Path::new(DIR)).unwrap().0.is_some());
}

/// Damaged checkpoints are skipped if a good one is left, and never if none is.
#[test]
fn without_a_usable_checkpoint_nothing_is_found() {
    let (disk, files) = three();
    flip_a_bit(&disk, 6);
    let (found, damaged) = latest(&files, Path::new(DIR)).unwrap();
    assert_eq!((found.unwrap().manifest().train.step, damaged.len(), damaged[0].step), (4, 1, 6));
    flip_a_bit(&disk, 2);
    flip_a_bit(&disk, 4);
    let error = latest(&files, Path::new(DIR)).unwrap_err();
    assert!(matches!(&error, CheckpointError::NoneUsable { found, .. } if found.len() == 3), "{error}");
    assert!(error.to_string().contains("--restart"), "{error}");
    assert_eq!(names_of(&files), ["step-2", "step-4", "step-6"]);
    // Those that were set aside before are checkpoints, too.
    for step in [2, 4, 6] {
        set_aside(&*files, Path::new(DIR), step).unwrap();
    }
    let error = latest(&files, Path::new(DIR)).unwrap_err();
    assert!(matches!(&error, CheckpointError::NoneUsable { found, .. } if found.len() == 3), "{error}");
    let (_, empty) = simulated();
    assert!(matches!(latest(&empty, Path::new(DIR)), Ok((None, damaged)) if damaged.is_empty()));
}

/// A copy under another name would make training resume at a step that it did not reach.
#[test]
fn a_checkpoint_of_another_step_than_its_name_says_is_passed_over() {
    let (_, files) = three();
    let at = |step| Path::new(DIR).join(step_name(step));
    files.rename(&at(6), &at(8)).unwrap();
    let (found, damaged) = latest(&files, Path::new(DIR)).unwrap();
    assert_eq!(found.unwrap().manifest().train.step, 4);
    let [DamagedCheckpoint { step: 8, why, .. }] = &damaged[..] else { panic!("{damaged:?}") };
    assert!(why.to_string().contains("another step"), "{why}");
}

/// An unreadable checkpoint may be incremental: the full checkpoint before it stays.
#[test]
fn what_an_unreadable_checkpoint_may_need_is_kept() {
    let (_, files) = three();
    let needs = |step| (step != 6).then(Needs::default);
    prune(&*files, Path::new(DIR), 1, needs).unwrap();
    assert_eq!(names_of(&files), ["step-2", "step-4", "step-6"]);
    prune(&*files, Path::new(DIR), 2, |_| Some(Needs::default())).unwrap();
    assert_eq!(names_of(&files), ["step-4", "step-6"]);
}

/// Of the models that a run may end with, those that are averaged with them stay, and what all of them build on.
#[test]
fn what_a_checkpoint_needs_is_kept() {
    let (_, files) = simulated();
    for step in 1..=9 {
        files.create_dir(&Path::new(DIR).join(step_name(step))).unwrap();
    }
    let needs = |step| {
        Some(match step {
            9 => Needs { best: Some(5), averaged: vec![7], ..Needs::default() },
            5 => Needs { best: Some(4), averaged: vec![3], ..Needs::default() },
            // These are not models that the run may end with.
            7 => Needs { averaged: vec![6], base: Some(2), ..Needs::default() },
            3 => Needs { averaged: vec![1], best: Some(8), ..Needs::default() },
            _ => Needs::default(),
        })
    };
    prune(&*files, Path::new(DIR), 1, needs).unwrap();
    assert_eq!(names_of(&files), ["step-2", "step-3", "step-5", "step-7", "step-9"]);
}

#[test]
fn leftovers_are_told_apart() {
    let (_, files) = three();
    for name in ["step-8.partial", "step-1.damaged", "step-1.damaged-2", "step-x.partial", "step-3.other"] {
        files.create_dir(&Path::new(DIR).join(name)).unwrap();
    }
    let at = |name: &str| Path::new(DIR).join(name);
    let expected = Leftovers {
        partial: vec![at("step-8.partial")],
        damaged: vec![at("step-1.damaged"), at("step-1.damaged-2")],
    };
    assert_eq!(leftovers(&*files, Path::new(DIR)).unwrap(), expected);
    assert!(files.tree_bytes(&at("step-6")).unwrap() > 1000);
}

#[test]
fn what_is_no_number_is_not_saved() {
    let (_, files) = simulated();
    for (sparse, expected) in [(f64::INFINITY, "embedding.T0"), (0.0, "the dense parameters")] {
        let mut learning = learning(spec());
        learning.rules.tables.iter_mut().for_each(|rule| rule.learning_rate = sparse);
        learning.rules.dense.learning_rate = if sparse == 0.0 { f64::INFINITY } else { 0.0 };
        let mut model = CpuModel::initialized(&learning, 3);
        model.train_step(&batches()[0], 1.0).unwrap();
        let error = save(&files, &model, 1, None).unwrap_err();
        assert!(matches!(&error, CheckpointError::NotFinite { tensor } if tensor == expected), "{error}");
        assert!(list(&*files, Path::new(DIR)).unwrap().is_empty());
    }
}

/// The file of a shard is valid safetensors, and its tensors are named.
#[test]
fn shards_are_safetensors() {
    let (disk, files) = simulated();
    let mut model = fresh();
    model.train_step(&batches()[0], 1.0).unwrap();
    let saved = save(&files, &model, 1, None).unwrap();
    let mut bytes = Vec::new();
    disk.change(&saved.path.join("shard-00000.safetensors"), |of_file| bytes = of_file.clone());
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for (name, shape) in [
        ("dense/0.parameters", vec![spec().dense_parameters()]),
        ("dense/0.exp_avg_sq", vec![spec().dense_parameters()]),
        ("embedding.T0/1.weight", vec![50, 4]),
        ("embedding.T0/1.sum", vec![50, 4]),
        ("embedding.T1/2.sum", vec![7]),
        ("wide.C3/6.n", vec![400, 1]),
    ] {
        let tensor =
            tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}: {:?}", tensors.names()));
        assert_eq!(tensor.shape(), shape, "{name}");
    }
}

/// Training continues the counts of a checkpoint: they must not overflow.
#[test]
fn counts_beyond_any_training_are_refused() {
    let (_, files) = simulated();
    save(&files, &fresh(), u64::MAX, None).unwrap();
    let opened = Checkpoint::open(&files, &Path::new(DIR).join(step_name(u64::MAX)));
    let error = opened.unwrap_err().to_string();
    assert!(
        error.contains(
            "step 18446744073709551615, the samples or the epochs exceed what a training run can count"
        ),
        "{error}"
    );
}
