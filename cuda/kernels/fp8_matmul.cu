// Products of fp8 matrices on Hopper, for layers with a ReLU behind each:
//
// - Forward: a layer's outputs, taken through the ReLU; which of them are above 0 is kept, one bit each.
// - Back: the gradients by a ReLU's outputs, taken through that ReLU by its bits, and summed over pieces of the
//   samples, column by column, for the bias before it.
//
// - Out: results in bf16, for whoever does not multiply in fp8; with a bias they are taken through a ReLU, too.
//
// The first two write their results as the next products read them: row by row, and turned for the gradients by
// weights. They tell the scaling of the largest. An element takes two bytes to write and one to read, where bf16 takes
// two each.
//
// The way through the tiles is that of `matmul.cu`, with weights and samples of twice the depth in the same bytes.
// Weights lie in pairs (`fp8.cuh`), so that a lane has sums of columns that lie beside each other: their bytes are
// stored as one element of bf16 would be.
#include "fp8.cuh"
#include "tiles.cuh"

struct Fp8Matmul {
    // [columns][depth], in pairs; tiles of 128 columns.
    TensorMap weights;
    // [samples][depth], tiles of 80 samples.
    TensorMap samples;
    // What is written: [samples][columns] in tiles of 160 samples by 128 columns, and the same turned,
    // [columns][samples], in tiles of 128 columns by 32 samples. Out: rows alone, of bf16, in tiles of 160 samples by
    // 64 columns.
    TensorMap rows;
    TensorMap turned;
    // [pair of tiles][block of the cluster][word][thread]: the bits of a ReLU, as its product's lanes have them.
    u32* bits;
    // Back: [tile of samples][columns]
    float* parts;
    // Forward: one a column. Out: null where there is none.
    const float* bias;
    const Fp8Scaling* weights_scaling;
    const Fp8Scaling* samples_scaling;
    Fp8Scaling* scaling;
    u32 count;
    u32 columns;
    u32 depth;
    // Forward: whether there is a way back, for which turned results and bits are written and the scaling is told.
    u32 learns;
    u32 reserved[16];
};
static_assert(sizeof(Fp8Matmul) == 640);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// How much of the depth is multiplied at a time: a row of a tile in shared memory.
constexpr u32 DEPTH = ROW_BYTES;
// Each warpgroup has a place for the tile that it writes: rows, and then turned in slices of 32 samples.
constexpr u32 ROWS_BYTES = SAMPLES * COLUMNS;
constexpr u32 SLICE = 32;
constexpr u32 SLICE_BYTES = SLICE * COLUMNS;
constexpr u32 TILE_BYTES = 2 * ROWS_BYTES;
constexpr u32 TILES_AT = STAGES * STAGE_BYTES;
constexpr u32 BARRIERS_AT = TILES_AT + 2 * TILE_BYTES;
constexpr u32 SHARED_BYTES = BARRIERS_AT + 8 * (2 * STAGES + 2);
static_assert(SHARED_BYTES <= 232448);
// Words of bits that a lane has of a tile: one bit for each of its sums.
constexpr u32 WORDS = SAMPLES / WARP;
// Four sums of a lane, two columns of two samples, are a word of fp8; of these it has so many in each half of a tile.
constexpr u32 HALF_WORDS = SAMPLES / 8;

// What becomes of the sums.
enum Then { FORWARD, BACK, OUT };

__device__ inline void store_word(u32 to, u32 word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

// As `packed_fp8`, of numbers that go through a ReLU; none stays none.
__device__ inline u32 packed_relu(float a, float b, float c, float d) {
    u16 low, high;
    asm("cvt.rn.satfinite.relu.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.relu.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
    return low | u32(high) << 16;
}

// Of four numbers that are not below 0, bit 7 of each byte: whether it is above 0.
__device__ inline u32 above_zero(u32 word) { return (word + 0x7f7f7f7fu) & 0x80808080u; }

template <Then THEN>
__device__ inline void fp8_matmul(const Fp8Matmul& p) {
    extern __shared__ __align__(1024) u8 memory[];
    const u32 base = shared_address(memory);
    const u32 group = threadIdx.x / GROUP_THREADS, warp = threadIdx.x % GROUP_THREADS / WARP, lane = threadIdx.x % WARP;
    const u32 rank = cluster_rank();
    // Stages that are full, and those that are empty; whose turn it is to multiply.
    const u32 full = base + BARRIERS_AT, empty = full + 8 * STAGES, turns = empty + 8 * STAGES;
    const u32 across = (p.columns + 2 * COLUMNS - 1) / (2 * COLUMNS), down = (p.count + SAMPLES - 1) / SAMPLES;
    const u32 pairs = down * across, steps = (p.depth + DEPTH - 1) / DEPTH;
    const u32 first = blockIdx.x / 2, clusters = gridDim.x / 2;
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < STAGES; stage++) {
            barrier_make(full + 8 * stage, 1);
            barrier_make(empty + 8 * stage, 2);
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
                    fetch_tile(to, p.weights, barrier, step * DEPTH, column);
                    ring.advance(1);
                }
            }
        }
    } else {
        take_registers<232>();
        const u32 consumer = group - 1, thread = threadIdx.x % GROUP_THREADS;
        const u32 tile = base + TILES_AT + consumer * TILE_BYTES;
        // Products come in the units of both factors, results in fp8 go in their own.
        const float unit = THEN == OUT ? 1.0f : p.scaling->scale;
        const float factor = p.weights_scaling->inverse * p.samples_scaling->inverse * unit;
        const bool turns_results = THEN == BACK || (THEN == FORWARD && p.learns != 0);
        const bool relu = THEN == FORWARD || p.bias != nullptr;
        // The first of the two columns that this lane has sums of, in the first half.
        const u32 own = warp * 16 + lane / 4 * 2;
        // In rows, the lane gives the address of a sample's 16 columns; in a slice, of a column's 16 samples.
        const u32 sample_row = tile + lane * COLUMNS;
        const u32 turned_column = warp * 16 + (lane & 7) * 2 + (lane >> 3 & 1);
        const u32 turned_place = (lane >> 4) ^ (turned_column >> 2 & 1);
        const u32 column_row = tile + ROWS_BYTES + turned_column * SLICE + turned_place * 16;
        float largest = 0;
        Ring ring;
        ring.advance(consumer * steps);
        float sums[2][SAMPLES / 2];
        u32 number = 0;
        for (u32 pair = first + consumer * clusters; pair < pairs; pair += 2 * clusters, number++) {
            const u32 sample = pair / across * SAMPLES, column = (pair % across * 2 + rank) * COLUMNS;
            u32* const bits = p.bits + u64(pair * 2 + rank) * WORDS * GROUP_THREADS + thread;
            // The biases of the lane's columns, or the sums of their gradients.
            float by_column[2][2] = {};
            u32 words[WORDS] = {};
            if (THEN == BACK) {
#pragma unroll
                for (u32 i = 0; i < WORDS; i++) words[i] = bits[i * GROUP_THREADS];
            } else if (relu) {
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const u32 at = column + half * (COLUMNS / 2) + own;
                    if (at >= p.columns) continue;
                    by_column[half][0] = p.bias[at] * unit;
                    by_column[half][1] = p.bias[at + 1] * unit;
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
                for (u32 part = 0; part < DEPTH / 32; part++) {
                    const u64 b = ::factor(samples + part * 32, 1024);
#pragma unroll
                    for (u32 half = 0; half < 2; half++) {
                        const u64 a = ::factor(weights + half * (WEIGHTS_BYTES / 2) + part * 32, 1024);
                        multiply_fp8(sums[half], a, b, step + part);
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

            // The tile before has left its place.
            if (thread == 0) writes_read();
            meet(1 + consumer, GROUP_THREADS);
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                if constexpr (THEN == OUT) {
#pragma unroll
                    for (u32 i = 0; i < SAMPLES / 4; i++) {
                        // The two columns of the lane's first or second sample of eight.
                        float2 values;
                        values.x = fmaf(sums[half][i / 2 * 4 + i % 2], factor, by_column[half][0]);
                        values.y = fmaf(sums[half][i / 2 * 4 + 2 + i % 2], factor, by_column[half][1]);
                        if (relu && values.x < 0) values.x = 0;
                        if (relu && values.y < 0) values.y = 0;
                        const u32 in_eight = lane % 4 * 2 + i % 2, place = (warp * 2 + lane / 16) ^ in_eight;
                        const u32 at = tile + half * ROWS_BYTES + (i / 2 * 8 + in_eight) * 128 + place * 16;
                        store_word(at + lane / 4 % 4 * 4, packed_pair(values));
                    }
                } else {
#pragma unroll
                    for (u32 slice = 0; slice < SAMPLES / SLICE; slice++) {
                        u32 pieces[4];
#pragma unroll
                        for (u32 i = 0; i < 4; i++) {
                            const u32 j = slice * 4 + i, word = (half * HALF_WORDS + j) / 8;
                            const u32 bit = 7 - (half * HALF_WORDS + j) % 8;
                            float values[4];
#pragma unroll
                            for (u32 k = 0; k < 4; k++) {
                                // Of the first column two samples, then of the second one; bytes have both columns of a
                                // sample beside each other.
                                const u32 byte = k / 2 + k % 2 * 2;
                                float& of_column = by_column[half][k / 2];
                                if (THEN == BACK) {
                                    const float value = sums[half][j * 4 + k] * factor;
                                    values[k] = words[word] >> (byte * 8 + bit) & 1 ? value : 0.0f;
                                    of_column += values[k];
                                    largest = fmaxf(largest, fabsf(values[k]));
                                } else {
                                    values[k] = fmaf(sums[half][j * 4 + k], factor, of_column);
                                    largest = fmaxf(largest, values[k]);
                                }
                            }
                            if (THEN == BACK) {
                                pieces[i] = packed_fp8(values[0], values[2], values[1], values[3]);
                            } else {
                                pieces[i] = packed_relu(values[0], values[2], values[1], values[3]);
                                words[word] |= above_zero(pieces[i]) >> (7 - bit);
                            }
                        }
                        const u32 place = (half * 4 + warp) ^ (lane & 7);
                        store_pieces(sample_row + slice * SLICE * COLUMNS + place * 16, pieces);
                        if (turns_results) {
                            const u32 turned[4] = {
                                __byte_perm(pieces[0], pieces[1], 0x6420), __byte_perm(pieces[0], pieces[1], 0x7531),
                                __byte_perm(pieces[2], pieces[3], 0x6420), __byte_perm(pieces[2], pieces[3], 0x7531)};
                            const u32 to = column_row + slice * SLICE_BYTES + half * (COLUMNS / 2) * SLICE;
                            store_pieces_straight(to, turned);
                        }
                    }
                }
            }
            stores_shown();
            meet(1 + consumer, GROUP_THREADS);
            if (thread == 0) {
                write_tile(p.rows, tile, column, sample);
                if (THEN == OUT) write_tile(p.rows, tile + ROWS_BYTES, column + COLUMNS / 2, sample);
                if (turns_results) {
                    for (u32 slice = 0; slice < SAMPLES / SLICE; slice++) {
                        write_tile(p.turned, tile + ROWS_BYTES + slice * SLICE_BYTES, sample + slice * SLICE, column);
                    }
                }
                writes_begun();
            }
            if (THEN == BACK) {
                const float inverse = p.scaling->inverse;
                float* const parts = p.parts + u64(sample / SAMPLES) * p.columns;
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    float sum = by_column[i / 2][i % 2];
                    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
                    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
                    const u32 at = column + i / 2 * (COLUMNS / 2) + own + i % 2;
                    if (lane % 4 == 0 && at < p.columns) parts[at] = sum * inverse;
                }
            } else if (turns_results) {
#pragma unroll
                for (u32 i = 0; i < WORDS; i++) bits[i * GROUP_THREADS] = words[i];
            }
        }
        if (thread == 0) writes_done();
#pragma unroll
        for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
        }
        if (lane == 0 && turns_results) observe(p.scaling, largest);
    }
    __syncthreads();
    cluster_meet();
}

#else

// Never launched: jobs in fp8 are refused on other GPUs.
enum Then { FORWARD, BACK, OUT };
template <Then>
__device__ inline void fp8_matmul(const Fp8Matmul&) {
    __trap();
}

#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PAIRED __cluster_dims__(2, 1, 1)
#else
#define PAIRED
#endif

extern "C" __global__ void PAIRED __launch_bounds__(MATMUL_THREADS, 1)
    fp8_relu(const __grid_constant__ Fp8Matmul p) {
    fp8_matmul<FORWARD>(p);
}

extern "C" __global__ void PAIRED __launch_bounds__(MATMUL_THREADS, 1)
    fp8_relu_gradient(const __grid_constant__ Fp8Matmul p) {
    fp8_matmul<BACK>(p);
}

extern "C" __global__ void PAIRED __launch_bounds__(MATMUL_THREADS, 1)
    fp8_to_bf16(const __grid_constant__ Fp8Matmul p) {
    fp8_matmul<OUT>(p);
}
