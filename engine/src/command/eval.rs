//! `rankine eval`: how good is a trained model?

use std::path::{Path, PathBuf};

use rankine::evaluation::EvalMetrics;
use rankine::source::{ModelSource, OpenModel, Wanted};
use rankine::training::{self, EvaluationOptions, Event, IdCounts, Observer};
use rankine_reader::convert::RowFormat;
use rankine_reader::{Dataset, Part};
use serde::Serialize;

use super::metrics::{MetricsText, ids_out_of_range};
use super::progress::Progress;
use super::{CommandError, Exit, output};

/// Evaluate a trained model on a dataset: AUC, log loss, calibration
///
/// A model with several heads is judged head by head, each on the samples that have its label. Sample weights count in
/// all metrics.
///
/// The dataset's columns must mean what the model learned: same names, transforms and vocabularies. Without --data and
/// --raw, the model is judged on the data of its own job.
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
    /// The model: the folder of a finished run, a checkpoint, or an export
    #[arg(long, value_name = "DIR")]
    run: PathBuf,

    /// The dataset's folder; its columns must be those that the model was trained on
    #[arg(long, value_name = "DATASET")]
    data: Option<PathBuf>,

    /// Raw files to judge by, of such records as the model was trained on, converted or not
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["data", "part"])]
    raw: Vec<PathBuf>,

    /// The part of the dataset: eval or train
    #[arg(long, default_value = "eval", value_parser = super::arguments::part)]
    part: Part,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
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

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let opened = ModelSource::find(&args.run, Wanted::Model)?.open()?;
    let job = opened.job();
    let dataset = dataset(&args, &opened)?;
    opened.columns().check(&dataset)?;
    let dataset = training::with_ids(job, dataset)?;
    let options =
        EvaluationOptions { batch_size: job.eval.batch_size.get() as usize, io: job.reader.io_options() };
    let (pool, _) = training::thread_pool(job)?;
    let mut watcher = Watcher(None);
    let (heads, ids) = pool.install(|| {
        let mut model = opened.load()?;
        training::evaluate(&mut model, &dataset, args.part, &options, &mut watcher)
    })?;
    drop(watcher);
    let metrics = EvalMetrics::from(heads.as_slice());
    let judged_part = args.part == Part::Eval;
    let auc_achievable = dataset.auc_achievable().filter(|_| judged_part);
    if args.json {
        output::json(&Outcome { metrics, auc_achievable, ids_out_of_range: ids })
    } else {
        output::text(MetricsText { metrics: &metrics, auc_achievable })?;
        ids_out_of_range(&ids)
    }
}

/// The dataset that the arguments name, or that of the model's job.
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
            "the model was not trained on raw records, so what --raw files hold is not known: convert them with \
             `rankine convert hugectr-raw`, and name the dataset with --data",
        )),
        (_, Some(raw)) => Ok(Dataset::raw(&training::raw_format(raw)?, &raw.train, &raw.eval)?),
        (_, None) => Ok(Dataset::open(job.data.folder().unwrap_or(Path::new("")))?),
    }
}

struct Watcher(Option<Progress>);

impl Observer for Watcher {
    fn observe(&mut self, event: Event<'_>) {
        if let Event::Evaluating { samples, total } = event {
            self.0.get_or_insert_with(|| Progress::new("evaluating", "samples", total, false)).at(samples);
        }
    }
}
