//! `rankine bench`: how fast is this machine at one of the things that a training does?

use std::path::PathBuf;

use clap::Subcommand;
use rankine_reader::Part;

/// Measure how fast this machine does one of the things that a training does
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Read(Read),
}

/// Read a dataset as a training would, and tell bytes and samples a second
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine bench read data/criteo
  rankine bench read data/criteo --part eval --json | jq .samples_per_second")]
struct Read {
    /// The dataset's folder
    #[arg(value_name = "DATASET")]
    path: PathBuf,

    /// The part of the dataset: train or eval
    #[arg(long, default_value = "train", value_parser = super::arguments::part)]
    part: Part,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}
