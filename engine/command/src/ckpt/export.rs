//! `rankine ckpt export`: writes a self-contained model.

use std::path::PathBuf;

use rankine_base::publish::refuse_inputs;
use rankine_engine::source::{Artifact, ModelSource, OpenModel, SourceError, open_checkpoint};

use crate::{CommandError, output};

/// Export a model to a folder: safetensors that PyTorch and NumPy can read, with its vocabularies
///
/// The folder is like the folder `model` of a finished run: `eval` and `predict` accept it without the run. It has no
/// optimizer state. docs/reference/checkpoint-format.md describes how to compute predictions from its tensors.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine ckpt export runs/criteo-1 --out models/criteo
  rankine ckpt export runs/criteo-1/checkpoints/step-5000 --out models/criteo --data data/criteo
  rankine predict --run models/criteo new.tsv --out predictions.csv")]
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
    if args.json {
        return output::json(&serde_json::json!({ "export": args.out, "step": model.steps() }));
    }
    output::text(format_args!("exported the model of step {} to {}\n", model.steps(), args.out.display()))
}

fn open(args: &Args) -> Result<OpenModel, SourceError> {
    let source = ModelSource::find(&args.path, Artifact::Any)?;
    if let ModelSource::Export(_) = source {
        return source.open();
    }
    let latest = source.latest_checkpoint()?;
    OpenModel::of_checkpoint(open_checkpoint(&latest)?, args.data.as_deref())
}
