//! `rankine ckpt verify`: verifies checkpoints and exports.

use std::fmt;
use std::path::{Path, PathBuf};

use rankine_checkpoint::{Checkpoint, Totals};
use rankine_engine::source::{Artifact, ModelSource};
use rankine_saved::{SavedModel, VerifiedSize};
use serde::Serialize;

use super::disk;
use crate::table::counted;
use crate::{CommandError, Exit, output};

/// Read and check every byte of checkpoints and exports
///
/// The exit code is 3 if one is damaged.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine ckpt verify runs/criteo-1
  rankine ckpt verify runs/criteo-1/checkpoints/step-5000")]
pub(crate) struct Args {
    /// Checkpoints, run folders (all of their checkpoints are read), or exports
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// A checkpoint or an export that is intact.
#[derive(Serialize)]
struct Verification {
    path: PathBuf,
    files: usize,
    /// Pieces of a checkpoint's shards.
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
        let source = ModelSource::find(path, Artifact::Any)?;
        let verifications: Vec<Result<Verification, CommandError>> = match &source {
            ModelSource::Export(dir) => vec![verify_export(dir)],
            _ => source.checkpoints()?.into_iter().map(verify_checkpoint).collect(),
        };
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
    let Totals { files, pieces, bytes } = Checkpoint::open(&disk(), &path)?.verify()?;
    Ok(Verification { path, files, pieces: Some(pieces), bytes })
}
