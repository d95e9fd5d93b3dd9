//! `rankine predict`: scores rows with a trained model.

use std::path::{Path, PathBuf};
use std::time::Instant;

use rankine_base::publish::refuse_inputs;
use rankine_engine::prediction::{
    OnUnknown, PredictionCounts, PredictionOptions, Predictions, RowOptions, STANDARD_OUTPUT, predict_part,
    predict_rows,
};
use rankine_engine::run_paths;
use rankine_engine::source::{Artifact, ModelSource, OpenModel};
use rankine_engine::training::{self, EvaluationOptions, TrainError};
use rankine_job::{Job, ThreadCount};
use rankine_reader::Part;
use rankine_reader::convert::{BadLimit, UnknownCategories};
use rankine_views::monitoring::Command;
use serde::Serialize;

use super::progress::{Bars, Progress};
use super::table::counted;
use super::{CommandError, Exit, inputs, monitoring, output, stderr};

/// Score rows with a trained model, as CSV with one probability per row and label
///
/// Rows are read from a dataset, which must have the columns that the model was trained on, or from raw files in the
/// format of the model's training data, which need no labels. The output has one line per row, in the order of the
/// input. Its first column is the number of the row, starting at 1. The columns of --keep-columns follow, and then the
/// predictions.
///
/// A FILE may be a pattern in quotes, such as 'day_*.csv', which stands for the files that match it in the order of
/// their names; a folder, which stands for the files in it; or - for standard input, if rows are text.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("rows").required(true))]
#[command(after_help = "\
Examples:
  rankine predict --run runs/criteo-1 --data data/criteo --out predictions.csv
  rankine predict --run runs/criteo-1 day_24.gz --out predictions.csv --on-bad skip
  rankine predict --run runs/ads 'logs/day_*.csv' --out predictions.csv --keep-columns id,user
  zcat new.csv.gz | rankine predict --run runs/ads - --out - | head
  rankine predict --run models/criteo new.tsv --out predictions.csv --json | jq .unknown")]
pub(crate) struct Args {
    /// Raw files, patterns or folders, read in the given order; - is standard input
    #[arg(value_name = "FILE", group = "rows", conflicts_with = "part")]
    files: Vec<PathBuf>,

    /// Model: the folder of a finished run or its name in the folder runs, a checkpoint, or an export
    #[arg(long, value_name = "DIR")]
    run: PathBuf,

    /// Dataset folder instead of raw files; its columns must be those that the model was trained on
    #[arg(long, value_name = "DATASET", group = "rows")]
    data: Option<PathBuf>,

    /// Part of the dataset: eval, train, or validation (what the model's job held out of its training part)
    #[arg(long, default_value = "eval", value_parser = super::arguments::part)]
    part: Part,

    /// Output file, written atomically; earlier predictions are replaced, any other file needs --force. - is standard
    /// output, and everything else that the command prints then goes to stderr
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Replace any file
    #[arg(long)]
    force: bool,

    /// Raw columns to copy to the output, unchanged and in this order; the model need not use them
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    keep_columns: Vec<String>,

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

    /// Write the model's own probabilities, without the correction for downsampled negatives (negatives_kept)
    #[arg(long)]
    no_correction: bool,

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
    let files = inputs::expand(&args.files)?;
    let to_stdout = args.out == Path::new(STANDARD_OUTPUT);
    // A shell may have sent standard output to one of the inputs.
    let out = if to_stdout { Path::new("/dev/stdout") } else { &args.out };
    let rows = files.iter().chain(&args.files).chain(&args.data);
    refuse_inputs(out, rows.chain(&opened.inputs()).chain(&run))?;
    check_kept(&args)?;
    let (pool, _) = training::thread_pool(job)?;
    let began = Instant::now();
    let counts = pool.install(|| {
        training::check_scoring_memory(job, opened.spec()).map_err(TrainError::from)?;
        let model = opened.load()?;
        let ids = opened.ids()?;
        let options = PredictionOptions {
            on_unknown: args.unknown,
            ids,
            keep: &args.keep_columns,
            force: args.force,
            uncorrected: args.no_correction,
        };
        let mut predictions = Predictions::create(model, schema, options, &args.out)?;
        let source = Source { files: &files, job, model: &opened };
        predict(&args, source, &mut predictions, Bars::new(quiet, monitor.as_ref()))?;
        Ok::<_, CommandError>(predictions.finish()?)
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let rows_per_second = counts.read as f64 / seconds;
    report(&counts, seconds, quiet);
    let result = if args.json {
        output::pretty(&Outcome { out: &args.out, counts: &counts, seconds, rows_per_second })? + "\n"
    } else {
        summary(&args.out, &counts)
    };
    match to_stdout {
        false => output::text(result),
        // The summary is a message here, and the JSON was asked for.
        true => {
            if args.json || !quiet {
                stderr::line(result.trim_end());
            }
            Ok(())
        }
    }
}

/// Returns the counts as text.
fn summary(out: &Path, counts: &PredictionCounts) -> String {
    format!(
        "rows read        {}\nrows predicted   {}\nrows bad         {}\nrows skipped     {}\npredictions      {}\n\
         unknown categories: {}\n",
        counts.read,
        counts.predicted,
        counts.bad,
        counts.unknown_skipped,
        if out == Path::new(STANDARD_OUTPUT) {
            "on standard output".into()
        } else {
            out.display().to_string()
        },
        UnknownCategories::total(counts.unknown.iter().map(|(_, count)| count))
    )
}

/// Checks that there are raw columns to keep, if any are to be kept.
fn check_kept(args: &Args) -> Result<(), CommandError> {
    if let ([_, ..], Some(data)) = (&args.keep_columns[..], &args.data) {
        let what = format!(
            "--keep-columns needs raw rows: the dataset {} has only what a model reads, not the columns of the files \
             that it was converted from. Name these files instead of --data",
            data.display()
        );
        return Err(CommandError::new(Exit::Usage, what));
    }
    if args.keep_columns.iter().any(String::is_empty) {
        return Err(CommandError::new(
            Exit::Usage,
            "--keep-columns has an empty name: separate names by one comma",
        ));
    }
    Ok(())
}

/// The model, and the raw files.
#[derive(Clone, Copy)]
struct Source<'a> {
    files: &'a [PathBuf],
    job: &'a Job,
    model: &'a OpenModel,
}

fn predict(
    args: &Args,
    source: Source<'_>,
    predictions: &mut Predictions<'_>,
    bars: Bars<'_>,
) -> Result<(), CommandError> {
    let Source { files, job, model } = source;
    let batch_size = job.eval.batch_size_on_cpu();
    if let Some(data) = &args.data {
        let dataset = model.with_columns(job.data.open_beside(std::slice::from_ref(data))?)?;
        let mut dataset = training::with_ids(job, dataset)?;
        if args.part == Part::Validation {
            dataset = dataset.with_validation(job.train.validation)?;
        }
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
    let threads = rankine_job::thread_count(job.device.threads);
    let options =
        RowOptions { batch_size, threads, bad_limit: (args.on_bad == "skip").then_some(args.bad_limit) };
    Ok(predict_rows(predictions, files, format, &encoder, &options, &bars)?)
}

/// Reports the speed and unknown ids and categories on stderr.
fn report(counts: &PredictionCounts, seconds: f64, quiet: bool) {
    let progress = Progress::new("predicting", "rows", counts.read, quiet);
    let rate = counts.read as f64 / seconds;
    let rows = counted(counts.predicted, "row");
    progress.note(&format!("predicted {rows} in {seconds:.1} s, {rate:.0} rows/s"));
    for (column, count) in &counts.ids_out_of_range {
        let are = if *count == 1 { "is" } else { "are" };
        progress.note(&format!("column {column}: {} {are} out of range", counted(*count, "id")));
    }
    for (column, count) in counts.unknown.iter().filter(|(_, count)| count.lookups > 0) {
        progress.note(&format!("column {column}: unknown categories: {count}"));
    }
}
