//! `rankine ckpt reshard`: the same checkpoint as other ranks would have saved it.

use std::path::PathBuf;

use rankine::checkpoint::{Draft, RankState, StoredRows, write_shards};
use rankine::job::RankCount;
use rankine::training::RunDir;
use rankine_embedding::Topology;
use rankine_embedding::rows::Rows;
use rankine_reader::publish::{Lock, create_folders, refuse_inputs, replace_file_under};

use super::{disk, open};
use crate::command::{CommandError, Exit, arguments, output};

/// Write a checkpoint anew, whole, in as many shards as other ranks would have written
///
/// Any number of ranks loads any checkpoint; one in as many shards as there are ranks is loaded faster. What was an
/// addition to another checkpoint becomes a whole one, which stands by itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine ckpt reshard runs/criteo-1 --ranks 8 --out runs/criteo-8
  rankine train job.toml --set device.ranks=8 --run-dir runs/criteo-8 --resume")]
pub(crate) struct Args {
    /// The checkpoint, or the folder of a run
    path: PathBuf,

    /// Shards to write
    #[arg(long, value_name = "N", value_parser = arguments::ranks)]
    ranks: RankCount,

    /// The folder of a run; the checkpoint goes into its folder `checkpoints`
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let checkpoint = open(&args.path)?;
    let ranks = args.ranks.get() as usize;
    let topology = Topology::new(ranks, 1).expect("there is a rank");
    let mut manifest = checkpoint.manifest().clone();
    (manifest.ranks, manifest.nodes, manifest.base) = (ranks, 1, None);
    refuse_inputs(&args.out, [checkpoint.path()])?;
    create_folders(&args.out)?;
    // Neither a training nor another reshard works there until all is written.
    let lock = Lock::within(&args.out)?;
    let dir = RunDir::checkpoints_path(&args.out);
    let step = manifest.train.step;
    if dir.join(rankine::checkpoint::step_name(step)).exists() {
        let what = format!("{} has a checkpoint of step {step} already", args.out.display());
        return Err(CommandError::new(Exit::Usage, what));
    }
    let draft = Draft::begin(disk(), &dir, step)?;
    let dense = checkpoint.dense()?;
    let rows = StoredRows::of_ranks(&checkpoint, ranks as u64)?;
    let state = |(rank, rows)| {
        let own = dense.part(topology.part(dense.parameters.len(), rank));
        RankState { dense: vec![own], rows }
    };
    let states: Vec<_> = rows.iter().map(|rows| rows as &dyn Rows).enumerate().map(state).collect();
    let shards = match write_shards(&*disk(), draft.path(), &manifest, &states) {
        Ok(shards) => shards,
        Err(error) => {
            draft.abandon();
            return Err(error.into());
        }
    };
    let mut beside = Vec::new();
    for file in &checkpoint.manifest().files {
        beside.extend(checkpoint.text(&file.name)?.map(|text| (file.name.as_str(), text)));
    }
    let beside: Vec<_> = beside.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let published = draft.publish(manifest, shards, &beside)?;
    // A folder with the job in it is a run's, which can go on.
    if let Some((_, job)) = beside.iter().find(|(name, _)| *name == "job.toml") {
        let path = RunDir::job_path(&args.out);
        if !path.exists() {
            replace_file_under(&lock, &path, job.as_bytes())?;
        }
    }
    output::text(format_args!("{}: {} bytes in {ranks} shards\n", published.path.display(), published.bytes))
}
