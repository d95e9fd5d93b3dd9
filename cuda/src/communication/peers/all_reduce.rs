//! All-reduces over the ranks of a node.

use std::ops::Range;
use std::sync::Arc;

use rankine_topology::LocalRank;

use super::watch::Watch;
use super::{Peers, SharedBuffer};
use crate::kernels::{self, AllReduceAtOnce, AllReduceBySlices, AllReduceScatter, AllReduceSpread};
use crate::runtime::{Buffer, Lane, Result};

/// The most blocks of a grid: enough to saturate the links, while most of the GPU is left for other work.
const BLOCKS_MAX: usize = 32;
/// Resident blocks per multiprocessor, as `all_reduce.cu` is compiled.
const BLOCKS_RESIDENT: u32 = 2;
/// Values per vector, the unit of reading and writing.
const VECTOR: usize = 4;

/// How all-reduces are computed. Both ways give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllReduceWay {
    /// Each rank writes everything to every other one, and sums for itself.
    AtOnce,
    /// Each rank sums one slice for all, and writes the sum to them.
    BySlices,
}

impl AllReduceWay {
    /// Returns the faster way for this many bytes, as measured over 2 and 4 GPUs
    /// (docs/measurements/gpu-exchange.md). For more GPUs it follows from the bytes that leave a GPU.
    pub fn of(bytes: usize, ranks: usize) -> Self {
        let at_once_max = match ranks {
            ..=2 => 2 << 20,
            3..=4 => 512 << 10,
            _ => 128 << 10,
        };
        if bytes <= at_once_max { Self::AtOnce } else { Self::BySlices }
    }

    /// Returns the vectors that a rank writes to the others, if its slice has `own` of all vectors.
    fn vectors_sent(self, vectors: usize, own: usize, ranks: usize) -> usize {
        match self {
            Self::AtOnce => (ranks - 1) * vectors,
            // The slices of the others, then the sums of its own.
            Self::BySlices => (vectors - own) + (ranks - 1) * own,
        }
    }
}

/// Values that are all-reduced: f32 values, and with them a few f64 numbers. Sums are taken in the order of ranks, so
/// all ranks get the same bits, and runs are reproducible.
#[derive(Debug)]
pub struct AllReduce {
    way: AllReduceWay,
    watch: Watch,
    values: Arc<SharedBuffer<f32>>,
    /// Range of the values that are summed.
    part: Range<usize>,
    numbers: Buffer<f64>,
    #[expect(dead_code, reason = "only the kernel accesses them")]
    inboxes: (SharedBuffer<f32>, SharedBuffer<f64>),
    #[expect(dead_code, reason = "the kernel counts there")]
    calls: Buffer<u64>,
    parameters: kernels::AllReduce,
    blocks: usize,
}

impl AllReduce {
    /// Creates zeros: `len` values and `numbers` numbers, the same lengths at all ranks. A collective call; the
    /// device must be current on this thread.
    ///
    /// # Errors
    /// Those of [`Peers::share`].
    pub fn new(peers: &Peers, len: usize, numbers: usize) -> Result<Self> {
        let way = AllReduceWay::of(len * size_of::<f32>(), peers.ranks());
        Self::by(peers, way, BLOCKS_MAX, len, numbers)
    }

    /// As [`AllReduce::new`], with a given way and limit of blocks: for comparisons.
    ///
    /// # Errors
    /// Those of [`Peers::share`].
    pub fn by(
        peers: &Peers,
        way: AllReduceWay,
        blocks_max: usize,
        len: usize,
        numbers: usize,
    ) -> Result<Self> {
        let values = Arc::new(peers.share(len.next_multiple_of(VECTOR), 0)?);
        Self::of(peers, way, blocks_max, values, 0..len, numbers)
    }

    /// As [`AllReduce::new`], for a part of existing values. Several parts can be summed one after another, each as
    /// soon as it is ready.
    ///
    /// # Panics
    /// If the part does not start at a multiple of 4, or there are fewer values than its end rounded up to such a
    /// multiple.
    ///
    /// # Errors
    /// Those of [`Peers::share`].
    pub fn of_part(
        peers: &Peers,
        values: &Arc<SharedBuffer<f32>>,
        part: Range<usize>,
        numbers: usize,
    ) -> Result<Self> {
        let way = AllReduceWay::of(part.len() * size_of::<f32>(), peers.ranks());
        Self::of(peers, way, BLOCKS_MAX, Arc::clone(values), part, numbers)
    }

    /// As [`AllReduce::of_part`], for [`AllReduce::scatter`] and [`AllReduce::spread`].
    ///
    /// # Panics
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub fn by_slices(
        peers: &Peers,
        values: &Arc<SharedBuffer<f32>>,
        part: Range<usize>,
        numbers: usize,
    ) -> Result<Self> {
        Self::of(peers, AllReduceWay::BySlices, BLOCKS_MAX, Arc::clone(values), part, numbers)
    }

    fn of(
        peers: &Peers,
        way: AllReduceWay,
        blocks_max: usize,
        values: Arc<SharedBuffer<f32>>,
        part: Range<usize>,
        numbers: usize,
    ) -> Result<Self> {
        assert!(part.start.is_multiple_of(VECTOR) && part.end.next_multiple_of(VECTOR) <= values.len());
        let (device, ranks) = (peers.device(), peers.ranks());
        let vectors = part.len().div_ceil(VECTOR);
        let slice = vectors.div_ceil(ranks);
        // Blocks that wait for each other must be resident at the same time, even if all ranks are on one GPU.
        let multiprocessors = peers.gather(device.multiprocessors())?.into_iter().min().unwrap_or(1);
        let most = (BLOCKS_RESIDENT * multiprocessors) as usize / ranks;
        let (a_block, inbox_len) = match way {
            AllReduceWay::AtOnce => (vectors, 2 * ranks * vectors * VECTOR),
            AllReduceWay::BySlices => (slice, ranks * slice * VECTOR),
        };
        let wanted = a_block.div_ceil(kernels::AllReduce::THREADS as usize);
        let blocks = wanted.min(blocks_max).min(most).max(1);

        let watch = Watch::new(peers, blocks)?;
        let inbox = peers.share::<f32>(inbox_len, 0xff)?;
        let numbers_inbox = peers.share::<f64>((2 * ranks + 2) * numbers, 0xff)?;
        let numbers = Buffer::<f64>::filled(device, numbers, 0)?;
        let calls = Buffer::<u64>::filled(device, blocks, 0)?;
        let parameters = kernels::AllReduce {
            values: values.of_ranks().map(|values| values.element(part.start)),
            inbox: inbox.of_ranks(),
            numbers_inbox: numbers_inbox.of_ranks(),
            flags: watch.flags().of_ranks(),
            numbers: numbers.pointer(),
            calls: calls.pointer(),
            wait: watch.wait(),
            vectors: vectors as u64,
            slice: slice as u64,
            numbers_count: numbers.len() as u32,
            reserved: 0,
        };
        let inboxes = (inbox, numbers_inbox);
        Ok(Self { way, watch, values, part, numbers, inboxes, calls, parameters, blocks })
    }

    /// Sets the name used in errors: `the sum of ...`.
    #[must_use]
    pub fn named(mut self, what: &'static str) -> Self {
        self.watch.name(what);
        self
    }

    /// This rank's values, which are replaced by their sums: as many as were requested, then up to 3 zeros, which
    /// must stay zeros.
    pub fn values(&self) -> &Buffer<f32> {
        &self.values
    }

    /// Range of the values that are summed.
    pub fn part(&self) -> Range<usize> {
        self.part.clone()
    }

    /// This rank's numbers, which are replaced by their sums.
    pub fn numbers(&self) -> &Buffer<f64> {
        &self.numbers
    }

    /// How the sums are computed.
    pub fn way(&self) -> AllReduceWay {
        self.way
    }

    /// Bytes of values that this rank sends to the others in each all-reduce; the few numbers are not counted.
    pub fn bytes_sent(&self) -> u64 {
        let kernels::AllReduce { vectors, slice, wait, .. } = self.parameters;
        let own = vectors.saturating_sub(u64::from(wait.rank) * slice).min(slice);
        let sent = self.way.vectors_sent(vectors as usize, own as usize, wait.ranks as usize);
        (sent * VECTOR * size_of::<f32>()) as u64
    }

    /// Replaces values and numbers by their sums over the ranks. All ranks must enqueue, or replay, their calls in
    /// the same order; a rank's values may be changed before the call in lane order, and read after it.
    ///
    /// # Safety
    /// This value, and those of all ranks, must live until the lane has finished; if a graph is being captured, for
    /// as long as it is replayed. Nothing else may access the values meanwhile.
    ///
    /// # Errors
    /// If the driver reports an error. [`AllReduce::check`] returns an error if a rank timed out.
    pub unsafe fn enqueue(&self, lane: &Lane) -> Result<()> {
        let (grid, parameters) = ((self.blocks as u32, 1), self.parameters);
        let ranks = parameters.wait.ranks;
        if ranks == 1 {
            // With one rank the values are the sums.
            return Ok(());
        }
        // SAFETY: the addresses are this value's and its peers', whose lives the caller vouches for; inboxes and
        // flags are as long as the way and the grid need.
        unsafe {
            match (self.way, ranks) {
                (AllReduceWay::AtOnce, ..=2) => lane.launch(&AllReduceAtOnce::<2>(parameters), grid),
                (AllReduceWay::AtOnce, ..=4) => lane.launch(&AllReduceAtOnce::<4>(parameters), grid),
                (AllReduceWay::AtOnce, _) => lane.launch(&AllReduceAtOnce::<8>(parameters), grid),
                (AllReduceWay::BySlices, ..=2) => lane.launch(&AllReduceBySlices::<2>(parameters), grid),
                (AllReduceWay::BySlices, ..=4) => lane.launch(&AllReduceBySlices::<4>(parameters), grid),
                (AllReduceWay::BySlices, _) => lane.launch(&AllReduceBySlices::<8>(parameters), grid),
            }
        }
    }

    /// Range of the values that this rank sums by slices.
    pub(crate) fn slice(&self) -> Range<usize> {
        self.slice_of(LocalRank(self.parameters.wait.rank as usize))
    }

    /// Range of the values that a rank sums by slices; it starts at a multiple of 4.
    pub fn slice_of(&self, rank: LocalRank) -> Range<usize> {
        let slice = self.parameters.slice as usize * VECTOR;
        let begin = (self.part.start + rank.0 * slice).min(self.part.end);
        begin..(begin + slice).min(self.part.end)
    }

    /// Enqueues the first part of [`AllReduce::enqueue`] by slices: sums this rank's slice, and all numbers.
    ///
    /// # Safety
    /// As there; [`AllReduce::spread`] must follow.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn scatter(&self, lane: &Lane) -> Result<()> {
        let (grid, parameters) = ((self.blocks as u32, 1), self.parameters);
        // SAFETY: as for `enqueue`.
        unsafe {
            match parameters.wait.ranks {
                1 => Ok(()),
                2 => lane.launch(&AllReduceScatter::<2>(parameters), grid),
                3..=4 => lane.launch(&AllReduceScatter::<4>(parameters), grid),
                _ => lane.launch(&AllReduceScatter::<8>(parameters), grid),
            }
        }
    }

    /// Enqueues the second part: sends each rank's slice to all, and the first rank's numbers.
    ///
    /// # Safety
    /// As for [`AllReduce::enqueue`], after [`AllReduce::scatter`].
    ///
    /// # Errors
    /// As there.
    pub unsafe fn spread(&self, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe { self.spread_with(lane, self.parameters) }
    }

    /// The same for the corresponding slices of other values.
    ///
    /// # Panics
    /// If there are fewer of these.
    ///
    /// # Safety
    /// As for [`AllReduce::spread`], for these values as well.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn spread_of(&self, lane: &Lane, values: &SharedBuffer<f32>) -> Result<()> {
        assert!(
            LocalRank::first(self.parameters.wait.ranks as usize)
                .all(|rank| values.len_of(rank) >= self.values.len())
        );
        let values = values.of_ranks().map(|values| values.element(self.part.start));
        // SAFETY: there are as many values; the caller vouches for the rest.
        unsafe { self.spread_with(lane, kernels::AllReduce { values, ..self.parameters }) }
    }

    unsafe fn spread_with(&self, lane: &Lane, parameters: kernels::AllReduce) -> Result<()> {
        let grid = (self.blocks as u32, 1);
        // SAFETY: as for `enqueue`.
        unsafe {
            match parameters.wait.ranks {
                1 => Ok(()),
                2 => lane.launch(&AllReduceSpread::<2>(parameters), grid),
                3..=4 => lane.launch(&AllReduceSpread::<4>(parameters), grid),
                _ => lane.launch(&AllReduceSpread::<8>(parameters), grid),
            }
        }
    }

    /// Waits for the lane, and returns an error if a rank timed out waiting.
    ///
    /// # Errors
    /// If the lane's work failed, or if a rank timed out.
    pub fn check(&self, lane: &Lane) -> Result<()> {
        self.watch.check(lane)
    }

    /// As [`AllReduce::check`] for what this rank has found so far; without waiting.
    ///
    /// # Errors
    /// If a rank timed out.
    pub fn check_now(&self) -> Result<()> {
        self.watch.check_now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_sends_what_the_others_need() {
        // 5 vectors over 3 ranks in slices of 2, 2 and 1: first 3, 3 and 4 vectors of others' slices, then the sums
        // to two ranks.
        let sent = |way: AllReduceWay| [2, 2, 1].map(|own| way.vectors_sent(5, own, 3));
        assert_eq!(sent(AllReduceWay::BySlices), [3 + 4, 3 + 4, 4 + 2]);
        assert_eq!(sent(AllReduceWay::AtOnce), [10, 10, 10]);
        assert_eq!(AllReduceWay::BySlices.vectors_sent(5, 5, 1), 0);
        assert_eq!(AllReduceWay::AtOnce.vectors_sent(5, 5, 1), 0);
    }
}
