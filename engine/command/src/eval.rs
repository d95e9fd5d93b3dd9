//! `rankine eval`: evaluates a trained model.

use std::fmt;
use std::path::{Path, PathBuf};

use rankine_engine::evaluate::{EvaluateOptions, Evaluations};
use rankine_engine::importance::{Importance, ImportanceOptions, MetricsLoss};
use rankine_engine::training::{Event, IdCounts, Observer};
use rankine_job::{Count, ThreadCount};
use rankine_model::evaluation::{EvalMetrics, EvalSummary, RowCounts};
use rankine_reader::Part;
use rankine_reader::convert::{BadLimit, UnknownCategories};
use rankine_views::monitoring::Command;
use serde::{Serialize, Serializer};

use super::metrics::{MetricsText, ids_out_of_range};
use super::progress::Progress;
use super::table::TextTable;
use super::{CommandError, Exit, inputs, monitoring, output};

/// Evaluate a trained model on datasets or raw files: AUC, log loss, calibration
///
/// Each head of a model is evaluated on the samples that have its label. All metrics use sample weights, if the data
/// have them.
///
/// A dataset must have the columns that the model was trained on, with the same names, transforms and vocabularies. Raw
/// files must have the format of the model's training data, with labels; they are read with the vocabularies and
/// transforms of the model, and the results are those of a dataset with these rows. Without --data and FILE, the model
/// is evaluated on the dataset of its job.
///
/// --importance also shows how much the predictions depend on each column: it permutes the values of a column among the
/// samples, and reports the loss of AUC and the increase of log loss. The samples are kept in memory and scored once
/// per column.
///
/// A FILE may be a pattern in quotes, such as 'day_*.csv', which stands for the files that match it in the order of
/// their names; a folder, which stands for the files in it; or - for standard input, if rows are text.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("rows").args(["files", "raw"]))]
#[command(after_help = "\
Examples:
  rankine eval --run runs/criteo-1
  rankine eval --run runs/criteo-1 --data data/criteo --data data/day-24
  rankine eval --run runs/criteo-1 day_24.gz --on-bad skip
  rankine eval --run runs/criteo-1 --data data/criteo --part train
  rankine eval --run runs/criteo-1 --importance
  rankine eval --run runs/criteo-1/checkpoints/step-5000
  rankine eval --run models/criteo --data data/criteo --json | jq .auc")]
pub(crate) struct Args {
    /// Raw files, patterns or folders to evaluate on; - is standard input
    #[arg(value_name = "FILE", conflicts_with_all = ["data", "part"])]
    files: Vec<PathBuf>,

    /// Model: the folder of a finished run or its name in the folder runs, a checkpoint, or an export
    #[arg(long, value_name = "DIR")]
    run: PathBuf,

    /// Dataset folder; its columns must be those that the model was trained on; may be repeated
    #[arg(long, value_name = "DATASET")]
    data: Vec<PathBuf>,

    /// The same as FILE, as earlier versions have it
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["data", "part"], hide = true)]
    raw: Vec<PathBuf>,

    /// Part of the datasets: eval, train, or validation (what the model's job held out of its training part)
    #[arg(long, default_value = "eval", value_parser = super::arguments::part)]
    part: Part,

    /// What to do with bad rows of raw files: fail, or skip (they are counted and reported)
    #[arg(long, value_name = "WHAT", default_value = "fail", value_parser = ["fail", "skip"], requires = "rows")]
    on_bad: String,

    /// With --on-bad skip, maximum number of skipped rows: a number, or a share such as 0.1%
    #[arg(long, value_name = "N|P%", default_value_t = BadLimit::default(), requires = "rows")]
    bad_limit: BadLimit,

    /// Show how much the predictions depend on each column, by permuting its values among the samples
    #[arg(long, conflicts_with = "rows")]
    importance: bool,

    /// With --importance, maximum number of samples; if there are more, as many at even distances are used
    #[arg(long, value_name = "N", default_value = "100000", value_parser = super::arguments::count)]
    #[arg(requires = "importance")]
    importance_samples: Count,

    /// With --importance, the seed of the permutations
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "importance")]
    seed: u64,

    /// Judge the model's own probabilities on the samples as they are, without the correction for downsampled negatives
    /// (negatives_kept)
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

/// What `--json` prints of one set of samples.
#[derive(Serialize)]
struct Outcome {
    #[serde(flatten)]
    metrics: EvalMetrics,
    #[serde(skip_serializing_if = "Option::is_none")]
    auc_achievable: Option<f64>,
    #[serde(skip_serializing_if = "IdCounts::is_empty")]
    ids_out_of_range: IdCounts,
    #[serde(flatten)]
    rows: Option<RowCounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    importance: Option<Importance>,
}

impl From<EvalSummary> for Outcome {
    fn from(summary: EvalSummary) -> Self {
        let EvalSummary { metrics, auc_achievable, ids_out_of_range, rows, .. } = summary;
        Self { metrics, auc_achievable, ids_out_of_range, rows, importance: None }
    }
}

/// What `--json` prints of several datasets.
#[derive(Serialize)]
struct Outcomes<'a> {
    #[serde(serialize_with = "as_map")]
    sets: Vec<(&'a Path, Outcome)>,
}

fn as_map<S: Serializer>(sets: &[(&Path, Outcome)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(sets.iter().map(|(path, outcome)| (path.to_string_lossy(), outcome)))
}

pub(crate) fn run(args: Args, quiet: bool) -> Result<(), CommandError> {
    check_different(&args.data)?;
    let monitor = args.monitoring.start(Command::Eval, &args.run)?;
    let files = inputs::expand(if args.raw.is_empty() { &args.files } else { &args.raw })?;
    let mut evaluations = Evaluations::open(
        &args.run,
        EvaluateOptions {
            raw: &files,
            bad_limit: (args.on_bad == "skip").then_some(args.bad_limit),
            part: args.part,
            corrected: !args.no_correction,
            threads: args.threads,
            ..EvaluateOptions::default()
        },
    )?;
    // All are opened first: an unsuitable one is an error before the others take time.
    let sets = match &args.data[..] {
        [] => vec![(None, evaluations.set(None)?)],
        named => {
            let open = |data: &PathBuf| Ok((Some(data.clone()), evaluations.set(Some(data))?));
            named.iter().map(open).collect::<Result<Vec<_>, CommandError>>()?
        }
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
    let several = sets.len() > 1;
    let mut outcomes = Vec::new();
    for (number, (data, set)) in sets.iter().enumerate() {
        let mut outcome = Outcome::from(evaluations.evaluate(set, observer)?);
        if args.importance {
            let options = ImportanceOptions { samples: args.importance_samples.get(), seed: args.seed };
            // Exported metrics are those of the evaluations alone.
            let mut watcher = Watcher { quiet, progress: None };
            outcome.importance = Some(evaluations.importance(set, options, &mut watcher)?);
        }
        let data = data.as_deref().unwrap_or(Path::new(""));
        if args.json {
            outcomes.push((data, outcome));
            continue;
        }
        if several {
            // Tables of several heads end with an empty line.
            let space = if number > 0 && outcome.metrics.heads.is_empty() { "\n" } else { "" };
            output::text(format_args!("{space}dataset             {}\n", data.display()))?;
        }
        report(&outcome, quiet)?;
    }
    match outcomes.pop() {
        None => Ok(()),
        Some((_, outcome)) if !several => output::json(&outcome),
        Some(last) => {
            outcomes.push(last);
            output::json(&Outcomes { sets: outcomes })
        }
    }
}

/// Refuses a dataset that is named twice, since results are listed by its name.
fn check_different(datasets: &[PathBuf]) -> Result<(), CommandError> {
    let twice = |(number, data): (usize, &PathBuf)| datasets[..number].contains(data);
    match datasets.iter().enumerate().find(|&one| twice(one)) {
        Some((_, data)) => {
            let what = format!("--data {} is given twice: name each dataset once", data.display());
            Err(CommandError::new(Exit::Usage, what))
        }
        None => Ok(()),
    }
}

/// Prints the results as text, and the unknown categories of each column on stderr.
fn report(outcome: &Outcome, quiet: bool) -> Result<(), CommandError> {
    let Outcome { metrics, auc_achievable, ids_out_of_range: ids, rows, importance } = outcome;
    output::text(MetricsText { metrics, auc_achievable: *auc_achievable })?;
    ids_out_of_range(ids)?;
    if let Some(importance) = importance {
        output::text(ImportanceText(importance))?;
    }
    let Some(rows) = rows else { return Ok(()) };
    let progress = Progress::new("evaluating", "rows", rows.read, quiet);
    for (column, count) in rows.unknown.iter().filter(|(_, count)| count.lookups > 0) {
        progress.note(&format!("column {column}: unknown categories: {count}"));
    }
    drop(progress);
    output::text(RowsText(rows))
}

/// Counts of raw rows, as lines below the metrics.
struct RowsText<'a>(&'a RowCounts);

impl fmt::Display for RowsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RowCounts { read, bad, unknown, .. } = self.0;
        let unknown = UnknownCategories::total(unknown.iter().map(|(_, count)| count));
        writeln!(f, "rows read           {read}\nrows bad            {bad}\nunknown categories  {unknown}")
    }
}

/// The importance of columns for the first head, as a table.
struct ImportanceText<'a>(&'a Importance);

impl fmt::Display for ImportanceText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Importance { samples, seed, columns, .. } = self.0;
        let mut table = TextTable::new(["column", "kind", "AUC loss", "log loss increase"], &[0, 1]);
        for column in columns {
            let auc = |loss: MetricsLoss| Some(format!("{:.5}", loss.auc_loss?));
            let auc = column.first.and_then(auc).unwrap_or_else(|| "undefined".into());
            let log_loss =
                column.first.map_or_else(String::new, |loss| format!("{:.5}", loss.log_loss_increase));
            table.row([&column.column, &column.kind, &auc, &log_loss]);
        }
        writeln!(f, "\nimportance of columns: values permuted among {samples} samples, seed {seed}\n{table}")
    }
}

struct Watcher {
    quiet: bool,
    progress: Option<Progress>,
}

impl Observer for Watcher {
    fn observe(&mut self, event: Event<'_>) {
        match event {
            Event::Evaluating { samples, total, .. } => {
                let quiet = self.quiet;
                let progress = || Progress::new("evaluating", "samples", total, quiet);
                let progress = self.progress.get_or_insert_with(progress);
                progress.set_total(total);
                progress.at(samples);
            }
            // The next set has a progress of its own.
            Event::Evaluated { .. } => self.progress = None,
            _ => {}
        }
    }
}
