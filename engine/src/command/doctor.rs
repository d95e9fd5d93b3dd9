//! `rankine doctor`: what this machine offers.

use std::path::{Path, PathBuf};

use rankine::doctor;

use super::{CommandError, Exit, launch, output};

/// Tell what this machine offers to a training, and what of it would be used
///
/// The processor and its instructions, memory and its limits, GPU libraries and GPUs, and for all that is missing the
/// system's own words why. Nothing is changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine doctor
  rankine doctor --json | jq .gpu
  srun -N 2 --ntasks-per-node 1 rankine doctor --cluster")]
pub(crate) struct Args {
    /// The folder that data will be read from: how it can be read depends on its file system
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    /// Meet the other processes that a launcher started with this one, and have rank 0 tell who they are, and nothing
    /// else
    #[arg(long)]
    cluster: bool,

    #[command(flatten)]
    launch: launch::Args,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    if args.cluster {
        return launch::run(&args.launch, args.json);
    }
    if args.launch.any() {
        let words = "--rank, --ranks, --launcher and --meet are of several processes: they go with --cluster";
        return Err(CommandError::new(Exit::Usage, words));
    }
    let probe = |dir: &Path| {
        let rungs = rankine_reader::io::probe(dir).into_iter();
        rungs.map(|(rung, outcome)| (rung.to_string(), outcome)).collect()
    };
    let report = doctor::doctor(&doctor::Options { dir: &args.dir, read_probe: Some(&probe) });
    if args.json { output::json(&report) } else { output::text(report) }
}
