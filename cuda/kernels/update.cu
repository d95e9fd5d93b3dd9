// The update of an owner's rows: each distinct row of the global batch once, by its table's rule, from the sum of what
// the ranks have summed, in the order of ranks.
//
// Reads an element of every rank that looked the row up, and reads and writes the row and its state. The sums were
// written here by the ranks: reading them over the link was slower, by its lower rate and because nothing else went on
// meanwhile. A team takes some rows at a time and asks for all that it will read of them, so that it comes from the
// cache.
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

// Rows of lean tables that a team takes at a time: as many as registers hold.
constexpr u32 LEAN_ROWS = 2;

// The rows of a turn, each known to a lane, and their shards.
struct Turn {
    u32 row = 0;
    u32 shard = 0;

    template <class TEAM>
    __device__ Turn(const Update& p, const TEAM& team, u32 begin, u32 count) {
        if (team.lane >= LEAN_ROWS || begin + team.lane >= count) return;
        row = p.rows[begin + team.lane];
        shard = shard_of(p.by.shards, p.shards_count, row);
    }
};

// The same where all tables are lean (see `learn_lean`): what is read of several rows at once goes to registers.
template <u32 LANES>
__device__ inline void update_lean_rows(const Update& p) {
    using TEAM = Team<LANES, 1>;
    const TEAM team;
    if (*p.by.stop != 0) return;
    const u32 count = *p.rows_count, step = gridDim.x * TEAM::COUNT * LEAN_ROWS, column = team.lane * VECTOR;
    const u64 sum_words = p.dtype == FP32 ? p.width : p.width / 2;
    u32 begin = (blockIdx.x * TEAM::COUNT + team.number) * LEAN_ROWS;
    Turn next(p, team, begin, count);
    for (; begin < count; begin += step) {
        const Turn own = next;
        next = Turn(p, team, begin + step, count);
        float4 weights[LEAN_ROWS], first[LEAN_ROWS], sum[LEAN_ROWS];
        bool there[LEAN_ROWS];
#pragma unroll
        for (u32 i = 0; i < LEAN_ROWS; i++) {
            const Shard& shard = p.by.shards[team.of(own.shard, i)];
            const float* at = row_at(p.by, shard, team.of(own.row, i));
            weights[i] = first[i] = sum[i] = zeros();
            there[i] = begin + i < count && column < shard.dim;
            if (!there[i]) continue;
            weights[i] = load_weights(at, column, FP32);
            if (shard.rule.kind == ADAGRAD) first[i] = load_weights(at + shard.first, column, FP32);
        }
#pragma unroll 4
        for (u32 rank = 0; rank < p.ranks; rank++) {
#pragma unroll
            for (u32 i = 0; i < LEAN_ROWS; i++) {
                const u32 source = there[i] ? p.sources[u64(begin + i) * p.ranks + rank] : 0;
                const float* from = static_cast<const float*>(p.sums) + (source - 1) * sum_words;
                if (source != 0) add(sum[i], load_weights(from, column, p.dtype));
            }
        }
#pragma unroll
        for (u32 i = 0; i < LEAN_ROWS; i++) {
            const Shard& shard = p.by.shards[team.of(own.shard, i)];
            float* const at = row_at(p.by, shard, team.of(own.row, i));
            if (!there[i]) continue;
            const Rate rate = p.by.rates[shard.table];
            float4 second = zeros();
            sum[i] = first_of(sum[i], shard.dim - column);
            if (p.by.scale != nullptr) sum[i] = scaled(sum[i], *p.by.scale);
            if (shard.rule.kind == ADAGRAD) {
                apply4<ADAGRAD>(shard.rule, rate, sum[i], weights[i], first[i], second);
                store_weights(at + shard.first, column, FP32, first[i]);
            } else {
                apply4<SGD>(shard.rule, rate, sum[i], weights[i], first[i], second);
            }
            store_weights(at, column, FP32, weights[i]);
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

#define LEAN_KERNEL(LANES)                                                                  \
    extern "C" __global__ void __launch_bounds__(TEAM_THREADS, 4)                           \
        update_lean_##LANES(const __grid_constant__ Update p) {                             \
        update_lean_rows<LANES>(p);                                                         \
    }

LEAN_KERNEL(4)
LEAN_KERNEL(16)
LEAN_KERNEL(32)
