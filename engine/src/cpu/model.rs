//! A model in host memory: one training step, and scores.

use std::ops::Range;

use rankine_embedding::Step;
use rankine_embedding::cpu::Table;
use rankine_embedding::rows::{RowsMut, gather};
use rankine_reader::Samples;

use super::dense::{DenseOptimizer, clip_scale, squared_norm};
use super::loss::HeadLabels;
use super::ranks::{RankTraffic, Ranks, Sharding};
use super::replica::{Replica, initial_parameters};
use super::tables::ModelTables;
use super::verdict::Findings;
use crate::checkpoint::{DenseState, RankState};
use crate::guard::StepOutcome;
use crate::model::{ModelSpec, TrainingRules};

/// A model, its optimizers' state, and the buffers of a step: on one rank, or spread over several.
#[derive(Debug)]
pub struct CpuModel {
    device: Device,
    steps: u64,
}

#[derive(Debug)]
enum Device {
    One(Box<OneRank>),
    Several(Ranks),
}

/// A model with nobody to share it with: rows are looked up and updated where they lie.
#[derive(Debug)]
struct OneRank {
    replica: Replica,
    tables: ModelTables,
    dense_optimizer: DenseOptimizer,
    clip_norm: Option<f32>,
}

impl CpuModel {
    /// A model as training starts with it: a function of the seed alone. Weights are uniform with variance
    /// `2 / (inputs + outputs)` (Glorot and Bengio, 2010), biases and first-order terms 0.
    ///
    /// # Panics
    /// Where the rules are not for the tables of the spec.
    pub fn initialized(spec: ModelSpec, rules: &TrainingRules, seed: u64) -> Self {
        let tables = rules.all_tables(&spec).into_iter().enumerate().map(|(number, (table, optimizer))| {
            if number < spec.tables.len() {
                Table::initialized(table, optimizer, seed, number as u32)
            } else {
                Table::zeroed(table, optimizer)
            }
        });
        let tables = tables.collect();
        let parameters = initial_parameters(&spec, seed);
        Self::new(spec, rules, parameters, tables)
    }

    /// The same model, spread over ranks. It learns what one rank would, but for the order in which sums are taken.
    ///
    /// # Errors
    /// Where the operating system refuses the ranks their threads.
    ///
    /// # Panics
    /// Where plan or rules are not for the tables of the spec.
    pub fn over_ranks(
        spec: &ModelSpec,
        rules: &TrainingRules,
        seed: u64,
        sharding: Sharding,
    ) -> Result<Self, rayon::ThreadPoolBuildError> {
        Ok(Self { device: Device::Several(Ranks::initialized(spec, rules, seed, sharding)?), steps: 0 })
    }

    /// A model with given parameters, laid out as [`crate::model::DenseLayout::named_layers`] says, and fresh state of
    /// the dense optimizer. `tables` are those of the spec, then those of first-order terms.
    ///
    /// # Panics
    /// Where parameters or tables are not those of the spec.
    pub fn new(spec: ModelSpec, rules: &TrainingRules, parameters: Vec<f32>, tables: Vec<Table>) -> Self {
        let one = OneRank {
            dense_optimizer: DenseOptimizer::new(rules.dense, &parameters),
            clip_norm: rules.dense_clip_norm,
            tables: ModelTables::new(&spec, tables),
            replica: Replica::new(spec, parameters, 0),
        };
        Self { device: Device::One(Box::new(one)), steps: 0 }
    }

    /// What the model is.
    pub fn spec(&self) -> &ModelSpec {
        &self.replica().parts.spec
    }

    /// The dense parameters, laid out as [`crate::model::DenseLayout::named_layers`] says.
    pub fn parameters(&self) -> &[f32] {
        &self.replica().parts.parameters
    }

    fn replica(&self) -> &Replica {
        match &self.device {
            Device::One(one) => &one.replica,
            Device::Several(ranks) => ranks.replica(),
        }
    }

    /// Lets `visit` see what each rank has, all at once; returns what it returns, in the order of ranks.
    ///
    /// # Errors
    /// The first that `visit` returns.
    pub(crate) fn on_each_rank<T: Send, E: Send>(
        &self,
        visit: impl Fn(usize, RankState<'_>) -> Result<T, E> + Sync,
    ) -> Result<Vec<T>, E> {
        match &self.device {
            Device::One(one) => {
                let rows = one.tables.rows();
                let state = one.dense_optimizer.state();
                let dense = DenseState { first: 0, parameters: self.parameters().to_vec(), state };
                Ok(vec![visit(0, RankState { dense: vec![dense], rows: &rows })?])
            }
            Device::Several(ranks) => ranks.on_each(visit),
        }
    }

    /// Collects the weights of some rows of a table, `[row][dim]`.
    ///
    /// # Panics
    /// Where there is no such table or row, or no such room.
    pub fn gather(&self, table: usize, rows: Range<u64>, (dim, weights): (usize, &mut [f32])) {
        let gathered = match &self.device {
            Device::One(one) => gather(&one.tables.rows(), table, rows, false, (dim, weights)),
            Device::Several(ranks) => ranks.gather(table, rows, (dim, weights)),
        };
        gathered.expect("it is the host's memory");
    }

    /// Takes over what was saved after so many steps: the dense parameters with their state, and rows, which `load`
    /// puts where each rank has them, for all ranks at once.
    ///
    /// # Errors
    /// The first that `load` returns; rows are then partly set.
    ///
    /// # Panics
    /// Where the dense parameters are not those of the spec and the rules.
    pub(crate) fn restore<E: Send>(
        &mut self,
        steps: u64,
        dense: &DenseState,
        load: impl Fn(&mut dyn RowsMut) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        self.steps = steps;
        match &mut self.device {
            Device::One(one) => {
                one.replica.set_parameters(&dense.parameters);
                let state: Vec<_> = dense.state.iter().map(Vec::as_slice).collect();
                one.dense_optimizer.set_state(&state);
                load(&mut one.tables.rows_mut())
            }
            Device::Several(ranks) => ranks.restore(dense, load),
        }
    }

    /// Keeps book, from now on, of which rows are updated.
    pub(crate) fn begin_tracking(&mut self) {
        let begun = match &mut self.device {
            Device::One(one) => one.tables.rows_mut().begin_tracking(),
            Device::Several(ranks) => ranks.begin_tracking(),
        };
        begun.expect("it is the host's memory");
    }

    /// The ranks of which what all have is not the same, bit by bit, as what the first one has; nothing but a defect
    /// of Rankine or of the machine makes it so.
    pub fn diverged_ranks(&self) -> Vec<usize> {
        match &self.device {
            Device::One(_) => Vec::new(),
            Device::Several(ranks) => ranks.diverged(),
        }
    }

    /// What the ranks have sent to each other in all steps of training; one rank sends nothing.
    pub fn traffic(&self) -> RankTraffic {
        match &self.device {
            Device::One(_) => RankTraffic::default(),
            Device::Several(ranks) => ranks.traffic(),
        }
    }

    /// One step of training on a global batch; returns what it came to, with its loss before the update: over the
    /// heads, the sum of each one's weighted mean over the samples whose label is there, times the head's weight.
    /// `rate_factor` is what the schedule multiplies every learning rate by. Nothing but the number of steps changes
    /// where loss or gradients are no finite numbers.
    ///
    /// # Panics
    /// Where the batch is empty or its columns are not the model's.
    pub fn train_step(&mut self, batch: &Samples, rate_factor: f64) -> StepOutcome {
        assert!(batch.len > 0, "a batch has at least one sample");
        self.steps += 1;
        let step = Step { number: self.steps, rate_factor };
        match &mut self.device {
            Device::One(one) => one.train_step(batch, step),
            Device::Several(ranks) => ranks.train_step(batch, step),
        }
    }

    /// Appends the logits of each sample, one a head.
    pub fn logits(&mut self, batch: &Samples, out: &mut Vec<f32>) {
        match &mut self.device {
            Device::One(one) => one.replica.logits(batch, &one.tables, out),
            Device::Several(ranks) => ranks.logits(batch, out),
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
        // Neither needs the other: side by side, one barrier waits for both. So it is with the updates.
        let (squares, ()) = rayon::join(|| squared_norm(dense.sum()), || tables.route(batch));
        let loss = heads.iter().zip(&backward.loss_sums).map(|(head, &sum)| head.loss(sum)).sum();
        let vectors = (backward.vector_gradients, backward.vectors_hold);
        let findings = Findings::new(dense.spec(), (0, 1), backward.loss_sums, vectors);
        let outcome = findings.verdict(dense.spec(), loss, squares);
        if outcome.left_out.is_some() {
            return outcome;
        }
        rayon::join(
            || {
                let (parameters, gradients) = dense.both();
                let scale = clip_norm.map_or(1.0, |longest| clip_scale(squares, longest));
                dense_optimizer.update(parameters, gradients, scale, step);
                dense.finish();
            },
            || tables.update(batch, backward.vector_gradients, backward.logit_gradients, step),
        );
        outcome
    }
}
