//! An iteration: its phases, and how they are distributed over lanes.

use rankine_cuda::kernels::{Element, Outcome};
use rankine_cuda::{Lane, Moment, Pointer};
use rankine_embedding::cuda::{Result, RoutedBatch};

use super::input::Input;
use super::network::{Backward, Forward, Network};
use super::tables::Tables;
use super::together::RankGroup;
use crate::overlap::{Overlap, Overlaps};

/// The parts of an iteration, each of one lane, in the order in which they could run one after another. With several
/// ranks, look-ups need the route, so it is built before the iteration; one GPU builds it within.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    BottomForward,
    LookUp,
    Interact,
    TopForward,
    Head,
    TopBackward,
    TopWeights,
    InteractBackward,
    InteractWeights,
    Reduce,
    BottomBackward,
    BottomWeights,
    TopBiases,
    OtherBiases,
    AllReduceTop,
    AllReduceInteraction,
    AllReduceBottom,
    Verdict,
    Route,
    UpdateTables,
    UpdateDense,
}

impl Phase {
    pub(crate) const ALL: [Self; 21] = [
        Self::BottomForward,
        Self::LookUp,
        Self::Interact,
        Self::TopForward,
        Self::Head,
        Self::TopBackward,
        Self::TopWeights,
        Self::InteractBackward,
        Self::InteractWeights,
        Self::Reduce,
        Self::BottomBackward,
        Self::BottomWeights,
        Self::TopBiases,
        Self::OtherBiases,
        Self::AllReduceTop,
        Self::AllReduceInteraction,
        Self::AllReduceBottom,
        Self::Verdict,
        Self::Route,
        Self::UpdateTables,
        Self::UpdateDense,
    ];

    /// Whether the phase consists only of layers, so that no other rank takes part in it.
    pub(super) fn is_local(self) -> bool {
        let of_ranks = matches!(self, Self::LookUp | Self::Reduce | Self::Route | Self::UpdateTables);
        let sums = matches!(self, Self::AllReduceTop | Self::AllReduceInteraction | Self::AllReduceBottom);
        !of_ranks && !sums && !matches!(self, Self::Verdict | Self::UpdateDense)
    }

    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BottomForward => "bottom MLP",
            Self::LookUp => "look-ups",
            Self::Interact => "interaction",
            Self::TopForward => "top MLP",
            Self::Head => "heads and loss",
            Self::TopBackward => "top MLP backward",
            Self::TopWeights => "top MLP weight gradients",
            Self::InteractBackward => "interaction backward",
            Self::InteractWeights => "interaction weight gradients",
            Self::Reduce => "row gradients to owners",
            Self::BottomBackward => "bottom MLP backward",
            Self::BottomWeights => "bottom MLP weight gradients",
            Self::TopBiases => "top MLP bias gradients",
            Self::OtherBiases => "other bias gradients",
            Self::AllReduceTop => "all-reduce, top MLP",
            Self::AllReduceInteraction => "all-reduce, interaction",
            Self::AllReduceBottom => "all-reduce, bottom MLP",
            Self::Verdict => "verdict",
            Self::Route => "route",
            Self::UpdateTables => "update of tables",
            Self::UpdateDense => "update of dense parameters",
        }
    }
}

/// The data of an iteration.
#[derive(Clone, Copy)]
pub(super) struct Iteration<'a, T> {
    pub(super) network: &'a Network<T>,
    pub(super) tables: &'a Tables,
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
}

/// The lanes of an iteration. In parallel with the layers, the look-ups and the steps that lead to the tables' update
/// run on lanes of their own, and so do the weight gradients: only the verdict waits for them, and they use what the
/// backward pass leaves idle. With several ranks, gradients are all-reduced on one more lane.
pub(super) struct Lanes<'a> {
    main: &'a Lane,
    /// `None` if everything runs on the main lane.
    side: Option<SideLanes>,
    overlaps: Overlaps,
    started: Moment,
    looked_up: Moment,
    routed: Moment,
    /// The backward pass has finished the top MLP, the interaction and the bottom MLP.
    backward_done: [Moment; 3],
    /// The weight gradients of the top MLP and of the interaction are done.
    weights_done: [Moment; 2],
    reduced: Moment,
    summed: Moment,
    verdict_done: Moment,
    updated: Moment,
}

/// The lanes besides the main one.
struct SideLanes {
    tables: Lane,
    routes: Lane,
    weights: Lane,
    /// Used with several ranks.
    sums: Lane,
}

impl<'a> Lanes<'a> {
    /// Creates lanes for work that may overlap with the main lane, which starts and ends an iteration. If several
    /// ranks share a GPU there are no such lanes: the GPU has fewer queues than they would have lanes, and in one
    /// queue a rank's work could wait for work of another rank that waits for it.
    pub(super) fn new(main: &'a Lane, shared: bool, overlaps: Overlaps) -> Result<Self> {
        let device = main.device();
        let side = || -> Result<_> {
            Ok(SideLanes {
                tables: Lane::of_high_priority(device)?,
                routes: Lane::new(device)?,
                weights: Lane::new(device)?,
                sums: Lane::of_high_priority(device)?,
            })
        };
        let moment = || Moment::new(device);
        Ok(Self {
            main,
            side: (!shared).then(side).transpose()?,
            overlaps,
            started: moment()?,
            looked_up: moment()?,
            routed: moment()?,
            backward_done: [moment()?, moment()?, moment()?],
            weights_done: [moment()?, moment()?],
            reduced: moment()?,
            summed: moment()?,
            verdict_done: moment()?,
            updated: moment()?,
        })
    }

    /// Returns the lane of the work that may overlap: the main one if the overlap is off.
    fn of(&self, overlap: Overlap) -> &Lane {
        let Some(side) = self.side.as_ref().filter(|_| self.overlaps.has(overlap)) else {
            return self.main;
        };
        match overlap {
            Overlap::LookUps | Overlap::RowGradients => &side.tables,
            Overlap::Routes => &side.routes,
            Overlap::WeightGradients | Overlap::DenseUpdate => &side.weights,
            Overlap::GradientSums => &side.sums,
            Overlap::Input => unreachable!("batches come before the iteration"),
        }
    }

    /// Returns the lane of the bias gradients, short kernels that run in parallel with others.
    fn of_biases(&self) -> &Lane {
        let side = self.side.as_ref().filter(|_| self.overlaps.has(Overlap::WeightGradients));
        side.map_or(self.main, |side| &side.tables)
    }
}

impl<T: Element> Iteration<'_, T> {
    /// Enqueues a phase.
    ///
    /// # Safety
    /// Network, tables, input and outcomes must live and be of the same model and batch size, and the phases before
    /// must be done; see [`Lane::launch`].
    pub(super) unsafe fn enqueue(&self, phase: Phase, lane: &Lane) -> Result<()> {
        let &Self { network, tables, forward, backward, input, slot, size, outcomes, .. } = self;
        let batch = RoutedBatch { ids: input.ids, slot, size };
        let samples = tables.layout().samples();
        // SAFETY: the caller vouches for it.
        unsafe {
            match phase {
                Phase::BottomForward => network.bottom_forward(lane, input, forward),
                Phase::LookUp => network.look_up(lane, tables, batch, samples),
                Phase::Interact => network.interact(lane, forward),
                Phase::TopForward => network.hidden_forward(lane, forward),
                Phase::Head => network.head(lane, input, samples, true),
                Phase::TopBackward => network.hidden_backward(lane, backward),
                Phase::TopWeights => network.hidden_weights(lane, backward),
                Phase::InteractBackward => network.interact_backward(lane, backward),
                Phase::InteractWeights => network.interact_weights(lane, backward),
                Phase::Reduce => network.reduce(lane, tables, batch),
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
                Phase::UpdateTables => network.update_tables(lane, tables, (batch, input)),
                Phase::UpdateDense => network.update(lane, input),
            }
        }
    }

    /// Enqueues building the batch's route, and all-reducing the sums of sample weights.
    ///
    /// # Safety
    /// As for [`Iteration::enqueue`].
    pub(super) unsafe fn route(&self, lane: &Lane) -> Result<()> {
        let &Self { tables, group, input, slot, size, .. } = self;
        // SAFETY: the caller vouches for it.
        unsafe {
            if let Some(group) = group {
                group.add_weights(lane, input.own_totals, input.totals)?;
            }
            let batch = RoutedBatch { ids: input.ids, slot, size };
            tables.route(lane, batch)?;
            tables.route_rest(lane, batch)
        }
    }

    /// Enqueues all phases; with several ranks, all but the route.
    ///
    /// # Safety
    /// As for [`Iteration::enqueue`].
    pub(super) unsafe fn enqueue_all(&self, lanes: &Lanes<'_>) -> Result<()> {
        let (main, look_ups) = (lanes.main, lanes.of(Overlap::LookUps));
        let (routes, dense) = (lanes.of(Overlap::Routes), lanes.of(Overlap::DenseUpdate));
        let Lanes { started, looked_up, routed, verdict_done, updated, .. } = lanes;
        main.record(started)?;
        look_ups.wait(started)?;
        // SAFETY: the caller vouches for the data. The lanes order the work: tables and parameters change only after
        // everything that reads them is done.
        unsafe {
            self.enqueue(Phase::LookUp, look_ups)?;
            look_ups.record(looked_up)?;
            if self.group.is_none() {
                routes.wait(started)?;
                self.enqueue(Phase::Route, routes)?;
                routes.record(routed)?;
            }
            self.enqueue(Phase::BottomForward, main)?;
            main.wait(looked_up)?;
            self.enqueue(Phase::Interact, main)?;
            self.enqueue(Phase::TopForward, main)?;
            self.enqueue(Phase::Head, main)?;
            if self.group.is_none() {
                self.enqueue_backward(lanes)?;
                main.wait(routed)?;
            } else {
                self.enqueue_backward_over_ranks(lanes)?;
            }
            self.enqueue(Phase::Verdict, main)?;
            main.record(verdict_done)?;
            // The tables' update takes longest, so the dense one runs in parallel with it.
            dense.wait(verdict_done)?;
            self.enqueue(Phase::UpdateTables, main)?;
            self.enqueue(Phase::UpdateDense, dense)?;
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
    /// is computed; so weight gradients come as early as possible, on the lane of the backward pass. Row gradients are
    /// sent to their owners in parallel with all of this.
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
            network.top_sums(main, backward)?;
            main.record(top_weights_done)?;
            sums.wait(top_weights_done)?;
            self.enqueue(Phase::AllReduceTop, sums)?;
            self.enqueue(Phase::InteractBackward, main)?;
            main.record(interaction)?;
            rows.wait(interaction)?;
            self.enqueue(Phase::Reduce, rows)?;
            rows.record(reduced)?;
            self.enqueue(Phase::InteractWeights, main)?;
            network.interact_sums(main, backward)?;
            main.record(weights_done)?;
            sums.wait(weights_done)?;
            self.enqueue(Phase::AllReduceInteraction, sums)?;
            self.enqueue(Phase::BottomBackward, main)?;
            self.enqueue(Phase::BottomWeights, main)?;
            network.bottom_sums(main, backward)?;
            main.record(bottom)?;
            sums.wait(bottom)?;
            self.enqueue(Phase::AllReduceBottom, sums)?;
            sums.record(summed)?;
            main.wait(summed)?;
            main.wait(reduced)?;
        }
        Ok(())
    }
}
