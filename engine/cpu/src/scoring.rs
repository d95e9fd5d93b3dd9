//! Scores with a model that no longer changes, on any number of threads at once.

use rankine_checkpoint::ModelChanges;
use rankine_embedding::cpu::PatchedTable;
use rankine_embedding::membership::InvalidMembership;
use rankine_model::ModelSpec;
use rankine_reader::Samples;
use rayon::ThreadPool;

use super::dynamic::DynamicTables;
use super::model::{CpuModel, Distribution, OneRank};
use super::tables::ModelTables;
use super::tile::Parts;
use super::tiles::{ScoringBuffers, scorer};

/// The weights of a model.
#[derive(Debug)]
pub struct ScoringModel {
    parts: Parts,
    tables: ModelTables<PatchedTable>,
    /// The same tables in the order of their numbers.
    numbered: Vec<PatchedTable>,
    dynamic: DynamicTables,
}

impl ScoringModel {
    /// # Panics
    /// If the model is spread over ranks.
    pub fn new(model: CpuModel) -> Self {
        let CpuModel { distribution, mut dynamic, .. } = model;
        let Distribution::OneRank(one) = distribution else { panic!("a saved model has one rank") };
        let OneRank { replica, tables, .. } = *one;
        // It scores the same whenever it is asked.
        dynamic.memberships_mut().for_each(|(_, membership)| membership.freeze());
        let tables = tables.into_tables().into_iter().map(PatchedTable::new);
        Self::of(replica.parts, tables.collect(), dynamic)
    }

    fn of(parts: Parts, numbered: Vec<PatchedTable>, dynamic: DynamicTables) -> Self {
        Self { tables: ModelTables::new(&parts.spec, numbered.clone()), parts, numbered, dynamic }
    }

    /// Returns the model with some changes. It shares the rows that do not change with this one, which stays as it is.
    ///
    /// # Errors
    /// If ids do not belong to their table, with its number.
    ///
    /// # Panics
    /// If parameters or rows do not match the spec.
    pub fn with(&self, changes: ModelChanges) -> Result<Self, (usize, InvalidMembership)> {
        let ModelChanges { parameters, rows, keys } = changes;
        let mut dynamic = self.dynamic.clone();
        for (table, changed) in &keys {
            dynamic.change(*table, changed).map_err(|wrong| (*table, wrong))?;
        }
        let mut tables = self.numbered.clone();
        for (table, changed) in &rows {
            tables[*table] = tables[*table].with(changed);
        }
        Ok(Self::of(Parts::new(self.spec().clone(), parameters), tables, dynamic))
    }

    /// Returns the description of the model.
    pub fn spec(&self) -> &ModelSpec {
        &self.parts.spec
    }

    /// Computes the logits of each sample, `[sample, heads]`, with the bits of [`CpuModel::logits`], on this thread and
    /// on those of `helpers`, if there are any.
    pub fn logits(
        &self,
        batch: &Samples,
        helpers: Option<&ThreadPool>,
        buffers: &mut ScoringBuffers,
        logits: &mut [f32],
    ) {
        let found = self.dynamic.find(batch);
        let batch = found.as_ref().unwrap_or(batch);
        let threads = 1 + helpers.map_or(0, ThreadPool::current_num_threads);
        let tiles = buffers.tiles(batch.len, threads);
        let score = scorer(&self.parts, &self.tables, batch, logits);
        let (own, others) = tiles.split_first_mut().expect("at least one thread scores");
        match helpers {
            Some(helpers) if !others.is_empty() => helpers.in_place_scope(|scope| {
                others.iter_mut().for_each(|tile| scope.spawn(|_| score(tile)));
                score(own);
            }),
            _ => score(own),
        }
    }
}
