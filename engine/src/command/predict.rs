//! `rankine predict`: what does a trained model say of rows?

use std::path::PathBuf;
use std::time::Instant;

use rankine::prediction::{OnUnknown, PredictionCounts, Predictions, RowOptions, predict_part, predict_rows};
use rankine::source::{ModelSource, OpenModel, Wanted};
use rankine::system;
use rankine::training::{self, EvaluationOptions, RunDir};
use rankine_reader::convert::{BadLimit, UnknownCategories};
use rankine_reader::publish::refuse_inputs;
use rankine_reader::{Dataset, Part};
use serde::Serialize;

use super::convert::Bars;
use super::progress::Progress;
use super::{CommandError, Exit, output};

/// Score rows with a trained model: a probability a row and label, as CSV
///
/// Rows come from a dataset, whose columns must mean what the model learned, or from raw files of the form that the
/// model's own data had; these need no labels. Rows keep their order, and have their number, the first being 1, in the
/// first column.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("rows").required(true))]
#[command(after_help = "\
Examples:
  rankine predict --run runs/criteo-1 --data data/criteo --out predictions.csv
  rankine predict --run runs/criteo-1 day_24.gz --out predictions.csv --on-bad skip
  rankine predict --run models/criteo new.tsv --out predictions.csv --json | jq .unknown")]
pub(crate) struct Args {
    /// Raw files, read in the order given
    #[arg(value_name = "FILE", group = "rows", conflicts_with = "part")]
    files: Vec<PathBuf>,

    /// The model: the folder of a finished run, a checkpoint, or an export
    #[arg(long, value_name = "DIR")]
    run: PathBuf,

    /// A dataset's folder in place of raw files; its columns must be those that the model was trained on
    #[arg(long, value_name = "DATASET", group = "rows")]
    data: Option<PathBuf>,

    /// The part of the dataset: eval or train
    #[arg(long, default_value = "eval", value_parser = super::arguments::part)]
    part: Part,

    /// The file of predictions; it is there once it is whole
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// What becomes of raw rows that cannot be read: fail, or skip (they are left out, counted and named)
    #[arg(long, value_name = "WHAT", default_value = "fail", value_parser = ["fail", "skip"])]
    on_bad: String,

    /// With --on-bad skip, how many bad rows are too many: a number, or a share such as 0.1%
    #[arg(long, value_name = "N|P%", default_value_t = BadLimit::default())]
    bad_limit: BadLimit,

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
    let source = ModelSource::find(&args.run, Wanted::Model)?;
    // Predictions may lie in a run's folder, but not in place of what training wrote there.
    let run = match &source {
        ModelSource::Run(run) => RunDir::contents(run),
        ModelSource::Checkpoint(_) | ModelSource::Export(_) => Vec::new(),
    };
    let opened = source.open()?;
    let (job, schema) = (opened.job(), &opened.columns().schema);
    let rows = args.files.iter().chain(&args.data);
    refuse_inputs(&args.out, rows.chain(&opened.inputs()).chain(&run))?;
    let (pool, _) = training::thread_pool(job)?;
    let began = Instant::now();
    let counts = pool.install(|| {
        let model = opened.load()?;
        let ids = training::ids_of(job, schema)?;
        let mut predictions = Predictions::create(model, schema, (args.unknown, ids), &args.out)?;
        predict(&args, &opened, &mut predictions)?;
        Ok::<_, CommandError>(predictions.finish()?)
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let rows_per_second = counts.read as f64 / seconds;
    tell(&counts, seconds);
    if args.json {
        return output::json(&Outcome { out: &args.out, counts: &counts, seconds, rows_per_second });
    }
    output::text(format_args!(
        "rows read        {}\nrows predicted   {}\nrows bad         {}\nrows left out    {}\npredictions      {}\n\
         unknown categories: {}\n",
        counts.read,
        counts.predicted,
        counts.bad,
        counts.unknown_skipped,
        args.out.display(),
        UnknownCategories::total(counts.unknown.iter().map(|(_, count)| count))
    ))
}

fn predict(args: &Args, model: &OpenModel, predictions: &mut Predictions<'_>) -> Result<(), CommandError> {
    let job = model.job();
    let batch_size = job.eval.batch_size.get() as usize;
    if let Some(data) = &args.data {
        let dataset = Dataset::open(data)?;
        model.columns().check(&dataset)?;
        let dataset = training::with_ids(job, dataset)?;
        let options = EvaluationOptions { batch_size, io: job.reader.io_options() };
        let mut progress = Progress::new("predicting", "rows", dataset.samples(args.part), false);
        predict_part(predictions, &dataset, args.part, &options, &mut |rows| progress.at(rows))?;
        return Ok(());
    }
    let Some(format) = &model.columns().format else {
        let run = args.run.display();
        return Err(CommandError::new(
            Exit::Usage,
            format!(
                "the model of {run} was trained on generated data, of which there are no raw rows: name a dataset with \
                 --data"
            ),
        ));
    };
    let encoder = model.encoder()?;
    let threads = system::thread_count(job.device.threads);
    let options =
        RowOptions { batch_size, threads, bad_limit: (args.on_bad == "skip").then_some(args.bad_limit) };
    Ok(predict_rows(predictions, &args.files, format, &encoder, &options, &Bars::default())?)
}

/// Says on stderr how fast it was, and what the model did not know.
fn tell(counts: &PredictionCounts, seconds: f64) {
    let progress = Progress::new("predicting", "rows", counts.read, false);
    let rate = counts.read as f64 / seconds;
    progress.tell(&format!("predicted {} rows in {seconds:.1} s, {rate:.0} rows/s", counts.predicted));
    for (column, count) in &counts.ids_out_of_range {
        progress.tell(&format!("column {column}: {count} ids are no rows of its table"));
    }
    for (column, count) in counts.unknown.iter().filter(|(_, count)| count.lookups > 0) {
        progress.tell(&format!("column {column}: unknown categories: {count}"));
    }
}
