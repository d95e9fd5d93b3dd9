// What the kernels share: the key space, sets of keys as bits, rows as vectors.
//
// A key numbers the rows of all tables, owner by owner: key = owner * span + row of the owner. A set of keys has one
// bit per key. Members of a set are numbered in the order of keys: that de-duplicates rows without a sort. To look up
// a member's number, the set keeps the number of members before each line of 256 keys; the rest is one 32-byte read.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;

// The most ranks that access each other's memory.
constexpr u32 RANKS_MAX = 8;
// The most features, each with a part of its table.
constexpr u32 FEATURES_MAX = 512;
constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;

constexpr u32 LINE_WORDS = 8;
constexpr u32 LINE_KEYS = 32 * LINE_WORDS;
// The span of an owner is a multiple of this.
constexpr u32 GROUP_KEYS = 65536;

// Where the ranks of a node have some data, each in its own memory; or where this rank has the data of each node, which
// it exchanges with the others: evenly spaced, so that any number of nodes needs no more parameters.
struct Addresses {
    // Per rank. Over nodes, two: of the other nodes' data, and of this node's own.
    void* at[RANKS_MAX];
    // Bytes from one node's data to the next one's, in both; 0 for ranks.
    u64 spacing;
    // This node.
    u64 node;
};

// The address of a node's data.
template <class T>
__device__ inline T* address_of_node(const Addresses& addresses, u32 node) {
    void* const first = node == addresses.node ? addresses.at[1] : addresses.at[0];
    return reinterpret_cast<T*>(static_cast<u8*>(first) + node * addresses.spacing);
}

// The address of a rank's or node's data.
template <class T>
__device__ inline T* address_of(const Addresses& addresses, u32 number) {
    if (addresses.spacing == 0) return static_cast<T*>(addresses.at[number]);
    return address_of_node<T>(addresses, number);
}

// A set of keys. `groups` has the number of members of each group of keys, `lines` the number of members before each
// line; both are written when the set is numbered.
struct KeySet {
    u32* bits;
    u32* groups;
    u32* lines;
};

// Returns whether a key is a member.
__device__ inline bool contains(const KeySet& set, u32 key) { return __ldg(set.bits + key / 32) >> key % 32 & 1; }

// Adds a key. The result does not depend on the order.
__device__ inline void insert(const KeySet& set, u32 key) { atomicOr(set.bits + key / 32, 1u << (key % 32)); }

// Returns whether no earlier lane of the warp has the same value. All lanes must call this.
__device__ inline bool first_of_equals(u32 value, u32& equals) {
    equals = __match_any_sync(ALL_LANES, value);
    return (equals & ((1u << (threadIdx.x % WARP)) - 1)) == 0;
}

// The number of a member: how many members have smaller keys.
__device__ inline u32 number_of(const KeySet& set, u32 key) {
    const uint4* line = reinterpret_cast<const uint4*>(set.bits) + key / LINE_KEYS * 2;
    const uint4 low = __ldg(line), high = __ldg(line + 1);
    const u32 words[LINE_WORDS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const u32 word = key / 32 % LINE_WORDS;
    const u32 below = (1u << (key % 32)) - 1;
    u32 number = __ldg(set.lines + key / LINE_KEYS);
#pragma unroll
    for (u32 i = 0; i < LINE_WORDS; i++) {
        number += __popc(i < word ? words[i] : i == word ? words[i] & below : 0);
    }
    return number;
}

// A row that begins anew, because a dynamic table gave it to an id.
struct NewRow {
    u64 key;
    // The row, and the number of the table among the dynamic ones.
    u32 row;
    u32 table;
};

// Returns the sum over the threads of a block that come before this one; `total` becomes the sum over all. `warps` is
// shared memory for one number per warp and one more.
template <u32 THREADS>
__device__ inline u32 exclusive_sum(u32 value, u32* warps, u32& total) {
    static_assert(THREADS % WARP == 0 && THREADS / WARP <= WARP);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 inclusive = value;
#pragma unroll
    for (u32 distance = 1; distance < WARP; distance *= 2) {
        const u32 other = __shfl_up_sync(ALL_LANES, inclusive, distance);
        if (lane >= distance) inclusive += other;
    }
    if (lane == WARP - 1) warps[warp] = inclusive;
    __syncthreads();
    if (warp == 0) {
        const u32 own = lane < THREADS / WARP ? warps[lane] : 0;
        u32 sum = own;
#pragma unroll
        for (u32 distance = 1; distance < WARP; distance *= 2) {
            const u32 other = __shfl_up_sync(ALL_LANES, sum, distance);
            if (lane >= distance) sum += other;
        }
        if (lane < THREADS / WARP) warps[lane] = sum - own;
        if (lane == WARP - 1) warps[THREADS / WARP] = sum;
    }
    __syncthreads();
    total = warps[THREADS / WARP];
    const u32 before = warps[warp] + inclusive - value;
    __syncthreads();
    return before;
}

// Each row is handled by one warp, four elements per lane at a time.
constexpr u32 VECTOR = 4;

__device__ inline float4 unpacked(uint2 packed) {
    const float2 low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(packed.x));
    const float2 high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(packed.y));
    return make_float4(low.x, low.y, high.x, high.y);
}

__device__ inline uint2 packed(float4 values) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(values.x, values.y);
    const __nv_bfloat162 high = __floats2bfloat162_rn(values.z, values.w);
    return make_uint2(reinterpret_cast<const u32&>(low), reinterpret_cast<const u32&>(high));
}

__device__ inline void add(float4& sum, float4 value) {
    sum.x += value.x;
    sum.y += value.y;
    sum.z += value.z;
    sum.w += value.w;
}

// How the rows of a bag are combined: added up, or added up and divided by their number, or each multiplied by its
// factor before they are added up; or not at all: each look-up is a bag of its own, numbered by its position.
enum BagPooling : u32 { SUM, MEAN, BY_FACTORS, SEPARATE };

// A column of ids and the shard of a table that it looks up. If owners take turns, row `id` belongs to rank `id %
// ranks` and is that rank's row `base + id / ranks`; otherwise it is the owner's row `base + id`. Some tables also
// have rows that every rank stores.
struct Feature {
    // Where the shard starts in this GPU's memory, in words of four bytes.
    u64 words;
    // Where the column's ids start.
    u32 ids;
    // Where the column's offsets start, or `FIXED`.
    u32 offsets;
    // Ids per sample; with offsets, the most ids per sample.
    u32 hotness;
    // A `BagPooling`.
    u32 pooling;
    // First row of the shard, and number of rows of the table.
    u32 base;
    u32 rows;
    // Words from one row to the next.
    u32 row_words;
    // Elements of a row, a multiple of VECTOR.
    u32 dim;
    // Where the vector starts within a sample's vectors; of separate rows, where the first one starts among the keys.
    u32 vector_offset;
    u32 shard;
    // Type of the rows: a `Dtype`.
    u32 dtype;
    // Where the slots of its look-ups start.
    u32 slots;
    // The rank that owns all rows; `TURNS`; or the number of ranks if every rank stores them.
    u32 owner;
    // The key of the table's first row in the set of rows that every rank stores, or `UNLISTED` if the set has no row
    // of this table.
    u32 frequent;
    // Where the factors of the column's ids start, if it is pooled by factors.
    u32 factors;
    // Elements from the row of one position to the next, if rows are separate.
    u32 key_stride;
};
constexpr u32 TURNS = ~0u;
constexpr u32 UNLISTED = ~0u;
constexpr u32 FIXED = ~0u;

// A sample's ids: `size` ids from `begin` on.
struct Bag {
    u32 begin;
    u32 size;
};

__device__ inline Bag bag_of(const Feature& feature, const u32* offsets, u32 sample) {
    if (feature.offsets == FIXED) return {feature.ids + sample * feature.hotness, feature.hotness};
    const u32 *of_sample = offsets + feature.offsets + sample, begin = of_sample[0];
    return {feature.ids + begin, of_sample[1] - begin};
}

// Factor of each row of a bag, and of its gradient, unless it is pooled by factors.
__device__ inline float bag_scale(u32 pooling, u32 size) {
    return pooling != SUM ? __frcp_rn(float(max(size, 1u))) : 1.0f;
}
