//! `rankine ckpt`: what is in checkpoints, are they whole, how do they differ; and making others of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;
use rankine::checkpoint::{self, Checkpoint, CheckpointError, Disk, Files};
use rankine::training::RunDir;

use super::CommandError;

mod diff;
mod export;
mod inspect;
mod reshard;
mod verify;

/// Verify, inspect, compare, reshard and export checkpoints
///
/// A checkpoint is a folder `checkpoints/step-N` of a run. Where a run's folder is given instead, its latest one is
/// meant, by name; `verify` then looks at all of them.
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

/// The checkpoints that a path means, the latest first: itself, or those of a run or of its folder of checkpoints.
fn all(path: &Path) -> Result<Vec<PathBuf>, CommandError> {
    let below = RunDir::checkpoints_path(path);
    let dir = if below.is_dir() { &below } else { path };
    let listed = checkpoint::list(&Disk, dir)?;
    if listed.is_empty() {
        return Ok(vec![path.to_owned()]);
    }
    Ok(listed.into_iter().map(|(_, path)| path).collect())
}

/// Opens the checkpoint that a path means.
fn open(path: &Path) -> Result<Checkpoint, CommandError> {
    let latest = all(path)?.into_iter().next();
    let latest = latest.ok_or_else(|| CheckpointError::Missing(path.to_owned()))?;
    Ok(Checkpoint::open(&disk(), &latest)?)
}
