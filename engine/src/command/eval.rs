//! `rankine eval`: how good is a trained model?

use std::path::PathBuf;

use rankine_reader::Part;

/// Evaluate a trained model on a dataset: AUC, log loss, calibration
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine eval --run runs/criteo-1 --data data/criteo
  rankine eval --run runs/criteo-1 --data data/criteo --part train
  rankine eval --run runs/criteo-1 --data data/tomorrow --json | jq .auc")]
pub(crate) struct Args {
    /// The folder of the run that trained the model
    #[arg(long, value_name = "DIR")]
    run: PathBuf,

    /// The dataset's folder; its columns must be those that the model was trained on
    #[arg(long, value_name = "DATASET")]
    data: PathBuf,

    /// The part of the dataset: eval or train
    #[arg(long, default_value = "eval", value_parser = super::arguments::part)]
    part: Part,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}
