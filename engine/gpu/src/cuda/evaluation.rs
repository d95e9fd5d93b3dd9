//! The metrics of an evaluation, computed on the GPU that has the logits.
//!
//! Batches leave 8 bytes per sample and head: one key with score, label and weight. Sums are taken in f64 over the keys
//! of a rank, in the order of its samples, and added up in the order of ranks: how many samples are scored at a time
//! changes no bit. The AUC and the histogram of scores are counted in integers, so they are bitwise equal to the
//! host's, for any number of ranks.

use std::ops::Deref;
use std::sync::Arc;

use rankine_cuda::kernels::{
    Judge, JudgeKeys, JudgeKeysTotal, JudgeParts, JudgeSums, JudgeTotal, KEY_DIGITS, KeysCount, KeysScatter,
    KeysSum, PrefixCounts, Ties, TiesBefore, TiesBins, TiesBinsWeights, TiesCount, TiesCountWeights,
    TiesPairs, TiesPairsWeights, WeightsCount,
};
use rankine_cuda::nccl::Parcel;
use rankine_cuda::{Buffer, Device, Lane, Moment, Pointer, Rail, SharedBuffer};
use rankine_embedding::cuda::Result;
use rankine_model::HeadSpec;
use rankine_model::evaluation::auc::{Pairs, WEIGHT_CLASSES, weight_scales};
use rankine_model::evaluation::histogram::BinCounts;
use rankine_model::evaluation::metrics::Sums;
use rankine_model::evaluation::{HeadMetrics, JudgedHead, ScoreHistogram};
use rankine_topology::{LocalRank, Node, Rank};

use super::context::{RankContext, RankLinks};

/// The limit of samples: their number fits in 31 bits, so twice the number of pairs fits in 62.
const SAMPLES_MAX: u64 = 1 << 31;
/// Keys that are read to the host at a time: 8 MiB.
const KEYS_READ: usize = 1 << 20;
/// Blocks that sum over a batch.
const BLOCKS: usize = 256;
const _: () = assert!(WEIGHT_CLASSES == WeightsCount::CLASSES);
const _: () = assert!(ScoreHistogram::BINS == Ties::BINS);

/// The size of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvaluationShape {
    /// The number of samples: at least one, at most as [`CudaEvaluation::fits`] allows.
    pub samples: usize,
    /// Samples of every batch but the last one.
    pub batch_size: usize,
    /// Whether samples have weights. Otherwise each counts as 1.
    pub weighted: bool,
}

/// The number of samples that an evaluation's buffers hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EvaluationSizes {
    /// Samples of all ranks.
    pub(super) samples: usize,
    /// The most samples of one rank.
    pub(super) own: usize,
    /// Whether samples have weights.
    pub(super) weighted: bool,
}

impl EvaluationSizes {
    /// Returns the keys of a head that a node's first rank has buffers for: on the first node those of all samples, on
    /// the others those of the node.
    fn first_capacity(self, node: Node, node_ranks: usize) -> usize {
        if node == Node(0) { self.samples } else { self.samples.min(self.own * node_ranks) }
    }
}

/// Evaluates a model's heads, repeatedly, on as many samples as its buffers hold. Takes 8 bytes per sample and head,
/// and 8 more per sample.
///
/// With several ranks, each evaluates its own samples; in the end the first rank, which has buffers for them, receives
/// all keys. With several nodes, the keys of a node pass through its first rank.
#[derive(Debug)]
pub struct CudaEvaluation {
    heads: Vec<HeadSpec>,
    sizes: EvaluationSizes,
    /// The number of keys that this rank's buffers hold.
    capacity: usize,
    /// The first rank's lane, of low priority, on which keys are sorted and counted beside its other work.
    ranking: Option<Lane>,
    judged: Buffer<u64>,
    /// `[head][capacity]`
    keys: Keys,
    sums: Buffer<JudgeSums>,
    parts: Buffer<JudgeSums>,

    // Buffers in which keys are sorted and counted:
    sorted: Buffer<u64>,
    counts: Buffer<u32>,
    totals: Buffer<u32>,
    tiles: Buffer<PrefixCounts>,
    pairs: Buffer<u64>,
    /// `[label][bin]`
    bins: Buffer<u64>,
    /// `[label][exponent]`, if samples have weights.
    classes: Buffer<u32>,
}

/// The memory of the keys.
#[derive(Debug)]
enum Keys {
    Local(Buffer<u64>),
    Shared(SharedBuffer<u64>),
}

impl Deref for Keys {
    type Target = Buffer<u64>;

    fn deref(&self) -> &Buffer<u64> {
        match self {
            Self::Local(buffer) => buffer,
            Self::Shared(shared) => shared,
        }
    }
}

/// The logits of a batch, with its labels and weights.
#[derive(Debug, Clone, Copy)]
pub struct ScoredBatch {
    /// `[sample][head]`
    pub logits: Pointer<f32>,
    /// `[head][labels_stride]`: 0, 1, or NaN where a label is missing.
    pub labels: Pointer<f32>,
    /// Elements from a head's labels to the next head's.
    pub labels_stride: usize,
    /// One per sample.
    pub weights: Pointer<f32>,
    /// The number of samples.
    pub samples: Pointer<u32>,
}

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluationResult {
    /// The metrics of each head, in the model's order.
    pub heads: Vec<HeadMetrics>,
    /// The number of logits that are NaN. If there are any, the metrics are meaningless.
    pub nan_logits: u64,
}

/// The scores of all ranks, before their keys are sorted and counted.
#[derive(Debug)]
pub(super) struct GatheredScores {
    /// The number of samples.
    judged: u32,
    heads: Vec<JudgedHead>,
    /// The sums of the model's own predictions, head by head.
    sums: Vec<JudgeSums>,
    /// The sums of corrected predictions, of the heads that have a correction.
    corrected: Vec<JudgeSums>,
}

/// The scores of an evaluation that a rank has finished.
#[derive(Debug)]
pub(super) struct ScoresToRank {
    evaluation: Arc<CudaEvaluation>,
    scores: GatheredScores,
}

impl ScoresToRank {
    pub(super) fn new(evaluation: &Arc<CudaEvaluation>, scores: GatheredScores) -> Self {
        Self { evaluation: Arc::clone(evaluation), scores }
    }

    /// Whether no logit is NaN.
    pub(super) fn are_numbers(&self) -> bool {
        self.scores.sums.iter().all(|sums| sums.not_numbers == 0)
    }

    /// Sorts and counts the keys on a lane of low priority; see [`CudaEvaluation::rank_scores`]. The GPU becomes the
    /// current one of this thread.
    pub(super) fn rank(self) -> Result<EvaluationResult> {
        self.evaluation.judged.device().bind()?;
        self.evaluation.rank_scores(self.scores)
    }
}

/// What the sorted keys of a head say.
struct RankedHead {
    pairs: Pairs,
    bins: BinCounts,
    /// What weights were multiplied by, per label.
    scales: [f64; 2],
}

impl CudaEvaluation {
    /// Allocates buffers for `samples` samples. Unless they are `weighted`, each counts as 1.
    ///
    /// # Panics
    /// If there are no samples, or more than [`CudaEvaluation::fits`] allows.
    ///
    /// # Errors
    /// If the GPU has too little memory.
    pub fn new(device: &Arc<Device>, heads: &[HeadSpec], samples: usize, weighted: bool) -> Result<Self> {
        let alone = RankContext { device: Arc::clone(device), links: None };
        Self::of_rank(&alone, heads, EvaluationSizes { samples, own: samples, weighted })
    }

    /// Creates the evaluation of one rank. With several ranks this is a collective call.
    ///
    /// # Panics
    /// As [`CudaEvaluation::new`].
    ///
    /// # Errors
    /// If the GPU has too little memory, or a rank does not take part.
    pub(super) fn of_rank(context: &RankContext, heads: &[HeadSpec], sizes: EvaluationSizes) -> Result<Self> {
        let RankContext { device, links } = context;
        let EvaluationSizes { samples, own, weighted } = sizes;
        assert!(samples > 0 && Self::fits(samples as u64), "{samples} samples cannot be evaluated");
        let _evaluation = device.purpose("evaluation");
        let is_first = context.rank() == Rank(0);
        let capacity = match links.as_ref().map(|links| &links.cluster) {
            None => samples,
            Some(cluster) if cluster.peers().local_rank() > LocalRank(0) => own,
            Some(cluster) => sizes.first_capacity(cluster.node(), cluster.peers().ranks()),
        };
        let sorted = if is_first { samples } else { 0 };
        let count = sorted as u32;
        let keys = match links {
            None => Keys::Local(Buffer::uninitialized(device, heads.len() * capacity)?),
            Some(links) => Keys::Shared(links.cluster.peers().share(heads.len() * capacity, 0xff)?),
        };
        Ok(Self {
            heads: heads.to_vec(),
            sizes,
            capacity,
            ranking: is_first.then(|| Lane::new(device)).transpose()?,
            judged: Buffer::filled(device, 1, 0)?,
            keys,
            sums: Buffer::filled(device, heads.len(), 0)?,
            parts: Buffer::uninitialized(device, heads.len() * BLOCKS)?,
            sorted: Buffer::uninitialized(device, sorted)?,
            counts: Buffer::uninitialized(device, KeysCount::counts(count))?,
            totals: Buffer::uninitialized(device, KeysSum::TOTALS)?,
            tiles: Buffer::uninitialized(device, KeysCount::tiles(count) as usize)?,
            pairs: Buffer::filled(device, Ties::RESULTS, 0)?,
            bins: Buffer::uninitialized(device, if is_first { 2 * Ties::BINS } else { 0 })?,
            classes: Buffer::uninitialized(device, if is_first && weighted { WEIGHT_CLASSES } else { 0 })?,
        })
    }

    /// Returns the number of samples that the buffers hold.
    pub(super) fn sizes(&self) -> EvaluationSizes {
        self.sizes
    }

    /// Whether this number of samples can be evaluated.
    pub fn fits(samples: u64) -> bool {
        samples < SAMPLES_MAX
    }

    /// Starts an evaluation, after the lane has finished all work enqueued before.
    ///
    /// # Errors
    /// If work enqueued on the lane failed.
    pub fn begin(&self, lane: &Lane) -> Result<()> {
        self.judged.write(lane, &[0])?;
        Ok(self.sums.write(lane, &vec![JudgeSums::default(); self.heads.len()])?)
    }

    /// Enqueues the evaluation of a batch. May be captured in a graph: the number of samples is read when it runs.
    ///
    /// # Safety
    /// There must be as many logits, labels and weights as samples, for each of the heads; see [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver refuses.
    pub unsafe fn add(&self, lane: &Lane, batch: ScoredBatch) -> Result<()> {
        let ScoredBatch { logits, labels, labels_stride, weights, samples } = batch;
        let judge = Judge {
            logits,
            labels,
            weights,
            samples,
            judged: self.judged.pointer(),
            keys: self.keys.pointer(),
            parts: self.parts.pointer(),
            sums: self.sums.pointer(),
            capacity: self.capacity as u64,
            heads: self.heads.len() as u32,
            labels_stride: labels_stride as u32,
            blocks: BLOCKS as u32,
            weighted: self.sizes.weighted.into(),
        };
        // SAFETY: the caller vouches for the batch; all other buffers are this value's, with these lengths.
        unsafe {
            lane.launch(&JudgeParts(judge), (judge.blocks, judge.heads))?;
            lane.launch(&JudgeTotal(judge), (1, 1))?;
        }
        Ok(())
    }

    /// Returns the metrics over the batches since [`CudaEvaluation::begin`], after the lane has finished all work
    /// enqueued before. Predictions are not corrected.
    ///
    /// # Panics
    /// If there were more samples than the buffers hold.
    ///
    /// # Errors
    /// If an operation of the GPU failed.
    pub fn finish(&self, lane: &Lane) -> Result<EvaluationResult> {
        self.finish_judged(lane, &JudgedHead::of_heads_uncorrected(&self.heads))
    }

    /// The same for heads whose predictions may be corrected; they are the heads of this evaluation.
    ///
    /// # Panics
    /// If there were more samples than the buffers hold.
    ///
    /// # Errors
    /// If an operation of the GPU failed.
    pub fn finish_judged(&self, lane: &Lane, heads: &[JudgedHead]) -> Result<EvaluationResult> {
        self.rank_scores(self.gather_scores(lane, None, heads)?)
    }

    /// Brings the scores of all ranks together, after the lane has finished all work enqueued before; with several
    /// ranks, all of them call this. The next evaluation may begin once they are ranked.
    ///
    /// # Panics
    /// As [`CudaEvaluation::finish`].
    pub(super) fn gather_scores(
        &self,
        lane: &Lane,
        links: Option<&RankLinks>,
        judged_heads: &[JudgedHead],
    ) -> Result<GatheredScores> {
        let mut judged = self.judged.read(lane)?[0];
        assert!(judged <= self.capacity as u64, "{judged} samples, but the buffers hold {}", self.capacity);
        (0..self.heads.len()).try_for_each(|head| self.sum_keys(lane, head, judged as u32))?;
        let mut sums = self.sums.read(lane)?;
        // Behind the sums of the model's own predictions, the sums of corrected ones.
        for (number, head) in judged_heads.iter().enumerate().filter(|(_, head)| head.is_corrected()) {
            sums.push(self.corrected_sums(lane, number, head, judged as usize)?);
        }
        if let (Some(links), Keys::Shared(keys)) = (links, &self.keys) {
            judged = self.gather(lane, links, keys, judged, &mut sums)?;
        }
        let corrected = sums.split_off(self.heads.len());
        Ok(GatheredScores { judged: judged as u32, heads: judged_heads.to_vec(), sums, corrected })
    }

    /// Sorts and counts the keys, and returns the metrics. All ranks get the sums, but only the first rank gets the
    /// AUCs and the histograms of scores. Meanwhile the rank may do any other work, on any thread.
    pub(super) fn rank_scores(&self, scores: GatheredScores) -> Result<EvaluationResult> {
        let GatheredScores { judged, heads: judged_heads, sums, corrected } = scores;
        let mut corrected = corrected.into_iter().peekable();
        let nan_logits = sums.iter().map(|sums| sums.not_numbers).sum();
        let mut heads = Vec::new();
        for (number, (head, sums)) in judged_heads.iter().zip(sums).enumerate() {
            let ranked = if judged > 0 { self.rank(number, judged)? } else { None };
            let auc = ranked.as_ref().and_then(|ranked| ranked.pairs.auc());
            let scores = ranked.and_then(|ranked| ScoreHistogram::of_counts(&ranked.bins, ranked.scales));
            let samples = sums.samples;
            let of = |sums: JudgeSums| {
                let JudgeSums { weights, losses, predictions, positives, .. } = sums;
                Sums { samples, weights, losses, predictions, positives }
            };
            let metrics = match corrected.next_if(|_| head.is_corrected()) {
                Some(corrected) => of(corrected).corrected(&of(sums), auc),
                None => of(sums).metrics(auc),
            };
            heads.push(HeadMetrics::of(head, metrics, scores));
        }
        Ok(EvaluationResult { heads, nan_logits })
    }

    /// Enqueues adding the sums over a head's keys, in their order.
    fn sum_keys(&self, lane: &Lane, head: usize, count: u32) -> Result<()> {
        let (blocks, weighted) = (BLOCKS as u32, self.sizes.weighted.into());
        let keys = self.keys.pointer().element(head * self.capacity);
        let parts = self.parts.pointer().element(head * BLOCKS);
        let sums = self.sums.pointer().element(head);
        // SAFETY: all buffers are this value's, which has as many keys and parts.
        unsafe {
            lane.launch(&JudgeKeys { keys, parts, count, weighted }, (blocks, 1))?;
            lane.launch(&JudgeKeysTotal { parts, sums, blocks, reserved: 0 }, (1, 1))?;
        }
        Ok(())
    }

    /// Returns the sums of a head's corrected predictions on this rank's own samples, in their order, except the number
    /// of samples. The host adds them up from the keys before these are sorted: 8 bytes per sample cross PCIe, only
    /// for heads with a correction.
    fn corrected_sums(
        &self,
        lane: &Lane,
        number: usize,
        head: &JudgedHead,
        count: usize,
    ) -> Result<JudgeSums> {
        let mut sums = Sums::default();
        let mut keys = vec![0; count.min(KEYS_READ)];
        for first in (0..count).step_by(KEYS_READ) {
            let keys = &mut keys[..KEYS_READ.min(count - first)];
            self.keys.read_into(lane, number * self.capacity + first, keys)?;
            sums.add_keys(head, keys, self.sizes.weighted);
        }
        let Sums { weights, losses, predictions, positives, .. } = sums;
        Ok(JudgeSums { weights, losses, predictions, positives, ..JudgeSums::default() })
    }

    /// Brings the keys of all ranks to the first one, in the order of ranks, and adds up their sums. Returns the
    /// number of samples that they have evaluated.
    fn gather(
        &self,
        lane: &Lane,
        links: &RankLinks,
        keys: &SharedBuffer<u64>,
        judged: u64,
        sums: &mut [JudgeSums],
    ) -> Result<u64> {
        let cluster = &links.cluster;
        let (node, local_rank, node_ranks) =
            (cluster.node(), cluster.peers().local_rank(), cluster.peers().ranks());
        let of_ranks = cluster.gather(judged)?;
        let sum = |ranks: &[u64]| ranks.iter().sum::<u64>() as usize;
        let all = sum(&of_ranks);
        let samples = self.sizes.samples;
        assert!(all <= samples, "{all} samples, but the buffers hold {samples}");
        if local_rank > LocalRank(0) {
            let before = sum(&of_ranks[node.0 * node_ranks..][..local_rank.0]);
            let capacity = self.sizes.first_capacity(node, node_ranks);
            for head in 0..self.heads.len() {
                let from = keys.pointer().element(head * self.capacity);
                let to = keys.of(LocalRank(0)).element(head * capacity + before);
                // SAFETY: this rank has as many keys, and the first rank of the node has buffers for those of all its
                // ranks; it had evaluated its own samples when it sent their number.
                unsafe { lane.copy(from, to, judged as usize) }?;
            }
            lane.synchronize()?;
        }
        if let Some(rails) = &links.rails {
            // After this, each node's first rank has the keys of its node.
            cluster.gather(0_u8)?;
            if local_rank == LocalRank(0) {
                self.gather_nodes(lane, &rails.rows, |node| sum(&of_ranks[..node * node_ranks]))?;
            }
        }
        // After this, all keys have arrived.
        for sums in sums {
            let mut of_ranks = cluster.gather(*sums)?.into_iter();
            *sums = of_ranks.next().unwrap_or_default();
            of_ranks.for_each(|other| sums.add(other));
        }
        Ok(all as u64)
    }

    /// Brings the keys of all nodes from their first ranks to the first one, in the order of nodes; `before` returns
    /// the number of keys before those of a node.
    fn gather_nodes(&self, lane: &Lane, rail: &Rail, before: impl Fn(usize) -> usize) -> Result<()> {
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        let parcel = |to: usize, of: usize, key: usize| Parcel {
            rank: to,
            pointer: self.keys.pointer().element(key),
            len: before(of + 1) - before(of),
        };
        for head in 0..self.heads.len() {
            match rail.node() {
                Node(0) => received.extend(
                    (1..rail.nodes()).map(|node| parcel(node, node, head * self.capacity + before(node))),
                ),
                Node(node) => sent.push(parcel(0, node, head * self.capacity)),
            }
        }
        // SAFETY: this rank has as many keys, and the first one has buffers for those of all ranks.
        unsafe { rail.exchange(lane, "scores of an evaluation", &sent, &received) }?;
        let done = Moment::new(lane.device())?;
        lane.record(&done)?;
        Ok(Rail::wait_for(&done, &[rail])?)
    }

    /// Sorts the keys of a head, and counts its pairs and scores; `None` if a weight is not finite, and on other ranks
    /// than the first.
    fn rank(&self, head: usize, count: u32) -> Result<Option<RankedHead>> {
        let Some(lane) = &self.ranking else { return Ok(None) };
        let keys = self.keys.pointer().element(head * self.capacity);
        let scales = match self.sizes.weighted {
            true => self.weight_scales(lane, keys, count)?,
            false => Some([1.0; 2]),
        };
        let Some(scales) = scales else { return Ok(None) };
        let (counts, totals) = (self.counts.pointer(), self.totals.pointer());
        let tiles = KeysCount::tiles(count);
        let buffers = [keys, self.sorted.pointer()];
        self.pairs.write(lane, &[0; Ties::RESULTS])?;
        self.bins.write(lane, &[0; 2 * Ties::BINS])?;
        let ties = Ties {
            keys,
            tiles: self.tiles.pointer(),
            result: self.pairs.pointer(),
            bins: self.bins.pointer(),
            scales,
            count,
            tiles_count: tiles,
        };
        // SAFETY: all buffers are this value's and hold `capacity` keys, which `count` does not exceed. After an even
        // number of passes the keys are back in the first buffer.
        unsafe {
            for pass in 0..KEY_DIGITS {
                let [from, to] = [pass, pass + 1].map(|turn| buffers[turn as usize % 2]);
                let number = KeysCount { keys: from, counts, count, pass };
                lane.launch(&number, number.grid())?;
                lane.launch(&KeysSum { counts, totals, tiles, reserved: 0 }, KeysSum::GRID)?;
                let scatter = KeysScatter { keys: from, counts, totals, sorted: to, count, pass };
                lane.launch(&scatter, number.grid())?;
            }
            if self.sizes.weighted {
                lane.launch(&TiesCountWeights(ties), (tiles, 1))?;
                lane.launch(&TiesBefore(ties), (1, 1))?;
                lane.launch(&TiesPairsWeights(ties), (tiles, 1))?;
                lane.launch(&TiesBinsWeights(ties), (tiles, 1))?;
            } else {
                lane.launch(&TiesCount(ties), (tiles, 1))?;
                lane.launch(&TiesBefore(ties), (1, 1))?;
                lane.launch(&TiesPairs(ties), (tiles, 1))?;
                lane.launch(&TiesBins(ties), (tiles, 1))?;
            }
        }
        let result = self.pairs.read(lane)?;
        let (addends, counts) = result.split_at(Ties::ADDENDS);
        let pairs = Pairs {
            ordered_twice: addends.iter().rev().fold(0, |sum, &addend| (sum << 32) + u128::from(addend)),
            positives: counts[0].into(),
            negatives: counts[1].into(),
        };
        let counts = self.bins.read(lane)?;
        let mut bins: BinCounts = [[0; Ties::BINS]; 2];
        bins.as_flattened_mut().copy_from_slice(&counts);
        Ok(Some(RankedHead { pairs, bins, scales }))
    }

    /// Returns the factors of the weights in a head's keys; `None` if one of the weights is not finite.
    fn weight_scales(&self, lane: &Lane, keys: Pointer<u64>, count: u32) -> Result<Option<[f64; 2]>> {
        self.classes.write(lane, &[0; WEIGHT_CLASSES])?;
        let classes = WeightsCount { keys, classes: self.classes.pointer(), count, reserved: 0 };
        // SAFETY: there are as many keys, and the classes are this value's.
        unsafe { lane.launch(&classes, (KeysCount::tiles(count), 1)) }?;
        let counts = self.classes.read(lane)?;
        let mut classes = [0; WEIGHT_CLASSES];
        classes.iter_mut().zip(counts).for_each(|(class, count)| *class = count.into());
        Ok(weight_scales(&classes))
    }
}
