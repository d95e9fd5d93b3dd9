//! The weights of a model, read for saving it.

use std::ops::Range;

use rankine_embedding::Membership;
use rankine_embedding::rows::{RowPart, RowSet, gather};
use rankine_launch::{ProcessGroup, RunStage};
use rankine_model::ModelSpec;
use rankine_saved as saved;
use rankine_saved::{SavedModelError, Weights};
use rayon::prelude::*;

use super::CudaModel;
use super::pieces::{MISSING, pack, unpack};
use crate::cuda::error::{Error, Result};

/// Weights that one thread marks as missing at a time.
const MARKED_WEIGHTS: usize = 1 << 18;

/// Which of a table's rows ranks fill in.
#[derive(Clone, Copy)]
struct RowsToFill {
    table: usize,
    dim: usize,
    /// Whether parts with listed rows fill them in, or all others.
    listed: bool,
}

/// With several processes, all of them call [`Weights::try_for_each_run`]. The others send their weights to the first
/// process, and only that one calls `visit`.
impl Weights for CudaModel {
    fn spec(&self) -> &ModelSpec {
        &self.setup.model.spec
    }

    fn try_for_each_run(
        &self,
        visit: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        let processes = self.setup.processes.as_ref();
        let is_first = processes.is_none_or(ProcessGroup::is_first);
        if is_first {
            visit(&self.ranks.call_first(|rank| rank.parameters()).map_err(of_gpu)?)?;
        }
        for (number, (table, _)) in self.setup.model.all_tables().into_iter().enumerate() {
            let of_table = RowsToFill { table: number, dim: table.dim, listed: false };
            let is_listed = self.has_listed_rows(number).map_err(of_gpu)?;
            saved::for_each_run(&table, |rows, weights| {
                weights.par_chunks_mut(MARKED_WEIGHTS).for_each(|weights| weights.fill(MISSING));
                self.fill(of_table, rows.clone(), weights).map_err(of_gpu)?;
                if let Some(processes) = processes {
                    send_weights(processes, weights)?;
                    processes.does(RunStage::Saving, self.steps);
                }
                // Listed rows are on every process; they replace what others have at their position.
                if is_listed {
                    self.fill(RowsToFill { listed: true, ..of_table }, rows, weights).map_err(of_gpu)?;
                }
                if is_first { visit(weights) } else { Ok(()) }
            })?;
        }
        Ok(())
    }

    fn memberships(&self) -> Result<Vec<(usize, Membership)>, SavedModelError> {
        self.ranks.call_first(|rank| rank.memberships()).map_err(of_gpu)
    }
}

impl CudaModel {
    /// Fills in the rows that this process's ranks have, `[row][dim]`.
    fn fill(&self, of: RowsToFill, rows: Range<u64>, weights: &mut [f32]) -> Result<()> {
        let RowsToFill { table, dim, listed } = of;
        self.ranks.fill((rows, dim), weights, move |rank, rows, weights| {
            gather(&*rank.rows(), table, rows, listed, (dim, weights)).map_err(Error::State)
        })
    }

    /// Whether a rank of this process has listed rows of a table.
    fn has_listed_rows(&self, table: usize) -> Result<bool> {
        let of_ranks = self.ranks.call_all(move |rank| {
            let is_listed = |part: &RowPart| part.table == table && matches!(part.rows, RowSet::Listed(_));
            Ok(rank.rows().parts().iter().any(is_listed))
        })?;
        Ok(of_ranks.contains(&true))
    }
}

fn of_gpu(error: Error) -> SavedModelError {
    SavedModelError::Gpu(error.to_string())
}

/// Sends this process's weights to the first process, which fills in the others'.
fn send_weights(processes: &ProcessGroup, weights: &mut [f32]) -> Result<(), SavedModelError> {
    let own = if processes.is_first() { Vec::new() } else { pack(weights) };
    for (sender, piece) in processes.collect("the rows of tables", &own)?.iter().enumerate() {
        unpack(piece, weights).ok_or_else(|| {
            SavedModelError::Gpu(format!("process {} sent rows of another table", sender + 1))
        })?;
    }
    Ok(())
}
