//! `rankine check`: is a job sound? Asked without reading data or touching a device.

use super::job::JobArgs;
use super::{CommandError, output};

/// Check a job file: every key, every value, and whether they fit together
///
/// Nothing is read but the job file, and nothing is written. The exit code is 0 for a sound job and 2 for one that is
/// not; then stderr says what is wrong with it, with line and column.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine check job.toml
  rankine check job.toml --set train.batch_size=4096 --set eval.every_steps=500
  rankine check job.toml --effective > everything.toml")]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,

    /// Print the job with every default filled in, as TOML
    #[arg(long)]
    effective: bool,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let job = args.job.read()?.job()?;
    if args.effective {
        output::text(job.to_toml())
    } else {
        output::text(format_args!("{} is sound: job `{}`\n", args.job.path.display(), job.name))
    }
}
