// Groups of lanes that handle rows together.
#pragma once

#include "common.cuh"

constexpr u32 TEAM_THREADS = 256;
// The most rows in flight at once.
constexpr u32 PAIRS_MAX = 8;

// Number of lanes that handle a row together, vectors of a row per lane, and what follows from them.
template <u32 LANES_, u32 VECTORS_>
struct Team {
    static constexpr u32 LANES = LANES_, VECTORS = VECTORS_;
    static constexpr u32 COUNT = TEAM_THREADS / LANES;
    static constexpr u32 PAIRS = (LANES < PAIRS_MAX ? LANES : PAIRS_MAX) / VECTORS;
    static constexpr u32 ALL = LANES == WARP ? ALL_LANES : (1u << LANES) - 1;

    u32 lane, number, mask;

    __device__ Team()
        : lane(threadIdx.x % LANES), number(threadIdx.x / LANES), mask(ALL << (threadIdx.x % WARP / LANES * LANES)) {}

    template <class V>
    __device__ V of(V value, u32 source) const {
        return __shfl_sync(mask, value, source, LANES);
    }
};

__device__ inline float4 zeros() { return make_float4(0, 0, 0, 0); }

// Prefetches memory that will be read soon.
__device__ inline void prefetch(const float* address, u32 words) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(words * 4) : "memory");
#else
    for (u32 word = 0; word < words; word += 32) asm volatile("prefetch.global.L2 [%0];" ::"l"(address + word));
#endif
}
