//! The tables of a model in a step: look-ups into the vectors of a tile, and updates from the gradients of a batch.

use std::ops::Range;

use rankine_embedding::cpu::{Bags, Feature, FeatureSlot, HostRows, Route, RowWeights, Table};
use rankine_embedding::rows::RowPart;
use rankine_embedding::{Pooling, Step};
use rankine_reader::Samples;
use rayon::prelude::*;

use rankine_model::ModelSpec;

use super::positions::{Attribute, OneIdEach, PositionSlots, SequenceKeys};

/// Where a tile gets the vectors of its ids from.
pub(super) trait LookUp: Sync {
    /// Writes the pooled embeddings of some samples of a batch into their `vectors`.
    fn pool(&self, batch: &Samples, samples: &Range<usize>, vectors: &mut [f32]);

    /// Writes the keys of some positions of a sequence of a batch, one after another.
    fn keys(&self, batch: &Samples, sequence: usize, positions: Range<usize>, keys: &mut [f32]);

    /// Adds the first-order terms of some samples of a batch to their `logits`.
    fn add_first_order(
        &self,
        batch: &Samples,
        samples: &Range<usize>,
        scratch: &mut Vec<f32>,
        logits: &mut [f32],
    );
}

/// All tables of a model, each as a whole: of a model that learns, or of one whose tables are only looked up.
#[derive(Debug)]
pub(super) struct ModelTables<T = Table> {
    shared: Vec<SharedTable<T>>,
    heads: usize,
    /// Elements of all vectors of a sample.
    vector_elements: usize,
    sequences: Vec<SequenceKeys>,
    one_id_each: OneIdEach,
}

/// A table and the columns that look it up.
#[derive(Debug)]
struct SharedTable<T> {
    table: T,
    features: Vec<TableFeature<T>>,
    route: Route,
}

/// A categorical column that looks up a table.
#[derive(Debug)]
struct TableFeature<T> {
    /// The number of the column in a batch.
    column: usize,
    pooling: Pooling,
    /// Whether its ids have weights.
    weighted: bool,
    /// The position of its vector among those of a sample.
    slot: FeatureSlot,
    /// If attention reads it, its place in the keys: its rows are not pooled.
    attribute: Option<Attribute>,
    /// Its first-order terms, one element per head.
    wide: Option<T>,
    wide_route: Route,
}

/// A batch, with the places of its keys among the gradients.
#[derive(Clone, Copy)]
struct Placed<'a> {
    batch: &'a Samples,
    sequences: &'a [SequenceKeys],
    slots: &'a PositionSlots,
    one_id_each: &'a OneIdEach,
}

impl<T> TableFeature<T> {
    /// Its bags, pooled into vectors in a slot.
    fn of<'a>(&self, batch: &'a Samples, slot: FeatureSlot) -> Feature<'a> {
        let bags = bags_of(batch, self.column, self.weighted);
        Feature { bags, pooling: self.pooling, slot }
    }

    /// Its look-ups in the table that it shares.
    fn shared<'a>(&self, placed: Placed<'a>) -> Feature<'a> {
        let Placed { batch, sequences, slots, one_id_each } = placed;
        match self.attribute {
            None => self.of(batch, self.slot),
            Some(attribute) => one_id_each.feature(batch, self.column, slots.slot(attribute, sequences)),
        }
    }
}

impl<T> SharedTable<T> {
    /// Whether its route also serves the first-order terms of its only feature.
    fn has_one_route(&self) -> bool {
        self.features.len() == 1 && self.features[0].attribute.is_none()
    }
}

/// Returns the bags of a column of a batch, whose ids have weights or not.
pub(super) fn bags_of(batch: &Samples, column: usize, weighted: bool) -> Bags<'_> {
    let bags = &batch.categorical[column];
    let weights = weighted.then_some(bags.weights.as_slice());
    Bags { offsets: &bags.offsets, ids: &bags.ids, weights }
}

impl<T: RowWeights> ModelTables<T> {
    /// `tables` are those of the spec, then those of first-order terms, if it has any.
    ///
    /// # Panics
    /// If they are not.
    pub(super) fn new(spec: &ModelSpec, tables: Vec<T>) -> Self {
        assert!(tables.iter().map(RowWeights::spec).eq(spec.tables.iter().chain(&spec.wide_tables())));
        let mut tables = tables.into_iter();
        let shared = tables.by_ref().take(spec.tables.len());
        let mut shared: Vec<_> = shared
            .map(|table| SharedTable { table, features: Vec::new(), route: Route::default() })
            .collect();
        let stride = spec.vector_elements();
        let mut offset = spec.bottom_outputs();
        for (column, feature) in spec.features.iter().enumerate() {
            shared[feature.table].features.push(TableFeature {
                column,
                pooling: feature.pooling,
                weighted: feature.weighted,
                slot: FeatureSlot { stride, offset },
                attribute: Attribute::of(spec, column),
                wide: tables.next(),
                wide_route: Route::default(),
            });
            offset += spec.feature_dim(feature);
        }
        Self {
            shared,
            heads: spec.heads.len(),
            vector_elements: stride,
            sequences: SequenceKeys::all(spec),
            one_id_each: OneIdEach::default(),
        }
    }

    /// Returns the tables that [`ModelTables::new`] takes.
    pub(super) fn into_tables(self) -> Vec<T> {
        let (mut tables, mut wide) = (Vec::new(), Vec::new());
        for SharedTable { table, features, .. } in self.shared {
            tables.push(table);
            wide.extend(features.into_iter().filter_map(|feature| Some((feature.column, feature.wide?))));
        }
        wide.sort_by_key(|(column, _)| *column);
        tables.extend(wide.into_iter().map(|(_, table)| table));
        tables
    }

    fn features(&self) -> impl Iterator<Item = &TableFeature<T>> {
        self.shared.iter().flat_map(|shared| &shared.features)
    }

    /// Logits, and the gradients with respect to them, are one feature with one element per head.
    fn logit_slot(&self) -> FeatureSlot {
        FeatureSlot { stride: self.heads, offset: 0 }
    }
}

impl ModelTables {
    /// Returns every table with its number, those of the spec first, then those of first-order terms.
    pub(super) fn rows(&self) -> HostRows<&Table> {
        let shared = self.shared.iter().enumerate().map(|(number, shared)| (number, &shared.table));
        let wide = self.shared.iter().flat_map(|shared| &shared.features);
        let wide =
            wide.filter_map(|feature| Some((self.shared.len() + feature.column, feature.wide.as_ref()?)));
        HostRows::new(shared.chain(wide).map(|(number, table)| (RowPart::whole(number, table), table)))
    }

    /// Returns the same tables, mutable.
    pub(super) fn rows_mut(&mut self) -> HostRows<&mut Table> {
        let tables = self.shared.len();
        let mut all = Vec::new();
        for (number, shared) in self.shared.iter_mut().enumerate() {
            all.push((RowPart::whole(number, &shared.table), &mut shared.table));
            for feature in &mut shared.features {
                if let Some(wide) = &mut feature.wide {
                    all.push((RowPart::whole(tables + feature.column, wide), wide));
                }
            }
        }
        HostRows::new(all)
    }

    /// Sorts a batch's ids by row.
    pub(super) fn route(&mut self, batch: &Samples) {
        let logit_slot = self.logit_slot();
        let Self { shared, vector_elements, sequences, one_id_each, .. } = self;
        one_id_each.resize(batch);
        let slots = PositionSlots::new(sequences, batch, batch.len * *vector_elements);
        let placed = Placed { batch, sequences, slots: &slots, one_id_each };
        shared.par_iter_mut().for_each(|shared| {
            let has_one_route = shared.has_one_route();
            let SharedTable { table, features, route } = shared;
            let of_batch: Vec<_> = features.iter().map(|feature| feature.shared(placed)).collect();
            route.build(&of_batch, table.spec().rows);
            // A column that is the only one of its table has its rows sorted already.
            if !has_one_route {
                features.par_iter_mut().for_each(|feature| {
                    let Some(wide) = &feature.wide else { return };
                    feature.wide_route.build(&[feature.of(batch, logit_slot)], wide.spec().rows);
                });
            }
        });
    }

    /// Updates every row that a batch names, once per table, from the gradients with respect to its vectors, which
    /// those with respect to its keys follow, and its logits. [`ModelTables::route`] must have run before.
    pub(super) fn update(
        &mut self,
        batch: &Samples,
        vector_gradients: &[f32],
        logit_gradients: &[f32],
        step: Step,
    ) {
        let logit_slot = self.logit_slot();
        let Self { shared, vector_elements, sequences, one_id_each, .. } = self;
        let slots = PositionSlots::new(sequences, batch, batch.len * *vector_elements);
        let placed = Placed { batch, sequences, slots: &slots, one_id_each };
        shared.par_iter_mut().for_each(|shared| {
            let has_one_route = shared.has_one_route();
            let SharedTable { table, features, route } = shared;
            let of_batch: Vec<_> = features.iter().map(|feature| feature.shared(placed)).collect();
            table.update(route, &of_batch, vector_gradients, step);
            features.par_iter_mut().for_each(|feature| {
                let of_batch = [feature.of(batch, logit_slot)];
                let Some(wide) = &mut feature.wide else { return };
                let route = if has_one_route { &*route } else { &feature.wide_route };
                wide.update(route, &of_batch, logit_gradients, step);
            });
        });
    }
}

impl<T: RowWeights> LookUp for ModelTables<T> {
    fn pool(&self, batch: &Samples, samples: &Range<usize>, vectors: &mut [f32]) {
        for shared in &self.shared {
            for feature in shared.features.iter().filter(|feature| feature.attribute.is_none()) {
                shared.table.pool(&feature.of(batch, feature.slot), samples.start, vectors);
            }
        }
    }

    fn keys(&self, batch: &Samples, sequence: usize, positions: Range<usize>, keys: &mut [f32]) {
        let elements = self.sequences[sequence].elements;
        for SharedTable { table, features, .. } in &self.shared {
            for feature in features {
                let Some(attribute) = feature.attribute.filter(|own| own.sequence == sequence) else {
                    continue;
                };
                let ids = &batch.categorical[feature.column].ids[positions.clone()];
                let own = attribute.offset..attribute.offset + table.spec().dim;
                for (key, &id) in keys.chunks_exact_mut(elements).zip(ids) {
                    key[own.clone()].copy_from_slice(table.weights(id));
                }
            }
        }
    }

    fn add_first_order(
        &self,
        batch: &Samples,
        samples: &Range<usize>,
        scratch: &mut Vec<f32>,
        logits: &mut [f32],
    ) {
        for feature in self.features() {
            let Some(wide) = &feature.wide else { continue };
            scratch.resize(logits.len(), 0.0);
            wide.pool(&feature.of(batch, self.logit_slot()), samples.start, scratch);
            logits.iter_mut().zip(&*scratch).for_each(|(logit, term)| *logit += term);
        }
    }
}
