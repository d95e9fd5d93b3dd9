//! `team.cuh` and `runs.cuh`: teams of lanes that have rows together, by the widest row.

/// Pairs that a team takes as a run.
const RUN: u32 = 64;
/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// A quarter of a row's elements, at most.
pub(super) const VECTORS_MAX: u32 = 256;

/// Calls a method that is generic over the lanes of a team and the vectors that each has, for rows of so many vectors.
macro_rules! by_width {
    ($vectors:expr, $self:ident.$method:ident($($argument:expr),*)) => {
        match $vectors {
            0..=4 => $self.$method::<4, 1>($($argument),*),
            5..=16 => $self.$method::<16, 1>($($argument),*),
            17..=32 => $self.$method::<32, 1>($($argument),*),
            33..=64 => $self.$method::<32, 2>($($argument),*),
            65..=256 => $self.$method::<32, 8>($($argument),*),
            vectors => panic!("rows of {} elements", 4 * u64::from(vectors)),
        }
    };
}
pub(super) use by_width;

/// Blocks that sum the runs of as many pairs, and blocks that sum what goes on from one of them to the next.
pub(super) const fn runs_grid(pairs: u32, lanes: u32) -> (u32, u32) {
    let blocks = pairs.div_ceil(RUN * THREADS / lanes);
    (blocks, blocks.div_ceil(THREADS / lanes))
}

/// Elements of the sums that go on from one block to the next.
pub(super) const fn parts_len(pairs: usize, vectors: usize) -> usize {
    // A block of the widest team takes the fewest pairs.
    pairs.div_ceil((RUN * THREADS / 32) as usize) * 2 * 4 * vectors
}

/// Bytes of shared memory of a block that sums runs.
pub(super) const fn runs_bytes(lanes: u32, vectors: u32) -> u32 {
    let at_once = if lanes < 8 { lanes } else { 8 };
    outbox(at_once / vectors, lanes, vectors) + sums(2, vectors)
}

/// Bytes of shared memory of a block that sums what goes on.
pub(super) const fn parts_bytes(lanes: u32, vectors: u32) -> u32 {
    outbox(1, lanes, vectors) + sums(1, vectors) + THREADS / lanes * 4
}

/// Bytes that the sums of so many rows take, for each team of a block one.
const fn sums(rows: u32, vectors: u32) -> u32 {
    THREADS * 16 * vectors * rows
}

/// Bytes that a block's teams take for so many rows each that they have to hand over: sums and what names them.
const fn outbox(rows: u32, lanes: u32, vectors: u32) -> u32 {
    sums(rows, vectors) + THREADS / lanes * rows * 8
}
