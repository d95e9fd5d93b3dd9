//! `rankine doctor`: what this machine offers.

use std::path::PathBuf;

use rankine::doctor;

use super::{CommandError, output};

/// Tell what this machine offers to a training, and what of it would be used
///
/// The processor and its instructions, memory and its limits, GPU libraries and GPUs, and for all that is missing the
/// system's own words why. Nothing is changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine doctor
  rankine doctor --json | jq .gpu")]
pub(crate) struct Args {
    /// The folder that data will be read from: how it can be read depends on its file system
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let report = doctor::doctor(&doctor::Options { dir: &args.dir, read_probe: None });
    if args.json { output::json(&report) } else { output::text(report) }
}
