// Tensors in fp8 (e4m3: four exponent bits, three mantissa bits, up to 448) and their scales.
//
// A value is multiplied by its tensor's scale, a power of two, rounded to nearest and clamped to 448. The largest
// magnitude of each step is kept; the scale follows from those of the last steps (`fp8_scaling.cu`).
#pragma once

#include <cuda_fp8.h>

#include "element.cuh"

constexpr u32 FP8_HISTORY = 16;

struct Fp8Scaling {
    // `inverse` converts stored numbers to values, `scale` values to stored numbers. cuBLASLt reads the first from an
    // address that is a multiple of 16 bytes.
    float inverse;
    float scale;
    // Bits of this step's largest magnitude times the scale; the bits of non-negative floats order as the floats do.
    u32 largest;
    // Steps recorded so far.
    u32 steps;
    // The largest magnitudes of the last steps, a ring buffer.
    float history[FP8_HISTORY];
};

// Four numbers as fp8, the first in the lowest byte.
__device__ inline u32 packed_fp8(float a, float b, float c, float d) {
    const u32 low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
    const u32 high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}

// Transposed copies have a tensor's columns as rows, with the samples along them. Within 16 samples the order is 0,
// 1, 8, 9, 2, 3, 10, 11, ..., 6, 7, 14, 15, which is how the lanes of a product hold them. Products that sum over
// samples take both factors in this order. A word of a transposed row has two samples from this one on, and two that
// are TURNED_FAR further.
__device__ inline u32 turned_sample(u32 word) { return word / 4 * 16 + word % 4 * 2; }
constexpr u32 TURNED_FAR = 8;

// For products of `fp8_matmul.cu`, weights are stored in pairs: within 16 rows, the even ones first.
__device__ inline u32 paired(u32 row) { return row / 16 * 16 + row % 16 / 2 + row % 2 * 8; }

// Records a magnitude times its scale, which must not be negative.
__device__ inline void observe(Fp8Scaling* scaling, float magnitude) {
    atomicMax(&scaling->largest, __float_as_uint(magnitude));
}

// The largest magnitude of a warp's lanes. All lanes must call this.
__device__ inline float largest_in_warp(float magnitude) {
#pragma unroll
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
        magnitude = fmaxf(magnitude, __shfl_xor_sync(ALL_LANES, magnitude, distance));
    }
    return magnitude;
}

// Records the largest magnitude of a warp's lanes. All lanes must call this.
__device__ inline void observe_in_warp(Fp8Scaling* scaling, float magnitude) {
    const float largest = largest_in_warp(magnitude);
    if (threadIdx.x % WARP == 0) observe(scaling, largest);
}

// Records the largest magnitude of a block's threads. All threads of the block must call this.
template <u32 THREADS>
__device__ inline void observe_in_block(Fp8Scaling* scaling, float magnitude) {
    __shared__ float magnitudes[THREADS / WARP];
    magnitude = largest_in_warp(magnitude);
    if (threadIdx.x % WARP == 0) magnitudes[threadIdx.x / WARP] = magnitude;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 warp = 1; warp < THREADS / WARP; warp++) magnitude = fmaxf(magnitude, magnitudes[warp]);
    observe(scaling, magnitude);
}
