//! Writes deltas: the rows, the ids and the dense parameters that change a model that scores into a later one of the
//! same job. [`crate::ranker::Ranker::apply`] reads them.

use std::path::{Path, PathBuf};

use rankine_base::blame::Blame;
use rankine_base::publish::{PartialDir, refuse_inputs};
use rankine_base::sealed::Checksum;
use rankine_checkpoint::{Delta, DeltaHeader, DenseState, Disk, ModelIdentity, RankState, TableKeys};
use rankine_embedding::cpu::{ChangedRows, HostRows, Table};
use rankine_embedding::membership::{SavedKeys, SavedMembership};
use rankine_embedding::rows::{RowPart, RowSet};
use rankine_embedding::{Membership, Optimizer, TableSpec};
use rankine_engine_cpu::CpuModel;
use rankine_model::Model;
use rayon::prelude::*;
use serde::Serialize;

use crate::source::{Artifact, ModelSource, OpenModel, SourceError};

/// Elements of a table that are compared at a time.
const WINDOW_ELEMENTS: usize = 16 << 20;

/// Why no delta was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// A model cannot be read, or the delta cannot be written.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The models differ in more than their weights and ids.
    #[error(
        "{} and {} are not models of one job: {what}. Load the second one with `Ranker::swap` instead",
        base.display(), run.display()
    )]
    Unrelated {
        /// The first model.
        base: PathBuf,
        /// The second one.
        run: PathBuf,
        /// The first difference.
        what: String,
    },
    /// The base was trained for more steps.
    #[error(
        "{} is newer than {}: it was trained for {} steps, and the other one for {}. Name the older one first",
        base.display(), run.display(), steps[0], steps[1]
    )]
    Newer {
        /// The first model.
        base: PathBuf,
        /// The second one.
        run: PathBuf,
        /// The steps of both.
        steps: [u64; 2],
    },
}

impl DeltaError {
    /// Who has to act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Source(error) => error.blame(),
            Self::Unrelated { .. } | Self::Newer { .. } => Blame::Usage,
        }
    }
}

/// What a delta contains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeltaSummary {
    /// The model that it changes.
    pub base: ModelIdentity,
    /// The model that it becomes.
    pub result: ModelIdentity,
    /// Rows that differ, of all tables.
    pub rows: u64,
    /// Ids that have a row only in the second model.
    pub admitted: u64,
    /// Ids that have a row only in the first model.
    pub evicted: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

/// Writes the delta from one model of a job to a later one into the folder `out`, which appears when it is complete and
/// durable. Each model is a run, a checkpoint or an export; of a run that has not finished, it is the latest
/// checkpoint. Both are loaded into memory, except for tables in fp32 of exports, which are mapped.
///
/// # Errors
/// [`DeltaError`]. `out` does not exist then.
pub fn write_delta(
    base: impl AsRef<Path>,
    run: impl AsRef<Path>,
    out: impl AsRef<Path>,
) -> Result<DeltaSummary, DeltaError> {
    let paths = [base.as_ref(), run.as_ref()];
    let [one, other] = paths.map(|path| ModelSource::find(path, Artifact::Model)?.open_latest(None));
    let (one, other) = (one?, other?);
    check_related(paths, &one, &other)?;
    Ok(write(&one, &other, out.as_ref())?)
}

fn write(base: &OpenModel, run: &OpenModel, out: &Path) -> Result<DeltaSummary, SourceError> {
    refuse_inputs(out, base.inputs().iter().chain(&run.inputs()))?;
    let partial = PartialDir::create(out)?;
    let [old, new] = [base.load()?, run.load()?];
    let header = DeltaHeader {
        base: base.identity(&old)?,
        result: run.identity(&new)?,
        columns: columns_of(run),
        spec: run.spec().clone(),
    };
    let mut changes = Changes::default();
    let pairs = old.memberships().zip(new.memberships());
    pairs.for_each(|((table, old), (_, new))| changes.compare_ids(table, old, new));
    for (number, (table, _)) in Model::sgd(run.spec().clone(), 0.0).all_tables().iter().enumerate() {
        changes.compare_rows((number, table), &old, &new);
    }
    let Changes { keys, tables, admitted, evicted } = changes;
    let rows: u64 = tables.iter().map(|(_, table)| table.spec().rows).sum();
    let parts = HostRows::new(tables.iter().map(|(part, table)| (part.clone(), table)));
    let dense = DenseState { first: 0, parameters: new.parameters().to_vec(), state: Vec::new() };
    let state = RankState { dense: vec![dense], rows: &parts, memberships: Vec::new() };
    let bytes = Delta::write(&Disk, partial.path(), &header, &state, keys)?;
    partial.publish()?;
    Ok(DeltaSummary { base: header.base, result: header.result, rows, admitted, evicted, bytes })
}

/// Returns what identifies the columns of a model.
pub(crate) fn columns_of(model: &OpenModel) -> Checksum {
    Checksum::of(model.columns().to_json().as_bytes())
}

fn check_related(paths: [&Path; 2], base: &OpenModel, run: &OpenModel) -> Result<(), DeltaError> {
    let [one, other] = paths.map(Path::to_owned);
    let what = if base.spec() != run.spec() {
        "they have different parts or sizes".to_owned()
    } else if base.columns() != run.columns() {
        "they have different columns or vocabularies".to_owned()
    } else if base.job().seed != run.job().seed {
        format!("their seeds are {} and {}", base.job().seed, run.job().seed)
    } else if base.steps() > run.steps() {
        return Err(DeltaError::Newer { base: one, run: other, steps: [base.steps(), run.steps()] });
    } else {
        return Ok(());
    };
    Err(DeltaError::Unrelated { base: one, run: other, what })
}

/// The differences of two models.
#[derive(Default)]
struct Changes {
    keys: Vec<TableKeys>,
    /// Rows that differ, each with the parts of their tables.
    tables: Vec<(RowPart, Table)>,
    admitted: u64,
    evicted: u64,
}

impl Changes {
    /// Compares which ids have the rows of a table. Ids that have expired have none.
    fn compare_ids(&mut self, table: usize, old: &Membership, new: &Membership) {
        let mut keys = SavedKeys::default();
        for (row, (before, after)) in (0..).zip(old.live_keys_of_rows().zip(new.live_keys_of_rows())) {
            if before == after {
                continue;
            }
            self.evicted += u64::from(before.is_some_and(|key| new.find(key).is_none()));
            self.admitted += u64::from(after.is_some_and(|key| old.find(key).is_none()));
            match after {
                Some(key) => {
                    keys.rows.push(row);
                    keys.keys.push(key);
                }
                None => keys.freed.push(row),
            }
        }
        keys.scores = vec![0; keys.rows.len()];
        self.keys.push(TableKeys { table, saved: SavedMembership { keys, ..SavedMembership::default() } });
    }

    /// Compares the rows of a table bit by bit, whether ids have them or not.
    fn compare_rows(&mut self, (number, table): (usize, &TableSpec), old: &CpuModel, new: &CpuModel) {
        let dim = table.dim;
        let mut changed = ChangedRows::default();
        let at_once = (WINDOW_ELEMENTS / dim).max(1);
        let mut buffers = [Vec::new(), Vec::new()];
        for first in (0..table.rows).step_by(at_once) {
            let window = first..table.rows.min(first + at_once as u64);
            for (model, buffer) in [old, new].into_iter().zip(&mut buffers) {
                buffer.resize((window.end - window.start) as usize * dim, 0.0);
                model.gather(number, window.clone(), (dim, buffer));
            }
            let [before, after] = &buffers;
            let pairs = before.par_chunks_exact(dim).zip(after.par_chunks_exact(dim));
            let differ = pairs.map(|(before, after)| {
                before.iter().zip(after).any(|(before, after)| before.to_bits() != after.to_bits())
            });
            let differ: Vec<bool> = differ.collect();
            for ((row, differs), weights) in window.zip(differ).zip(after.chunks_exact(dim)) {
                if differs {
                    changed.rows.push(row);
                    changed.weights.extend_from_slice(weights);
                }
            }
        }
        if changed.rows.is_empty() {
            return;
        }
        let ChangedRows { rows, weights } = changed;
        let of_rows = TableSpec { rows: rows.len() as u64, dynamic: None, ..table.clone() };
        let table = Table::filled(of_rows, Optimizer::sgd(0.0), |row, to| {
            to.copy_from_slice(&weights[row as usize * dim..][..dim]);
        });
        let part = RowPart { rows: RowSet::from(rows), ..RowPart::whole(number, &table) };
        self.tables.push((part, table));
    }
}
