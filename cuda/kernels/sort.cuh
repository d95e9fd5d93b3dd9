// The stable sort of (slot, bag) pairs by slot, in two passes of counting. How many bits a digit has follows from the
// number of slots, which only the device knows; blocks own fixed tiles of pairs, so that nothing depends on timing.
#pragma once

#include "common.cuh"

constexpr u32 SORT_THREADS = 256;
constexpr u32 SORT_WARPS = SORT_THREADS / WARP;
constexpr u32 SORT_ROUNDS = 16;
constexpr u32 TILE = SORT_THREADS * SORT_ROUNDS;

// Bits of a digit: two digits number all slots.
__device__ inline u32 digit_bits(u32 slots) {
    const u32 bits = 32 - __clz(slots - 1 | 1);
    return (bits + 1) / 2;
}
