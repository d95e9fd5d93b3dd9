//! An iteration: its phases, and how lanes share them.

use rankine_cuda::kernels::Element;
use rankine_cuda::{Lane, Moment, Pointer};
use rankine_embedding::cuda::{LocalTables, Result};

use super::input::Input;
use super::network::{Backward, Forward, Network};

/// Parts of an iteration that each are of one lane, in the order in which they could run alone.
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
    BottomBackward,
    BottomWeights,
    TopSums,
    Sums,
    Verdict,
    Route,
    UpdateTables,
    UpdateDense,
}

impl Phase {
    pub(crate) const ALL: [Self; 17] = [
        Self::BottomForward,
        Self::LookUp,
        Self::Interact,
        Self::TopForward,
        Self::Head,
        Self::TopBackward,
        Self::TopWeights,
        Self::InteractBackward,
        Self::InteractWeights,
        Self::BottomBackward,
        Self::BottomWeights,
        Self::TopSums,
        Self::Sums,
        Self::Verdict,
        Self::Route,
        Self::UpdateTables,
        Self::UpdateDense,
    ];

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
            Self::BottomBackward => "bottom MLP back",
            Self::BottomWeights => "bottom MLP by weights",
            Self::TopSums => "top MLP by biases",
            Self::Sums => "other layers by biases",
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
    pub(super) tables: &'a LocalTables,
    pub(super) forward: &'a Forward,
    pub(super) backward: &'a Backward,
    pub(super) input: Input,
    /// Where the step's loss goes to its place.
    pub(super) losses: Pointer<f64>,
}

/// What an iteration is enqueued on. Beside the layers, the look-ups and the way to the tables' update have lanes of
/// their own, and so have the gradients by weights: only the verdict waits for those, and they fill what the way back
/// leaves free.
pub(super) struct Lanes<'a> {
    main: &'a Lane,
    beside: Lane,
    routes: Lane,
    weights: Lane,
    begun: Moment,
    looked_up: Moment,
    routed: Moment,
    /// Of the way back: through the top MLP, the interaction and the bottom MLP.
    back: [Moment; 3],
    weighed: Moment,
    summed: Moment,
    judged: Moment,
    updated: Moment,
}

impl<'a> Lanes<'a> {
    /// Lanes beside the one that begins and ends an iteration.
    pub(super) fn new(main: &'a Lane) -> Result<Self> {
        let device = main.device();
        Ok(Self {
            main,
            beside: Lane::of_high_priority(device)?,
            routes: Lane::new(device)?,
            weights: Lane::new(device)?,
            begun: Moment::new(device)?,
            looked_up: Moment::new(device)?,
            routed: Moment::new(device)?,
            back: [Moment::new(device)?, Moment::new(device)?, Moment::new(device)?],
            weighed: Moment::new(device)?,
            summed: Moment::new(device)?,
            judged: Moment::new(device)?,
            updated: Moment::new(device)?,
        })
    }
}

impl<T: Element> Iteration<'_, T> {
    /// Enqueues a phase.
    ///
    /// # Safety
    /// Network, tables, input and losses must live and be of the same model and batch size, and what comes before the
    /// phase must be done before; see [`Lane::launch`].
    pub(super) unsafe fn enqueue(&self, phase: Phase, lane: &Lane) -> Result<()> {
        let &Self { network, tables, forward, backward, input, losses } = self;
        let samples = tables.layout().samples();
        // SAFETY: the caller vouches for it.
        unsafe {
            match phase {
                Phase::BottomForward => network.bottom_forward(lane, input, forward),
                Phase::LookUp => network.look_up(lane, tables, input, samples),
                Phase::Interact => network.interact(lane, forward),
                Phase::TopForward => network.hidden_forward(lane, forward),
                Phase::Head => network.head(lane, input, samples, true),
                Phase::TopBackward => network.hidden_backward(lane, backward),
                Phase::TopWeights => network.hidden_weights(lane, backward),
                Phase::InteractBackward => network.interact_backward(lane, backward),
                Phase::InteractWeights => network.interact_weights(lane, backward),
                Phase::BottomBackward => network.bottom_backward(lane, backward),
                Phase::BottomWeights => network.bottom_weights(lane, backward),
                Phase::TopSums => network.top_sums(lane, backward),
                Phase::Sums => network.sums(lane, backward),
                Phase::Verdict => network.verdict(lane, input, losses),
                Phase::Route => tables.route(lane, input.ids),
                Phase::UpdateTables => network.update_tables(lane, tables, input),
                Phase::UpdateDense => network.update(lane, input),
            }
        }
    }

    /// Enqueues all of them.
    ///
    /// # Safety
    /// As for [`Iteration::enqueue`].
    pub(super) unsafe fn enqueue_all(&self, lanes: &Lanes<'_>) -> Result<()> {
        let Lanes { main, beside, routes, weights, .. } = lanes;
        let Lanes { begun, looked_up, routed, back, weighed, summed, judged, updated, .. } = lanes;
        let [through_top, through_interaction, through_bottom] = back;
        main.record(begun)?;
        beside.wait(begun)?;
        routes.wait(begun)?;
        // SAFETY: the caller vouches for what is worked on. The lanes order the work: tables and parameters change when
        // all that reads them is done.
        unsafe {
            self.enqueue(Phase::LookUp, beside)?;
            beside.record(looked_up)?;
            self.enqueue(Phase::Route, routes)?;
            routes.record(routed)?;
            self.enqueue(Phase::BottomForward, main)?;
            main.wait(looked_up)?;
            self.enqueue(Phase::Interact, main)?;
            self.enqueue(Phase::TopForward, main)?;
            self.enqueue(Phase::Head, main)?;
            self.enqueue(Phase::TopBackward, main)?;
            main.record(through_top)?;
            weights.wait(through_top)?;
            self.enqueue(Phase::TopWeights, weights)?;
            // Sums are short kernels, which go on beside others.
            beside.wait(through_top)?;
            self.enqueue(Phase::TopSums, beside)?;
            self.enqueue(Phase::InteractBackward, main)?;
            main.record(through_interaction)?;
            weights.wait(through_interaction)?;
            self.enqueue(Phase::InteractWeights, weights)?;
            weights.record(weighed)?;
            self.enqueue(Phase::BottomBackward, main)?;
            main.record(through_bottom)?;
            beside.wait(through_bottom)?;
            self.enqueue(Phase::Sums, beside)?;
            beside.record(summed)?;
            // They move more than they multiply: the products of the other layers' go on beside them.
            self.enqueue(Phase::BottomWeights, main)?;
            main.wait(weighed)?;
            main.wait(summed)?;
            // The tables' update is what takes longest: the dense one is where it is in nobody's way.
            main.wait(routed)?;
            self.enqueue(Phase::Verdict, main)?;
            main.record(judged)?;
            weights.wait(judged)?;
            self.enqueue(Phase::UpdateTables, main)?;
            self.enqueue(Phase::UpdateDense, weights)?;
            weights.record(updated)?;
            main.wait(updated)?;
            self.network.end(main)?;
        }
        Ok(())
    }
}
