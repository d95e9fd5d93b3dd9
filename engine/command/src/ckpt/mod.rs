//! `rankine ckpt`: inspects, verifies, compares and reshards checkpoints, and writes deltas of models.

use std::path::Path;
use std::sync::Arc;

use clap::Subcommand;
use rankine_checkpoint::{Checkpoint, Disk, Files};
use rankine_engine::source::{Artifact, ModelSource, open_checkpoint};

use super::CommandError;

mod delta;
mod diff;
mod export;
mod inspect;
mod reshard;
mod verify;

/// Verify, inspect, compare and reshard checkpoints, and write deltas
///
/// A checkpoint is a folder `checkpoints/step-N` of a run. If the path is a run folder, its latest checkpoint is used;
/// `verify` reads all of them. An export is the output of `rankine export --format safetensors`, or the folder `model`
/// of a finished run.
/// All commands except `reshard` accept an export; `reshard` needs the optimizer state, which exports do not have.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Verify(verify::Args),
    Inspect(inspect::Args),
    Diff(diff::Args),
    Delta(delta::Args),
    Reshard(reshard::Args),
    #[command(hide = true)]
    Export(export::Args),
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    match args.command {
        Command::Verify(args) => verify::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Delta(args) => delta::run(args),
        Command::Reshard(args) => reshard::run(args),
        Command::Export(args) => export::run(args),
    }
}

fn disk() -> Arc<dyn Files> {
    Arc::new(Disk)
}

/// Opens the checkpoint at a path, or the latest one of a run.
fn open(path: &Path) -> Result<Checkpoint, CommandError> {
    let latest = ModelSource::find(path, Artifact::Checkpoint)?.latest_checkpoint()?;
    Ok(open_checkpoint(&latest)?)
}
