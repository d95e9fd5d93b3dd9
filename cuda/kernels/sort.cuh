// The stable sort of (slot, bag) pairs by slot, in two passes of counting. How many bits a digit has follows from the
// number of slots, which only the device knows; blocks own fixed tiles of pairs, so that nothing depends on timing.
#pragma once

#include "common.cuh"

// Pairs of a block. Few blocks come of it, so they have many threads.
constexpr u32 TILE = 2048;
constexpr u32 COUNT_THREADS = 1024;
constexpr u32 COUNT_ROUNDS = TILE / COUNT_THREADS;
constexpr u32 SORT_THREADS = 512;
constexpr u32 SORT_WARPS = SORT_THREADS / WARP;
constexpr u32 SORT_ROUNDS = TILE / SORT_THREADS;

// Counts the digits of a warp's lanes, all of which must call this: `digit` is ~0 where there is none. Lanes with equal
// digits, of which a frequent row has many, count together.
__device__ inline void count_digit(u32* digits, u32 digit) {
    u32 equals;
    if (first_of_equals(digit, equals) && digit != ~0u) atomicAdd(digits + digit, __popc(equals));
}

// Bits of a digit: two digits number all slots.
__device__ inline u32 digit_bits(u32 slots) {
    const u32 bits = 32 - __clz(slots - 1 | 1);
    return (bits + 1) / 2;
}
