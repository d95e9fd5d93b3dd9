// Random numbers that depend only on their counter and key: Philox4x32-10, as in `random.rs` in `embedding`.
#pragma once

#include "common.cuh"

__device__ inline uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
    for (u32 round = 0; round < 10; round++) {
        if (round > 0) key = make_uint2(key.x + 0x9E3779B9u, key.y + 0xBB67AE85u);
        const u64 first = u64(counter.x) * 0xD2511F53u, second = u64(counter.z) * 0xCD9E8D57u;
        counter = make_uint4(u32(second >> 32) ^ counter.y ^ key.x, u32(second), u32(first >> 32) ^ counter.w ^ key.y,
                             u32(first));
    }
    return counter;
}
