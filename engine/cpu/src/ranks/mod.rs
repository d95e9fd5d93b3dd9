//! A model spread over ranks, each with its threads, its replica of the dense parts and its part of the tables.
//!
//! Every rank takes its share of a batch's samples through the model. Gradients of replicated state (dense parameters
//! and frequent rows) are all-reduced together; those of other rows are sent to their owners. Sums are taken in the
//! order of ranks: a run is the same every time, for any number of threads, and replicated state stays bitwise
//! identical on all ranks.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use rankine_checkpoint::{DenseState, RankState};
use rankine_cpu::Arithmetic;
use rankine_embedding::cpu::{BagGradients, Communicator, Feature, FeatureSlot, RankTables};
use rankine_embedding::random::UniformField;
use rankine_embedding::rows::{RowsError, RowsMut, gather};
use rankine_embedding::{EmbeddingPlan, Pooling, RankTraffic, Step};
use rankine_model::guard::StepOutcome;
use rankine_model::{Model, ModelSpec, initial_parameters};
use rankine_reader::Samples;
use rankine_topology::Rank;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use xxhash_rust::xxh3::Xxh3;

use super::dense::{DenseOptimizer, clip_scale, squared_norm};
use super::loss::HeadLabels;
use super::positions::{Attribute, OneIdEach, PositionSlots, SequenceKeys};
use super::replica::Replica;
use super::tables::{LookUp, bags_of};
use super::verdict::Findings;

/// How a model is spread over ranks.
#[derive(Debug, Clone)]
pub struct Sharding {
    /// Which ranks store the rows of each table: one entry per table of the spec, then one per table of first-order
    /// terms.
    pub plan: EmbeddingPlan,
    /// Whether each rank updates only a part of the dense parameters, and keeps only that part's optimizer state.
    pub shard_dense_update: bool,
    /// Threads of all ranks together; each rank has at least one.
    pub threads: usize,
}

/// All ranks of a model.
#[derive(Debug)]
pub(super) struct Ranks {
    /// Each rank has its own threads, because its work may wait for other ranks.
    pools: Vec<ThreadPool>,
    ranks: Vec<CpuRank>,
    traffic: RankTraffic,
}

#[derive(Debug)]
struct CpuRank {
    replica: Replica,
    dense_optimizer: DenseOptimizer,
    clip_norm: Option<f32>,
    shard_dense_update: bool,
    tables: RankTables,
    look_ups: LookUps,
    /// The looked-up vectors, `[sample, LookUps::stride]`, then the keys of sequences: see [`PositionSlots`].
    vectors: Vec<f32>,
}

/// Which column looks up which table, and where the result is stored: in one matrix, with a sample's vectors in the
/// layout of its tile, followed by its first-order terms, feature by feature.
#[derive(Debug)]
struct LookUps {
    /// One entry per table.
    tables: Vec<Vec<TableLookUp>>,
    stride: usize,
    /// The range of the embeddings among a sample's vectors.
    embeddings: Range<usize>,
    heads: usize,
    sequences: Vec<SequenceKeys>,
    one_id_each: OneIdEach,
    /// Where the keys of the last batch are in the matrix, and where the gradients with respect to them follow the
    /// vectors' gradients.
    slots: [PositionSlots; 2],
}

#[derive(Debug)]
struct TableLookUp {
    /// The number of the column in a batch.
    column: usize,
    pooling: Pooling,
    /// Whether its ids have weights.
    weighted: bool,
    slot: FeatureSlot,
    /// If attention reads the rows, their place in the keys.
    attribute: Option<Attribute>,
    /// For first-order terms, the gradients are those of the logits.
    first_order: bool,
}

impl Ranks {
    pub(super) fn initialized(
        model: &Model,
        seed: u64,
        sharding: Sharding,
    ) -> Result<Self, ThreadPoolBuildError> {
        let Model { spec, rules } = model;
        let Sharding { plan, shard_dense_update, threads } = sharding;
        let (topology, plan) = (plan.topology, Arc::new(plan));
        let pool = |rank| {
            ThreadPoolBuilder::new()
                .num_threads((threads / topology.ranks()).max(1))
                .thread_name(move |thread| format!("rankine-{rank}-{thread}"))
                .build()
        };
        let parameters = initial_parameters(spec, seed);
        let rank = |rank| {
            let tables = model.all_tables().into_iter().enumerate().map(|(number, (table, optimizer))| {
                let field = (number < spec.tables.len()).then(|| UniformField::new(seed, number as u32));
                (table, optimizer, field)
            });
            let tables = RankTables::initialized(plan.clone(), rank, tables);
            let part = topology.part(parameters.len(), rank);
            let updated_here = if shard_dense_update { &parameters[part] } else { &parameters };
            CpuRank {
                dense_optimizer: DenseOptimizer::new(rules.dense, updated_here),
                clip_norm: rules.dense_clip_norm,
                shard_dense_update,
                replica: Replica::new(spec.clone(), parameters.clone(), tables.frequent_elements()),
                look_ups: LookUps::new(spec),
                vectors: Vec::new(),
                tables,
            }
        };
        Ok(Self {
            pools: topology.all_ranks().map(pool).collect::<Result<_, _>>()?,
            ranks: topology.all_ranks().map(rank).collect(),
            traffic: RankTraffic::default(),
        })
    }

    /// See [`super::CpuModel::set_arithmetic`].
    pub(super) fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        self.ranks.iter_mut().for_each(|rank| rank.replica.parts.set_arithmetic(arithmetic));
    }

    /// Returns the replica of rank 0; all are equal.
    pub(super) fn replica(&self) -> &Replica {
        &self.ranks[0].replica
    }

    pub(super) fn traffic(&self) -> RankTraffic {
        self.traffic
    }

    /// Returns the ranks whose replicated state differs from that of rank 0.
    pub(super) fn diverged(&self) -> Vec<Rank> {
        let sums: Vec<_> = self.ranks.iter().map(CpuRank::checksum).collect();
        Rank::first(sums.len()).filter(|rank| sums[rank.0] != sums[0]).collect()
    }

    /// See [`super::CpuModel::on_each_rank`].
    pub(super) fn on_each<T: Send, E: Send>(
        &self,
        visit: impl Fn(Rank, RankState<'_>) -> Result<T, E> + Sync,
    ) -> Result<Vec<T>, E> {
        let visit = &visit;
        thread::scope(|scope| {
            let ranks = self.pools.iter().zip(&self.ranks).enumerate();
            let ranks = ranks.map(|(number, (pool, rank))| {
                scope.spawn(move || {
                    pool.install(|| {
                        visit(
                            Rank(number),
                            RankState {
                                dense: vec![rank.dense()],
                                rows: &rank.tables.rows(),
                                memberships: Vec::new(),
                            },
                        )
                    })
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
        })
    }

    /// Returns the tables of each rank.
    pub(super) fn tables_mut(&mut self) -> impl Iterator<Item = &mut RankTables> {
        self.ranks.iter_mut().map(|rank| &mut rank.tables)
    }

    /// See [`super::CpuModel::gather`].
    pub(super) fn gather(
        &self,
        table: usize,
        range: Range<u64>,
        (dim, weights): (usize, &mut [f32]),
    ) -> Result<(), RowsError> {
        for listed in [false, true] {
            for rank in &self.ranks {
                gather(&rank.tables.rows(), table, range.clone(), listed, (dim, weights))?;
            }
        }
        Ok(())
    }

    /// See [`super::CpuModel::restore`].
    pub(super) fn restore<E: Send>(
        &mut self,
        dense: &DenseState,
        load: impl Fn(&mut dyn RowsMut) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let of_ranks = self.on_all(|rank, _| {
            rank.replica.set_parameters(&dense.parameters);
            let own = rank.updated_here();
            let state: Vec<_> = dense.state.iter().map(|kind| &kind[own.clone()]).collect();
            rank.dense_optimizer.set_state(&state);
            load(&mut rank.tables.rows_mut())
        });
        of_ranks.into_iter().collect()
    }

    pub(super) fn begin_tracking(&mut self) -> Result<(), RowsError> {
        self.ranks.iter_mut().try_for_each(|rank| rank.tables.rows_mut().begin_tracking())
    }

    pub(super) fn train_step(&mut self, batch: &Samples, step: Step) -> StepOutcome {
        let mut of_ranks = self.on_all(|rank, communicator| {
            let outcome = rank.train_step(communicator, batch, step);
            (outcome, communicator.exchange_traffic(), communicator.reduction_traffic())
        });
        for (_, exchange, reduction) in &of_ranks {
            self.traffic.exchange += *exchange;
            self.traffic.reduction += *reduction;
        }
        // The outcome is the same on all ranks.
        of_ranks.swap_remove(0).0
    }

    pub(super) fn logits(&mut self, batch: &Samples, out: &mut Vec<f32>) {
        let of_ranks = self.on_all(|rank, communicator| rank.logits(communicator, batch));
        of_ranks.iter().for_each(|logits| out.extend_from_slice(logits));
    }

    /// Runs a function on every rank in parallel; returns the results in the order of ranks.
    fn on_all<T: Send>(&mut self, run: impl Fn(&mut CpuRank, &mut Communicator) -> T + Sync) -> Vec<T> {
        let topology = self.ranks[0].tables.plan().topology;
        let run = &run;
        thread::scope(|scope| {
            let ranks = self.pools.iter().zip(&mut self.ranks).zip(Communicator::connect(topology));
            let mut running = Vec::new();
            for ((pool, rank), mut communicator) in ranks {
                // A rank that panics drops its communicator, so that no other rank waits for it.
                running.push(scope.spawn(move || pool.install(move || run(rank, &mut communicator))));
            }
            let join = |rank: thread::ScopedJoinHandle<'_, T>| {
                rank.join().unwrap_or_else(|panic| resume_unwind(panic))
            };
            running.into_iter().map(join).collect()
        })
    }
}

impl CpuRank {
    fn train_step(&mut self, communicator: &mut Communicator, batch: &Samples, step: Step) -> StepOutcome {
        let batch = &self.share(communicator, batch);
        self.look_up(communicator, batch);
        let Self { replica, tables, look_ups, vectors, .. } = self;
        let mut heads: Vec<_> =
            replica.parts.spec.heads.iter().map(|head| HeadLabels::new(head, batch)).collect();
        let mut total_weights: Vec<_> = heads.iter().map(|head| head.total_weight).collect();
        communicator.sum(&mut total_weights);
        heads.iter_mut().zip(total_weights).for_each(|(head, total)| head.total_weight = total);

        let results = LookUpResults { vectors, look_ups };
        let backward = replica.forward_backward(batch, &heads, &results);
        let mut dense = backward.dense;
        let here = (communicator.rank(), communicator.topology().ranks());
        let vectors = (backward.vector_gradients, backward.vectors_finite);
        let mut findings = Findings::new((dense.spec(), batch), here, backward.loss_sums, vectors);
        findings.add_up(communicator);
        dense.sum();
        let (parameters, summed) = dense.parameters_and_gradients();
        let of_tables = look_ups.gradients(backward.vector_gradients, backward.logit_gradients);
        tables.backward(communicator, &of_tables, &mut summed[parameters.len()..]);

        let own = communicator.topology().part(parameters.len(), communicator.rank());
        let squares = if self.shard_dense_update {
            let (gradients, frequent) = summed.split_at_mut(parameters.len());
            communicator.reduce_scatter(gradients);
            communicator.all_reduce(frequent);
            let mut squares = [squared_norm(&gradients[own.clone()])];
            communicator.sum(&mut squares);
            squares[0]
        } else {
            communicator.all_reduce(summed);
            squared_norm(&summed[..parameters.len()])
        };
        let loss = heads.iter().zip(&findings.loss_sums).map(|(head, &sum)| head.loss(sum)).sum();
        // Computed from sums over all ranks, so every rank gets the same verdict.
        let outcome = findings.verdict(dense.spec(), loss, squares);
        if outcome.skipped.is_some() {
            tables.forget();
            return outcome;
        }
        let (parameters, summed) = dense.parameters_and_gradients();
        let (gradients, frequent) = summed.split_at_mut(parameters.len());
        let scale = self.clip_norm.map_or(1.0, |longest| clip_scale(squares, longest));
        if self.shard_dense_update {
            self.dense_optimizer.update(&mut parameters[own.clone()], &mut gradients[own], scale, step);
            communicator.all_gather(parameters);
        } else {
            self.dense_optimizer.update(parameters, gradients, scale, step);
        }
        tables.update(communicator, frequent, step);
        dense.finish();
        outcome
    }

    /// Returns the dense parameters whose optimizer state this rank keeps.
    fn updated_here(&self) -> Range<usize> {
        let parameters = self.replica.parts.parameters.len();
        if self.shard_dense_update { self.part(parameters) } else { 0..parameters }
    }

    /// Returns the part of all dense parameters that this rank saves.
    fn part(&self, parameters: usize) -> Range<usize> {
        self.tables.plan().topology.part(parameters, self.tables.rank())
    }

    /// Returns that part, with its state.
    fn dense(&self) -> DenseState {
        let parameters = &self.replica.parts.parameters;
        let (own, here) = (self.part(parameters.len()), self.updated_here());
        let of_state = own.start - here.start..own.end - here.start;
        let state = self.dense_optimizer.state().into_iter().map(|kind| kind[of_state.clone()].to_vec());
        DenseState { first: own.start, parameters: parameters[own].to_vec(), state: state.collect() }
    }

    /// The logits of the rank's share of a batch.
    fn logits(&mut self, communicator: &mut Communicator, batch: &Samples) -> Vec<f32> {
        let batch = &self.share(communicator, batch);
        self.look_up(communicator, batch);
        let mut logits = Vec::new();
        let results = LookUpResults { vectors: &self.vectors, look_ups: &self.look_ups };
        self.replica.logits(batch, &results, &mut logits);
        logits
    }

    fn share(&self, communicator: &Communicator, batch: &Samples) -> Samples {
        batch.slice(communicator.topology().share(batch.len, communicator.rank()))
    }

    fn look_up(&mut self, communicator: &mut Communicator, batch: &Samples) {
        self.look_ups.place(batch);
        self.vectors.resize(self.look_ups.slots[0].end(), 0.0);
        let features = self.look_ups.features(batch);
        self.tables.forward(communicator, &features, &mut self.vectors);
    }

    /// Returns a checksum of the replicated state.
    fn checksum(&self) -> u64 {
        let mut hash = Xxh3::new();
        hash.update(bytemuck::cast_slice(&self.replica.parts.parameters));
        for table in self.tables.replicas() {
            (0..table.spec().rows).for_each(|row| hash.update(bytemuck::cast_slice(table.row(row))));
        }
        hash.digest()
    }
}

impl LookUps {
    fn new(spec: &ModelSpec) -> Self {
        let (heads, embeddings) = (spec.heads.len(), spec.bottom_outputs()..spec.vector_elements());
        let first_order = if spec.wide { spec.features.len() * heads } else { 0 };
        let stride = embeddings.end + first_order;
        let mut tables: Vec<_> = spec.tables.iter().map(|_| Vec::new()).collect();
        let look_up = |column, offset, first_order: bool| TableLookUp {
            column,
            pooling: spec.features[column].pooling,
            weighted: spec.features[column].weighted,
            slot: FeatureSlot { stride, offset },
            attribute: Attribute::of(spec, column).filter(|_| !first_order),
            first_order,
        };
        let mut offset = embeddings.start;
        for (column, feature) in spec.features.iter().enumerate() {
            tables[feature.table].push(look_up(column, offset, false));
            offset += spec.feature_dim(feature);
        }
        for column in 0..spec.wide_tables().len() {
            tables.push(vec![look_up(column, offset, true)]);
            offset += heads;
        }
        Self {
            tables,
            stride,
            embeddings,
            heads,
            sequences: SequenceKeys::all(spec),
            one_id_each: OneIdEach::default(),
            slots: Default::default(),
        }
    }

    /// Finds the places of a batch's keys.
    fn place(&mut self, batch: &Samples) {
        self.one_id_each.resize(batch);
        let behind = |elements: usize| PositionSlots::new(&self.sequences, batch, batch.len * elements);
        self.slots = [behind(self.stride), behind(self.embeddings.end)];
    }

    /// Returns the look-ups of a batch, table by table.
    fn features<'a>(&'a self, batch: &'a Samples) -> Vec<Vec<Feature<'a>>> {
        let feature = |look_up: &TableLookUp| {
            if let Some(attribute) = look_up.attribute {
                let slot = self.slots[0].slot(attribute, &self.sequences);
                return self.one_id_each.feature(batch, look_up.column, slot);
            }
            let bags = bags_of(batch, look_up.column, look_up.weighted);
            Feature { bags, pooling: look_up.pooling, slot: look_up.slot }
        };
        self.tables.iter().map(|look_ups| look_ups.iter().map(feature).collect()).collect()
    }

    /// Returns where the gradients of the looked-up vectors are stored, table by table.
    fn gradients<'a>(
        &self,
        vector_gradients: &'a [f32],
        logit_gradients: &'a [f32],
    ) -> Vec<Vec<BagGradients<'a>>> {
        let of_look_up = |look_up: &TableLookUp| {
            if look_up.first_order {
                let slot = FeatureSlot { stride: self.heads, offset: 0 };
                BagGradients { matrix: logit_gradients, slot }
            } else if let Some(attribute) = look_up.attribute {
                let slot = self.slots[1].slot(attribute, &self.sequences);
                BagGradients { matrix: vector_gradients, slot }
            } else {
                let slot = FeatureSlot { stride: self.embeddings.end, offset: look_up.slot.offset };
                BagGradients { matrix: vector_gradients, slot }
            }
        };
        self.tables.iter().map(|look_ups| look_ups.iter().map(of_look_up).collect()).collect()
    }
}

/// A batch whose ids have been looked up.
struct LookUpResults<'a> {
    vectors: &'a [f32],
    look_ups: &'a LookUps,
}

impl LookUpResults<'_> {
    fn rows(&self, samples: &Range<usize>) -> impl Iterator<Item = &[f32]> {
        let stride = self.look_ups.stride;
        self.vectors[samples.start * stride..samples.end * stride].chunks_exact(stride)
    }
}

impl LookUp for LookUpResults<'_> {
    fn pool(&self, _: &Samples, samples: &Range<usize>, vectors: &mut [f32]) {
        let embeddings = &self.look_ups.embeddings;
        for (row, vectors) in self.rows(samples).zip(vectors.chunks_exact_mut(embeddings.end)) {
            vectors[embeddings.clone()].copy_from_slice(&row[embeddings.clone()]);
        }
    }

    fn keys(&self, _: &Samples, sequence: usize, positions: Range<usize>, keys: &mut [f32]) {
        let LookUps { slots, sequences, .. } = self.look_ups;
        let elements = sequences[sequence].elements;
        let own = &self.vectors[slots[0].keys(sequence)];
        keys.copy_from_slice(&own[positions.start * elements..positions.end * elements]);
    }

    fn add_first_order(&self, _: &Samples, samples: &Range<usize>, _: &mut Vec<f32>, logits: &mut [f32]) {
        let LookUps { heads, embeddings, .. } = self.look_ups;
        for (row, logits) in self.rows(samples).zip(logits.chunks_exact_mut(*heads)) {
            for terms in row[embeddings.end..].chunks_exact(*heads) {
                logits.iter_mut().zip(terms).for_each(|(logit, term)| *logit += term);
            }
        }
    }
}

#[cfg(test)]
mod tests;
