//! `rankine eval`: evaluates a trained model.

use std::path::{Path, PathBuf};
use std::time::Instant;

use rankine::evaluation::EvalMetrics;
use rankine::job::ThreadCount;
use rankine::monitoring::Command;
use rankine::source::{Artifact, ModelSource, OpenModel};
use rankine::training::{self, EvaluationOptions, Event, IdCounts, Observer};
use rankine_reader::convert::RowFormat;
use rankine_reader::{Dataset, Part};
use serde::Serialize;

use super::metrics::{MetricsText, ids_out_of_range};
use super::progress::Progress;
use super::{CommandError, Exit, monitoring, output};

/// Evaluate a trained model on a dataset: AUC, log loss, calibration
///
/// Each head of a model is evaluated on the samples that have its label. All metrics use sample weights, if the dataset
/// has them.
///
/// The dataset must have the columns that the model was trained on, with the same names, transforms and vocabularies.
/// Without --data and --raw, the model is evaluated on the dataset of its job.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine eval --run runs/criteo-1
  rankine eval --run runs/criteo-1 --data data/criteo
  rankine eval --run runs/terabyte-1 --raw day_23.bin
  rankine eval --run runs/criteo-1 --data data/criteo --part train
  rankine eval --run runs/criteo-1/checkpoints/step-5000
  rankine eval --run models/criteo --data data/criteo --json | jq .auc")]
pub(crate) struct Args {
    /// Model: the folder of a finished run, a checkpoint, or an export
    #[arg(long, value_name = "DIR")]
    run: PathBuf,

    /// Dataset folder; its columns must be those that the model was trained on
    #[arg(long, value_name = "DATASET")]
    data: Option<PathBuf>,

    /// Raw files to evaluate on, with the records that the model was trained on (converted or not)
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["data", "part"])]
    raw: Vec<PathBuf>,

    /// Part of the dataset: eval or train
    #[arg(long, default_value = "eval", value_parser = super::arguments::part)]
    part: Part,

    /// Number of CPU threads [default: device.threads of the model's job]
    #[arg(long, value_name = "N", value_parser = super::arguments::threads)]
    threads: Option<ThreadCount>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    monitoring: monitoring::Args,
}

#[derive(Serialize)]
struct Outcome {
    #[serde(flatten)]
    metrics: EvalMetrics,
    #[serde(skip_serializing_if = "Option::is_none")]
    auc_achievable: Option<f64>,
    #[serde(skip_serializing_if = "IdCounts::is_empty")]
    ids_out_of_range: IdCounts,
}

pub(crate) fn run(args: Args, quiet: bool) -> Result<(), CommandError> {
    let monitor = args.monitoring.start(Command::Eval, &args.run)?;
    let opened = ModelSource::find(&args.run, Artifact::Model)?.open()?;
    let mut job = opened.job().clone();
    job.device.threads = args.threads.or(job.device.threads);
    let job = &job;
    let dataset = dataset(&args, &opened)?;
    opened.check_columns(&dataset)?;
    let dataset = training::with_ids(job, dataset)?;
    let options =
        EvaluationOptions { batch_size: job.eval.batch_size.get() as usize, io: job.reader.io_options() };
    let (pool, _) = training::thread_pool(job)?;
    let mut watcher = Watcher { quiet, progress: None };
    let mut monitored;
    let observer: &mut dyn Observer = match &monitor {
        Some(monitor) => {
            monitored = monitor.evaluation(&mut watcher);
            &mut monitored
        }
        None => &mut watcher,
    };
    let began = Instant::now();
    let (heads, ids) = pool.install(|| {
        let mut model = opened.load()?;
        training::evaluate(&mut model, &dataset, args.part, &options, observer)
    })?;
    let (step, seconds) = (0, began.elapsed().as_secs_f64());
    observer.observe(Event::Evaluated { step, part: args.part, seconds, heads: &heads });
    drop(watcher);
    let metrics = EvalMetrics::from(heads.as_slice());
    // The achievable AUC is that of the evaluation part.
    let auc_achievable = dataset.auc_achievable().filter(|_| args.part == Part::Eval);
    if args.json {
        output::json(&Outcome { metrics, auc_achievable, ids_out_of_range: ids })
    } else {
        output::text(MetricsText { metrics: &metrics, auc_achievable })?;
        ids_out_of_range(&ids)
    }
}

/// Opens the dataset that the arguments name, or that of the model's job.
fn dataset(args: &Args, model: &OpenModel) -> Result<Dataset, CommandError> {
    if let Some(dir) = &args.data {
        return Ok(Dataset::open(dir)?);
    }
    let job = model.job();
    match (&model.columns().format, &job.data.raw) {
        (Some(RowFormat::HugectrRaw(format)), _) if !args.raw.is_empty() => {
            Ok(Dataset::raw(format, &[], &args.raw)?)
        }
        _ if !args.raw.is_empty() => Err(CommandError::new(
            Exit::Usage,
            "the model was not trained on raw records, so the format of the --raw files is unknown: convert them with \
             `rankine convert hugectr-raw`, and use --data",
        )),
        (_, Some(raw)) => Ok(Dataset::raw(&training::raw_format(raw)?, &raw.train, &raw.eval)?),
        (_, None) => Ok(Dataset::open(job.data.folder().unwrap_or(Path::new("")))?),
    }
}

struct Watcher {
    quiet: bool,
    progress: Option<Progress>,
}

impl Observer for Watcher {
    fn observe(&mut self, event: Event<'_>) {
        if let Event::Evaluating { samples, total, .. } = event {
            let quiet = self.quiet;
            let progress = || Progress::new("evaluating", "samples", total, quiet);
            self.progress.get_or_insert_with(progress).at(samples);
        }
    }
}
