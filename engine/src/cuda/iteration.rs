//! An iteration: its phases, and how lanes share them.

use rankine_cuda::kernels::{Element, Outcome};
use rankine_cuda::{Lane, Moment, Pointer};
use rankine_embedding::cuda::Result;

use super::input::Input;
use super::network::{Backward, Forward, Network};
use super::tables::{Routed, Tables};
use super::together::Together;
use crate::overlap::{Overlap, Overlaps};

/// Parts of an iteration that each are of one lane, in the order in which they could run alone. Over ranks, look-ups
/// need the route; it is made before the iteration, which one GPU has within.
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
    TopSums,
    Sums,
    SumTop,
    SumInteraction,
    SumBottom,
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
        Self::TopSums,
        Self::Sums,
        Self::SumTop,
        Self::SumInteraction,
        Self::SumBottom,
        Self::Verdict,
        Self::Route,
        Self::UpdateTables,
        Self::UpdateDense,
    ];

    /// Whether it is of the layers alone, which no other rank has a part in.
    pub(super) fn is_of_layers(self) -> bool {
        let of_ranks = matches!(self, Self::LookUp | Self::Reduce | Self::Route | Self::UpdateTables);
        let sums = matches!(self, Self::SumTop | Self::SumInteraction | Self::SumBottom);
        !of_ranks && !sums && !matches!(self, Self::Verdict | Self::UpdateDense)
    }

    /// As reports call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BottomForward => "bottom MLP",
            Self::LookUp => "look-ups",
            Self::Interact => "interaction",
            Self::TopForward => "top MLP",
            Self::Head => "heads and loss",
            Self::TopBackward => "top MLP back",
            Self::TopWeights => "top MLP by weights",
            Self::InteractBackward => "interaction back",
            Self::InteractWeights => "interaction by weights",
            Self::Reduce => "gradients of rows to owners",
            Self::BottomBackward => "bottom MLP back",
            Self::BottomWeights => "bottom MLP by weights",
            Self::TopSums => "top MLP by biases",
            Self::Sums => "other layers by biases",
            Self::SumTop => "sum over ranks, top MLP",
            Self::SumInteraction => "sum over ranks, interaction",
            Self::SumBottom => "sum over ranks, bottom MLP",
            Self::Verdict => "verdict",
            Self::Route => "route",
            Self::UpdateTables => "update of tables",
            Self::UpdateDense => "update of dense parameters",
        }
    }
}

/// What an iteration works on.
#[derive(Clone, Copy)]
pub(super) struct Iteration<'a, T> {
    pub(super) network: &'a Network<T>,
    pub(super) tables: &'a Tables,
    /// Where there are other ranks.
    pub(super) together: Option<&'a Together>,
    pub(super) forward: &'a Forward,
    pub(super) backward: &'a Backward,
    pub(super) input: Input,
    /// The number of the slot that the input is of.
    pub(super) place: usize,
    /// The size of messages between nodes; 0 with one node.
    pub(super) size: usize,
    /// Where what the step came to goes to its place.
    pub(super) outcomes: Pointer<Outcome>,
}

/// What an iteration is enqueued on. Beside the layers, the look-ups and the way to the tables' update have lanes of
/// their own, and so have the gradients by weights: only the verdict waits for those, and they fill what the way back
/// leaves free. Over ranks, gradients are added up on one more.
pub(super) struct Lanes<'a> {
    main: &'a Lane,
    /// None where all is done on the one lane.
    aside: Option<Aside>,
    overlaps: Overlaps,
    begun: Moment,
    looked_up: Moment,
    routed: Moment,
    /// Of the way back: through the top MLP, the interaction and the bottom MLP.
    back: [Moment; 3],
    /// Of the gradients by weights: of the top MLP and of the interaction.
    weighed: [Moment; 2],
    reduced: Moment,
    summed: Moment,
    judged: Moment,
    updated: Moment,
}

/// Lanes beside the main one.
struct Aside {
    tables: Lane,
    routes: Lane,
    weights: Lane,
    /// Over ranks.
    sums: Lane,
}

impl<'a> Lanes<'a> {
    /// Lanes beside the one that begins and ends an iteration, for what may overlap with it; or none, where several
    /// ranks share a GPU: it has not as many queues as they would have lanes, and in one queue a rank's work could wait
    /// behind another's that waits for it.
    pub(super) fn new(main: &'a Lane, shared: bool, overlaps: Overlaps) -> Result<Self> {
        let device = main.device();
        let aside = || -> Result<_> {
            Ok(Aside {
                tables: Lane::of_high_priority(device)?,
                routes: Lane::new(device)?,
                weights: Lane::new(device)?,
                sums: Lane::of_high_priority(device)?,
            })
        };
        let moment = || Moment::new(device);
        Ok(Self {
            main,
            aside: (!shared).then(aside).transpose()?,
            overlaps,
            begun: moment()?,
            looked_up: moment()?,
            routed: moment()?,
            back: [moment()?, moment()?, moment()?],
            weighed: [moment()?, moment()?],
            reduced: moment()?,
            summed: moment()?,
            judged: moment()?,
            updated: moment()?,
        })
    }

    /// The lane of what an overlap is about: the main one where it is left out.
    fn of(&self, overlap: Overlap) -> &Lane {
        let Some(aside) = self.aside.as_ref().filter(|_| self.overlaps.has(overlap)) else {
            return self.main;
        };
        match overlap {
            Overlap::LookUps | Overlap::RowGradients => &aside.tables,
            Overlap::Routes => &aside.routes,
            Overlap::WeightGradients | Overlap::DenseUpdate => &aside.weights,
            Overlap::GradientSums => &aside.sums,
            Overlap::Input => unreachable!("batches come before the iteration"),
        }
    }

    /// The lane of the gradients by biases, short kernels that go on beside others.
    fn of_biases(&self) -> &Lane {
        let aside = self.aside.as_ref().filter(|_| self.overlaps.has(Overlap::WeightGradients));
        aside.map_or(self.main, |aside| &aside.tables)
    }
}

impl<T: Element> Iteration<'_, T> {
    /// Enqueues a phase.
    ///
    /// # Safety
    /// Network, tables, input and outcomes must live and be of the same model and batch size, and what comes before the
    /// phase must be done before; see [`Lane::launch`].
    pub(super) unsafe fn enqueue(&self, phase: Phase, lane: &Lane) -> Result<()> {
        let &Self { network, tables, forward, backward, input, place, size, outcomes, .. } = self;
        let batch = Routed { ids: input.ids, place, size };
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
                Phase::TopSums => network.top_sums(lane, backward),
                Phase::Sums => {
                    network.interact_sums(lane, backward)?;
                    network.bottom_sums(lane, backward)
                }
                Phase::SumTop => network.sum_top(lane),
                Phase::SumInteraction => network.sum_interaction(lane),
                Phase::SumBottom => network.sum_bottom(lane),
                Phase::Verdict => network.verdict(lane, input, outcomes),
                Phase::Route => self.route(lane),
                Phase::UpdateTables => network.update_tables(lane, tables, (batch, input)),
                Phase::UpdateDense => network.update(lane, input),
            }
        }
    }

    /// Enqueues making the batch's route, and what else is to be known of all ranks' samples beforehand.
    ///
    /// # Safety
    /// As for [`Iteration::enqueue`].
    pub(super) unsafe fn route(&self, lane: &Lane) -> Result<()> {
        let &Self { tables, together, input, place, size, .. } = self;
        // SAFETY: the caller vouches for it.
        unsafe {
            if let Some(together) = together {
                together.add_weights(lane, input.own_totals, input.totals)?;
            }
            let batch = Routed { ids: input.ids, place, size };
            tables.route(lane, batch)?;
            tables.route_rest(lane, batch)
        }
    }

    /// Enqueues all of them, over ranks all but the route.
    ///
    /// # Safety
    /// As for [`Iteration::enqueue`].
    pub(super) unsafe fn enqueue_all(&self, lanes: &Lanes<'_>) -> Result<()> {
        let (main, look_ups) = (lanes.main, lanes.of(Overlap::LookUps));
        let (routes, dense) = (lanes.of(Overlap::Routes), lanes.of(Overlap::DenseUpdate));
        let Lanes { begun, looked_up, routed, judged, updated, .. } = lanes;
        main.record(begun)?;
        look_ups.wait(begun)?;
        // SAFETY: the caller vouches for what is worked on. The lanes order the work: tables and parameters change when
        // all that reads them is done.
        unsafe {
            self.enqueue(Phase::LookUp, look_ups)?;
            look_ups.record(looked_up)?;
            if self.together.is_none() {
                routes.wait(begun)?;
                self.enqueue(Phase::Route, routes)?;
                routes.record(routed)?;
            }
            self.enqueue(Phase::BottomForward, main)?;
            main.wait(looked_up)?;
            self.enqueue(Phase::Interact, main)?;
            self.enqueue(Phase::TopForward, main)?;
            self.enqueue(Phase::Head, main)?;
            if self.together.is_none() {
                self.enqueue_back(lanes)?;
                main.wait(routed)?;
            } else {
                self.enqueue_back_together(lanes)?;
            }
            self.enqueue(Phase::Verdict, main)?;
            main.record(judged)?;
            // The tables' update is what takes longest: the dense one is where it is in nobody's way.
            dense.wait(judged)?;
            self.enqueue(Phase::UpdateTables, main)?;
            self.enqueue(Phase::UpdateDense, dense)?;
            dense.record(updated)?;
            main.wait(updated)?;
        }
        Ok(())
    }

    /// Enqueues the way back where there is one rank.
    ///
    /// # Safety
    /// As for [`Iteration::enqueue`].
    unsafe fn enqueue_back(&self, lanes: &Lanes<'_>) -> Result<()> {
        let (main, weights) = (lanes.main, lanes.of(Overlap::WeightGradients));
        let biases = lanes.of_biases();
        let Lanes { back, weighed: [_, weighed], summed, .. } = lanes;
        let [through_top, through_interaction, through_bottom] = back;
        // SAFETY: as for `enqueue_all`.
        unsafe {
            self.enqueue(Phase::TopBackward, main)?;
            main.record(through_top)?;
            weights.wait(through_top)?;
            self.enqueue(Phase::TopWeights, weights)?;
            biases.wait(through_top)?;
            self.enqueue(Phase::TopSums, biases)?;
            self.enqueue(Phase::InteractBackward, main)?;
            main.record(through_interaction)?;
            weights.wait(through_interaction)?;
            self.enqueue(Phase::InteractWeights, weights)?;
            weights.record(weighed)?;
            self.enqueue(Phase::BottomBackward, main)?;
            main.record(through_bottom)?;
            biases.wait(through_bottom)?;
            self.enqueue(Phase::Sums, biases)?;
            biases.record(summed)?;
            // They move more than they multiply: the products of the other layers' go on beside them.
            self.enqueue(Phase::BottomWeights, main)?;
            main.wait(weighed)?;
            main.wait(summed)?;
        }
        Ok(())
    }

    /// Enqueues the way back over ranks. What is complete of the dense gradients is added up while the rest is
    /// computed: so gradients by weights come as early as they can, on the lane of the way back. The gradients of rows
    /// go to their owners beside all of this.
    ///
    /// # Safety
    /// As for [`Iteration::enqueue`].
    unsafe fn enqueue_back_together(&self, lanes: &Lanes<'_>) -> Result<()> {
        let (main, sums) = (lanes.main, lanes.of(Overlap::GradientSums));
        let rows = lanes.of(Overlap::RowGradients);
        let Lanes {
            back: [_, interaction, bottom], weighed: [top_weighed, weighed], reduced, summed, ..
        } = lanes;
        let (network, backward) = (self.network, self.backward);
        // SAFETY: as for `enqueue_all`.
        unsafe {
            self.enqueue(Phase::TopBackward, main)?;
            self.enqueue(Phase::TopWeights, main)?;
            network.top_sums(main, backward)?;
            main.record(top_weighed)?;
            sums.wait(top_weighed)?;
            self.enqueue(Phase::SumTop, sums)?;
            self.enqueue(Phase::InteractBackward, main)?;
            main.record(interaction)?;
            rows.wait(interaction)?;
            self.enqueue(Phase::Reduce, rows)?;
            rows.record(reduced)?;
            self.enqueue(Phase::InteractWeights, main)?;
            network.interact_sums(main, backward)?;
            main.record(weighed)?;
            sums.wait(weighed)?;
            self.enqueue(Phase::SumInteraction, sums)?;
            self.enqueue(Phase::BottomBackward, main)?;
            self.enqueue(Phase::BottomWeights, main)?;
            network.bottom_sums(main, backward)?;
            main.record(bottom)?;
            sums.wait(bottom)?;
            self.enqueue(Phase::SumBottom, sums)?;
            sums.record(summed)?;
            main.wait(summed)?;
            main.wait(reduced)?;
        }
        Ok(())
    }
}
