//! Passes that score samples, which may be more than a training batch has.
//!
//! A pass scores whole training batches together: a rank has the same samples in the same order as if each were scored
//! alone. It computes as many samples as it was captured for. So that the last ones of an evaluation, or a small part
//! of a dataset, do not take as long as a full pass, there are passes of several sizes: each half as large as the one
//! before, down to a training batch.

use std::iter;

use rankine_cuda::kernels::Element;
use rankine_cuda::{Graph, Lane};
use rankine_embedding::cuda::{Result, RoutedBatch};

use super::context::RankContext;
use super::input::{Input, InputLayout, InputSlot};
use super::network::{Forward, Network};
use super::setup::ModelSetup;
use super::slots::{BatchSlots, RouteGraphs};
use super::tables::{ScoredTables, Tables};

/// The slots of batches that are scored, and the passes over them.
#[derive(Debug)]
pub(super) struct Scoring {
    /// Dropped first: graphs reference NCCL's communicators. `[slot][size class of messages][pass]`.
    passes: Vec<Vec<Vec<Graph>>>,
    /// How many training batches have as many samples as are scored at a time.
    pub(super) batches: usize,
    /// The samples of each pass, ascending.
    samples: Vec<usize>,
    pub(super) slots: BatchSlots,
    pub(super) tables: ScoredTables,
}

/// The parts of a rank that score.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScoringParts<'a, T> {
    pub(super) network: &'a Network<T>,
    pub(super) tables: &'a Tables,
    pub(super) main: &'a Lane,
    pub(super) routes: &'a Lane,
}

/// The passes before they are captured.
#[derive(Debug)]
pub(super) struct PlannedScoring {
    inputs: Vec<InputSlot>,
    tables: ScoredTables,
    batches: usize,
    /// Ascending.
    plans: Vec<Forward>,
}

impl PlannedScoring {
    /// Plans passes over the samples of at most `batches` training batches.
    pub(super) fn new<T: Element>(
        context: &RankContext,
        setup: &ModelSetup,
        (network, tables): (&Network<T>, &Tables),
        batches: usize,
    ) -> Result<Self> {
        let (device, samples) = (&context.device, setup.rank_samples());
        let scored_tables = tables.scored::<T>(context, batches * samples)?;
        let layout = InputLayout::new(&setup.model.spec, scored_tables.layout());
        let passes = passes(batches).into_iter();
        let plans = passes.map(|batches| network.plan_forward(batches * samples, false));
        Ok(Self {
            inputs: BatchSlots::inputs(device, &layout, tables.slots())?,
            tables: scored_tables,
            batches,
            plans: plans.collect::<Result<_>>()?,
        })
    }

    /// Returns what looks up batches that are scored.
    pub(super) fn tables(&self) -> &ScoredTables {
        &self.tables
    }

    /// Runs the layers of all passes, without the tables and so without other ranks: libraries load what they need.
    pub(super) fn run_layers<T: Element>(&self, parts: ScoringParts<'_, T>) -> Result<()> {
        let input = self.inputs[0].input();
        self.plans.iter().try_for_each(|plan| {
            let batch = RoutedBatch { ids: input.ids, slot: 0, size: 0 };
            enqueue_pass(parts, None, input, batch, plan)
        })
    }

    /// Runs the first slot's passes.
    pub(super) fn run<T: Element>(&self, parts: ScoringParts<'_, T>) -> Result<()> {
        let input = self.inputs[0].input();
        let batch = RoutedBatch { ids: input.ids, slot: 0, size: 0 };
        // SAFETY: all of it lives until the lanes have been waited for.
        unsafe { parts.tables.route(parts.main, Some(&self.tables), batch) }?;
        self.plans.iter().try_for_each(|plan| enqueue_pass(parts, Some(&self.tables), input, batch, plan))
    }

    /// Captures the graphs of each slot.
    pub(super) fn capture<T: Element>(self, parts: ScoringParts<'_, T>) -> Result<Scoring> {
        let Self { inputs, tables, batches, plans } = self;
        let ScoringParts { main, routes, .. } = parts;
        let (mut passes, mut of_slots) = (Vec::new(), Vec::new());
        let classes = parts.tables.sizes(Some(&tables));
        for (slot, input) in inputs.iter().map(InputSlot::input).enumerate() {
            let batch = |class: usize| RoutedBatch { ids: input.ids, slot, size: class };
            // SAFETY: all of it lives as long as the rank, and is of the same model and number of samples.
            let route = || unsafe { parts.tables.route(routes, Some(&tables), batch(0)) };
            let first = parts.tables.are_routed().then(|| Graph::capture(routes, route)).transpose()?;
            let rest = |class: usize| {
                // SAFETY: as above.
                let rest = || unsafe { parts.tables.route_rest(routes, Some(&tables), batch(class)) };
                (class > 0).then(|| Graph::capture(routes, rest)).transpose()
            };
            let rests = (0..classes).map(rest).collect::<Result<_>>()?;
            of_slots.push(RouteGraphs { first, rests });
            let of_class = |class: usize| {
                let pass = |plan: &Forward| {
                    Graph::capture(main, || enqueue_pass(parts, Some(&tables), input, batch(class), plan))
                };
                plans.iter().map(pass).collect::<Result<Vec<_>>>()
            };
            passes.push((0..classes).map(of_class).collect::<Result<_>>()?);
        }
        Ok(Scoring {
            passes,
            batches,
            samples: plans.iter().map(Forward::samples).collect(),
            slots: BatchSlots::new(main.device(), inputs, of_slots)?,
            tables,
        })
    }
}

impl Scoring {
    /// Returns the most samples of a batch for this rank.
    pub(super) fn samples_max(&self) -> usize {
        self.samples.last().copied().unwrap_or(0)
    }

    /// Returns the smallest pass over a slot's batch of `samples` samples.
    pub(super) fn pass(&mut self, slot: usize, class: usize, samples: usize) -> &mut Graph {
        let number = self.samples.iter().position(|&most| most >= samples);
        &mut self.passes[slot][class]
            [number.expect("a batch has at most as many samples as the largest pass")]
    }
}

/// Returns how many training batches each pass scores, ascending: `batches`, half as many, and so on, and one.
fn passes(batches: usize) -> Vec<usize> {
    let halves = iter::successors(Some(batches), |&batches| (batches > 1).then(|| batches.div_ceil(2)));
    let mut passes: Vec<_> = halves.collect();
    passes.reverse();
    passes
}

/// Enqueues scoring the samples of a slot; without `tables`, only the layers, which involve no other rank.
fn enqueue_pass<T: Element>(
    parts: ScoringParts<'_, T>,
    scored: Option<&ScoredTables>,
    input: Input,
    batch: RoutedBatch,
    plan: &Forward,
) -> Result<()> {
    let (ScoringParts { network, tables, main, .. }, samples) = (parts, plan.samples());
    // SAFETY: network, tables and slot live as long as the rank, and the lane orders the work.
    unsafe {
        network.bottom_forward(main, input, plan)?;
        let rows = scored.and_then(|scored| tables.rows_scored(scored, network, batch.ids));
        if scored.is_some() && rows.is_none() {
            tables.look_up(main, scored, batch, samples, network.vectors(plan))?;
        }
        network.attend(main, input, plan)?;
        network.interact(main, plan, rows)?;
        network.hidden_forward(main, plan)?;
        network.head(main, input, samples, false)?;
        scored.map_or(Ok(()), |_| tables.barrier(main))
    }
}

#[cfg(test)]
mod tests {
    use super::passes;

    #[test]
    fn passes_are_halved_down_to_a_training_batch() {
        assert_eq!((passes(1), passes(2), passes(8)), (vec![1], vec![1, 2], vec![1, 2, 4, 8]));
        assert_eq!(passes(11), [1, 2, 3, 6, 11]);
    }
}
