// Rows and gradients on their way between nodes, at the rank of a node that asks for what its node wants of a rail: what
// the ranks of the node name is sent along the rail once, in lists of one length each; rows that come back go to all
// ranks of the node that named them; and the sums of their gradients are added up before they go the same way.
//
// A list for a node is as long as its message: 4 words, of which the first is how many rows are named, the second the
// most that this rank names at any other node, and the third how many of the first are wanted; and then the rows, by
// their numbers at their owner. Behind those that are wanted come rows that every rank has, in each list the same: only
// the sums of their gradients go along the rail, to all nodes.
//
// Spreading reads a row and writes it once for each rank of the node that named it; adding up reads as many sums and
// writes one.
#include "shard.cuh"

constexpr u32 RAIL_THREADS = 256;
// Rows that a team of lanes has in flight.
constexpr u32 RAIL_ROWS = 4;
constexpr u32 HEADER = 4;

struct RailLists {
    // The rows that the node names: those of each node, one behind the other, and where they begin; at last those that
    // every rank has, where there are such.
    const u32* named;
    const u32* starts;
    // Of each node: the list that goes there. That of this node is among those that came.
    u32* lists[RANKS_MAX];
    u32 node;
    u32 nodes;
    // 1 where there are rows that every rank has, else 0.
    u32 of_all;
    u32 reserved;
};
static_assert(sizeof(RailLists) == 96);

// Writes the lists. Grid: x over rows, y over nodes.
extern "C" __global__ void __launch_bounds__(RAIL_THREADS) rail_lists(const __grid_constant__ RailLists p) {
    const u32 node = blockIdx.y, first = p.starts[node], wanted = p.starts[node + 1] - first;
    const u32 end = p.starts[p.nodes], of_all = p.starts[p.nodes + p.of_all] - end, count = wanted + of_all;
    u32* list = p.lists[node];
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        u32 most = 0;
        for (u32 other = 0; other < p.nodes; other++) {
            if (other != p.node) most = max(most, p.starts[other + 1] - p.starts[other]);
        }
        list[0] = count;
        list[1] = most + of_all;
        list[2] = wanted;
    }
    for (u32 entry = blockIdx.x * RAIL_THREADS + threadIdx.x; entry < count; entry += gridDim.x * RAIL_THREADS) {
        list[HEADER + entry] = p.named[entry < wanted ? first + entry : end + (entry - wanted)];
    }
}

struct RailMark {
    // [node][HEADER + capacity]: the lists that came, those of other nodes up to `there` rows.
    const u32* lists;
    // Of each node: how many of them are there, and how many of these it wants.
    u32* counts;
    u32* wanted;
    // Memory of the host: 1 + the most rows that any rank of the rail names at another node.
    u32* most;
    KeySet set;
    u32 stride;
    u32 there;
    u32 node;
    u32 nodes;
};
static_assert(sizeof(RailMark) == 72);

// Marks the rows that came. Grid: x over rows, y over nodes.
extern "C" __global__ void __launch_bounds__(RAIL_THREADS) rail_mark(const __grid_constant__ RailMark p) {
    const u32 node = blockIdx.y;
    const u32* list = p.lists + u64(node) * p.stride;
    const u32 count = node == p.node ? list[0] : min(list[0], p.there);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        p.counts[node] = count;
        p.wanted[node] = min(list[2], count);
        if (node == 0) {
            u32 most = 0;
            for (u32 other = 0; other < p.nodes; other++) most = max(most, p.lists[u64(other) * p.stride + 1]);
            asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p.most), "r"(most + 1) : "memory");
        }
    }
    for (u32 entry = blockIdx.x * RAIL_THREADS + threadIdx.x; entry < count; entry += gridDim.x * RAIL_THREADS) {
        insert(p.set, list[HEADER + entry]);
    }
}

struct RailRows {
    // As for `RailLists`.
    const u32* named;
    const u32* starts;
    // [named row][rank of the node]: 1 + the place of its entry at this owner, or 0.
    const u32* sources;
    // Of each rank of the node: the slot there of its first row of this owner. Unless rows are spread, null.
    const u32* firsts;
    const Shard* shards;
    // Of each node: rows as they came, or sums as they go.
    void* rows[RANKS_MAX];
    // Of each rank of the node: where rows land.
    void* landings[RANKS_MAX];
    // [place][width]: what the ranks of the node have summed. Unless these are added up, null.
    const void* sums;
    u32 shards_count;
    u32 nodes;
    // Of the node, and this one among them.
    u32 ranks;
    u32 rank;
    // Entries that a rank can have.
    u32 capacity;
    // Elements from one row to the next.
    u32 width;
    // What sums are stored as: a `Dtype`; or bytes of a row's element.
    u32 element;
    // As for `RailLists`.
    u32 of_all;
};
static_assert(sizeof(RailRows) == 208);

// Rows that a team has at once: lane `i` knows of the one with number `i`.
struct OwnRow {
    // Behind all nodes where every rank has it.
    u32 node = 0;
    // Its number among those of its node, and its vectors.
    u32 place = 0;
    u32 dim = 0;
};

__device__ inline OwnRow own_row(const RailRows& p, u32 number) {
    OwnRow own;
    while (own.node + 1 < p.nodes + p.of_all && number >= p.starts[own.node + 1]) own.node++;
    own.place = number - p.starts[own.node];
    own.dim = filled_dim(p.shards[shard_of(p.shards, p.shards_count, p.named[number])]);
    return own;
}

template <u32 LANES>
struct RailTeam {
    u32 lane, mask;
    __device__ RailTeam()
        : lane(threadIdx.x % LANES),
          mask(LANES == WARP ? ALL_LANES : ((1u << LANES) - 1) << (threadIdx.x % WARP / LANES * LANES)) {}
    __device__ u32 of(u32 value, u32 source) const { return __shfl_sync(mask, value, source, LANES); }
};

// Four elements of a row, of 2 or 4 bytes each.
__device__ inline uint4 load_four(const void* row, u32 column, u32 bytes) {
    if (bytes == 4) return __ldcg(static_cast<const uint4*>(row) + column / VECTOR);
    const uint2 low = __ldcg(static_cast<const uint2*>(row) + column / VECTOR);
    return make_uint4(low.x, low.y, 0, 0);
}

__device__ inline void store_four(void* row, u32 column, u32 bytes, uint4 value) {
    if (bytes == 4) {
        static_cast<uint4*>(row)[column / VECTOR] = value;
    } else {
        static_cast<uint2*>(row)[column / VECTOR] = make_uint2(value.x, value.y);
    }
}

// Sends rows that came to the ranks of the node. Any grid.
template <u32 LANES>
__device__ inline void spread_rows(const RailRows& p) {
    const RailTeam<LANES> team;
    const u32 count = p.starts[p.nodes], teams = gridDim.x * RAIL_THREADS / LANES;
    const u64 row_bytes = u64(p.width) * p.element;
    for (u32 begin = (blockIdx.x * RAIL_THREADS + threadIdx.x) / LANES * RAIL_ROWS; begin < count;
         begin += teams * RAIL_ROWS) {
        OwnRow own;
        if (team.lane < RAIL_ROWS && begin + team.lane < count) own = own_row(p, begin + team.lane);
        const u32 here = min(RAIL_ROWS, count - begin);
        u32 nodes[RAIL_ROWS], places[RAIL_ROWS], dims[RAIL_ROWS];
#pragma unroll
        for (u32 i = 0; i < RAIL_ROWS; i++) {
            nodes[i] = team.of(own.node, i);
            places[i] = team.of(own.place, i);
            dims[i] = team.of(own.dim, i);
        }
        for (u32 column = team.lane * VECTOR; column < p.width; column += LANES * VECTOR) {
            uint4 values[RAIL_ROWS];
#pragma unroll
            for (u32 i = 0; i < RAIL_ROWS; i++) {
                const u8* from = static_cast<const u8*>(p.rows[nodes[i]]) + places[i] * row_bytes;
                if (column < dims[i]) values[i] = load_four(from, column, p.element);
            }
            // Each rank begins with another one.
            for (u32 step = 1; step <= p.ranks; step++) {
                const u32 peer = (p.rank + step) % p.ranks;
#pragma unroll
                for (u32 i = 0; i < RAIL_ROWS; i++) {
                    if (i >= here || column >= dims[i]) continue;
                    const u32 source = p.sources[u64(begin + i) * p.ranks + peer];
                    if (source == 0) continue;
                    const u64 slot = p.firsts[peer] + (source - 1 - peer * p.capacity);
                    store_four(static_cast<u8*>(p.landings[peer]) + slot * row_bytes, column, p.element, values[i]);
                }
            }
        }
    }
}

// Adds up what the ranks of the node have summed, in the order of their places. What every rank has goes to all nodes,
// behind what these want. Any grid.
template <u32 LANES>
__device__ inline void gather_sums(const RailRows& p) {
    const RailTeam<LANES> team;
    const u32 count = p.starts[p.nodes + p.of_all], teams = gridDim.x * RAIL_THREADS / LANES;
    const u32 sum_words = p.element == FP32 ? p.width : p.width / 2;
    const float* sums = static_cast<const float*>(p.sums);
    for (u32 begin = (blockIdx.x * RAIL_THREADS + threadIdx.x) / LANES * RAIL_ROWS; begin < count;
         begin += teams * RAIL_ROWS) {
        OwnRow own;
        if (team.lane < RAIL_ROWS && begin + team.lane < count) own = own_row(p, begin + team.lane);
        const u32 here = min(RAIL_ROWS, count - begin);
#pragma unroll
        for (u32 i = 0; i < RAIL_ROWS; i++) {
            const u32 node = team.of(own.node, i), place = team.of(own.place, i), dim = team.of(own.dim, i);
            if (i >= here) continue;
            const u32* sources = p.sources + u64(begin + i) * p.ranks;
            const bool of_all = node == p.nodes;
            for (u32 column = team.lane * VECTOR; column < dim; column += LANES * VECTOR) {
                float4 sum = make_float4(0, 0, 0, 0);
                for (u32 rank = 0; rank < p.ranks; rank++) {
                    const u32 source = sources[rank];
                    if (source != 0) add(sum, load_weights(sums + u64(source - 1) * sum_words, column, p.element));
                }
                for (u32 to = of_all ? 0 : node; to < (of_all ? p.nodes : node + 1); to++) {
                    const u64 at = place + (of_all ? p.starts[to + 1] - p.starts[to] : 0);
                    if (p.element == FP32) {
                        store4(static_cast<float*>(p.rows[to]) + at * p.width + column, sum);
                    } else {
                        store4(static_cast<bf16*>(p.rows[to]) + at * p.width + column, sum);
                    }
                }
            }
        }
    }
}

#define KERNELS(LANES)                                                                                                \
    extern "C" __global__ void __launch_bounds__(RAIL_THREADS) rail_spread_##LANES(const __grid_constant__ RailRows p) { \
        spread_rows<LANES>(p);                                                                                        \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(RAIL_THREADS) rail_gather_##LANES(const __grid_constant__ RailRows p) { \
        gather_sums<LANES>(p);                                                                                        \
    }

// By the widest row: of up to 16, up to 64, and more elements.
KERNELS(4)
KERNELS(16)
KERNELS(32)
