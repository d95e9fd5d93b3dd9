// A barrier among ranks that write into each other's memory. Epochs only grow, so that nothing is ever reset.
//
// A rank that waits looks at its abort word and at a deadline: a peer that is gone stops everybody within that time,
// and later barriers do not wait at all.
#include "common.cuh"

// In each rank's memory, written by its peers.
struct Flags {
    u64 arrived[RANKS_MAX];
    // 0, or what went wrong: 1 + the rank that did not arrive, above it 1 + the rank that waited.
    u64 aborted;
    u64 reserved[7];
};
static_assert(sizeof(Flags) == 128);

struct Barrier {
    Flags* flags[RANKS_MAX];
    // Of this rank alone: the barriers passed.
    u64* epoch;
    // Null, or memory of the host: what `aborted` is, once this rank has seen it.
    u64* told;
    u64 deadline_ns;
    u32 rank;
    u32 ranks;
};
static_assert(sizeof(Barrier) == 96);

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

// One warp; a lane for each rank.
extern "C" __global__ void barrier(const __grid_constant__ Barrier p) {
    const u32 peer = threadIdx.x;
    const u64 epoch = *p.epoch + 1;
    if (peer < p.ranks) {
        Flags* own = p.flags[p.rank];
        __threadfence_system();
        store_release(&p.flags[peer]->arrived[p.rank], epoch);
        const u64 deadline = now_ns() + p.deadline_ns;
        while (load_acquire(&own->arrived[peer]) < epoch) {
            u64 verdict = load_acquire(&own->aborted);
            if (verdict == 0 && now_ns() > deadline) {
                verdict = u64(p.rank + 1) << 32 | (peer + 1);
                for (u32 other = 0; other < p.ranks; other++) store_release(&p.flags[other]->aborted, verdict);
            }
            if (verdict != 0) {
                if (p.told != nullptr) *p.told = verdict;
                break;
            }
        }
        __threadfence_system();
    }
    __syncwarp();
    if (peer == 0) *p.epoch = epoch;
}
