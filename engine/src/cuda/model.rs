//! A model in a GPU's memory: training steps, and scores.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use half::bf16;
use rankine_cuda::blas::Compute;
use rankine_cuda::kernels::{Element, Rate, Step};
use rankine_cuda::{Buffer, Device, Graph, Lane, Moment, Pinned};
use rankine_embedding::Optimizer;
use rankine_embedding::cpu::Table;
use rankine_embedding::cuda::{Feature, Hotness, Layout, LocalTables};
use rankine_reader::Samples;
use rankine_reader::schema;

use super::error::Result;
use super::feed::FedBatch;
use super::input::{InputLayout, InputSlot};
use super::network::{Backward, Forward, Network};
use super::unpack::Unpacker;
use crate::cpu::{CpuModel, initial_parameters};
use crate::job::Precision;
use crate::model::{FeatureSpec, ModelSpec, TrainingRules};

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
}

/// Does the same with a trainer of either kind.
macro_rules! with_trainer {
    ($machine:expr, $trainer:ident => $do:expr) => {
        match $machine {
            Machine::F32($trainer) => $do,
            Machine::Bf16($trainer) => $do,
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
        let machine = match precision {
            Precision::Fp32 => Machine::F32(Trainer::new(device, Compute::F32, &spec, seed, batches)?.into()),
            Precision::Tf32 => {
                Machine::F32(Trainer::new(device, Compute::Tf32, &spec, seed, batches)?.into())
            }
            Precision::Bf16 => {
                Machine::Bf16(Trainer::new(device, Compute::Bf16, &spec, seed, batches)?.into())
            }
        };
        let optimizers = rules.all_tables(&spec).into_iter().map(|(_, optimizer)| optimizer).collect();
        Ok(Self { spec, rules: rules.clone(), optimizers, machine })
    }

    /// What the model is.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The GPU.
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

    /// BatchShape that can be on the GPU at once.
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
    /// # Errors
    /// As [`CudaModel::take_scores`].
    pub fn logits(&mut self, batch: &Samples, out: &mut Vec<f32>) -> Result<()> {
        self.begin_scores(batch.len)?;
        self.score(batch)?;
        out.append(&mut self.take_scores()?.logits);
        Ok(())
    }

    /// Makes room for the scores of so many samples, and forgets those that were not taken.
    ///
    /// # Errors
    /// Where the GPU's memory does not suffice.
    pub fn begin_scores(&mut self, samples: usize) -> Result<()> {
        with_trainer!(&mut self.machine, trainer => trainer.begin_scores(samples))
    }

    /// Scores samples, behind those that were scored since scoring began. Waits only where much is under way.
    ///
    /// # Panics
    /// Where there is no room for as many, or columns are not the model's.
    ///
    /// # Errors
    /// Where something of the GPU's failed.
    pub fn score(&mut self, batch: &Samples) -> Result<()> {
        with_trainer!(&mut self.machine, trainer => {
            for first in (0..batch.len).step_by(trainer.score_size) {
                trainer.score(Batch::Unpacked(batch, first..batch.len.min(first + trainer.score_size)))?;
            }
        });
        Ok(())
    }

    /// The same of a batch that the GPU unpacks, with as many samples as are scored at a time, at most.
    ///
    /// # Panics
    /// As [`CudaModel::score`].
    ///
    /// # Errors
    /// As [`CudaModel::train_fed`].
    pub fn score_fed(&mut self, batch: Arc<FedBatch>) -> Result<()> {
        with_trainer!(&mut self.machine, trainer => trainer.score(Batch::Packed(batch)))
    }

    /// Samples that are scored at a time, at most.
    pub fn score_size(&self) -> usize {
        with_trainer!(&self.machine, trainer => trainer.score_size)
    }

    /// The scores of all samples since scoring began, once they are known.
    ///
    /// # Errors
    /// As [`CudaModel::train_fed`], and where ids were out of range.
    pub fn take_scores(&mut self) -> Result<Scores> {
        with_trainer!(&mut self.machine, trainer => trainer.take_scores())
    }

    /// The model in the host's memory, which must have room for it: its weights, and nothing of its state.
    ///
    /// # Errors
    /// Where something of the GPU's failed, and where ids of the batches were out of range.
    pub fn to_host(&self) -> Result<CpuModel> {
        let rules = TrainingRules::sgd(&self.spec, 0.0);
        let tables = rules.all_tables(&self.spec).into_iter();
        let mut tables: Vec<_> = tables.map(|(table, optimizer)| Table::zeroed(table, optimizer)).collect();
        let parameters = with_trainer!(&self.machine, trainer => {
            let Trainer { tables: from, main, network, .. } = &**trainer;
            from.check(main)?;
            from.for_each_row(main, |table, _, row, weights| {
                tables[table].weights_mut(row).copy_from_slice(weights);
            })?;
            network.layers.cut_out(&network.parameters.read(main)?)
        });
        Ok(CpuModel::new(self.spec.clone(), &rules, parameters, tables))
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
    /// Samples that are scored at a time.
    score_size: usize,
    heads: usize,
    scored: Option<Scored>,
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

/// What scoring has come to so far, in the GPU's memory.
#[derive(Debug)]
struct Scored {
    /// Samples that there is room for.
    room: usize,
    /// Samples that were scored.
    count: usize,
    /// `[sample][head]`
    logits: Buffer<f32>,
    /// `[head][sample]`
    labels: Buffer<f32>,
    /// `[sample]`
    weights: Buffer<f32>,
}

/// What a model predicts for samples, and what they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scores {
    /// `[sample][head]`
    pub logits: Vec<f32>,
    /// `[head][sample]`: NaN where a sample has no label.
    pub labels: Vec<Vec<f32>>,
    /// One a sample.
    pub weights: Vec<f32>,
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
    back: Moment,
    updated: Moment,
}

impl<T: Element> Trainer<T> {
    fn new(
        device: &Arc<Device>,
        compute: Compute,
        spec: &ModelSpec,
        seed: u64,
        BatchShape { batch_size, score_size, hotness }: BatchShape<'_>,
    ) -> Result<Self> {
        let main = Lane::of_high_priority(device)?;
        let dim = spec.tables[0].dim;
        let first = spec.vectors() - spec.features.len();
        let feature = |(column, feature): (usize, &FeatureSpec)| {
            let &FeatureSpec { table, pooling, .. } = feature;
            Feature { column, table, place: (first + column) * dim, pooling }
        };
        let features: Vec<_> = spec.features.iter().enumerate().map(feature).collect();
        let columns: Vec<_> = hotness.iter().copied().map(of_column).collect();
        let layout = Layout::new(1, batch_size, spec.vectors() * dim, &spec.tables, &columns, &features)?;
        let tables = LocalTables::initialized(device, layout, &main, seed, spec.tables.len())?;
        let network = Network::new(device, compute, spec, batch_size, &initial_parameters(spec, seed))?;
        let losses = Pinned::zeroed(device, SLOTS)?;
        let (forward, backward) = (network.plan_forward(batch_size)?, network.plan_backward()?);
        let scoring = network.plan_forward(score_size)?;
        let lanes = Lanes {
            main: &main,
            beside: Lane::of_high_priority(device)?,
            routes: Lane::new(device)?,
            begun: Moment::new(device)?,
            looked_up: Moment::new(device)?,
            routed: Moment::new(device)?,
            back: Moment::new(device)?,
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
                network.stop.write(&main, &[1])?;
                iteration()?;
                network.stop.write(&main, &[0])?;
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
            network,
            tables,
            main,
            copies,
            slots,
            score_size,
            heads: spec.heads.len(),
            scored: None,
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

    fn begin_scores(&mut self, samples: usize) -> Result<()> {
        let device = self.main.device();
        let room = |width: usize| Buffer::uninitialized(device, samples * width);
        self.scored = Some(Scored {
            room: samples,
            count: 0,
            logits: room(self.heads)?,
            labels: room(self.heads)?,
            weights: room(1)?,
        });
        Ok(())
    }

    /// Scores samples that fit a slot, behind those that were scored before.
    fn score(&mut self, batch: Batch<'_>) -> Result<()> {
        let (count, heads) = (batch.len(), self.heads);
        assert!(count <= self.score_size, "as many as are scored at a time");
        let rates = vec![Rate::default(); self.tables.layout().tables().len()];
        let place = self.send(batch, Step::default(), &rates)?;
        let TrainSlot { input, pass, done, .. } = &mut self.slots[place];
        let from = input.input();
        let scored = self.scored.as_mut().expect("scoring has begun");
        let first = scored.count;
        scored.count += count;
        assert!(scored.count <= scored.room, "as many samples as were announced");
        // SAFETY: the buffers that the graph was captured with are this value's; there are as many logits, labels and
        // weights in the slot and the network as a slot has samples, and room for these.
        unsafe {
            pass.replay(&self.main)?;
            let logits = self.network.logits.pointer();
            self.main.copy(logits, scored.logits.pointer().element(first * heads), count * heads)?;
            for head in 0..heads {
                let labels = from.labels.element(head * self.tables.layout().samples());
                self.main.copy(labels, scored.labels.pointer().element(head * scored.room + first), count)?;
            }
            self.main.copy(from.weights, scored.weights.pointer().element(first), count)?;
        }
        Ok(self.main.record(done)?)
    }

    fn take_scores(&mut self) -> Result<Scores> {
        self.finish()?;
        let Some(Scored { room, count, logits, labels, weights }) = self.scored.take() else {
            return Ok(Scores::default());
        };
        let of_head = |head| labels.read_part(&self.main, head * room, count);
        Ok(Scores {
            logits: logits.read_part(&self.main, 0, count * self.heads)?,
            labels: (0..self.heads).map(of_head).collect::<Result<_, _>>()?,
            weights: weights.read_part(&self.main, 0, count)?,
        })
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

/// Enqueues a whole iteration: the loss goes to the slot's place among `losses`.
fn enqueue_iteration<T: Element>(
    network: &Network<T>,
    tables: &LocalTables,
    lanes: &Lanes<'_>,
    slot: &InputSlot,
    (losses, forward, backward): (&Pinned<f64>, &Forward, &Backward),
) -> Result<()> {
    let Lanes { main, beside, routes, begun, looked_up, routed, back, updated } = lanes;
    let (input, samples) = (slot.input(), tables.layout().samples());
    main.record(begun)?;
    beside.wait(begun)?;
    routes.wait(begun)?;
    // SAFETY: network, tables, losses and slot live as long as the trainer, and are of the same model and batch size. The
    // lanes order the work: tables and parameters change when all that reads them is done.
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
        network.loss(main, input, losses.device_pointer()?)?;
        network.hidden_backward(main, backward)?;
        network.interact_backward(main)?;
        main.record(back)?;
        beside.wait(back)?;
        beside.wait(routed)?;
        network.update_tables(beside, tables, input)?;
        beside.record(updated)?;
        network.bottom_backward(main, backward)?;
        network.update(main, input)?;
        main.wait(updated)?;
    }
    Ok(())
}

fn of_column(hotness: schema::Hotness) -> Hotness {
    match hotness {
        schema::Hotness::Fixed(ids) => Hotness::Fixed(ids as usize),
        schema::Hotness::Ragged { max } => Hotness::Ragged { max: max as usize },
    }
}
