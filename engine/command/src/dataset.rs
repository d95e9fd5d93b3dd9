//! `rankine dataset`: takes datasets together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use rankine_base::publish::refuse_inputs;
use rankine_reader::Part;
use rankine_reader::merge;
use serde::Serialize;

use super::{CommandError, output};

/// Take several datasets together
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Merge(Merge),
}

/// Merge datasets into a collection, which is used like a dataset
///
/// The samples stay where they are: the collection lists the folders with their checksums, and adds up their
/// statistics. Its parts have the samples of all datasets, in the order in which they are named. Datasets outside of
/// the collection's folder are recorded with absolute paths.
///
/// All datasets need the same columns and transforms. A vocabulary may have grown (`convert --like --grow`): the rows
/// that two datasets both have must stand for the same categories. To use datasets together without a collection, list
/// their folders in `data.dir`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine dataset merge days/2026-11-* --out november
  rankine train job.toml --set data.dir=november")]
struct Merge {
    /// Folders of datasets and collections
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,

    /// Folder of the collection, which must not exist yet
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Merged<'a> {
    dataset: &'a Path,
    datasets: usize,
    samples: BTreeMap<Part, u64>,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    match args.command {
        Command::Merge(args) => merge(&args),
    }
}

fn merge(Merge { dirs, out, json }: &Merge) -> Result<(), CommandError> {
    refuse_inputs(out, dirs)?;
    let dataset = merge::merge(dirs, out)?;
    let samples = dataset.parts().into_iter().map(|part| (part, dataset.samples(part))).collect();
    let merged = Merged { dataset: out, datasets: dataset.dirs().len(), samples };
    if *json {
        return output::json(&merged);
    }
    for (part, samples) in &merged.samples {
        output::text(format_args!("{:<10} {samples} samples\n", part.name()))?;
    }
    output::text(format_args!("collection {} of {} datasets\n", out.display(), merged.datasets))
}
