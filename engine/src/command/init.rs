//! `rankine init`: a job to begin with.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use rankine::job::Model;
use rankine::training::{starter_job, starter_kind};
use rankine_reader::Dataset;

use super::{CommandError, Exit, output};

/// Write a job file for a dataset, to begin with
///
/// Sizes and rates suit the dataset's columns and samples. Options stand beside them, commented out.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine init --data data/criteo
  rankine init --data data/criteo --model dcnv2 --out dcnv2.toml
  rankine train dcnv2.toml")]
pub(crate) struct Args {
    /// The dataset's folder
    #[arg(long, value_name = "DATASET")]
    data: PathBuf,

    /// The kind of the model [default: dlrm, or wide-deep where there is one column alone]
    #[arg(long, value_name = "KIND", value_parser = Model::KINDS)]
    model: Option<String>,

    /// The job file, which must not be there yet
    #[arg(long, value_name = "JOB.toml", default_value = "job.toml")]
    out: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let dataset = Dataset::open(&args.data)?;
    let kind = args.model.as_deref().unwrap_or_else(|| starter_kind(dataset.schema()));
    let text = starter_job(&dataset, &args.data, kind);
    let written = File::create_new(&args.out).and_then(|mut file| file.write_all(text.as_bytes()));
    let out = args.out.display();
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => CommandError::new(
            Exit::Usage,
            format!("{out} is there already, and is not overwritten: choose another --out, or remove it"),
        ),
        _ => CommandError::new(Exit::Failed, format!("cannot write {out}: {error}")),
    })?;
    output::text(format_args!("job    {out}\nnext   rankine train {out}\n"))
}
