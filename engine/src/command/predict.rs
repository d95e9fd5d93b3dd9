//! `rankine predict`: scores rows with a trained model.

use std::path::PathBuf;
use std::time::Instant;

use rankine::job::{Job, ThreadCount};
use rankine::monitoring::Command;
use rankine::prediction::{OnUnknown, PredictionCounts, Predictions, RowOptions, predict_part, predict_rows};
use rankine::run_paths;
use rankine::source::{Artifact, ModelSource, OpenModel};
use rankine::system;
use rankine::training::{self, EvaluationOptions};
use rankine_reader::convert::{BadLimit, UnknownCategories};
use rankine_reader::publish::refuse_inputs;
use rankine_reader::{Dataset, Part};
use serde::Serialize;

use super::convert::Bars;
use super::progress::Progress;
use super::{CommandError, Exit, monitoring, output};

/// Score rows with a trained model, as CSV with one probability per row and label
///
/// Rows are read from a dataset, which must have the columns that the model was trained on, or from raw files in the
/// format of the model's training data, which need no labels. The output has one line per row, in the order of the
/// input. Its first column is the number of the row, starting at 1.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("rows").required(true))]
#[command(after_help = "\
Examples:
  rankine predict --run runs/criteo-1 --data data/criteo --out predictions.csv
  rankine predict --run runs/criteo-1 day_24.gz --out predictions.csv --on-bad skip
  rankine predict --run models/criteo new.tsv --out predictions.csv --json | jq .unknown")]
pub(crate) struct Args {
    /// Raw files, read in the given order
    #[arg(value_name = "FILE", group = "rows", conflicts_with = "part")]
    files: Vec<PathBuf>,

    /// Model: the folder of a finished run, a checkpoint, or an export
    #[arg(long, value_name = "DIR")]
    run: PathBuf,

    /// Dataset folder instead of raw files; its columns must be those that the model was trained on
    #[arg(long, value_name = "DATASET", group = "rows")]
    data: Option<PathBuf>,

    /// Part of the dataset: eval or train
    #[arg(long, default_value = "eval", value_parser = super::arguments::part)]
    part: Part,

    /// Output file, written atomically
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// What to do with bad rows: fail, or skip (they are counted and reported)
    #[arg(long, value_name = "WHAT", default_value = "fail", value_parser = ["fail", "skip"])]
    on_bad: String,

    /// With --on-bad skip, maximum number of skipped rows: a number, or a share such as 0.1%
    #[arg(long, value_name = "N|P%", default_value_t = BadLimit::default())]
    bad_limit: BadLimit,

    /// What to do with rows that have categories without their own row in the model: oov (score them with the shared
    /// row), fail, or skip
    #[arg(long, value_name = "WHAT", default_value_t = OnUnknown::default())]
    unknown: OnUnknown,

    /// Number of CPU threads [default: device.threads of the model's job]
    #[arg(long, value_name = "N", value_parser = super::arguments::threads)]
    threads: Option<ThreadCount>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    monitoring: monitoring::Args,
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

pub(crate) fn run(args: Args, quiet: bool) -> Result<(), CommandError> {
    let monitor = args.monitoring.start(Command::Predict, &args.out)?;
    let source = ModelSource::find(&args.run, Artifact::Model)?;
    // Predictions may be written to a run folder, but must not overwrite what training wrote there.
    let run = match &source {
        ModelSource::Run(run) => run_paths::all(run),
        ModelSource::Checkpoint(_) | ModelSource::Export(_) => Vec::new(),
    };
    let opened = source.open()?;
    let (mut job, schema) = (opened.job().clone(), &opened.columns().schema);
    job.device.threads = args.threads.or(job.device.threads);
    let job = &job;
    let rows = args.files.iter().chain(&args.data);
    refuse_inputs(&args.out, rows.chain(&opened.inputs()).chain(&run))?;
    let (pool, _) = training::thread_pool(job)?;
    let began = Instant::now();
    let counts = pool.install(|| {
        let model = opened.load()?;
        let ids = opened.ids()?;
        let mut predictions = Predictions::create(model, schema, args.unknown, ids, &args.out)?;
        predict(&args, job, &opened, &mut predictions, Bars::new(quiet, monitor.as_ref()))?;
        Ok::<_, CommandError>(predictions.finish()?)
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let rows_per_second = counts.read as f64 / seconds;
    report(&counts, seconds, quiet);
    if args.json {
        return output::json(&Outcome { out: &args.out, counts: &counts, seconds, rows_per_second });
    }
    output::text(format_args!(
        "rows read        {}\nrows predicted   {}\nrows bad         {}\nrows skipped     {}\npredictions      {}\n\
         unknown categories: {}\n",
        counts.read,
        counts.predicted,
        counts.bad,
        counts.unknown_skipped,
        args.out.display(),
        UnknownCategories::total(counts.unknown.iter().map(|(_, count)| count))
    ))
}

fn predict(
    args: &Args,
    job: &Job,
    model: &OpenModel,
    predictions: &mut Predictions<'_>,
    bars: Bars<'_>,
) -> Result<(), CommandError> {
    let batch_size = job.eval.batch_size.get() as usize;
    if let Some(data) = &args.data {
        let dataset = Dataset::open(data)?;
        model.check_columns(&dataset)?;
        let dataset = training::with_ids(job, dataset)?;
        let options = EvaluationOptions { batch_size, io: job.reader.io_options() };
        let mut progress = bars.progress("predicting", "rows", dataset.samples(args.part));
        predict_part(predictions, &dataset, args.part, &options, &mut |rows| progress.at(rows))?;
        return Ok(());
    }
    let Some(format) = &model.columns().format else {
        let run = args.run.display();
        return Err(CommandError::new(
            Exit::Usage,
            format!("the model of {run} was trained on generated data, which has no raw rows: use --data"),
        ));
    };
    let encoder = model.encoder()?;
    let threads = system::thread_count(job.device.threads);
    let options =
        RowOptions { batch_size, threads, bad_limit: (args.on_bad == "skip").then_some(args.bad_limit) };
    Ok(predict_rows(predictions, &args.files, format, &encoder, &options, &bars)?)
}

/// Reports the speed and unknown ids and categories on stderr.
fn report(counts: &PredictionCounts, seconds: f64, quiet: bool) {
    let progress = Progress::new("predicting", "rows", counts.read, quiet);
    let rate = counts.read as f64 / seconds;
    progress.note(&format!("predicted {} rows in {seconds:.1} s, {rate:.0} rows/s", counts.predicted));
    for (column, count) in &counts.ids_out_of_range {
        progress.note(&format!("column {column}: {count} ids are out of range"));
    }
    for (column, count) in counts.unknown.iter().filter(|(_, count)| count.lookups > 0) {
        progress.note(&format!("column {column}: unknown categories: {count}"));
    }
}
