// The part of a cross layer that is element by element: x' = x0 * (u + b) + x, with u the product before it; and back.
//
// Forward reads three elements and writes one; back reads three, or four, and writes two.
#include "element.cuh"

// Samples that a block takes, and how many of them at once.
constexpr u32 PIECE = 256;
constexpr u32 ROWS = 8;

struct Cross {
    // [sample][first_stride]
    const void* first;
    // [sample][input_stride]
    const void* input;
    // [sample][columns]
    const void* product;
    // [columns]
    const float* bias;
    // [sample][columns]
    void* output;
    u32 samples;
    u32 columns;
    u32 first_stride;
    u32 input_stride;
};
static_assert(sizeof(Cross) == 56);

// Grid: x over pieces of the samples, y over 128 columns.
template <class T>
__device__ inline void cross(const Cross& p) {
    const u32 lane = threadIdx.x % WARP, row = threadIdx.x / WARP;
    const u32 column = (blockIdx.y * WARP + lane) * VECTOR, end = min((blockIdx.x + 1) * PIECE, p.samples);
    if (column >= p.columns) return;
    const float4 b = load4(p.bias + column);
#pragma unroll 4
    for (u32 sample = blockIdx.x * PIECE + row; sample < end; sample += ROWS) {
        const float4 x0 = load4(static_cast<const T*>(p.first) + u64(sample) * p.first_stride + column);
        const float4 x = load4(static_cast<const T*>(p.input) + u64(sample) * p.input_stride + column);
        const u64 place = u64(sample) * p.columns + column;
        const float4 u = load4(static_cast<const T*>(p.product) + place);
        store4(static_cast<T*>(p.output) + place,
               make_float4(x0.x * (u.x + b.x) + x.x, x0.y * (u.y + b.y) + x.y, x0.z * (u.z + b.z) + x.z,
                           x0.w * (u.w + b.w) + x.w));
    }
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP) cross_f32(const __grid_constant__ Cross p) {
    cross<float>(p);
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP) cross_bf16(const __grid_constant__ Cross p) {
    cross<bf16>(p);
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP) cross_f16(const __grid_constant__ Cross p) {
    cross<f16>(p);
}

struct CrossBack {
    // [sample][first_stride]
    const void* first;
    // [sample][columns]
    const void* product;
    // [columns]
    const float* bias;
    // [sample][columns]: by the layer's result.
    const void* gradients;
    // [sample][columns]: by the product, which are those by the bias, too.
    void* product_gradients;
    // [sample][first_stride]
    void* first_gradients;
    // [piece][columns]: of the gradients by the bias.
    float* parts;
    u32 samples;
    u32 columns;
    u32 first_stride;
    // Whether there are gradients by x0 already, which those of this layer are added to.
    u32 add;
    // Whether this is the first layer, whose input is x0, too.
    u32 through;
    u32 reserved;
};
static_assert(sizeof(CrossBack) == 80);

// Grid: as forward.
template <class T>
__device__ inline void cross_back(const CrossBack& p) {
    __shared__ float4 sums[ROWS][WARP];
    const u32 lane = threadIdx.x % WARP, row = threadIdx.x / WARP;
    const u32 column = (blockIdx.y * WARP + lane) * VECTOR, end = min((blockIdx.x + 1) * PIECE, p.samples);
    float4 sum = make_float4(0, 0, 0, 0);
    if (column < p.columns) {
        const float4 b = load4(p.bias + column);
#pragma unroll 4
        for (u32 sample = blockIdx.x * PIECE + row; sample < end; sample += ROWS) {
            const u64 place = u64(sample) * p.columns + column, at_first = u64(sample) * p.first_stride + column;
            const float4 x0 = load4(static_cast<const T*>(p.first) + at_first);
            const float4 u = load4(static_cast<const T*>(p.product) + place);
            const float4 g = load4(static_cast<const T*>(p.gradients) + place);
            T* by_first = static_cast<T*>(p.first_gradients) + at_first;
            const float4 by_product = make_float4(x0.x * g.x, x0.y * g.y, x0.z * g.z, x0.w * g.w);
            store4(static_cast<T*>(p.product_gradients) + place, by_product);
            add(sum, by_product);
            float4 total = make_float4((u.x + b.x) * g.x, (u.y + b.y) * g.y, (u.z + b.z) * g.z, (u.w + b.w) * g.w);
            if (p.add != 0) add(total, load4(by_first));
            if (p.through != 0) add(total, g);
            store4(by_first, total);
        }
    }
    sums[row][lane] = sum;
    __syncthreads();
    if (row == 0 && column < p.columns) {
        for (u32 other = 1; other < ROWS; other++) add(sum, sums[other][lane]);
        store4(p.parts + u64(blockIdx.x) * p.columns + column, sum);
    }
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP) cross_back_f32(const __grid_constant__ CrossBack p) {
    cross_back<float>(p);
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP) cross_back_bf16(const __grid_constant__ CrossBack p) {
    cross_back<bf16>(p);
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP) cross_back_f16(const __grid_constant__ CrossBack p) {
    cross_back<f16>(p);
}
