// The element-wise part of a cross layer: x' = x0 * (u + b) + x, where u is the matrix product; and its backward
// pass.
//
// The forward pass reads three elements and writes one. The backward pass reads two or three per layer and writes one
// or two; at the end it reads two more per layer and reads and writes one.
#include "guard.cuh"

// Samples per block, and samples that it handles at once.
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
        const u64 index = u64(sample) * p.columns + column;
        const float4 u = load4(static_cast<const T*>(p.product) + index);
        store4(static_cast<T*>(p.output) + index,
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

// The backward pass of a layer, up to its matrix product: g = g + g', where g' is the gradient that bypasses the
// following layer; and x0 * g, the gradient with respect to the product.
struct CrossGradient {
    // [sample][first_stride]
    const void* first;
    // Null, or [sample][columns]: g', which is added.
    const void* added;
    // [sample][columns]: with respect to the layer's result.
    void* gradients;
    // [sample][columns]: with respect to the product, and so to the bias as well.
    void* product_gradients;
    // [piece][columns]: partial sums of the bias gradients.
    float* parts;
    u32 samples;
    u32 columns;
    u32 first_stride;
    u32 reserved;
};

// Grid: as in the forward pass.
template <class T>
__device__ inline void cross_gradient(const CrossGradient& p) {
    __shared__ float4 sums[ROWS][WARP];
    const u32 lane = threadIdx.x % WARP, row = threadIdx.x / WARP;
    const u32 column = (blockIdx.y * WARP + lane) * VECTOR, end = min((blockIdx.x + 1) * PIECE, p.samples);
    float4 sum = make_float4(0, 0, 0, 0);
    if (column < p.columns) {
#pragma unroll 4
        for (u32 sample = blockIdx.x * PIECE + row; sample < end; sample += ROWS) {
            const u64 index = u64(sample) * p.columns + column;
            T* gradients = static_cast<T*>(p.gradients) + index;
            const float4 x0 = load4(static_cast<const T*>(p.first) + u64(sample) * p.first_stride + column);
            float4 g = load4(gradients);
            if (p.added != nullptr) {
                add(g, load4(static_cast<const T*>(p.added) + index));
                store4(gradients, g);
            }
            const float4 by_product = make_float4(x0.x * g.x, x0.y * g.y, x0.z * g.z, x0.w * g.w);
            store4(static_cast<T*>(p.product_gradients) + index, by_product);
            add(sum, by_product);
        }
    }
    sums[row][lane] = sum;
    __syncthreads();
    if (row == 0 && column < p.columns) {
        for (u32 other = 1; other < ROWS; other++) add(sum, sums[other][lane]);
        store4(p.parts + u64(blockIdx.x) * p.columns + column, sum);
    }
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP) cross_gradient_f32(const __grid_constant__ CrossGradient p) {
    cross_gradient<float>(p);
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP)
    cross_gradient_bf16(const __grid_constant__ CrossGradient p) {
    cross_gradient<bf16>(p);
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP) cross_gradient_f16(const __grid_constant__ CrossGradient p) {
    cross_gradient<f16>(p);
}

// The most layers whose gradients with respect to x0 are added up at once.
constexpr u32 LAYERS = 4;

// The gradients with respect to x0: those through the first layer's product, plus (u + b) * g of each layer. Computed
// once all layers' g are known, so that the matrix is written once and no matrix is read twice.
struct CrossFirst {
    // Per layer, [sample][columns]: u, and the gradients with respect to its result.
    const void* products[LAYERS];
    const void* gradients[LAYERS];
    // [columns] per layer.
    const float* biases[LAYERS];
    // [sample][first_stride]: in: gradients through the first layer's product; out: the total.
    void* first_gradients;
    Guard* guard;
    u32 layers;
    u32 samples;
    u32 columns;
    u32 first_stride;
    // Whether the first of these layers is the first of the network, whose input is x0 as well.
    u32 through;
    u32 reserved;
};

// Grid: as in the forward pass.
template <class T, u32 COUNT>
__device__ inline void cross_first(const CrossFirst& p) {
    const u32 lane = threadIdx.x % WARP, row = threadIdx.x / WARP;
    const u32 column = (blockIdx.y * WARP + lane) * VECTOR, end = min((blockIdx.x + 1) * PIECE, p.samples);
    if (column >= p.columns) return;
    float4 b[COUNT];
#pragma unroll
    for (u32 layer = 0; layer < COUNT; layer++) b[layer] = load4(p.biases[layer] + column);
    bool wrong = false;
#pragma unroll 2
    for (u32 sample = blockIdx.x * PIECE + row; sample < end; sample += ROWS) {
        const u64 index = u64(sample) * p.columns + column;
        T* by_first = static_cast<T*>(p.first_gradients) + u64(sample) * p.first_stride + column;
        float4 u[COUNT], g[COUNT];
#pragma unroll
        for (u32 layer = 0; layer < COUNT; layer++) {
            u[layer] = load4(static_cast<const T*>(p.products[layer]) + index);
            g[layer] = load4(static_cast<const T*>(p.gradients[layer]) + index);
        }
        float4 total = load4(by_first);
        if (p.through != 0) add(total, g[0]);
#pragma unroll
        for (u32 layer = 0; layer < COUNT; layer++) {
            total.x += (u[layer].x + b[layer].x) * g[layer].x;
            total.y += (u[layer].y + b[layer].y) * g[layer].y;
            total.z += (u[layer].z + b[layer].z) * g[layer].z;
            total.w += (u[layer].w + b[layer].w) * g[layer].w;
        }
        wrong |= !holds4(by_first, total);
        store4(by_first, total);
    }
    if (wrong) atomicOr(&p.guard->found, WRONG_VECTORS);
}

template <class T>
__device__ inline void cross_first_of(const CrossFirst& p) {
    switch (p.layers) {
        case 1: return cross_first<T, 1>(p);
        case 2: return cross_first<T, 2>(p);
        case 3: return cross_first<T, 3>(p);
        default: return cross_first<T, LAYERS>(p);
    }
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP) cross_first_f32(const __grid_constant__ CrossFirst p) {
    cross_first_of<float>(p);
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP) cross_first_bf16(const __grid_constant__ CrossFirst p) {
    cross_first_of<bf16>(p);
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP) cross_first_f16(const __grid_constant__ CrossFirst p) {
    cross_first_of<f16>(p);
}
