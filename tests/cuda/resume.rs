//! Trainings on GPUs that are stopped and go on: to the bit on the same ranks, with the same tables on any others.

use std::fs;

use libtest_mimic::Failed;
use rankine::job::JobFile;
use rankine::training::{Event, Observer, Stop, TrainError, TrainOptions, train};
use rankine_cuda::Device;
use tempfile::TempDir;

use super::{Bench, Body, Outcome, Words};

pub(crate) const BODIES: &[Body] = &[
    ("a_training_goes_on_to_the_bit", 1, |bench, _| goes_on_to_the_bit(bench, 1)),
    ("ranks_go_on_to_the_bit", 1, |bench, _| goes_on_to_the_bit(bench, 3)),
    ("a_checkpoint_is_for_any_ranks_and_devices", 1, is_for_any_ranks),
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

/// A folder with a job.
fn place() -> Result<TempDir, Failed> {
    let place = tempfile::tempdir()?;
    let dir = place.path().display().to_string();
    fs::write(place.path().join("job.toml"), JOB.replace("DIR", &dir))?;
    fs::write(place.path().join("shape.toml"), SHAPE)?;
    Ok(place)
}

/// Asks a training to stop once so many steps are begun.
struct StopAt(u64, Stop);

impl Observer for StopAt {
    fn observe(&mut self, event: Event<'_>) {
        if let Event::Step(progress) = event
            && progress.step == self.0
        {
            self.1.ask();
        }
    }
}

/// Trains on, up to the end, or to a step where it is asked to stop.
fn run(place: &TempDir, name: &str, sets: &[&str], stop_at: u64) -> Outcome {
    let job = JobFile::read(&place.path().join("job.toml"), sets)?.job()?;
    let (stop, run) = (Stop::default(), place.path().join(name));
    let options =
        TrainOptions { run_dir: Some(&run), resume: true, stop: Some(&stop), ..TrainOptions::default() };
    match (train(&job, options, &mut StopAt(stop_at, stop.clone())), stop_at) {
        (Ok(_), 0) => Ok(()),
        (Err(TrainError::Interrupted { step, .. }), 1..) if step == stop_at => Ok(()),
        (outcome, _) => Err(format!("{name}: {outcome:?}").into()),
    }
}

fn model(place: &TempDir, name: &str) -> Result<Vec<u8>, Failed> {
    Ok(fs::read(place.path().join(name).join("model/model.safetensors"))?)
}

/// The lines of a log but for how long things took.
fn log(place: &TempDir, name: &str) -> Result<Vec<serde_json::Value>, Failed> {
    let text = fs::read_to_string(place.path().join(name).join("metrics.jsonl"))?;
    let lines = text.lines().map(|line| {
        let mut line: serde_json::Value = serde_json::from_str(line)?;
        if let Some(line) = line.as_object_mut() {
            line.remove("samples_per_second");
            line.remove("seconds");
        }
        Ok(line)
    });
    lines.collect()
}

fn goes_on_to_the_bit(_: &Bench, ranks: usize) -> Outcome {
    let shared = std::env::var_os("RANKINE_TEST_LOOPBACK").is_some();
    if ranks > Device::count()? && !shared {
        eprintln!("skipped: {ranks} ranks want as many GPUs, or RANKINE_TEST_LOOPBACK");
        return Ok(());
    }
    let ranks = format!("device.ranks={ranks}");
    for sets in [
        &["device.precision=fp32"][..],
        &["device.precision=bf16", "embedding.dtype=bf16", "embedding.placement=hybrid"],
        &["device.precision=fp16", "optimizer.sparse={ kind = 'adam', learning_rate = 0.01 }"],
        &["device.precision=fp8", "embedding.dtype=fp16"],
    ] {
        // Of fp8 there may be one rank, and a Hopper.
        let fp8 = sets[0].ends_with("fp8");
        if fp8 && (!ranks.ends_with("=1") || !Device::open(0)?.multiplies_fp8()) {
            continue;
        }
        let sets = [sets, &[&*ranks]].concat();
        let place = place()?;
        run(&place, "whole", &sets, 0)?;
        // After a whole checkpoint, after additions, and before the first one.
        for stop_at in [17, 33, 4] {
            let name = format!("stopped-{stop_at}");
            run(&place, &name, &sets, stop_at)?;
            run(&place, &name, &sets, stop_at + 9)?;
            run(&place, &name, &sets, 0)?;
            if model(&place, &name)? != model(&place, "whole")? {
                return Err(format!("{sets:?}: stopped at {stop_at}, it came to another model").into());
            }
            if log(&place, &name)? != log(&place, "whole")? {
                return Err(format!("{sets:?}: stopped at {stop_at}, it has another log").into());
            }
        }
    }
    Ok(())
}

/// What one GPU saved is the same model on the CPU's ranks, and on others of GPUs, whatever the placement.
fn is_for_any_ranks(_: &Bench, _: &mut Words) -> Outcome {
    let place = place()?;
    let saves = ["checkpoint.incremental=false", "embedding.dtype=bf16", "train.max_steps=30"];
    run(&place, "gpu", &saves, 0)?;
    let several = std::env::var_os("RANKINE_TEST_LOOPBACK").is_some() || Device::count()? >= 3;
    for (name, sets) in [
        ("cpu", &["device.kind=cpu", "device.ranks=4", "embedding.placement=hybrid"][..]),
        ("columns", &["device.ranks=3", "embedding.placement=column-wise"]),
        ("hybrid", &["device.ranks=2", "embedding.placement=hybrid"]),
        ("fp32", &["device.precision=fp32"]),
    ] {
        if !several && ["columns", "hybrid"].contains(&name) {
            continue;
        }
        // Nothing but the checkpoint is there.
        let (old, new) = (place.path().join("gpu"), place.path().join(name));
        fs::create_dir_all(new.join("checkpoints/step-30"))?;
        for entry in fs::read_dir(old.join("checkpoints/step-30"))? {
            let entry = entry?;
            fs::copy(entry.path(), new.join("checkpoints/step-30").join(entry.file_name()))?;
        }
        fs::copy(old.join("job.toml"), new.join("job.toml"))?;
        run(&place, name, &[&saves[..], sets].concat(), 0)?;
        if model(&place, name)? != model(&place, "gpu")? {
            return Err(format!("{name} has another model").into());
        }
    }
    Ok(())
}
