//! `rankine ckpt export`: a model that stands for itself.

use std::path::PathBuf;

use rankine::source::{ModelSource, OpenModel, SourceError, Wanted, open_checkpoint};
use rankine_reader::publish::refuse_inputs;

use crate::command::{CommandError, output};

/// Write a model to a folder of its own: plain safetensors that PyTorch and NumPy read, with its vocabularies
///
/// It is what a finished run has in its folder `model`: `eval` and `predict` take it without the run. Nothing of
/// optimizers is in it. docs/reference/checkpoint-format.md says how its tensors become predictions.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine ckpt export runs/criteo-1 --out models/criteo
  rankine ckpt export runs/criteo-1/checkpoints/step-5000 --out models/criteo --data data/criteo
  rankine predict --run models/criteo new.tsv --out predictions.csv")]
pub(crate) struct Args {
    /// The folder of a run (its latest checkpoint is meant), a checkpoint, or an export
    path: PathBuf,

    /// The folder to write to, which must be empty or not there yet
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// The dataset that a checkpoint was trained on, where it is no longer where the job says
    #[arg(long, value_name = "DATASET")]
    data: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let model = open(&args)?;
    refuse_inputs(&args.out, model.inputs())?;
    model.export(&args.out)?;
    output::text(format_args!("the model of step {} is in {}\n", model.steps(), args.out.display()))
}

fn open(args: &Args) -> Result<OpenModel, SourceError> {
    let source = ModelSource::find(&args.path, Wanted::Any)?;
    if let ModelSource::Export(_) = source {
        return source.open();
    }
    let latest = source.latest_checkpoint()?;
    OpenModel::of_checkpoint(open_checkpoint(&latest)?, args.data.as_deref())
}
