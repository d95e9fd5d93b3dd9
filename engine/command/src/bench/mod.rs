//! `rankine bench`: measures how fast this machine reads, trains and evaluates.

mod baseline;
mod text;

use std::path::PathBuf;

use clap::Subcommand;
use rankine_engine::training::{self, EvalBenchOptions, TimeToAucOptions, TrainBenchOptions, TrainError};
use rankine_job::{AucTarget, Job, ThreadCount};
use rankine_launch::{ProcessGroup, ProcessPlace};
use rankine_model::overlap::Overlap;
use rankine_reader::Part;
use rankine_reader::bench::{ReadBenchOptions, bench_read};
use serde::Serialize;

use super::job::{JobArgs, setting};
use super::{CommandError, arguments, launch, output, signals};
use baseline::Baseline;
use text::{Passes, Rungs, Steps, ToAuc};

/// Measure how fast this machine reads, trains or evaluates
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Read(Read),
    Train(Train),
    Eval(Eval),
    TimeToAuc(ToAucArgs),
}

/// Read a dataset in every mode that this machine supports, and compare with the speed of the disk
///
/// Reports medians of several interleaved passes; the page cache is dropped before each pass. The passes measure the
/// disk alone, reading blocks, reading and checking blocks on one thread, unpacking samples into batches on one
/// thread, and shuffling samples into batches that GPUs unpack, on all feeding threads.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine bench read data/criteo
  rankine bench read data/criteo --part eval --json | jq .device.rate.gb_per_s")]
struct Read {
    /// Dataset folder
    #[arg(value_name = "DATASET")]
    path: PathBuf,

    /// Part of the dataset: train or eval
    #[arg(long, default_value = "train", value_parser = arguments::part)]
    part: Part,

    /// Number of reads in flight
    #[arg(long, value_name = "N", default_value_t = ReadBenchOptions::default().depth)]
    queue_depth: u32,

    /// Maximum amount of data to read, such as 512MiB or 2GiB
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = rankine_base::size::parse_size)]
    bytes: u64,

    /// Number of passes; the median is reported
    #[arg(long, value_name = "N", default_value_t = ReadBenchOptions::default().passes)]
    passes: u32,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Train a job for some steps, and report the time of a step and of its parts
///
/// Batches are read as in training, epoch after epoch; with --resident they are already in the memory of the device. On
/// a GPU, each part of a step is also timed alone, and compared with the bytes that it must move, its operations, and
/// the limits of the GPU: the speeds of a memory copy and of a large product, which are measured at the start. There
/// are no evaluations, and the model is not saved.
///
/// To exclude the disk, copy the dataset to memory: --set data.dir=/dev/shm/NAME.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine bench train configs/quickstart.toml --steps 200
  rankine bench train configs/bench-dlrm.toml --set device.kind=cuda --set data.dir=/dev/shm/dlrm
  rankine bench train job.toml --resident --trace trace.json
  rankine bench train job.toml --json | jq '.phases[] | {name, ms, roofline_share}'
  rankine bench train job.toml --resident --json > before.json      # then change something
  rankine bench train job.toml --resident --compare before.json")]
struct Train {
    #[command(flatten)]
    job: JobArgs,

    /// Number of warm-up steps, which are not timed
    #[arg(long, value_name = "N", default_value_t = TrainBenchOptions::default().warm_up)]
    warm_up: usize,

    /// Number of timed steps
    #[arg(long, value_name = "N", default_value_t = TrainBenchOptions::default().steps)]
    steps: usize,

    /// Cycle through the first batches, kept in device memory, instead of reading
    #[arg(long)]
    resident: bool,

    /// Write a trace of a few steps on the GPU to a file, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Switch off overlaps, to measure what they gain: input, look-ups, routes, weight-gradients, row-gradients,
    /// gradient-sums or dense-update. Only on GPUs; losses stay bitwise identical
    #[arg(long, value_name = "OVERLAP", value_delimiter = ',', value_parser = arguments::overlap)]
    without: Vec<Overlap>,

    /// Print the changes since an earlier run, whose output with --json is in a file
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    compare: Option<PathBuf>,

    #[command(flatten)]
    common: JobBenchArgs,
}

/// Evaluate a job's model repeatedly, and report the time
///
/// The model is not trained. The first evaluation reads the evaluation part. If it fits into GPU memory, it is kept
/// there, and later evaluations read nothing, as in training. The time includes the metrics.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine bench eval configs/quickstart.toml
  rankine bench eval configs/bench-dlrm.toml --set device.kind=cuda --set data.generate.eval_samples=89137319 \\
      --set data.dir=/dev/shm/dlrm")]
struct Eval {
    #[command(flatten)]
    job: JobArgs,

    /// Number of evaluations after the first one; the median is reported
    #[arg(long, value_name = "N", default_value_t = EvalBenchOptions::default().passes)]
    passes: usize,

    #[command(flatten)]
    common: JobBenchArgs,
}

/// Train a job until an evaluation reaches an AUC, and report the seconds and joules that this takes
///
/// The time begins before the first sample is read, and ends when the AUC of the evaluation is known, as in MLPerf; it
/// includes evaluations, which are also listed apart. The energy of the GPUs is measured in the same run. The model is
/// evaluated every 5% of an epoch, unless the job says when. Early stopping and averages of the job are switched off.
///
/// Without --target-auc, the AUC to reach is eval.target_auc of the job. If that is missing, too, the data must be
/// generated, so that the best possible AUC is known: the target is nine tenths of the way from 0.5 to it.
#[derive(Debug, clap::Args)]
#[command(name = "time-to-auc")]
#[command(after_help = "\
Examples:
  rankine bench time-to-auc configs/time-to-auc.toml
  rankine bench time-to-auc configs/time-to-auc.toml --set device.kind=cuda --json | jq '{seconds, joules}'
  rankine bench time-to-auc job.toml --target-auc 0.78")]
struct ToAucArgs {
    #[command(flatten)]
    job: JobArgs,

    /// AUC to reach
    #[arg(long, value_name = "AUC", value_parser = arguments::auc_target)]
    target_auc: Option<AucTarget>,

    /// Run folder, which must be empty or not exist [default: runs/NAME-TIME]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,

    #[command(flatten)]
    common: JobBenchArgs,
}

/// The arguments that all benchmarks of jobs have, listed after their own.
#[derive(Debug, clap::Args)]
struct JobBenchArgs {
    /// Number of CPU threads, the same as --set device.threads=N
    #[arg(long, value_name = "N", value_parser = arguments::threads)]
    threads: Option<ThreadCount>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    launch: launch::Args,
}

impl JobBenchArgs {
    /// Measures a job; the first process prints the result.
    fn run<B: Serialize>(
        &self,
        job: &JobArgs,
        place: &ProcessPlace,
        measure: impl FnOnce(&Job, &ProcessGroup) -> Result<B, TrainError>,
        print: impl FnOnce(&B) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let file = job.read_with(setting("device.threads", self.threads))?;
        let job = file.job()?;
        let processes = self.launch.form(place, &job.guard)?;
        let bench = launch::outcome(&processes, &file, measure(&job, &processes))?;
        if !processes.is_first() {
            return Ok(());
        }
        if self.json { output::json(&bench) } else { print(&bench) }
    }
}

impl Args {
    /// Returns the arguments about processes, for commands that can run in several.
    pub(crate) fn launch(&self) -> Option<&launch::Args> {
        match &self.command {
            Command::Read(_) => None,
            Command::Train(train) => Some(&train.common.launch),
            Command::Eval(eval) => Some(&eval.common.launch),
            Command::TimeToAuc(args) => Some(&args.common.launch),
        }
    }
}

pub(crate) fn run(args: Args, place: &ProcessPlace) -> Result<(), CommandError> {
    match args.command {
        Command::Read(args) => run_read(args),
        Command::Train(args) => run_train(args, place),
        Command::Eval(args) => run_eval(args, place),
        Command::TimeToAuc(args) => run_to_auc(args, place),
    }
}

fn run_train(args: Train, place: &ProcessPlace) -> Result<(), CommandError> {
    let Train { job, warm_up, steps, resident, trace, without, compare, common } = args;
    let baseline = compare.map(|path| Baseline::read(&path)).transpose()?;
    let options = TrainBenchOptions { warm_up, steps, resident, trace, without };
    common.run(
        &job,
        place,
        |job, processes| training::bench_train(job, &options, processes, &mut ()),
        |bench| output::text(Steps { bench, baseline: baseline.as_ref() }),
    )
}

fn run_eval(args: Eval, place: &ProcessPlace) -> Result<(), CommandError> {
    let options = EvalBenchOptions { passes: args.passes };
    args.common.run(
        &args.job,
        place,
        |job, processes| training::bench_eval(job, &options, processes, &mut ()),
        |bench| output::text(Passes(bench)),
    )
}

fn run_to_auc(args: ToAucArgs, place: &ProcessPlace) -> Result<(), CommandError> {
    let stop = signals::training()?;
    let options =
        TimeToAucOptions { target_auc: args.target_auc, run_dir: args.run_dir.as_deref(), stop: Some(&stop) };
    args.common.run(
        &args.job,
        place,
        |job, processes| training::bench_time_to_auc(job, options, processes, &mut ()),
        |bench| output::text(ToAuc(bench)),
    )
}

fn run_read(args: Read) -> Result<(), CommandError> {
    let options = ReadBenchOptions {
        part: args.part,
        depth: args.queue_depth,
        bytes_max: args.bytes,
        passes: args.passes,
    };
    let bench = bench_read(&args.path, &options)?;
    if args.json { output::json(&bench) } else { output::text(Rungs(&bench)) }
}
