// Updates tables on this GPU: for each distinct row, sums its gradients over its bags, in their order, and applies
// the update rule, with the state stored behind the row's weights.
//
// Reads one element per look-up's gradient; reads and writes every distinct row and its state. For 65536 samples of
// dlrm with plain SGD that is 640 MB, 155 us at the memory's rate; measured: 207, of which 9 in the second kernel.
// For dlrm-dcnv2's 14.0 million look-ups with element-wise Adagrad: 1.98 ms (H200). A row is prefetched while the one
// before it is updated. Prefetching all rows of a run at once took 15% longer: they and the gradients, which are read
// again and again, did not fit into the L2 cache.
#include "learn.cuh"
#include "runs.cuh"

struct SparseUpdate {
    // Slots, each with a bag: the feature's number above `sample_bits`, the sample's below. Sorted.
    const uint2* pairs;
    // How many pairs.
    const u32* count;
    // Per slot: its row among those of all tables.
    const u32* rows;
    const Feature* features;
    // Offsets of ragged columns.
    const u32* offsets;
    // Per pair, if its feature is pooled by factors: the factor of the look-up's gradient.
    const float* factors;
    // [sample][stride], then from `keys` on those with respect to keys.
    const void* gradients;
    // [block][2][vectors of the widest row]: for the row in which a block begins, and for the row in which it ends.
    float4* parts;
    UpdateContext context;
    u32 sample_bits;
    u32 stride;
    // Vectors of the widest row.
    u32 vectors;
    // Where the gradients with respect to keys start.
    u32 keys;
};

__device__ inline bool stopped(const SparseUpdate& p) { return *p.context.stop != 0; }

__device__ inline u32 turned(const SparseUpdate&, u32 block, u32) { return block; }

__device__ inline u32 target(const SparseUpdate& p, u32 slot) { return p.rows[slot]; }

__device__ inline void expect(const SparseUpdate& p, Pending of) {
    const Shard& shard = p.context.shards[p.features[of.feature].shard];
    prefetch(row_at(p.context, shard, of.target), shard.row_words);
}

template <class TEAM>
__device__ inline void finish(const SparseUpdate& p, const TEAM& team, Pending of,
                              const float4 (&sums)[TEAM::VECTORS][TEAM::LANES]) {
    const Shard& shard = p.context.shards[p.features[of.feature].shard];
    if constexpr (TEAM::VECTORS == 1) {
        learn_by_rule(p.context, team, shard, of.target, sums);
    } else {
        learn_apart(p.context, team, shard, of.target, sums);
    }
}

// If all tables are lean.
struct LeanUpdate : SparseUpdate {};

template <class TEAM>
__device__ inline void finish(const LeanUpdate& p, const TEAM& team, Pending of,
                              const float4 (&sums)[TEAM::VECTORS][TEAM::LANES]) {
    learn_lean(p.context, team, p.context.shards[p.features[of.feature].shard], of.target, sums);
}

#define RUNS(NAME, T, P, LANES, VECTORS)                                                      \
    extern "C" __global__ void __launch_bounds__(TEAM_THREADS, blocks_of(VECTORS))           \
        NAME##_##LANES##x##VECTORS(const __grid_constant__ P p) {                            \
        sum_runs<T, LANES, VECTORS>(p);                                                      \
    }
#define KERNELS(LANES, VECTORS)                                                              \
    RUNS(sparse_update_f32, float, SparseUpdate, LANES, VECTORS)                             \
    RUNS(sparse_update_bf16, bf16, SparseUpdate, LANES, VECTORS)                             \
    RUNS(sparse_update_f16, f16, SparseUpdate, LANES, VECTORS)                               \
    extern "C" __global__ void __launch_bounds__(TEAM_THREADS, blocks_of(VECTORS))           \
        sparse_parts_##LANES##x##VECTORS(const __grid_constant__ SparseUpdate p) {           \
        sum_parts<LANES, VECTORS>(p);                                                        \
    }
#define LEAN_KERNELS(LANES)                                   \
    RUNS(lean_update_f32, float, LeanUpdate, LANES, 1)        \
    RUNS(lean_update_bf16, bf16, LeanUpdate, LANES, 1)        \
    RUNS(lean_update_f16, f16, LeanUpdate, LANES, 1)

// By the widest row: 16, 64, 128, 256 and 1024 elements.
KERNELS(4, 1)
KERNELS(16, 1)
KERNELS(32, 1)
KERNELS(32, 2)
KERNELS(32, 8)
LEAN_KERNELS(4)
LEAN_KERNELS(16)
LEAN_KERNELS(32)
