//! The weights of a checkpoint, and a model in host memory built from any weights.

use rankine_checkpoint::{Checkpoint, StoredRows};
use rankine_embedding::Membership;
use rankine_embedding::cpu::Table;
use rankine_embedding::rows::gather;
use rankine_engine_cpu::CpuModel;
use rankine_model::{Model, ModelSpec};

use super::{SavedModelError, Weights, for_each_run};

/// The weights of a checkpoint, full or incremental.
#[derive(Debug)]
pub struct StoredWeights<'a>(pub &'a Checkpoint);

impl Weights for StoredWeights<'_> {
    fn spec(&self) -> &ModelSpec {
        &self.0.manifest().spec
    }

    fn try_for_each_run(
        &self,
        visit: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        let failed = |error: &dyn std::fmt::Display| SavedModelError::Source(error.to_string());
        visit(&self.0.dense().map_err(|error| failed(&error))?.parameters)?;
        let rows = StoredRows::new(self.0).map_err(|error| failed(&error))?;
        for (number, table) in self.0.manifest().tables.iter().enumerate() {
            for_each_run(&table.table, |window, weights| {
                let gathered = gather(&rows, number, window, false, (table.table.dim, weights));
                gathered.map_err(|error| failed(&error))?;
                visit(weights)
            })?;
        }
        Ok(())
    }

    fn memberships(&self) -> Result<Vec<(usize, Membership)>, SavedModelError> {
        self.0.memberships().map_err(|error| SavedModelError::Source(error.to_string()))
    }
}

/// Copies weights into a model in host memory, for scoring. It has no optimizer state.
///
/// # Errors
/// Those of reading the weights.
///
/// # Panics
/// If the number of weights differs from the spec's.
pub fn scoring_model(weights: &impl Weights) -> Result<CpuModel, SavedModelError> {
    let model = Model::sgd(weights.spec().clone(), 0.0);
    let mut parameters = vec![0.0; model.spec.dense_parameters()];
    let tables = model.all_tables().into_iter();
    let mut tables: Vec<_> = tables.map(|(table, optimizer)| Table::zeroed(table, optimizer)).collect();
    let sizes: Vec<_> = tables.iter().map(|table| (table.spec().rows, table.spec().dim)).collect();
    let mut filled = 0;
    // The next table, its row and the element.
    let (mut table, mut row, mut element) = (0, 0, 0);
    weights.try_for_each_run(&mut |run| {
        let (dense, mut run) = run.split_at(run.len().min(parameters.len() - filled));
        parameters[filled..filled + dense.len()].copy_from_slice(dense);
        filled += dense.len();
        while !run.is_empty() {
            let (rows, dim) = sizes[table];
            let count = run.len().min(dim - element);
            tables[table].weights_mut(row)[element..element + count].copy_from_slice(&run[..count]);
            (run, element) = (&run[count..], element + count);
            if element == dim {
                (row, element) = (row + 1, 0);
            }
            if row == rows {
                (table, row) = (table + 1, 0);
            }
        }
        Ok(())
    })?;
    assert!(filled == parameters.len() && table == sizes.len(), "all weights of the spec are there");
    let mut model = CpuModel::new(&model, parameters, tables);
    model.set_memberships(weights.memberships()?);
    Ok(model)
}
