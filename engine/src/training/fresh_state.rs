//! State that is restored from weights alone: optimizers start afresh.

use std::ops::Range;

use rankine_checkpoint::{CheckpointError, DenseState};
use rankine_embedding::rows::{RowPart, RowPiece, RowSet, RowsMut, place};
use rankine_embedding::{Dtype, TableSpec};
use rankine_model::Model;

use rankine_saved::for_each_run;

/// Copies weights of a range of a table's rows to a buffer `[row][dim]`, which is given with `dim`.
pub(super) type GatherWeights<'a> =
    dyn FnMut(usize, Range<u64>, (usize, &mut [f32])) -> Result<(), CheckpointError> + 'a;

/// Returns dense parameters with fresh optimizer state.
pub(super) fn dense(model: &Model, parameters: Vec<f32>) -> DenseState {
    let rule = model.rules.dense.rule;
    let mut state = vec![0.0; rule.state_elements(parameters.len())];
    rule.initialize(&parameters, &mut state);
    let state = state.chunks_exact(parameters.len().max(1)).map(<[f32]>::to_vec).collect();
    DenseState { first: 0, parameters, state }
}

/// Sets the rows that a rank has: weights, rounded to the type of their table, and fresh optimizer state. `counts` has
/// the rows of each table for which `gather` has weights; further rows stay as they are.
///
/// # Errors
/// Those of `gather`; [`CheckpointError::State`] if rows cannot be reached.
pub(super) fn load_rows(
    model: &Model,
    counts: &[u64],
    rows: &mut dyn RowsMut,
    gather: &mut GatherWeights<'_>,
) -> Result<(), CheckpointError> {
    for (number, (table, optimizer)) in model.all_tables().into_iter().enumerate() {
        let (dim, dtype, rule) = (table.dim, table.dtype, optimizer.rule);
        let mut state = Vec::new();
        for_each_run(&TableSpec { rows: counts[number], ..table }, |range, weights| {
            let has_some = |part: &RowPart| {
                part.table == number && part.rows.before(range.start) < part.rows.before(range.end)
            };
            if !rows.parts().iter().any(has_some) {
                return Ok(());
            }
            gather(number, range.clone(), (dim, &mut *weights))?;
            if dtype != Dtype::Fp32 {
                // Tables of the CPU store every type in words of f32, and would not round.
                weights.iter_mut().for_each(|weight| *weight = dtype.nearest(*weight));
            }
            let count = range.end - range.start;
            let per_kind = if rule.is_rowwise() { count as usize } else { weights.len() };
            state.resize(per_kind * rule.state_names().len(), 0.0);
            rule.initialize(weights, &mut state);
            let piece = RowPiece {
                table: number,
                columns: 0..dim,
                rows: RowSet::Every { first: range.start, step: 1, count },
                dtype: Dtype::Fp32,
                weights: bytemuck::cast_slice(weights),
                state: state.chunks_exact(per_kind).collect(),
            };
            place(rows, &piece)?;
            Ok::<_, CheckpointError>(())
        })?;
    }
    Ok(())
}
