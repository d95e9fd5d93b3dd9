// The stable sort of (slot, bag) pairs by slot, in two passes of counting. How many bits a digit has follows from the
// number of slots, which only the device knows; blocks own fixed tiles of pairs, so that nothing depends on timing.
#pragma once

#include "common.cuh"

constexpr u32 SORT_THREADS = 256;
constexpr u32 SORT_WARPS = SORT_THREADS / WARP;
constexpr u32 SORT_ROUNDS = 8;
constexpr u32 TILE = SORT_THREADS * SORT_ROUNDS;

// Counts the digits of a warp's lanes, all of which must call this: `digit` is ~0 where there is none. Lanes with equal
// digits, of which a frequent row has many, count together.
__device__ inline void count_digit(u32* digits, u32 digit) {
    const u32 equal = __match_any_sync(ALL_LANES, digit);
    const bool first = (equal & ((1u << (threadIdx.x % WARP)) - 1)) == 0;
    if (first && digit != ~0u) atomicAdd(digits + digit, __popc(equal));
}

// Bits of a digit: two digits number all slots.
__device__ inline u32 digit_bits(u32 slots) {
    const u32 bits = 32 - __clz(slots - 1 | 1);
    return (bits + 1) / 2;
}
