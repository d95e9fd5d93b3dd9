//! `rankine ckpt diff`: how two checkpoints differ, whatever ranks saved them.

use std::fmt;
use std::path::PathBuf;

use rankine::checkpoint::{Checkpoint, CheckpointError, StoredRows};
use rankine_embedding::rows::Rows;
use serde::Serialize;

use super::open;
use crate::command::{CommandError, Exit, output};

/// Words of a table that are compared at a time.
const WINDOW_WORDS: usize = 16 << 20;

/// Compare two checkpoints: what was learnt, and what optimizers keep, bit by bit and by how much
///
/// Ranks and placements do not matter. The exit code is 1 where they differ.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine ckpt diff runs/a runs/b
  rankine ckpt diff runs/a/checkpoints/step-100 runs/a/checkpoints/step-200 --json")]
pub(crate) struct Args {
    /// A checkpoint, or the folder of a run
    one: PathBuf,

    /// Another one
    other: PathBuf,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let (one, other) = (open(&args.one)?, open(&args.other)?);
    let difference = Difference::between(&one, &other)?;
    if args.json {
        output::json(&difference)?;
    } else {
        output::text(&difference)?;
    }
    if difference.is_none() {
        return Ok(());
    }
    Err(CommandError::new(Exit::Failed, "the checkpoints differ"))
}

#[derive(Serialize)]
struct Difference {
    steps: [u64; 2],
    tensors: Vec<TensorDifference>,
}

/// How a table or the dense parameters differ, state included.
#[derive(Serialize)]
struct TensorDifference {
    name: String,
    /// Rows, or dense parameters.
    rows: u64,
    rows_differ: u64,
    /// The largest distance between two numbers at the same place.
    largest: f64,
}

impl Difference {
    fn between(one: &Checkpoint, other: &Checkpoint) -> Result<Self, CommandError> {
        let (a, b) = (one.manifest(), other.manifest());
        if a.spec != b.spec || a.dense != b.dense || a.tables != b.tables {
            let what = format!(
                "{} and {} are of different models, or of optimizers that keep other things",
                one.path().display(),
                other.path().display()
            );
            return Err(CommandError::new(Exit::Usage, what));
        }
        let (dense, other_dense) = (one.dense()?, other.dense()?);
        let mut of_dense = TensorDifference::new("dense parameters", dense.parameters.len() as u64);
        for parameter in 0..dense.parameters.len() {
            let numbers = |dense: &rankine::checkpoint::DenseState| -> Vec<f32> {
                let kinds = std::iter::once(&dense.parameters).chain(&dense.state);
                kinds.map(|kind| kind[parameter]).collect()
            };
            of_dense.compare(&numbers(&dense), &numbers(&other_dense));
        }
        let mut tensors = vec![of_dense];
        let (rows, other_rows) = (StoredRows::new(one)?, StoredRows::new(other)?);
        let failed = |error: rankine_embedding::rows::RowsError| CheckpointError::from(error);
        for (number, (part, table)) in rows.parts().iter().zip(&a.tables).enumerate() {
            let mut difference = TensorDifference::new(&table.tensor, part.rows.len());
            let at_once = (WINDOW_WORDS / part.layout.words).max(1);
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for first in (0..part.rows.len()).step_by(at_once) {
                let window = first..part.rows.len().min(first + at_once as u64);
                let ours = rows.read(number, window.clone(), &mut ours).map_err(failed)?;
                let theirs = other_rows.read(number, window, &mut theirs).map_err(failed)?;
                let pairs = ours.chunks_exact(part.layout.words).zip(theirs.chunks_exact(part.layout.words));
                pairs.for_each(|(ours, theirs)| difference.compare(ours, theirs));
            }
            tensors.push(difference);
        }
        Ok(Self { steps: [a.train.step, b.train.step], tensors })
    }

    fn is_none(&self) -> bool {
        self.steps[0] == self.steps[1] && self.tensors.iter().all(|tensor| tensor.rows_differ == 0)
    }
}

impl TensorDifference {
    fn new(name: &str, rows: u64) -> Self {
        Self { name: name.into(), rows, rows_differ: 0, largest: 0.0 }
    }

    fn compare(&mut self, ours: &[f32], theirs: &[f32]) {
        let same = ours.iter().zip(theirs).all(|(one, other)| one.to_bits() == other.to_bits());
        if !same {
            self.rows_differ += 1;
            let distances =
                ours.iter().zip(theirs).map(|(&one, &other)| (f64::from(one) - f64::from(other)).abs());
            self.largest = distances.fold(self.largest, f64::max);
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, other] = self.steps;
        writeln!(f, "steps {one} and {other}")?;
        for TensorDifference { name, rows, rows_differ, largest } in &self.tensors {
            if *rows_differ == 0 {
                writeln!(f, "  {name}: the same")?;
            } else {
                writeln!(f, "  {name}: {rows_differ} of {rows} differ, by {largest:e} at most")?;
            }
        }
        Ok(())
    }
}
