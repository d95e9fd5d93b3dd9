//! Measures links between GPUs.

use half::bf16;

use super::memory::scattered;
use super::{Links, MeasuringRank, Sum};
use crate::communication::{AllReduce, PeerBarrier, SharedBuffer};
use crate::kernels::{self, Addresses, Rule, Send, Shard};
use crate::runtime::{Buffer, Pointer, Result};

/// Rows per GPU, elements per row, and rows that a GPU sends to another one.
const ROWS: usize = 1 << 20;
const DIM: usize = 128;
const SENT: usize = 32_768;
/// Sizes of all-reduces in bytes.
const SUMS: [usize; 3] = [4 << 10, 512 << 10, 16 << 20];

pub(super) fn measure(rank: &MeasuringRank) -> Result<Links> {
    let rows = Rows::new(rank)?;
    let barrier = PeerBarrier::new(&rank.peers)?;
    // SAFETY: the barriers of all ranks live until each rank has been waited for.
    let barrier_s = rank.seconds(20, true, |lane| unsafe { barrier.enqueue(lane) })?;
    barrier.check(&rank.lane)?;
    let mut sums = Vec::new();
    for bytes in SUMS {
        let sum = AllReduce::new(&rank.peers, bytes / size_of::<f32>(), 0)?;
        // SAFETY: as for the barrier.
        let seconds = rank.seconds(10, true, |lane| unsafe { sum.enqueue(lane) })?;
        sum.check_now()?;
        sums.push(Sum { bytes: bytes as u64, seconds });
        rank.peers.gather(0_u8)?;
    }
    let links = Links {
        one_bytes_per_s: rows.bytes_per_s(rank, false)?,
        all_bytes_per_s: rows.bytes_per_s(rank, true)?,
        barrier_s,
        sums,
    };
    // Memory is freed only when no other rank can still write to it.
    rank.peers.gather(0_u8)?;
    Ok(links)
}

/// Rows of this rank, and room for rows of the others, laid out as in an exchange.
struct Rows {
    storage: Buffer<f32>,
    shards: Buffer<Shard>,
    entries: Buffer<u32>,
    landing: SharedBuffer<bf16>,
}

impl Rows {
    fn new(rank: &MeasuringRank) -> Result<Self> {
        let (device, ranks) = (rank.device(), rank.peers.ranks());
        let shard = Shard {
            words: 0,
            rule: Rule::sgd(),
            base: 0,
            rows: ROWS as u32,
            row_words: DIM as u32,
            dim: DIM as u32,
            first: DIM as u32,
            second: DIM as u32,
            dtype: kernels::Dtype::Fp32 as u32,
            table: 0,
            column: 0,
            row: 0,
            step: 1,
            shares_squares: 0,
            listed: Pointer::NULL,
        };
        Ok(Self {
            storage: Buffer::uninitialized(device, ROWS * DIM)?,
            shards: Buffer::of(device, &[shard])?,
            entries: Buffer::of(device, &scattered(ranks * SENT, ROWS))?,
            landing: rank.peers.share(ranks * SENT * DIM, 0)?,
        })
    }

    /// Bytes per second: of the first rank sending to the next one only, or of each rank sending to all others.
    fn bytes_per_s(&self, rank: &MeasuringRank, everyone: bool) -> Result<f64> {
        let (device, ranks, own) = (rank.device(), rank.peers.ranks(), rank.peers.local_rank().0);
        let receivers = if everyone { ranks - 1 } else { 1 };
        let receives = |other: usize| (1..=receivers).any(|next| (own + next) % ranks == other);
        let counts: Vec<_> = (0..ranks).map(|other| if receives(other) { SENT as u32 } else { 0 }).collect();
        // Each rank has room for the rows of every other one.
        let (firsts, counts) =
            (Buffer::of(device, &vec![(own * SENT) as u32; ranks])?, Buffer::of(device, &counts)?);
        let send = Send {
            storage: self.storage.pointer(),
            shards: self.shards.pointer(),
            entries: self.entries.pointer(),
            firsts: firsts.pointer(),
            counts: counts.pointer(),
            landings: Addresses::of_ranks(self.landing.of_ranks().map(Pointer::cast)),
            shards_count: 1,
            capacity: SENT as u32,
            rank: own as u32,
            ranks: ranks as u32,
            width: DIM as u32,
            owned: SENT as u32,
        };
        let blocks = (4 * device.multiprocessors() / ranks as u32, ranks as u32);
        let takes_part = everyone || own == 0;
        // SAFETY: the entries are rows of this rank, and each rank has room for this many rows of every other one;
        // all of it lives until each rank has been waited for.
        let seconds = rank.seconds(4, takes_part, |lane| unsafe { send.enqueue::<bf16>(lane, blocks) })?;
        Ok((receivers * SENT * DIM * size_of::<bf16>()) as f64 / seconds)
    }
}
