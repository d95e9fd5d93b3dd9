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
  rankine doctor --bandwidth
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

    /// Measure what the GPUs do in a second, keep it for planning, and tell that and nothing else
    #[arg(long, conflicts_with = "cluster")]
    bandwidth: bool,

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

/// Measures all GPUs together, and keeps that for as many.
#[cfg(feature = "cuda")]
fn bandwidth(json: bool) -> Result<(), CommandError> {
    use rankine::calibration::{self, Gpus, Shown};
    use rankine_cuda::{Device, Error};

    #[derive(serde::Serialize)]
    struct Told<'a> {
        gpus: &'a Gpus,
        figures: &'a rankine_cuda::calibrate::Figures,
    }

    let failed = |error: Error| CommandError::new(Exit::Failed, format!("GPUs cannot be measured: {error}"));
    let all = Device::count().map_err(failed)?;
    let opened = (0..all.max(1)).map(Device::open).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let gpus = Gpus::of(&opened).map_err(failed)?;
    let began = std::time::Instant::now();
    let figures = calibration::measure(&opened, &gpus).map_err(failed)?;
    if json {
        output::json(&Told { gpus: &gpus, figures: &figures })
    } else {
        output::text(Shown(&gpus, &figures, began.elapsed()))
    }
}

#[cfg(not(feature = "cuda"))]
fn bandwidth(_: bool) -> Result<(), CommandError> {
    let words = "this build has no CUDA back end (the feature `cuda`), so no GPU can be measured";
    Err(CommandError::new(Exit::Usage, words))
}
