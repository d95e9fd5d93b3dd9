// How ranks that write into each other's memory wait for each other. Epochs only grow, so nothing is ever reset.
//
// A waiting rank checks its abort word and a deadline: if a peer is gone, all ranks stop within the deadline, and
// later waits return at once. The host can make a rank give up sooner.
#pragma once

#include "common.cuh"

// In each rank's memory, written by its peers.
struct Flags {
    u64 arrived[RANKS_MAX];
    // 0, or the failure: 1 + the rank that did not arrive in the low word, 1 + the rank that waited in the high word.
    u64 aborted;
    u64 reserved[7];
};

// What waiting needs apart from the flags.
struct Wait {
    // Null, or host memory: receives `aborted` once this rank has seen it.
    u64* told;
    // Null, or host memory: not 0 if nobody shall wait any longer.
    const u64* give_up;
    u64 deadline_ns;
    u32 rank;
    u32 ranks;
};

__device__ inline u64 load_acquire(const u64* address) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

__device__ inline void store_release(u64* address, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

__device__ inline u64 now_ns() {
    u64 time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}

// How often a rank polls a peer's flag between two checks of the abort word and the time, which slow polling down.
constexpr u32 LOOKS = 64;
// How long a rank waits before it also polls the host's word, which is slow to reach.
constexpr u64 HOST_NS = 1000000;
// In `told`: the rank gave up.
constexpr u64 GAVE_UP = u64(1) << 63;

// Announces to `peer` that this rank has reached an epoch, and waits until `peer` has. A rank has one `Flags` per
// sequence of epochs; this is number `sequence`. Failures are recorded in the first one.
//
// The release covers writes of earlier kernels, and writes of the block's other threads before a block barrier that
// they and this thread have passed. A separate fence before it would be redundant.
__device__ inline void meet(Flags* const (&flags)[RANKS_MAX], u32 sequence, u64 epoch, u32 peer, const Wait& wait) {
    Flags* own = flags[wait.rank];
    store_release(&flags[peer][sequence].arrived[wait.rank], epoch);
    u64 begun = 0;
    for (u32 look = 1; load_acquire(&own[sequence].arrived[peer]) < epoch; look++) {
        if (look % LOOKS != 0) continue;
        const u64 now = now_ns();
        if (begun == 0) begun = now;
        u64 verdict = load_acquire(&own->aborted);
        if (verdict == 0 && now - begun > wait.deadline_ns) {
            verdict = u64(wait.rank + 1) << 32 | (peer + 1);
            for (u32 other = 0; other < wait.ranks; other++) store_release(&flags[other]->aborted, verdict);
        }
        if (verdict == 0 && now - begun > HOST_NS && wait.give_up != nullptr && load_acquire(wait.give_up) != 0) {
            verdict = GAVE_UP | u64(wait.rank + 1) << 32 | (peer + 1);
        }
        if (verdict != 0) {
            if (wait.told != nullptr) *wait.told = verdict;
            break;
        }
    }
}
