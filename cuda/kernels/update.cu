// The update of an owner's rows: each distinct row of the global batch once, by its table's rule, from the sum of what
// the ranks have summed, in the order of ranks.
//
// Reads an element of every rank that looked the row up, and reads and writes the row and its state. The sums were
// written here by the ranks: reading them over the link was slower, by its lower rate and because nothing else went on
// meanwhile. A team takes some rows at a time, and asks for all that it will read of the next ones before it works on
// them, so that they come from the cache.
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
template <u32 VECTORS>
constexpr u32 ROWS_OF = VECTORS == 1 ? 4 : 1;

// A row that a lane asks for, on behalf of its team.
struct Asked {
    u32 row;
    u32 shard;
};

// Asks for all that will be read of the rows from `begin` on.
template <u32 ROWS, class TEAM>
__device__ inline Asked ask(const Update& p, const TEAM& team, u32 begin, u32 count, u32 sum_words) {
    Asked own = {0, 0};
    if (begin >= count) return own;
    const u32 here = min(ROWS, count - begin);
    if (team.lane < here) {
        own.row = p.rows[begin + team.lane];
        own.shard = shard_of(p.by.shards, p.shards_count, own.row);
        const Shard& shard = p.by.shards[own.shard];
        prefetch(row_at(p.by, shard, own.row), shard.row_words);
    }
    for (u32 i = team.lane; i < here * p.ranks; i += TEAM::LANES) {
        const u32 source = p.sources[begin * p.ranks + i];
        if (source != 0) prefetch(static_cast<const float*>(p.sums) + u64(source - 1) * sum_words, sum_words);
    }
    return own;
}

template <u32 LANES, u32 VECTORS>
__device__ inline void update_rows(const Update& p) {
    using TEAM = Team<LANES, VECTORS>;
    constexpr u32 ROWS = ROWS_OF<VECTORS>;
    __shared__ float4 sums[TEAM::COUNT][ROWS][VECTORS][LANES];
    const TEAM team;
    if (*p.by.stop != 0) return;
    const u32 count = *p.rows_count, step = gridDim.x * TEAM::COUNT * ROWS;
    const u32 sum_words = p.dtype == FP32 ? p.width : p.width / 2;
    u32 begin = (blockIdx.x * TEAM::COUNT + team.number) * ROWS;
    Asked next = ask<ROWS>(p, team, begin, count, sum_words);
    for (; begin < count; begin += step) {
        const Asked own = next;
        // While these are on their way, the rows before are worked on.
        next = ask<ROWS>(p, team, begin + step, count, sum_words);
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) {
            const bool here = begin + i < count;
            const u32* sources = p.sources + u64(begin + i) * p.ranks;
            const u32 dim = here ? filled_dim(p.by.shards[team.of(own.shard, i)]) : 0;
            float4 sum[VECTORS];
#pragma unroll
            for (u32 vector = 0; vector < VECTORS; vector++) sum[vector] = zeros();
#pragma unroll 4
            for (u32 rank = 0; rank < p.ranks; rank++) {
                const u32 source = here ? sources[rank] : 0;
                const float* from = static_cast<const float*>(p.sums) + u64(source - 1) * sum_words;
#pragma unroll
                for (u32 vector = 0; vector < VECTORS; vector++) {
                    const u32 column = (vector * LANES + team.lane) * VECTOR;
                    if (source != 0 && column < dim) add(sum[vector], load_weights(from, column, p.dtype));
                }
            }
#pragma unroll
            for (u32 vector = 0; vector < VECTORS; vector++) sums[team.number][i][vector][team.lane] = sum[vector];
        }
        __syncwarp(team.mask);
        for (u32 i = 0; i < ROWS && begin + i < count; i++) {
            const u32 row = team.of(own.row, i);
            const Shard& shard = p.by.shards[team.of(own.shard, i)];
            learn_by_rule(p.by, team, shard, row, sums[team.number][i]);
        }
        // The sums are overwritten next.
        __syncwarp(team.mask);
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
