// The dot interaction: of each sample the first vector as it is, then the products of vector 1 with 0, 2 with 0, 2 with
// 1, 3 with 0, ...; and back.
//
// Forward reads every vector once and writes the products; back reads both once and writes the vectors' gradients. In
// f32 a block takes a sample; in bf16 a warp does, on the tensor cores: Z Zᵀ forward, (G + Gᵀ) Z back.
#include <mma.h>

#include "element.cuh"

struct Dot {
    // [sample][vectors][dim]
    const void* vectors;
    // [sample][stride]: `passed` elements of the first vector, the products, zeros.
    void* products;
    // [sample][vectors][dim]; null forward.
    void* gradients;
    u32 samples;
    u32 count;
    u32 dim;
    u32 passed;
    u32 stride;
    // Whether there is a ReLU before the first vector, which its gradients are taken through.
    u32 relu;
};
static_assert(sizeof(Dot) == 48);

// Shared memory is padded by as much a row, so that rows do not begin in the same bank.
constexpr u32 PAD_F32 = 4;
constexpr u32 PAD_BF16 = 8;
constexpr u32 DOT_THREADS = 128;

struct Pair {
    u32 high;
    u32 low;
};

__device__ inline Pair pair_of(u32 number) {
    u32 high = u32((1.0f + sqrtf(1.0f + 8.0f * float(number))) / 2.0f);
    while (high * (high - 1) / 2 > number) high--;
    while ((high + 1) * high / 2 <= number) high++;
    return {high, number - high * (high - 1) / 2};
}

// One block a sample. Shared memory: the vectors.
extern "C" __global__ void __launch_bounds__(DOT_THREADS) dot_forward_f32(const __grid_constant__ Dot p) {
    extern __shared__ float4 memory[];
    float* z = reinterpret_cast<float*>(memory);
    const u32 row = p.dim + PAD_F32, pairs = p.count * (p.count - 1) / 2;
    for (u32 sample = blockIdx.x; sample < p.samples; sample += gridDim.x) {
        const float* vectors = static_cast<const float*>(p.vectors) + u64(sample) * p.count * p.dim;
        float* out = static_cast<float*>(p.products) + u64(sample) * p.stride;
        for (u32 i = threadIdx.x * VECTOR; i < p.count * p.dim; i += DOT_THREADS * VECTOR) {
            store4(z + i / p.dim * row + i % p.dim, load4(vectors + i));
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < p.stride; i += DOT_THREADS) {
            float value = i < p.passed ? z[i] : 0.0f;
            if (i >= p.passed && i - p.passed < pairs) {
                const Pair pair = pair_of(i - p.passed);
                const float *high = z + pair.high * row, *low = z + pair.low * row;
                for (u32 d = 0; d < p.dim; d += VECTOR) {
                    const float4 x = load4(high + d), y = load4(low + d);
                    value += x.x * y.x;
                    value += x.y * y.y;
                    value += x.z * y.z;
                    value += x.w * y.w;
                }
            }
            out[i] = value;
        }
        __syncthreads();
    }
}

// One block a sample. Shared memory: the vectors, and the products' gradients as a symmetric matrix.
extern "C" __global__ void __launch_bounds__(DOT_THREADS) dot_backward_f32(const __grid_constant__ Dot p) {
    extern __shared__ float4 memory[];
    float* z = reinterpret_cast<float*>(memory);
    const u32 row = p.dim + PAD_F32, pairs = p.count * (p.count - 1) / 2;
    float* g = z + p.count * row;
    for (u32 sample = blockIdx.x; sample < p.samples; sample += gridDim.x) {
        const float* vectors = static_cast<const float*>(p.vectors) + u64(sample) * p.count * p.dim;
        const float* from = static_cast<const float*>(p.products) + u64(sample) * p.stride;
        float* gradients = static_cast<float*>(p.gradients) + u64(sample) * p.count * p.dim;
        for (u32 i = threadIdx.x * VECTOR; i < p.count * p.dim; i += DOT_THREADS * VECTOR) {
            store4(z + i / p.dim * row + i % p.dim, load4(vectors + i));
        }
        for (u32 i = threadIdx.x; i < p.count; i += DOT_THREADS) g[i * p.count + i] = 0;
        for (u32 i = threadIdx.x; i < pairs; i += DOT_THREADS) {
            const Pair pair = pair_of(i);
            g[pair.high * p.count + pair.low] = g[pair.low * p.count + pair.high] = from[p.passed + i];
        }
        __syncthreads();
        for (u32 i = threadIdx.x * VECTOR; i < p.count * p.dim; i += DOT_THREADS * VECTOR) {
            const u32 vector = i / p.dim, column = i % p.dim;
            float4 sum = make_float4(0, 0, 0, 0);
            for (u32 other = 0; other < p.count; other++) {
                const float scale = g[vector * p.count + other];
                const float4 x = load4(z + other * row + column);
                sum.x += scale * x.x;
                sum.y += scale * x.y;
                sum.z += scale * x.z;
                sum.w += scale * x.w;
            }
            if (i < p.passed) {
                add(sum, load4(from + i));
                if (p.relu != 0) sum = where_positive(sum, load4(z + i));
            }
            store4(gradients + i, sum);
        }
        __syncthreads();
    }
}

constexpr u32 EDGE = 16;
constexpr u32 PIECE = 8;
using Accumulator = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, EDGE, EDGE, EDGE, float>;
using Left = nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, EDGE, EDGE, EDGE, bf16, nvcuda::wmma::row_major>;
using Right = nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, EDGE, EDGE, EDGE, bf16, nvcuda::wmma::row_major>;
using RightTransposed = nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, EDGE, EDGE, EDGE, bf16, nvcuda::wmma::col_major>;

__device__ inline u32 rounded_up(u32 value, u32 multiple) { return (value + multiple - 1) / multiple * multiple; }

// A sample's vectors into a warp's shared memory, zeros behind the last.
__device__ inline void load_vectors(const Dot& p, u32 sample, u32 rows, bf16* z) {
    const u32 lane = threadIdx.x % WARP, row = p.dim + PAD_BF16;
    const bf16* vectors = static_cast<const bf16*>(p.vectors) + u64(sample) * p.count * p.dim;
    for (u32 i = lane * PIECE; i < p.count * p.dim; i += WARP * PIECE) {
        const u32 place = u32(__cvta_generic_to_shared(z + i / p.dim * row + i % p.dim));
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(vectors + i));
    }
    for (u32 i = p.count * row + lane; i < rows * row; i += WARP) z[i] = __float2bfloat16_rn(0.0f);
}

__device__ inline void vectors_loaded() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
}

// One warp a sample. Shared memory of a warp: the vectors, a tile, the products.
extern "C" __global__ void __launch_bounds__(DOT_THREADS) dot_forward_bf16(const __grid_constant__ Dot p) {
    extern __shared__ float4 memory[];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, row = p.dim + PAD_BF16;
    const u32 rows = rounded_up(p.count, EDGE);
    const u32 bytes = rounded_up(rows * row * 2 + EDGE * EDGE * 4 + p.stride * 2, 128);
    bf16* z = reinterpret_cast<bf16*>(reinterpret_cast<u8*>(memory) + warp * bytes);
    float* tile = reinterpret_cast<float*>(z + rows * row);
    bf16* out = reinterpret_cast<bf16*>(tile + EDGE * EDGE);
    const u32 warps = gridDim.x * DOT_THREADS / WARP, pairs = p.count * (p.count - 1) / 2;
    for (u32 sample = blockIdx.x * DOT_THREADS / WARP + warp; sample < p.samples; sample += warps) {
        load_vectors(p, sample, rows, z);
        for (u32 i = p.passed + pairs + lane; i < p.stride; i += WARP) out[i] = __float2bfloat16_rn(0.0f);
        vectors_loaded();
        for (u32 i = lane; i < p.passed; i += WARP) out[i] = z[i];
        for (u32 above = 0; above < rows; above += EDGE) {
            for (u32 left = 0; left <= above; left += EDGE) {
                Accumulator sums;
                nvcuda::wmma::fill_fragment(sums, 0.0f);
                for (u32 d = 0; d < p.dim; d += EDGE) {
                    Left a;
                    RightTransposed b;
                    nvcuda::wmma::load_matrix_sync(a, z + above * row + d, row);
                    nvcuda::wmma::load_matrix_sync(b, z + left * row + d, row);
                    nvcuda::wmma::mma_sync(sums, a, b, sums);
                }
                nvcuda::wmma::store_matrix_sync(tile, sums, EDGE, nvcuda::wmma::mem_row_major);
                __syncwarp();
#pragma unroll
                for (u32 e = lane; e < EDGE * EDGE; e += WARP) {
                    const u32 high = above + e / EDGE, low = left + e % EDGE;
                    if (high < p.count && low < high) {
                        out[p.passed + high * (high - 1) / 2 + low] = __float2bfloat16_rn(tile[e]);
                    }
                }
                __syncwarp();
            }
        }
        uint4* to = reinterpret_cast<uint4*>(static_cast<bf16*>(p.products) + u64(sample) * p.stride);
        for (u32 i = lane; i < p.stride / PIECE; i += WARP) to[i] = reinterpret_cast<const uint4*>(out)[i];
        __syncwarp();
    }
}

// One warp a sample. Shared memory of a warp: the vectors, the products' gradients as a symmetric matrix, a tile.
extern "C" __global__ void __launch_bounds__(DOT_THREADS) dot_backward_bf16(const __grid_constant__ Dot p) {
    extern __shared__ float4 memory[];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, row = p.dim + PAD_BF16;
    const u32 rows = rounded_up(p.count, EDGE), edge = rows + PAD_BF16;
    const u32 bytes = rounded_up(rows * row * 2 + rows * edge * 2 + EDGE * EDGE * 4, 128);
    bf16* z = reinterpret_cast<bf16*>(reinterpret_cast<u8*>(memory) + warp * bytes);
    bf16* g = z + rows * row;
    float* tile = reinterpret_cast<float*>(g + rows * edge);
    const u32 warps = gridDim.x * DOT_THREADS / WARP, pairs = p.count * (p.count - 1) / 2;
    const bf16 zero = __float2bfloat16_rn(0.0f);
    for (u32 i = lane; i < rows * edge; i += WARP) g[i] = zero;
    for (u32 sample = blockIdx.x * DOT_THREADS / WARP + warp; sample < p.samples; sample += warps) {
        load_vectors(p, sample, rows, z);
        const bf16* from = static_cast<const bf16*>(p.products) + u64(sample) * p.stride;
        bf16* gradients = static_cast<bf16*>(p.gradients) + u64(sample) * p.count * p.dim;
        for (u32 i = lane; i < pairs; i += WARP) {
            const Pair pair = pair_of(i);
            g[pair.high * edge + pair.low] = g[pair.low * edge + pair.high] = from[p.passed + i];
        }
        vectors_loaded();
        for (u32 above = 0; above < rows; above += EDGE) {
            for (u32 left = 0; left < p.dim; left += EDGE) {
                Accumulator sums;
                nvcuda::wmma::fill_fragment(sums, 0.0f);
                for (u32 k = 0; k < rows; k += EDGE) {
                    Left a;
                    Right b;
                    nvcuda::wmma::load_matrix_sync(a, g + above * edge + k, edge);
                    nvcuda::wmma::load_matrix_sync(b, z + k * row + left, row);
                    nvcuda::wmma::mma_sync(sums, a, b, sums);
                }
                nvcuda::wmma::store_matrix_sync(tile, sums, EDGE, nvcuda::wmma::mem_row_major);
                __syncwarp();
                const u32 vector = above + lane / 2, column = left + lane % 2 * PIECE;
                if (vector < p.count) {
                    const float* values = tile + lane * PIECE;
                    float4 low = load4(values), high = load4(values + VECTOR);
                    if (vector == 0 && p.passed > 0) {
                        add(low, load4(from + column));
                        add(high, load4(from + column + VECTOR));
                        if (p.relu != 0) {
                            low = where_positive(low, load4(z + column));
                            high = where_positive(high, load4(z + column + VECTOR));
                        }
                    }
                    const uint2 first = packed(low), second = packed(high);
                    *reinterpret_cast<uint4*>(gradients + vector * p.dim + column) =
                        make_uint4(first.x, first.y, second.x, second.y);
                }
                __syncwarp();
            }
        }
        __syncwarp();
    }
}
