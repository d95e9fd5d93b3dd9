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

// The same, of what is not read again before much else.
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

// The gradient by a ReLU's input, from that by its output.
__device__ inline float4 where_positive(float4 gradients, float4 outputs) {
    return make_float4(outputs.x > 0 ? gradients.x : 0, outputs.y > 0 ? gradients.y : 0,
                       outputs.z > 0 ? gradients.z : 0, outputs.w > 0 ? gradients.w : 0);
}

// A learning rate in one step, as rules take it.
struct Rate {
    // Adam's is divided by `1 - beta1^t`.
    float rate;
    // Adam's `sqrt(1 - beta2^t)`; 1 for other rules.
    float root_correction;
};
static_assert(sizeof(Rate) == 8);

// The largest magnitude of a gradient by a vector with which a step is written: 2^36, so that neither sums of such, nor
// squares of those, are infinite. `engine/src/guard.rs` has the same number, and the reason.
constexpr float VECTOR_GRADIENT_MAX = 68719476736.0f;

// Whether elements of a type hold such a gradient: it is a number, it is not too large, and not rounded to infinity.
__device__ inline bool holds(const float*, float value) { return fabsf(value) <= VECTOR_GRADIENT_MAX; }
__device__ inline bool holds(const bf16*, float value) { return fabsf(value) <= VECTOR_GRADIENT_MAX; }
__device__ inline bool holds(const f16*, float value) { return fabsf(value) <= 65504.0f; }

template <class T>
__device__ inline bool holds4(const T* element, float4 values) {
    return holds(element, values.x) && holds(element, values.y) && holds(element, values.z) &&
           holds(element, values.w);
}

// What a step is told, beside its batch.
struct Step {
    // Its number in the training, from 1.
    u64 number;
    // The batch's. Behind them there is room for others, which count for nothing.
    u32 samples;
    // Where the loss goes.
    u32 loss_place;
    // Of the dense parameters.
    Rate dense;
};
static_assert(sizeof(Step) == 24);
