// A barrier among ranks that write into each other's memory.
#include "peers.cuh"

struct Barrier {
    Flags* flags[RANKS_MAX];
    // Only of this rank: the barriers passed so far.
    u64* epoch;
    Wait wait;
};

// Grid: one warp, one lane per rank.
extern "C" __global__ void barrier(const __grid_constant__ Barrier p) {
    const u32 peer = threadIdx.x;
    const u64 epoch = *p.epoch + 1;
    if (peer < p.wait.ranks) meet(p.flags, 0, epoch, peer, p.wait);
    __syncwarp();
    if (peer == 0) *p.epoch = epoch;
}
