//! `rankine ckpt`: what is in checkpoints, are they whole, how do they differ; and making others of them.

use std::path::Path;
use std::sync::Arc;

use clap::Subcommand;
use rankine::checkpoint::{Checkpoint, Disk, Files};
use rankine::source::{ModelSource, Wanted, open_checkpoint};

use super::CommandError;

mod diff;
mod export;
mod inspect;
mod reshard;
mod verify;

/// Verify, inspect, compare, reshard and export checkpoints
///
/// A checkpoint is a folder `checkpoints/step-N` of a run. Where a run's folder is given instead, its latest checkpoint
/// is meant; `verify` then reads all of them. What `export` writes, like the folder `model` of a finished run, is an
/// export: all but `reshard` take it, which needs the state of optimizers.
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
    Reshard(reshard::Args),
    Export(export::Args),
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    match args.command {
        Command::Verify(args) => verify::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Reshard(args) => reshard::run(args),
        Command::Export(args) => export::run(args),
    }
}

fn disk() -> Arc<dyn Files> {
    Arc::new(Disk)
}

/// Opens the checkpoint that a path means.
fn open(path: &Path) -> Result<Checkpoint, CommandError> {
    let latest = ModelSource::find(path, Wanted::Checkpoint)?.latest_checkpoint()?;
    Ok(open_checkpoint(&latest)?)
}
