//! `rankine inspect`: what is in a dataset, and is it whole?

use std::path::PathBuf;

/// Tell what is in a dataset: its columns, its samples, where it comes from, how skewed its tables are
///
/// With --verify every byte is read and checked; the exit code is 3 where one is not what was written.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine inspect data/criteo
  rankine inspect data/criteo --verify
  rankine inspect data/criteo --json | jq .schema.categorical[].rows")]
pub(crate) struct Args {
    /// The dataset's folder
    path: PathBuf,

    /// Read every block and check it
    #[arg(long)]
    verify: bool,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}
