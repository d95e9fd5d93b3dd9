//! An iteration: its phases, who does each of them, and how they are distributed over lanes.

use rankine_cuda::kernels::{Element, Outcome, TableRows};
use rankine_cuda::{Lane, Pointer};
use rankine_embedding::cuda::{Result, RoutedBatch, UpdateInputs};
use rankine_model::overlap::Overlap;

use super::dynamic::RankDynamic;
use super::factors::FactorBounds;
use super::group::RankGroup;
use super::input::Input;
use super::lanes::Lanes;
use super::network::{Backward, Forward, Network};
use super::phase::Phase;
use super::phase_timer::PhaseTimer;
use super::tables::Tables;

/// The data of an iteration.
#[derive(Clone, Copy)]
pub(super) struct Iteration<'a, T> {
    pub(super) network: &'a Network<T>,
    pub(super) tables: &'a Tables,
    pub(super) dynamic: &'a RankDynamic,
    /// If gradients are multiplied by factors above 1.
    pub(super) factor_bounds: Option<&'a FactorBounds>,
    /// The other ranks, if there are any.
    pub(super) group: Option<&'a RankGroup>,
    pub(super) forward: &'a Forward,
    pub(super) backward: &'a Backward,
    pub(super) input: Input,
    /// The number of the input's slot.
    pub(super) slot: usize,
    /// The size of messages between nodes; 0 with one node.
    pub(super) size: usize,
    /// Where the step's outcome is written, at its position.
    pub(super) outcomes: Pointer<Outcome>,
    /// Set while a graph is captured that records when its phases run.
    pub(super) timer: Option<&'a PhaseTimer>,
}

impl<T: Element> Iteration<'_, T> {
    /// Enqueues a phase.
    ///
    /// # Safety
    /// Network, tables, input and outcomes must live and be of the same model and batch size, and the phases before
    /// must be done; see [`Lane::launch`].
    pub(super) unsafe fn enqueue(&self, phase: Phase, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for it.
        let enqueue = || unsafe { self.enqueue_work(phase, lane) };
        match self.timer {
            Some(timer) => timer.time(phase, lane, enqueue),
            None => enqueue(),
        }
    }

    /// Enqueues the work of a phase.
    ///
    /// # Safety
    /// As for [`Iteration::enqueue`].
    unsafe fn enqueue_work(&self, phase: Phase, lane: &Lane) -> Result<()> {
        let &Self { network, tables, forward, backward, input, outcomes, .. } = self;
        let (batch, samples) = (self.batch(), tables.layout().samples());
        // SAFETY: the caller vouches for it.
        unsafe {
            match phase {
                Phase::BottomForward => network.bottom_forward(lane, input, forward),
                Phase::LookUp if self.rows().is_some() => Ok(()),
                Phase::LookUp => tables.look_up(lane, None, batch, samples, network.vectors(forward)),
                Phase::Attend => network.attend(lane, input, forward),
                Phase::Interact => network.interact(lane, forward, self.rows()),
                Phase::TopForward => network.hidden_forward(lane, forward),
                Phase::Head => network.head(lane, input, samples, true),
                Phase::TopBackward => network.hidden_backward(lane, backward),
                Phase::TopWeights => network.hidden_weights(lane, backward),
                Phase::InteractBackward => {
                    network.interact_backward(lane, backward)?;
                    let gradients = network.vector_gradients();
                    self.factor_bounds.map_or(Ok(()), |bounds| {
                        bounds.check(lane, input.ids, gradients, network.guard_pointer())
                    })
                }
                Phase::AttendBackward => network.attend_backward(lane, input),
                Phase::InteractWeights => network.interact_weights(lane, backward),
                Phase::Reduce => tables.reduce(lane, batch, network.vector_gradients()),
                Phase::BottomBackward => network.bottom_backward(lane, backward),
                Phase::BottomWeights => network.bottom_weights(lane, backward),
                Phase::TopBiases => network.top_sums(lane, backward),
                Phase::OtherBiases => {
                    network.interact_sums(lane, backward)?;
                    network.bottom_sums(lane, backward)
                }
                Phase::AllReduceTop => network.sum_top(lane),
                Phase::AllReduceInteraction => network.sum_interaction(lane),
                Phase::AllReduceBottom => network.sum_bottom(lane),
                Phase::Verdict => network.verdict(lane, input, outcomes),
                Phase::Route => self.route(lane),
                Phase::UpdateTables => {
                    let (scale, stop) = network.table_scale_and_stop();
                    let inputs = UpdateInputs { rates: input.rates, step: input.step, scale, stop };
                    tables.update(lane, batch, network.vector_gradients(), inputs)
                }
                Phase::UpdateDense => network.update(lane, input),
            }
        }
    }

    /// The rows that the interaction looks up itself, instead of the look-ups before it.
    fn rows(&self) -> Option<TableRows> {
        self.tables.rows_for(self.network, self.input.ids)
    }

    pub(super) fn batch(&self) -> RoutedBatch {
        RoutedBatch { ids: self.input.ids, slot: self.slot, size: self.size }
    }

    /// Enqueues building the batch's route, and all-reducing the sums of sample weights.
    ///
    /// # Safety
    /// As for [`Iteration::enqueue`].
    pub(super) unsafe fn route(&self, lane: &Lane) -> Result<()> {
        let &Self { tables, group, input, .. } = self;
        // SAFETY: the caller vouches for it.
        unsafe {
            if let Some(group) = group {
                group.add_weights(lane, input.own_totals, input.totals)?;
            }
            let batch = self.batch();
            tables.route(lane, None, batch)?;
            tables.route_rest(lane, None, batch)
        }
    }

    /// Enqueues all phases, but not the route if look-ups need it.
    ///
    /// # Safety
    /// As for [`Iteration::enqueue`].
    pub(super) unsafe fn enqueue_all(&self, lanes: &Lanes<'_>) -> Result<()> {
        let (main, look_ups) = (lanes.main, lanes.of(Overlap::LookUps));
        let (routes, dense) = (lanes.of(Overlap::Routes), lanes.of(Overlap::DenseUpdate));
        let Lanes { started, looked_up, routed, reduced, verdict_done, updated, .. } = lanes;
        // SAFETY: the caller vouches for the data. The rows were updated last by the step before.
        unsafe { self.dynamic.begin_rows(main, self.tables, self.slot) }?;
        main.record(started)?;
        look_ups.wait(started)?;
        // SAFETY: the caller vouches for the data. The lanes order the work: tables and parameters change only after
        // everything that reads them is done.
        unsafe {
            self.enqueue(Phase::LookUp, look_ups)?;
            look_ups.record(looked_up)?;
            if !self.tables.are_routed() {
                routes.wait(started)?;
                self.enqueue(Phase::Route, routes)?;
                routes.record(routed)?;
            }
            self.enqueue(Phase::BottomForward, main)?;
            main.wait(looked_up)?;
            self.enqueue(Phase::Attend, main)?;
            self.enqueue(Phase::Interact, main)?;
            self.enqueue(Phase::TopForward, main)?;
            self.enqueue(Phase::Head, main)?;
            if self.group.is_none() {
                self.enqueue_backward(lanes)?;
                if !self.tables.are_routed() {
                    main.wait(routed)?;
                }
            } else {
                self.enqueue_backward_over_ranks(lanes)?;
            }
            self.enqueue(Phase::Verdict, main)?;
            main.record(verdict_done)?;
            // The tables' update takes longest, so the dense one runs in parallel with it, and with the gradients of
            // rows that are still on their way to the owners.
            dense.wait(verdict_done)?;
            if self.group.is_some() {
                main.wait(reduced)?;
            }
            self.enqueue(Phase::UpdateTables, main)?;
            self.enqueue(Phase::UpdateDense, dense)?;
            if self.group.is_some() {
                // Here nothing waits for it: at the start of the step it would delay the first products.
                self.tables.count_traffic(dense, self.batch())?;
            }
            dense.record(updated)?;
            main.wait(updated)?;
        }
        Ok(())
    }

    /// Enqueues the backward pass with one rank.
    ///
    /// # Safety
    /// As for [`Iteration::enqueue`].
    unsafe fn enqueue_backward(&self, lanes: &Lanes<'_>) -> Result<()> {
        let (main, weights) = (lanes.main, lanes.of(Overlap::WeightGradients));
        let biases = lanes.of_biases();
        let Lanes { backward_done, weights_done: [_, weights_done], summed, .. } = lanes;
        let [through_top, through_interaction, through_bottom] = backward_done;
        // SAFETY: as for `enqueue_all`.
        unsafe {
            self.enqueue(Phase::TopBackward, main)?;
            main.record(through_top)?;
            weights.wait(through_top)?;
            self.enqueue(Phase::TopWeights, weights)?;
            biases.wait(through_top)?;
            self.enqueue(Phase::TopBiases, biases)?;
            self.enqueue(Phase::InteractBackward, main)?;
            self.enqueue(Phase::AttendBackward, main)?;
            main.record(through_interaction)?;
            weights.wait(through_interaction)?;
            self.enqueue(Phase::InteractWeights, weights)?;
            weights.record(weights_done)?;
            self.enqueue(Phase::BottomBackward, main)?;
            main.record(through_bottom)?;
            biases.wait(through_bottom)?;
            self.enqueue(Phase::OtherBiases, biases)?;
            biases.record(summed)?;
            // They move more than they multiply, so the other layers' products run in parallel with them.
            self.enqueue(Phase::BottomWeights, main)?;
            main.wait(weights_done)?;
            main.wait(summed)?;
        }
        Ok(())
    }

    /// Enqueues the backward pass with several ranks. Dense gradients that are complete are all-reduced while the rest
    /// is computed; so weight gradients come as early as possible, on the lane of the backward pass. Bias gradients are
    /// summed on the lane that all-reduces them. Row gradients are sent to their owners in parallel with all of this;
    /// only the tables' update waits for them.
    ///
    /// # Safety
    /// As for [`Iteration::enqueue`].
    unsafe fn enqueue_backward_over_ranks(&self, lanes: &Lanes<'_>) -> Result<()> {
        let (main, sums) = (lanes.main, lanes.of(Overlap::GradientSums));
        let rows = lanes.of(Overlap::RowGradients);
        let Lanes {
            backward_done: [_, interaction, bottom],
            weights_done: [top_weights_done, weights_done],
            reduced,
            summed,
            ..
        } = lanes;
        let (network, backward) = (self.network, self.backward);
        // SAFETY: as for `enqueue_all`.
        unsafe {
            self.enqueue(Phase::TopBackward, main)?;
            self.enqueue(Phase::TopWeights, main)?;
            main.record(top_weights_done)?;
            sums.wait(top_weights_done)?;
            self.enqueue(Phase::TopBiases, sums)?;
            self.enqueue(Phase::AllReduceTop, sums)?;
            self.enqueue(Phase::InteractBackward, main)?;
            self.enqueue(Phase::AttendBackward, main)?;
            main.record(interaction)?;
            rows.wait(interaction)?;
            self.enqueue(Phase::Reduce, rows)?;
            rows.record(reduced)?;
            self.enqueue(Phase::InteractWeights, main)?;
            main.record(weights_done)?;
            sums.wait(weights_done)?;
            network.interact_sums(sums, backward)?;
            self.enqueue(Phase::AllReduceInteraction, sums)?;
            self.enqueue(Phase::BottomBackward, main)?;
            self.enqueue(Phase::BottomWeights, main)?;
            main.record(bottom)?;
            sums.wait(bottom)?;
            network.bottom_sums(sums, backward)?;
            self.enqueue(Phase::AllReduceBottom, sums)?;
            sums.record(summed)?;
            main.wait(summed)?;
        }
        Ok(())
    }
}
