// Tensors in fp8 (e4m3: four bits of exponent, three of mantissa, up to 448), and their scales.
//
// A value is multiplied by its tensor's scale, a power of two, rounded to the nearest number and held within 448. Of
// each step the largest magnitude is kept, and the scale follows from those of the last steps (`fp8_scaling.cu`).
#pragma once

#include <cuda_fp8.h>

#include "element.cuh"

constexpr u32 FP8_HISTORY = 16;

struct Fp8Scaling {
    // What numbers are multiplied by, and its inverse, which values are multiplied by. cuBLASLt reads the first at a
    // multiple of 16 bytes.
    float inverse;
    float scale;
    // The bits of the largest magnitude of this step times the scale: those of numbers above 0 have the same order.
    u32 largest;
    // Steps that were kept so far.
    u32 steps;
    // The largest magnitudes of the last steps, each in its turn.
    float history[FP8_HISTORY];
};
static_assert(sizeof(Fp8Scaling) == 80);

// Four numbers as fp8, the first one in the lowest byte.
__device__ inline u32 packed_fp8(float a, float b, float c, float d) {
    const u32 low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
    const u32 high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}

// Turned copies have a tensor's columns as rows, with the samples along them: of each 16 samples in the order 0, 1, 8,
// 9, 2, 3, 10, 11, ..., 6, 7, 14, 15, as the lanes of a product have them. Sums over samples take both factors so. A
// turned row's word has two samples from this one on, and two that are as far behind.
__device__ inline u32 turned_sample(u32 word) { return word / 4 * 16 + word % 4 * 2; }
constexpr u32 TURNED_FAR = 8;

// Weights lie in pairs for products of `fp8_matmul.cu`: of each 16 rows the even ones first.
__device__ inline u32 paired(u32 row) { return row / 16 * 16 + row % 16 / 2 + row % 2 * 8; }

// Tells a scaling of a magnitude, times its scale, that is not below 0.
__device__ inline void observe(Fp8Scaling* scaling, float magnitude) {
    atomicMax(&scaling->largest, __float_as_uint(magnitude));
}
