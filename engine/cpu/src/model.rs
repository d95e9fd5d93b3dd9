//! A model in host memory: training steps and scores.

use std::ops::Range;

use rankine_checkpoint::{DenseState, RankState};
use rankine_cpu::Arithmetic;
use rankine_embedding::cpu::Table;
use rankine_embedding::membership::{DynamicTableState, FullTable};
use rankine_embedding::rows::{RowsMut, gather};
use rankine_embedding::{Membership, RankTraffic, Step};
use rankine_model::guard::StepOutcome;
use rankine_model::{Model, ModelSpec, initial_parameters};
use rankine_reader::Samples;
use rankine_topology::Rank;

use super::dense::{DenseOptimizer, clip_scale, squared_norm};
use super::dynamic::DynamicTables;
use super::loss::HeadLabels;
use super::ranks::{Ranks, Sharding};
use super::replica::Replica;
use super::tables::ModelTables;
use super::verdict::Findings;

/// A model, its optimizers' state, and the buffers of a step, on one rank or several.
#[derive(Debug)]
pub struct CpuModel {
    pub(super) distribution: Distribution,
    pub(super) dynamic: DynamicTables,
    steps: u64,
}

#[derive(Debug)]
pub(super) enum Distribution {
    OneRank(Box<OneRank>),
    Ranks(Ranks),
}

/// A model on a single rank: rows are looked up and updated in the tables themselves.
#[derive(Debug)]
pub(super) struct OneRank {
    pub(super) replica: Replica,
    pub(super) tables: ModelTables,
    dense_optimizer: DenseOptimizer,
    clip_norm: Option<f32>,
}

impl CpuModel {
    /// Creates a model as it is at the start of training: a function of the seed only. Weights are uniform with
    /// variance `2 / (inputs + outputs)` (Glorot and Bengio, 2010), biases and first-order terms 0.
    ///
    /// # Panics
    /// If the rules do not match the tables of the spec.
    pub fn initialized(model: &Model, seed: u64) -> Self {
        let tables = model.all_tables().into_iter().enumerate().map(|(number, (table, optimizer))| {
            if number < model.spec.tables.len() {
                Table::initialized(table, optimizer, seed, number as u32)
            } else {
                Table::zeroed(table, optimizer)
            }
        });
        let tables = tables.collect();
        let dynamic = DynamicTables::new(model, Some(seed));
        Self { dynamic, ..Self::new(model, initial_parameters(&model.spec, seed), tables) }
    }

    /// Creates the same model, spread over ranks. It learns what one rank would, except that sums are taken in another
    /// order.
    ///
    /// # Errors
    /// If the operating system refuses to start the ranks' threads.
    ///
    /// # Panics
    /// If plan or rules do not match the tables of the spec.
    pub fn over_ranks(
        model: &Model,
        seed: u64,
        sharding: Sharding,
    ) -> Result<Self, rayon::ThreadPoolBuildError> {
        let distribution = Distribution::Ranks(Ranks::initialized(model, seed, sharding)?);
        Ok(Self { distribution, dynamic: DynamicTables::new(model, Some(seed)), steps: 0 })
    }

    /// Creates a model with given parameters, laid out as [`rankine_model::DenseLayout::named_layers`] describes, and
    /// fresh state of the dense optimizer. `tables` are those of the spec, then those of first-order terms. New rows of
    /// dynamic tables begin with zeros.
    ///
    /// # Panics
    /// If parameters or tables do not match the spec.
    pub fn new(model: &Model, parameters: Vec<f32>, tables: Vec<Table>) -> Self {
        let Model { spec, rules } = model;
        let one = OneRank {
            dense_optimizer: DenseOptimizer::new(rules.dense, &parameters),
            clip_norm: rules.dense_clip_norm,
            tables: ModelTables::new(spec, tables),
            replica: Replica::new(spec.clone(), parameters, 0),
        };
        let dynamic = DynamicTables::new(model, None);
        Self { distribution: Distribution::OneRank(Box::new(one)), dynamic, steps: 0 }
    }

    /// Returns the model's spec.
    pub fn spec(&self) -> &ModelSpec {
        &self.replica().parts.spec
    }

    /// Returns the dense parameters, laid out as [`rankine_model::DenseLayout::named_layers`] describes.
    pub fn parameters(&self) -> &[f32] {
        &self.replica().parts.parameters
    }

    /// Sets the arithmetic of all matrix products, which is f32 at first.
    pub fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        match &mut self.distribution {
            Distribution::OneRank(one) => one.replica.parts.set_arithmetic(arithmetic),
            Distribution::Ranks(ranks) => ranks.set_arithmetic(arithmetic),
        }
    }

    fn replica(&self) -> &Replica {
        match &self.distribution {
            Distribution::OneRank(one) => &one.replica,
            Distribution::Ranks(ranks) => ranks.replica(),
        }
    }

    /// Calls `visit` with the state of each rank, for all ranks in parallel; returns the results in the order of
    /// ranks.
    ///
    /// # Errors
    /// The first error that `visit` returns.
    pub fn on_each_rank<T: Send, E: Send>(
        &self,
        visit: impl Fn(Rank, RankState<'_>) -> Result<T, E> + Sync,
    ) -> Result<Vec<T>, E> {
        match &self.distribution {
            Distribution::OneRank(one) => {
                let rows = one.tables.rows();
                let state = one.dense_optimizer.state();
                let dense = DenseState { first: 0, parameters: self.parameters().to_vec(), state };
                let memberships = self.dynamic.memberships().collect();
                Ok(vec![visit(Rank(0), RankState { dense: vec![dense], rows: &rows, memberships })?])
            }
            Distribution::Ranks(ranks) => ranks.on_each(|rank, state| {
                // All ranks share them; the first one saves them.
                let memberships = self.dynamic.memberships().filter(|_| rank == Rank(0)).collect();
                visit(rank, RankState { memberships, ..state })
            }),
        }
    }

    /// Copies the weights of some rows of a table to `weights`, `[row][dim]`.
    ///
    /// # Panics
    /// If there is no such table or row, or `weights` is too small.
    pub fn gather(&self, table: usize, rows: Range<u64>, (dim, weights): (usize, &mut [f32])) {
        let gathered = match &self.distribution {
            Distribution::OneRank(one) => gather(&one.tables.rows(), table, rows, false, (dim, weights)),
            Distribution::Ranks(ranks) => ranks.gather(table, rows, (dim, weights)),
        };
        gathered.expect("host memory is always readable");
    }

    /// Restores what was saved after `steps` steps: the dense parameters with their state, the memberships of tables,
    /// with the tables' numbers, and rows, which `load` writes to each rank's part, for all ranks in parallel.
    ///
    /// # Errors
    /// The first error that `load` returns; some rows may then be set.
    ///
    /// # Panics
    /// If the dense parameters do not match the spec and the rules, or a membership is not one of its table.
    pub fn restore<E: Send>(
        &mut self,
        steps: u64,
        dense: &DenseState,
        memberships: Vec<(usize, Membership)>,
        load: impl Fn(&mut dyn RowsMut) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        self.steps = steps;
        self.set_memberships(memberships);
        self.dynamic.memberships_mut().for_each(|(_, membership)| membership.continue_from(steps));
        match &mut self.distribution {
            Distribution::OneRank(one) => {
                one.replica.set_parameters(&dense.parameters);
                let state: Vec<_> = dense.state.iter().map(Vec::as_slice).collect();
                one.dense_optimizer.set_state(&state);
                load(&mut one.tables.rows_mut())
            }
            Distribution::Ranks(ranks) => ranks.restore(dense, load),
        }
    }

    /// Starts to record which rows are updated.
    pub fn begin_tracking(&mut self) {
        self.dynamic.memberships_mut().for_each(|(_, membership)| membership.begin_tracking());
        let begun = match &mut self.distribution {
            Distribution::OneRank(one) => one.tables.rows_mut().begin_tracking(),
            Distribution::Ranks(ranks) => ranks.begin_tracking(),
        };
        begun.expect("host memory can always be tracked");
    }

    /// Returns the ranks whose replicated state is not bitwise identical to that of rank 0. Only a defect of Rankine
    /// or of the machine makes it differ.
    pub fn diverged_ranks(&self) -> Vec<Rank> {
        match &self.distribution {
            Distribution::OneRank(_) => Vec::new(),
            Distribution::Ranks(ranks) => ranks.diverged(),
        }
    }

    /// Returns what the ranks have sent to each other in all training steps; zero with one rank.
    pub fn traffic(&self) -> RankTraffic {
        match &self.distribution {
            Distribution::OneRank(_) => RankTraffic::default(),
            Distribution::Ranks(ranks) => ranks.traffic(),
        }
    }

    /// Runs one training step on a global batch, and returns its outcome with the loss before the update: the sum over
    /// the heads of each one's weighted mean over the samples with a label, times the head's weight. `rate_factor` is
    /// the schedule's factor of every learning rate. If loss or gradients are not finite, the step is skipped: only
    /// the step count changes, and which ids have rows.
    ///
    /// # Errors
    /// [`FullTable`] if a table has no row for a new id and the job says that training fails then. The model must not
    /// be used any more.
    ///
    /// # Panics
    /// If the batch is empty or its columns do not match the model.
    pub fn train_step(&mut self, batch: &Samples, rate_factor: f64) -> Result<StepOutcome, FullTable> {
        assert!(batch.len > 0, "a batch has at least one sample");
        self.steps += 1;
        let step = Step { number: self.steps, rate_factor };
        let admitted = self.dynamic.admit(batch, step.number)?;
        if let Some((_, new_rows)) = &admitted {
            match &mut self.distribution {
                Distribution::OneRank(one) => self.dynamic.reset(new_rows, one.tables.rows_mut()),
                Distribution::Ranks(ranks) => {
                    ranks.tables_mut().for_each(|tables| self.dynamic.reset(new_rows, tables.rows_mut()));
                }
            }
        }
        let batch = admitted.as_ref().map_or(batch, |(translated, _)| translated);
        Ok(match &mut self.distribution {
            Distribution::OneRank(one) => one.train_step(batch, step),
            Distribution::Ranks(ranks) => ranks.train_step(batch, step),
        })
    }

    /// Returns the memberships of dynamic tables, with the tables' numbers.
    pub fn memberships(&self) -> impl Iterator<Item = (usize, &Membership)> {
        self.dynamic.memberships()
    }

    /// Replaces memberships of tables, given with the tables' numbers.
    ///
    /// # Panics
    /// If one does not belong to its table.
    pub fn set_memberships(&mut self, memberships: Vec<(usize, Membership)>) {
        self.dynamic.set(memberships);
    }

    /// Returns how full each dynamic table is.
    pub fn dynamic_tables(&self) -> Vec<DynamicTableState> {
        self.dynamic.states()
    }

    /// Appends the logits of each sample, one per head. Ids without a row look up the shared row of their table.
    pub fn logits(&mut self, batch: &Samples, out: &mut Vec<f32>) {
        let found = self.dynamic.find(batch);
        let batch = found.as_ref().unwrap_or(batch);
        match &mut self.distribution {
            Distribution::OneRank(one) => one.replica.logits(batch, &one.tables, out),
            Distribution::Ranks(ranks) => ranks.logits(batch, out),
        }
    }
}

impl OneRank {
    fn train_step(&mut self, batch: &Samples, step: Step) -> StepOutcome {
        let Self { replica, tables, dense_optimizer, clip_norm } = self;
        let heads = &replica.parts.spec.heads;
        let heads: Vec<_> = heads.iter().map(|head| HeadLabels::new(head, batch)).collect();
        let backward = replica.forward_backward(batch, &heads, tables);
        let mut dense = backward.dense;
        // Neither needs the other's result: run in parallel, both wait at one barrier. The same holds for the updates.
        let (squares, ()) = rayon::join(|| squared_norm(dense.sum()), || tables.route(batch));
        let loss = heads.iter().zip(&backward.loss_sums).map(|(head, &sum)| head.loss(sum)).sum();
        let vectors = (backward.vector_gradients, backward.vectors_finite);
        let findings = Findings::new((dense.spec(), batch), (Rank(0), 1), backward.loss_sums, vectors);
        let outcome = findings.verdict(dense.spec(), loss, squares);
        if outcome.skipped.is_some() {
            return outcome;
        }
        rayon::join(
            || {
                let (parameters, gradients) = dense.parameters_and_gradients();
                let scale = clip_norm.map_or(1.0, |longest| clip_scale(squares, longest));
                dense_optimizer.update(parameters, gradients, scale, step);
                dense.finish();
            },
            || tables.update(batch, backward.vector_gradients, backward.logit_gradients, step),
        );
        outcome
    }
}
