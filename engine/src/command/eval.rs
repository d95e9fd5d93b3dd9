//! `rankine eval`: evaluates a trained model.

use std::path::PathBuf;

use rankine::evaluate::{EvaluateOptions, evaluate};
use rankine::evaluation::{EvalMetrics, EvalSummary};
use rankine::job::ThreadCount;
use rankine::monitoring::Command;
use rankine::training::{Event, IdCounts, Observer};
use rankine_reader::Part;
use serde::Serialize;

use super::metrics::{MetricsText, ids_out_of_range};
use super::progress::Progress;
use super::{CommandError, monitoring, output};

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
    let options = EvaluateOptions {
        data: args.data.as_deref(),
        raw: &args.raw,
        part: args.part,
        threads: args.threads,
        stop: None,
    };
    let mut watcher = Watcher { quiet, progress: None };
    let mut monitored;
    let observer: &mut dyn Observer = match &monitor {
        Some(monitor) => {
            monitored = monitor.evaluation(&mut watcher);
            &mut monitored
        }
        None => &mut watcher,
    };
    let EvalSummary { metrics, auc_achievable, ids_out_of_range: ids, .. } =
        evaluate(&args.run, &options, observer)?;
    drop(watcher);
    if args.json {
        output::json(&Outcome { metrics, auc_achievable, ids_out_of_range: ids })
    } else {
        output::text(MetricsText { metrics: &metrics, auc_achievable })?;
        ids_out_of_range(&ids)
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
