//! A rank with what its GPU has, and the work that it enqueues there.

use std::collections::VecDeque;
use std::sync::Arc;

use rankine_cuda::blas::{Compute, Tuning};
use rankine_cuda::kernels::{Element, Outcome, Rate, Step};
use rankine_cuda::{Budget, Cluster, Device, Graph, Lane, Moment, Pinned};
use rankine_embedding::Topology;
use rankine_embedding::rows::RowsMut;
use xxhash_rust::xxh3::Xxh3Default;

use super::batch::Batch;
use super::error::{Error, Result};
use super::evaluation::{CudaEvaluation, EvaluationRoom, Judgement, Scored};
use super::feed::FedPart;
use super::input::{Input, InputLayout, InputSlot};
use super::iteration::{Iteration, Lanes, Phase};
use super::network::{Forward, Network, Places, Products};
use super::rank::{Rank, SLOTS, Shape};
use super::tables::{Routed, Tables};
use super::together::{Member, Together};
use super::unpack::Unpacker;
use super::work::{PhaseTimes, Sizes, Work, ceilings, fp8_ceiling, time};
use crate::checkpoint::{DenseState, DeviceState};
use crate::cpu::initial_parameters;
use crate::guard::{FoundOn, LeftOut, NonFinite, StepOutcome};
use crate::model::{ModelSpec, TrainingRules};
use crate::overlap::{Overlap, Overlaps};

/// A rank with all that its steps need.
#[derive(Debug)]
pub(super) struct Trainer<T> {
    /// Dropped first: graphs hold what NCCL's communicators do.
    slots: Vec<TrainSlot>,
    compute: Compute,
    network: Network<T>,
    tables: Tables,
    /// With others.
    together: Option<Together>,
    main: Lane,
    copies: Lane,
    /// What routes are made on, beside the iteration before. Alone, they are part of the iteration.
    routes: Lane,
    overlaps: Overlaps,
    /// Samples that are scored at a time.
    score_samples: usize,
    /// One a slot.
    outcomes: Pinned<Outcome>,
    /// One a slot: not 0 where the batch there has values that its schema does not admit.
    faults: Pinned<u32>,
    /// From the first batch on that is unpacked on the GPU.
    unpacker: Option<Unpacker>,
    /// From the first evaluation on.
    evaluation: Option<CudaEvaluation>,
    /// Of what is judged.
    spec: ModelSpec,
    /// The slot of the next step.
    place: usize,
    /// The steps that were begun and are not known to be done.
    under_way: VecDeque<UnderWay>,
    finished: Vec<StepOutcome>,
}

/// A batch's place, and the iteration over what lies there.
#[derive(Debug)]
struct TrainSlot {
    input: InputSlot,
    /// Over ranks: makes the route, which both others need.
    route: Option<Graph>,
    /// What is captured with each size of messages between nodes; with one node there is one.
    sized: Vec<OfSize>,
    routed: Moment,
    done: Moment,
}

/// What is done with a slot's batch once its route is made.
#[derive(Debug)]
struct OfSize {
    /// The rest of the route, where the size is not the first one.
    rest: Option<Graph>,
    iteration: Graph,
    /// Scores the samples that lie there.
    pass: Graph,
}

/// A step that is not known to be done.
#[derive(Debug)]
struct UnderWay {
    /// Its slot.
    place: usize,
    /// Whether it is one of training, which has a loss.
    trains: bool,
    /// Its batch, whose blocks the GPU may not have read yet.
    fed: Option<Arc<FedPart>>,
}

impl<T: Element> Trainer<T> {
    /// A rank as training starts with it; with others, all make theirs at once.
    pub(super) fn new(
        (device, cluster): (&Arc<Device>, Option<Arc<Cluster>>),
        (products, overlaps): (Products, Overlaps),
        (spec, rules): (&ModelSpec, &TrainingRules),
        seed: u64,
        shape: Shape<'_>,
    ) -> Result<Self> {
        let Shape { samples, score_samples, .. } = shape;
        let main = Lane::of_high_priority(device)?;
        let places = Places::new(spec);
        let member = cluster.map(|cluster| Member::join(&cluster)).transpose()?;
        let tables = Tables::initialized::<T>(
            (device, member.as_ref()),
            &main,
            (spec, rules),
            (&places, seed),
            shape,
        )?;
        let (compute, parameters) = (products.compute, initial_parameters(spec, seed));
        let network =
            Network::new((device, member.as_ref()), products, (spec, rules), &places, samples, &parameters)?;
        let together = member.map(|member| Together::new(member, spec.heads.len())).transpose()?;
        let layout = InputLayout::new(spec, tables.layout());
        let mut inputs = Vec::new();
        for _ in 0..SLOTS {
            let _input = device.purpose("input");
            inputs.push(InputSlot::new(device, layout.clone())?);
        }
        let mut trainer = Self {
            compute,
            network,
            tables,
            together,
            main,
            copies: Lane::new(device)?,
            routes: Lane::new(device)?,
            overlaps,
            slots: Vec::new(),
            score_samples,
            outcomes: Pinned::zeroed(device, SLOTS)?,
            faults: Pinned::zeroed(device, SLOTS)?,
            unpacker: None,
            evaluation: None,
            spec: spec.clone(),
            place: 0,
            under_way: VecDeque::new(),
            finished: Vec::new(),
        };
        trainer.slots = trainer.capture(inputs)?;
        Ok(trainer)
    }

    /// Captures what is done with each slot.
    fn capture(&self, inputs: Vec<InputSlot>) -> Result<Vec<TrainSlot>> {
        let Self { network, tables, together, main, routes, .. } = self;
        let device = main.device();
        let layout = tables.layout();
        let (forward, backward) = (network.plan_forward(layout.samples(), true)?, network.plan_backward()?);
        let scoring = network.plan_forward(self.score_samples, false)?;
        let lanes = Lanes::new(main, self.shares_gpu()?, self.overlaps)?;
        let outcomes = self.outcomes.device_pointer()?;
        let iteration_of = |place: usize, size: usize, input: &InputSlot| Iteration {
            network,
            tables,
            together: together.as_ref(),
            forward: &forward,
            backward: &backward,
            input: input.input(),
            place,
            size,
            outcomes,
        };
        let pass_of = |tables: Option<&Tables>, place: usize, size: usize, input: &InputSlot| {
            let batch = Routed { ids: input.input().ids, place, size };
            enqueue_pass(network, tables, main, (input.input(), batch), &scoring)
        };
        // Once without a graph, so that libraries load what they need. Nothing is written meanwhile.
        network.hold(main, true)?;
        let first = iteration_of(0, 0, &inputs[0]);
        // SAFETY: all of it lives as long as the trainer, and is of the same model and batch size.
        unsafe {
            if together.is_some() {
                // cuBLASLt loads a kernel when it is first launched. The driver then holds the context's lock until the
                // GPU is idle, which it never is while a rank waits on it for another rank of the same GPU, whose
                // launches wait for that lock. So every rank first runs all layers, those of both batch sizes, without
                // the barriers between ranks.
                for phase in Phase::ALL.into_iter().filter(|phase| phase.is_of_layers()) {
                    first.enqueue(phase, main)?;
                }
                pass_of(None, 0, 0, &inputs[0])?;
                main.synchronize()?;
                self.meet()?;
                first.route(main)?;
            }
            first.enqueue_all(&lanes)?;
        }
        pass_of(Some(tables), 0, 0, &inputs[0])?;
        network.hold(main, false)?;
        self.meet()?;
        let mut slots = Vec::new();
        for (place, input) in inputs.into_iter().enumerate() {
            // SAFETY: as above.
            let route = || unsafe { iteration_of(place, 0, &input).route(routes) };
            let route = together.as_ref().map(|_| Graph::capture(routes, route)).transpose()?;
            let sized = (0..tables.sizes()).map(|size| {
                let iteration = iteration_of(place, size, &input);
                let batch = Routed { ids: input.input().ids, place, size };
                // SAFETY: as above.
                let rest = || unsafe { tables.route_rest(routes, batch) };
                // SAFETY: as above.
                let all = || unsafe { iteration.enqueue_all(&lanes) };
                Ok::<_, Error>(OfSize {
                    rest: (size > 0).then(|| Graph::capture(routes, rest)).transpose()?,
                    iteration: Graph::capture(main, all)?,
                    pass: Graph::capture(main, || pass_of(Some(tables), place, size, &input))?,
                })
            });
            slots.push(TrainSlot {
                sized: sized.collect::<Result<_, _>>()?,
                route,
                routed: Moment::new(device)?,
                done: Moment::new(device)?,
                input,
            });
        }
        main.synchronize()?;
        routes.synchronize()?;
        self.meet()?;
        Ok(slots)
    }

    /// Whether any GPU has several ranks.
    fn shares_gpu(&self) -> Result<bool> {
        let Some(together) = &self.together else { return Ok(false) };
        // Processes may number the same GPUs differently.
        let of_ranks = together.cluster().gather(self.main.device().uuid()?)?;
        Ok((1..of_ranks.len()).any(|rank| of_ranks[..rank].contains(&of_ranks[rank])))
    }

    /// Waits, on the host, for all ranks.
    fn meet(&self) -> Result<()> {
        if let Some(together) = &self.together {
            together.cluster().gather(0_u8)?;
        }
        Ok(())
    }

    /// Sends a batch to the next slot, which becomes one under way, once there is one; over ranks its route is made.
    fn send(&mut self, batch: Batch<'_>, step: Step, rates: &[Rate]) -> Result<usize> {
        if self.under_way.len() == SLOTS {
            self.finish_first()?;
        }
        let (place, trains) = (self.place, step.number > 0);
        let TrainSlot { input, .. } = &mut self.slots[place];
        let told = (Step { loss_place: place as u32, ..step }, rates);
        let copies = if self.overlaps.has(Overlap::Input) { &self.copies } else { &self.main };
        let routes_beside = self.together.is_some() && self.overlaps.has(Overlap::Routes);
        let lanes = (copies, if routes_beside { &self.routes } else { &self.main });
        let fed = match batch {
            Batch::Unpacked(batch, samples) => {
                input.send(lanes, &batch, samples, told)?;
                None
            }
            Batch::Packed(batch) => {
                self.faults.elements_mut()[place] = 0;
                let faults = self.faults.device_pointer()?;
                let unpacker = match &mut self.unpacker {
                    Some(unpacker) => unpacker,
                    none => none.insert(input.unpacker(self.main.device(), batch.schema())?),
                };
                input.unpack(lanes, &batch, (unpacker, faults), told)?;
                Some(batch)
            }
        };
        self.route(place)?;
        self.place = (place + 1) % SLOTS;
        self.under_way.push_back(UnderWay { place, trains, fed });
        Ok(place)
    }

    /// Over ranks: enqueues making the route of a slot, and lets what comes on the main lane wait for it.
    fn route(&mut self, place: usize) -> Result<()> {
        let TrainSlot { route, routed, .. } = &mut self.slots[place];
        let lane = if self.overlaps.has(Overlap::Routes) { &self.routes } else { &self.main };
        if let Some(route) = route {
            // SAFETY: the buffers that the graph was captured with are this value's.
            unsafe { route.replay(lane) }?;
            lane.record(routed)?;
            self.main.wait(routed)?;
        }
        Ok(())
    }

    /// The size of messages between nodes for the batch of a slot whose route was enqueued last; the rest of the route
    /// is enqueued, too. Waits for the first part of it, where there are several sizes: an iteration before is under
    /// way.
    fn size(&mut self, place: usize) -> Result<usize> {
        if self.tables.sizes() == 1 {
            return Ok(0);
        }
        self.wait_for(&self.slots[place].routed)?;
        let size = self.tables.size_needed(place);
        let TrainSlot { sized, routed, .. } = &mut self.slots[place];
        if let Some(rest) = &mut sized[size].rest {
            let lane = if self.overlaps.has(Overlap::Routes) { &self.routes } else { &self.main };
            // SAFETY: the buffers that the graph was captured with are this value's.
            unsafe { rest.replay(lane) }?;
            lane.record(routed)?;
            self.main.wait(routed)?;
        }
        Ok(size)
    }

    /// Waits until a moment has passed; over ranks no longer than they wait for each other.
    fn wait_for(&self, moment: &Moment) -> Result<()> {
        match &self.together {
            None => moment.synchronize()?,
            Some(together) => together.wait_for(moment, || {
                together.check_now()?;
                self.network.check_now()?;
                self.tables.check_now()
            })?,
        }
        Ok(())
    }

    /// Waits for the first of the steps under way.
    fn finish_first(&mut self) -> Result<()> {
        let Some(UnderWay { place, trains, fed }) = self.under_way.pop_front() else { return Ok(()) };
        self.wait_for(&self.slots[place].done)?;
        if let Some(batch) = fed
            && self.faults.elements()[place] != 0
        {
            return Err(batch.what_is_wrong().into());
        }
        if trains {
            self.finished.push(outcome(self.outcomes.elements()[place]));
        }
        Ok(())
    }

    /// Scores samples that fit a slot, and lets them be judged.
    fn score(&mut self, batch: Batch<'_>, judge: bool) -> Result<()> {
        assert!(batch.len() <= self.score_samples, "as many as are scored at a time");
        let rates = vec![Rate::default(); self.tables.layout().tables().len()];
        let place = self.send(batch, Step::default(), &rates)?;
        let size = self.size(place)?;
        let TrainSlot { input, sized, done, .. } = &mut self.slots[place];
        let Input { labels, weights, ids, .. } = input.input();
        let scored = Scored {
            logits: self.network.logits_pointer(),
            labels,
            labels_stride: self.tables.layout().samples(),
            weights,
            samples: ids.samples,
        };
        // SAFETY: the buffers that the graph was captured with are this value's, and have logits, labels and weights
        // for as many samples as a slot has.
        unsafe {
            sized[size].pass.replay(&self.main)?;
            if let (true, Some(evaluation)) = (judge, &self.evaluation) {
                evaluation.add(&self.main, scored)?;
            }
        }
        Ok(self.main.record(done)?)
    }
}

impl<T: Element> Rank for Trainer<T> {
    fn step(&mut self, batch: Batch<'_>, step: Step, rates: &[Rate]) -> Result<()> {
        let place = self.send(batch, step, rates)?;
        let size = self.size(place)?;
        let TrainSlot { sized, done, .. } = &mut self.slots[place];
        // SAFETY: the buffers that the graph was captured with are this value's.
        unsafe { sized[size].iteration.replay(&self.main) }?;
        Ok(self.main.record(done)?)
    }

    fn finish(&mut self) -> Result<()> {
        while !self.under_way.is_empty() {
            self.finish_first()?;
        }
        Ok(self.tables.check(&self.main)?)
    }

    fn take_outcomes(&mut self) -> Vec<StepOutcome> {
        std::mem::take(&mut self.finished)
    }

    fn logits(&mut self, batch: Batch<'_>) -> Result<Vec<f32>> {
        let count = batch.len();
        self.score(batch, false)?;
        Ok(self.network.logits(&self.main, count)?)
    }

    fn begin_judging(&mut self, room: EvaluationRoom) -> Result<()> {
        self.finish()?;
        if self.evaluation.as_ref().is_none_or(|evaluation| evaluation.room() != room) {
            // What there was is given back first.
            self.evaluation = None;
            let member = self.together.as_ref().map(Together::member);
            let (device, heads) = (self.main.device(), &self.spec.heads);
            self.evaluation = Some(CudaEvaluation::of_rank((device, member), heads, room)?);
        }
        self.evaluation.iter().try_for_each(|evaluation| Ok(evaluation.begin(&self.main)?))
    }

    fn judge(&mut self, batch: Batch<'_>) -> Result<()> {
        self.score(batch, true)
    }

    fn finish_judging(&mut self) -> Result<Judgement> {
        self.finish()?;
        let evaluation = self.evaluation.as_ref().expect("an evaluation was begun");
        Ok(evaluation.finish_with(&self.main, self.together.as_ref().map(Together::member))?)
    }

    fn skipped_steps(&self) -> Result<Option<u64>> {
        Ok(self.network.skipped_steps(&self.main)?)
    }

    fn mark(&self) -> Result<Moment> {
        let moment = Moment::new(self.main.device())?;
        self.main.record(&moment)?;
        Ok(moment)
    }

    fn begin_anew(&mut self) -> Result<()> {
        self.finish()?;
        self.finished.clear();
        self.place = 0;
        Ok(())
    }

    fn time_steps(&mut self, slots: usize, steps: usize) -> Result<Vec<f64>> {
        let device = self.main.device();
        let moments = (0..=steps).map(|_| Moment::new(device)).collect::<Result<Vec<_>, _>>()?;
        self.main.record(&moments[0])?;
        for (step, moment) in moments[1..].iter().enumerate() {
            let place = step % slots;
            self.routes.wait(&self.slots[place].done)?;
            self.route(place)?;
            let size = self.size(place)?;
            let TrainSlot { sized, done, .. } = &mut self.slots[place];
            // SAFETY: the buffers that the graph was captured with are this value's.
            unsafe { sized[size].iteration.replay(&self.main) }?;
            self.main.record(done)?;
            self.main.record(moment)?;
        }
        self.main.synchronize()?;
        self.tables.check(&self.main)?;
        let times = moments.windows(2).map(|pair| pair[1].ms_since(&pair[0]));
        Ok(times.collect::<Result<_, _>>()?)
    }

    fn time_phases(&mut self, spec: &ModelSpec, rules: &TrainingRules) -> Result<PhaseTimes> {
        self.finish()?;
        let fp8 = self.network.multiplies_fp8();
        let (bytes_per_s, flops_per_s) = ceilings::<T>(self.main.device(), &self.main, self.compute)?;
        let fp8_flops_per_s = fp8.then(|| fp8_ceiling(self.main.device(), &self.main)).transpose()?;
        let layout = self.tables.layout();
        let mut iteration = Iteration {
            network: &self.network,
            tables: &self.tables,
            together: self.together.as_ref(),
            forward: &self.network.plan_forward(layout.samples(), true)?,
            backward: &self.network.plan_backward()?,
            input: self.slots[0].input.input(),
            place: 0,
            size: 0,
            outcomes: self.outcomes.device_pointer()?,
        };
        // The first slot's batch need not be the last one that was routed.
        // SAFETY: all of it lives until the lane has been waited for, and is of the same model and batch size.
        unsafe { iteration.enqueue(Phase::Route, &self.main) }?;
        self.main.synchronize()?;
        iteration.size = self.tables.size_needed(0);
        // SAFETY: as above.
        unsafe { iteration.enqueue(Phase::Route, &self.main) }?;
        let [look_ups, distinct_rows] = self.tables.counts(&self.main, 0)?;
        let sizes = Sizes {
            spec,
            rules,
            samples: layout.samples() as u64,
            element_bytes: size_of::<T>() as u64,
            fp8,
            look_ups,
            distinct_rows,
            ranks: layout.ranks() as u64,
        };
        let mut phases = Vec::new();
        for phase in Phase::ALL {
            let work = sizes.work(phase);
            if work != Work::default() {
                self.meet()?;
                // SAFETY: as above; what comes before the phase was done in the steps before.
                let ms = time(&self.main, || unsafe { iteration.enqueue(phase, &self.main) })?;
                phases.push((phase, ms, work));
            }
            if phase == Phase::SumBottom {
                // Sums of sums, again and again, are soon beyond all numbers.
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

    fn dense_state(&self, topology: Topology, rank: usize) -> Result<Vec<DenseState>> {
        self.tables.check(&self.main)?;
        // Slices are of the ranks of a rail, and what is not sharded of all.
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

/// What a step came to, of what the GPU says.
fn outcome(Outcome { loss, vector_marks, loss_marks, wrong, by_scale }: Outcome) -> StepOutcome {
    let is_wrong = |what| wrong & what != 0;
    let left_out = (wrong != 0).then(|| {
        if by_scale != 0 {
            return LeftOut::LossScale;
        }
        // Who has a wrong loss has wrong gradients, as a rule.
        let of_ranks = [loss_marks, vector_marks].map(Outcome::ranks);
        let (ranks, sum) = of_ranks.into_iter().max_by_key(|&(ranks, _)| ranks).unwrap_or_default();
        LeftOut::NonFinite(NonFinite {
            loss: is_wrong(Outcome::LOSS),
            dense_gradients: is_wrong(Outcome::DENSE),
            vector_gradients: is_wrong(Outcome::VECTORS),
            tables: Vec::new(),
            found_on: FoundOn::of(ranks, sum),
        })
    });
    StepOutcome { loss, left_out }
}

/// Enqueues scoring the samples of a slot; without `tables`, the layers alone, which involve no other rank.
fn enqueue_pass<T: Element>(
    network: &Network<T>,
    tables: Option<&Tables>,
    main: &Lane,
    (input, batch): (Input, Routed),
    plan: &Forward,
) -> Result<()> {
    let samples = plan.samples();
    // SAFETY: network, tables and slot live as long as the trainer, and the lane orders the work.
    unsafe {
        network.bottom_forward(main, input, plan)?;
        if let Some(tables) = tables {
            network.look_up(main, tables, batch, samples)?;
        }
        network.interact(main, plan)?;
        network.hidden_forward(main, plan)?;
        network.head(main, input, samples, false)?;
        tables.map_or(Ok(()), |tables| Ok(tables.meet(main)?))
    }
}
