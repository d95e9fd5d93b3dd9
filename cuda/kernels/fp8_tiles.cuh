// The way of products in fp8 through their tiles: which tiles a cluster takes, how their factors are fetched, and how
// they are multiplied. What becomes of the sums is each kernel's.
//
// It is the way of `matmul.cu`, with weights and samples of twice the depth in the same bytes.
#pragma once

#include "fp8.cuh"
#include "tiles.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// How much of the depth is multiplied at a time: a row of a tile in shared memory.
constexpr u32 DEPTH = ROW_BYTES;
// Turned results are written in slices of so many samples.
constexpr u32 SLICE = 32;
constexpr u32 SLICE_BYTES = SLICE * COLUMNS;

// The pairs of tiles of a product: two blocks of a cluster have one each, of the same samples.
struct Pairs {
    u32 across;
    u32 count;
    u32 steps;
    u32 first;
    u32 clusters;
    u32 rank;

    __device__ inline Pairs(u32 samples, u32 columns, u32 depth)
        : across((columns + 2 * COLUMNS - 1) / (2 * COLUMNS)), count((samples + SAMPLES - 1) / SAMPLES * across),
          steps((depth + DEPTH - 1) / DEPTH), first(blockIdx.x / 2), clusters(gridDim.x / 2), rank(cluster_rank()) {}

    __device__ inline u32 sample(u32 pair) const { return pair / across * SAMPLES; }
    __device__ inline u32 column(u32 pair) const { return (pair % across * 2 + rank) * COLUMNS; }
};

// The slices of a warpgroup's tiles, `COUNT` of each, one by one.
template <u32 COUNT>
struct Slices {
    u32 pair;
    u32 slice = 0;

    __device__ inline Slices(const Pairs& pairs, u32 consumer) : pair(pairs.first + consumer * pairs.clusters) {}

    __device__ inline bool done(const Pairs& pairs) const { return pair >= pairs.count; }
    __device__ inline void advance(const Pairs& pairs) {
        slice = (slice + 1) % COUNT;
        if (slice == 0) pair += 2 * pairs.clusters;
    }
};

// A warpgroup's places for slices, and their barriers: of those that are given with inputs, and those whose elements
// are finished.
struct Places {
    u32 base;
    u32 bytes;
    u32 count;
    u32 given;
    u32 finished;

    // By one thread.
    __device__ inline void make() const {
        for (u32 place = 0; place < count; place++) {
            barrier_make(given + 8 * place, 1);
            barrier_make(finished + 8 * place, GROUP_THREADS);
        }
    }
};

// Fetches what the elements of a warpgroup's tiles are made with, and writes them, by one thread: slices of `HEIGHT`
// samples. `fetch` is told a barrier, which it lets wait for what it fetches, its place, a column and a sample; `write`
// all but the barrier.
template <u32 HEIGHT, class FETCH, class WRITE>
__device__ inline void carry_slices(const Pairs& pairs, const Places& places, u32 consumer, const FETCH& fetch,
                                    const WRITE& write) {
    Slices<SAMPLES / HEIGHT> ahead(pairs, consumer), behind = ahead;
    const auto fetch_next = [&](u32 place) {
        if (ahead.done(pairs)) return;
        const u32 barrier = places.given + 8 * place, to = places.base + place * places.bytes;
        const u32 sample = pairs.sample(ahead.pair) + ahead.slice * HEIGHT, column = pairs.column(ahead.pair);
        fetch(barrier, to, column, sample);
        ahead.advance(pairs);
    };
    for (u32 place = 0; place < places.count; place++) fetch_next(place);
    for (u32 number = 0; !behind.done(pairs); number++) {
        const u32 place = number % places.count, from = places.base + place * places.bytes;
        const u32 sample = pairs.sample(behind.pair) + behind.slice * HEIGHT, column = pairs.column(behind.pair);
        wait(places.finished + 8 * place, number / places.count & 1);
        write(from, column, sample);
        writes_begun();
        writes_read();
        fetch_next(place);
        behind.advance(pairs);
    }
    writes_done();
}

// Stages, from the beginning of shared memory on, and their barriers: of stages that are full, of those that are empty,
// and of whose turn it is to multiply.
struct Stages {
    static constexpr u32 BARRIERS = 2 * STAGES + 2;
    u32 base;
    u32 full;
    u32 empty;
    u32 turns;

    __device__ inline Stages(u32 base, u32 barriers)
        : base(base), full(barriers), empty(full + 8 * STAGES), turns(empty + 8 * STAGES) {}

    // By one thread.
    __device__ inline void make() const {
        for (u32 stage = 0; stage < STAGES; stage++) {
            barrier_make(full + 8 * stage, 1);
            barrier_make(empty + 8 * stage, 2);
        }
        for (u32 consumer = 0; consumer < 2; consumer++) barrier_make(turns + 8 * consumer, 1);
    }
};

// Fetches the factors of all pairs, by one thread of a block.
__device__ inline void fetch_factors(const Pairs& pairs, const Stages& stages, const TensorMap& weights,
                                     const TensorMap& samples) {
    prefetch(weights);
    prefetch(samples);
    Ring ring;
    for (u32 pair = pairs.first; pair < pairs.count; pair += pairs.clusters) {
        const u32 sample = pairs.sample(pair) + pairs.rank * (SAMPLES / 2), column = pairs.column(pair);
        for (u32 step = 0; step < pairs.steps; step++) {
            const u32 to = stages.base + ring.stage * STAGE_BYTES, barrier = stages.full + 8 * ring.stage;
            const u32 half = to + WEIGHTS_BYTES + pairs.rank * (SAMPLES_BYTES / 2);
            wait(stages.empty + 8 * ring.stage, (ring.round & 1) ^ 1);
            arrive_with_bytes(barrier, STAGE_BYTES);
            fetch_tile_for(half, samples, barrier, step * DEPTH, sample, 3);
            fetch_tile(to, weights, barrier, step * DEPTH, column);
            ring.advance(1);
        }
    }
}

// Multiplies a tile, the warpgroup's one of this number. Its ring begins with the steps of the other group's tiles
// before.
__device__ inline void multiply_tile(float (&sums)[2][SAMPLES / 2], const Pairs& pairs, const Stages& stages,
                                     Ring& ring, u32 consumer, u32 number) {
    const u32 thread = threadIdx.x % GROUP_THREADS;
    // The stages' barriers tell even rounds from odd ones alone: so no warpgroup waits for stages before the other one
    // has got all of its own.
    wait(stages.turns + 8 * consumer, (number & 1) ^ (consumer ^ 1));
    u32 before = 0;
    for (u32 step = 0; step < pairs.steps; step++) {
        const u32 weights = stages.base + ring.stage * STAGE_BYTES, samples = weights + WEIGHTS_BYTES;
        wait(stages.full + 8 * ring.stage, ring.round & 1);
        products_begin();
#pragma unroll
        for (u32 part = 0; part < DEPTH / 32; part++) {
            const u64 b = factor(samples + part * 32, 1024);
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u64 a = factor(weights + half * (WEIGHTS_BYTES / 2) + part * 32, 1024);
                multiply_fp8(sums[half], a, b, step + part);
            }
        }
        products_end();
        products_done<1>();
        // All but the products just begun are done: the stage before can be filled again.
        if (step > 0 && thread < 2) arrive_at(stages.empty + 8 * before, thread);
        before = ring.stage;
        ring.advance(1);
    }
    if (thread == 0) arrive(stages.turns + 8 * (consumer ^ 1));
    products_done<0>();
    if (thread < 2) arrive_at(stages.empty + 8 * before, thread);
    ring.advance(pairs.steps);
}

// Where a warpgroup's thread finds its pieces in a slice of a tile. It gives the address of a sample's 16 columns, or
// turned of a column's 16 samples.
struct Pieces {
    u32 lane;
    u32 warp;

    __device__ inline Pieces() : lane(threadIdx.x % WARP), warp(threadIdx.x % GROUP_THREADS / WARP) {}

    __device__ inline u32 rows(u32 half) const { return lane * COLUMNS + ((half * 4 + warp) ^ (lane & 7)) * 16; }
    __device__ inline u32 turned(u32 half) const {
        const u32 column = warp * 16 + (lane & 7) * 2 + (lane >> 3 & 1);
        return (half * (COLUMNS / 2) + column) * SLICE + ((lane >> 4) ^ (column >> 2 & 1)) * 16;
    }
    // The first of the two columns of a tile that the lane has sums of, in either half.
    __device__ inline u32 column(u32 half) const { return half * (COLUMNS / 2) + warp * 16 + lane / 4 * 2; }
};

// Of pieces row by row: turned ones.
__device__ inline void store_turned(u32 to, const u32 (&pieces)[4]) {
    const u32 turned[4] = {__byte_perm(pieces[0], pieces[1], 0x6420), __byte_perm(pieces[0], pieces[1], 0x7531),
                           __byte_perm(pieces[2], pieces[3], 0x6420), __byte_perm(pieces[2], pieces[3], 0x7531)};
    store_pieces_straight(to, turned);
}

// Tells a scaling of the largest magnitude of a warp's lanes.
__device__ inline void observe_in_warp(Fp8Scaling* scaling, float largest) {
#pragma unroll
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
    }
    if (threadIdx.x % WARP == 0) observe(scaling, largest);
}

// Writes the sums of a lane's columns over a tile's samples, in the units of `factor`.
__device__ inline void write_sums(float* parts, const float (&by_column)[2][2], u32 column, u32 columns, float factor) {
    const Pieces pieces;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        float sum = by_column[i / 2][i % 2];
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        const u32 at = column + pieces.column(i / 2) + i % 2;
        if (pieces.lane % 4 == 0 && at < columns) parts[at] = sum * factor;
    }
}

#endif
