//! `rankine train`: from a job file to a trained model.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rankine::checkpoint::{Disk, Faulty, Skipped};
use rankine::evaluation::HeadMetrics;
use rankine::launch::Seat;
use rankine::training::{self, Event, ExchangeSummary, Observer, RunDir, Start, Stop, Summary, TrainOptions};

use super::job::JobArgs;
use super::metrics::{MetricsText, ids_out_of_range};
use super::progress::Progress;
use super::signals::Deadline;
use super::{CommandError, Exit, launch, output, signals};

/// Train the model of a job file
///
/// What the run leaves behind is in its folder: the effective job, the log of losses and evaluations, the summary, and
/// the model.
///
/// On SIGTERM, SIGUSR1, SIGINT or SIGHUP it saves a checkpoint at the end of the current step and exits with 75; a
/// second SIGINT ends it at once. SIGHUP has no effect if it was ignored at the start, as under nohup. With --resume
/// training goes on from the checkpoint, as if it had never stopped.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine train configs/quickstart.toml
  rankine train job.toml --set train.max_steps=1000 --set eval.every_steps=200
  rankine train job.toml --set optimizer.sparse.learning_rate=0.05 --run-dir runs/rate-0.05
  rankine train job.toml --set checkpoint.every_minutes=10 --run-dir runs/long --resume
  torchrun --no-python --nproc-per-node 8 rankine train job.toml --set device.ranks=auto
  srun --ntasks-per-node=1 rankine train job.toml --set device.ranks=auto")]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,

    /// The run's folder, which must be empty or not there yet, unless --resume or --restart is given [default:
    /// runs/NAME-TIME]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,

    /// Resume the run in --run-dir from its latest good checkpoint; start from scratch if it has none, and do nothing
    /// if the run is finished
    #[arg(long, requires = "run_dir")]
    resume: bool,

    /// Start over in --run-dir at step 0; what is there moves to a folder `before-restart` in it
    #[arg(long, requires = "run_dir", conflicts_with = "resume")]
    restart: bool,

    /// Show no progress, only warnings and errors
    #[arg(long, short)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) launch: launch::Args,
}

pub(crate) fn run(args: Args, seat: &Seat) -> Result<(), CommandError> {
    let file = args.job.read()?;
    let job = file.job()?;
    let processes = args.launch.form(seat, &job.guard)?;
    let stop = signals::training()?;
    let mut watcher =
        Watcher { quiet: args.quiet, phase: Phase::Waiting, training: None, stop: stop.clone() };
    let files =
        Faulty::by_environment(Arc::new(Disk)).map_err(|what| CommandError::new(Exit::Usage, what))?;
    // The first process tells for all.
    let observer: &mut dyn Observer = if processes.is_first() { &mut watcher } else { &mut () };
    let options = TrainOptions {
        run_dir: args.run_dir.as_deref(),
        processes: Some(&processes),
        start: match (args.resume, args.restart) {
            (_, true) => Start::Restart,
            (true, _) => Start::Resume,
            _ => Start::New,
        },
        stop: Some(&stop),
        files: Some(&files),
    };
    let outcome = training::train(&job, options, observer);
    drop(watcher);
    let (summary, run) = launch::outcome(&processes, &file, outcome)?;
    let Some(run) = run else { return Ok(()) };
    if let Err(error) = print_results(&summary, &run) {
        // The run is complete, and must not look failed because nobody took its results.
        let summary = RunDir::summary_path(&run);
        tracing::warn!("{error}; the run is complete, and its results are in {}", summary.display());
    }
    Ok(())
}

/// Prints what a run achieved.
fn print_results(summary: &Summary, run: &Path) -> Result<(), CommandError> {
    if let Some(eval) = &summary.eval {
        output::text(MetricsText { metrics: &eval.metrics, auc_achievable: eval.auc_achievable })?;
    }
    if let Some(ExchangeSummary { rows, bytes, .. }) = &summary.exchange {
        const MIB: f64 = (1 << 20) as f64;
        output::text(format_args!(
            "exchanged           {:.0} vectors an iteration within nodes ({:.1} MiB), {:.0} between them ({:.1} MiB)\n",
            rows.within_nodes,
            bytes.within_nodes / MIB,
            rows.between_nodes,
            bytes.between_nodes / MIB
        ))?;
    }
    let train = &summary.train;
    if let Some(skipped) = train.skipped_steps {
        output::text(format_args!(
            "left out            {skipped} of {} steps, whose gradients were beyond the range of f16\n",
            train.steps
        ))?;
    }
    if train.non_finite_steps > 0 {
        output::text(format_args!(
            "skipped             {} of {} steps, whose loss or gradients were no finite numbers\n",
            train.non_finite_steps, train.steps
        ))?;
    }
    ids_out_of_range(&train.ids_out_of_range)?;
    output::text(format_args!(
        "trained             {} samples in {:.1} s, {:.0} samples/s\nrun                 {}\n",
        train.samples,
        train.seconds,
        train.samples_per_second,
        run.display()
    ))
}

/// Shows on stderr what a run does.
struct Watcher {
    quiet: bool,
    phase: Phase,
    /// Kept while an evaluation is shown in its place.
    training: Option<Progress>,
    /// What asks the training to stop.
    stop: Stop,
}

impl Watcher {
    /// Tells what is worth a line.
    fn tell(&self, text: &str) {
        match &self.training {
            Some(training) => training.tell(text),
            None => tracing::info!("{text}"),
        }
    }
}

enum Phase {
    Waiting,
    /// With what holds it to a second after a signal.
    Generating(Progress, #[expect(dead_code, reason = "its drop ends it")] Option<Deadline>),
    Checksumming(Progress),
    Evaluating(Progress),
}

impl Observer for Watcher {
    fn observe(&mut self, event: Event<'_>) {
        let quiet = self.quiet;
        match event {
            Event::Generating { samples, total } => {
                if !matches!(self.phase, Phase::Generating(..)) {
                    // Without a thread for it, generating still stops between two samples.
                    let deadline = Deadline::new(&self.stop, |_| Exit::Resumable).ok();
                    self.phase =
                        Phase::Generating(Progress::new("generating", "samples", total, quiet), deadline);
                }
                if let Phase::Generating(progress, _) = &mut self.phase {
                    progress.at(samples);
                }
            }
            Event::Generated => self.phase = Phase::Waiting,
            Event::Checksumming { bytes, total } => {
                if !matches!(self.phase, Phase::Checksumming(_)) {
                    self.phase = Phase::Checksumming(Progress::new("comparing", "bytes", total, quiet));
                }
                if let Phase::Checksumming(progress) = &mut self.phase {
                    progress.at(bytes);
                }
            }
            Event::Started { spec, device, memory, topology, rung, samples } => {
                self.phase = Phase::Waiting;
                let training = Progress::new("training", "samples", samples, quiet);
                let ranks = match (topology.ranks(), topology.nodes()) {
                    (1, _) => String::new(),
                    (ranks, nodes) => format!(
                        " with {ranks} ranks in {nodes} {}",
                        if nodes == 1 { "node" } else { "nodes" }
                    ),
                };
                training.tell(&format!(
                    "training on {device}{ranks}: {} tables with {} parameters, dense layers with {}; reading with \
                     {rung}",
                    spec.tables.len(),
                    spec.embedding_parameters(),
                    spec.dense_parameters()
                ));
                if let Some(memory) = memory {
                    training.tell(&format!("memory of the GPU: {memory}"));
                }
                self.training = Some(training);
            }
            Event::Step(progress) => {
                self.phase = Phase::Waiting;
                if let Some(training) = &mut self.training {
                    training.at_after(progress.samples, progress.seconds);
                    training.message(format!("loss {:.4}", progress.loss));
                }
            }
            Event::Report(progress, ids) => {
                if let Some(training) = &mut self.training {
                    let skipped = match progress.non_finite_steps {
                        0 => String::new(),
                        steps => format!("  {steps} steps skipped"),
                    };
                    let ids = match ids.values().sum() {
                        0 => String::new(),
                        ids => format!("  {ids} ids out of range"),
                    };
                    let words = format!("step {}  loss {:.4}{skipped}{ids}", progress.step, progress.loss);
                    training.line(progress.samples, progress.seconds, &words);
                }
            }
            Event::Evaluating { samples, total } => {
                if !matches!(self.phase, Phase::Evaluating(_)) {
                    self.phase = Phase::Evaluating(Progress::new("evaluating", "samples", total, quiet));
                }
                if let Phase::Evaluating(progress) = &mut self.phase {
                    progress.at(samples);
                }
            }
            Event::Skipped(Skipped { path, why, .. }) => {
                tracing::warn!("{} cannot be used, and was set aside: {why}", path.display());
            }
            Event::Removed { path, bytes } => {
                let size = Size(bytes);
                self.tell(&format!("removed {} ({size}), which an interrupted run left", path.display()));
            }
            Event::Damaged { path, bytes } => {
                let (path, size) = (path.display(), Size(bytes));
                tracing::warn!(
                    "{path} ({size}) is a damaged checkpoint: remove it when you no longer need it"
                );
            }
            Event::Kept { path } => {
                tracing::warn!("what the run's folder held before was moved to {}", path.display());
            }
            Event::Resumed { step, path } => {
                self.tell(&format!("going on after step {step}, from {}", path.display()));
            }
            Event::Anew { restarted: true } => self.tell("training starts over at step 0"),
            Event::Anew { restarted: false } => {
                self.tell("there is no checkpoint to resume from: training begins at step 0");
            }
            Event::CheckpointPauses { step, bytes } => {
                let gb = bytes as f64 / 1e9;
                self.tell(&format!(
                    "step {step}: memory holds no copy of {gb:.1} GB, so training waits until the checkpoint is written"
                ));
            }
            Event::Checkpointed { step, bytes, seconds, waited_seconds } => {
                self.tell(&format!(
                    "step {step}: checkpoint saved, {:.2} GB in {seconds:.1} s, for {waited_seconds:.2} s of which \
                     training waited",
                    bytes as f64 / 1e9
                ));
            }
            Event::CheckpointFailed { step, error } => {
                tracing::error!("step {step}: no checkpoint was saved: {error}; training goes on");
            }
            Event::Evaluated { step, heads } => {
                self.phase = Phase::Waiting;
                let Some(training) = &self.training else { return };
                for HeadMetrics { label, metrics } in heads {
                    let Some(metrics) = metrics else { continue };
                    let auc = metrics.auc.map_or_else(|| "undefined".into(), |auc| format!("{auc:.5}"));
                    let head = if heads.len() > 1 { format!(" {label}:") } else { String::new() };
                    training.tell(&format!("step {step}:{head} AUC {auc}, log loss {:.5}", metrics.log_loss));
                }
            }
        }
    }
}

/// A number of bytes for people.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes @ 0..10_000 => write!(f, "{bytes} bytes"),
            bytes @ 10_000..10_000_000 => write!(f, "{:.1} kB", bytes as f64 / 1e3),
            bytes @ 10_000_000..10_000_000_000 => write!(f, "{:.1} MB", bytes as f64 / 1e6),
            bytes => write!(f, "{:.1} GB", bytes as f64 / 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_unit_that_fits() {
        let told = [0, 9_999, 10_000, 9_999_999, 10_000_000, 9_999_999_999, 10_000_000_000].map(Size);
        let expected = ["0 bytes", "9999 bytes", "10.0 kB", "10000.0 kB", "10.0 MB", "10000.0 MB", "10.0 GB"];
        assert_eq!(told.map(|size| size.to_string()), expected);
    }
}
