//! `rankine doctor`: reports what this machine offers.

use std::path::{Path, PathBuf};

use rankine_engine::build;
use rankine_engine::doctor;
use rankine_engine_gpu as gpu;

use super::{CommandError, Exit, launch, output};

/// Report what this machine offers, and what training would use
///
/// Shows the CPU and its instruction sets, memory and its limits, how files can be read, GPU libraries and GPUs. If
/// something is missing, the report includes the operating system's error. Nothing is changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine doctor
  rankine doctor --json | jq .gpu
  rankine doctor --bandwidth
  srun -N 2 --ntasks-per-node 1 rankine doctor --cluster")]
pub(crate) struct Args {
    /// Folder of the data; how it can be read depends on the file system
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    /// Only connect to the other processes of the launch; process 0 lists them
    #[arg(long)]
    cluster: bool,

    /// Only measure the speed of the GPUs, and store it for planning
    #[arg(long, conflicts_with = "cluster")]
    bandwidth: bool,

    #[command(flatten)]
    pub(crate) launch: launch::Args,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    if args.cluster {
        return launch::run(&args.launch, args.json);
    }
    if args.launch.any() {
        let words = "--process, --processes, --launcher, --meet and --secret-file need --cluster";
        return Err(CommandError::new(Exit::Usage, words));
    }
    if args.bandwidth {
        return bandwidth(args.json);
    }
    let probe = |dir: &Path| {
        let rungs = rankine_reader::io::probe(dir).into_iter();
        rungs.map(|(rung, outcome)| (rung.to_string(), outcome)).collect()
    };
    let report = doctor::doctor(&doctor::Options { dir: &args.dir, read_probe: Some(&probe) });
    if args.json { output::json(&report) } else { output::text(report) }
}

/// Measures all GPUs together, and stores the result for this number of GPUs.
fn bandwidth(json: bool) -> Result<(), CommandError> {
    if !gpu::IN_BUILD {
        let words = "this build has no CUDA support (the feature `cuda`), so it cannot measure GPUs";
        return Err(CommandError::new(Exit::Usage, words));
    }
    let measured = gpu::measure_all(build::here());
    let measured = measured
        .map_err(|error| CommandError::new(Exit::Failed, format!("cannot measure the GPUs: {error}")))?;
    if json { output::json(&measured) } else { output::text(measured) }
}
