//! `rankine dataset`: takes datasets together, and removes what is left of writing them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use clap::Subcommand;
use rankine_base::publish::refuse_inputs;
use rankine_reader::Part;
use rankine_reader::merge;
use rankine_reader::shards::{self, Unlisted};
use serde::Serialize;

use super::{CommandError, output};

/// Take several datasets together, and clean up
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Merge(Merge),
    Gc(Gc),
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

/// List shards that no collection lists, and remove them
///
/// Spark, Ray and programs that use the Python package write shards below the folder of a collection before they commit
/// them. What tasks leave that were killed, repeated or run twice does no harm, but takes space, as do shards of a
/// collection that was overwritten. Only what has the name of a shard is considered.
///
/// Shards that another collection lists are kept if it is named by `--keep`. Work that runs has shards that are not
/// listed yet: choose `--older-than-hours` longer than it runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine dataset gc clicks
  rankine dataset gc clicks --keep november --remove")]
struct Gc {
    /// Folder of a collection
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Another collection, or a dataset, whose shards are kept; may be repeated
    #[arg(long, value_name = "DIR")]
    keep: Vec<PathBuf>,

    /// Only what was last written to this many hours ago or earlier
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    older_than_hours: u32,

    /// Remove what is listed
    #[arg(long)]
    remove: bool,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// What `gc --json` prints.
#[derive(Serialize)]
struct Garbage {
    removed: bool,
    bytes: u64,
    found: Vec<GarbageEntry>,
}

#[derive(Serialize)]
struct GarbageEntry {
    path: PathBuf,
    bytes: u64,
    age_s: u64,
}

/// What `merge --json` prints.
#[derive(Serialize)]
struct Merged<'a> {
    dataset: &'a Path,
    datasets: usize,
    samples: BTreeMap<Part, u64>,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    match args.command {
        Command::Merge(args) => merge(&args),
        Command::Gc(args) => gc(&args),
    }
}

fn gc(Gc { dir, keep, older_than_hours, remove, json }: &Gc) -> Result<(), CommandError> {
    let age_min = Duration::from_secs(u64::from(*older_than_hours) * 3600);
    let find = if *remove { shards::remove } else { shards::unlisted };
    let found = find(dir, keep, age_min)?;
    let bytes = found.iter().map(|found| found.bytes).sum();
    if *json {
        let entry = |Unlisted { path, bytes, age }| GarbageEntry { path, bytes, age_s: age.as_secs() };
        let found = found.into_iter().map(entry).collect();
        return output::json(&Garbage { removed: *remove, bytes, found });
    }
    if found.is_empty() {
        return output::text("nothing to remove\n");
    }
    for Unlisted { path, bytes, age } in &found {
        let hours = age.as_secs() / 3600;
        output::text(format_args!("{}  {}, {hours} h old\n", path.display(), ByteSize(*bytes)))?;
    }
    let (shards, them) = match found.len() {
        1 => ("1 shard".to_owned(), "it"),
        count => (format!("{count} shards"), "them"),
    };
    match remove {
        true => output::text(format_args!("removed {shards}, {}\n", ByteSize(bytes))),
        false => output::text(format_args!("{shards}, {}; remove {them} with --remove\n", ByteSize(bytes))),
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
