//! `rankine ckpt reshard`: rewrites a checkpoint for another number of ranks.

use std::path::PathBuf;

use rankine_base::publish::{Lock, create_folders, refuse_inputs, replace_file_under};
use rankine_checkpoint::{Draft, RankState, StoredRows, write_shards};
use rankine_embedding::rows::Rows;
use rankine_engine::run_paths;
use rankine_job::RankCount;
use rankine_topology::{Rank, Topology};

use super::{disk, open};
use crate::table::counted;
use crate::{CommandError, Exit, arguments, output};

/// Rewrite a checkpoint for another number of ranks, with one shard per rank
///
/// Any number of ranks can load any checkpoint, but loading is faster if there is one shard per rank. An incremental
/// checkpoint becomes a full one.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine ckpt reshard runs/criteo-1 --ranks 8 --out runs/criteo-8
  rankine train job.toml --set device.ranks=8 --run-dir runs/criteo-8 --resume")]
pub(crate) struct Args {
    /// Checkpoint, or run folder (for its latest checkpoint)
    path: PathBuf,

    /// Number of shards to write
    #[arg(long, value_name = "N", value_parser = arguments::ranks)]
    ranks: RankCount,

    /// Run folder to write to; the checkpoint is written to its folder `checkpoints`
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let checkpoint = open(&args.path)?;
    let ranks = args.ranks.get() as usize;
    let topology = Topology::new(ranks, 1).expect("there is a rank");
    let mut manifest = checkpoint.manifest().clone();
    (manifest.ranks, manifest.nodes, manifest.base) = (ranks, 1, None);
    refuse_inputs(&args.out, [checkpoint.path()])?;
    create_folders(&args.out)?;
    // No training and no other reshard can use the folder until everything is written.
    let lock = Lock::within(&args.out)?;
    let dir = run_paths::checkpoints(&args.out);
    let step = manifest.train.step;
    if dir.join(rankine_checkpoint::step_name(step)).exists() {
        let what = format!(
            "{} already has a checkpoint of step {step}: choose another --out, or remove it",
            args.out.display()
        );
        return Err(CommandError::new(Exit::Usage, what));
    }
    let draft = Draft::begin(disk(), &dir, step)?;
    let dense = checkpoint.dense()?;
    let memberships = checkpoint.memberships()?;
    let rows = StoredRows::of_ranks(&checkpoint, ranks as u64)?;
    let state = |(rank, rows)| {
        let own = dense.part(topology.part(dense.parameters.len(), rank));
        let memberships = memberships.iter().filter(|_| rank == Rank(0));
        let memberships = memberships.map(|(table, membership)| (*table, membership)).collect();
        RankState { dense: vec![own], rows, memberships }
    };
    let states: Vec<_> =
        topology.all_ranks().zip(rows.iter().map(|rows| rows as &dyn Rows)).map(state).collect();
    let shards = match write_shards(&*disk(), draft.path(), &manifest, &states) {
        Ok(shards) => shards,
        Err(error) => {
            draft.abandon();
            return Err(error.into());
        }
    };
    let mut files = Vec::new();
    for file in &checkpoint.manifest().files {
        files.extend(checkpoint.text(&file.name)?.map(|text| (file.name.as_str(), text)));
    }
    let files: Vec<_> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let published = draft.publish(manifest, shards, &files)?;
    // A folder with a job is a run folder, which can be resumed.
    if let Some((_, job)) = files.iter().find(|(name, _)| *name == "job.toml") {
        let path = run_paths::job(&args.out);
        if !path.exists() {
            replace_file_under(&lock, &path, job.as_bytes())?;
        }
    }
    if args.json {
        let (checkpoint, bytes) = (&published.path, published.bytes);
        return output::json(
            &serde_json::json!({ "checkpoint": checkpoint, "bytes": bytes, "shards": ranks }),
        );
    }
    let shards = counted(ranks as u64, "shard");
    output::text(format_args!("{}: {} bytes in {shards}\n", published.path.display(), published.bytes))
}
