//! `rankine check`: is a job sound, and can it be trained here? Asked without training.

use rankine::job::JobFile;
use rankine::training::{self, Columns, Feasibility, TrainError};

use super::job::JobArgs;
use super::{CommandError, output};

/// Check a job file: every key, every value, whether they fit together, and whether they fit the dataset
///
/// The exit code is 0 for a sound job and 2 for one that is not; then stderr says what is wrong with it, with line and
/// column. The lines `here` say whether this build and this machine can train the job in one process: the device, its
/// libraries, memory for the tables, and how the dataset is read, if it is there. Nothing is written.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine check job.toml
  rankine check job.toml --set train.batch_size=4096 --set eval.every_steps=500
  rankine check job.toml --here && sbatch train.sh
  rankine check job.toml --effective > everything.toml")]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,

    /// Print the job with every default filled in, as TOML
    #[arg(long)]
    effective: bool,

    /// Fail where this build and this machine cannot train the job, with the exit code that training would end with
    #[arg(long)]
    here: bool,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let file = args.job.read()?;
    let job = file.job()?;
    let preview = training::preview(&job).map_err(|error| match error {
        TrainError::Conflicts(conflicts) => file.error(&conflicts).into(),
        error => CommandError::from(error),
    })?;
    if args.effective {
        output::text(job.to_toml())?;
        return if args.here { verdict(training::feasibility(&job), &file) } else { Ok(()) };
    }
    output::text(format_args!("{} is sound: job `{}`\n", args.job.path.display(), job.name))?;
    output::text(match (&job.data.raw, preview.columns) {
        (Some(raw), columns) => {
            let files = raw.train.len() + raw.eval.len();
            let record_bytes = training::raw_format(raw)?.record_bytes()?;
            let there = match columns {
                Columns::Dataset => "",
                Columns::Shape | Columns::Unknown => ": not there, so their lengths were not checked",
            };
            format!("dataset   {files} raw files of {record_bytes} bytes a record{there}\n")
        }
        (None, columns) => {
            let dir = job.data.folder().map_or_else(String::new, |dir| dir.display().to_string());
            match columns {
                Columns::Dataset => format!("dataset   {dir}\n"),
                Columns::Shape if job.data.generate.is_some() => {
                    format!("dataset   {dir}: not there yet, training will generate it\n")
                }
                Columns::Shape => {
                    format!("dataset   {dir}: not there, so its columns were taken from data.shape\n")
                }
                Columns::Unknown => format!(
                    "dataset   {dir}: not there, so its columns were not checked; convert or generate it\n"
                ),
            }
        }
    })?;
    if let Some(spec) = preview.spec {
        output::text(format_args!(
            "model     {}: {} tables of {} rows in all, {} embedding and {} dense parameters\n\
             memory    {:.3} GiB for the tables and their optimizer state\n",
            job.model.kind(),
            spec.tables.len(),
            spec.tables.iter().map(|table| table.rows).sum::<u64>(),
            spec.embedding_parameters(),
            spec.dense_parameters(),
            preview.table_bytes as f64 / (1u64 << 30) as f64
        ))?;
    }
    let here = training::feasibility(&job);
    if let Some(device) = &here.device {
        output::text(format_args!("here      {device} would train it\n"))?;
    }
    if let Some(reading) = &here.reading {
        output::text(format_args!("here      the dataset is read by {reading}\n"))?;
    }
    for obstacle in &here.obstacles {
        output::text(format_args!("here      it cannot be trained: {obstacle}\n"))?;
    }
    if args.here { verdict(here, &file) } else { Ok(()) }
}

/// Fails with the first obstacle, as training would.
fn verdict(here: Feasibility, file: &JobFile) -> Result<(), CommandError> {
    match here.obstacles.into_iter().next() {
        None => Ok(()),
        Some(TrainError::Conflicts(conflicts)) => Err(file.error(&conflicts).into()),
        Some(error) => Err(error.into()),
    }
}
