//! `rankine ckpt export`: the model of a checkpoint, as a finished run saves it.

use std::path::{Path, PathBuf};

use rankine::checkpoint::{Checkpoint, StoredRows};
use rankine::job::Job;
use rankine::saved::{self, SavedModelError, Weights};
use rankine::training;
use rankine_embedding::rows::gather;
use rankine_reader::Dataset;
use rankine_reader::publish::refuse_inputs;

use super::open;
use crate::command::{CommandError, Exit, output};

/// Write the model of a checkpoint: plain safetensors that PyTorch and NumPy read, with its vocabularies
///
/// It is what a finished run has in its folder `model`. Nothing of optimizers is in it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine ckpt export runs/criteo-1 --out models/criteo
  rankine ckpt export runs/criteo-1/checkpoints/step-5000 --out models/criteo --data data/criteo")]
pub(crate) struct Args {
    /// The checkpoint, or the folder of a run
    path: PathBuf,

    /// The folder to write to, which must be empty or not there yet
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// The dataset that it was trained on, where it is no longer where the job says
    #[arg(long, value_name = "DATASET")]
    data: Option<PathBuf>,
}

/// The weights of a checkpoint.
struct Stored<'a> {
    checkpoint: &'a Checkpoint,
}

impl Weights for Stored<'_> {
    fn spec(&self) -> &rankine::model::ModelSpec {
        &self.checkpoint.manifest().spec
    }

    fn try_for_each_run(
        &self,
        tell: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        let failed = |error: &dyn std::fmt::Display| SavedModelError::Source(error.to_string());
        tell(&self.checkpoint.dense().map_err(|error| failed(&error))?.parameters)?;
        let rows = StoredRows::new(self.checkpoint).map_err(|error| failed(&error))?;
        for (number, table) in self.checkpoint.manifest().tables.iter().enumerate() {
            saved::for_each_run(&table.table, |window, weights| {
                let gathered = gather(&rows, number, window, false, (table.table.dim, weights));
                gathered.map_err(|error| failed(&error))?;
                tell(weights)
            })?;
        }
        Ok(())
    }
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let checkpoint = open(&args.path)?;
    let dataset = dataset(&checkpoint, args.data.as_deref())?;
    // Raw files lie in any folder, in which there may be room for a model, too.
    let dataset_dir = dataset.manifest().map(|_| dataset.dir());
    refuse_inputs(&args.out, [checkpoint.path()].into_iter().chain(dataset_dir))?;
    let steps = checkpoint.manifest().train.step;
    saved::save(&args.out, &Stored { checkpoint: &checkpoint }, steps, &dataset)?;
    output::text(format_args!("the model of step {steps} is in {}\n", args.out.display()))
}

/// The dataset that the model was trained on: its columns and vocabularies are part of the model.
fn dataset(checkpoint: &Checkpoint, data: Option<&Path>) -> Result<Dataset, CommandError> {
    let dataset = match data {
        Some(dir) => Dataset::open(dir)?,
        None => {
            let text = checkpoint.text("job.toml")?.unwrap_or_default();
            let job = Job::from_toml("job.toml", &text, &[] as &[&str])?;
            match &job.data.raw {
                Some(raw) => Dataset::raw(&training::raw_format(raw)?, &raw.train, &raw.eval)?,
                None => Dataset::open(job.data.folder().unwrap_or(Path::new("")))?,
            }
        }
    };
    if !training::is_of(checkpoint.manifest(), &dataset)? {
        let what = format!(
            "{} is not the dataset that the checkpoint was trained on: name that one with --data",
            dataset.dir().display()
        );
        return Err(CommandError::new(Exit::Usage, what));
    }
    Ok(dataset)
}
