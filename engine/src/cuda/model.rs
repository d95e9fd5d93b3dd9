//! A model in a GPU's memory: training steps, and scores.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use rankine_cuda::blas::{Algorithms, Compute, Tuning};
use rankine_cuda::kernels::{Element, Rate, Step};
use rankine_cuda::{Device, Graph, Lane, Moment, Pinned};
use rankine_embedding::Optimizer;
use rankine_embedding::cuda::{Feature, Hotness, Layout, LocalTables};
use rankine_reader::Samples;
use rankine_reader::schema;

use super::error::Result;
use super::evaluation::{CudaEvaluation, Judgement, Scored};
use super::feed::FedBatch;
use super::input::{Input, InputLayout, InputSlot};
use super::iteration::{Iteration, Lanes, Phase};
use super::network::{Forward, Network, Places, Products};
use super::unpack::Unpacker;
use super::work::{PhaseTimes, Sizes, Work, ceilings, fp8_ceiling, time};
use crate::cpu::initial_parameters;
use crate::job::Precision;
use crate::model::{FeatureSpec, ModelSpec, TrainingRules};
use crate::saved::{SavedModelError, Weights};

/// Batches that are on the GPU at once: one that is computed, one that is ready, one that is copied.
const SLOTS: usize = 3;

/// What batches a model is made for.
#[derive(Debug, Clone, Copy)]
pub struct BatchShape<'a> {
    /// Samples that a step takes at most.
    pub batch_size: usize,
    /// Samples that are scored at a time, at most.
    pub score_size: usize,
    /// Of each categorical column: how many ids a bag may hold.
    pub hotness: &'a [schema::Hotness],
}

/// A model whose parts and rules [`super::refusals`] does not refuse.
#[derive(Debug)]
pub struct CudaModel {
    spec: ModelSpec,
    rules: TrainingRules,
    /// Of each table, those of first-order terms behind the others.
    optimizers: Vec<Optimizer>,
    machine: Machine,
}

#[derive(Debug)]
enum Machine {
    F32(Box<Trainer<f32>>),
    Bf16(Box<Trainer<bf16>>),
    F16(Box<Trainer<f16>>),
}

/// Does the same with a trainer of either kind.
macro_rules! with_trainer {
    ($machine:expr, $trainer:ident => $do:expr) => {
        match $machine {
            Machine::F32($trainer) => $do,
            Machine::Bf16($trainer) => $do,
            Machine::F16($trainer) => $do,
        }
    };
}

impl CudaModel {
    /// A model as training starts with it, with the weights that [`CpuModel::initialized`] gives for the seed.
    ///
    /// # Errors
    /// Where the GPU's memory does not suffice, or where something of the GPU's fails.
    pub fn initialized(
        device: &Arc<Device>,
        spec: ModelSpec,
        rules: &TrainingRules,
        (precision, algorithms): (Precision, Algorithms),
        seed: u64,
        batches: BatchShape<'_>,
    ) -> Result<Self> {
        device.bind()?;
        let batches = BatchShape { score_size: batches.score_size.min(batches.batch_size), ..batches };
        let parts = (&spec, rules);
        let products = |compute| Products { compute, fp8: precision == Precision::Fp8, algorithms };
        let machine = match precision {
            Precision::Fp32 => {
                let products = products(Compute::F32);
                Machine::F32(Trainer::new(device, products, parts, seed, batches)?.into())
            }
            Precision::Tf32 => {
                let products = products(Compute::Tf32);
                Machine::F32(Trainer::new(device, products, parts, seed, batches)?.into())
            }
            Precision::Bf16 | Precision::Fp8 => {
                let products = products(Compute::Bf16);
                Machine::Bf16(Trainer::new(device, products, parts, seed, batches)?.into())
            }
            Precision::Fp16 => {
                let products = products(Compute::F16);
                Machine::F16(Trainer::new(device, products, parts, seed, batches)?.into())
            }
        };
        let optimizers = rules.all_tables(&spec).into_iter().map(|(_, optimizer)| optimizer).collect();
        Ok(Self { spec, rules: rules.clone(), optimizers, machine })
    }

    /// The algorithms that its products take.
    pub fn tuning(&self) -> Tuning {
        with_trainer!(&self.machine, trainer => trainer.network.tuning())
    }

    /// What the model is.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The GPU that it lies on.
    pub fn device(&self) -> &Arc<Device> {
        with_trainer!(&self.machine, trainer => trainer.main.device())
    }

    /// Begins a step of training on a batch; `rate_factor` is what the schedule multiplies every learning rate by.
    /// Waits only where several steps are under way. Losses come by [`CudaModel::take_losses`].
    ///
    /// # Panics
    /// Where the batch is empty or longer than the model was made for, or its columns are not the model's.
    ///
    /// # Errors
    /// Where something of the GPU's failed.
    pub fn train_step(&mut self, batch: &Samples, rate_factor: f64) -> Result<()> {
        self.step(Batch::Unpacked(batch, 0..batch.len), rate_factor)
    }

    /// The same on a batch that the GPU unpacks. It is kept until the step is done.
    ///
    /// # Panics
    /// As [`CudaModel::train_step`].
    ///
    /// # Errors
    /// Where something of the GPU's failed, or a batch before has values that its schema does not admit.
    pub fn train_fed(&mut self, batch: Arc<FedBatch>, rate_factor: f64) -> Result<()> {
        self.step(Batch::Packed(batch), rate_factor)
    }

    fn step(&mut self, batch: Batch<'_>, rate_factor: f64) -> Result<()> {
        assert!(batch.len() > 0, "a batch has at least one sample");
        let Self { rules, optimizers, machine, .. } = self;
        with_trainer!(machine, trainer => {
            let number = trainer.steps + 1;
            let step = rankine_embedding::Step { number, rate_factor };
            let rates: Vec<_> = optimizers.iter().map(|optimizer| optimizer.at(step).into()).collect();
            let step = Step { number, dense: rules.dense.at(step).into(), ..Step::default() };
            trainer.step(batch, step, &rates)
        })
    }

    /// Takes the losses of steps whose losses were not taken yet, in their order: what [`CpuModel::train_step`] returns
    /// for each. Where `all` is set it waits for the last step, and else tells those alone that are known.
    ///
    /// # Errors
    /// Where something of the GPU's failed, and where ids of the batches were out of range.
    pub fn take_losses(&mut self, all: bool, mut tell: impl FnMut(f64)) -> Result<()> {
        with_trainer!(&mut self.machine, trainer => {
            if all {
                trainer.finish()?;
            }
            trainer.finished.drain(..).for_each(&mut tell);
        });
        Ok(())
    }

    /// Steps that were left out so far since gradients were beyond the range of f16, once all steps are done; none in
    /// other precisions, in which such a step is the last one.
    ///
    /// # Errors
    /// Where something of the GPU's failed.
    pub fn skipped_steps(&self) -> Result<Option<u64>> {
        with_trainer!(&self.machine, trainer => Ok(trainer.network.skipped_steps(&trainer.main)?))
    }

    /// The moment at which the steps that were begun will be done.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn mark(&self) -> Result<Moment> {
        with_trainer!(&self.machine, trainer => trainer.mark())
    }

    /// Trains so many steps on the batches that lie on the GPU, each in its turn, and waits for them. As many steps
    /// must have been done as there are places. Their losses are not told.
    ///
    /// # Errors
    /// Where something of the GPU's failed.
    pub fn repeat_steps(&mut self, count: usize) -> Result<()> {
        with_trainer!(&mut self.machine, trainer => {
            trainer.finish()?;
            trainer.time_steps(SLOTS, count).map(drop)
        })
    }

    /// How long each phase of an iteration takes alone, and what the GPU reaches at most. A step must have been done.
    /// Weights change.
    ///
    /// # Errors
    /// Where something of the GPU's failed.
    pub(crate) fn time_phases(&mut self) -> Result<PhaseTimes> {
        let Self { spec, rules, machine, .. } = self;
        with_trainer!(machine, trainer => trainer.time_phases(spec, rules))
    }

    /// Batches that can be on the GPU at once.
    pub const RESIDENT_BATCHES: usize = SLOTS;

    /// Trains on batches that stay on the GPU, each in its turn, so often that `count` steps are done; returns how long
    /// each took there, in milliseconds. The losses are not told.
    ///
    /// # Panics
    /// As [`CudaModel::train_step`]; and where there are no batches, or more than [`CudaModel::RESIDENT_BATCHES`].
    ///
    /// # Errors
    /// Where something of the GPU's failed.
    pub fn time_steps(&mut self, batches: &[Samples], rate_factor: f64, count: usize) -> Result<Vec<f64>> {
        assert!((1..=SLOTS).contains(&batches.len()), "as many batches as there is room for");
        with_trainer!(&mut self.machine, trainer => {
            trainer.finish()?;
            trainer.place = 0;
        });
        for batch in batches {
            self.train_step(batch, rate_factor)?;
        }
        with_trainer!(&mut self.machine, trainer => {
            trainer.finish()?;
            trainer.finished.clear();
            trainer.time_steps(batches.len(), count)
        })
    }

    /// Appends the logits of each sample, one a head.
    ///
    /// # Panics
    /// Where the columns are not the model's.
    ///
    /// # Errors
    /// Where something of the GPU's failed, and where ids were out of range.
    pub fn logits(&mut self, batch: &Samples, out: &mut Vec<f32>) -> Result<()> {
        with_trainer!(&mut self.machine, trainer => {
            for samples in parts(batch, trainer.score_size) {
                let count = samples.len();
                trainer.score(Batch::Unpacked(batch, samples), None)?;
                out.extend(trainer.network.logits(&trainer.main, count)?);
            }
            trainer.finish()
        })
    }

    /// Enqueues scoring samples and judging the scores.
    ///
    /// # Panics
    /// Where the columns are not the model's.
    ///
    /// # Errors
    /// Where something of the GPU's failed.
    pub fn judge(&mut self, batch: &Samples, evaluation: &CudaEvaluation) -> Result<()> {
        with_trainer!(&mut self.machine, trainer => {
            parts(batch, trainer.score_size)
                .try_for_each(|samples| trainer.score(Batch::Unpacked(batch, samples), Some(evaluation)))
        })
    }

    /// The same of a batch that the GPU unpacks. It is kept until its scores are judged.
    ///
    /// # Panics
    /// Where there are more samples than [`CudaModel::score_size`].
    ///
    /// # Errors
    /// As [`CudaModel::train_fed`].
    pub fn judge_fed(&mut self, batch: Arc<FedBatch>, evaluation: &CudaEvaluation) -> Result<()> {
        with_trainer!(&mut self.machine, trainer => trainer.score(Batch::Packed(batch), Some(evaluation)))
    }

    /// Begins an evaluation, once all that was begun before is done.
    ///
    /// # Errors
    /// As [`CudaModel::take_losses`].
    pub fn begin_judging(&mut self, evaluation: &CudaEvaluation) -> Result<()> {
        with_trainer!(&mut self.machine, trainer => {
            trainer.finish()?;
            Ok(evaluation.begin(&trainer.main)?)
        })
    }

    /// What an evaluation has come to.
    ///
    /// # Errors
    /// As [`CudaModel::train_fed`], and where ids were out of range.
    pub fn finish_judging(&mut self, evaluation: &CudaEvaluation) -> Result<Judgement> {
        with_trainer!(&mut self.machine, trainer => {
            trainer.finish()?;
            Ok(evaluation.finish(&trainer.main)?)
        })
    }

    /// Samples that are scored at a time, at most.
    pub fn score_size(&self) -> usize {
        with_trainer!(&self.machine, trainer => trainer.score_size)
    }
}

/// Samples by so many at a time.
fn parts(batch: &Samples, size: usize) -> impl Iterator<Item = Range<usize>> {
    let len = batch.len;
    (0..len).step_by(size).map(move |first| first..len.min(first + size))
}

impl Weights for CudaModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn try_for_each_run(
        &self,
        tell: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        let failed = |error: rankine_embedding::cuda::Error| SavedModelError::Gpu(error.to_string());
        with_trainer!(&self.machine, trainer => {
            let Trainer { tables, main, network, .. } = &**trainer;
            tables.check(main).map_err(failed)?;
            tell(&network.parameters(main).map_err(failed)?)?;
            tables.try_for_each_row(main, |weights| tell(weights), failed)
        })
    }
}

/// A model with all that its steps need.
#[derive(Debug)]
struct Trainer<T> {
    compute: Compute,
    network: Network<T>,
    tables: LocalTables,
    main: Lane,
    copies: Lane,
    slots: Vec<TrainSlot>,
    /// Samples that are scored at a time.
    score_size: usize,
    /// One a slot.
    losses: Pinned<f64>,
    /// One a slot: not 0 where the batch there has values that its schema does not admit.
    faults: Pinned<u32>,
    /// From the first batch on that is unpacked on the GPU.
    unpacker: Option<Unpacker>,
    /// Steps that were begun.
    steps: u64,
    /// The slot of the next step.
    place: usize,
    /// The steps that were begun and are not known to be done.
    under_way: VecDeque<UnderWay>,
    finished: Vec<f64>,
}

/// A batch's place, and the iteration over what lies there.
#[derive(Debug)]
struct TrainSlot {
    input: InputSlot,
    iteration: Graph,
    /// Scores the samples that lie there.
    pass: Graph,
    done: Moment,
}

/// A step that is not known to be done.
#[derive(Debug)]
struct UnderWay {
    /// Its slot.
    place: usize,
    /// Whether it is one of training, which has a loss.
    trains: bool,
    /// Its batch, whose blocks the GPU may not have read yet.
    fed: Option<Arc<FedBatch>>,
}

/// A batch of either kind.
enum Batch<'a> {
    Unpacked(&'a Samples, Range<usize>),
    Packed(Arc<FedBatch>),
}

impl Batch<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Unpacked(_, samples) => samples.len(),
            Self::Packed(batch) => batch.len(),
        }
    }
}

impl<T: Element> Trainer<T> {
    fn new(
        device: &Arc<Device>,
        products: Products,
        (spec, rules): (&ModelSpec, &TrainingRules),
        seed: u64,
        BatchShape { batch_size, score_size, hotness }: BatchShape<'_>,
    ) -> Result<Self> {
        let main = Lane::of_high_priority(device)?;
        let places = Places::new(spec);
        let columns: Vec<_> = hotness.iter().copied().map(of_column).collect();
        let features = table_features(spec, &places);
        let (all, optimizers): (Vec<_>, Vec<_>) = rules.all_tables(spec).into_iter().unzip();
        let layout = Layout::new(1, batch_size, places.stride, &all, &columns, &features)?;
        let layout = layout.with_optimizers(&optimizers);
        let tables = LocalTables::initialized(device, layout, &main, seed, spec.tables.len())?;
        let parameters = initial_parameters(spec, seed);
        let compute = products.compute;
        let network = Network::new(device, products, (spec, rules), &places, batch_size, &parameters)?;
        let losses = Pinned::zeroed(device, SLOTS)?;
        let (forward, backward) = (network.plan_forward(batch_size, true)?, network.plan_backward()?);
        let scoring = network.plan_forward(score_size, false)?;
        let lanes = Lanes::new(&main)?;
        let layout = InputLayout::new(spec, tables.layout());
        let mut slots = Vec::new();
        for _ in 0..SLOTS {
            let input = {
                let _input = device.purpose("input");
                InputSlot::new(device, layout.clone())?
            };
            let (forward, backward) = (&forward, &backward);
            let losses = losses.device_pointer()?;
            let (of_network, of_tables, input_at) = (&network, &tables, input.input());
            let iteration = Iteration {
                network: of_network,
                tables: of_tables,
                forward,
                backward,
                input: input_at,
                losses,
            };
            // SAFETY: all of it lives as long as the trainer, and is of the same model and batch size.
            let iteration = || unsafe { iteration.enqueue_all(&lanes) };
            if slots.is_empty() {
                // Once without a graph, so that libraries load what they need. Nothing is written meanwhile.
                network.hold(&main, true)?;
                iteration()?;
                network.hold(&main, false)?;
            }
            let pass = || enqueue_pass(&network, &tables, &main, &input, &scoring);
            if slots.is_empty() {
                pass()?;
                main.synchronize()?;
            }
            let iteration = Graph::capture(&main, iteration)?;
            let pass = Graph::capture(&main, pass)?;
            slots.push(TrainSlot { iteration, pass, done: Moment::new(device)?, input });
        }
        let copies = Lane::new(device)?;
        drop(lanes);
        Ok(Self {
            compute,
            network,
            tables,
            main,
            copies,
            slots,
            score_size,
            faults: Pinned::zeroed(device, SLOTS)?,
            unpacker: None,
            losses,
            steps: 0,
            place: 0,
            under_way: VecDeque::new(),
            finished: Vec::new(),
        })
    }

    fn step(&mut self, batch: Batch<'_>, step: Step, rates: &[Rate]) -> Result<()> {
        let place = self.send(batch, step, rates)?;
        let TrainSlot { iteration, done, .. } = &mut self.slots[place];
        // SAFETY: the buffers that the graph was captured with are this value's.
        unsafe { iteration.replay(&self.main) }?;
        self.main.record(done)?;
        self.steps += 1;
        Ok(())
    }

    /// Sends a batch to the next slot, which becomes one under way, once there is one.
    fn send(&mut self, batch: Batch<'_>, step: Step, rates: &[Rate]) -> Result<usize> {
        if self.under_way.len() == SLOTS {
            self.finish_first()?;
        }
        let (place, trains) = (self.place, step.number > 0);
        let input = &mut self.slots[place].input;
        let told = (Step { loss_place: place as u32, ..step }, rates);
        let lanes = (&self.copies, &self.main);
        let fed = match batch {
            Batch::Unpacked(batch, samples) => {
                input.send(lanes, batch, samples, told)?;
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
        self.place = (place + 1) % SLOTS;
        self.under_way.push_back(UnderWay { place, trains, fed });
        Ok(place)
    }

    /// Times the phases of an iteration over the batch that lies in the first slot.
    fn time_phases(&mut self, spec: &ModelSpec, rules: &TrainingRules) -> Result<PhaseTimes> {
        self.finish()?;
        let fp8 = self.network.multiplies_fp8();
        let (bytes_per_s, flops_per_s) = ceilings::<T>(self.main.device(), &self.main, self.compute)?;
        let fp8_flops_per_s = fp8.then(|| fp8_ceiling(self.main.device(), &self.main)).transpose()?;
        let layout = self.tables.layout();
        let iteration = Iteration {
            network: &self.network,
            tables: &self.tables,
            forward: &self.network.plan_forward(layout.samples(), true)?,
            backward: &self.network.plan_backward()?,
            input: self.slots[0].input.input(),
            losses: self.losses.device_pointer()?,
        };
        // The first slot's batch need not be the last one that was routed.
        // SAFETY: all of it lives until the lane has been waited for, and is of the same model and batch size.
        unsafe { iteration.enqueue(Phase::Route, &self.main) }?;
        let [look_ups, distinct_rows] = self.tables.counts(&self.main)?;
        let sizes = Sizes {
            spec,
            rules,
            samples: layout.samples() as u64,
            element_bytes: size_of::<T>() as u64,
            fp8,
            look_ups,
            distinct_rows,
        };
        let mut phases = Vec::new();
        for phase in Phase::ALL {
            let work = sizes.work(phase);
            if work != Work::default() {
                // SAFETY: as above; what comes before the phase was done in the steps before.
                let ms = time(&self.main, || unsafe { iteration.enqueue(phase, &self.main) })?;
                phases.push((phase, ms, work));
            }
        }
        Ok(PhaseTimes { phases, bytes_per_s, flops_per_s, fp8_flops_per_s })
    }

    /// A moment on the lane that begins and ends iterations.
    fn mark(&self) -> Result<Moment> {
        let moment = Moment::new(self.main.device())?;
        self.main.record(&moment)?;
        Ok(moment)
    }

    fn time_steps(&mut self, batches: usize, count: usize) -> Result<Vec<f64>> {
        let device = self.main.device();
        let moments = (0..=count).map(|_| Moment::new(device)).collect::<Result<Vec<_>, _>>()?;
        self.main.record(&moments[0])?;
        for (step, moment) in moments[1..].iter().enumerate() {
            // SAFETY: the buffers that the graph was captured with are this value's.
            unsafe { self.slots[step % batches].iteration.replay(&self.main) }?;
            self.main.record(moment)?;
        }
        self.main.synchronize()?;
        self.tables.check(&self.main)?;
        let times = moments.windows(2).map(|pair| pair[1].ms_since(&pair[0]));
        Ok(times.collect::<Result<_, _>>()?)
    }

    /// Waits for the first of the steps under way.
    fn finish_first(&mut self) -> Result<()> {
        let Some(UnderWay { place, trains, fed }) = self.under_way.pop_front() else { return Ok(()) };
        self.slots[place].done.synchronize()?;
        if let Some(batch) = fed
            && self.faults.elements()[place] != 0
        {
            return Err(batch.what_is_wrong().into());
        }
        if trains {
            self.finished.push(self.losses.elements()[place]);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        while !self.under_way.is_empty() {
            self.finish_first()?;
        }
        Ok(self.tables.check(&self.main)?)
    }

    /// Scores samples that fit a slot, and lets them be judged.
    fn score(&mut self, batch: Batch<'_>, evaluation: Option<&CudaEvaluation>) -> Result<()> {
        assert!(batch.len() <= self.score_size, "as many as are scored at a time");
        let rates = vec![Rate::default(); self.tables.layout().tables().len()];
        let place = self.send(batch, Step::default(), &rates)?;
        let TrainSlot { input, pass, done, .. } = &mut self.slots[place];
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
            pass.replay(&self.main)?;
            if let Some(evaluation) = evaluation {
                evaluation.add(&self.main, scored)?;
            }
        }
        Ok(self.main.record(done)?)
    }
}

/// Enqueues scoring the samples of a slot.
fn enqueue_pass<T: Element>(
    network: &Network<T>,
    tables: &LocalTables,
    main: &Lane,
    slot: &InputSlot,
    plan: &Forward,
) -> Result<()> {
    let (input, samples) = (slot.input(), plan.samples());
    // SAFETY: network, tables and slot live as long as the trainer, and the lane orders the work.
    unsafe {
        network.bottom_forward(main, input, plan)?;
        network.look_up(main, tables, input, samples)?;
        network.interact(main, plan)?;
        network.hidden_forward(main, plan)?;
        network.head(main, input, samples, false)?;
    }
    Ok(())
}

/// What looks up the tables of a model: of each column its vectors, then of each its first-order terms, where the model
/// has such.
fn table_features(spec: &ModelSpec, places: &Places) -> Vec<Feature> {
    let columns = || spec.features.iter().enumerate();
    let vector = |((column, feature), &place): ((usize, &FeatureSpec), _)| {
        let &FeatureSpec { table, pooling, .. } = feature;
        Feature { column, table, place, pooling }
    };
    let terms = |((column, feature), &place): ((usize, &FeatureSpec), _)| Feature {
        column,
        table: spec.tables.len() + column,
        place,
        pooling: feature.pooling,
    };
    let vectors = columns().zip(&places.features).map(vector);
    vectors.chain(columns().zip(&places.wide).map(terms)).collect()
}

fn of_column(hotness: schema::Hotness) -> Hotness {
    match hotness {
        schema::Hotness::Fixed(ids) => Hotness::Fixed(ids as usize),
        schema::Hotness::Ragged { max } => Hotness::Ragged { max: max as usize },
    }
}
