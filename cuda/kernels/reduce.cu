// The gradients of a rank's distinct rows, summed over its bags and written into the memory of the rows' owners; for
// rows that every rank stores, into the memory of all ranks.
//
// Reads one element per look-up's gradient and writes one per distinct row. Writes overlap with reads of other rows,
// so the link costs little. For 16384 samples of dlrm in bf16 that is 129 MB: 57 us on one GPU, 74 on each of four,
// where 15 MB go to others; for dlrm-dcnv2's 3.5 million look-ups there, with 115 MB of sums for others, 329 and 502
// us (H200). When all ranks started with the first owner's rows, these were 78 and 583 us. Sums of f16 travel as f32,
// since a sum may exceed f16's range although none of its terms does.
#include "dtype.cuh"
#include "runs.cuh"

struct Reduce {
    // Slots, each with a bag: the feature's number above `sample_bits`, the sample's below. Sorted.
    const uint2* pairs;
    // How many pairs.
    const u32* count;
    const Feature* features;
    // Offsets of ragged columns.
    const u32* offsets;
    // Per pair, if its feature is pooled by factors: the factor of the look-up's gradient.
    const float* factors;
    // [sample][stride], then from `keys` on those with respect to keys.
    const void* gradients;
    // [block][2][vectors of the widest row]
    float4* parts;
    // Where the slots of each owner start.
    const u32* starts;
    // Per owner: [rank][capacity][width].
    void* sums[RANKS_MAX];
    u32 sample_bits;
    u32 stride;
    // Vectors of the widest row.
    u32 vectors;
    // Elements from one sum to the next.
    u32 width;
    u32 capacity;
    u32 rank;
    u32 ranks;
    // Type of the sums: a `Dtype`.
    u32 dtype;
    // The number of ranks, plus one if there are rows that every rank stores.
    u32 owners;
    // Sums that a rank can have of rows that only one owner stores.
    u32 owned;
    // Where the gradients with respect to keys start.
    u32 keys;
    u32 reserved;
};

__device__ inline bool stopped(const Reduce&) { return false; }

// Pairs are sorted by owner. Each rank starts with a different owner's, or all would write to one owner at a time.
__device__ inline u32 turned(const Reduce& p, u32 block, u32 blocks) {
    return u32((block + u64(p.rank + 1) * blocks / p.ranks) % blocks);
}

__device__ inline u32 target(const Reduce&, u32 slot) { return slot; }

__device__ inline void expect(const Reduce&, Pending) {}

template <class TEAM>
__device__ inline void finish(const Reduce& p, const TEAM& team, Pending of,
                              const float4 (&sums)[TEAM::VECTORS][TEAM::LANES]) {
    u32 owner = 0;
    while (owner + 1 < p.owners && of.target >= p.starts[owner + 1]) owner++;
    const bool of_all = owner == p.ranks;
    const u64 entry = u64(p.rank) * p.capacity + (of_all ? p.owned : 0) + of.target - p.starts[owner];
    const u32 dim = p.features[of.feature].dim;
    // Each rank starts with a different peer.
    for (u32 turn = 1; turn <= (of_all ? p.ranks : 1); turn++) {
        void* const to = p.sums[of_all ? (p.rank + turn) % p.ranks : owner];
#pragma unroll
        for (u32 vector = 0; vector < TEAM::VECTORS; vector++) {
            const u32 column = (vector * TEAM::LANES + team.lane) * VECTOR;
            if (column >= dim) continue;
            const float4 sum = sums[vector][team.lane];
            if (p.dtype == FP32) {
                store4(static_cast<float*>(to) + entry * p.width + column, sum);
            } else {
                store4(static_cast<bf16*>(to) + entry * p.width + column, sum);
            }
        }
    }
}

#define KERNELS(LANES, VECTORS)                                                                            \
    extern "C" __global__ void __launch_bounds__(TEAM_THREADS, blocks_of(VECTORS))                         \
        reduce_f32_##LANES##x##VECTORS(const __grid_constant__ Reduce p) {                                 \
        sum_runs<float, LANES, VECTORS>(p);                                                                \
    }                                                                                                      \
    extern "C" __global__ void __launch_bounds__(TEAM_THREADS, blocks_of(VECTORS))                         \
        reduce_bf16_##LANES##x##VECTORS(const __grid_constant__ Reduce p) {                                \
        sum_runs<bf16, LANES, VECTORS>(p);                                                                 \
    }                                                                                                      \
    extern "C" __global__ void __launch_bounds__(TEAM_THREADS, blocks_of(VECTORS))                         \
        reduce_f16_##LANES##x##VECTORS(const __grid_constant__ Reduce p) {                                 \
        sum_runs<f16, LANES, VECTORS>(p);                                                                  \
    }                                                                                                      \
    extern "C" __global__ void __launch_bounds__(TEAM_THREADS, blocks_of(VECTORS))                         \
        reduce_parts_##LANES##x##VECTORS(const __grid_constant__ Reduce p) {                               \
        sum_parts<LANES, VECTORS>(p);                                                                      \
    }

// By the widest row: 16, 64, 128, 256 and 1024 elements.
KERNELS(4, 1)
KERNELS(16, 1)
KERNELS(32, 1)
KERNELS(32, 2)
KERNELS(32, 8)
