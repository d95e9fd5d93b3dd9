//! A model in a GPU's memory: training steps, and scores.

use std::collections::VecDeque;
use std::sync::Arc;

use half::{bf16, f16};
use rankine_cuda::blas::Compute;
use rankine_cuda::kernels::{Element, Rate, Step};
use rankine_cuda::{Device, Graph, Lane, Moment, Pinned};
use rankine_embedding::Optimizer;
use rankine_embedding::cuda::{Error, Feature, Hotness, Layout, LocalTables, Result};
use rankine_reader::Samples;
use rankine_reader::schema;

use super::input::{InputLayout, InputSlot};
use super::network::{Backward, Forward, Network, Places};
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
        precision: Precision,
        seed: u64,
        batches: BatchShape<'_>,
    ) -> Result<Self> {
        device.bind()?;
        let batches = BatchShape { score_size: batches.score_size.min(batches.batch_size), ..batches };
        let parts = (&spec, rules);
        let machine = match precision {
            Precision::Fp32 => Machine::F32(Trainer::new(device, Compute::F32, parts, seed, batches)?.into()),
            Precision::Tf32 => {
                Machine::F32(Trainer::new(device, Compute::Tf32, parts, seed, batches)?.into())
            }
            Precision::Bf16 => {
                Machine::Bf16(Trainer::new(device, Compute::Bf16, parts, seed, batches)?.into())
            }
            Precision::Fp16 => Machine::F16(Trainer::new(device, Compute::F16, parts, seed, batches)?.into()),
        };
        let optimizers = rules.all_tables(&spec).into_iter().map(|(_, optimizer)| optimizer).collect();
        Ok(Self { spec, rules: rules.clone(), optimizers, machine })
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
        assert!(batch.len > 0, "a batch has at least one sample");
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
        with_trainer!(&self.machine, trainer => trainer.network.skipped_steps(&trainer.main))
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

    /// Appends the logit of each sample.
    ///
    /// # Errors
    /// Where something of the GPU's failed.
    pub fn logits(&mut self, batch: &Samples, out: &mut Vec<f32>) -> Result<()> {
        with_trainer!(&mut self.machine, trainer => trainer.logits(batch, out))
    }
}

impl Weights for CudaModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn try_for_each_run(
        &self,
        tell: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        let failed = |error: Error| SavedModelError::Gpu(error.to_string());
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
    network: Network<T>,
    tables: LocalTables,
    main: Lane,
    copies: Lane,
    slots: Vec<TrainSlot>,
    scores: Scores,
    /// One a slot.
    losses: Pinned<f64>,
    /// Steps that were begun.
    steps: u64,
    /// The slot of the next step.
    place: usize,
    /// The slots of the steps that were begun and are not known to be done.
    under_way: VecDeque<usize>,
    finished: Vec<f64>,
}

/// A batch's place, and the iteration over what lies there.
#[derive(Debug)]
struct TrainSlot {
    input: InputSlot,
    iteration: Graph,
    done: Moment,
}

#[derive(Debug)]
struct Scores {
    samples: usize,
    input: InputSlot,
    pass: Graph,
}

/// What an iteration is enqueued on. Beside the layers, the look-ups and the way to the tables' update have lanes of
/// their own.
struct Lanes<'a> {
    main: &'a Lane,
    beside: Lane,
    routes: Lane,
    begun: Moment,
    looked_up: Moment,
    routed: Moment,
    judged: Moment,
    updated: Moment,
}

impl<T: Element> Trainer<T> {
    fn new(
        device: &Arc<Device>,
        compute: Compute,
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
        let network = Network::new(device, compute, (spec, rules), &places, batch_size, &parameters)?;
        let losses = Pinned::zeroed(device, SLOTS)?;
        let (forward, backward) = (network.plan_forward(batch_size)?, network.plan_backward()?);
        let lanes = Lanes {
            main: &main,
            beside: Lane::of_high_priority(device)?,
            routes: Lane::new(device)?,
            begun: Moment::new(device)?,
            looked_up: Moment::new(device)?,
            routed: Moment::new(device)?,
            judged: Moment::new(device)?,
            updated: Moment::new(device)?,
        };
        let layout = InputLayout::new(spec, tables.layout());
        let mut slots = Vec::new();
        for _ in 0..SLOTS {
            let input = InputSlot::new(device, layout.clone())?;
            let iteration =
                || enqueue_iteration(&network, &tables, &lanes, &input, (&losses, &forward, &backward));
            if slots.is_empty() {
                // Once without a graph, so that libraries load what they need. Nothing is written meanwhile.
                network.hold(&main, true)?;
                iteration()?;
                network.hold(&main, false)?;
            }
            let graph = Graph::capture(&main, iteration)?;
            slots.push(TrainSlot { iteration: graph, done: Moment::new(device)?, input });
        }
        let input = InputSlot::new(device, layout)?;
        let plan = network.plan_forward(score_size)?;
        let score = || -> Result<()> {
            // SAFETY: network, tables and slot live as long as the trainer, and the lane orders the work.
            unsafe {
                network.bottom_forward(&main, input.input(), &plan)?;
                network.look_up(&main, &tables, input.input(), score_size)?;
                network.interact(&main, &plan)?;
                network.hidden_forward(&main, &plan)?;
                network.head(&main, input.input(), score_size, false)
            }
        };
        score()?;
        main.synchronize()?;
        let pass = Graph::capture(&main, score)?;
        let scores = Scores { samples: score_size, input, pass };
        let copies = Lane::new(device)?;
        drop(lanes);
        Ok(Self {
            network,
            tables,
            main,
            copies,
            slots,
            scores,
            losses,
            steps: 0,
            place: 0,
            under_way: VecDeque::new(),
            finished: Vec::new(),
        })
    }

    fn step(&mut self, batch: &Samples, step: Step, rates: &[Rate]) -> Result<()> {
        if self.under_way.len() == SLOTS {
            self.finish_first()?;
        }
        let place = self.place;
        let TrainSlot { input, iteration, done } = &mut self.slots[place];
        input.stage(batch, 0..batch.len, Step { loss_place: place as u32, ..step }, rates);
        input.send(&self.copies, &self.main)?;
        // SAFETY: the buffers that the graph was captured with are this value's.
        unsafe { iteration.replay(&self.main) }?;
        self.main.record(done)?;
        self.steps += 1;
        self.place = (place + 1) % SLOTS;
        self.under_way.push_back(place);
        Ok(())
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
        let Some(place) = self.under_way.pop_front() else { return Ok(()) };
        self.slots[place].done.synchronize()?;
        self.finished.push(self.losses.elements()[place]);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        while !self.under_way.is_empty() {
            self.finish_first()?;
        }
        self.tables.check(&self.main)
    }

    fn logits(&mut self, batch: &Samples, out: &mut Vec<f32>) -> Result<()> {
        let Scores { samples, input, pass } = &mut self.scores;
        let rates = vec![Rate::default(); self.tables.layout().tables().len()];
        for first in (0..batch.len).step_by(*samples) {
            let count = (batch.len - first).min(*samples);
            input.stage(batch, first..first + count, Step::default(), &rates);
            input.send(&self.copies, &self.main)?;
            // SAFETY: the buffers that the graph was captured with are this value's.
            unsafe { pass.replay(&self.main) }?;
            out.extend(self.network.logits(&self.main, count)?);
        }
        Ok(())
    }
}

/// Enqueues a whole iteration: the loss goes to the slot's place among `losses`.
fn enqueue_iteration<T: Element>(
    network: &Network<T>,
    tables: &LocalTables,
    lanes: &Lanes<'_>,
    slot: &InputSlot,
    (losses, forward, backward): (&Pinned<f64>, &Forward, &Backward),
) -> Result<()> {
    let Lanes { main, beside, routes, begun, looked_up, routed, judged, updated } = lanes;
    let (input, samples) = (slot.input(), tables.layout().samples());
    main.record(begun)?;
    beside.wait(begun)?;
    routes.wait(begun)?;
    // SAFETY: network, tables, losses and slot live as long as the trainer, and are of the same model and batch size.
    // The lanes order the work: tables and parameters change when all that reads them is done.
    unsafe {
        network.look_up(beside, tables, input, samples)?;
        beside.record(looked_up)?;
        tables.route(routes, input.ids)?;
        routes.record(routed)?;
        network.bottom_forward(main, input, forward)?;
        main.wait(looked_up)?;
        network.interact(main, forward)?;
        network.hidden_forward(main, forward)?;
        network.head(main, input, samples, true)?;
        network.hidden_backward(main, backward)?;
        network.interact_backward(main, backward)?;
        network.bottom_backward(main, backward)?;
        network.verdict(main, input, losses.device_pointer()?)?;
        main.record(judged)?;
        beside.wait(judged)?;
        beside.wait(routed)?;
        network.update_tables(beside, tables, input)?;
        beside.record(updated)?;
        network.update(main, input)?;
        main.wait(updated)?;
        network.end(main)?;
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
