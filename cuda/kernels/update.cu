// The update of an owner's rows: each distinct row of the global batch once, by its table's rule, from the sum of what
// the ranks have summed, in the order of ranks.
//
// Reads an element of every rank that looked the row up, and reads and writes the row and its state. The sums were
// written here by the ranks: reading them over the link was slower, by its lower rate and because nothing else went on
// meanwhile. A team takes some rows at a time and asks for all that it will read of them, so that it comes from the
// cache. Of 16384 samples of dlrm on each of four GPUs, with plain gradient descent, an owner moves 75 MB, in 34 us; of
// dlrm-dcnv2 with Adagrad, element by element, 1002 MB, in 291: 3440 GB/s (H200). Asked for a turn earlier, while the
// rows before are worked on, these took 37 and 375.
#include "learn.cuh"

struct Update {
    Learning by;
    // The union of the rows that ranks looked up, and their number.
    const u32* rows;
    const u32* rows_count;
    // [union row][rank]: 1 + the place of its sum, or 0.
    const u32* sources;
    // [place][width]
    const void* sums;
    u32 shards_count;
    u32 ranks;
    // Elements from one sum to the next: bytes of them are a multiple of 16.
    u32 width;
    // What sums are stored as: a `Dtype`.
    u32 dtype;
};
static_assert(sizeof(Update) == 104);

// Rows that a team takes at a time.
constexpr u32 UPDATE_ROWS = 4;

template <u32 LANES, u32 VECTORS>
__device__ inline void update_rows(const Update& p) {
    using TEAM = Team<LANES, VECTORS>;
    __shared__ float4 sums[TEAM::COUNT][VECTORS][LANES];
    const TEAM team;
    if (*p.by.stop != 0) return;
    const u32 count = *p.rows_count, teams = gridDim.x * TEAM::COUNT;
    const u32 sum_words = p.dtype == FP32 ? p.width : p.width / 2;
    const float* all_sums = static_cast<const float*>(p.sums);
    for (u32 begin = (blockIdx.x * TEAM::COUNT + team.number) * UPDATE_ROWS; begin < count;
         begin += teams * UPDATE_ROWS) {
        const u32 here = min(UPDATE_ROWS, count - begin);
        u32 own_row = 0, own_shard = 0;
        if (team.lane < here) {
            own_row = p.rows[begin + team.lane];
            own_shard = shard_of(p.by.shards, p.shards_count, own_row);
            const Shard& shard = p.by.shards[own_shard];
            prefetch(row_at(p.by, shard, own_row), shard.row_words);
        }
        for (u32 i = team.lane; i < here * p.ranks; i += LANES) {
            const u32 source = p.sources[begin * p.ranks + i];
            if (source != 0) prefetch(all_sums + u64(source - 1) * sum_words, sum_words);
        }
        for (u32 i = 0; i < here; i++) {
            const u32 row = team.of(own_row, i);
            const Shard& shard = p.by.shards[team.of(own_shard, i)];
            const u32 dim = filled_dim(shard), *sources = p.sources + u64(begin + i) * p.ranks;
            float4 sum[VECTORS];
#pragma unroll
            for (u32 vector = 0; vector < VECTORS; vector++) sum[vector] = zeros();
#pragma unroll 4
            for (u32 rank = 0; rank < p.ranks; rank++) {
                const u32 source = sources[rank];
                if (source == 0) continue;
                const float* from = all_sums + u64(source - 1) * sum_words;
#pragma unroll
                for (u32 vector = 0; vector < VECTORS; vector++) {
                    const u32 column = (vector * LANES + team.lane) * VECTOR;
                    if (column < dim) add(sum[vector], load_weights(from, column, p.dtype));
                }
            }
#pragma unroll
            for (u32 vector = 0; vector < VECTORS; vector++) sums[team.number][vector][team.lane] = sum[vector];
            __syncwarp(team.mask);
            learn_by_rule(p.by, team, shard, row, sums[team.number]);
            // The sums are overwritten next.
            __syncwarp(team.mask);
        }
    }
}

#define KERNEL(LANES, VECTORS)                                                              \
    extern "C" __global__ void __launch_bounds__(TEAM_THREADS, VECTORS == 1 ? 4 : 1)        \
        update_##LANES##x##VECTORS(const __grid_constant__ Update p) {                      \
        update_rows<LANES, VECTORS>(p);                                                     \
    }

// By the widest row: of 16, 64, 128, 256 and 1024 elements.
KERNEL(4, 1)
KERNEL(16, 1)
KERNEL(32, 1)
KERNEL(32, 2)
KERNEL(32, 8)
