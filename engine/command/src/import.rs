//! `rankine import`: makes a run of a model that PyTorch trained.

use std::path::PathBuf;

use rankine_engine::import::import;
use serde_json::json;

use crate::table::counted;
use crate::{CommandError, output};

/// Import a DLRM that PyTorch trained, as a run
///
/// WEIGHTS is the state dict of the reference DLRM (facebookresearch/dlrm) or of TorchRec's DLRM, as safetensors. The
/// run has the outputs of the original model: `eval`, `predict` and `export` accept it, and `train` continues it with
/// `train.init_from`. Its job has the sizes of the model; edit a copy to continue.
///
/// --like is a dataset of the columns that the model was trained on, in the same order, with its numbers transformed
/// and its categories numbered as they were then. The tables have as many rows as the dataset's columns.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
In Python:
  safetensors.torch.save_file(model.state_dict(), \"dlrm.safetensors\")

Examples:
  rankine import dlrm.safetensors --like data/criteo --out runs/imported
  rankine eval --run runs/imported
  rankine train job.toml --set train.init_from=runs/imported")]
pub(crate) struct Args {
    /// State dict, as a safetensors file
    weights: PathBuf,

    /// Dataset with the columns of the model
    #[arg(long, value_name = "DATASET")]
    like: PathBuf,

    /// Run folder to write, which must be empty or not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(Args { weights, like, out, json }: Args) -> Result<(), CommandError> {
    let imported = import(&weights, &like, &out)?;
    let (origin, parameters) = (imported.origin.to_string(), imported.parameters);
    if json {
        return output::json(&json!({ "run": out, "origin": origin, "parameters": parameters }));
    }
    let parameters = counted(parameters, "parameter");
    output::text(format_args!("imported {origin}, {parameters}, to {}\n", out.display()))
}
