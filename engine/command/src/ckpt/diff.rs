//! `rankine ckpt diff`: compares two checkpoints, independently of the ranks that saved them.

use std::fmt;
use std::path::PathBuf;

use rankine_checkpoint::{Checkpoint, CheckpointError, StoredRows};
use rankine_embedding::rows::Rows;
use rankine_embedding::{Membership, TableSpec};
use rankine_engine::source::{Artifact, ModelSource, OpenModel, open_checkpoint};
use serde::Serialize;

use super::open;
use crate::{CommandError, Exit, output};

/// Number of words of a table that are compared at once.
const WINDOW_WORDS: usize = 16 << 20;

/// Compare two checkpoints: weights and optimizer state, bit by bit, and the largest difference
///
/// Ranks and placements do not matter. If one of them is an export, which has no optimizer state, only weights are
/// compared. The exit code is 1 if they differ.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine ckpt diff runs/a runs/b
  rankine ckpt diff runs/a/checkpoints/step-100 runs/a/checkpoints/step-200 --json")]
pub(crate) struct Args {
    /// Run folder (for its latest checkpoint), checkpoint, or export
    one: PathBuf,

    /// Run folder, checkpoint or export to compare it with
    other: PathBuf,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let sources = [&args.one, &args.other].map(|path| ModelSource::find(path, Artifact::Any));
    let [one, other] = sources;
    let (one, other) = (one?, other?);
    let difference = match (&one, &other) {
        (ModelSource::Export(_), _) | (_, ModelSource::Export(_)) => {
            Difference::of_weights(&open_model(&one)?, &open_model(&other)?)?
        }
        _ => Difference::between(&open(&args.one)?, &open(&args.other)?)?,
    };
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

/// Opens the model of an export or of a checkpoint.
fn open_model(source: &ModelSource) -> Result<OpenModel, CommandError> {
    Ok(match source {
        ModelSource::Export(_) => source.open()?,
        _ => OpenModel::of_checkpoint(open_checkpoint(&source.latest_checkpoint()?)?, None)?,
    })
}

#[derive(Serialize)]
struct Difference {
    steps: [u64; 2],
    tensors: Vec<TensorDifference>,
}

/// The difference of a table or of the dense parameters, including optimizer state.
#[derive(Serialize)]
struct TensorDifference {
    name: String,
    /// Rows, or dense parameters.
    rows: u64,
    rows_differ: u64,
    /// Largest absolute difference of two corresponding numbers.
    largest: f64,
}

impl Difference {
    fn between(one: &Checkpoint, other: &Checkpoint) -> Result<Self, CommandError> {
        let (a, b) = (one.manifest(), other.manifest());
        if a.spec != b.spec || a.dense != b.dense || a.tables != b.tables {
            let what = format!(
                "{} and {} have different models or optimizers",
                one.path().display(),
                other.path().display()
            );
            return Err(CommandError::new(Exit::Usage, what));
        }
        let (dense, other_dense) = (one.dense()?, other.dense()?);
        let mut of_dense = TensorDifference::new("dense parameters", dense.parameters.len() as u64);
        for parameter in 0..dense.parameters.len() {
            let numbers = |dense: &rankine_checkpoint::DenseState| -> Vec<f32> {
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
        let (ours, theirs) = (one.memberships()?, other.memberships()?);
        for ((table, ours), (_, theirs)) in ours.iter().zip(&theirs) {
            tensors.push(TensorDifference::of_ids(&a.tables[*table].tensor, ours, theirs));
        }
        Ok(Self { steps: [a.train.step, b.train.step], tensors })
    }

    /// Compares only weights.
    fn of_weights(one: &OpenModel, other: &OpenModel) -> Result<Self, CommandError> {
        if one.spec() != other.spec() {
            let what = "the models have different parts or sizes";
            return Err(CommandError::new(Exit::Usage, what));
        }
        let (a, b) = (one.load()?, other.load()?);
        let mut of_dense = TensorDifference::new("dense parameters", a.parameters().len() as u64);
        let pairs = a.parameters().chunks_exact(1).zip(b.parameters().chunks_exact(1));
        pairs.for_each(|(a, b)| of_dense.compare(a, b));
        let mut tensors = vec![of_dense];
        let (spec, rows) = (one.spec(), WINDOW_WORDS as u64);
        let named = |kind: &'static str| move |table: TableSpec| (format!("{kind}.{}", table.name), table);
        let tables = spec.tables.iter().cloned().map(named("embedding"));
        let tables = tables.chain(spec.wide_tables().into_iter().map(named("wide")));
        for (number, (name, table)) in tables.enumerate() {
            let mut difference = TensorDifference::new(&name, table.rows);
            let at_once = (rows / table.dim as u64).max(1);
            for first in (0..table.rows).step_by(at_once as usize) {
                let window = first..table.rows.min(first + at_once);
                let len = (window.end - window.start) as usize * table.dim;
                let (mut ours, mut theirs) = (vec![0.0; len], vec![0.0; len]);
                a.gather(number, window.clone(), (table.dim, &mut ours));
                b.gather(number, window, (table.dim, &mut theirs));
                let pairs = ours.chunks_exact(table.dim).zip(theirs.chunks_exact(table.dim));
                pairs.for_each(|(ours, theirs)| difference.compare(ours, theirs));
            }
            tensors.push(difference);
        }
        for ((table, ours), (_, theirs)) in a.memberships().zip(b.memberships()) {
            let name = format!("embedding.{}", spec.tables[table].name);
            tensors.push(TensorDifference::of_ids(&name, ours, theirs));
        }
        Ok(Self { steps: [one.steps(), other.steps()], tensors })
    }

    fn is_none(&self) -> bool {
        self.steps[0] == self.steps[1] && self.tensors.iter().all(|tensor| tensor.rows_differ == 0)
    }
}

impl TensorDifference {
    fn new(name: &str, rows: u64) -> Self {
        Self { name: name.into(), rows, rows_differ: 0, largest: 0.0 }
    }

    /// Compares which ids have the rows of a table.
    fn of_ids(table: &str, ours: &Membership, theirs: &Membership) -> Self {
        let pairs = ours.keys_of_rows().zip(theirs.keys_of_rows());
        let rows_differ = pairs.filter(|(ours, theirs)| ours != theirs).count() as u64;
        Self { rows_differ, ..Self::new(&format!("ids of {table}"), ours.rows().table_rows()) }
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
                writeln!(f, "  {name}: {rows_differ} of {rows} differ, by at most {largest:e}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_differ_in_steps_or_in_the_bits_of_a_row() {
        let compared = |ours: &[f32], theirs: &[f32]| {
            let mut difference = TensorDifference::new("t", 2);
            difference.compare(&[1.0, 1.0], &[1.0, 1.0]);
            difference.compare(ours, theirs);
            difference
        };
        let of = |steps, tensor| Difference { steps, tensors: vec![tensor] };
        let same = || compared(&[1.0, 2.0], &[1.0, 2.0]);
        assert!(of([3, 3], same()).is_none() && !of([3, 4], same()).is_none());
        let two = compared(&[1.0, 2.0], &[1.5, 4.0]);
        assert_eq!((two.rows_differ, two.largest), (1, 2.0));
        assert!(!of([3, 3], two).is_none());
        // The sign of zero is a bit, too.
        let zero = compared(&[0.0, 2.0], &[-0.0, 2.0]);
        assert_eq!((zero.rows_differ, zero.largest), (1, 0.0));
        let text = of([3, 4], compared(&[1.0, 2.0], &[1.0, 2.5])).to_string();
        assert_eq!(text, "steps 3 and 4\n  t: 1 of 2 differ, by at most 5e-1\n");
    }
}
