//! `rankine predict`: what does a trained model say of rows?

use std::path::PathBuf;
use std::time::Instant;

use rankine::job::Job;
use rankine::prediction::{OnUnknown, PredictionCounts, Predictions, predict_part};
use rankine::saved::SavedModel;
use rankine::training::{self, EvaluationOptions, RunDir};
use rankine_reader::{Dataset, Part};
use serde::Serialize;

use super::progress::Progress;
use super::{CommandError, output};

/// Score rows with a trained model: a probability a row and label, as CSV
///
/// Rows come from a dataset, whose columns must mean what the model learned, or from raw files of the form that the
/// model's dataset was converted from; these need no labels. Rows keep their order, and have their number, the first
/// being 1, in the first column.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine predict --run runs/criteo-1 --data data/criteo --out predictions.csv
  rankine predict --run runs/criteo-1 day_24.gz --out predictions.csv --on-bad skip
  rankine predict --run runs/criteo-1 new.tsv --out predictions.csv --json | jq .unknown")]
pub(crate) struct Args {
    /// The folder of the run that trained the model
    #[arg(long, value_name = "DIR")]
    run: PathBuf,

    /// The dataset's folder; its columns must be those that the model was trained on
    #[arg(long, value_name = "DATASET")]
    data: PathBuf,

    /// The part of the dataset: eval or train
    #[arg(long, default_value = "eval", value_parser = super::arguments::part)]
    part: Part,

    /// The file of predictions; it is there once it is whole
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// What becomes of rows with categories that have no row of their own in the model: oov (they are scored with the
    /// row that such categories share), fail, or skip
    #[arg(long, value_name = "WHAT", default_value_t = OnUnknown::default())]
    unknown: OnUnknown,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome<'a> {
    out: &'a PathBuf,
    #[serde(flatten)]
    counts: &'a PredictionCounts,
    seconds: f64,
    rows_per_second: f64,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let model_dir = RunDir::model_path(&args.run);
    let saved = SavedModel::open(&model_dir)?;
    let job = Job::load(&RunDir::job_path(&args.run), &[] as &[&str])?;
    let options =
        EvaluationOptions { batch_size: job.eval.batch_size.get() as usize, io: job.reader.io_options() };
    let (pool, _) = training::thread_pool(&job)?;
    let dataset = Dataset::open(&args.data)?;
    saved.check_dataset(&dataset)?;
    let mut progress = Progress::new("predicting", "rows", dataset.samples(args.part), false);
    let began = Instant::now();
    let counts = pool.install(|| -> Result<_, CommandError> {
        let model = saved.load(&model_dir)?;
        let mut predictions = Predictions::create(model, &saved.schema, args.unknown, &args.out)?;
        predict_part(&mut predictions, &dataset, args.part, &options, &mut |rows| progress.at(rows))?;
        Ok(predictions.finish()?)
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let rows_per_second = counts.read as f64 / seconds;
    progress.tell(&format!("{} rows in {seconds:.1} s, {rows_per_second:.0} rows/s", counts.read));
    for (column, count) in counts.unknown.iter().filter(|(_, count)| *count > 0) {
        progress.tell(&format!("column {column}: {count} categories have no row of their own in the model"));
    }
    drop(progress);
    if args.json {
        return output::json(&Outcome { out: &args.out, counts: &counts, seconds, rows_per_second });
    }
    output::text(format_args!(
        "rows read        {}\nrows predicted   {}\nrows bad         {}\nrows left out    {}\npredictions      {}\n",
        counts.read,
        counts.predicted,
        counts.bad,
        counts.unknown_skipped,
        args.out.display()
    ))
}
