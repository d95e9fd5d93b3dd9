// fp8 cross layers on Hopper, with the element-wise work done on the products:
//
// - Forward: x' = x0 * (u + b) + x, where u is the product, which is kept for the backward pass.
// - Backward: g = product + g', the gradient with respect to a layer's result, where g' bypasses the following layer;
//   and x0 * g, the gradient with respect to the layer's own product, also summed over pieces of the samples for its
//   bias.
//
// All matrices are in fp8. The forward pass reads two and writes u and x', the latter both row by row and transposed,
// as the next products need it; the backward pass moves as much. That is five bytes per element, where bf16 takes
// eight, and still takes longer than the products: 1.1 GB for 65536 samples of 3456 columns, 270 us at 4,200 GB/s,
// and 155 us for a depth of 512.
//
// So a tile is processed in slices of 32 samples. The inputs of one slice are fetched while others are processed,
// into the shared-memory buffer from which its results are written later. Two warpgroups take tiles in turn. Each has
// its own buffers, and a warp that fetches and writes its slices. Element-wise work takes longer than products, so
// both warpgroups are busy with it most of the time.
#include "fp8_tiles.cuh"

struct Fp8Cross {
    // [columns][depth], in pairs; tiles of 128 columns.
    TensorMap weights;
    // [samples][depth], tiles of 80 samples.
    TensorMap samples;
    // Inputs that the products are combined with, [samples][columns] in slices of 32 samples by 128 columns: forward
    // x0 and x, backward x0 and g'.
    TensorMap inputs[2];
    // Outputs, in slices: forward u and x', backward g and the gradients with respect to the product; and the second
    // output transposed, [columns][samples], in tiles of 128 columns by 32 samples.
    TensorMap outputs[2];
    TensorMap turned;
    // Backward: [tile of samples][columns]
    float* parts;
    // Forward: one per column.
    const float* bias;
    const Fp8Scaling* weights_scaling;
    const Fp8Scaling* samples_scaling;
    const Fp8Scaling* inputs_scalings[2];
    Fp8Scaling* outputs_scalings[2];
    u32 count;
    u32 columns;
    u32 depth;
    // Whether there is a second input. Without one, x is x0 (forward), and nothing is added (backward).
    u32 second;
    // Forward: whether a backward pass follows, which needs u, transposed results and updated scalings.
    u32 learns;
    u32 reserved[11];
};
static_assert(sizeof(Fp8Cross) == 1024);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The buffer of a slice: its two inputs, which become its two outputs, and the second output transposed.
constexpr u32 BUFFER_BYTES = 3 * SLICE_BYTES;
// Per warpgroup.
constexpr u32 BUFFERS = 3;
constexpr u32 SLICES = SAMPLES / SLICE;

// What is done with the products.
enum Then { FORWARD, BACK };

// Unpacks a word of fp8: both columns of the first sample, then of the second.
__device__ inline void unpacked_fp8(u32 word, float2& first, float2& second) {
    const __half2_raw low = __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(word), __NV_E4M3);
    const __half2_raw high = __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(word >> 16), __NV_E4M3);
    first = __half22float2(__half2(low));
    second = __half22float2(__half2(high));
}

template <Then THEN>
__device__ inline void fp8_cross(const Fp8Cross& p) {
    extern __shared__ __align__(1024) u8 memory[];
    const Room<BUFFERS, BUFFER_BYTES> room{shared_address(memory)};
    const u32 group = threadIdx.x / GROUP_THREADS, warp = threadIdx.x % GROUP_THREADS / WARP, lane = threadIdx.x % WARP;
    const Pairs pairs(p.count, p.columns, p.depth);
    const Stages stages = room.stages();
    const bool second = p.second != 0, learns = THEN == BACK || p.learns != 0;
    if (threadIdx.x == 0) {
        stages.make();
        for (u32 consumer = 0; consumer < 2; consumer++) room.buffers(consumer).make();
        barriers_made();
    }
    __syncthreads();
    cluster_meet();
    if (group == 0) {
        give_registers<40>();
        if (warp == 0 && lane == 0) fetch_factors<Fp8Factors>(pairs, stages, p.weights, p.samples);
        if ((warp == 1 || warp == 2) && lane == 0) {
            const auto fetch = [&](u32 barrier, u32 to, u32 column, u32 sample) {
                arrive_with_bytes(barrier, (second ? 2 : 1) * SLICE_BYTES);
                fetch_tile(to, p.inputs[0], barrier, column, sample);
                if (second) fetch_tile(to + SLICE_BYTES, p.inputs[1], barrier, column, sample);
            };
            const auto write = [&](u32 from, u32 column, u32 sample) {
                if (learns) write_tile(p.outputs[0], from, column, sample);
                write_tile(p.outputs[1], from + SLICE_BYTES, column, sample);
                if (learns) write_tile(p.turned, from + 2 * SLICE_BYTES, sample, column);
            };
            carry_slices<SLICE, COLUMNS>(pairs, room.buffers(warp - 1), warp - 1, fetch, write);
        }
    } else {
        take_registers<232>();
        const Pieces own;
        const u32 consumer = group - 1;
        const SliceBuffers buffers = room.buffers(consumer);
        // Scales are powers of two, and so are all of these factors. Sums are in the product of both factors' units
        // and inputs in their own; results go into theirs.
        const float unit = p.weights_scaling->inverse * p.samples_scaling->inverse;
        const float scales[2] = {p.outputs_scalings[0]->scale, p.outputs_scalings[1]->scale};
        const float of_sum = unit * scales[0];
        const float of_first = p.inputs_scalings[0]->inverse * (THEN == FORWARD ? scales[1] : scales[1] / scales[0]);
        const float of_second = p.inputs_scalings[1]->inverse * scales[THEN == FORWARD];
        float largest[2] = {};
        Ring ring;
        ring.advance(consumer * pairs.steps);
        float sums[2][SAMPLES / 2];
        u32 number = 0;
        for (u32 pair = pairs.first + consumer * pairs.clusters; pair < pairs.count;
             pair += 2 * pairs.clusters, number++) {
            const u32 sample = pairs.sample(pair), column = pairs.column(pair);
            // The biases of the lane's columns, or the sums of their gradients.
            float by_column[2][2] = {};
            if (THEN == FORWARD) {
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const u32 at = column + own.column(half);
                    if (at >= p.columns) continue;
                    by_column[half][0] = p.bias[at] * of_first;
                    by_column[half][1] = p.bias[at + 1] * of_first;
                }
            }
            multiply_tile<Fp8Factors>(sums, pairs, stages, ring, consumer, number);
#pragma unroll
            for (u32 slice = 0; slice < SLICES; slice++) {
                const u32 item = number * SLICES + slice, buffer = item % BUFFERS;
                const u32 at = buffers.base + buffer * buffers.bytes;
                wait(buffers.given + 8 * buffer, item / BUFFERS & 1);
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const u32 rows = at + own.rows(half);
                    u32 pieces[2][4];
                    load_pieces(pieces[0], rows);
                    if (second) load_pieces(pieces[1], rows + SLICE_BYTES);
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        const u32 j = slice * 4 + i;
                        // A word has both columns of a sample next to each other; sums have both samples of a column.
                        float2 first[2], other[2] = {};
                        unpacked_fp8(pieces[0][i], first[0], first[1]);
                        if (second) unpacked_fp8(pieces[1][i], other[0], other[1]);
                        if (THEN == FORWARD && !second) other[0] = first[0], other[1] = first[1];
                        float out[2][4];
#pragma unroll
                        for (u32 k = 0; k < 4; k++) {
                            const float sum = sums[half][j * 4 + k / 2 + k % 2 * 2];
                            const float x0 = k % 2 == 0 ? first[k / 2].x : first[k / 2].y;
                            const float more = k % 2 == 0 ? other[k / 2].x : other[k / 2].y;
                            float& of_column = by_column[half][k % 2];
                            if (THEN == FORWARD) {
                                out[0][k] = sum * of_sum;
                                out[1][k] = fmaf(x0, fmaf(sum, unit * of_first, of_column), more * of_second);
                            } else {
                                out[0][k] = fmaf(sum, of_sum, more * of_second);
                                out[1][k] = x0 * of_first * out[0][k];
                                of_column += out[1][k];
                            }
                            largest[0] = fmaxf(largest[0], fabsf(out[0][k]));
                            largest[1] = fmaxf(largest[1], fabsf(out[1][k]));
                        }
#pragma unroll
                        for (u32 to = 0; to < 2; to++) {
                            pieces[to][i] = packed_fp8(out[to][0], out[to][1], out[to][2], out[to][3]);
                        }
                    }
                    store_pieces(rows, pieces[0]);
                    store_pieces(rows + SLICE_BYTES, pieces[1]);
                    if (learns) store_turned(at + 2 * SLICE_BYTES + own.turned(half), pieces[1]);
                }
                stores_shown();
                arrive(buffers.finished + 8 * buffer);
            }
            if (THEN == BACK) {
                float* const parts = p.parts + u64(sample / SAMPLES) * p.columns;
                write_sums(parts, by_column, column, p.columns, 1 / scales[1]);
            }
        }
        if (learns) {
            observe_in_warp(p.outputs_scalings[0], largest[0]);
            observe_in_warp(p.outputs_scalings[1], largest[1]);
        }
    }
    __syncthreads();
    cluster_meet();
}

#else

// Never launched: jobs in fp8 are refused on other GPUs.
enum Then { FORWARD, BACK };
template <Then>
__device__ inline void fp8_cross(const Fp8Cross&) {
    __trap();
}

#endif

extern "C" __global__ void PAIRED __launch_bounds__(MATMUL_THREADS, 1)
    fp8_cross_layer(const __grid_constant__ Fp8Cross p) {
    fp8_cross<FORWARD>(p);
}

extern "C" __global__ void PAIRED __launch_bounds__(MATMUL_THREADS, 1)
    fp8_cross_gradient(const __grid_constant__ Fp8Cross p) {
    fp8_cross<BACK>(p);
}
