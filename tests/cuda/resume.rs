//! Trainings on GPUs that are interrupted and resumed: with the same bits on the same ranks, with the same tables on
//! any others.

use std::fs;
use std::num::NonZeroUsize;
use std::sync::Arc;

use half::{bf16, f16};
use libtest_mimic::Failed;
use rankine::job::JobFile;
use rankine_checkpoint as checkpoint;
use rankine_checkpoint::{Checkpoint, Disk, Files};
use rankine_cuda::Device;
use rankine_engine::evaluate::{EvaluateOptions, evaluate};
use rankine_engine::training::{Event, Observer, Start, Stop, Summary, TrainError, TrainOptions, train};
use rankine_reader::Part;
use rankine_reader::generate::{GenerateSpec, Shape, generate};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;

use super::{BF16_ROUNDING, Body, F16_ROUNDING, F32_ROUNDING, Outcome, close};

pub(crate) const BODIES: &[Body] = &[
    ("a_training_goes_on_to_the_bit", 1, |_, _| goes_on_to_the_bit(1, 1)),
    ("ranks_go_on_to_the_bit", 1, |_, _| goes_on_to_the_bit(3, 1)),
    ("a_training_goes_on_with_other_rows_in_host_memory", 1, |_, _| goes_on_with_other_rows(1)),
    ("ranks_go_on_with_other_rows_in_host_memory", 1, |_, _| goes_on_with_other_rows(2)),
    ("the_best_model_is_kept", 1, |_, _| keeps_the_best(1, 1)),
    ("weights_are_averaged", 1, |_, _| averages_weights(1, 1)),
    ("ranks_average_weights", 1, |_, _| averages_weights(3, 1)),
    ("a_model_is_refitted_with_buckets", 1, |_, _| refits(1, 1)),
    ("ranks_refit_a_model_with_buckets", 1, |_, _| refits(2, 1)),
    ("ranks_keep_the_best_model", 1, |_, _| keeps_the_best(3, 1)),
    ("metrics_beside_training_have_the_same_bits", 1, |_, _| evaluates_beside(1, 1)),
    ("ranks_compute_metrics_beside_training", 1, |_, _| evaluates_beside(3, 1)),
    ("sets_are_evaluated_as_on_the_cpu", 1, |_, _| evaluates_sets(1)),
    ("ranks_evaluate_sets_as_on_the_cpu", 1, |_, _| evaluates_sets(3)),
    ("a_training_starts_from_a_model", 1, |_, _| starts_from_a_model(1, 1)),
    ("ranks_start_from_a_model", 1, |_, _| starts_from_a_model(3, 1)),
    ("the_dense_update_may_change", 1, |_, _| the_dense_update_may_change()),
    ("a_checkpoint_is_for_any_ranks_and_devices", 1, |_, _| {
        is_for_any_ranks(&[])?;
        is_for_any_ranks(&["device.ranks=4", "embedding.placement=hybrid"])?;
        is_for_any_ranks(&["device.ranks=3", "device.dense_update=sharded"])
    }),
];

/// Over nodes simulated by GPUs of this machine, each with the number of GPUs that it needs.
pub(crate) const BODIES_OF_NODES: &[(Body, usize)] = &[
    (("two_nodes_of_one_go_on_to_the_bit", 1, |_, _| goes_on_to_the_bit(2, 2)), 2),
    (("two_nodes_of_one_start_from_a_model", 1, |_, _| starts_from_a_model(2, 2)), 2),
    (("two_nodes_of_one_keep_the_best_model", 1, |_, _| keeps_the_best(2, 2)), 2),
    (("two_nodes_of_one_compute_metrics_beside_training", 1, |_, _| evaluates_beside(2, 2)), 2),
    (("two_nodes_of_one_average_weights", 1, |_, _| averages_weights(2, 2)), 2),
    (
        ("a_checkpoint_of_two_nodes_is_for_any_ranks_and_devices", 1, |_, _| {
            is_for_any_ranks(&["device.ranks=2", "device.nodes=2"])?;
            is_for_any_ranks(&["device.ranks=2", "device.nodes=2", "device.dense_update=sharded"])
        }),
        2,
    ),
    (("two_nodes_of_two_go_on_to_the_bit", 1, |_, _| goes_on_to_the_bit(4, 2)), 4),
];

const JOB: &str = r#"
name = "small"
[data]
dir = "DIR/data"
[data.generate]
shape = "DIR/shape.toml"
samples = 6000
eval_samples = 500
[model]
kind = "dlrm"
embedding_dim = 12
bottom_mlp = [32, 12]
top_mlp = [48, 32]
[optimizer.dense]
kind = "adam"
learning_rate = 0.001
[optimizer.sparse]
kind = "adagrad"
learning_rate = 0.05
[train]
batch_size = 100
log_every_steps = 7
[checkpoint]
every_steps = 15
incremental = true
[device]
kind = "cuda"
"#;
const SHAPE: &str = "name = \"mixed\"\ndense = 4\nrows = [3, 40, 500, 3000]\nhotness = [1, 1, 3, 2]\n";

/// Makes a folder with a job.
pub(super) type Folder = fn() -> Result<TempDir, Failed>;

/// A folder with a job, and the shape of its dataset.
pub(super) fn folder() -> Result<TempDir, Failed> {
    let folder = tempfile::tempdir()?;
    let dir = folder.path().display().to_string();
    fs::write(folder.path().join("job.toml"), JOB.replace("DIR", &dir))?;
    fs::write(folder.path().join("shape.toml"), SHAPE)?;
    Ok(folder)
}

/// Asks a training to stop after this number of steps.
struct StopAt(u64, Stop);

impl Observer for StopAt {
    fn observe(&mut self, event: Event<'_>) {
        if let Event::Step(progress, _) = event
            && progress.step == self.0
        {
            self.1.ask();
        }
    }
}

/// Trains to the end, or to the step at which it is asked to stop.
fn run(folder: &TempDir, name: &str, sets: &[&str], stop_at: u64) -> Outcome {
    let job = JobFile::read(&folder.path().join("job.toml"), sets)?.job()?;
    let (stop, run) = (Stop::default(), folder.path().join(name));
    let options = TrainOptions {
        run_dir: Some(&run),
        start: Start::Resume,
        stop: Some(&stop),
        ..TrainOptions::default()
    };
    match (train(&job, options, &mut StopAt(stop_at, stop.clone())), stop_at) {
        (Ok(_), 0) => Ok(()),
        (Err(TrainError::Interrupted { step, .. }), 1..) if step == stop_at => Ok(()),
        (outcome, _) => Err(format!("{name}: {outcome:?}").into()),
    }
}

fn model(folder: &TempDir, name: &str) -> Result<Vec<u8>, Failed> {
    Ok(fs::read(folder.path().join(name).join("model/model.safetensors"))?)
}

/// The lines of a log without durations.
fn log(folder: &TempDir, name: &str) -> Result<Vec<serde_json::Value>, Failed> {
    let text = fs::read_to_string(folder.path().join(name).join("metrics.jsonl"))?;
    let lines = text.lines().map(|line| {
        let mut line: serde_json::Value = serde_json::from_str(line)?;
        if let Some(line) = line.as_object_mut() {
            line.remove("samples_per_second");
            line.remove("seconds");
            line.remove("phase_seconds");
            line.remove("time");
        }
        Ok(line)
    });
    lines.collect()
}

/// Whether there are GPUs for `ranks` ranks, or ranks may share them.
pub(super) fn have_gpus(ranks: usize) -> Result<bool, Failed> {
    let have = ranks <= Device::count()? || std::env::var_os("RANKINE_TEST_LOOPBACK").is_some();
    if !have {
        eprintln!("skipped: {ranks} ranks need as many GPUs, or RANKINE_TEST_LOOPBACK");
    }
    Ok(have)
}

const FP8: &[&str] = &["device.precision=fp8", "embedding.dtype=fp16"];
/// Settings whose states differ.
const STATES: [&[&str]; 4] = [
    &["device.precision=fp32"],
    &["device.precision=bf16", "embedding.dtype=bf16", "embedding.placement=hybrid"],
    &[
        "device.precision=fp16",
        "optimizer.sparse={ kind = 'adam', learning_rate = 0.01 }",
        "device.dense_update=sharded",
    ],
    FP8,
];

/// Those of [`STATES`] that this GPU has, each with a number of ranks and nodes.
fn states(ranks: usize, nodes: usize) -> Result<Vec<Vec<String>>, Failed> {
    // Hoppers multiply fp8.
    let has_fp8 = Device::open(0)?.multiplies_fp8();
    let over = [format!("device.ranks={ranks}"), format!("device.nodes={nodes}")];
    let states = STATES.into_iter().filter(|&sets| sets != FP8 || has_fp8);
    Ok(states.map(|sets| sets.iter().map(ToString::to_string).chain(over.clone()).collect()).collect())
}

/// Early stopping restores the model of an evaluation: with its metrics, and with the weights of a training that ends
/// there.
fn keeps_the_best(ranks: usize, nodes: usize) -> Outcome {
    job_keeps_the_best(folder, ranks, nodes)
}

/// The same for the job of a folder.
pub(super) fn job_keeps_the_best(folder: Folder, ranks: usize, nodes: usize) -> Outcome {
    if !have_gpus(ranks)? {
        return Ok(());
    }
    let common = ["train.validation='random:0.3:5'", "eval.every_steps=10"];
    // No later evaluation is better by that much.
    let stopping = "train.early_stopping={ metric = 'log_loss', patience = 3, min_delta = 10 }";
    for sets in states(ranks, nodes)? {
        let sets: Vec<_> = sets.iter().map(String::as_str).chain(common).collect();
        let folder = folder()?;
        run(&folder, "short", &[&sets[..], &["train.max_steps=10"]].concat(), 0)?;
        let sets = [&sets[..], &[stopping]].concat();
        run(&folder, "whole", &sets, 0)?;
        run(&folder, "stopped", &sets, 23)?;
        run(&folder, "stopped", &sets, 0)?;
        for name in ["whole", "stopped"] {
            let log = log(&folder, name)?;
            let evaluations: Vec<_> = log.iter().filter(|line| line["kind"] == "eval").collect();
            let steps: Vec<_> = evaluations.iter().filter_map(|line| line["step"].as_u64()).collect();
            if steps != [10, 20, 30, 40, 10, 10] {
                return Err(format!("{sets:?}: {name} evaluates after {steps:?}").into());
            }
            if evaluations[4] != evaluations[0] || evaluations[5].get("part").is_some() {
                return Err(format!("{sets:?}: {name}: {evaluations:#?}").into());
            }
            if model(&folder, name)? != model(&folder, "short")? {
                return Err(format!("{sets:?}: {name}: the model differs").into());
            }
        }
    }
    Ok(())
}

/// Metrics that are computed beside the steps belong to the weights that were scored, also if training stops
/// meanwhile. The last batch of the evaluation part is a short one.
fn evaluates_beside(ranks: usize, nodes: usize) -> Outcome {
    if !have_gpus(ranks)? {
        return Ok(());
    }
    let common =
        ["train.max_steps=60", "eval.every_steps=16", "train.batch_size=90", "eval.beside_training=true"];
    for sets in states(ranks, nodes)? {
        let sets: Vec<_> = sets.iter().map(String::as_str).chain(common).collect();
        let folder = folder()?;
        let waiting = [&sets[..], &["eval.beside_training=false"]].concat();
        run(&folder, "waiting", &waiting, 0)?;
        run(&folder, "beside", &sets, 0)?;
        run(&folder, "stopped", &sets, 33)?;
        run(&folder, "stopped", &sets, 0)?;
        let evaluations = |name: &str| -> Result<Vec<_>, Failed> {
            let mut lines = log(&folder, name)?;
            lines.retain(|line| line["kind"] == "eval");
            Ok(lines)
        };
        let expected = evaluations("waiting")?;
        let steps: Vec<_> = expected.iter().filter_map(|line| line["step"].as_u64()).collect();
        if steps != [16, 32, 48, 60] || expected.iter().any(|line| !line["auc"].is_f64()) {
            return Err(format!("{sets:?}: {expected:#?}").into());
        }
        for name in ["beside", "stopped"] {
            let found = evaluations(name)?;
            if found != expected {
                return Err(format!("{sets:?}: {name}: {found:#?} instead of {expected:#?}").into());
            }
            if model(&folder, name)? != model(&folder, "waiting")? {
                return Err(format!("{sets:?}: {name}: the model differs").into());
            }
        }
    }
    Ok(())
}

/// The average of weights is that of the models of shorter trainings, also after a stop.
fn averages_weights(ranks: usize, nodes: usize) -> Outcome {
    job_averages_weights(folder, ranks, nodes)
}

/// The same for the job of a folder.
pub(super) fn job_averages_weights(folder: Folder, ranks: usize, nodes: usize) -> Outcome {
    if !have_gpus(ranks)? {
        return Ok(());
    }
    let average = "train.average={ kind = 'last', every_steps = 10, count = 3, save = 'always' }";
    for sets in states(ranks, nodes)? {
        let sets: Vec<_> = sets.iter().map(String::as_str).collect();
        let folder = folder()?;
        let mut models = Vec::new();
        for (name, steps) in
            [("30", "train.max_steps=30"), ("40", "train.max_steps=40"), ("45", "train.max_steps=45")]
        {
            run(&folder, name, &[&sets[..], &[steps]].concat(), 0)?;
            models.push(model(&folder, name)?);
        }
        let sets = [&sets[..], &["train.max_steps=45", average]].concat();
        run(&folder, "whole", &sets, 0)?;
        run(&folder, "stopped", &sets, 33)?;
        run(&folder, "stopped", &sets, 0)?;
        let averaged = model(&folder, "whole")?;
        if averaged != model(&folder, "stopped")? {
            return Err(format!("{sets:?}: the model differs after a stop").into());
        }
        is_mean(&averaged, &models).map_err(|failed| format!("{sets:?}: {failed:?}"))?;
    }
    Ok(())
}

/// Compares weights with the mean of others.
fn is_mean(averaged: &[u8], models: &[Vec<u8>]) -> Outcome {
    let averaged = SafeTensors::deserialize(averaged)?;
    let models = models.iter().map(|model| SafeTensors::deserialize(model)).collect::<Result<Vec<_>, _>>()?;
    for (name, own) in averaged.tensors() {
        let others = models.iter().map(|model| model.tensor(&name).map(|tensor| numbers(&tensor)));
        let others = others.collect::<Result<Vec<_>, _>>()?;
        // The mean of shorter floats is rounded once more. Those of fp16 are never closer to each other than 2^-24.
        let (rounding, least) = match own.dtype() {
            Dtype::BF16 => (BF16_ROUNDING, 0.0),
            Dtype::F16 => (F16_ROUNDING, 1.0 / f64::from(1 << 25)),
            _ => (0.0, 0.0),
        };
        for (at, own) in numbers(&own).into_iter().enumerate() {
            let mean = others.iter().map(|other| other[at]).sum::<f64>() / others.len() as f64;
            let largest = others.iter().fold(0.0f64, |most, other| most.max(other[at].abs()));
            // Each of two snapshots adds a difference of at most twice the largest value, times a step size: four
            // roundings.
            if (own - mean).abs() > (rounding + 16.0 * F32_ROUNDING) * largest + least {
                return Err(format!("{name}[{at}] is {own} instead of {mean}").into());
            }
        }
    }
    Ok(())
}

/// The numbers of a tensor of f32, bf16 or f16.
fn numbers(tensor: &TensorView<'_>) -> Vec<f64> {
    let bytes = tensor.data();
    let (halves, words) = (bytes.as_chunks::<2>().0.iter(), bytes.as_chunks::<4>().0.iter());
    match tensor.dtype() {
        Dtype::BF16 => halves.map(|half| f64::from(bf16::from_le_bytes(*half))).collect(),
        Dtype::F16 => halves.map(|half| f64::from(f16::from_le_bytes(*half))).collect(),
        _ => words.map(|word| f64::from(f32::from_le_bytes(*word))).collect(),
    }
}

/// A refitted model is that of a training on all samples for its number of steps. It reads a column in buckets, too.
fn refits(ranks: usize, nodes: usize) -> Outcome {
    if !have_gpus(ranks)? {
        return Ok(());
    }
    let stopping = "train.early_stopping={ metric = 'log_loss', patience = 3, min_delta = 10, refit = true }";
    let buckets = "feature=[{ column = 'I1', buckets = 8 }]";
    for sets in states(ranks, nodes)? {
        let sets: Vec<_> = sets.iter().map(String::as_str).chain([buckets]).collect();
        let folder = folder()?;
        let refit =
            [&sets[..], &["train.validation='random:0.3:5'", "eval.every_steps=10", stopping]].concat();
        run(&folder, "refit", &refit, 0)?;
        let summary = fs::read_to_string(folder.path().join("refit/summary.json"))?;
        let summary: serde_json::Value = serde_json::from_str(&summary)?;
        let steps = format!("train.max_steps={}", summary["train"]["steps"]);
        if summary["search"]["best"]["step"] != 10 {
            return Err(format!("{sets:?}: the best step is {}", summary["search"]["best"]["step"]).into());
        }
        run(&folder, "whole", &[&sets[..], &[&steps]].concat(), 0)?;
        if model(&folder, "refit")? != model(&folder, "whole")? {
            return Err(format!("{sets:?}: the model differs").into());
        }
    }
    Ok(())
}

/// An epoch, and another one from its model with its state, are two epochs. With fresh state, the model of a run and
/// its checkpoint are the same start.
fn starts_from_a_model(ranks: usize, nodes: usize) -> Outcome {
    if !have_gpus(ranks)? {
        return Ok(());
    }
    for sets in states(ranks, nodes)? {
        let sets: Vec<_> = sets.iter().map(String::as_str).chain(["train.shuffle=false"]).collect();
        let folder = folder()?;
        let from = |path: &str| format!("train.init_from={}", folder.path().join(path).display());
        let (of_run, of_checkpoint) = (from("first"), from("first/checkpoints/step-60"));
        run(&folder, "first", &sets, 0)?;
        run(&folder, "both", &[&sets[..], &["train.epochs=2"]].concat(), 0)?;
        let with_state = [&sets[..], &[&of_run, "train.init_optimizer_state=true"]].concat();
        run(&folder, "second", &with_state, 17)?;
        run(&folder, "second", &with_state, 0)?;
        if model(&folder, "second")? != model(&folder, "both")? {
            return Err(format!("{sets:?}: the model of two epochs differs").into());
        }
        run(&folder, "run", &[&sets[..], &[&of_run]].concat(), 0)?;
        run(&folder, "checkpoint", &[&sets[..], &[&of_checkpoint]].concat(), 0)?;
        if model(&folder, "run")? != model(&folder, "checkpoint")? {
            return Err(format!("{sets:?}: a checkpoint is another start than the model of its run").into());
        }
        if model(&folder, "run")? == model(&folder, "both")? {
            return Err(format!("{sets:?}: the state of the optimizers is not fresh").into());
        }
    }
    Ok(())
}

/// Datasets of several sizes are evaluated one after another, each as the CPU evaluates the saved model on it.
fn evaluates_sets(ranks: usize) -> Outcome {
    if !have_gpus(ranks)? {
        return Ok(());
    }
    let folder = folder()?;
    let path = |name: &str| folder.path().join(name);
    let shape = Shape::load(&path("shape.toml").display().to_string())?;
    let mut sets = String::new();
    for (name, samples, eval_samples) in [("more", 100, 900), ("whole", 1300, 0), ("few", 5, 7)] {
        let spec =
            GenerateSpec { shape: shape.clone(), rows_cap: None, samples, eval_samples, alpha: 1.1, seed: 5 };
        generate(&spec, &path(name), NonZeroUsize::MIN, &Stop::default(), |_| ())?;
        sets += &format!("[[eval.set]]\nname = {name:?}\ndata = {:?}\n", path(name));
    }
    let job = fs::read_to_string(path("job.toml"))? + &sets;
    fs::write(path("job.toml"), job)?;
    let ranks = format!("device.ranks={ranks}");
    run(&folder, "run", &["device.precision=fp32", "eval.every_steps=20", &ranks], 0)?;
    let summary: Summary = serde_json::from_slice(&fs::read(path("run/summary.json"))?)?;
    let eval = summary.eval.ok_or("there is an evaluation part")?;
    let parts = [
        (None, Part::Eval),
        (Some("more"), Part::Eval),
        (Some("whole"), Part::Train),
        (Some("few"), Part::Eval),
    ];
    for (set, part) in parts {
        let here = set.map_or(Some(&eval), |set| eval.sets.get(set)).ok_or("each set has a result")?;
        let data = path(set.unwrap_or("data"));
        let options = EvaluateOptions { data: Some(&data), part, ..EvaluateOptions::default() };
        let there = evaluate(path("run"), &options, &mut ())?;
        let (here, there) = (here.metrics.first, there.metrics.first);
        let (here, there) = here.zip(there).ok_or("all samples have labels")?;
        let near = |here: f64, there: f64| (here - there).abs() <= 1e-4 * there.abs().max(1.0);
        if here.samples != there.samples || !near(here.log_loss, there.log_loss) {
            return Err(format!("{set:?}: {here:?} instead of {there:?}").into());
        }
    }
    Ok(())
}

fn goes_on_to_the_bit(ranks: usize, nodes: usize) -> Outcome {
    job_goes_on_to_the_bit(folder, ranks, nodes)
}

pub(super) fn job_goes_on_to_the_bit(folder: Folder, ranks: usize, nodes: usize) -> Outcome {
    goes_on_with(folder, (ranks, nodes), &[], [&[]; 3])
}

/// Which rows are in host memory changes nothing, even if others are after resuming.
fn goes_on_with_other_rows(ranks: usize) -> Outcome {
    let placed = ["embedding.placement=row-wise", "embedding.exchange=rows"];
    let parts: [&[&str]; 3] = [
        &["embedding.device_memory=220KB"],
        &[],
        &["embedding.device_memory=200KB", "embedding.refresh_steps=3"],
    ];
    goes_on_with(folder, (ranks, 1), if ranks > 1 { &placed } else { &[] }, parts)
}

/// Compares a training that is interrupted twice with one that is not. Each of the three parts has settings of its own,
/// besides those that all have.
pub(super) fn goes_on_with(
    folder: Folder,
    (ranks, nodes): (usize, usize),
    all: &[&str],
    parts: [&[&str]; 3],
) -> Outcome {
    if !have_gpus(ranks)? {
        return Ok(());
    }
    for sets in states(ranks, nodes)? {
        let sets: Vec<_> = sets.iter().map(String::as_str).chain(all.iter().copied()).collect();
        let folder = folder()?;
        run(&folder, "whole", &sets, 0)?;
        // After a full checkpoint, after incremental ones, and before the first one.
        for stop_at in [17, 33, 4] {
            let name = format!("stopped-{stop_at}");
            for (own, stop_at) in parts.into_iter().zip([stop_at, stop_at + 9, 0]) {
                run(&folder, &name, &[&sets[..], own].concat(), stop_at)?;
            }
            if model(&folder, &name)? != model(&folder, "whole")? {
                return Err(format!("{sets:?}: stopped at {stop_at}, the model differs").into());
            }
            if log(&folder, &name)? != log(&folder, "whole")? {
                return Err(format!("{sets:?}: stopped at {stop_at}, the log differs").into());
            }
        }
    }
    Ok(())
}

/// Whether each rank keeps the state of all dense parameters or only of its share changes nothing, even if it changes
/// on resuming.
fn the_dense_update_may_change() -> Outcome {
    if !have_gpus(3)? {
        return Ok(());
    }
    let folder = folder()?;
    let sets = |update| ["device.ranks=3", "device.precision=bf16", update];
    let [all, shares] = ["replicated", "sharded"].map(|update| format!("device.dense_update={update}"));
    run(&folder, "whole", &sets(&all), 0)?;
    for (name, updates) in [("first", [&shares, &all, &shares]), ("second", [&all, &shares, &all])] {
        for (update, stop_at) in updates.into_iter().zip([17, 38, 0]) {
            run(&folder, name, &sets(update), stop_at)?;
        }
        // The parameters and their state at the end.
        let ends = ["whole", name].map(|name| end(&folder, name));
        let [whole, end] = ends.map(|end| end.and_then(|end| Ok(end.dense()?)));
        if whole? != end? || model(&folder, name)? != model(&folder, "whole")? {
            return Err(format!("{name}: the model differs").into());
        }
    }
    Ok(())
}

/// The last checkpoint of a run.
fn end(folder: &TempDir, name: &str) -> Result<Checkpoint, Failed> {
    let (files, dir) = (Arc::new(Disk) as Arc<dyn Files>, folder.path().join(name).join("checkpoints"));
    let (found, skipped) = checkpoint::latest(&files, &dir)?;
    match found {
        Some(found) if skipped.is_empty() => Ok(found),
        found => Err(format!("{name}: {found:?} is left, and {skipped:?} are damaged").into()),
    }
}

/// The loss of the last report.
fn loss(folder: &TempDir, name: &str) -> Result<f64, Failed> {
    let last = log(folder, name)?.iter().rev().find_map(|line| line["loss"].as_f64());
    Ok(last.ok_or("no loss was reported")?)
}

/// A checkpoint of some GPUs is the same model on one GPU, on the CPU's ranks, and on other numbers of GPUs, with any
/// placement; and training resumes from it.
fn is_for_any_ranks(from: &[&str]) -> Outcome {
    job_is_for_any_ranks(folder, from)
}

pub(super) fn job_is_for_any_ranks(folder: Folder, from: &[&str]) -> Outcome {
    let folder = folder()?;
    let saves = ["checkpoint.incremental=false", "embedding.dtype=bf16", "device.precision=fp32"];
    let (still, on) = ("train.max_steps=30", "train.max_steps=60");
    let several = have_gpus(4)?;
    if !several && from.iter().any(|set| set.starts_with("device.ranks") && !set.ends_with('2')) {
        return Ok(());
    }
    run(&folder, "from", &[&saves[..], from, &[still]].concat(), 0)?;
    run(&folder, "whole", &[&saves[..], from, &[on]].concat(), 0)?;
    let expected = loss(&folder, "whole")?;
    for (name, sets) in [
        ("cpu", &["device.kind=cpu", "device.ranks=4", "embedding.placement=hybrid"][..]),
        ("one-of-cpu", &["device.kind=cpu"]),
        ("one", &[]),
        ("columns", &["device.ranks=3", "embedding.placement=column-wise"]),
        ("hybrid", &["device.ranks=2", "embedding.placement=hybrid", "device.dense_update=sharded"]),
    ] {
        if !several && ["columns", "hybrid"].contains(&name) {
            continue;
        }
        let resumed = format!("{name}-on");
        for name in [name, &resumed] {
            // Only the checkpoint is copied.
            let (old, new) = (folder.path().join("from"), folder.path().join(name));
            fs::create_dir_all(new.join("checkpoints/step-30"))?;
            for entry in fs::read_dir(old.join("checkpoints/step-30"))? {
                let entry = entry?;
                fs::copy(entry.path(), new.join("checkpoints/step-30").join(entry.file_name()))?;
            }
            fs::copy(old.join("job.toml"), new.join("job.toml"))?;
        }
        run(&folder, name, &[&saves[..], sets, &[still]].concat(), 0)?;
        if model(&folder, name)? != model(&folder, "from")? {
            return Err(format!("{from:?}: the model of {name} differs").into());
        }
        run(&folder, &resumed, &[&saves[..], sets, &[on]].concat(), 0)?;
        // Sums are rounded differently, and rows at random.
        close("the loss after another 30 steps of", 0, loss(&folder, &resumed)?, expected, 0.01 * expected)
            .map_err(|failed| format!("{from:?}, {name}: {}", failed.message().unwrap_or_default()))?;
    }
    Ok(())
}
