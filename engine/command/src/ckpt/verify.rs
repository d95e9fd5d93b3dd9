//! `rankine ckpt verify`: verifies checkpoints, exports and deltas.

use std::fmt;
use std::path::{Path, PathBuf};

use rankine_checkpoint::{Checkpoint, DELTA_NAME, Delta, Totals};
use rankine_engine::source::{Artifact, ModelSource};
use rankine_saved::{SavedModel, VerifiedSize};
use serde::Serialize;

use super::disk;
use crate::table::counted;
use crate::{CommandError, Exit, output};

/// Read and check every byte of checkpoints, exports and deltas
///
/// The exit code is 3 if one is damaged.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine ckpt verify runs/criteo-1
  rankine ckpt verify runs/criteo-1/checkpoints/step-5000")]
pub(crate) struct Args {
    /// Checkpoints, run folders (all of their checkpoints are read), exports, or deltas
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// A checkpoint, an export or a delta that is intact.
#[derive(Serialize)]
struct Verification {
    path: PathBuf,
    files: usize,
    /// Pieces of the shards of a checkpoint or a delta.
    #[serde(skip_serializing_if = "Option::is_none")]
    pieces: Option<usize>,
    bytes: u64,
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, files, pieces, bytes } = self;
        let (path, files) = (path.display(), counted(*files as u64, "file"));
        match pieces {
            Some(pieces) => {
                let pieces = counted(*pieces as u64, "piece");
                writeln!(f, "{path}: {files}, {pieces} and {bytes} bytes are intact")
            }
            None => writeln!(f, "{path}: {files} and {bytes} bytes are intact"),
        }
    }
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let (mut intact, mut failed) = (Vec::new(), Vec::new());
    for path in &args.paths {
        let verifications = verify(path)?;
        for verification in verifications {
            match verification {
                Ok(verification) if args.json => intact.push(verification),
                Ok(verification) => output::text(verification)?,
                Err(error) => failed.push(error),
            }
        }
    }
    if args.json {
        let damaged: Vec<_> = failed.iter().map(ToString::to_string).collect();
        output::json(&serde_json::json!({ "intact": intact, "damaged": damaged }))?;
    }
    all_of(failed)
}

fn verify(path: &Path) -> Result<Vec<Result<Verification, CommandError>>, CommandError> {
    if path.join(DELTA_NAME).exists() {
        return Ok(vec![verify_delta(path)]);
    }
    let source = ModelSource::find(path, Artifact::Any)?;
    Ok(match &source {
        ModelSource::Export(dir) => vec![verify_export(dir)],
        _ => source.checkpoints()?.into_iter().map(verify_checkpoint).collect(),
    })
}

/// Combines the errors of all paths, if there are any. Damage decides the exit code, otherwise the first error.
fn all_of(errors: Vec<CommandError>) -> Result<(), CommandError> {
    let exits = || errors.iter().map(CommandError::exit);
    let Some(exit) = exits().find(|exit| *exit == Exit::BadData).or(exits().next()) else { return Ok(()) };
    let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
    Err(CommandError::new(exit, messages.join("\n")))
}

fn verify_export(dir: &Path) -> Result<Verification, CommandError> {
    let (_, VerifiedSize { files, bytes }) = SavedModel::verify(dir)?;
    Ok(Verification { path: dir.to_owned(), files, pieces: None, bytes })
}

fn verify_checkpoint(path: PathBuf) -> Result<Verification, CommandError> {
    let totals = Checkpoint::open(&disk(), &path)?.verify()?;
    Ok(Verification::of_pieces(path, totals))
}

fn verify_delta(path: &Path) -> Result<Verification, CommandError> {
    let totals = Delta::open(&disk(), path)?.verify()?;
    Ok(Verification::of_pieces(path.to_owned(), totals))
}

impl Verification {
    fn of_pieces(path: PathBuf, Totals { files, pieces, bytes }: Totals) -> Self {
        Self { path, files, pieces: Some(pieces), bytes }
    }
}
