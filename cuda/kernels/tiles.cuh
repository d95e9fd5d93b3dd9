// How products on Hopper process their tiles, the same for all element sizes: which tiles a cluster takes, how
// factors are fetched and multiplied, and how inputs of the element-wise work are fetched and its outputs written.
// The element-wise work itself is each kernel's.
//
// Weights are the left factor and samples the right one, so that the sums of a column's gradients are in few lanes;
// tiles are transposed when they are written. A block has two warpgroups that multiply, each its own tiles,
// alternately: while one multiplies, the other finishes its elements, one slice of a tile at a time. One warp fetches
// the factors for both. The inputs of one slice are fetched while others are processed, into the shared-memory buffer
// from which its results are written later. Each warpgroup has its own buffers, and a warp that fetches and writes
// its slices: element-wise work may take longer than products, so both warpgroups can do theirs at the same time.
//
// Two blocks form a cluster with tiles of the same samples; each fetches half of the samples for both. Pairs of tiles
// are numbered along a sample's columns, so that samples are read from memory once; weights stay in the cache.
#pragma once

#include "hopper.cuh"

constexpr u32 MATMUL_THREADS = 384;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Columns and samples of a tile.
constexpr u32 COLUMNS = 128;
constexpr u32 SAMPLES = 160;
constexpr u32 GROUP_THREADS = 128;
// Bytes per row of a factor's tile in shared memory: the part of the depth that is multiplied at a time.
constexpr u32 ROW_BYTES = 128;
constexpr u32 WEIGHTS_BYTES = COLUMNS * ROW_BYTES;
constexpr u32 SAMPLES_BYTES = SAMPLES * ROW_BYTES;
constexpr u32 STAGE_BYTES = WEIGHTS_BYTES + SAMPLES_BYTES;
constexpr u32 STAGES = 4;
// Shared memory that a block can have.
constexpr u32 SHARED_BYTES_MAX = 232448;
static_assert(MATMUL_THREADS == 3 * GROUP_THREADS);

// A position in the ring of stages, and how often the ring went round.
struct Ring {
    u32 stage = 0;
    u32 round = 0;

    __device__ inline void advance(u32 steps) {
        stage += steps;
        round += stage / STAGES;
        stage %= STAGES;
    }
};

// The pairs of tiles of a product: each of the two blocks of a cluster has one tile, with the same samples.
struct Pairs {
    u32 across;
    u32 count;
    u32 steps;
    u32 first;
    u32 clusters;
    u32 rank;

    __device__ inline Pairs(u32 samples, u32 columns, u32 depth_bytes)
        : across((columns + 2 * COLUMNS - 1) / (2 * COLUMNS)), count((samples + SAMPLES - 1) / SAMPLES * across),
          steps((depth_bytes + ROW_BYTES - 1) / ROW_BYTES), first(blockIdx.x / 2), clusters(gridDim.x / 2),
          rank(cluster_rank()) {}

    __device__ inline u32 sample(u32 pair) const { return pair / across * SAMPLES; }
    __device__ inline u32 column(u32 pair) const { return (pair % across * 2 + rank) * COLUMNS; }
};

// The slices of a warpgroup's tiles in order, each `HEIGHT` samples by `WIDTH` columns: first down a tile's samples.
template <u32 HEIGHT, u32 WIDTH>
struct Slices {
    static constexpr u32 DOWN = SAMPLES / HEIGHT;
    static constexpr u32 COUNT = DOWN * (COLUMNS / WIDTH);
    u32 pair;
    u32 slice = 0;

    __device__ inline Slices(const Pairs& pairs, u32 consumer) : pair(pairs.first + consumer * pairs.clusters) {}

    __device__ inline bool done(const Pairs& pairs) const { return pair >= pairs.count; }
    __device__ inline u32 sample(const Pairs& pairs) const { return pairs.sample(pair) + slice % DOWN * HEIGHT; }
    __device__ inline u32 column(const Pairs& pairs) const { return pairs.column(pair) + slice / DOWN * WIDTH; }
    __device__ inline void advance(const Pairs& pairs) {
        slice = (slice + 1) % COUNT;
        if (slice == 0) pair += 2 * pairs.clusters;
    }
};

// The ring of slice buffers of one warpgroup, with their barriers: inputs have arrived (`given`), elements are
// finished (`finished`). The barriers distinguish only even rounds from odd ones; since the buffers are its own, a
// warpgroup never reaches a buffer before its slice of the round before has left it.
struct SliceBuffers {
    u32 base;
    u32 bytes;
    u32 count;
    u32 given;
    u32 finished;

    // Called by one thread. `arrivals` is how many arrive when a slice is finished: all threads of the warpgroup, or
    // one per warp.
    __device__ inline void make(u32 arrivals = GROUP_THREADS) const {
        for (u32 buffer = 0; buffer < count; buffer++) {
            barrier_make(given + 8 * buffer, 1);
            barrier_make(finished + 8 * buffer, arrivals);
        }
    }
};

// Fetches the inputs of a warpgroup's slices and writes their outputs, by one thread. `fetch` gets a barrier (at
// which it announces its bytes), the buffer, a column and a sample; `write` gets all but the barrier.
template <u32 HEIGHT, u32 WIDTH, class FETCH, class WRITE>
__device__ inline void carry_slices(const Pairs& pairs, const SliceBuffers& buffers, u32 consumer, const FETCH& fetch,
                                    const WRITE& write) {
    Slices<HEIGHT, WIDTH> ahead(pairs, consumer), behind = ahead;
    const auto fetch_next = [&](u32 buffer) {
        if (ahead.done(pairs)) return;
        const u32 barrier = buffers.given + 8 * buffer, to = buffers.base + buffer * buffers.bytes;
        fetch(barrier, to, ahead.column(pairs), ahead.sample(pairs));
        ahead.advance(pairs);
    };
    for (u32 buffer = 0; buffer < buffers.count; buffer++) fetch_next(buffer);
    for (u32 number = 0; !behind.done(pairs); number++) {
        const u32 buffer = number % buffers.count, from = buffers.base + buffer * buffers.bytes;
        wait(buffers.finished + 8 * buffer, number / buffers.count & 1);
        write(from, behind.column(pairs), behind.sample(pairs));
        writes_begun();
        writes_read();
        fetch_next(buffer);
        behind.advance(pairs);
    }
    writes_done();
}

// The stages, at the start of shared memory, and their barriers: full stages, empty stages, and whose turn it is to
// multiply.
struct Stages {
    static constexpr u32 BARRIERS = 2 * STAGES + 2;
    u32 base;
    u32 full;
    u32 empty;
    u32 turns;

    __device__ inline Stages(u32 base, u32 barriers)
        : base(base), full(barriers), empty(full + 8 * STAGES), turns(empty + 8 * STAGES) {}

    // Called by one thread.
    __device__ inline void make() const {
        for (u32 stage = 0; stage < STAGES; stage++) {
            barrier_make(full + 8 * stage, 1);
            barrier_make(empty + 8 * stage, 2);
        }
        for (u32 consumer = 0; consumer < 2; consumer++) barrier_make(turns + 8 * consumer, 1);
    }
};

// Shared memory with the stages and, for each warpgroup, at most `BUFFERS` buffers of `BUFFER_BYTES` bytes.
template <u32 BUFFERS, u32 BUFFER_BYTES>
struct Room {
    static constexpr u32 BUFFERS_AT = STAGES * STAGE_BYTES;
    static constexpr u32 BARRIERS_AT = BUFFERS_AT + 2 * BUFFERS * BUFFER_BYTES;
    static_assert(BARRIERS_AT + 8 * (Stages::BARRIERS + 4 * BUFFERS) <= SHARED_BYTES_MAX);
    u32 base;

    __device__ inline Stages stages() const { return Stages(base, base + BARRIERS_AT); }
    __device__ inline SliceBuffers buffers(u32 consumer) const {
        const u32 given = base + BARRIERS_AT + 8 * (Stages::BARRIERS + consumer * 2 * BUFFERS);
        const u32 first = base + BUFFERS_AT + consumer * BUFFERS * BUFFER_BYTES;
        return SliceBuffers{first, BUFFER_BYTES, BUFFERS, given, given + 8 * BUFFERS};
    }
};

// A factors type gives the elements per row of their tiles (`DEPTH`), whether weights are transposed
// ([depth][columns] in tiles of 64 columns instead of [columns][depth] in tiles of 128), and how 32 bytes of the
// depth are multiplied.
template <bool TURNED_WEIGHTS>
struct Bf16Factors {
    static constexpr u32 DEPTH = ROW_BYTES / 2;
    static constexpr bool TURNED = TURNED_WEIGHTS;

    __device__ static inline void multiply(float (&sums)[SAMPLES / 2], u64 weights, u64 samples, u32 add) {
        ::multiply<TURNED ? 1 : 0>(sums, weights, samples, add);
    }
};

// Fetches the factors of all pairs, by one thread of a block.
template <class FACTORS>
__device__ inline void fetch_factors(const Pairs& pairs, const Stages& stages, const TensorMap& weights,
                                     const TensorMap& samples) {
    prefetch(weights);
    prefetch(samples);
    Ring ring;
    for (u32 pair = pairs.first; pair < pairs.count; pair += pairs.clusters) {
        const u32 sample = pairs.sample(pair) + pairs.rank * (SAMPLES / 2), column = pairs.column(pair);
        for (u32 step = 0; step < pairs.steps; step++) {
            const u32 to = stages.base + ring.stage * STAGE_BYTES, barrier = stages.full + 8 * ring.stage;
            const u32 half = to + WEIGHTS_BYTES + pairs.rank * (SAMPLES_BYTES / 2), depth = step * FACTORS::DEPTH;
            wait(stages.empty + 8 * ring.stage, (ring.round & 1) ^ 1);
            arrive_with_bytes(barrier, STAGE_BYTES);
            fetch_tile_for(half, samples, barrier, depth, sample, 3);
            if (FACTORS::TURNED) {
                fetch_tile(to, weights, barrier, column, depth);
                fetch_tile(to + WEIGHTS_BYTES / 2, weights, barrier, column + COLUMNS / 2, depth);
            } else {
                fetch_tile(to, weights, barrier, depth, column);
            }
            ring.advance(1);
        }
    }
}

// Multiplies a warpgroup's tile with this number. Its ring position accounts for the other group's tiles before it.
template <class FACTORS>
__device__ inline void multiply_tile(float (&sums)[2][SAMPLES / 2], const Pairs& pairs, const Stages& stages,
                                     Ring& ring, u32 consumer, u32 number) {
    // Per instruction: bytes of the depth along a row, and the distance between parts in transposed weights.
    constexpr u32 PART = 32, WEIGHTS_PART = FACTORS::TURNED ? ROW_BYTES * FACTORS::DEPTH / (ROW_BYTES / PART) : PART;
    const u32 thread = threadIdx.x % GROUP_THREADS;
    // The stages' barriers distinguish only even rounds from odd ones, so a warpgroup must not wait for stages before
    // the other one has got all of its own.
    wait(stages.turns + 8 * consumer, (number & 1) ^ (consumer ^ 1));
    u32 before = 0;
    for (u32 step = 0; step < pairs.steps; step++) {
        const u32 weights = stages.base + ring.stage * STAGE_BYTES, samples = weights + WEIGHTS_BYTES;
        wait(stages.full + 8 * ring.stage, ring.round & 1);
        products_begin();
#pragma unroll
        for (u32 part = 0; part < ROW_BYTES / PART; part++) {
            const u64 b = factor(samples + part * PART, 1024);
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u64 a = factor(weights + half * (WEIGHTS_BYTES / 2) + part * WEIGHTS_PART, 1024);
                FACTORS::multiply(sums[half], a, b, step + part);
            }
        }
        products_end();
        products_done<1>();
        // All products but those just started are done: the stage before can be refilled.
        if (step > 0 && thread < 2) arrive_at(stages.empty + 8 * before, thread);
        before = ring.stage;
        ring.advance(1);
    }
    if (thread == 0) arrive(stages.turns + 8 * (consumer ^ 1));
    products_done<0>();
    if (thread < 2) arrive_at(stages.empty + 8 * before, thread);
    ring.advance(pairs.steps);
}

#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PAIRED __cluster_dims__(2, 1, 1)
#else
#define PAIRED
#endif
