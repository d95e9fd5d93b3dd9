// The gradients with respect to x0 that fp8 cross layers add because x0 is the factor of their products: (u + b) * g
// per layer, and g of the first layer, whose input is x0 as well. They are in bf16, for the embeddings.
//
// Reads two bytes per element and layer; reads and writes two more per element.
#include "fp8.cuh"
#include "guard.cuh"

// Samples per block, samples handled at once, and columns per lane.
constexpr u32 PIECE = 128;
constexpr u32 ROWS = 8;
constexpr u32 EACH = 8;
// The most layers that are added up at once.
constexpr u32 LAYERS = 4;

struct Fp8CrossFirst {
    // Per layer, [sample][columns]: u, and the gradients with respect to its result.
    const u8* products[LAYERS];
    const u8* gradients[LAYERS];
    const Fp8Scaling* products_scalings[LAYERS];
    const Fp8Scaling* gradients_scalings[LAYERS];
    // [columns] per layer.
    const float* biases[LAYERS];
    // [sample][first_stride]: in: gradients through the first layer's product; out: the total.
    bf16* first_gradients;
    Guard* guard;
    u32 layers;
    u32 samples;
    // A multiple of 16.
    u32 columns;
    u32 first_stride;
    // Whether the first of these layers is the first of the network.
    u32 through;
    u32 reserved;
};

// Unpacks eight numbers and multiplies them by a factor.
__device__ inline void unpacked_fp8(uint2 bytes, float factor, float (&values)[EACH]) {
#pragma unroll
    for (u32 i = 0; i < EACH / 2; i++) {
        const u32 pair = (i < 2 ? bytes.x : bytes.y) >> i % 2 * 16;
        const float2 two = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(pair), __NV_E4M3)));
        values[i * 2] = two.x * factor;
        values[i * 2 + 1] = two.y * factor;
    }
}

// Grid: x over pieces of the samples, y over 256 columns.
template <u32 COUNT>
__device__ inline void fp8_cross_first(const Fp8CrossFirst& p) {
    const u32 lane = threadIdx.x % WARP, row = threadIdx.x / WARP;
    const u32 column = (blockIdx.y * WARP + lane) * EACH, end = min((blockIdx.x + 1) * PIECE, p.samples);
    if (column >= p.columns) return;
    float b[COUNT][EACH], of_products[COUNT], of_gradients[COUNT];
#pragma unroll
    for (u32 layer = 0; layer < COUNT; layer++) {
#pragma unroll
        for (u32 k = 0; k < EACH; k++) b[layer][k] = p.biases[layer][column + k];
        of_products[layer] = p.products_scalings[layer]->inverse;
        of_gradients[layer] = p.gradients_scalings[layer]->inverse;
    }
    bool wrong = false;
#pragma unroll 2
    for (u32 sample = blockIdx.x * PIECE + row; sample < end; sample += ROWS) {
        const u64 index = u64(sample) * p.columns + column;
        uint2 products[COUNT], gradients[COUNT];
#pragma unroll
        for (u32 layer = 0; layer < COUNT; layer++) {
            products[layer] = *reinterpret_cast<const uint2*>(p.products[layer] + index);
            gradients[layer] = *reinterpret_cast<const uint2*>(p.gradients[layer] + index);
        }
        bf16* const by_first = p.first_gradients + u64(sample) * p.first_stride + column;
        const float4 low = load4(by_first), high = load4(by_first + 4);
        float total[EACH] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (u32 layer = 0; layer < COUNT; layer++) {
            float u[EACH], g[EACH];
            unpacked_fp8(products[layer], of_products[layer], u);
            unpacked_fp8(gradients[layer], of_gradients[layer], g);
            const bool through = layer == 0 && p.through != 0;
#pragma unroll
            for (u32 k = 0; k < EACH; k++) {
                total[k] = fmaf(u[k] + b[layer][k], g[k], total[k]);
                if (through) total[k] += g[k];
            }
        }
        const float4 first = make_float4(total[0], total[1], total[2], total[3]);
        const float4 last = make_float4(total[4], total[5], total[6], total[7]);
        wrong |= !holds4(by_first, first) || !holds4(by_first, last);
        store4(by_first, first);
        store4(by_first + 4, last);
    }
    if (wrong) atomicOr(&p.guard->found, WRONG_VECTORS);
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP) fp8_cross_first(const __grid_constant__ Fp8CrossFirst p) {
    switch (p.layers) {
        case 1: return fp8_cross_first<1>(p);
        case 2: return fp8_cross_first<2>(p);
        case 3: return fp8_cross_first<3>(p);
        default: return fp8_cross_first<LAYERS>(p);
    }
}
