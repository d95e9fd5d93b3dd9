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
// are numbered along a sample's columns, so that samples are read from memory once; weights stay in the cache. Clusters
// take pairs from a common counter, so that those that start late or share their multiprocessors with other kernels
// take fewer.
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
    u32 rank;

    __device__ inline Pairs(u32 samples, u32 columns, u32 depth_bytes)
        : across((columns + 2 * COLUMNS - 1) / (2 * COLUMNS)), count((samples + SAMPLES - 1) / SAMPLES * across),
          steps((depth_bytes + ROW_BYTES - 1) / ROW_BYTES), rank(cluster_rank()) {}

    __device__ inline u32 sample(u32 pair) const { return pair / across * SAMPLES; }
    __device__ inline u32 column(u32 pair) const { return (pair % across * 2 + rank) * COLUMNS; }
};

// The pairs that a cluster takes, numbered in the order in which it takes them. One thread of the first block takes them
// from the counter, ahead of the product, and sends them to both blocks. Even numbers are the first warpgroup's, odd
// ones the second's; each gets a number beyond the last pair at the end.
//
// The counter is 0 between products: each cluster takes pairs until there are none, so the last one to do so knows that
// it is the last.
struct Taken {
    // Pairs that are known at a time.
    static constexpr u32 LENGTH = 2;
    static constexpr u32 BYTES = LENGTH * (sizeof(u32) + 2 * sizeof(u64));
    u32 known;
    u32 read;
    u32 pairs;

    __device__ inline Taken(u32 base) : known(base), read(known + 8 * LENGTH), pairs(read + 8 * LENGTH) {}

    // Called by one thread of each block. `carried` is whether warps carry slices.
    __device__ inline void make(bool carried) const {
        // In each block the warps of one warpgroup, the warp that carries its slices, and the one that fetches factors.
        const u32 readers = 2 * (GROUP_THREADS / WARP + carried + 1);
        for (u32 i = 0; i < LENGTH; i++) {
            barrier_make(known + 8 * i, 1);
            barrier_make(read + 8 * i, readers);
        }
    }

    // Takes all pairs, by one thread of each block.
    __device__ inline void take(u32* counter, u32 count) const {
        const bool first = cluster_rank() == 0;
        // Both warpgroups get an end; the second block's thread sees it when it arrives.
        for (u32 number = 0, ends = 0, pair = 0; ends < 2; number++) {
            const u32 at = number % LENGTH, round = number / LENGTH;
            if (first && number >= LENGTH) wait(read + 8 * at, (round & 1) ^ 1);
            arrive_with_bytes(known + 8 * at, sizeof(u32));
            if (first) {
                if (pair < count) pair = atomicAdd(counter, 1);
                if (pair == count + gridDim.x / 2 - 1 && ends == 0) *counter = 0;
                for (u32 block = 0; block < 2; block++) send_word(pairs + sizeof(u32) * at, pair, known + 8 * at, block);
            } else {
                wait(known + 8 * at, round & 1);
                pair = load_word(pairs + sizeof(u32) * at);
            }
            ends += pair >= count;
        }
    }

    // Waits for a pair, by one thread of a warp.
    __device__ inline u32 alone(u32 number) const {
        const u32 pair = wait_for(number);
        done(number);
        return pair;
    }

    // Waits for a pair, by all lanes of a warp.
    __device__ inline u32 next(u32 number) const {
        const u32 pair = wait_for(number);
        __syncwarp();
        if (threadIdx.x % WARP == 0) done(number);
        return pair;
    }

private:
    __device__ inline u32 wait_for(u32 number) const {
        wait(known + 8 * (number % LENGTH), number / LENGTH & 1);
        return load_word(pairs + sizeof(u32) * (number % LENGTH));
    }

    __device__ inline void done(u32 number) const { arrive_at(read + 8 * (number % LENGTH), 0); }
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

// Fetches the inputs of a warpgroup's slices and writes their outputs, by one thread. Slices are `HEIGHT` samples by
// `WIDTH` columns, first down a tile's samples; there are no more buffers than slices of a tile. `fetch` gets a barrier
// (at which it announces its bytes), the buffer, a column and a sample; `write` gets all but the barrier.
template <u32 HEIGHT, u32 WIDTH, class FETCH, class WRITE>
__device__ inline void carry_slices(const Pairs& pairs, const Taken& taken, const SliceBuffers& buffers, u32 consumer,
                                    const FETCH& fetch, const WRITE& write) {
    constexpr u32 DOWN = SAMPLES / HEIGHT, COUNT = DOWN * (COLUMNS / WIDTH);
    const auto sample = [&](u32 pair, u32 slice) { return pairs.sample(pair) + slice % DOWN * HEIGHT; };
    const auto column = [&](u32 pair, u32 slice) { return pairs.column(pair) + slice / DOWN * WIDTH; };
    // The next slice to fetch, and its pair.
    u32 next = 0, ahead = 0, number = consumer;
    const auto fetch_next = [&](u32 buffer) {
        if (next >= pairs.count) return;
        if (ahead == 0) {
            next = taken.alone(number);
            number += 2;
            if (next >= pairs.count) return;
        }
        fetch(buffers.given + 8 * buffer, buffers.base + buffer * buffers.bytes, column(next, ahead),
              sample(next, ahead));
        ahead = (ahead + 1) % COUNT;
    };
    for (u32 buffer = 0; buffer < buffers.count; buffer++) fetch_next(buffer);
    u32 item = 0;
    for (u32 pair = next; pair < pairs.count; pair = next) {
        for (u32 slice = 0; slice < COUNT; slice++, item++) {
            const u32 buffer = item % buffers.count;
            wait(buffers.finished + 8 * buffer, item / buffers.count & 1);
            write(buffers.base + buffer * buffers.bytes, column(pair, slice), sample(pair, slice));
            writes_begun();
            writes_read();
            fetch_next(buffer);
        }
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
    static constexpr u32 TAKEN_AT = BARRIERS_AT + 8 * (Stages::BARRIERS + 4 * BUFFERS);
    static_assert(TAKEN_AT + Taken::BYTES <= SHARED_BYTES_MAX);
    u32 base;

    __device__ inline Stages stages() const { return Stages(base, base + BARRIERS_AT); }
    __device__ inline Taken taken() const { return Taken(base + TAKEN_AT); }
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
__device__ inline void fetch_factors(const Pairs& pairs, const Taken& taken, const Stages& stages,
                                     const TensorMap& weights, const TensorMap& samples) {
    prefetch(weights);
    prefetch(samples);
    Ring ring;
    for (u32 number = 0, pair; (pair = taken.alone(number)) < pairs.count; number++) {
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
