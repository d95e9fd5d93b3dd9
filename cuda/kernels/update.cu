// Updates an owner's rows: each distinct row of the global batch once, by its table's rule, from the sum over the
// ranks' sums, in the order of ranks.
//
// Reads one element per rank that looked the row up; reads and writes the row and its state. The ranks have written
// their sums here: reading them over the link was slower, because of its lower rate and because nothing else
// overlapped with it. A team takes some rows at a time and prefetches all that it will read for them. For 16384
// samples of dlrm on each of four GPUs, with plain SGD, an owner moves 75 MB, in 34 us; for dlrm-dcnv2 with
// element-wise Adagrad 1002 MB, in 291: 3440 GB/s (H200). With prefetching one turn earlier, while the previous rows
// are processed, these took 37 and 375.
//
// Row-wise Adagrad keeps one number per row. If several ranks have some columns of a row each, they first exchange
// the squares of theirs, 4 bytes per row and owner, and each adds up those of all, in the order of the columns.
#include "learn.cuh"
#include "traffic.cuh"

// Where the shared squares of a shard's rows are stored.
struct SharedSquares {
    // In each owner's memory: where those of the table start, and the distance between two shards'.
    u32 begin;
    u32 rows;
    // Number of shards, and which one this is.
    u32 shards;
    u32 number;
    // Bit mask of the ranks that receive the squares: those that own the rows; over several nodes, all.
    u32 owners;
    // Elements of a row over all shards.
    u32 dim;
};

struct Update {
    UpdateContext context;
    // The union of the rows that ranks looked up, and their number.
    const u32* rows;
    const u32* rows_count;
    // [union row][rank]: 1 + the index of its sum, or 0.
    const u32* sources;
    // [entry][width]
    const void* sums;
    // One per shard, if any shares squares.
    const SharedSquares* shared;
    // Per rank.
    float* squares[RANKS_MAX];
    // Two: of this rank's links within its node, and between nodes.
    LinkCounts* counts;
    u32 shards_count;
    u32 ranks;
    // Elements from one sum to the next; a multiple of 16 bytes.
    u32 width;
    // Type of the sums: a `Dtype`.
    u32 dtype;
    u32 rank;
    // How often a row's squares are sent to other nodes.
    u32 forwards;
};

// Rows that a team takes at a time.
constexpr u32 UPDATE_ROWS = 4;

// The sum over the ranks' sums for a row of the union, in their order.
template <class TEAM>
__device__ inline void add_up(const Update& p, const TEAM& team, u32 index, u32 dim, float4 (&sum)[TEAM::VECTORS]) {
    const u32 sum_words = p.dtype == FP32 ? p.width : p.width / 2;
    const u32* sources = p.sources + u64(index) * p.ranks;
#pragma unroll
    for (u32 vector = 0; vector < TEAM::VECTORS; vector++) sum[vector] = zeros();
#pragma unroll 4
    for (u32 rank = 0; rank < p.ranks; rank++) {
        const u32 source = sources[rank];
        if (source == 0) continue;
        const float* from = static_cast<const float*>(p.sums) + u64(source - 1) * sum_words;
#pragma unroll
        for (u32 vector = 0; vector < TEAM::VECTORS; vector++) {
            const u32 column = (vector * TEAM::LANES + team.lane) * VECTOR;
            if (column < dim) add(sum[vector], load_weights(from, column, p.dtype));
        }
    }
}

// How many rows of the union come before a shard's.
__device__ inline u32 rows_before(const Update& p, u32 count, u32 base) {
    u32 first = 0;
    while (first < count) {
        const u32 middle = (first + count) / 2;
        if (p.rows[middle] < base) {
            first = middle + 1;
        } else {
            count = middle;
        }
    }
    return first;
}

// What all owners of a row's columns have sent of its squares, shard by shard.
__device__ inline WholeRow whole_row(const Update& p, u32 shard, u32 index, u32 count) {
    const SharedSquares shared = p.shared[shard];
    const float* squares =
        p.squares[p.rank] + shared.begin + (index - rows_before(p, count, p.context.shards[shard].base));
    float sum = squares[0];
    for (u32 other = 1; other < shared.shards; other++) sum += squares[other * shared.rows];
    return {sum, shared.dim};
}

template <u32 LANES, u32 VECTORS>
__device__ inline void update_rows(const Update& p) {
    using TEAM = Team<LANES, VECTORS>;
    __shared__ float4 sums[TEAM::COUNT][VECTORS][LANES];
    const TEAM team;
    if (*p.context.stop != 0) return;
    const u32 count = *p.rows_count, teams = gridDim.x * TEAM::COUNT;
    const u32 sum_words = p.dtype == FP32 ? p.width : p.width / 2;
    const float* all_sums = static_cast<const float*>(p.sums);
    for (u32 begin = (blockIdx.x * TEAM::COUNT + team.number) * UPDATE_ROWS; begin < count;
         begin += teams * UPDATE_ROWS) {
        const u32 here = min(UPDATE_ROWS, count - begin);
        u32 own_row = 0, own_shard = 0;
        if (team.lane < here) {
            own_row = p.rows[begin + team.lane];
            own_shard = shard_of(p.context.shards, p.shards_count, own_row);
            const Shard& shard = p.context.shards[own_shard];
            prefetch(row_at(p.context, shard, own_row), shard.row_words);
        }
        for (u32 i = team.lane; i < here * p.ranks; i += LANES) {
            const u32 source = p.sources[begin * p.ranks + i];
            if (source != 0) prefetch(all_sums + u64(source - 1) * sum_words, sum_words);
        }
        for (u32 i = 0; i < here; i++) {
            const u32 row = team.of(own_row, i), number = team.of(own_shard, i);
            const Shard& shard = p.context.shards[number];
            float4 sum[VECTORS];
            add_up(p, team, begin + i, filled_dim(shard), sum);
#pragma unroll
            for (u32 vector = 0; vector < VECTORS; vector++) sums[team.number][vector][team.lane] = sum[vector];
            __syncwarp(team.mask);
            const WholeRow whole = shard.shares_squares != 0 ? whole_row(p, number, begin + i, count) : WholeRow{};
            learn_by_rule(p.context, team, shard, row, sums[team.number], whole);
        }
    }
}

// For rows of which other ranks have more columns: sends their owners the sum of the squares of the local columns.
template <u32 LANES, u32 VECTORS>
__device__ inline void share_squares(const Update& p) {
    using TEAM = Team<LANES, VECTORS>;
    const TEAM team;
    if (*p.context.stop != 0) return;
    // Squares, within the node and between nodes.
    __shared__ u32 sent[2];
    if (threadIdx.x < 2) sent[threadIdx.x] = 0;
    __syncthreads();
    u32 within = 0, between = 0;
    const u32 rows = *p.rows_count, teams = gridDim.x * TEAM::COUNT;
    for (u32 index = blockIdx.x * TEAM::COUNT + team.number; index < rows; index += teams) {
        const u32 row = p.rows[index], number = shard_of(p.context.shards, p.shards_count, row);
        const Shard& shard = p.context.shards[number];
        if (shard.shares_squares == 0) continue;
        float4 sum[VECTORS], weights[VECTORS];
        add_up(p, team, index, filled_dim(shard), sum);
#pragma unroll
        for (u32 vector = 0; vector < VECTORS; vector++) {
            const u32 column = (vector * LANES + team.lane) * VECTOR;
            weights[vector] = zeros();
            if (column < shard.dim) {
                weights[vector] = load_weights(row_at(p.context, shard, row), column, shard.dtype);
                sum[vector] = first_of(sum[vector], shard.dim - column);
                if (p.context.scale != nullptr) sum[vector] = scaled(sum[vector], *p.context.scale);
            }
        }
        const float squares = squares_of_row(team, shard.rule, sum, weights);
        const SharedSquares shared = p.shared[number];
        const u32 at = shared.begin + shared.number * shared.rows + index - rows_before(p, rows, shard.base);
        for (u32 rank = team.lane; rank < RANKS_MAX; rank += LANES) {
            if ((shared.owners >> rank & 1) != 0) p.squares[rank][at] = squares;
        }
        within += __popc(shared.owners & ~(1u << p.rank));
        between += p.forwards;
    }
    if (team.lane == 0 && within + between != 0) {
        atomicAdd(sent, within);
        atomicAdd(sent + 1, between);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    const u64 contained = sent[1] * sizeof(float);
    add_to(p.counts[0].bytes, sent[0] * sizeof(float));
    add_to(p.counts[1].bytes, contained);
    add_to(p.counts[1].padding, 0 - contained);
}

#define KERNEL(LANES, VECTORS)                                                              \
    extern "C" __global__ void __launch_bounds__(TEAM_THREADS, VECTORS == 1 ? 4 : 1)        \
        update_##LANES##x##VECTORS(const __grid_constant__ Update p) {                      \
        update_rows<LANES, VECTORS>(p);                                                     \
    }                                                                                       \
    extern "C" __global__ void __launch_bounds__(TEAM_THREADS)                              \
        share_squares_##LANES##x##VECTORS(const __grid_constant__ Update p) {               \
        share_squares<LANES, VECTORS>(p);                                                   \
    }

// By the widest row: 16, 64, 128, 256 and 1024 elements.
KERNEL(4, 1)
KERNEL(16, 1)
KERNEL(32, 1)
KERNEL(32, 2)
KERNEL(32, 8)
