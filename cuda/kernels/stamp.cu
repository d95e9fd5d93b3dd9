// Reports to the host how far a lane has got, and waits for a copy from the host that is running.
#include "common.cuh"

struct Stamp {
    // Host memory.
    u32* word;
    // Null, or host memory: the lane goes on once this is 0.
    const u32* awaited;
    u32 value;
    u32 reserved;
};

// A copy takes about ten microseconds. If the host is interrupted, transfers go on without it.
constexpr u64 PATIENCE_NS = 200'000;

__device__ inline u64 now_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// Grid: one thread.
extern "C" __global__ void stamp(const __grid_constant__ Stamp p) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p.word), "r"(p.value) : "memory");
    if (!p.awaited) return;
    // The host looks at the word after it has written the other one: so one of the two sees the other.
    asm volatile("fence.sc.sys;" ::: "memory");
    const u64 begin = now_ns();
    u32 awaited;
    do {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(awaited) : "l"(p.awaited) : "memory");
    } while (awaited && now_ns() - begin < PATIENCE_NS);
}
