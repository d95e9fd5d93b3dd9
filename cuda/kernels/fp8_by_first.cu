// The end of the backward pass through fp8 cross layers, on Hopper. It turns the gradient with respect to the first
// layer's product into the one with respect to that layer's input, x0, and adds all other gradients with respect to
// x0:
//
// product + g + sum over the layers of (u + b) * g
//
// where g is the gradient with respect to a layer's result; the second term is the first layer's g. The result is
// bf16, for the embeddings. Two bytes per element and layer are read and two are written: for three layers 1.8 GB for
// 65536 samples of 3456 columns, 431 us at 4,200 GB/s, which hides the product's 155 us.
//
// Tiles are processed as in `fp8_cross.cu`, but in slices of 16 samples, since more matrices are combined. The output
// overwrites the first of these in shared memory.
#include "fp8_tiles.cuh"
#include "guard.cuh"

// The most layers.
constexpr u32 LAYERS = 4;

struct Fp8ByFirst {
    // [columns][depth], in pairs; tiles of 128 columns.
    TensorMap weights;
    // [samples][depth], tiles of 80 samples.
    TensorMap samples;
    // Per layer, [samples][columns] in slices of 16 samples by 128 columns: u, and the gradients with respect to its
    // result.
    TensorMap products[LAYERS];
    TensorMap gradients[LAYERS];
    // [samples][columns] of bf16, in slices of 16 samples by 64 columns.
    TensorMap output;
    // One per column, per layer.
    const float* biases[LAYERS];
    const Fp8Scaling* products_scalings[LAYERS];
    const Fp8Scaling* gradients_scalings[LAYERS];
    const Fp8Scaling* weights_scaling;
    const Fp8Scaling* samples_scaling;
    Guard* guard;
    u32 count;
    u32 columns;
    u32 depth;
    u32 layers;
    u32 reserved[14];
};
static_assert(sizeof(Fp8ByFirst) == 1600);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr u32 THIN = 16;
constexpr u32 THIN_BYTES = THIN * COLUMNS;
constexpr u32 SLICES = SAMPLES / THIN;
// The output of a slice: two halves of 64 columns.
constexpr u32 OUT_BYTES = 2 * THIN_BYTES;
// Per warpgroup: bytes of all its buffers, and the most buffers (which have barriers).
constexpr u32 BUFFERS_BYTES = 40 << 10;
constexpr u32 BUFFERS_MAX = BUFFERS_BYTES / OUT_BYTES;
constexpr float BF16_MAX = 3.38953139e38f;

__device__ inline float2 unpacked_fp8(u32 pair) {
    return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(pair), __NV_E4M3)));
}

__device__ inline void by_first(const Fp8ByFirst& p) {
    // A buffer has u and g of each layer.
    const u32 buffer_bytes = 2 * p.layers * THIN_BYTES, count = BUFFERS_BYTES / buffer_bytes;
    extern __shared__ __align__(1024) u8 memory[];
    const Room<BUFFERS_MAX, BUFFERS_BYTES / BUFFERS_MAX> room{shared_address(memory)};
    const u32 group = threadIdx.x / GROUP_THREADS, warp = threadIdx.x % GROUP_THREADS / WARP, lane = threadIdx.x % WARP;
    const Pairs pairs(p.count, p.columns, p.depth);
    const Stages stages = room.stages();
    const auto buffers_of = [&](u32 consumer) {
        SliceBuffers buffers = room.buffers(consumer);
        buffers.bytes = buffer_bytes, buffers.count = count;
        return buffers;
    };
    if (threadIdx.x == 0) {
        stages.make();
        for (u32 consumer = 0; consumer < 2; consumer++) buffers_of(consumer).make();
        barriers_made();
    }
    __syncthreads();
    cluster_meet();
    if (group == 0) {
        give_registers<40>();
        if (warp == 0 && lane == 0) fetch_factors<Fp8Factors>(pairs, stages, p.weights, p.samples);
        if ((warp == 1 || warp == 2) && lane == 0) {
            const auto fetch = [&](u32 barrier, u32 to, u32 column, u32 sample) {
                arrive_with_bytes(barrier, buffer_bytes);
                for (u32 layer = 0; layer < p.layers; layer++) {
                    fetch_tile(to + 2 * layer * THIN_BYTES, p.products[layer], barrier, column, sample);
                    fetch_tile(to + (2 * layer + 1) * THIN_BYTES, p.gradients[layer], barrier, column, sample);
                }
            };
            const auto write = [&](u32 from, u32 column, u32 sample) {
                write_tile(p.output, from, column, sample);
                write_tile(p.output, from + THIN_BYTES, column + COLUMNS / 2, sample);
            };
            carry_slices<THIN, COLUMNS>(pairs, buffers_of(warp - 1), warp - 1, fetch, write);
        }
    } else {
        take_registers<232>();
        const Pieces own;
        const u32 consumer = group - 1;
        const SliceBuffers buffers = buffers_of(consumer);
        const float unit = p.weights_scaling->inverse * p.samples_scaling->inverse;
        // Four pieces: u of 8 samples, u of the next 8, and the same for g. This lane gives the address of a sample's
        // 16 columns.
        const u32 row = lane % 16, matrix = lane / 16 * THIN_BYTES + row * COLUMNS;
        const u32 halves[2] = {matrix + (warp ^ (row & 7)) * 16, matrix + ((warp + 4) ^ (row & 7)) * 16};
        bool wrong = false;
        Ring ring;
        ring.advance(consumer * pairs.steps);
        float sums[2][SAMPLES / 2];
        u32 number = 0;
        for (u32 pair = pairs.first + consumer * pairs.clusters; pair < pairs.count;
             pair += 2 * pairs.clusters, number++) {
            const u32 column = pairs.column(pair);
            const u32 columns[2] = {column + own.column(0), column + own.column(1)};
            multiply_tile<Fp8Factors>(sums, pairs, stages, ring, consumer, number);
#pragma unroll
            for (u32 slice = 0; slice < SLICES; slice++) {
                const u32 item = number * SLICES + slice, buffer = item % count;
                const u32 at = buffers.base + buffer * buffers.bytes;
                u32 results[2][2][2];
                wait(buffers.given + 8 * buffer, item / count & 1);
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    // For 8 samples and the next 8: both columns of the first of two samples, then of the second.
                    float values[2][4];
#pragma unroll
                    for (u32 i = 0; i < 2; i++) {
#pragma unroll
                        for (u32 k = 0; k < 4; k++) {
                            values[i][k] = sums[half][(slice * 2 + i) * 4 + k / 2 + k % 2 * 2] * unit;
                        }
                    }
#pragma unroll 1
                    for (u32 layer = 0; layer < p.layers; layer++) {
                        u32 pieces[4];
                        load_pieces(pieces, at + 2 * layer * THIN_BYTES + halves[half]);
                        // Read again for each slice, for lack of registers.
                        float2 bias = make_float2(0, 0);
                        if (columns[half] < p.columns) {
                            bias = *reinterpret_cast<const float2*>(p.biases[layer] + columns[half]);
                        }
                        // The first layer's result includes its input, so its gradients are added once more.
                        if (layer == 0) bias = make_float2(bias.x + 1, bias.y + 1);
                        const float of_u = p.products_scalings[layer]->inverse;
                        const float of_g = p.gradients_scalings[layer]->inverse;
#pragma unroll
                        for (u32 i = 0; i < 2; i++) {
#pragma unroll
                            for (u32 s = 0; s < 2; s++) {
                                const float2 u = unpacked_fp8(pieces[i] >> s * 16);
                                const float2 g = unpacked_fp8(pieces[2 + i] >> s * 16);
                                float* const two = values[i] + s * 2;
                                two[0] = fmaf(fmaf(u.x, of_u, bias.x), g.x * of_g, two[0]);
                                two[1] = fmaf(fmaf(u.y, of_u, bias.y), g.y * of_g, two[1]);
                            }
                        }
                    }
#pragma unroll
                    for (u32 i = 0; i < 2; i++) {
#pragma unroll
                        for (u32 s = 0; s < 2; s++) {
                            const float2 two = make_float2(values[i][s * 2], values[i][s * 2 + 1]);
                            wrong |= !(fabsf(two.x) <= BF16_MAX) || !(fabsf(two.y) <= BF16_MAX);
                            results[half][i][s] = packed_pair(two);
                        }
                    }
                }
                // The output overwrites what all threads have read by now.
                meet(1 + consumer, GROUP_THREADS);
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
#pragma unroll
                    for (u32 i = 0; i < 2; i++) {
#pragma unroll
                        for (u32 s = 0; s < 2; s++) {
                            const u32 in_eight = lane % 4 * 2 + s, at_piece = (warp * 2 + lane / 16) ^ in_eight;
                            const u32 to = at + half * THIN_BYTES + (i * 8 + in_eight) * 128 + at_piece * 16;
                            store_word(to + lane / 4 % 4 * 4, results[half][i][s]);
                        }
                    }
                }
                stores_shown();
                arrive(buffers.finished + 8 * buffer);
            }
        }
        if (wrong) atomicOr(&p.guard->found, WRONG_VECTORS);
    }
    __syncthreads();
    cluster_meet();
}

#else

// Never launched: jobs in fp8 are refused on other GPUs.
__device__ inline void by_first(const Fp8ByFirst&) { __trap(); }

#endif

extern "C" __global__ void PAIRED __launch_bounds__(MATMUL_THREADS, 1)
    fp8_by_first(const __grid_constant__ Fp8ByFirst p) {
    by_first(p);
}
