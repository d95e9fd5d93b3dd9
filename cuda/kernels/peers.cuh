// How ranks that write into each other's memory wait for each other. Epochs only grow, so that nothing is ever reset.
//
// A rank that waits looks at its abort word and at a deadline: a peer that is gone stops everybody within that time,
// and later waits end at once. Its host can have it give up before.
#pragma once

#include "common.cuh"

// In each rank's memory, written by its peers.
struct Flags {
    u64 arrived[RANKS_MAX];
    // 0, or what went wrong: 1 + the rank that did not arrive, above it 1 + the rank that waited.
    u64 aborted;
    u64 reserved[7];
};
static_assert(sizeof(Flags) == 128);

// What waiting needs beside the flags.
struct Wait {
    // Null, or memory of the host: what `aborted` is, once this rank has seen it.
    u64* told;
    // Null, or memory of the host: not 0 where nobody shall wait any more.
    const u64* give_up;
    u64 deadline_ns;
    u32 rank;
    u32 ranks;
};
static_assert(sizeof(Wait) == 32);

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

// Looks at a peer's flag between two at the abort word and the time: these would make each look take longer.
constexpr u32 LOOKS = 64;
// How long a rank waits before it looks at the host's word, too, each time: that is far away.
constexpr u64 HOST_NS = 1000000;
// In `told`: the rank gave up.
constexpr u64 GAVE_UP = u64(1) << 63;

// Tells `peer` that this rank has come to an epoch, and waits until `peer` has. There are as many flags a rank as there
// are sequences of epochs, of which this is number `sequence`; what went wrong is told in the first ones.
//
// The release covers what kernels before this one wrote, and what other threads of the block wrote before a barrier of
// the block that they and this thread have passed. A fence of its own before it would only be a second one.
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
