//! `rankine ckpt verify`: is every byte what was written?

use std::path::PathBuf;

use rankine::checkpoint::Checkpoint;
use rankine::saved::{SavedModel, Verified};
use rankine::source::{ModelSource, Wanted};

use super::disk;
use crate::command::{CommandError, Exit, output};

/// Read every byte of checkpoints and exports and check it
///
/// The exit code is 3 where one is not what was written.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine ckpt verify runs/criteo-1
  rankine ckpt verify runs/criteo-1/checkpoints/step-5000")]
pub(crate) struct Args {
    /// Checkpoints, folders of runs (all of their checkpoints are read), or exports
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let mut damaged = Vec::new();
    for path in &args.paths {
        let source = ModelSource::find(path, Wanted::Any)?;
        if let ModelSource::Export(dir) = &source {
            match SavedModel::verify(dir) {
                Ok((_, Verified { files, bytes })) => {
                    let dir = dir.display();
                    output::text(format_args!("{dir}: {files} files and {bytes} bytes are as written\n"))?;
                }
                Err(error) => damaged.push(CommandError::from(error)),
            }
            continue;
        }
        for path in source.checkpoints()? {
            let verified = Checkpoint::open(&disk(), &path).and_then(|checkpoint| checkpoint.verify());
            match verified {
                Ok(totals) => output::text(format_args!(
                    "{}: {} files, {} pieces and {} bytes are as written\n",
                    path.display(),
                    totals.files,
                    totals.pieces,
                    totals.bytes
                ))?,
                Err(error) => damaged.push(error.into()),
            }
        }
    }
    let mut damaged = damaged.into_iter();
    let Some(first) = damaged.next() else { return Ok(()) };
    let others: Vec<_> = damaged.map(|error| error.to_string()).collect();
    if others.is_empty() {
        return Err(first);
    }
    Err(CommandError::new(Exit::BadData, format!("{first}\n{}", others.join("\n"))))
}
