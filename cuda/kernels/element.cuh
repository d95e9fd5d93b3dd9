// Elements of activations and gradients: f32, bf16 or f16 in memory, f32 in registers.
#pragma once

#include <cuda_fp16.h>

#include "common.cuh"

using bf16 = __nv_bfloat16;
using f16 = __half;

__device__ inline float2 load2(const bf16* elements) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(elements));
}
__device__ inline float2 load2(const f16* elements) {
    return __half22float2(*reinterpret_cast<const __half2*>(elements));
}

__device__ inline void store2(bf16* elements, float2 values) {
    *reinterpret_cast<__nv_bfloat162*>(elements) = __floats2bfloat162_rn(values.x, values.y);
}
__device__ inline void store2(f16* elements, float2 values) {
    *reinterpret_cast<__half2*>(elements) = __floats2half2_rn(values.x, values.y);
}

__device__ inline uint2 packed_f16(float4 values) {
    const __half2 low = __floats2half2_rn(values.x, values.y), high = __floats2half2_rn(values.z, values.w);
    return make_uint2(reinterpret_cast<const u32&>(low), reinterpret_cast<const u32&>(high));
}

__device__ inline float4 unpacked_f16(uint2 packed) {
    const float2 low = __half22float2(reinterpret_cast<const __half2&>(packed.x));
    const float2 high = __half22float2(reinterpret_cast<const __half2&>(packed.y));
    return make_float4(low.x, low.y, high.x, high.y);
}

__device__ inline float4 load4(const float* elements) { return *reinterpret_cast<const float4*>(elements); }
__device__ inline float4 load4(const bf16* elements) { return unpacked(*reinterpret_cast<const uint2*>(elements)); }
__device__ inline float4 load4(const f16* elements) { return unpacked_f16(*reinterpret_cast<const uint2*>(elements)); }

__device__ inline void store4(float* elements, float4 values) { *reinterpret_cast<float4*>(elements) = values; }
__device__ inline void store4(bf16* elements, float4 values) { *reinterpret_cast<uint2*>(elements) = packed(values); }
__device__ inline void store4(f16* elements, float4 values) {
    *reinterpret_cast<uint2*>(elements) = packed_f16(values);
}

// The same for data that will not be read again soon.
__device__ inline void stream4(float* elements, float4 values) { __stcs(reinterpret_cast<float4*>(elements), values); }
__device__ inline void stream4(bf16* elements, float4 values) { __stcs(reinterpret_cast<uint2*>(elements), packed(values)); }
__device__ inline void stream4(f16* elements, float4 values) {
    __stcs(reinterpret_cast<uint2*>(elements), packed_f16(values));
}

__device__ inline float load(const float* element) { return *element; }
__device__ inline float load(const bf16* element) { return __bfloat162float(*element); }
__device__ inline float load(const f16* element) { return __half2float(*element); }

__device__ inline void store(float* element, float value) { *element = value; }
__device__ inline void store(bf16* element, float value) { *element = __float2bfloat16_rn(value); }
__device__ inline void store(f16* element, float value) { *element = __float2half_rn(value); }

// The gradient with respect to a ReLU's input, from the one with respect to its output.
__device__ inline float4 where_positive(float4 gradients, float4 outputs) {
    return make_float4(outputs.x > 0 ? gradients.x : 0, outputs.y > 0 ? gradients.y : 0,
                       outputs.z > 0 ? gradients.z : 0, outputs.w > 0 ? gradients.w : 0);
}

// The learning rate of a step, as the rules take it.
struct Rate {
    // Divided by `1 - beta1^t` for Adam.
    float rate;
    // `sqrt(1 - beta2^t)` for Adam; 1 for other rules.
    float root_correction;
};

// The largest magnitude of a vector gradient with which a step is applied: 2^36, so that neither sums of these
// gradients nor sums of their squares overflow. `engine/model/src/guard.rs` has the same number and the reason.
constexpr float VECTOR_GRADIENT_MAX = 68719476736.0f;

// Whether a gradient is not NaN, not too large, and not rounded to infinity in its element type.
__device__ inline bool holds(const float*, float value) { return fabsf(value) <= VECTOR_GRADIENT_MAX; }
__device__ inline bool holds(const bf16*, float value) { return fabsf(value) <= VECTOR_GRADIENT_MAX; }
__device__ inline bool holds(const f16*, float value) { return fabsf(value) <= 65504.0f; }

template <class T>
__device__ inline bool holds4(const T* element, float4 values) {
    return holds(element, values.x) && holds(element, values.y) && holds(element, values.z) &&
           holds(element, values.w);
}

// What a step needs apart from its batch.
struct Step {
    // Its number in the training, from 1.
    u64 number;
    // Samples in the batch. Buffers have room for more; the rest is ignored.
    u32 samples;
    // Index at which the loss is stored.
    u32 loss_index;
    // For the dense parameters.
    Rate dense;
};
