//! `rankine train`: from a job file to a trained model.

use std::path::PathBuf;

use super::job::JobArgs;

/// Train the model of a job file
///
/// What the run leaves behind is in its folder: the effective job, the log of losses and evaluations, and the model.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine train configs/synthetic.toml
  rankine train job.toml --set train.max_steps=1000 --set eval.every_steps=200
  rankine train job.toml --set optimizer.sparse.learning_rate=0.05 --run-dir runs/rate-0.05")]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,

    /// The run's folder, which must not be there yet [default: a new one in runs/, named after the job]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,

    /// Show no progress; warnings and errors are still told
    #[arg(long, short)]
    quiet: bool,
}
