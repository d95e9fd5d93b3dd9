//! Batches unpacked by the GPU, against those unpacked by the CPU.

use std::sync::Arc;

use libtest_mimic::Failed;
use rankine::job::Precision;
use rankine_backend::{Backend, Batch, PackedBatch, Scorer};
use rankine_cuda::kernels::{Rate, Step};
use rankine_cuda::{CopyGate, Device, Lane, PinnedBuffer};
use rankine_embedding::cuda::{Feature, Hotness, Layout};
use rankine_embedding::{
    Dtype, DynamicRows, EmbeddingPlan, Eviction, Exchange, Pooling, TablePlan, TableSpec, cpu,
};
use rankine_engine_gpu::{
    BatchShape, CudaModel, Delivery, EvaluationShape, Execution, Feed, FeedPart, FeedRanks, InputLanes,
    InputLayout, InputSlot, ModelSetup, ScoreSize, StepParameters,
};
use rankine_model::evaluation::{Evaluation, HeadMetrics, JudgedHead};
use rankine_model::{FeatureSpec, HeadSpec, Interaction, Model, ModelSpec};
use rankine_reader::block::{self, BlockId};
use rankine_reader::dataset::{BlockCoding, BlockLocation, DatasetPart, Manifest, PackedShard};
use rankine_reader::io::IoOptions;
use rankine_reader::schema::{
    self, Categorical, Dense, DenseDtype, DenseFunction, DenseTransform, Label, VocabularyKind,
};
use rankine_reader::stream::{BatchStream, Order, Position, StreamOptions};
use rankine_reader::{Bags, Part, Samples, Schema};
use rankine_topology::{Rank, Topology};
use xxhash_rust::xxh3::xxh3_64;

use super::{Bench, Body, Outcome, Words};

pub(crate) const BODIES: &[Body] = &[
    ("batches_are_unpacked_as_on_the_cpu", 12, batches_are_unpacked_as_on_the_cpu),
    ("batches_are_staged_as_they_are", 4, batches_are_staged_as_they_are),
    ("batches_with_weights_of_ids_are_unpacked_as_on_the_cpu", 12, |bench, words| {
        let dataset = Dataset::weighted(words)?;
        are_unpacked_as_on_the_cpu(bench, words, &dataset)
    }),
    ("batches_with_weights_of_ids_are_staged_as_they_are", 4, |bench, words| {
        let dataset = Dataset::weighted(words)?;
        are_staged_as_they_are(bench, words, &dataset)
    }),
    ("training_with_weights_of_ids_is_the_same_however_it_is_fed", 4, |bench, words| {
        is_the_same_however_it_is_fed(std::slice::from_ref(&bench.device), 1, words, Columns::Weighted)
    }),
    ("batches_with_ids_of_dynamic_tables_are_unpacked_as_on_the_cpu", 12, |bench, words| {
        let dataset = Dataset::with_rows(words, 58, Columns::Open)?;
        are_unpacked_as_on_the_cpu(bench, words, &dataset)
    }),
    ("batches_with_ids_of_dynamic_tables_are_staged_as_they_are", 4, |bench, words| {
        let dataset = Dataset::with_rows(words, 58, Columns::Open)?;
        are_staged_as_they_are(bench, words, &dataset)
    }),
    ("training_of_dynamic_tables_is_the_same_however_it_is_fed", 4, |bench, words| {
        is_the_same_however_it_is_fed(std::slice::from_ref(&bench.device), 1, words, Columns::Open)
    }),
    ("wrong_weights_of_ids_are_named", 4, wrong_weights_of_ids_are_named),
    ("training_is_the_same_however_it_is_fed", 4, training_is_the_same_however_it_is_fed),
    ("values_that_the_schema_does_not_admit_are_named", 4, values_that_the_schema_does_not_admit_are_named),
];

/// What is special about the categorical columns of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Columns {
    Plain,
    /// The ids of some columns have weights.
    Weighted,
    /// Some vocabularies are open, and their tables dynamic.
    Open,
}

/// A part of a dataset in a temporary folder.
pub(crate) struct Dataset {
    _home: tempfile::TempDir,
    pub(crate) part: DatasetPart,
    /// For each categorical column, the most bits in which its ids differ.
    bits: Vec<u64>,
}

impl Dataset {
    /// Labels with gaps, weights or none, dense columns of either type, and ids of all widths; blocks of a column may
    /// use fewer bits than others.
    fn random(words: &mut Words) -> Result<Self, Failed> {
        Self::with_rows(words, 58, Columns::Plain)
    }

    /// The same, with weights in some ragged column at least.
    fn weighted(words: &mut Words) -> Result<Self, Failed> {
        Self::with_rows(words, 58, Columns::Weighted)
    }

    /// Tables have fewer than 2^`row_bits` rows.
    fn with_rows(words: &mut Words, row_bits: u64, columns: Columns) -> Result<Self, Failed> {
        let (has_weights, has_open) = (columns == Columns::Weighted, columns == Columns::Open);
        let labels = 1 + words.below(3);
        let column = |number: u64, words: &mut Words| {
            let most = 1 + words.below(12) as u32;
            let ragged = words.below(2) == 0;
            let open = has_open && words.below(3) > 0;
            Categorical {
                name: format!("C{number}"),
                rows: (!open).then(|| 1 << words.below(row_bits)),
                hotness: match ragged {
                    true => schema::Hotness::Ragged { max: most },
                    false => schema::Hotness::Fixed(words.one_of(&[1, 1, most])),
                },
                pooling: match has_weights {
                    true => words.one_of(&[schema::Pooling::Sum, schema::Pooling::Mean]),
                    false => schema::Pooling::Sum,
                },
                vocabulary: if open { VocabularyKind::Open } else { VocabularyKind::Identity },
                weighted: has_weights && ragged && words.below(4) > 0,
                shares: None,
            }
        };
        let dense = |number| Dense {
            name: format!("I{number}"),
            transform: DenseTransform::plain(DenseFunction::None),
        };
        let mut categorical: Vec<_> = (0..words.below(8)).map(|number| column(number, words)).collect();
        while has_weights && !categorical.iter().any(|column| column.weighted) {
            categorical.push(column(categorical.len() as u64, words));
        }
        let schema = Schema {
            labels: (0..labels).map(|number| Label::new(format!("L{number}"))).collect(),
            weight: (words.below(2) == 0).then(|| "weight".into()),
            dense: (0..words.below(15)).map(dense).collect(),
            dense_dtype: words.one_of(&[DenseDtype::F16, DenseDtype::F32]),
            sequences: Vec::new(),
            categorical,
        };
        let block_samples = words.one_of(&[1, 100, 256, 700, 2000]);
        let blocks = 1 + words.below(9);
        Self::of(schema, block_samples, blocks, words)
    }

    pub(crate) fn of(
        schema: Schema,
        block_samples: u32,
        blocks: u64,
        words: &mut Words,
    ) -> Result<Self, Failed> {
        let home = tempfile::tempdir()?;
        let path = home.path().join("00000.blocks");
        let tag = Manifest::tag(&schema);
        let (mut bytes, mut locations, mut samples) = (Vec::new(), Vec::new(), 0);
        for index in 0..blocks {
            let last = index + 1 == blocks;
            let len = if last { 1 + words.below(u64::from(block_samples)) as u32 } else { block_samples };
            let id = BlockId { dataset: tag, part: Part::Train, index };
            let block = block::encode(&schema, id, &samples_of(&schema, len as usize, words))?;
            locations.push(BlockLocation {
                file: 0,
                offset: bytes.len() as u64,
                bytes: block.len() as u32,
                samples: len,
                checksum: block::stated_checksum(&block).ok_or("a block has a checksum")?,
            });
            bytes.extend(block);
            samples += u64::from(len);
        }
        std::fs::write(&path, bytes)?;
        let bits = schema.categorical.iter().map(|column| rows_of(column).ilog2().into()).collect();
        let part = DatasetPart {
            part: Part::Train,
            files: vec![path],
            blocks: locations,
            samples,
            block_samples,
            schema: Arc::new(schema),
            coding: BlockCoding::Packed { shards: vec![PackedShard { first_block: 0, tag }] },
            objects: Default::default(),
            selection: None,
            ids: Arc::default(),
        };
        Ok(Self { _home: home, part, bits })
    }
}

/// What the ids of a column are below: the rows of its table, unless its vocabulary is open.
fn rows_of(column: &Categorical) -> u64 {
    column.rows.unwrap_or(u64::MAX)
}

/// The table of a column.
fn table_of(column: &Categorical) -> TableSpec {
    let dynamic = DynamicRows { capacity: 300, admit_after: 2, evict: Eviction::Lru };
    let dynamic = column.rows.is_none().then_some(dynamic);
    let rows = dynamic.map_or_else(|| rows_of(column), |rows| rows.table_rows());
    TableSpec { name: column.name.clone(), rows, dim: 16, dtype: Dtype::Fp32, dynamic }
}

fn samples_of(schema: &Schema, len: usize, words: &mut Words) -> Samples {
    let mut samples = Samples::new(schema);
    samples.len = len;
    for labels in &mut samples.labels {
        let gaps = words.below(2) == 0;
        labels.extend((0..len).map(|_| match words.below(if gaps { 5 } else { 4 }) {
            4 => f32::NAN,
            number => (number & 1) as f32,
        }));
    }
    if schema.weight.is_some() {
        samples.weights.extend((0..len).map(|_| words.number() + 1.0));
    }
    // Values that both types represent exactly.
    samples.dense.extend((0..len * schema.dense.len()).map(|_| words.below(2001) as f32 - 1000.0));
    for (column, bags) in schema.categorical.iter().zip(&mut samples.categorical) {
        let rows = rows_of(column);
        let range = 1 << words.below(u64::from(rows.ilog2()) + 1);
        let first = words.below(rows - range + 1);
        let most = column.hotness.max();
        let most = if words.below(4) == 0 { most.min(1) } else { most };
        for _ in 0..len {
            let size = match column.hotness {
                schema::Hotness::Fixed(size) => size,
                schema::Hotness::Ragged { .. } => words.below(u64::from(most) + 1) as u32,
            };
            let ids: Vec<_> = (0..size).map(|_| first + words.below(range)).collect();
            if column.weighted {
                let weight = |_: &u64| words.one_of(&[1e-40, 0.5, 1.0, 1.0]) * (words.number() + 1.25);
                let weights: Vec<_> = ids.iter().map(weight).collect();
                bags.push_weighted(ids.into_iter().zip(weights));
            } else {
                bags.push(ids);
            }
        }
    }
    samples
}

/// A column as a model looks it up.
fn feature_of(table: usize, column: &Categorical) -> FeatureSpec {
    let pooling = match column.pooling {
        schema::Pooling::Sum => Pooling::Sum,
        schema::Pooling::Mean => Pooling::Mean,
    };
    FeatureSpec { column: column.name.clone(), table, pooling, weighted: column.weighted }
}

/// A slot for batches of a schema, for a model whose heads are all labels, the last one first.
struct Slot {
    slot: InputSlot,
    /// Whether each column's vocabulary is open.
    open: Vec<bool>,
    /// Of each column.
    poolings: Vec<Pooling>,
    lane: Lane,
    faults: PinnedBuffer<u32>,
}

const PARAMETERS: StepParameters<'_> = StepParameters {
    step: Step { number: 7, samples: 0, loss_index: 1, dense: Rate { rate: 0.5, root_correction: 1.0 } },
    rates: &[Rate { rate: 0.0, root_correction: 0.0 }],
};

impl Slot {
    fn new(bench: &Bench, schema: &Schema, batch_size: usize) -> Result<Self, Failed> {
        let head = |(label_number, label): (usize, &Label)| HeadSpec {
            label: label.name.clone(),
            label_number,
            weight: 1.0,
        };
        let spec = ModelSpec {
            dense_columns: schema.dense.len(),
            bottom_mlp: Vec::new(),
            interaction: Interaction::Concat,
            wide: false,
            top_mlp: Vec::new(),
            heads: schema.labels.iter().enumerate().map(head).rev().collect(),
            tables: Vec::new(),
            features: schema.categorical.iter().map(|column| feature_of(0, column)).collect(),
            attention: Vec::new(),
        };
        let columns = schema.categorical.iter().map(|column| match column.hotness {
            schema::Hotness::Fixed(ids) => Hotness::Fixed(ids as usize),
            schema::Hotness::Ragged { max } => Hotness::Ragged { max: max as usize },
        });
        let open: Vec<_> = schema.categorical.iter().map(|column| column.rows.is_none()).collect();
        let dynamic = DynamicRows { capacity: 1, admit_after: 1, evict: Eviction::Lru };
        let dynamic = open.contains(&true).then_some(dynamic);
        let tables = [TableSpec { name: "of ids".into(), rows: 2, dim: 4, dtype: Dtype::Fp32, dynamic }];
        let features = (0..open.len()).filter(|&column| open[column]);
        let features =
            features.map(|column| Feature { column, table: 0, vector_offset: 0, pooling: Pooling::Sum });
        let features: Vec<_> = features.collect();
        let layout = Layout::new(1, batch_size, 4, &tables, &columns.collect::<Vec<_>>(), &features)?;
        let weighted: Vec<_> = schema.categorical.iter().map(|column| column.weighted).collect();
        let layout = InputLayout::new(&spec, &layout.with_weights(&weighted)?);
        let slot = InputSlot::new(&bench.device, layout)?;
        let poolings = spec.features.into_iter().map(|feature| feature.pooling).collect();
        Ok(Self {
            slot,
            open,
            poolings,
            lane: Lane::new(&bench.device)?,
            faults: PinnedBuffer::zeroed(&bench.device, 2)?,
        })
    }

    fn check(&self, what: &str, expected: &Samples) -> Outcome {
        let found = self.slot.samples(&self.lane)?;
        let mut expected = expected.clone();
        expected.labels.reverse();
        if expected.weights.is_empty() {
            expected.weights = vec![1.0; expected.len];
        }
        let columns = expected.categorical.iter_mut().zip(&self.poolings).zip(&self.open);
        for ((bags, &pooling), &open) in columns {
            if !bags.weights.is_empty() {
                let Bags { offsets, ids, weights } = &*bags;
                let on_cpu = cpu::Bags { offsets, ids, weights: Some(weights) };
                let factors = (0..on_cpu.len()).filter_map(|bag| on_cpu.factors(bag, pooling));
                bags.weights = factors.flatten().collect();
            }
            // The slot's maximum.
            let most = if open { u64::MAX } else { u32::MAX.into() };
            bags.ids.iter_mut().for_each(|id| *id = (*id).min(most));
        }
        let same = found == expected;
        if same { Ok(()) } else { Err(format!("{what}: {found:?} instead of {expected:?}").into()) }
    }
}

fn options(words: &mut Words, part: &DatasetPart) -> StreamOptions {
    let order = match words.below(3) {
        0 => Order::File,
        _ => Order::Shuffled { seed: words.below(1 << 20), window_blocks: 1 + words.below(5) as u32 },
    };
    let batch_size = words.one_of(&[1, 64, 300, 1000, 5000]).max(part.samples as usize / 60);
    StreamOptions {
        epochs: Some(3),
        order,
        start: Position { epoch: words.below(2), sample: words.below(part.samples + 1) },
        io: IoOptions { depth: 3, ..IoOptions::default() },
        prefetch: 1 + words.below(3) as usize,
        ..StreamOptions::one_epoch(batch_size)
    }
}

fn batches_are_unpacked_as_on_the_cpu(bench: &Bench, words: &mut Words) -> Outcome {
    let dataset = Dataset::random(words)?;
    are_unpacked_as_on_the_cpu(bench, words, &dataset)
}

fn are_unpacked_as_on_the_cpu(bench: &Bench, words: &mut Words, dataset: &Dataset) -> Outcome {
    let options = options(words, &dataset.part);
    let mut slot = Slot::new(bench, &dataset.part.schema, options.batch_size)?;
    let unpacker = slot.slot.unpacker(&bench.device, &dataset.part.schema)?;
    let stays = words.below(4) == 0;
    // One of several processes with a GPU each reads only the blocks of its share.
    let processes = words.one_of(&[1, 1, 2, 3]);
    // Without nodes there is nothing to wait for.
    let gate = Arc::new(CopyGate::new(&bench.device)?);
    let ranks = FeedRanks {
        devices: std::slice::from_ref(&bench.device),
        topology: Topology::new(processes, 1)?,
        first: Rank(words.below(processes as u64) as usize),
        binds_threads: true,
        delivery: words.one_of(&[Delivery::Needed, Delivery::Broadcast, Delivery::Kept]),
        gates: if words.below(2) == 0 { &[] } else { std::slice::from_ref(&gate) },
        grouped: 1 + words.below(3) as usize,
    };
    let mut feed = Feed::open_shares(ranks, dataset.part.clone(), &options, false)?;
    let mut kept = Vec::new();
    for batch in BatchStream::open(dataset.part.clone(), &options)? {
        let (batch, fed) = (batch?, feed.next().ok_or("the feed ends too early")??);
        if (fed.start(), fed.len()) != (batch.start, batch.samples.len) {
            return Err(format!("a batch starts at {:?}, not at {:?}", fed.start(), batch.start).into());
        }
        let share = ranks.topology.share(fed.len(), ranks.first);
        if fed.parts()[0].len() != share.len() {
            return Err(format!("{} samples of the share {share:?}", fed.parts()[0].len()).into());
        }
        if share.is_empty() {
            continue;
        }
        let faults = slot.faults.device_pointer()?;
        let lanes = InputLanes { copies: &bench.lane, reader: &slot.lane, gate: None, after: None };
        slot.slot.unpack(lanes, &fed.parts()[..1], &unpacker, faults, PARAMETERS)?;
        let what =
            format!("{share:?} of {options:?} at {:?}, columns of {:?} bits", batch.start, dataset.bits);
        slot.check(&what, &batch.samples.slice(share))?;
        // Some are released late, and not in their order.
        if stays {
            kept.push(fed);
            if kept.len() == 3 {
                kept.swap_remove(0);
                kept.clear();
            }
        }
    }
    if slot.faults.elements() != [0, 0] {
        return Err("faults were found".into());
    }
    if feed.next().is_some() { Err("the feed continues".into()) } else { Ok(()) }
}

fn batches_are_staged_as_they_are(bench: &Bench, words: &mut Words) -> Outcome {
    let dataset = Dataset::random(words)?;
    are_staged_as_they_are(bench, words, &dataset)
}

fn are_staged_as_they_are(bench: &Bench, words: &mut Words, dataset: &Dataset) -> Outcome {
    let options = options(words, &dataset.part);
    let mut slot = Slot::new(bench, &dataset.part.schema, options.batch_size)?;
    for batch in BatchStream::open(dataset.part.clone(), &options)? {
        let samples = &batch?.samples;
        let some = words.below(samples.len as u64) as usize..samples.len;
        let expected = samples.slice(some.clone());
        let lanes = InputLanes { copies: &bench.lane, reader: &slot.lane, gate: None, after: None };
        slot.slot.send(lanes, samples, some, PARAMETERS)?;
        slot.check("a staged batch", &expected)?;
    }
    Ok(())
}

fn training_is_the_same_however_it_is_fed(bench: &Bench, words: &mut Words) -> Outcome {
    is_the_same_however_it_is_fed(std::slice::from_ref(&bench.device), 1, words, Columns::Plain)
}

/// The bits of losses, weights and the metrics after them, over the GPUs of some nodes.
pub(crate) fn is_the_same_however_it_is_fed(
    devices: &[Arc<Device>],
    nodes: usize,
    words: &mut Words,
    kind: Columns,
) -> Outcome {
    let mut dataset = Dataset::with_rows(words, 14, kind)?;
    while dataset.part.schema.categorical.is_empty() || dataset.part.schema.dense.is_empty() {
        dataset = Dataset::with_rows(words, 14, kind)?;
    }
    let part = &dataset.part;
    let options = StreamOptions { start: Position::default(), ..options(words, part) };
    let columns = part.schema.categorical.iter().enumerate();
    let spec = ModelSpec {
        dense_columns: part.schema.dense.len(),
        bottom_mlp: vec![24, 16],
        interaction: Interaction::Dot,
        wide: false,
        top_mlp: vec![32],
        heads: vec![HeadSpec { label: "L0".into(), label_number: 0, weight: 1.0 }],
        tables: columns.clone().map(|(_, column)| table_of(column)).collect(),
        features: columns.map(|(table, column)| feature_of(table, column)).collect(),
        attention: Vec::new(),
    };
    let topology = Topology::new(devices.len(), nodes)?;
    // Owners do not pool the rows of dynamic tables.
    let exchange = if kind == Columns::Open { Exchange::Rows } else { words.one_of(&Exchange::ALL) };
    let place = |table: &TableSpec| TablePlan::row_wise(table, exchange);
    let plan = EmbeddingPlan { topology, tables: spec.tables.iter().map(place).collect() };
    let setup = ModelSetup {
        model: Model::sgd(spec, 0.001),
        seed: 3,
        execution: Execution::new(Precision::Bf16),
        batches: BatchShape {
            batch_size: options.batch_size,
            score_size: ScoreSize::Fixed(1),
            hotness: part.schema.categorical.iter().map(|column| column.hotness).collect(),
        },
        plan: Some(plan),
        tier: None,
        tracks_updates: false,
        devices: devices.to_vec(),
        nodes,
        processes: None,
        measures_memory: true,
    };
    let mut unpacked = CudaModel::initialized(setup.clone())?;
    // Several batches are scored together, unpacked on the GPU.
    let score_size = ScoreSize::Fixed(words.one_of(&[1, 700, 5000]));
    let mut fed = CudaModel::initialized(ModelSetup {
        batches: BatchShape { score_size, ..setup.batches.clone() },
        ..setup
    })?;
    let one_epoch = StreamOptions::one_epoch(options.batch_size);
    for batch in BatchStream::open(part.clone(), &options)? {
        unpacked.train_on(&batch?.samples, 0.5)?;
    }
    let outcome = |model: &mut CudaModel| -> Result<_, Failed> {
        let mut losses = Vec::new();
        // Bits, because a loss may be NaN if a training diverges.
        model.take_outcomes(true, &mut |outcome| losses.push(outcome.loss.to_bits()))?;
        Ok((losses, super::training::weights(model)?))
    };
    // If ranks share a GPU, memory should be locked and unlocked while none of them waits for another.
    let one = outcome(&mut unpacked)?;
    // However blocks get there, and whether they stay.
    let delivery = words.one_of(&[Delivery::Needed, Delivery::Broadcast, Delivery::Kept]);
    let mut feed =
        Feed::open_shares(FeedRanks { delivery, ..fed.feed_ranks() }, part.clone(), &options, false)?;
    for batch in feed.by_ref() {
        fed.train_step(&Batch::Packed(Box::new(batch?)), 0.5)?;
    }
    let other = outcome(&mut fed)?;
    let bytes: u64 = part.blocks.iter().map(|block| u64::from(block.bytes)).sum();
    if delivery == Delivery::Kept && feed.bytes_read() > bytes {
        return Err(format!("{} bytes of {bytes} were read", feed.bytes_read()).into());
    }
    drop(feed);
    if one != other {
        let step = one.0.iter().zip(&other.0).position(|(one, other)| one != other);
        return Err(format!("{options:?}, {delivery:?}: trainings differ; losses from step {step:?}").into());
    }
    let (samples, batch_size) = (part.samples as usize, options.batch_size);
    let mut on_host = Evaluation::new(&JudgedHead::of_heads_uncorrected(&fed.spec().heads));
    let shape = EvaluationShape { samples, batch_size, weighted: part.schema.weight.is_some() };
    unpacked.begin_evaluation(shape)?;
    for batch in BatchStream::open(part.clone(), &one_epoch)? {
        let samples = &batch?.samples;
        unpacked.evaluate(samples)?;
        let mut logits = Vec::new();
        fed.logits(samples, &mut logits)?;
        on_host.add(samples, &logits);
    }
    let expected = unpacked.finish_evaluation()?;
    let kept = Feed::open(devices, part.clone(), &one_epoch, true)?;
    let kept = kept.map(|batch| Ok(Batch::Packed(Box::new(batch?)))).collect::<Result<Vec<_>, Failed>>()?;
    for _ in 0..2 {
        fed.begin_evaluation(shape)?;
        kept.iter().try_for_each(|batch| fed.evaluate_batch(batch))?;
        let found = fed.finish_evaluation()?;
        if found != expected {
            return Err(format!("{found:?} instead of {expected:?}").into());
        }
    }
    let judged = JudgedHead::of_heads_uncorrected(&fed.spec().heads);
    let (scored, together) = (options.batch_size, fed.score_size());
    // The first time it is read; then it is on the GPUs.
    for turn in 0..3 {
        let model = if turn == 0 { &mut unpacked } else { &mut fed };
        let scores = model.score(part.clone(), &judged, &one_epoch, &mut |_| Ok(()))?;
        let found = scores.metrics()?.ok_or("a logit is NaN")?;
        if found != expected.heads {
            let what = format!("batches of {scored}, up to {together} samples scored together");
            return Err(format!("{what}: {found:?} instead of {expected:?}").into());
        }
    }
    let aucs = |heads: &[HeadMetrics]| heads[0].metrics.map(|metrics| (metrics.auc, metrics.samples));
    let (found, expected) = (aucs(&expected.heads), aucs(&on_host.metrics()));
    if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}").into()) }
}

fn values_that_the_schema_does_not_admit_are_named(bench: &Bench, words: &mut Words) -> Outcome {
    let mut dataset = Dataset::random(words)?;
    while dataset.part.schema.categorical.is_empty() {
        dataset = Dataset::random(words)?;
    }
    let options = StreamOptions { start: Position::default(), ..options(words, &dataset.part) };
    // The blocks stay unchanged; the schema with which they are read has one row fewer than the largest id needs.
    let mut largest = None;
    for batch in BatchStream::open(dataset.part.clone(), &options)? {
        let batch = batch?;
        let ids = batch.samples.categorical[0].ids.iter().max().copied();
        largest = largest.max(ids);
    }
    let Some(largest) = largest.filter(|&largest| largest > 0) else { return Ok(()) };
    Arc::make_mut(&mut dataset.part.schema).categorical[0].rows = Some(largest);
    let expected = format!("id {largest} is out of range: its table has {largest} rows");
    is_named(bench, &dataset, &options, &expected)
}

/// A block's checksum fits its bytes, but one of its weights is not allowed.
fn wrong_weights_of_ids_are_named(bench: &Bench, words: &mut Words) -> Outcome {
    let mut dataset = Dataset::weighted(words)?;
    let Schema { labels, weight, dense, categorical, .. } = &*dataset.part.schema;
    let weighted = categorical.iter().position(|column| column.weighted).ok_or("no column has weights")?;
    let before = categorical[..weighted].iter().map(block::streams_of_column).sum::<usize>();
    // After its sizes, starts and ids.
    let number = labels.len() + weight.iter().len() + dense.len() + before + 3;
    let file = dataset.part.files[0].clone();
    let mut bytes = std::fs::read(&file)?;
    let mut is_wrong = false;
    for location in &mut dataset.part.blocks {
        let own = &mut bytes[location.offset as usize..][..location.bytes as usize];
        let stream = block::Block::parse(own, &dataset.part.schema)?.streams()[number];
        if stream.count == 0 {
            continue;
        }
        let at = stream.offset as usize + 4 * words.below(u64::from(stream.count)) as usize;
        let wrong = words.one_of(&[0.0f32, -0.5, f32::NAN, f32::INFINITY]);
        own[at..at + 4].copy_from_slice(&wrong.to_le_bytes());
        // The checksum of what follows it.
        location.checksum = xxh3_64(&own[16..]);
        own[8..16].copy_from_slice(&location.checksum.to_le_bytes());
        is_wrong = true;
        break;
    }
    if !is_wrong {
        return Ok(());
    }
    std::fs::write(&file, bytes)?;
    let options = StreamOptions { start: Position::default(), ..options(words, &dataset.part) };
    is_named(bench, &dataset, &options, "weights are finite and above 0")
}

/// The GPU finds a value that is not allowed, and the error names it.
fn is_named(bench: &Bench, dataset: &Dataset, options: &StreamOptions, expected: &str) -> Outcome {
    let mut slot = Slot::new(bench, &dataset.part.schema, options.batch_size)?;
    let unpacker = slot.slot.unpacker(&bench.device, &dataset.part.schema)?;
    for fed in Feed::open(std::slice::from_ref(&bench.device), dataset.part.clone(), options, false)? {
        let fed = fed?;
        let fed = &fed.parts()[..1];
        let faults = slot.faults.device_pointer()?;
        let lanes = InputLanes { copies: &bench.lane, reader: &slot.lane, gate: None, after: None };
        slot.slot.unpack(lanes, fed, &unpacker, faults, PARAMETERS)?;
        slot.lane.synchronize()?;
        if slot.faults.elements()[1] == 0 {
            continue;
        }
        let error = FeedPart::diagnose(fed).to_string();
        let (named, file) = (error.contains(expected), error.contains("00000.blocks"));
        return if named && file { Ok(()) } else { Err(error.into()) };
    }
    Err(format!("no fault was found, but expected: {expected}").into())
}
