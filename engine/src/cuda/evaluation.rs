//! The metrics of an evaluation, computed where the logits are.
//!
//! Batches leave 8 bytes a sample and head: the score, the label and the weight in one key. Sums are kept in f64. The
//! AUC is counted in integers, so it equals the host's to the bit, for any number of ranks.

use std::ops::Deref;
use std::sync::Arc;

use rankine_cuda::kernels::{
    Before, Judge, JudgeParts, JudgeSums, JudgeTotal, KEY_DIGITS, KeysCount, KeysScatter, KeysSum, Ties,
    TiesBefore, TiesCount, TiesCountWeights, TiesPairs, TiesPairsWeights, WeightsCount,
};
use rankine_cuda::nccl::Parcel;
use rankine_cuda::{Buffer, Device, Lane, Moment, Pointer, Rail, Shared};
use rankine_embedding::cuda::Result;

use super::together::Member;
use crate::evaluation::{HeadMetrics, Pairs, Sums, WEIGHT_CLASSES, weight_scales};
use crate::model::HeadSpec;

/// Samples that can be judged: their number fits in 31 bits, so twice the number of pairs fits in 62.
const SAMPLES_MAX: u64 = 1 << 31;
/// Blocks that sum up a batch.
const BLOCKS: usize = 256;
const _: () = assert!(WEIGHT_CLASSES == WeightsCount::CLASSES);

/// What a model is to judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JudgedPart {
    /// Samples, one or more, as many as [`CudaEvaluation::fits`] allows.
    pub samples: usize,
    /// Samples of every batch but the last one.
    pub batch_size: usize,
    /// Whether samples have weights. Otherwise the AUC takes each to weigh 1.
    pub weighted: bool,
}

/// What an evaluation has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EvaluationRoom {
    /// Samples of all ranks.
    pub(super) samples: usize,
    /// Samples of one rank, at most.
    pub(super) own: usize,
    /// Whether samples have weights.
    pub(super) weighted: bool,
}

/// Judges a model's heads on as many samples as there is room for, again and again. Takes 8 bytes a sample and head,
/// and 8 more a sample.
///
/// Over ranks each judges its own samples; the first one gets the keys of all in the end, and has room for them. Over
/// nodes those of a node come by way of its first rank.
#[derive(Debug)]
pub struct CudaEvaluation {
    heads: Vec<HeadSpec>,
    room: EvaluationRoom,
    /// Keys that there is room for here.
    capacity: usize,
    judged: Buffer<u64>,
    /// `[head][capacity]`
    keys: Keys,
    sums: Buffer<JudgeSums>,
    parts: Buffer<JudgeSums>,

    // What keys are sorted and counted in:
    sorted: Buffer<u64>,
    counts: Buffer<u32>,
    totals: Buffer<u32>,
    tiles: Buffer<Before>,
    pairs: Buffer<u64>,
    /// `[label][exponent]`, where samples have weights.
    classes: Buffer<u32>,
}

/// Where keys lie.
#[derive(Debug)]
enum Keys {
    Alone(Buffer<u64>),
    Together(Shared<u64>),
}

impl Deref for Keys {
    type Target = Buffer<u64>;

    fn deref(&self) -> &Buffer<u64> {
        match self {
            Self::Alone(buffer) => buffer,
            Self::Together(shared) => shared,
        }
    }
}

/// A batch that was scored.
#[derive(Debug, Clone, Copy)]
pub struct Scored {
    /// `[sample][head]`
    pub logits: Pointer<f32>,
    /// `[head][labels_stride]`: 0, 1, or NaN where a label is missing.
    pub labels: Pointer<f32>,
    /// From a head's labels to the next one's.
    pub labels_stride: usize,
    /// One a sample.
    pub weights: Pointer<f32>,
    /// How many samples there are.
    pub samples: Pointer<u32>,
}

/// What came of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// The metrics of each head, in the model's order.
    pub heads: Vec<HeadMetrics>,
    /// Logits that are not numbers. Where there are any, the metrics mean nothing.
    pub not_numbers: u64,
}

impl CudaEvaluation {
    /// Room for `samples` samples. Unless they are `weighted`, the AUC takes each to weigh 1.
    ///
    /// # Panics
    /// If there are no samples, or more than [`CudaEvaluation::fits`] allows.
    ///
    /// # Errors
    /// If the GPU's memory does not suffice.
    pub fn new(device: &Arc<Device>, heads: &[HeadSpec], samples: usize, weighted: bool) -> Result<Self> {
        Self::of_rank((device, None), heads, EvaluationRoom { samples, own: samples, weighted })
    }

    /// The evaluation of one rank. With other ranks this is a collective call.
    ///
    /// # Panics
    /// As [`CudaEvaluation::new`].
    ///
    /// # Errors
    /// Where the GPU's memory does not suffice, or a rank does not come.
    pub(super) fn of_rank(
        (device, member): (&Arc<Device>, Option<&Member>),
        heads: &[HeadSpec],
        room: EvaluationRoom,
    ) -> Result<Self> {
        let EvaluationRoom { samples, own, weighted } = room;
        assert!(samples > 0 && Self::fits(samples as u64), "{samples} samples cannot be judged");
        let _evaluation = device.purpose("evaluation");
        let is_first = member.is_none_or(|member| member.cluster.rank() == 0);
        let capacity = member.map_or(samples, |Member { cluster, .. }| match cluster.peers().rank() {
            0 => first_capacity(samples, own, (cluster.node(), cluster.peers().ranks())),
            _ => own,
        });
        let sorted = if is_first { samples } else { 0 };
        let count = sorted as u32;
        let keys = match member {
            None => Keys::Alone(Buffer::uninitialized(device, heads.len() * capacity)?),
            Some(member) => Keys::Together(member.cluster.peers().share(heads.len() * capacity, 0xff)?),
        };
        Ok(Self {
            heads: heads.to_vec(),
            room,
            capacity,
            judged: Buffer::filled(device, 1, 0)?,
            keys,
            sums: Buffer::filled(device, heads.len(), 0)?,
            parts: Buffer::uninitialized(device, heads.len() * BLOCKS)?,
            sorted: Buffer::uninitialized(device, sorted)?,
            counts: Buffer::uninitialized(device, KeysCount::counts(count))?,
            totals: Buffer::uninitialized(device, KeysSum::TOTALS)?,
            tiles: Buffer::uninitialized(device, KeysCount::tiles(count) as usize)?,
            pairs: Buffer::filled(device, Ties::RESULTS, 0)?,
            classes: Buffer::uninitialized(device, if is_first && weighted { WEIGHT_CLASSES } else { 0 })?,
        })
    }

    /// What there is room for.
    pub(super) fn room(&self) -> EvaluationRoom {
        self.room
    }

    /// Whether so many samples can be numbered.
    pub fn fits(samples: u64) -> bool {
        samples < SAMPLES_MAX
    }

    /// Begins an evaluation, once the lane has done all that was enqueued on it.
    ///
    /// # Errors
    /// Where work that was enqueued on the lane failed.
    pub fn begin(&self, lane: &Lane) -> Result<()> {
        self.judged.write(lane, &[0])?;
        Ok(self.sums.write(lane, &vec![JudgeSums::default(); self.heads.len()])?)
    }

    /// Enqueues judging a batch. May be captured in a graph: the samples' number is read when it runs.
    ///
    /// # Safety
    /// There must be as many logits, labels and weights as there are samples, of each of the heads; see
    /// [`Lane::launch`].
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn add(&self, lane: &Lane, batch: Scored) -> Result<()> {
        let Scored { logits, labels, labels_stride, weights, samples } = batch;
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
            weighted: self.room.weighted.into(),
        };
        // SAFETY: the caller vouches for the batch; all else is this value's, with these lengths.
        unsafe {
            lane.launch(&JudgeParts(judge), (judge.blocks, judge.heads))?;
            lane.launch(&JudgeTotal(judge), (1, 1))?;
        }
        Ok(())
    }

    /// The metrics over the batches since [`CudaEvaluation::begin`], once the lane has done all that was enqueued on
    /// it.
    ///
    /// # Panics
    /// Where there were more samples than there is room for.
    ///
    /// # Errors
    /// Where something of the GPU's failed.
    pub fn finish(&self, lane: &Lane) -> Result<Judgement> {
        self.finish_with(lane, None)
    }

    /// The same over ranks, all of which call it. All know the sums, and only the first one the AUCs.
    pub(super) fn finish_with(&self, lane: &Lane, member: Option<&Member>) -> Result<Judgement> {
        let mut judged = self.judged.read(lane)?[0];
        assert!(judged <= self.capacity as u64, "{judged} samples, and room for {}", self.capacity);
        let mut sums = self.sums.read(lane)?;
        if let (Some(member), Keys::Together(keys)) = (member, &self.keys) {
            judged = self.gather(lane, (member, keys), judged, &mut sums)?;
        }
        let not_numbers = sums.iter().map(|sums| sums.not_numbers).sum();
        let mut heads = Vec::new();
        for (number, (head, sums)) in self.heads.iter().zip(sums).enumerate() {
            let is_first = member.is_none_or(|member| member.cluster.rank() == 0);
            let auc = if judged > 0 && is_first { self.auc(lane, number, judged as u32)? } else { None };
            let JudgeSums { weights, losses, predictions, positives, samples, .. } = sums;
            let sums = Sums { samples, weights, losses, predictions, positives };
            heads.push(HeadMetrics { label: head.label.clone(), metrics: sums.metrics(auc) });
        }
        Ok(Judgement { heads, not_numbers })
    }

    /// Brings the keys of all ranks to the first one, behind each other in the order of ranks, and adds up their sums.
    /// Returns how many samples they have judged.
    fn gather(
        &self,
        lane: &Lane,
        (member, keys): (&Member, &Shared<u64>),
        judged: u64,
        sums: &mut [JudgeSums],
    ) -> Result<u64> {
        let cluster = &member.cluster;
        let (node, place, places) = (cluster.node(), cluster.peers().rank(), cluster.peers().ranks());
        let of_ranks = cluster.gather(judged)?;
        let sum = |ranks: &[u64]| ranks.iter().sum::<u64>() as usize;
        let all = sum(&of_ranks);
        let EvaluationRoom { samples, own, .. } = self.room;
        assert!(all <= samples, "{all} samples, and room for {samples}");
        if place > 0 {
            let before = sum(&of_ranks[node * places..][..place]);
            let capacity = first_capacity(samples, own, (node, places));
            for head in 0..self.heads.len() {
                let from = keys.pointer().element(head * self.capacity);
                let to = keys.of(0).element(head * capacity + before);
                // SAFETY: there are as many keys here, and room for those of all its ranks at the first one of the
                // node, which has judged its own samples when it handed out their number.
                unsafe { lane.copy(from, to, judged as usize) }?;
            }
            lane.synchronize()?;
        }
        if let Some(rails) = &member.rails {
            // Each node's first rank has the keys of its node behind this.
            cluster.gather(0_u8)?;
            if place == 0 {
                self.gather_nodes(lane, &rails.rows, |node| sum(&of_ranks[..node * places]))?;
            }
        }
        // Behind this all keys are there.
        for sums in sums {
            let mut of_ranks = cluster.gather(*sums)?.into_iter();
            *sums = of_ranks.next().unwrap_or_default();
            of_ranks.for_each(|other| sums.add(other));
        }
        Ok(all as u64)
    }

    /// Brings the keys of all nodes, which their first ranks have, to the first one, behind each other in the order of
    /// nodes; `before` says how many there are before a node's.
    fn gather_nodes(&self, lane: &Lane, rail: &Rail, before: impl Fn(usize) -> usize) -> Result<()> {
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        let parcel = |rank, of: usize, key: usize| Parcel {
            rank,
            pointer: self.keys.pointer().element(key),
            len: before(of + 1) - before(of),
        };
        for head in 0..self.heads.len() {
            match rail.node() {
                0 => received.extend(
                    (1..rail.nodes()).map(|node| parcel(node, node, head * self.capacity + before(node))),
                ),
                node => sent.push(parcel(0, node, head * self.capacity)),
            }
        }
        // SAFETY: there are as many keys here, and room for those of all ranks at the first one.
        unsafe { rail.exchange(lane, "scores of an evaluation", &sent, &received) }?;
        let done = Moment::new(lane.device())?;
        lane.record(&done)?;
        Ok(Rail::wait_for(&done, &[rail])?)
    }

    /// The AUC of a head, whose keys are sorted for it.
    fn auc(&self, lane: &Lane, head: usize, count: u32) -> Result<Option<f64>> {
        let keys = self.keys.pointer().element(head * self.capacity);
        let scales = match self.room.weighted {
            true => self.weight_scales(lane, keys, count)?,
            false => Some([0.0; 2]),
        };
        let Some(scales) = scales else { return Ok(None) };
        let (counts, totals) = (self.counts.pointer(), self.totals.pointer());
        let tiles = KeysCount::tiles(count);
        let places = [keys, self.sorted.pointer()];
        self.pairs.write(lane, &[0; Ties::RESULTS])?;
        let ties = Ties {
            keys,
            tiles: self.tiles.pointer(),
            result: self.pairs.pointer(),
            scales,
            count,
            tiles_count: tiles,
        };
        // SAFETY: all buffers are this value's, with room for `capacity` keys, and `count` is no more. After an even
        // number of passes the keys lie where they lay.
        unsafe {
            for pass in 0..KEY_DIGITS {
                let [from, to] = [pass, pass + 1].map(|turn| places[turn as usize % 2]);
                let number = KeysCount { keys: from, counts, count, pass };
                lane.launch(&number, number.grid())?;
                lane.launch(&KeysSum { counts, totals, tiles, reserved: 0 }, KeysSum::GRID)?;
                let scatter = KeysScatter { keys: from, counts, totals, sorted: to, count, pass };
                lane.launch(&scatter, number.grid())?;
            }
            if self.room.weighted {
                lane.launch(&TiesCountWeights(ties), (tiles, 1))?;
                lane.launch(&TiesBefore(ties), (1, 1))?;
                lane.launch(&TiesPairsWeights(ties), (tiles, 1))?;
            } else {
                lane.launch(&TiesCount(ties), (tiles, 1))?;
                lane.launch(&TiesBefore(ties), (1, 1))?;
                lane.launch(&TiesPairs(ties), (tiles, 1))?;
            }
        }
        let result = self.pairs.read(lane)?;
        let (addends, counts) = result.split_at(Ties::ADDENDS);
        let pairs = Pairs {
            ordered_twice: addends.iter().rev().fold(0, |sum, &addend| (sum << 32) + u128::from(addend)),
            positives: counts[0].into(),
            negatives: counts[1].into(),
        };
        Ok(pairs.auc())
    }

    /// What the weights in a head's keys are multiplied by; `None` if one of them is not finite.
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

/// Keys of a head that a node's first rank has room for: those of all samples on the first node, and else of the
/// node's.
fn first_capacity(samples: usize, own: usize, (node, places): (usize, usize)) -> usize {
    if node == 0 { samples } else { samples.min(own * places) }
}
