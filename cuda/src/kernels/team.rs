//! `team.cuh` and `runs.cuh`: teams of lanes that handle rows together, chosen by the widest row.

/// Pairs per run of a team.
const RUN: u32 = 64;
/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// The most vectors of four elements per row.
pub(super) const VECTORS_MAX: u32 = 256;

/// Calls a method that is generic over the lanes of a team and the vectors per lane, chosen for rows of this many
/// vectors.
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

/// Number of blocks that sum the runs of this many pairs, and of blocks that sum rows spanning several of those
/// blocks.
pub(super) const fn runs_grid(pairs: u32, lanes: u32) -> (u32, u32) {
    let blocks = pairs.div_ceil(RUN * THREADS / lanes);
    (blocks, blocks.div_ceil(THREADS / lanes))
}

/// Elements of the partial sums of rows that span several blocks.
pub(super) const fn parts_len(pairs: usize, vectors: usize) -> usize {
    // A block of the widest team takes the fewest pairs.
    pairs.div_ceil((RUN * THREADS / 32) as usize) * 2 * 4 * vectors
}

/// Shared memory, in bytes, of a block that sums runs.
pub(super) const fn runs_bytes(lanes: u32, vectors: u32) -> u32 {
    let at_once = if lanes < 8 { lanes } else { 8 };
    outbox(at_once / vectors, lanes, vectors) + sums(2, vectors)
}

/// Shared memory, in bytes, of a block that sums parts.
pub(super) const fn parts_bytes(lanes: u32, vectors: u32) -> u32 {
    outbox(1, lanes, vectors) + sums(1, vectors) + THREADS / lanes * 4
}

/// Bytes of the sums of `rows` rows for each team of a block.
const fn sums(rows: u32, vectors: u32) -> u32 {
    THREADS * 16 * vectors * rows
}

/// Bytes of a block's outbox with `rows` rows per team: sums and what identifies them.
const fn outbox(rows: u32, lanes: u32, vectors: u32) -> u32 {
    sums(rows, vectors) + THREADS / lanes * rows * 8
}
