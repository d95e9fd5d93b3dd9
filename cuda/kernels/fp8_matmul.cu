// Products of fp8 matrices on Hopper, with the element-wise work that follows:
//
// - Forward: a layer's outputs, through the ReLU; one bit per output records whether it is above 0.
// - Backward: the gradients with respect to a ReLU's outputs, through that ReLU by its bits, and summed over pieces
//   of the samples, column by column, for the bias before it.
// - Plain: the results as they are.
// - Out: results in bf16, for layers that do not compute in fp8; with a bias they go through a ReLU as well.
//
// All but the last write results in the layouts that the next products read: row by row, and transposed for weight
// gradients. They record the largest magnitude in the scaling. An element takes two bytes to write and one to read,
// where bf16 takes two each.
//
// Weights are stored in pairs (`fp8.cuh`), so that a lane's sums belong to neighbouring columns and two results are
// stored as one bf16 element would be.
#include "fp8_tiles.cuh"

struct Fp8Matmul {
    // [columns][depth], in pairs; tiles of 128 columns.
    TensorMap weights;
    // [samples][depth], tiles of 80 samples.
    TensorMap samples;
    // Outputs: [samples][columns] in tiles of 160 samples by 128 columns, and transposed, [columns][samples], in
    // tiles of 128 columns by 32 samples. Out: only rows, in bf16, in tiles of 160 samples by 64 columns.
    TensorMap rows;
    TensorMap turned;
    // [pair of tiles][block of the cluster][word][thread]: the bits of a ReLU, as its product's lanes have them.
    u32* bits;
    // Backward: [tile of samples][columns]
    float* parts;
    // Forward: one per column. Out: may be null.
    const float* bias;
    const Fp8Scaling* weights_scaling;
    const Fp8Scaling* samples_scaling;
    Fp8Scaling* scaling;
    u32 count;
    u32 columns;
    u32 depth;
    // Forward and plain: whether a backward pass follows, which needs transposed results, bits and updated scalings.
    u32 learns;
    u32 reserved[16];
};
static_assert(sizeof(Fp8Matmul) == 640);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Each warpgroup has a buffer for the tile that it writes: rows, then the transposed slices.
constexpr u32 ROWS_BYTES = SAMPLES * COLUMNS;
constexpr u32 TILE_BYTES = 2 * ROWS_BYTES;
constexpr u32 TILES_AT = STAGES * STAGE_BYTES;
constexpr u32 BARRIERS_AT = TILES_AT + 2 * TILE_BYTES;
constexpr u32 SHARED_BYTES = BARRIERS_AT + 8 * Stages::BARRIERS;
static_assert(SHARED_BYTES <= 232448);
// Words of bits per lane and tile: one bit for each of its sums.
constexpr u32 WORDS = SAMPLES / WARP;
// A word of fp8 has four sums of a lane, two columns of two samples; this is the number of words per half of a tile.
constexpr u32 HALF_WORDS = SAMPLES / 8;

// What is done with the products.
enum Then { FORWARD, BACK, PLAIN, OUT };

// As `packed_fp8`, through a ReLU; NaN stays NaN.
__device__ inline u32 packed_relu(float a, float b, float c, float d) {
    u16 low, high;
    asm("cvt.rn.satfinite.relu.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.relu.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
    return low | u32(high) << 16;
}

// Sets bit 7 of each byte of four non-negative numbers that is above 0.
__device__ inline u32 above_zero(u32 word) { return (word + 0x7f7f7f7fu) & 0x80808080u; }

template <Then THEN>
__device__ inline void fp8_matmul(const Fp8Matmul& p) {
    extern __shared__ __align__(1024) u8 memory[];
    const u32 base = shared_address(memory);
    const u32 group = threadIdx.x / GROUP_THREADS, lane = threadIdx.x % WARP;
    const Pairs pairs(p.count, p.columns, p.depth);
    const Stages stages(base, base + BARRIERS_AT);
    if (threadIdx.x == 0) {
        stages.make();
        barriers_made();
    }
    __syncthreads();
    cluster_meet();
    if (group == 0) {
        give_registers<40>();
        if (threadIdx.x == 0) fetch_factors<Fp8Factors>(pairs, stages, p.weights, p.samples);
    } else {
        take_registers<232>();
        const Pieces own;
        const u32 consumer = group - 1, thread = threadIdx.x % GROUP_THREADS;
        const u32 tile = base + TILES_AT + consumer * TILE_BYTES;
        // Products are in the product of both factors' units; fp8 results go into their own.
        const float unit = THEN == OUT ? 1.0f : p.scaling->scale;
        const float factor = p.weights_scaling->inverse * p.samples_scaling->inverse * unit;
        const bool turns_results = THEN == BACK || (THEN != OUT && p.learns != 0);
        const bool relu = THEN == FORWARD || (THEN == OUT && p.bias != nullptr);
        float largest = 0;
        Ring ring;
        ring.advance(consumer * pairs.steps);
        float sums[2][SAMPLES / 2];
        u32 number = 0;
        for (u32 pair = pairs.first + consumer * pairs.clusters; pair < pairs.count;
             pair += 2 * pairs.clusters, number++) {
            const u32 sample = pairs.sample(pair), column = pairs.column(pair);
            u32* const bits = p.bits + u64(pair * 2 + pairs.rank) * WORDS * GROUP_THREADS + thread;
            // The biases of the lane's columns, or the sums of their gradients.
            float by_column[2][2] = {};
            u32 words[WORDS] = {};
            if (THEN == BACK) {
#pragma unroll
                for (u32 i = 0; i < WORDS; i++) words[i] = bits[i * GROUP_THREADS];
            } else if (relu) {
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const u32 at = column + own.column(half);
                    if (at >= p.columns) continue;
                    by_column[half][0] = p.bias[at] * unit;
                    by_column[half][1] = p.bias[at + 1] * unit;
                }
            }
            multiply_tile<Fp8Factors>(sums, pairs, stages, ring, consumer, number);

            // The tile before has left the buffer.
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
                        const u32 in_eight = lane % 4 * 2 + i % 2, chunk = (own.warp * 2 + lane / 16) ^ in_eight;
                        const u32 at = tile + half * ROWS_BYTES + (i / 2 * 8 + in_eight) * 128 + chunk * 16;
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
                                // Two samples of the first column, then of the second; bytes have both columns of a
                                // sample next to each other.
                                const u32 byte = k / 2 + k % 2 * 2;
                                float& of_column = by_column[half][k / 2];
                                if (THEN == FORWARD) {
                                    values[k] = fmaf(sums[half][j * 4 + k], factor, of_column);
                                    largest = fmaxf(largest, values[k]);
                                } else {
                                    values[k] = sums[half][j * 4 + k] * factor;
                                    if (THEN == BACK) {
                                        if ((words[word] >> (byte * 8 + bit) & 1) == 0) values[k] = 0;
                                        of_column += values[k];
                                    }
                                    largest = fmaxf(largest, fabsf(values[k]));
                                }
                            }
                            if (THEN == FORWARD) {
                                pieces[i] = packed_relu(values[0], values[2], values[1], values[3]);
                                words[word] |= above_zero(pieces[i]) >> (7 - bit);
                            } else {
                                pieces[i] = packed_fp8(values[0], values[2], values[1], values[3]);
                            }
                        }
                        store_pieces(tile + slice * SLICE_BYTES + own.rows(half), pieces);
                        if (turns_results) {
                            store_turned(tile + ROWS_BYTES + slice * SLICE_BYTES + own.turned(half), pieces);
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
                float* const parts = p.parts + u64(sample / SAMPLES) * p.columns;
                write_sums(parts, by_column, column, p.columns, p.scaling->inverse);
            } else if (THEN == FORWARD && turns_results) {
#pragma unroll
                for (u32 i = 0; i < WORDS; i++) bits[i * GROUP_THREADS] = words[i];
            }
        }
        if (thread == 0) writes_done();
        if (turns_results) observe_in_warp(p.scaling, largest);
    }
    __syncthreads();
    cluster_meet();
}

#else

// Never launched: jobs in fp8 are refused on other GPUs.
enum Then { FORWARD, BACK, PLAIN, OUT };
template <Then>
__device__ inline void fp8_matmul(const Fp8Matmul&) {
    __trap();
}

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
    fp8_plain(const __grid_constant__ Fp8Matmul p) {
    fp8_matmul<PLAIN>(p);
}

extern "C" __global__ void PAIRED __launch_bounds__(MATMUL_THREADS, 1)
    fp8_to_bf16(const __grid_constant__ Fp8Matmul p) {
    fp8_matmul<OUT>(p);
}
