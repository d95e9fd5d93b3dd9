//! A rank with the memory of its GPU, and the work that it enqueues there.

use std::collections::VecDeque;
use std::sync::Arc;

use rankine_checkpoint::{DenseState, DeviceState};
use rankine_cuda::blas::Tuning;
use rankine_cuda::kernels::{Element, Outcome, Rate, Step};
use rankine_cuda::{Budget, Graph, Lane, Moment, PinnedBuffer};
use rankine_embedding::Membership;
use rankine_embedding::cuda::LookUpCounts;
use rankine_embedding::membership::DynamicTableState;
use rankine_embedding::rows::RowsMut;
use rankine_embedding::{RankTraffic, TierTraffic};
use rankine_model::evaluation::JudgedHead;
use rankine_model::guard::{FoundOn, NonFinite, SkipReason, StepOutcome};
use rankine_model::overlap::Overlap;
use rankine_topology::{Rank, Topology};
use xxhash_rust::xxh3::Xxh3Default;

use super::batch::Batch;
use super::capture::{Capture, Captured};
use super::context::RankContext;
use super::dynamic::RankDynamic;
use super::error::{Error, Result};
use super::evaluation::{CudaEvaluation, EvaluationSizes, ScoredBatch, ScoresToRank};
use super::factors::FactorBounds;
use super::feed::FeedPart;
use super::group::RankGroup;
use super::input::{Input, InputLanes, InputLayout, StepParameters};
use super::iteration::Iteration;
use super::network::{Network, VectorLayout};
use super::phase::Phase;
use super::phase_timer::{Roofline, TimedGraphs, TimedPhase};
use super::phase_work::{IterationSizes, PhaseTimes, PhaseWork, ceilings, fp8_ceiling, time};
use super::rank::RankModel;
use super::scoring::{PlannedScoring, Scoring};
use super::setup::ModelSetup;
use super::slots::{BatchSlot, BatchSlots, unpacker_of};
use super::tables::{ScoredTables, Tables};

/// A rank with everything that its steps need.
#[derive(Debug)]
pub(super) struct GpuRank<T> {
    /// Dropped first: graphs reference NCCL's communicators. One per slot and size class of messages between nodes.
    iterations: Vec<Vec<Graph>>,
    /// Likewise.
    timed: TimedGraphs,
    /// The slots of the batches that are learned from.
    slots: BatchSlots,
    scoring: Scoring,
    network: Network<T>,
    tables: Tables,
    dynamic: RankDynamic,
    /// If gradients are multiplied by factors above 1.
    factor_bounds: Option<FactorBounds>,
    /// With several ranks.
    group: Option<RankGroup>,
    main: Lane,
    copies: Lane,
    /// The lane on which routes are built during the iteration before, if look-ups need them. Otherwise the route is
    /// part of the iteration.
    routes: Lane,
    /// One per slot.
    outcomes: PinnedBuffer<Outcome>,
    /// One per slot: not 0 if the slot's batch has values that its schema does not admit.
    faults: PinnedBuffer<u32>,
    /// Created by the first evaluation.
    evaluation: Option<Arc<CudaEvaluation>>,
    setup: Arc<ModelSetup>,
    context: RankContext,
    /// The slot of the next step.
    slot: usize,
    /// If rows are in host memory: what was sent last, and has not begun.
    sent: Option<Sent>,
    /// The steps that were started and are not known to be done.
    in_flight: VecDeque<StepInFlight>,
    finished: Vec<StepOutcome>,
    /// Training steps that were started.
    steps: u64,
}

/// A step that is not known to be done.
#[derive(Debug)]
struct StepInFlight {
    /// Its slot.
    slot: usize,
    /// Whether it is a training step, which has a loss.
    trains: bool,
    /// Its batches, if the GPU unpacks them: the GPU may not have read all of their blocks yet.
    fed: Vec<Arc<FeedPart>>,
}

/// A batch in a slot, and what is to be done with it.
#[derive(Debug, Clone, Copy)]
enum Sent {
    /// Train on it.
    Step { slot: usize, size: usize },
    /// Score its samples, and add the scores to the evaluation if `evaluate` is set.
    Pass { slot: usize, size: usize, samples: usize, evaluate: bool },
}

impl Sent {
    fn trains(self) -> bool {
        matches!(self, Self::Step { .. })
    }
}

impl<T: Element> GpuRank<T> {
    /// Creates a rank as it is at the start of training, which scores the samples of `batches` training batches at a
    /// time; with several ranks this is a collective call.
    pub(super) fn new(context: RankContext, setup: Arc<ModelSetup>, batches: usize) -> Result<Self> {
        let (device, spec) = (&context.device, &setup.model.spec);
        let main = Lane::of_high_priority(device)?;
        let routes = Lane::new(device)?;
        let vector_layout = VectorLayout::new(spec);
        let tables = Tables::initialized::<T>(&context, &setup, &vector_layout, &main)?;
        let factor_bounds = FactorBounds::new(device, tables.layout(), vector_layout.stride)?;
        let (rows, to_fp8) = (batches * setup.rank_samples(), tables.pools_to_fp8());
        let network = Network::new(&context, &setup, &vector_layout, rows, to_fp8)?;
        let links = context.links.as_ref();
        let group = links.map(|links| RankGroup::new(links, spec.heads.len())).transpose()?;
        let slot_count = tables.slots();
        let outcomes = PinnedBuffer::zeroed(device, slot_count)?;
        let inputs = BatchSlots::inputs(device, &InputLayout::new(spec, tables.layout()), slot_count)?;
        let scoring = PlannedScoring::new(&context, &setup, (&network, &tables), batches)?;
        let dynamic = RankDynamic::new(&context, &setup, &tables, scoring.tables())?;
        let captured = Capture {
            context: &context,
            setup: &setup,
            network: &network,
            tables: &tables,
            dynamic: &dynamic,
            factor_bounds: factor_bounds.as_ref(),
            group: group.as_ref(),
            main: &main,
            routes: &routes,
            outcomes: outcomes.device_pointer()?,
        }
        .capture(inputs, scoring)?;
        let Captured { iterations, timed, slots, scoring } = captured;
        // The iteration before the capture was no step.
        tables.forget_traffic(&main)?;
        Ok(Self {
            iterations,
            timed,
            slots,
            scoring,
            network,
            tables,
            dynamic,
            factor_bounds,
            group,
            main,
            copies: Lane::new(device)?,
            routes,
            outcomes,
            faults: PinnedBuffer::zeroed(device, slot_count)?,
            evaluation: None,
            slot: 0,
            sent: None,
            in_flight: VecDeque::new(),
            finished: Vec::new(),
            steps: 0,
            setup,
            context,
        })
    }

    /// The sizes of an iteration over the batch of the first slot, which must be routed.
    fn sizes(&self) -> Result<IterationSizes<'_>> {
        let layout = self.tables.layout();
        let mut all = LookUpCounts::default();
        self.tables.counts(&self.main, 0)?.into_iter().for_each(|of_table| all += of_table);
        let LookUpCounts { look_ups, distinct_rows } = all;
        let input = &self.slots.slots[0].input;
        let ids = input.input().ids;
        let attention = &self.setup.model.spec.attention;
        let positions = attention.iter().map(|attention| input.ids_of(&self.main, attention.features[0]));
        let positions = positions.collect::<rankine_embedding::cuda::Result<_>>()?;
        Ok(IterationSizes {
            model: &self.setup.model,
            samples: layout.samples() as u64,
            element_bytes: size_of::<T>() as u64,
            fp8: self.network.multiplies_fp8(),
            look_ups,
            distinct_rows,
            positions,
            ranks: layout.ranks() as u64,
            interaction_looks_up: self.tables.rows_for(&self.network, ids).is_some(),
        })
    }

    /// Sends a batch to the next slot once that is free, and counts it as in flight. If look-ups need its route, that
    /// is built.
    fn send(&mut self, batch: Batch<'_>, step: Step, rates: &[Rate]) -> Result<usize> {
        let (slot, trains) = (self.slot, step.number > 0);
        // Passes use the buffers of steps, but not their slots.
        if self.sent.is_some_and(|sent| sent.trains() != trains) {
            self.begin_sent()?;
        }
        while self.in_flight.len() == self.slots.slots.len()
            || self.in_flight.back().is_some_and(|last| last.trains != trains)
        {
            self.finish_first()?;
        }
        let running = self.input_follows(trains);
        let Self { slots, scoring, main, copies, routes, faults, setup, context, tables, dynamic, .. } = self;
        let overlaps = setup.execution.overlaps;
        let copies_overlap = overlaps.has(Overlap::Input);
        let overlaps_routes = tables.are_routed() && overlaps.has(Overlap::Routes);
        // On the main lane, a copy follows the transfers of the iteration before.
        let gate = match &context.links {
            Some(links) if copies_overlap => links.cluster.gate(),
            _ => None,
        };
        let slots = if trains { slots } else { &mut scoring.slots };
        let (input, unpacker, after) = slots.slot_to_fill(slot, running);
        let lanes = InputLanes {
            copies: if copies_overlap { copies } else { main },
            reader: if overlaps_routes { routes } else { main },
            gate,
            after,
        };
        let parameters = StepParameters { step: Step { loss_index: slot as u32, ..step }, rates };
        let fed = match batch {
            Batch::Unpacked(batch, samples) => {
                input.send(lanes, &batch, samples, parameters)?;
                Vec::new()
            }
            Batch::Packed(parts) => {
                faults.elements_mut()[slot] = 0;
                let schema = parts.first().expect("a batch has a part").schema();
                let unpacker = unpacker_of(unpacker, input, main.device(), schema)?;
                input.unpack(lanes, &parts, unpacker, faults.device_pointer()?, parameters)?;
                parts
            }
        };
        match trains {
            true => {
                let lane = if tables.are_routed() { lanes.reader } else { lanes.copies };
                let lanes = InputLanes { copies: lane, ..lanes };
                dynamic.admit(lanes, (&*tables, input), slot, step.number)?;
            }
            false => dynamic.find(lanes, input)?,
        }
        self.in_flight.push_back(StepInFlight { slot, trains, fed });
        self.route(slot, trains)?;
        self.slot = (slot + 1) % self.slots.slots.len();
        Ok(slot)
    }

    /// Returns the slot of the step after whose end the next batch is unpacked: the one that is running, if another one
    /// follows. So unpacking, and building the route, run beside the look-ups and not beside matrix products, each of
    /// which takes as long as its slowest multiprocessor. With messages of several sizes the host waits for the route,
    /// which therefore begins as early as possible.
    fn input_follows(&self, trains: bool) -> Option<usize> {
        let waits =
            self.setup.execution.overlaps.has(Overlap::Input) && self.tables.sizes(self.scored(trains)) == 1;
        (waits && self.in_flight.len() > 1).then(|| self.in_flight[0].slot)
    }

    /// Returns the slot of a batch, and the lane on which its route is built.
    fn slot_and_lane(&mut self, slot: usize, trains: bool) -> (&mut BatchSlot, &Lane) {
        let Self { slots, scoring, main, routes, setup, .. } = self;
        let slots = if trains { slots } else { &mut scoring.slots };
        let lane = if setup.execution.overlaps.has(Overlap::Routes) { routes } else { &*main };
        (&mut slots.slots[slot], lane)
    }

    /// If look-ups need a route: enqueues building it for a slot.
    fn route(&mut self, slot: usize, trains: bool) -> Result<()> {
        let (slot, lane) = self.slot_and_lane(slot, trains);
        // SAFETY: the buffers that the graph was captured with are this value's.
        Ok(unsafe { slot.enqueue_route(lane) }?)
    }

    /// Returns the size class of messages between nodes for a slot's batch, whose route was enqueued last, and
    /// enqueues the rest of the route. If there are several size classes it waits for the first part of the route;
    /// meanwhile the iteration before is running.
    fn size(&mut self, slot: usize, trains: bool) -> Result<usize> {
        if self.tables.sizes(self.scored(trains)) == 1 {
            return Ok(0);
        }
        self.wait_for(&self.slots_of(trains).slots[slot].routed)?;
        let size = self.tables.size_needed(self.scored(trains), slot);
        let (slot, lane) = self.slot_and_lane(slot, trains);
        // SAFETY: the buffers that the graph was captured with are this value's.
        unsafe { slot.enqueue_rest(size, lane) }?;
        Ok(size)
    }

    /// If look-ups need a route: makes the main lane wait for it. If rows are in host memory, waits for it, and copies
    /// the rows of the slot's batch to the GPU. Meanwhile the iteration before is running.
    fn land(&mut self, slot: usize, trains: bool) -> Result<()> {
        let routed = &self.slots_of(trains).slots[slot].routed;
        if self.tables.are_routed() {
            self.main.wait(routed)?;
        }
        if self.tables.have_cold_rows() {
            self.wait_for(routed)?;
            self.tables.land(&self.main, slot)?;
        }
        Ok(())
    }

    /// Returns the slots of batches that are learned from, or of batches that are scored.
    fn slots_of(&self, trains: bool) -> &BatchSlots {
        if trains { &self.slots } else { &self.scoring.slots }
    }

    /// Returns what looks up batches that are scored, unless they are learned from.
    fn scored(&self, trains: bool) -> Option<&ScoredTables> {
        (!trains).then_some(&self.scoring.tables)
    }

    /// Waits until a moment has passed; with several ranks at most as long as ranks wait for each other.
    fn wait_for(&self, moment: &Moment) -> Result<()> {
        match &self.group {
            None => moment.synchronize()?,
            Some(group) => group.wait_for(moment, || {
                group.check_now()?;
                self.network.check_now()?;
                self.tables.check_now()
            })?,
        }
        Ok(())
    }

    /// Waits for the oldest step in flight.
    fn finish_first(&mut self) -> Result<()> {
        let Some(StepInFlight { slot, trains, fed }) = self.in_flight.pop_front() else { return Ok(()) };
        self.wait_for(&self.slots_of(trains).slots[slot].done)?;
        if !fed.is_empty() && self.faults.elements()[slot] != 0 {
            return Err(FeedPart::diagnose(&fed).into());
        }
        if trains {
            if let Some(full) = self.dynamic.full_table(&self.main, slot)? {
                return Err(full.into());
            }
            self.finished.push(outcome(self.outcomes.elements()[slot]));
        }
        Ok(())
    }

    /// Scores samples that fit a slot, and adds the scores to the evaluation if `evaluate` is set.
    fn score(&mut self, batch: Batch<'_>, evaluate: bool) -> Result<()> {
        let (samples, most) = (batch.len(), self.scoring.samples_max());
        assert!(samples <= most, "at most {most} samples are scored at a time");
        let rates = vec![Rate::default(); self.tables.layout().tables().len()];
        let slot = self.send(batch, Step::default(), &rates)?;
        let size = self.size(slot, false)?;
        self.follow(Sent::Pass { slot, size, samples, evaluate })
    }

    /// Begins what was sent. If rows are in host memory, what was sent before begins instead: so the route of a batch
    /// is ready when the host needs it to copy the batch's rows.
    fn follow(&mut self, sent: Sent) -> Result<()> {
        if !self.tables.have_cold_rows() {
            return self.begin(sent);
        }
        self.begin_sent()?;
        self.sent = Some(sent);
        Ok(())
    }

    /// Begins what was sent and has not begun, if there is anything.
    fn begin_sent(&mut self) -> Result<()> {
        self.sent.take().map_or(Ok(()), |sent| self.begin(sent))
    }

    /// Enqueues a step or a pass over the batch of a slot, once its rows in host memory have been copied.
    fn begin(&mut self, sent: Sent) -> Result<()> {
        match sent {
            Sent::Step { slot, size } => {
                self.land(slot, true)?;
                let timed = if slot == 0 { self.timed.next(size) } else { None };
                let graph = timed.unwrap_or(&mut self.iterations[slot][size]);
                // SAFETY: the buffers that the graph was captured with are this value's.
                unsafe { graph.replay(&self.main) }?;
                self.tables.learned(&self.main, slot)?;
                self.steps += 1;
                Ok(self.main.record(&self.slots.slots[slot].done)?)
            }
            Sent::Pass { slot, size, samples, evaluate } => {
                self.land(slot, false)?;
                let Input { labels, weights, ids, .. } = self.scoring.slots.slots[slot].input.input();
                let scored = ScoredBatch {
                    logits: self.network.logits_pointer(),
                    labels,
                    labels_stride: self.scoring.tables.layout().samples(),
                    weights,
                    samples: ids.samples,
                };
                // SAFETY: the buffers that the graph was captured with are this value's, and have logits, labels and
                // weights for as many samples as a slot has.
                unsafe {
                    self.scoring.pass(slot, size, samples).replay(&self.main)?;
                    if let (true, Some(evaluation)) = (evaluate, &self.evaluation) {
                        evaluation.add(&self.main, scored)?;
                    }
                }
                Ok(self.main.record(&self.scoring.slots.slots[slot].done)?)
            }
        }
    }
}

impl<T: Element> GpuRank<T> {
    /// Admits the ids of the batch that is in a slot once more, as if it had just been sent there.
    fn admit_again(&mut self, slot: usize) -> Result<()> {
        if !self.dynamic.exist() {
            return Ok(());
        }
        let Self { slots, copies, routes, main, dynamic, tables, .. } = self;
        let BatchSlot { input, done, .. } = &slots.slots[slot];
        let lane = if tables.are_routed() { &*routes } else { &*copies };
        lane.wait(done)?;
        let lanes = InputLanes { copies: lane, reader: main, gate: None, after: None };
        Ok(dynamic.admit(lanes, (&*tables, input), slot, dynamic.step() + 1)?)
    }
}

impl<T: Element> RankModel for GpuRank<T> {
    fn step(&mut self, batch: Batch<'_>, step: Step, rates: &[Rate]) -> Result<()> {
        if self.tables.refreshes_before(step.number) {
            self.finish()?;
            self.tables.refresh(&self.main)?;
        }
        let slot = self.send(batch, step, rates)?;
        let size = self.size(slot, true)?;
        self.follow(Sent::Step { slot, size })
    }

    fn finish(&mut self) -> Result<()> {
        self.begin_sent()?;
        while !self.in_flight.is_empty() {
            self.finish_first()?;
        }
        self.tables.finish(&self.main)?;
        self.tables.check(&self.main)?;
        Ok(Tables::check_scored(&self.main, &self.scoring.tables)?)
    }

    fn take_outcomes(&mut self) -> Vec<StepOutcome> {
        std::mem::take(&mut self.finished)
    }

    fn logits(&mut self, batch: Batch<'_>) -> Result<Vec<f32>> {
        let count = batch.len();
        self.score(batch, false)?;
        self.begin_sent()?;
        Ok(self.network.logits(&self.main, count)?)
    }

    fn scored_batches(&self) -> usize {
        self.scoring.batches
    }

    fn begin_evaluation(&mut self, sizes: EvaluationSizes) -> Result<()> {
        self.finish()?;
        let is_ranked = self.evaluation.as_ref().is_none_or(|evaluation| Arc::strong_count(evaluation) == 1);
        assert!(is_ranked, "the scores of the last evaluation are not ranked");
        if self.evaluation.as_ref().is_none_or(|evaluation| evaluation.sizes() != sizes) {
            // The old buffers are freed first.
            self.evaluation = None;
            let evaluation = CudaEvaluation::of_rank(&self.context, &self.setup.model.spec.heads, sizes)?;
            self.evaluation = Some(Arc::new(evaluation));
        }
        self.evaluation.iter().try_for_each(|evaluation| Ok(evaluation.begin(&self.main)?))
    }

    fn evaluate(&mut self, batch: Batch<'_>) -> Result<()> {
        self.score(batch, true)
    }

    fn finish_evaluation(&mut self, heads: &[JudgedHead]) -> Result<ScoresToRank> {
        self.finish()?;
        let evaluation = self.evaluation.as_ref().expect("an evaluation was begun");
        let scores = evaluation.gather_scores(&self.main, self.context.links.as_ref(), heads)?;
        Ok(ScoresToRank::new(evaluation, scores))
    }

    fn overflow_steps(&self) -> Result<Option<u64>> {
        Ok(self.network.overflow_steps(&self.main)?)
    }

    fn loss_scale(&self) -> Result<Option<f64>> {
        Ok(self.network.loss_scale(&self.main)?)
    }

    fn look_ups(&self) -> Result<Vec<LookUpCounts>> {
        Ok(self.tables.counts(&self.main, 0)?)
    }

    fn traffic(&self) -> Result<RankTraffic> {
        let mut traffic = self.tables.traffic(&self.main)?;
        traffic.reduction += self.network.traffic() * self.steps;
        Ok(traffic)
    }

    fn tier_traffic(&self) -> Option<TierTraffic> {
        self.tables.tier_traffic()
    }

    fn slots_needed(&self) -> usize {
        if self.tables.have_cold_rows() { self.tables.slots() } else { 1 }
    }

    fn phases(&self) -> Result<Vec<TimedPhase>> {
        let spans = self.timed.last()?;
        if spans.is_empty() {
            return Ok(Vec::new());
        }
        let (sizes, roofline) =
            (self.sizes()?, Roofline::of(self.main.device(), self.setup.execution.compute())?);
        let run = |(phase, [begin_ms, end_ms]): (Phase, [f64; 2])| {
            let work = sizes.work(phase);
            let run = TimedPhase { phase, begin_ms, ms: end_ms - begin_ms, roofline_ms: roofline.ms(work) };
            (work != PhaseWork::default()).then_some(run)
        };
        Ok(spans.into_iter().filter_map(run).collect())
    }

    fn mark(&self) -> Result<Moment> {
        let moment = Moment::new(self.main.device())?;
        self.main.record(&moment)?;
        Ok(moment)
    }

    fn restart(&mut self) -> Result<()> {
        self.finish()?;
        self.finished.clear();
        self.slot = 0;
        Ok(())
    }

    fn time_steps(&mut self, slots: usize, steps: usize) -> Result<Vec<f64>> {
        let device = self.main.device();
        let moments = (0..=steps).map(|_| Moment::new(device)).collect::<Result<Vec<_>, _>>()?;
        self.main.record(&moments[0])?;
        for step in 0..steps {
            let slot = step % slots;
            self.admit_again(slot)?;
            self.routes.wait(&self.slots.slots[slot].done)?;
            self.route(slot, true)?;
            let size = self.size(slot, true)?;
            self.follow(Sent::Step { slot, size })?;
            // What begins now may be the step before.
            if self.sent.is_none() || step > 0 {
                self.main.record(&moments[step + usize::from(self.sent.is_none())])?;
            }
        }
        self.begin_sent()?;
        self.main.record(&moments[steps])?;
        self.main.synchronize()?;
        self.tables.check(&self.main)?;
        let times = moments.windows(2).map(|pair| pair[1].ms_since(&pair[0]));
        Ok(times.collect::<Result<_, _>>()?)
    }

    fn time_phases(&mut self) -> Result<PhaseTimes> {
        self.finish()?;
        let fp8 = self.network.multiplies_fp8();
        let (bytes_per_s, flops_per_s) =
            ceilings::<T>(self.main.device(), &self.main, self.setup.execution.compute())?;
        let fp8_flops_per_s = fp8.then(|| fp8_ceiling(self.main.device(), &self.main)).transpose()?;
        let layout = self.tables.layout();
        let mut iteration = Iteration {
            network: &self.network,
            tables: &self.tables,
            dynamic: &self.dynamic,
            factor_bounds: self.factor_bounds.as_ref(),
            group: self.group.as_ref(),
            forward: &self.network.plan_forward(layout.samples(), true)?,
            backward: &self.network.plan_backward()?,
            input: self.slots.slots[0].input.input(),
            slot: 0,
            size: 0,
            outcomes: self.outcomes.device_pointer()?,
            timer: None,
        };
        // The first slot's batch may not be the last one that was routed.
        // SAFETY: all of it lives until the lane has been waited for, and is of the same model and batch size.
        unsafe { iteration.enqueue(Phase::Route, &self.main) }?;
        self.main.synchronize()?;
        iteration.size = self.tables.size_needed(None, 0);
        // SAFETY: as above.
        unsafe { iteration.enqueue(Phase::Route, &self.main) }?;
        let sizes = self.sizes()?;
        let mut phases = Vec::new();
        for phase in Phase::ALL {
            let work = sizes.work(phase);
            if work != PhaseWork::default() {
                self.context.barrier()?;
                // SAFETY: as above; the steps before have done all work that precedes the phase.
                let ms = time(&self.main, || unsafe { iteration.enqueue(phase, &self.main) })?;
                phases.push((phase, ms, work));
            }
            if phase == Phase::AllReduceBottom {
                // All-reducing the sums again and again would soon overflow them.
                self.network.forget_gradients(&self.main)?;
            }
        }
        Ok(PhaseTimes { phases, bytes_per_s, flops_per_s, fp8_flops_per_s })
    }

    fn tuning(&self) -> Tuning {
        self.network.tuning()
    }

    fn budget(&self) -> Result<Budget> {
        Ok(self.main.device().budget()?)
    }

    fn parameters(&self) -> Result<Vec<f32>> {
        self.tables.check(&self.main)?;
        Ok(self.network.parameters(&self.main)?)
    }

    fn checksum(&self) -> Result<u64> {
        let mut checksum = Xxh3Default::new();
        checksum.update(bytemuck::cast_slice(&self.network.all_parameters(&self.main)?));
        let rows = self.tables.rows(&self.main);
        rows.for_each_shared_row(|row| checksum.update(bytemuck::cast_slice(row))).map_err(Error::State)?;
        Ok(checksum.digest())
    }

    fn rows(&self) -> Box<dyn RowsMut + '_> {
        Box::new(self.tables.rows(&self.main))
    }

    fn begin_tracking(&mut self) -> Result<()> {
        self.dynamic.begin_tracking(&self.main)?;
        self.rows().begin_tracking().map_err(Error::State)
    }

    fn memberships(&self) -> Result<Vec<(usize, Membership)>> {
        Ok(self.dynamic.memberships(&self.main)?)
    }

    fn dynamic_tables(&self) -> Result<Vec<DynamicTableState>> {
        Ok(self.dynamic.states(&self.main)?)
    }

    fn restore_memberships(&mut self, memberships: &[(usize, Membership)], steps: u64) -> Result<()> {
        Ok(self.dynamic.restore(&self.main, memberships, steps)?)
    }

    fn dense_state(&self, topology: Topology, rank: Rank) -> Result<Vec<DenseState>> {
        self.tables.check(&self.main)?;
        // Slices belong to the ranks of a rail; state that is not sharded belongs to all ranks.
        let own = |len| match self.network.is_sharded() {
            true => topology.share_of_rail(len, rank),
            false => topology.part(len, rank),
        };
        let held = self.network.dense_state(&self.main)?;
        Ok(held.iter().map(|held| held.part(own(held.parameters.len()))).collect())
    }

    fn device_state(&self) -> Result<DeviceState> {
        Ok(self.network.device_state(&self.main)?)
    }

    fn restore(&mut self, dense: &DenseState, device: Option<&DeviceState>) -> Result<()> {
        self.finish()?;
        Ok(self.network.restore(&self.main, dense, device)?)
    }
}

/// Translates the GPU's outcome of a step.
fn outcome(Outcome { loss, vector_marks, loss_marks, wrong, by_scale }: Outcome) -> StepOutcome {
    let is_wrong = |what| wrong & what != 0;
    let skipped = (wrong != 0).then(|| {
        if by_scale != 0 {
            return SkipReason::LossScale;
        }
        // A rank with a wrong loss usually has wrong gradients, too.
        let of_ranks = [loss_marks, vector_marks].map(Outcome::ranks);
        let (ranks, sum) = of_ranks.into_iter().max_by_key(|&(ranks, _)| ranks).unwrap_or_default();
        SkipReason::NonFinite(NonFinite {
            loss: is_wrong(Outcome::LOSS),
            dense_gradients: is_wrong(Outcome::DENSE),
            vector_gradients: is_wrong(Outcome::VECTORS),
            tables: Vec::new(),
            found_on: FoundOn::from_ranks(ranks, sum),
        })
    });
    StepOutcome { loss, skipped }
}
