//! `rankine ckpt export`: the former name of `rankine export --format safetensors`.

use std::path::PathBuf;

use rankine_base::publish::refuse_inputs;
use rankine_engine::source::{Artifact, ModelSource, OpenModel, SourceError, open_checkpoint};

use crate::CommandError;
use crate::export::report;

/// Export a model to a folder as safetensors; `rankine export` replaces this command
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run folder (for its latest checkpoint), checkpoint, or export
    path: PathBuf,

    /// Output folder, which must be empty or not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// The dataset that a checkpoint was trained on, if it is no longer in the folder that the job names
    #[arg(long, value_name = "DATASET")]
    data: Option<PathBuf>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let model = open(&args)?;
    refuse_inputs(&args.out, model.inputs())?;
    model.export(&args.out)?;
    report(&model, &args.out, args.json)
}

fn open(args: &Args) -> Result<OpenModel, SourceError> {
    let source = ModelSource::find(&args.path, Artifact::Any)?;
    if let ModelSource::Export(_) = source {
        return source.open();
    }
    let latest = source.latest_checkpoint()?;
    OpenModel::of_checkpoint(open_checkpoint(&latest)?, args.data.as_deref())
}
