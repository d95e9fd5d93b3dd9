// Types that tables' weights are stored in, and rounding to them; the same as `dtype.rs` in `embedding`.
#pragma once

#include <cuda_fp16.h>

#include "element.cuh"
#include "random.cuh"

enum Dtype : u32 { FP32, BF16, FP16 };

constexpr u32 FP16_MAX = 0x477fe000u, FP16_NORMAL = 0x38800000u, BF16_MAX = 0x7f7f0000u, SIGN = 1u << 31;
constexpr float FP16_UNIT = 1.0f / (1 << 24);

// Four weights as stored: f32 unpacked, the others two per word.
template <u32 DTYPE>
struct FourWeights {
    using Type = uint2;
};
template <>
struct FourWeights<FP32> {
    using Type = float4;
};

template <u32 DTYPE>
__device__ inline float4 weights_from(typename FourWeights<DTYPE>::Type stored) {
    if constexpr (DTYPE == FP32) {
        return stored;
    } else if constexpr (DTYPE == BF16) {
        return unpacked(stored);
    } else {
        const float2 low = __half22float2(reinterpret_cast<const __half2&>(stored.x));
        const float2 high = __half22float2(reinterpret_cast<const __half2&>(stored.y));
        return make_float4(low.x, low.y, high.x, high.y);
    }
}

// A row's weights from `column` on.
template <u32 DTYPE>
__device__ inline const typename FourWeights<DTYPE>::Type* four_weights(const float* row, u32 column) {
    return reinterpret_cast<const typename FourWeights<DTYPE>::Type*>(row) + column / VECTOR;
}

__device__ inline float4 load_weights(const float* row, u32 column, u32 dtype) {
    if (dtype == FP32) return __ldcs(four_weights<FP32>(row, column));
    const uint2 stored = __ldcs(four_weights<BF16>(row, column));
    return dtype == BF16 ? weights_from<BF16>(stored) : weights_from<FP16>(stored);
}

// Stores weights that the type represents exactly.
__device__ inline void store_weights(float* row, u32 column, u32 dtype, float4 weights) {
    if (dtype == FP32) {
        __stcs(reinterpret_cast<float4*>(row) + column / VECTOR, weights);
        return;
    }
    uint2 stored = packed(weights);
    if (dtype == FP16) {
        const __half2 low = __floats2half2_rn(weights.x, weights.y), high = __floats2half2_rn(weights.z, weights.w);
        stored = make_uint2(reinterpret_cast<const u32&>(low), reinterpret_cast<const u32&>(high));
    }
    __stcs(reinterpret_cast<uint2*>(row) + column / VECTOR, stored);
}

// Truncates a value to the type, after `added` is added to its bits.
__device__ inline float dropped(u32 dtype, float value, u32 added) {
    const u32 bits = __float_as_uint(value), magnitude = bits & ~SIGN;
    const u32 below = dtype == BF16 ? 16 : 13, max = dtype == BF16 ? BF16_MAX : FP16_MAX;
    if (isnan(value)) return __uint_as_float(0x7fc00000u);
    const u32 rounded = magnitude >= max ? max : magnitude + added;
    return __uint_as_float(min(rounded >> below << below, max) | (bits & SIGN));
}

__device__ inline bool below_normal(u32 dtype, float value) {
    return dtype == FP16 && (__float_as_uint(value) & ~SIGN) < FP16_NORMAL;
}

// Rounds to the nearest value of the type, ties to even.
__device__ inline float nearest(u32 dtype, float value) {
    if (dtype == FP32) return value;
    if (below_normal(dtype, value)) return copysignf(rintf(fabsf(value) / FP16_UNIT) * FP16_UNIT, value);
    const u32 below = dtype == BF16 ? 16 : 13;
    return dropped(dtype, value, (1u << (below - 1)) - 1 + (__float_as_uint(value) >> below & 1));
}

// Stochastic rounding: one of the two neighbours in the type, chosen by a random word.
__device__ inline float at_random(u32 dtype, float value, u32 word) {
    if (below_normal(dtype, value)) {
        const float units = fabsf(value) / FP16_UNIT, floor = floorf(units);
        const float chosen = float(word >> 8) * FP16_UNIT < units - floor ? floor + 1 : floor;
        return copysignf(chosen * FP16_UNIT, value);
    }
    return dropped(dtype, value, word >> (dtype == BF16 ? 16 : 19));
}

// The key of a step's random numbers.
__device__ inline uint2 rounding_key(u64 seed, u64 step) {
    const uint4 words = philox(make_uint4(u32(step), u32(step >> 32), 0x726f756e, 0),
                               make_uint2(u32(seed), u32(seed >> 32)));
    return make_uint2(words.x, words.y);
}

// Rounds four weights of a table's row, from `column` on.
__device__ inline float4 rounded_at_random(u32 dtype, uint2 key, u32 table, u32 row, u32 column, float4 weights) {
    const uint4 words = philox(make_uint4(row, 0, column / VECTOR, table), key);
    return make_float4(at_random(dtype, weights.x, words.x), at_random(dtype, weights.y, words.y),
                       at_random(dtype, weights.z, words.z), at_random(dtype, weights.w, words.w));
}
