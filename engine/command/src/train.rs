//! `rankine train`: trains the model of a job file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytesize::ByteSize;
use clap::builder::UnknownArgumentValueParser;
use rankine_checkpoint::{Disk, FaultyFiles};
use rankine_engine::run_paths;
use rankine_engine::training::{
    self, AverageSummary, BestSummary, DeviceMemory, Event, ExchangeSummary, Observer, Report, RunDevices,
    RunStart, Start, StepDetails, StepTimes, Stop, Summary, TierSummary, TrainOptions,
};
use rankine_job::{ListenAddress, ThreadCount};
use rankine_launch::ProcessPlace;
use rankine_model::evaluation::{EvalSummary, HeadMetrics};
use rankine_reader::Part;
use rankine_views::report::{self, Bound};
use serde::Serialize;

use super::job::{JobArgs, setting};
use super::metrics::{MetricsText, ids_out_of_range};
use super::progress::Progress;
use super::signals::Deadline;
use super::table::counted;
use super::{CommandError, Exit, arguments, launch, monitoring, output, signals};

/// Train the model of a job file
///
/// The run folder holds the effective job, the log of losses and evaluations, checkpoints, the summary, and the model.
///
/// On SIGTERM, SIGUSR1, SIGINT or SIGHUP, training saves a checkpoint after the current step and exits with 75; a
/// second SIGINT ends it at once. SIGHUP is ignored under nohup. With --resume, training continues from the checkpoint
/// as if it had not stopped.
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

    /// Run folder, which must be empty or not exist, unless --resume or --restart is given [default: runs/NAME-TIME]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,

    /// Resume the run in --run-dir from its latest intact checkpoint; start from scratch if it has none, and do nothing
    /// if the run is finished
    #[arg(long, requires = "run_dir")]
    resume: bool,

    /// Start over in --run-dir at step 0; its contents are moved to the folder `before-restart` in it
    #[arg(long, requires = "run_dir", conflicts_with = "resume")]
    restart: bool,

    /// Number of CPU threads, the same as --set device.threads=N
    #[arg(long, value_name = "N", value_parser = arguments::threads)]
    threads: Option<ThreadCount>,

    /// Serve metrics for Prometheus, the same as --set metrics.listen=ADDRESS
    #[arg(long, value_name = "HOST:PORT|PORT")]
    metrics: Option<ListenAddress>,

    /// Print the summary as JSON instead of text
    #[arg(long)]
    json: bool,

    /// The parser would take it for a misspelled --process.
    #[arg(long = "epochs", hide = true, value_parser = epochs())]
    _epochs: Option<String>,

    #[command(flatten)]
    pub(crate) launch: launch::Args,
}

/// Refuses `--epochs`, and names the key of the job.
fn epochs() -> UnknownArgumentValueParser {
    UnknownArgumentValueParser::suggest("use '--set train.epochs=N'")
}

/// What `--json` prints.
#[derive(Serialize)]
struct TrainReport<'a> {
    run: &'a Path,
    #[serde(flatten)]
    summary: &'a Summary,
}

pub(crate) fn run(args: Args, place: &ProcessPlace, quiet: bool) -> Result<(), CommandError> {
    let settings = [setting("device.threads", args.threads), setting("metrics.listen", args.metrics)];
    let file = args.job.read_with(settings.into_iter().flatten())?;
    let job = file.job()?;
    let processes = args.launch.form(place, &job.guard)?;
    let stop = signals::training()?;
    let mut watcher = Watcher::new(quiet, stop.clone());
    let files =
        FaultyFiles::by_environment(Arc::new(Disk)).map_err(|what| CommandError::new(Exit::Usage, what))?;
    let monitor = monitoring::of_training(&job, place, &processes, quiet)
        .inspect_err(|error| drop(processes.fail(&error.to_string(), false)))?;
    // The first process reports for all.
    let shown: &mut dyn Observer = if processes.is_first() { &mut watcher } else { &mut () };
    let mut monitored;
    let observer: &mut dyn Observer = match &monitor {
        Some(monitor) => {
            monitored = monitor.training(shown);
            &mut monitored
        }
        None => shown,
    };
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
        ..TrainOptions::default()
    };
    let outcome = training::train(&job, options, observer);
    drop(watcher);
    let (summary, run) = launch::outcome(&processes, &file, outcome)?;
    let Some(run) = run else { return Ok(()) };
    let printed = match args.json {
        true => output::json(&TrainReport { run: &run, summary: &summary }),
        false => print_results(&summary, &run),
    };
    if let Err(error) = printed {
        // The run is complete, and must not look failed because its results could not be printed.
        let summary = run_paths::summary(&run);
        tracing::warn!("{error}; the run is complete, and its results are in {}", summary.display());
    }
    Ok(())
}

/// Prints the results of a run.
fn print_results(summary: &Summary, run: &Path) -> Result<(), CommandError> {
    let selected = summary.search.as_deref().unwrap_or(summary);
    print_best(selected)?;
    print_average(selected)?;
    if let Some(search) = &summary.search {
        output::text(format_args!(
            "trained again       for {} steps on {} samples instead of {}\n",
            summary.train.steps, summary.data.train_samples, search.data.train_samples
        ))?;
    }
    if let Some(EvalSummary { metrics, .. }) = &summary.validation {
        output::text("evaluated on        the validation set\n")?;
        output::text(MetricsText { metrics, auc_achievable: None })?;
        output::text("\n")?;
    }
    if let Some(eval) = &summary.eval {
        if summary.data.eval_samples > 0 {
            output::text("evaluated on        the evaluation part\n")?;
            output::text(MetricsText { metrics: &eval.metrics, auc_achievable: eval.auc_achievable })?;
        }
        for (name, EvalSummary { metrics, auc_achievable, .. }) in &eval.sets {
            output::text(format_args!("\neval set            {name}\n"))?;
            output::text(MetricsText { metrics, auc_achievable: *auc_achievable })?;
        }
        if !eval.sets.is_empty() {
            output::text("\n")?;
        }
    }
    if let Some(ExchangeSummary { rows, bytes, .. }) = &summary.exchange {
        output::text(format_args!(
            "exchanged           {:.0} vectors per step within nodes ({}), {:.0} between nodes ({})\n",
            rows.within_nodes,
            ByteSize(bytes.within_nodes.round() as u64),
            rows.between_nodes,
            ByteSize(bytes.between_nodes.round() as u64)
        ))?;
    }
    if let Some(tier) = &summary.tier {
        let TierSummary { missed_rows, waited_seconds, refreshes, moved_rows, .. } = tier;
        output::text(format_args!(
            "host memory         {}; {missed_rows:.0} per batch ({}); steps waited {waited_seconds:.1} s\n",
            counted(tier.host_rows, "row"),
            ByteSize(tier.bytes_to_device.round() as u64),
        ))?;
        if *refreshes > 0 {
            output::text(format_args!(
                "rows chosen again   {}; {} moved to GPUs\n",
                counted(*refreshes, "time"),
                counted(*moved_rows, "row")
            ))?;
        }
    }
    let train = &summary.train;
    if let Some(skipped) = train.overflow_steps {
        output::text(format_args!(
            "overflowed          {skipped} of {} skipped: gradients out of the range of fp16\n",
            counted(train.steps, "step")
        ))?;
    }
    if train.non_finite_steps > 0 {
        output::text(format_args!(
            "not finite          {} of {} skipped: loss or gradients not finite\n",
            train.non_finite_steps,
            counted(train.steps, "step")
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

/// Prints which model early stopping kept.
fn print_best(summary: &Summary) -> Result<(), CommandError> {
    let Some(BestSummary { step, metric, value, part, last_value, .. }) = &summary.best else {
        return Ok(());
    };
    output::text(format_args!(
        "best model          of step {step}: {} {value:.5} on the {}; {} after step {}\n",
        metric.name(),
        words_of(*part),
        Defined(*last_value),
        summary.train.steps
    ))
}

/// Prints how the average of weights compares with the model.
fn print_average(summary: &Summary) -> Result<(), CommandError> {
    let Some(average) = &summary.average else { return Ok(()) };
    let AverageSummary { steps, missing, metric, part, value, model_value, saved, .. } = average;
    let missing = match missing.len() {
        0 => String::new(),
        1 => " (1 snapshot is missing)".to_owned(),
        count => format!(" ({count} snapshots are missing)"),
    };
    output::text(format_args!(
        "average             of {} steps up to {}{missing}: {} {} on the {}; {} without it; {}\n",
        steps.len(),
        steps.last().copied().unwrap_or_default(),
        metric.name(),
        Defined(*value),
        words_of(*part),
        Defined(*model_value),
        if *saved { "saved" } else { "not saved" }
    ))
}

/// A part of a dataset in words.
fn words_of(part: Part) -> &'static str {
    if part == Part::Validation { "validation set" } else { "evaluation part" }
}

/// A metric, if it is defined.
struct Defined(Option<f64>);

impl fmt::Display for Defined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("undefined"),
            Some(value) => write!(f, "{value:.5}"),
        }
    }
}

/// Shows the progress of a run on stderr.
struct Watcher {
    quiet: bool,
    line: ProgressLine,
    /// Kept while an evaluation is shown instead.
    training: Option<Progress>,
    /// The signal to stop the training.
    stop: Stop,
    standing: Standing,
}

/// What is shown next to the loss.
#[derive(Default)]
struct Standing {
    /// The first head's AUC at the last evaluation, and the part that it was on.
    auc: Option<(Part, f64)>,
    /// Of the steps since the last report.
    times: StepTimes,
    /// What bounded the steps before the last report: a few steps do not say.
    bound: Option<Bound>,
}

impl Standing {
    /// Adds a step.
    fn step(&mut self, details: &StepDetails) {
        self.times.add(&details.times);
    }

    /// Starts anew after a report.
    fn report(&mut self) {
        self.bound = Bound::of(&std::mem::take(&mut self.times));
    }

    /// What follows the loss: the AUC and what bounds the steps, as far as they are known.
    fn words(&self) -> Vec<String> {
        let auc = self.auc.map(|(part, auc)| format!("{} AUC {auc:.5}", report::name_of(part, None)));
        auc.into_iter().chain(self.bound.map(|bound| bound.to_string())).collect()
    }
}

impl Watcher {
    fn new(quiet: bool, stop: Stop) -> Self {
        Self { quiet, line: ProgressLine::None, training: None, stop, standing: Standing::default() }
    }

    /// Prints a note.
    fn note(&self, text: &str) {
        match &self.training {
            Some(training) => training.note(text),
            None => tracing::info!("{text}"),
        }
    }
}

enum ProgressLine {
    None,
    /// With the deadline for stopping after a signal.
    Generating(Progress, #[expect(dead_code, reason = "its drop ends it")] Option<Deadline>),
    Checksumming(Progress),
    Evaluating(Progress),
}

impl Observer for Watcher {
    fn observe(&mut self, event: Event<'_>) {
        match event {
            Event::Generating { samples, total } => self.generating(samples, total),
            Event::Generated => self.line = ProgressLine::None,
            Event::Checksumming { bytes, total } => self.checksumming(bytes, total),
            Event::Started(start) => self.started(&start),
            Event::Step(progress, details) => self.step(&progress, &details),
            Event::Report(report) => self.report(&report),
            Event::Evaluating { samples, total, .. } => self.evaluating(samples, total),
            Event::Removed { path, bytes } => {
                let size = ByteSize(bytes);
                self.note(&format!("removed {} ({size}), left by an interrupted run", path.display()));
            }
            Event::Resumed { step, path } => {
                self.note(&format!("resuming after step {step} from {}", path.display()));
            }
            Event::Anew { restarted: true } => self.note("starting over at step 0"),
            Event::Anew { restarted: false } => {
                self.note("no checkpoint to resume from: starting at step 0");
            }
            Event::CheckpointPauses { step, bytes } => {
                let size = ByteSize(bytes);
                self.note(&format!(
                    "step {step}: no memory for a copy of {size}, so training waits until the checkpoint is written"
                ));
            }
            Event::Checkpointed { step, bytes, seconds, waited_seconds } => {
                self.note(&format!(
                    "step {step}: checkpoint saved, {} in {seconds:.1} s; training waited for {waited_seconds:.2} s",
                    ByteSize(bytes)
                ));
            }
            Event::CheckpointFailed { .. } => {
                event.warning().iter().for_each(|text| tracing::error!("{text}"))
            }
            Event::SetAside(_) | Event::Damaged { .. } | Event::Kept { .. } | Event::Continues { .. } => {
                event.warning().iter().for_each(|text| tracing::warn!("{text}"));
            }
            Event::Evaluated { step, part, set: None, heads, .. } => self.evaluated(step, part, heads),
            _ => {}
        }
    }
}

impl Watcher {
    fn generating(&mut self, samples: u64, total: u64) {
        if !matches!(self.line, ProgressLine::Generating(..)) {
            // Without its thread, generating still stops between two samples.
            let deadline = Deadline::new(&self.stop, |_| Exit::Resumable).ok();
            let progress = Progress::new("generating", "samples", total, self.quiet);
            self.line = ProgressLine::Generating(progress, deadline);
        }
        if let ProgressLine::Generating(progress, _) = &mut self.line {
            progress.at(samples);
        }
    }

    fn checksumming(&mut self, bytes: u64, total: u64) {
        if !matches!(self.line, ProgressLine::Checksumming(_)) {
            self.line = ProgressLine::Checksumming(Progress::new("comparing", "bytes", total, self.quiet));
        }
        if let ProgressLine::Checksumming(progress) = &mut self.line {
            progress.at(bytes);
        }
    }

    fn started(&mut self, start: &RunStart<'_>) {
        let RunStart { spec, devices, rung, samples, .. } = *start;
        let RunDevices { device, memory, .. } = devices;
        self.line = ProgressLine::None;
        // A command trains on a dataset, which has both.
        let (total, rung) = (samples.unwrap_or(0), rung.map_or("", |rung| rung.name()));
        let training = Progress::new("training", "samples", total, self.quiet);
        let ranks = match (devices.ranks, devices.nodes) {
            (1, _) => String::new(),
            (ranks, nodes) => {
                format!(" with {ranks} ranks on {}", counted(nodes as u64, "node"))
            }
        };
        training.note(&format!(
            "training on {device}{ranks}: {} with {}, {}; reading with {rung}",
            counted(spec.tables.len() as u64, "table"),
            counted(spec.embedding_parameters(), "parameter"),
            counted(spec.dense_parameters() as u64, "dense parameter")
        ));
        if let Some(memory) = DeviceMemory::fullest(memory.clone()) {
            training.note(&format!("GPU memory: {memory}"));
        }
        self.training = Some(training);
    }

    fn step(&mut self, progress: &training::Progress, details: &StepDetails) {
        self.line = ProgressLine::None;
        self.standing.step(details);
        if let Some(training) = &mut self.training {
            training.at_after(progress.samples, progress.seconds);
            training.message(format!("loss {:.4}", progress.loss), &self.standing.words());
        }
    }

    fn report(&mut self, report: &Report<'_>) {
        self.standing.report();
        let Some(training) = &mut self.training else { return };
        let progress = &report.progress;
        let skipped = match progress.non_finite_steps {
            0 => String::new(),
            steps => format!("  {} skipped", counted(steps, "step")),
        };
        let ids = match report.ids_out_of_range.values().sum() {
            0 => String::new(),
            ids => format!("  {} out of range", counted(ids, "id")),
        };
        let standing: String = self.standing.words().iter().map(|word| format!("  {word}")).collect();
        let words = format!("step {}  loss {:.4}{standing}{skipped}{ids}", progress.step, progress.loss);
        training.line(progress.samples, progress.seconds, &words);
    }

    fn evaluating(&mut self, samples: u64, total: u64) {
        if !matches!(self.line, ProgressLine::Evaluating(_)) {
            self.training.iter().for_each(Progress::hide);
            self.line = ProgressLine::Evaluating(Progress::new("evaluating", "samples", total, self.quiet));
        }
        if let ProgressLine::Evaluating(progress) = &mut self.line {
            progress.at(samples);
        }
    }

    fn evaluated(&mut self, step: u64, part: Part, heads: &[HeadMetrics]) {
        self.line = ProgressLine::None;
        self.standing.auc = heads.first().and_then(|head| Some((part, head.metrics?.auc?)));
        let Some(training) = &self.training else { return };
        for HeadMetrics { label, metrics, .. } in heads {
            let Some(metrics) = metrics else { continue };
            let auc = metrics.auc.map_or_else(|| "undefined".into(), |auc| format!("{auc:.5}"));
            let of_part = report::name_of(part, None);
            let head = if heads.len() > 1 { format!(" {label}:") } else { String::new() };
            training
                .note(&format!("step {step}: {of_part}:{head} AUC {auc}, log loss {:.5}", metrics.log_loss));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_says_what_is_known() {
        let mut standing = Standing::default();
        assert!(standing.words().is_empty());
        standing.times = StepTimes {
            reading: Duration::from_millis(62),
            computing: Duration::from_millis(38),
            awaiting: Duration::ZERO,
        };
        standing.report();
        assert_eq!(standing.words(), ["bound by reading (62%)"]);
        // Each report has the steps since the one before.
        standing.auc = Some((Part::Validation, 0.75));
        standing.times.computing += Duration::from_millis(10);
        standing.report();
        assert_eq!(standing.words(), ["validation AUC 0.75000", "bound by computing (100%)"]);
    }
}
