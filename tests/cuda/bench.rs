//! The report of a training benchmark on a GPU.

use std::fs;
use std::path::Path;

use libtest_mimic::Failed;
use rankine::job::{Job, JobFile};
use rankine_engine::training::{
    IterationSummary, PhaseRun, TrainBenchOptions, TrainOptions, bench_train, train,
};
use rankine_engine_gpu::{GpuMeter, NvmlMeter};
use rankine_launch::ProcessGroup;

use super::{Bench, Body, Outcome, Words};

pub(crate) const BODIES: &[Body] = &[
    ("a_benchmark_reports_where_time_is_spent", 1, a_benchmark_reports_where_time_is_spent),
    ("a_summary_has_the_phases_of_an_iteration", 1, a_summary_has_the_phases_of_an_iteration),
    ("power_is_measured_if_there_is_nvml", 1, power_is_measured_if_there_is_nvml),
];

const JOB: &str = r#"
name = "small"
[data]
dir = "DIR/data"
[data.generate]
shape = "dlrm"
rows_cap = 10000
samples = 100000
eval_samples = 0
alpha = 1.1
seed = 1
[model]
kind = "dlrm"
embedding_dim = 32
bottom_mlp = [64, 32]
top_mlp = [128, 64]
[optimizer.dense]
kind = "sgd"
learning_rate = 0.1
[optimizer.sparse]
kind = "sgd"
learning_rate = 0.1
[train]
batch_size = 8192
[device]
kind = "cuda"
precision = "bf16"
"#;

pub(crate) fn job(folder: &Path, sets: &[&str]) -> Result<Job, Failed> {
    let path = folder.join("job.toml");
    fs::write(&path, JOB.replace("DIR", &folder.display().to_string()))?;
    Ok(JobFile::read(&path, sets)?.job()?)
}

fn a_summary_has_the_phases_of_an_iteration(_: &Bench, _: &mut Words) -> Outcome {
    let folder = tempfile::tempdir()?;
    // Rows in fp32 may be looked up by the interaction, within its phase.
    let sets = ["train.epochs=20", "train.log_every_steps=40", "embedding.dtype=bf16"];
    let job = job(folder.path(), &sets)?;
    let run = folder.path().join("run");
    let options = TrainOptions { run_dir: Some(&run), ..TrainOptions::default() };
    let (summary, _) = train(&job, options, &mut ())?;
    let IterationSummary { look_ups, phases, .. } =
        summary.iteration.clone().ok_or("there is no iteration")?;
    let complain = |what: &str| Err(format!("{what}: {:?}", summary.iteration).into());
    let names: Vec<_> = phases.iter().map(|phase| phase.name.as_str()).collect();
    for name in ["bottom MLP", "look-ups", "interaction", "top MLP backward", "route", "update of tables"] {
        if !names.contains(&name) {
            return complain(&format!("there is no phase {name}"));
        }
    }
    let of = |name: &str| phases.iter().find(|phase| phase.name == name).ok_or(format!("no {name}"));
    let end = |phase: &PhaseRun| phase.begin_ms + phase.ms;
    // Events have a resolution of half a microsecond.
    for (first, second) in
        [("look-ups", "interaction"), ("interaction", "top MLP"), ("route", "update of tables")]
    {
        if end(of(first)?) > of(second)?.begin_ms + 1e-3 {
            return complain(&format!("{second} began before {first} ended"));
        }
    }
    let ms_per_iteration = summary.train.ms_per_iteration;
    if phases.iter().any(|phase| !(phase.ms > 0.0 && end(phase) < 20.0 * ms_per_iteration)) {
        return complain("a phase took no time, or much more than an iteration");
    }
    // Weights of small layers may stay in the cache, whose bandwidth exceeds that of memory.
    let share = |phase: &PhaseRun| phase.roofline_ms.map(|least| least / phase.ms);
    if phases.iter().any(|phase| !share(phase).is_some_and(|share| share > 0.0 && share < 5.0)) {
        return complain("a phase has no roofline, or exceeds it");
    }
    // One column per table.
    if look_ups.len() != 26
        || look_ups.iter().any(|count| count.look_ups != 8192 || count.distinct_rows > 8192)
    {
        return complain("the look-ups are not those of a batch");
    }
    Ok(())
}

/// A GPU that trains draws some power, at most what its limit allows for a moment. The benchmark and the training agree
/// on the order of the energy.
fn power_is_measured_if_there_is_nvml(_: &Bench, _: &mut Words) -> Outcome {
    if let Some(why) = NvmlMeter::default().absence() {
        eprintln!("skipped: power_is_measured_if_there_is_nvml: {why}");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let job = job(folder.path(), &["train.epochs=200", "seed=2"])?;
    let run = folder.path().join("run");
    let options = TrainOptions { run_dir: Some(&run), ..TrainOptions::default() };
    let (summary, _) = train(&job, options, &mut ())?;
    let options =
        TrainBenchOptions { warm_up: 20, steps: 2000, resident: true, ..TrainBenchOptions::default() };
    let bench = bench_train(&job, &options, &ProcessGroup::alone(), &mut ())?;
    let trained = (summary.power, summary.train.samples_per_second);
    for (power, rate) in [trained, (bench.power, bench.samples_per_second)] {
        let Some(power) = power else { return Err("NVML is there, but the power is unknown".into()) };
        let limit = power.limit_watts.ok_or("the limit is unknown")?;
        if !(20.0..1.5 * limit).contains(&power.watts) || limit > 2000.0 {
            return Err(format!("{power:?}").into());
        }
        // The energy includes what is between the steps, and the rate does not.
        let joules = power.watts / rate;
        if !(0.5 * joules..4.0 * joules).contains(&power.joules_per_sample) {
            return Err(format!("{power:?}, and {rate} samples per second").into());
        }
        if power.limited_step_share.is_none_or(|share| !(0.0..=1.0).contains(&share)) {
            return Err(format!("{power:?}").into());
        }
    }
    Ok(())
}

fn a_benchmark_reports_where_time_is_spent(_: &Bench, _: &mut Words) -> Outcome {
    let folder = tempfile::tempdir()?;
    let job = job(folder.path(), &["seed=1"])?;
    let trace = folder.path().join("trace.json");
    let options = TrainBenchOptions {
        warm_up: 20,
        steps: 200,
        trace: Some(trace.clone()),
        ..TrainBenchOptions::default()
    };
    let bench = match bench_train(&job, &options, &ProcessGroup::alone(), &mut ()) {
        // CUPTI belongs to the toolkit, which training does not need.
        Err(error) if error.to_string().contains("(libcupti.so.13)") => {
            bench_train(&job, &TrainBenchOptions { trace: None, ..options }, &ProcessGroup::alone(), &mut ())?
        }
        outcome => outcome?,
    };
    let complain = |what: String| Err(format!("{what}: {bench:?}").into());
    let Some(on_device) = bench.on_device else { return complain("there are no times of the GPU".into()) };
    // Over 200 steps the two clocks agree on the time per step.
    let (host, device) = (bench.seconds * 1e3 / 200.0, on_device.ms_per_iteration);
    if !(device > 0.0 && device < 2.0 * host) {
        return complain(format!("{device} ms on the GPU, but {host} ms on the host"));
    }
    match (bench.loss_at_begin, bench.loss_at_end) {
        (Some(begin), Some(end)) if end < begin => {}
        _ => return complain("the loss does not fall".into()),
    }
    let Some(memory) = &bench.memory else { return complain("no memory is reported".into()) };
    // The tables' weights only: SGD keeps no state.
    let tables = memory.parts.iter().find(|part| part.purpose == "tables").map_or(0, |part| part.bytes);
    if tables < 4 * bench.embedding_parameters || tables > 5 * bench.embedding_parameters {
        return complain(format!("{tables} bytes of tables"));
    }
    let names: Vec<_> = bench.phases.iter().map(|phase| phase.name).collect();
    for name in ["bottom MLP", "interaction", "top MLP backward", "route", "update of tables"] {
        if !names.contains(&name) {
            return complain(format!("there is no phase {name}"));
        }
    }
    if bench.phases.iter().any(|phase| !(phase.ms > 0.0 && phase.roofline_share > 0.0)) {
        return complain("a phase took no time, or did nothing".into());
    }
    let Some(summary) = &bench.trace else { return Ok(()) };
    if !(0.0..1.0).contains(&summary.kernel_free_share) || summary.kernels_per_iteration < 10.0 {
        return complain("the trace is empty".into());
    }
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&trace)?)?;
    let kernels =
        json["traceEvents"].as_array().into_iter().flatten().filter(|event| event["cat"] == "kernel");
    let lanes: std::collections::BTreeSet<_> =
        kernels.clone().filter_map(|event| event["tid"].as_u64()).collect();
    // Hopper looks up rows in the kernel of the interaction.
    let is_interaction = |name: &str| name.contains("dot_forward") || name.contains("dot_of_rows");
    let interactions = kernels.filter(|event| event["name"].as_str().is_some_and(is_interaction)).count();
    if lanes.len() < 2 || interactions != summary.iterations {
        return complain(format!("the trace has {interactions} interactions in lanes {lanes:?}"));
    }
    Ok(())
}
