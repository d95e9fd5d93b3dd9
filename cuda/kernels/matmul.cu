// Products of bf16 matrices on Hopper with what is done to their elements, so that no pass over activations is left:
//
// - Gradients by a layer's input, taken through the ReLU that the input came from, and summed over pieces of the
//   samples, column by column, for the bias before that ReLU.
// - Cross layers: x' = x0 * (u + b) + x, with u the product, which is kept for the way back.
// - Gradients by a cross layer's result, of which a part comes past the layer behind it: g = product + g'; and with
//   them those by the layer's own product, x0 * g, summed for its bias as above.
//
// What the elements are combined with is read while others multiply, into the place in shared memory that the results
// are then written from, a quarter of a tile at a time: some quarters are read and some written while one is worked on.
//
// Weights are the left factor and samples the right one, so that the sums of a column's gradients lie in few lanes;
// tiles are turned when they are written. A block has two warps that fetch tiles, two that have them written, and two
// warpgroups that multiply, each a tile of its own, in turns: while one multiplies, the other one finishes its
// elements. Two blocks are a cluster with tiles of the same samples, of which each fetches half for both. Pairs of
// tiles are numbered along a sample's columns, so that samples are read from memory once; weights stay in the cache.
#include <type_traits>

#include "tiles.cuh"

struct Matmul {
    // [depth][columns] for gradients, tiles of 64 of the depth; [columns][depth] for cross layers, tiles of 128
    // columns.
    TensorMap weights;
    // [samples][depth], tiles of 80 samples.
    TensorMap samples;
    // What elements are combined with and what is written, [samples][columns] in tiles of 80 samples. Through a ReLU
    // its outputs, and the gradients; for cross layers x0 and x, and u and x'; on their way back what is added and x0,
    // and the gradients by the result and by the product.
    TensorMap inputs[2];
    TensorMap outputs[2];
    // For gradients: [tile of samples][columns]
    float* parts;
    // For cross layers: one a column.
    const float* bias;
    u32 count;
    u32 columns;
    u32 depth;
    // On the way back of cross layers: whether something is added.
    u32 added;
    u32 reserved[8];
};
static_assert(sizeof(Matmul) == 832);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// How much of the depth is multiplied at a time: a row of a tile in shared memory.
constexpr u32 DEPTH = ROW_BYTES / 2;
// A tile of elements has two halves of 64 columns, those of one product of a warpgroup, and each two quarters.
constexpr u32 QUARTER_SAMPLES = SAMPLES / 2;
constexpr u32 QUARTER_BYTES = QUARTER_SAMPLES * ROW_BYTES;
// Quarters that there is room for.
constexpr u32 QUARTERS = 8;
constexpr u32 QUARTERS_AT = STAGES * STAGE_BYTES;
constexpr u32 BARRIERS_AT = QUARTERS_AT + QUARTERS * QUARTER_BYTES;
constexpr u32 SHARED_BYTES = BARRIERS_AT + 8 * (2 * STAGES + 3 * QUARTERS + 2);
static_assert(SHARED_BYTES <= 232448);

// What comes behind the products; see `Matmul`.
struct ReluGradient {
    static constexpr bool TURNED = true;
    static constexpr u32 TAKEN = 1;
};
struct CrossLayer {
    static constexpr bool TURNED = false;
    static constexpr u32 TAKEN = 2;
};
struct CrossGradient {
    static constexpr bool TURNED = true;
    static constexpr u32 TAKEN = 2;
};

template <class Then>
__device__ inline void matmul(const Matmul& p) {
    // Places of what a quarter of a tile is combined with: quarters take them in turns.
    constexpr u32 PLACES = QUARTERS / Then::TAKEN;
    constexpr bool SUMMED = !std::is_same_v<Then, CrossLayer>;
    extern __shared__ __align__(1024) u8 memory[];
    const u32 base = shared_address(memory), places = base + QUARTERS_AT;
    const u32 group = threadIdx.x / GROUP_THREADS, warp = threadIdx.x % GROUP_THREADS / WARP, lane = threadIdx.x % WARP;
    const u32 rank = cluster_rank();
    // Stages that are full, and those that are empty; places that are given with what elements are combined with, those
    // whose elements are finished, and those that are taken back once these were written; whose turn it is to multiply.
    const u32 full = base + BARRIERS_AT, empty = full + 8 * STAGES, given = empty + 8 * STAGES;
    const u32 finished = given + 8 * QUARTERS, taken = finished + 8 * QUARTERS, turns = taken + 8 * QUARTERS;
    const u32 across = (p.columns + 2 * COLUMNS - 1) / (2 * COLUMNS), down = (p.count + SAMPLES - 1) / SAMPLES;
    const u32 pairs = down * across, steps = (p.depth + DEPTH - 1) / DEPTH;
    const u32 first = blockIdx.x / 2, clusters = gridDim.x / 2;
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < STAGES; stage++) {
            barrier_make(full + 8 * stage, 1);
            barrier_make(empty + 8 * stage, 2);
        }
        for (u32 place = 0; place < PLACES; place++) {
            barrier_make(given + 8 * place, 1);
            barrier_make(finished + 8 * place, GROUP_THREADS);
            barrier_make(taken + 8 * place, 1);
        }
        for (u32 consumer = 0; consumer < 2; consumer++) barrier_make(turns + 8 * consumer, 1);
        barriers_made();
    }
    __syncthreads();
    cluster_meet();
    if (group == 0) {
        give_registers<40>();
        if (warp == 0 && lane == 0) {
            prefetch(p.weights);
            prefetch(p.samples);
            Ring ring;
            for (u32 pair = first; pair < pairs; pair += clusters) {
                const u32 sample = pair / across * SAMPLES + rank * (SAMPLES / 2);
                const u32 column = (pair % across * 2 + rank) * COLUMNS;
                for (u32 step = 0; step < steps; step++) {
                    const u32 to = base + ring.stage * STAGE_BYTES, barrier = full + 8 * ring.stage;
                    const u32 half = to + WEIGHTS_BYTES + rank * (SAMPLES_BYTES / 2);
                    wait(empty + 8 * ring.stage, (ring.round & 1) ^ 1);
                    arrive_with_bytes(barrier, STAGE_BYTES);
                    fetch_tile_for(half, p.samples, barrier, step * DEPTH, sample, 3);
                    if (Then::TURNED) {
                        fetch_tile(to, p.weights, barrier, column, step * DEPTH);
                        fetch_tile(to + WEIGHTS_BYTES / 2, p.weights, barrier, column + COLUMNS / 2, step * DEPTH);
                    } else {
                        fetch_tile(to, p.weights, barrier, step * DEPTH, column);
                    }
                    ring.advance(1);
                }
            }
        }
        if (warp == 1 && lane == 0) {
            const bool added = !std::is_same_v<Then, CrossGradient> || p.added != 0;
            // Of a quarter, among those of all tiles of this block.
            u32 number = 0;
            for (u32 pair = first; pair < pairs; pair += clusters) {
                const u32 sample = pair / across * SAMPLES, column = (pair % across * 2 + rank) * COLUMNS;
                for (u32 quarter = 0; quarter < 4; quarter++, number++) {
                    const u32 place = number % PLACES, barrier = given + 8 * place;
                    const u32 to = places + place * Then::TAKEN * QUARTER_BYTES;
                    wait(taken + 8 * place, (number / PLACES & 1) ^ 1);
                    arrive_with_bytes(barrier, (Then::TAKEN - (added ? 0 : 1)) * QUARTER_BYTES);
#pragma unroll
                    for (u32 i = 0; i < Then::TAKEN; i++) {
                        if (i == 0 && !added) continue;
                        fetch_tile(to + i * QUARTER_BYTES, p.inputs[i], barrier, column + quarter / 2 * (COLUMNS / 2),
                                   sample + quarter % 2 * QUARTER_SAMPLES);
                    }
                }
            }
        }
        if (warp >= 2 && lane == 0) {
            // Of each half one quarter.
            for (u32 number = warp - 2, pair = first; pair < pairs; number += 2) {
                const u32 quarter = number % 4, place = number % PLACES;
                const u32 from = places + place * Then::TAKEN * QUARTER_BYTES;
                const u32 column = (pair % across * 2 + rank) * COLUMNS + quarter / 2 * (COLUMNS / 2);
                const u32 sample = pair / across * SAMPLES + quarter % 2 * QUARTER_SAMPLES;
                wait(finished + 8 * place, number / PLACES & 1);
#pragma unroll
                for (u32 i = 0; i < Then::TAKEN; i++) {
                    write_tile(p.outputs[i], from + i * QUARTER_BYTES, column, sample);
                }
                writes_begun();
                writes_read();
                arrive(taken + 8 * place);
                if (quarter >= 2) pair += clusters;
            }
            writes_done();
        }
    } else {
        take_registers<232>();
        const u32 consumer = group - 1, thread = threadIdx.x % GROUP_THREADS;
        Ring ring;
        ring.advance(consumer * steps);
        float sums[2][SAMPLES / 2];
        u32 number = 0;
        for (u32 pair = first + consumer * clusters; pair < pairs; pair += 2 * clusters, number++) {
            const u32 sample = pair / across * SAMPLES, column = (pair % across * 2 + rank) * COLUMNS;
            // The columns that this lane has sums of, in either half.
            const u32 own = column + warp * 16 + lane / 4;
            const auto own_column = [&](u32 half, u32 i) { return own + half * (COLUMNS / 2) + i * 8; };
            // The biases of these columns, or the sums of their gradients.
            float by_column[2][2] = {};
            if constexpr (std::is_same_v<Then, CrossLayer>) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const u32 at = own_column(i / 2, i % 2);
                    if (at < p.columns) by_column[i / 2][i % 2] = p.bias[at];
                }
            }
            // The stages' barriers tell even rounds from odd ones alone: so no warpgroup waits for stages before the
            // other one has got all of its own.
            wait(turns + 8 * consumer, (number & 1) ^ (consumer ^ 1));
            u32 before = 0;
            for (u32 step = 0; step < steps; step++) {
                const u32 weights = base + ring.stage * STAGE_BYTES, samples = weights + WEIGHTS_BYTES;
                wait(full + 8 * ring.stage, ring.round & 1);
                products_begin();
#pragma unroll
                for (u32 part = 0; part < DEPTH / 16; part++) {
                    const u64 b = factor(samples + part * 32, 1024);
#pragma unroll
                    for (u32 half = 0; half < 2; half++) {
                        const u32 from = weights + half * (WEIGHTS_BYTES / 2);
                        const u64 a = factor(from + part * (Then::TURNED ? 16 * ROW_BYTES : 32), 1024);
                        multiply<Then::TURNED ? 1 : 0>(sums[half], a, b, step + part);
                    }
                }
                products_end();
                products_done<1>();
                // All but the products just begun are done: the stage before can be filled again.
                if (step > 0 && thread < 2) arrive_at(empty + 8 * before, thread);
                before = ring.stage;
                ring.advance(1);
            }
            if (thread == 0) arrive(turns + 8 * (consumer ^ 1));
            products_done<0>();
            if (thread < 2) arrive_at(empty + 8 * before, thread);
            ring.advance(steps);

            // This lane gives the address of a row of one of four pieces: two of 8 columns for each of two of 8
            // samples.
            const u32 piece = (warp * 2 + (lane >> 3 & 1)) ^ (lane & 7);
            const u32 row = ((lane >> 4) * 8 + (lane & 7)) * ROW_BYTES + piece * 16;
#pragma unroll
            for (u32 quarter = 0; quarter < 4; quarter++) {
                const u32 half = quarter / 2, item = (number * 2 + consumer) * 4 + quarter, place = item % PLACES;
                const u32 elements = places + place * Then::TAKEN * QUARTER_BYTES;
                wait(given + 8 * place, item / PLACES & 1);
#pragma unroll
                for (u32 j = 0; j < QUARTER_SAMPLES / 16; j++) {
                    const u32 at = elements + row + j * 16 * ROW_BYTES, from = (quarter % 2 * (SAMPLES / 32) + j) * 8;
                    u32 pieces[Then::TAKEN][4] = {};
#pragma unroll
                    for (u32 i = 0; i < Then::TAKEN; i++) {
                        const bool fetched = i > 0 || !std::is_same_v<Then, CrossGradient> || p.added != 0;
                        if (fetched) load_pieces(pieces[i], at + i * QUARTER_BYTES);
                    }
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        const float2 sum = make_float2(sums[half][from + i * 2], sums[half][from + i * 2 + 1]);
                        float& of_column = by_column[half][i % 2];
                        if constexpr (std::is_same_v<Then, ReluGradient>) {
                            const u32 mask = __hgt2_mask(as_pair(pieces[0][i]), __float2bfloat162_rn(0));
                            pieces[0][i] = packed_pair(sum) & mask;
                        } else if constexpr (std::is_same_v<Then, CrossLayer>) {
                            const float2 x0 = unpacked_pair(pieces[0][i]), x = unpacked_pair(pieces[1][i]);
                            pieces[0][i] = packed_pair(sum);
                            const float2 u = unpacked_pair(pieces[0][i]);
                            pieces[1][i] = packed_pair(
                                make_float2(x0.x * (u.x + of_column) + x.x, x0.y * (u.y + of_column) + x.y));
                        } else {
                            const float2 more = unpacked_pair(pieces[0][i]), x0 = unpacked_pair(pieces[1][i]);
                            pieces[0][i] = packed_pair(make_float2(sum.x + more.x, sum.y + more.y));
                            const float2 g = unpacked_pair(pieces[0][i]);
                            pieces[1][i] = packed_pair(make_float2(x0.x * g.x, x0.y * g.y));
                        }
                        if constexpr (SUMMED) {
                            const float2 gradients = unpacked_pair(pieces[Then::TAKEN - 1][i]);
                            of_column += gradients.x;
                            of_column += gradients.y;
                        }
                    }
#pragma unroll
                    for (u32 i = 0; i < Then::TAKEN; i++) store_pieces(at + i * QUARTER_BYTES, pieces[i]);
                }
                stores_shown();
                arrive(finished + 8 * place);
            }
            if constexpr (SUMMED) {
                float* const parts = p.parts + u64(sample / SAMPLES) * p.columns;
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    float sum = by_column[i / 2][i % 2];
                    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
                    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
                    const u32 at = own_column(i / 2, i % 2);
                    if (lane % 4 == 0 && at < p.columns) parts[at] = sum;
                }
            }
        }
    }
    __syncthreads();
    cluster_meet();
}

#else

// Never launched: there are other ways on other GPUs.
struct ReluGradient {};
struct CrossLayer {};
struct CrossGradient {};
template <class Then>
__device__ inline void matmul(const Matmul&) {
    __trap();
}

#endif

extern "C" __global__ void PAIRED __launch_bounds__(MATMUL_THREADS, 1)
    matmul_relu_gradient(const __grid_constant__ Matmul p) {
    matmul<ReluGradient>(p);
}

extern "C" __global__ void PAIRED __launch_bounds__(MATMUL_THREADS, 1) matmul_cross(const __grid_constant__ Matmul p) {
    matmul<CrossLayer>(p);
}

extern "C" __global__ void PAIRED __launch_bounds__(MATMUL_THREADS, 1)
    matmul_cross_gradient(const __grid_constant__ Matmul p) {
    matmul<CrossGradient>(p);
}
