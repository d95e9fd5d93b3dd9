//! `rankine init`: writes a first job file for a dataset.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rankine_base::publish::{PartialFile, refuse_inputs};
use rankine_engine::starter::{StarterData, StarterTrial, TrialOptions, starter_job};
use rankine_job::Model;
use rankine_reader::Dataset;

use super::editors::schema_line;
use super::progress::{Progress, SECONDS};
use super::raw::RecordArgs;
use super::{CommandError, Exit, arguments, output, signals};

/// Write a job file that suits a dataset
///
/// Sizes depend on the columns and the number of samples. Short training runs then compare kinds of model, buckets for
/// numbers, optimizers, rates, weight decay, sizes and numbers of epochs, until --budget is over or nothing gets
/// better. They are scored on the last part of the training part, which is held out; the evaluation part is not read.
/// Ctrl-C writes the best job so far.
///
/// The job holds a validation set out, stops early, and then trains again on all samples. Comments explain the choices,
/// and show other options. The first line names a JSON Schema, with which editors complete and check the file. It is
/// written to $XDG_DATA_HOME/rankine (default: ~/.local/share/rankine).
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("samples").required(true))]
#[command(after_help = "\
Examples:
  rankine init --data data/criteo
  rankine init --data data/criteo --budget 10m
  rankine init --data data/criteo --quick
  rankine init --data data/criteo --model dcnv2 --out dcnv2.toml
  rankine init --raw train_data.bin --eval val_data.bin --shape dlrm-dcnv2 --model dcnv2
  rankine train dcnv2.toml")]
pub(crate) struct Args {
    /// Dataset folder
    #[arg(long, value_name = "DATASET", group = "samples")]
    data: Option<PathBuf>,

    /// Raw files of HugeCTR and MLPerf instead of a dataset
    #[arg(long, value_name = "FILE", num_args = 1.., group = "samples", requires = "shape")]
    raw: Vec<PathBuf>,

    /// Raw files to evaluate on
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "raw")]
    eval: Vec<PathBuf>,

    /// The columns of raw records: dlrm, dlrm-dcnv2, or the path of a shape file
    #[arg(long, value_name = "SHAPE", requires = "raw")]
    shape: Option<String>,

    #[command(flatten)]
    records: RecordArgs,

    /// Kind of the model [default: the best in trials]
    #[arg(long, value_name = "KIND", value_parser = Model::KINDS.map(|kind| kind.name))]
    model: Option<String>,

    /// Time of the trials, such as 90s or 10m
    #[arg(long, value_name = "TIME", value_parser = arguments::duration, default_value = "2m")]
    budget: Duration,

    /// Choose by the columns and the number of samples alone, without trials
    #[arg(long, conflicts_with = "budget")]
    quick: bool,

    /// Job file to write, which must not exist
    #[arg(long, value_name = "JOB.toml", default_value = "job.toml")]
    out: PathBuf,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args, quiet: bool) -> Result<(), CommandError> {
    let shape_file = args.shape.as_deref().map(Path::new);
    let inputs = args.data.as_deref().into_iter().chain(shape_file);
    let raw = args.raw.iter().chain(&args.eval).map(PathBuf::as_path);
    refuse_inputs(&args.out, inputs.chain(raw))?;
    let kind = args.model.as_deref();
    let format;
    let (dataset, data) = match (&args.data, &args.shape) {
        (None, Some(shape)) => {
            format = args.records.format(shape)?;
            let dataset = Dataset::raw(&format, &args.raw, &args.eval)?;
            (dataset, StarterData::Raw { shape, format: &format, train: &args.raw, eval: &args.eval })
        }
        (data, _) => {
            let dir = data.as_deref().unwrap_or(Path::new(""));
            (Dataset::open(dir)?, StarterData::Folder(dir))
        }
    };
    // What stands in the way is found out before the trials.
    let mut file = PartialFile::create_new(&args.out)?;
    let stop = signals::training()?;
    let place = tempfile::tempdir().map_err(|error| {
        CommandError::new(Exit::Failed, format!("cannot make a temporary folder for trials: {error}"))
    })?;
    let clock = Clock::new(args.budget, quiet || args.quick);
    let observe = |trial: &StarterTrial| clock.found(trial);
    let options = TrialOptions { dir: place.path(), budget: args.budget, stop: &stop, observe: &observe };
    let starter = clock.during(|| starter_job(&dataset, data, kind, (!args.quick).then_some(options)))?;
    if let Some(cause) = stop.asked() {
        tracing::warn!("stopped by {cause}: the job is the best of {} trials so far", starter.trials);
    }
    let text = schema_line("job", rankine_job::SCHEMA) + &starter.text;
    let written = file.write_all(text.as_bytes());
    let out = args.out.display();
    written.map_err(|error| CommandError::new(Exit::Failed, format!("cannot write {out}: {error}")))?;
    file.publish()?;
    if args.json {
        return output::json(
            &serde_json::json!({ "job": args.out, "auc": starter.auc, "trials": starter.trials }),
        );
    }
    output::text(format_args!("job    {out}\nnext   rankine train {out}\n"))
}

/// A bar on a terminal that shows how much of the time has passed, and the best AUC. Elsewhere the lines about trials
/// are enough.
struct Clock {
    began: Instant,
    shown: Mutex<(Option<Progress>, f64)>,
    is_over: AtomicBool,
}

impl Clock {
    /// The time between two updates.
    const PAUSE: Duration = Duration::from_millis(200);

    fn new(budget: Duration, hides: bool) -> Self {
        let shows = !hides && io::stderr().is_terminal();
        let progress = shows.then(|| Progress::new("trials", SECONDS, budget.as_secs(), false));
        Self { began: Instant::now(), shown: Mutex::new((progress, 0.0)), is_over: AtomicBool::new(false) }
    }

    /// Reports a trial, above the bar if there is one.
    fn found(&self, StarterTrial { what, auc }: &StarterTrial) {
        let said = auc.map_or_else(|| "no AUC".into(), |auc| format!("AUC {auc:.4}"));
        let mut shown = self.shown();
        let (progress, best) = &mut *shown;
        *best = best.max(auc.unwrap_or(0.0));
        match progress {
            Some(progress) => {
                progress.note(&format!("{what}: {said} on validation"));
                progress.message(format!("best AUC {best:.4}"), &[]);
            }
            None => tracing::info!("{what}: {said} on validation"),
        }
    }

    fn shown(&self) -> MutexGuard<'_, (Option<Progress>, f64)> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the bar while something is done.
    fn during<R>(&self, work: impl FnOnce() -> R) -> R {
        thread::scope(|scope| {
            let watch = scope.spawn(|| {
                while !self.is_over.load(Ordering::SeqCst) {
                    if let Some(progress) = &mut self.shown().0 {
                        progress.at(self.began.elapsed().as_secs());
                    }
                    thread::park_timeout(Self::PAUSE);
                }
            });
            let result = work();
            self.is_over.store(true, Ordering::SeqCst);
            watch.thread().unpark();
            self.shown().0 = None;
            result
        })
    }
}
