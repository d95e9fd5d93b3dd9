// Products of bf16 matrices on Hopper with the element-wise work that follows, so that no separate pass over
// activations is needed:
//
// - Gradients with respect to a layer's input, through the ReLU that the input came from, and summed over pieces of
//   the samples, column by column, for the bias before that ReLU.
// - Cross layers: x' = x0 * (u + b) + x, where u is the product, which is kept for the backward pass.
// - Gradients with respect to a cross layer's result, where g' bypasses the following layer: g = product + g'; and
//   with them x0 * g, the gradients with respect to the layer's own product, summed for its bias as above.
//
// Tiles are processed as described in `tiles.cuh`. A slice is as wide as a tile: fetching half a row brings 256 bytes
// into the L2 cache, and the other half would be evicted before its turn.
#include <type_traits>

#include "tiles.cuh"

struct Matmul {
    // For gradients: [depth][columns], tiles of 64 of the depth; for cross layers: [columns][depth], tiles of 128
    // columns.
    TensorMap weights;
    // [samples][depth], tiles of 80 samples.
    TensorMap samples;
    // Inputs that the products are combined with, and outputs: [samples][columns] in boxes of 32 samples by 64
    // columns. ReLU: its outputs, and the gradients. Cross layers: x0 and x, and u and x'. Their backward pass: x0
    // and g', and the gradients with respect to the result and to the product.
    TensorMap inputs[2];
    TensorMap outputs[2];
    // For gradients: [tile of samples][columns]
    float* parts;
    // For cross layers: one per column.
    const float* bias;
    u32 count;
    u32 columns;
    u32 depth;
    // For cross layers: whether there is a second input. Without one, x is x0 (forward), and nothing is added
    // (backward).
    u32 second;
    u32 reserved[8];
};
static_assert(sizeof(Matmul) == 832);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Samples of a slice. It has two boxes, one for each half of a tile's columns: the columns of one product.
constexpr u32 SLICE = 32;
constexpr u32 BOX_BYTES = SLICE * ROW_BYTES;
constexpr u32 SLICE_BYTES = 2 * BOX_BYTES;
constexpr u32 SLICES = SAMPLES / SLICE;
// Per warpgroup.
constexpr u32 BUFFERS_BYTES = 40 << 10;

// The work after the products; see `Matmul`.
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

// Computes the outputs of two samples of a column from their sums and from the inputs in `first` and `other`, which
// it overwrites. `of_column` is the column's bias, or the sum of its gradients.
template <class Then>
__device__ inline void finish(u32& first, u32& other, float2 sum, float& of_column, bool second) {
    if constexpr (std::is_same_v<Then, CrossLayer>) {
        const float2 x0 = unpacked_pair(first), x = second ? unpacked_pair(other) : x0;
        first = packed_pair(sum);
        const float2 u = unpacked_pair(first);
        other = packed_pair(make_float2(x0.x * (u.x + of_column) + x.x, x0.y * (u.y + of_column) + x.y));
    } else {
        if constexpr (std::is_same_v<Then, ReluGradient>) {
            const u32 mask = __hgt2_mask(as_pair(first), __float2bfloat162_rn(0));
            first = other = packed_pair(sum) & mask;
        } else {
            const float2 x0 = unpacked_pair(first), more = unpacked_pair(other);
            first = packed_pair(make_float2(sum.x + more.x, sum.y + more.y));
            const float2 g = unpacked_pair(first);
            other = packed_pair(make_float2(x0.x * g.x, x0.y * g.y));
        }
        const float2 gradients = unpacked_pair(other);
        of_column += gradients.x;
        of_column += gradients.y;
    }
}

template <class Then>
__device__ inline void matmul(const Matmul& p) {
    using Factors = Bf16Factors<Then::TURNED>;
    constexpr u32 TAKEN = Then::TAKEN, BUFFER_BYTES = TAKEN * SLICE_BYTES, BUFFERS = BUFFERS_BYTES / BUFFER_BYTES;
    constexpr bool SUMMED = !std::is_same_v<Then, CrossLayer>;
    extern __shared__ __align__(1024) u8 memory[];
    const Room<BUFFERS, BUFFER_BYTES> room{shared_address(memory)};
    const u32 group = threadIdx.x / GROUP_THREADS, warp = threadIdx.x % GROUP_THREADS / WARP, lane = threadIdx.x % WARP;
    const Pairs pairs(p.count, p.columns, p.depth * sizeof(bf16));
    const Stages stages = room.stages();
    const bool second = TAKEN == 2 && p.second != 0;
    if (threadIdx.x == 0) {
        stages.make();
        for (u32 consumer = 0; consumer < 2; consumer++) room.buffers(consumer).make(GROUP_THREADS / WARP);
        barriers_made();
    }
    __syncthreads();
    cluster_meet();
    if (group == 0) {
        give_registers<40>();
        if (warp == 0 && lane == 0) fetch_factors<Factors>(pairs, stages, p.weights, p.samples);
        if (warp >= 1 && warp <= 2 && lane == 0) {
            const auto fetch = [&](u32 barrier, u32 to, u32 column, u32 sample) {
                arrive_with_bytes(barrier, (second ? 2 : 1) * SLICE_BYTES);
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const u32 at = half * BOX_BYTES, first = column + half * (COLUMNS / 2);
                    fetch_tile(to + at, p.inputs[0], barrier, first, sample);
                    if (second) fetch_tile(to + SLICE_BYTES + at, p.inputs[1], barrier, first, sample);
                }
            };
            const auto write = [&](u32 from, u32 column, u32 sample) {
#pragma unroll
                for (u32 i = 0; i < 2 * TAKEN; i++) {
                    write_tile(p.outputs[i / 2], from + i * BOX_BYTES, column + i % 2 * (COLUMNS / 2), sample);
                }
            };
            carry_slices<SLICE, COLUMNS>(pairs, room.buffers(warp - 1), warp - 1, fetch, write);
        }
    } else {
        take_registers<232>();
        const u32 consumer = group - 1;
        const SliceBuffers buffers = room.buffers(consumer);
        // This lane gives the address of a row of one of four pieces: two of 8 columns for each of two of 8 samples.
        const u32 piece = (warp * 2 + (lane >> 3 & 1)) ^ (lane & 7);
        const u32 row = ((lane >> 4) * 8 + (lane & 7)) * ROW_BYTES + piece * 16;
        Ring ring;
        ring.advance(consumer * pairs.steps);
        float sums[2][SAMPLES / 2];
        u32 number = 0;
        for (u32 pair = pairs.first + consumer * pairs.clusters; pair < pairs.count;
             pair += 2 * pairs.clusters, number++) {
            // The columns whose sums this lane has, in either half.
            const u32 own = pairs.column(pair) + warp * 16 + lane / 4;
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
            multiply_tile<Factors>(sums, pairs, stages, ring, consumer, number);
#pragma unroll
            for (u32 slice = 0; slice < SLICES; slice++) {
                const u32 item = number * SLICES + slice, buffer = item % BUFFERS;
                const u32 elements = buffers.base + buffer * buffers.bytes + row;
                wait(buffers.given + 8 * buffer, item / BUFFERS & 1);
#pragma unroll
                for (u32 j = 0; j < SLICE / 8; j++) {
                    const u32 half = j / (SLICE / 16), sixteen = j % (SLICE / 16);
                    const u32 at = elements + j * 16 * ROW_BYTES, from = (slice * (SLICE / 16) + sixteen) * 8;
                    u32 pieces[2][4] = {};
                    load_pieces(pieces[0], at);
                    if (second) load_pieces(pieces[1], at + SLICE_BYTES);
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        const float2 sum = make_float2(sums[half][from + i * 2], sums[half][from + i * 2 + 1]);
                        finish<Then>(pieces[0][i], pieces[1][i], sum, by_column[half][i % 2], second);
                    }
#pragma unroll
                    for (u32 i = 0; i < TAKEN; i++) store_pieces(at + i * SLICE_BYTES, pieces[i]);
                }
                stores_shown();
                __syncwarp();
                if (lane == 0) arrive(buffers.finished + 8 * buffer);
            }
            if constexpr (SUMMED) {
                float* const parts = p.parts + u64(pairs.sample(pair) / SAMPLES) * p.columns;
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

// Never launched: other GPUs take other paths.
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
