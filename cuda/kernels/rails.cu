// Rows and gradients on their way between nodes, at the rank of a node that exchanges them for the whole node along
// its rail. What the ranks of the node look up is sent along the rail once, in lists of equal length; rows that
// arrive are written to all ranks of the node that look them up; the sums of their gradients are added up before they
// return the same way.
//
// The message to a node has 4 words: how many rows are listed; the most rows that this rank lists for any other node;
// how many of the listed rows (from the first) are wanted; one unused. Then follow the rows, by their numbers at
// their owner. After the wanted rows come rows that every rank stores, the same in each list: of those, only gradient
// sums travel along the rail, to all nodes.
//
// Spreading reads a row and writes it once per rank of the node that looks it up; adding up reads as many sums and
// writes one.
#include "shard.cuh"

constexpr u32 RAIL_THREADS = 256;
// Rows that a team of lanes has in flight.
constexpr u32 RAIL_ROWS = 4;
constexpr u32 HEADER = 4;

struct RailLists {
    // The rows that the node looks up, node by node, and where each node's rows start; last, the rows that every rank
    // stores, if any.
    const u32* named;
    const u32* starts;
    // Per node: the list to send there. This node's own is among the received lists.
    Addresses lists;
    u32 node;
    u32 nodes;
    // 1 if there are rows that every rank stores, else 0.
    u32 of_all;
    u32 reserved;
};

// Writes the lists. Grid: x over rows, y over nodes.
extern "C" __global__ void __launch_bounds__(RAIL_THREADS) rail_lists(const __grid_constant__ RailLists p) {
    const u32 node = blockIdx.y, first = p.starts[node], wanted = p.starts[node + 1] - first;
    const u32 end = p.starts[p.nodes], of_all = p.starts[p.nodes + p.of_all] - end, count = wanted + of_all;
    u32* list = address_of_node<u32>(p.lists, node);
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
    // [node][HEADER + capacity]: the received lists; those of other nodes have at most `there` rows.
    const u32* lists;
    // Per node: how many rows were received, and how many of them it wants.
    u32* counts;
    u32* wanted;
    // Host memory: 1 + the most rows that any rank of the rail lists for another node.
    u32* most;
    KeySet set;
    u32 stride;
    u32 there;
    u32 node;
    u32 nodes;
};

// Marks the received rows. Grid: x over rows, y over nodes.
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
    // [named row][rank of the node]: 1 + the index of its entry at this owner, or 0.
    const u32* sources;
    // Per rank of the node: the slot of this owner's first row there. Null unless rows are spread.
    const u32* firsts;
    const Shard* shards;
    // Per node: the received rows, or the sums to send.
    Addresses rows;
    // Per rank of the node: where rows are written.
    void* landings[RANKS_MAX];
    // [entry][width]: the sums of the node's ranks. Null unless these are added up.
    const void* sums;
    u32 shards_count;
    u32 nodes;
    // Ranks of the node, and this one's number among them.
    u32 ranks;
    u32 rank;
    // Entries that a rank can have.
    u32 capacity;
    // Elements from one row to the next.
    u32 width;
    // Type of the sums (a `Dtype`), or bytes per element of a row.
    u32 element;
    // As for `RailLists`.
    u32 of_all;
};

// Rows that a team handles at once: lane `i` has the data of row `i`.
struct OwnRow {
    // The number of nodes if every rank stores the row.
    u32 node = 0;
    // Its number among those of its node, and the dimension of its vector.
    u32 index = 0;
    u32 dim = 0;
};

__device__ inline OwnRow own_row(const RailRows& p, u32 number) {
    OwnRow own;
    for (u32 end = p.nodes + p.of_all; end - own.node > 1;) {
        const u32 middle = (own.node + end) / 2;
        if (p.starts[middle] <= number) {
            own.node = middle;
        } else {
            end = middle;
        }
    }
    own.index = number - p.starts[own.node];
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

// Sends received rows to the ranks of the node. Grid: any.
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
        u32 nodes[RAIL_ROWS], indices[RAIL_ROWS], dims[RAIL_ROWS];
#pragma unroll
        for (u32 i = 0; i < RAIL_ROWS; i++) {
            nodes[i] = team.of(own.node, i);
            indices[i] = team.of(own.index, i);
            dims[i] = team.of(own.dim, i);
        }
        for (u32 column = team.lane * VECTOR; column < p.width; column += LANES * VECTOR) {
            uint4 values[RAIL_ROWS];
#pragma unroll
            for (u32 i = 0; i < RAIL_ROWS; i++) {
                const u8* from = address_of_node<const u8>(p.rows, nodes[i]) + indices[i] * row_bytes;
                if (column < dims[i]) values[i] = load_four(from, column, p.element);
            }
            // Each rank starts with a different peer.
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

// Adds up the sums of the node's ranks, in the order of ranks. Sums of rows that every rank stores go to all nodes,
// after the rows that these want. Grid: any.
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
            const u32 node = team.of(own.node, i), index = team.of(own.index, i), dim = team.of(own.dim, i);
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
                    const u64 at = index + (of_all ? p.starts[to + 1] - p.starts[to] : 0);
                    if (p.element == FP32) {
                        store4(address_of_node<float>(p.rows, to) + at * p.width + column, sum);
                    } else {
                        store4(address_of_node<bf16>(p.rows, to) + at * p.width + column, sum);
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

// By the widest row: up to 16, up to 64, and more elements.
KERNELS(4)
KERNELS(16)
KERNELS(32)
