//! Captures the graphs of a rank: of each slot's iteration, of passes that score, and those that time phases.

use rankine_cuda::kernels::{Element, Outcome};
use rankine_cuda::{Graph, Lane, Pointer};

use super::context::RankContext;
use super::dynamic::RankDynamic;
use super::error::Result;
use super::factors::FactorBounds;
use super::group::RankGroup;
use super::input::InputSlot;
use super::iteration::Iteration;
use super::lanes::Lanes;
use super::network::Network;
use super::phase::Phase;
use super::phase_timer::{PhaseTimer, TimedGraph, TimedGraphs};
use super::scoring::{PlannedScoring, Scoring, ScoringParts};
use super::setup::ModelSetup;
use super::slots::{BatchSlots, RouteGraphs};
use super::tables::Tables;

/// The parts of a rank that graphs are captured from, which live as long as the graphs.
#[derive(Clone, Copy)]
pub(super) struct Capture<'a, T> {
    pub(super) context: &'a RankContext,
    pub(super) setup: &'a ModelSetup,
    pub(super) network: &'a Network<T>,
    pub(super) tables: &'a Tables,
    pub(super) dynamic: &'a RankDynamic,
    pub(super) factor_bounds: Option<&'a FactorBounds>,
    pub(super) group: Option<&'a RankGroup>,
    pub(super) main: &'a Lane,
    pub(super) routes: &'a Lane,
    pub(super) outcomes: Pointer<Outcome>,
}

/// The graphs, and the slots whose batches they work on.
pub(super) struct Captured {
    /// `[slot][size class of messages]`.
    pub(super) iterations: Vec<Vec<Graph>>,
    pub(super) timed: TimedGraphs,
    pub(super) slots: BatchSlots,
    pub(super) scoring: Scoring,
}

impl<T: Element> Capture<'_, T> {
    /// Captures all graphs. With several ranks this is a collective call.
    pub(super) fn capture(self, inputs: Vec<InputSlot>, scoring: PlannedScoring) -> Result<Captured> {
        let Self { context, setup, network, tables, dynamic, factor_bounds, group, main, routes, outcomes } =
            self;
        let samples = tables.layout().samples();
        let (forward, backward) = (network.plan_forward(samples, true)?, network.plan_backward()?);
        let lanes = Lanes::new(main, context.shares_gpu()?, setup.execution.overlaps)?;
        let iteration_of = |slot: usize, size: usize| Iteration {
            network,
            tables,
            dynamic,
            factor_bounds,
            group,
            forward: &forward,
            backward: &backward,
            input: inputs[slot].input(),
            slot,
            size,
            outcomes,
            timer: None,
        };
        let parts = ScoringParts { network, tables, main, routes };
        // Once without a graph, so that libraries load what they need. Nothing is updated meanwhile.
        network.hold(main, true)?;
        let first = iteration_of(0, 0);
        // SAFETY: all of it lives as long as the rank, and is of the same model and batch size.
        unsafe {
            if group.is_some() {
                // cuBLASLt loads a kernel when it is first launched. The driver then holds the context's lock until
                // the GPU is idle, which never happens while a rank on the GPU waits for another rank of the same GPU,
                // whose launches wait for that lock. So every rank first runs the layers, of batches of all sizes,
                // without the barriers between ranks.
                for phase in Phase::ALL.into_iter().filter(|phase| phase.is_local()) {
                    first.enqueue(phase, main)?;
                }
                scoring.run_layers(parts)?;
                main.synchronize()?;
                context.barrier()?;
            }
            if tables.are_routed() {
                first.route(main)?;
            }
            first.enqueue_all(&lanes)?;
        }
        scoring.run(parts)?;
        network.hold(main, false)?;
        context.barrier()?;
        // SAFETY: as above.
        let timed = |size| unsafe { capture_timed(iteration_of(0, size), &lanes) };
        let timed = TimedGraphs::new((0..tables.sizes(None)).map(timed).collect::<Result<_, _>>()?);
        let (mut iterations, mut of_slots) = (Vec::new(), Vec::new());
        for slot in 0..inputs.len() {
            // SAFETY: as above.
            let route = || unsafe { iteration_of(slot, 0).route(routes) };
            let first = tables.are_routed().then(|| Graph::capture(routes, route)).transpose()?;
            let (mut of_sizes, mut rests) = (Vec::new(), Vec::new());
            for size in 0..tables.sizes(None) {
                let iteration = iteration_of(slot, size);
                // SAFETY: as above.
                let rest = || unsafe { tables.route_rest(routes, None, iteration.batch()) };
                // SAFETY: as above.
                let all = || unsafe { iteration.enqueue_all(&lanes) };
                rests.push((size > 0).then(|| Graph::capture(routes, rest)).transpose()?);
                of_sizes.push(Graph::capture(main, all)?);
            }
            iterations.push(of_sizes);
            of_slots.push(RouteGraphs { first, rests });
        }
        let scoring = scoring.capture(parts)?;
        let slots = BatchSlots::new(main.device(), inputs, of_slots)?;
        main.synchronize()?;
        routes.synchronize()?;
        context.barrier()?;
        Ok(Captured { iterations, timed, slots, scoring })
    }
}

/// Captures the graph of an iteration that records when its phases run.
///
/// # Safety
/// As for [`Iteration::enqueue`], for as long as the graph is replayed.
unsafe fn capture_timed<T: Element>(iteration: Iteration<'_, T>, lanes: &Lanes<'_>) -> Result<TimedGraph> {
    let timer = PhaseTimer::default();
    let timed = Iteration { timer: Some(&timer), ..iteration };
    // SAFETY: the caller vouches for it.
    let graph = Graph::capture(lanes.main, || unsafe { timed.enqueue_all(lanes) })?;
    Ok(TimedGraph::new(graph, timer))
}
