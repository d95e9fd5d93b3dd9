// Rows from their owners to the ranks that look them up, as bf16.
//
// `rows_send` reads 4 bytes an element at the owner and writes 2 over the link: 10 MB of 16384 samples of dlrm on each
// of two GPUs, 31 us, 318 GB/s each way (H200, 18 links); 16 bytes a lane instead of 8 were no faster. `rows_fetch`, by
// the rank that looks up, reads 4 bytes an element over the link. `vectors_send` writes 2 bytes an element over the
// link, once a look-up rather than once a distinct row.
#include "common.cuh"

// Rows that a warp has in flight.
constexpr u32 ROWS_AT_ONCE = 4;

struct Send {
    const float* table;
    const u32* entries;
    const u32* firsts;
    const u32* counts;
    // Of each rank: [slot][dim].
    uint2* landings[RANKS_MAX];
    u32 capacity;
    u32 rank;
    u32 ranks;
    u32 dim;
};
static_assert(sizeof(Send) == 112);

// Grid: x over entries, y over ranks; every owner starts with another rank, and ends with
// itself: the link is what takes time.
extern "C" __global__ void __launch_bounds__(256) rows_send(const __grid_constant__ Send p) {
    const u32 peer = (p.rank + 1 + blockIdx.y) % p.ranks;
    const u32 first = p.firsts[peer], count = p.counts[peer];
    const u32 lane = threadIdx.x % WARP, vectors = p.dim / VECTOR;
    const u32* entries = p.entries + peer * p.capacity;
    const float4* table = reinterpret_cast<const float4*>(p.table);
    uint2* landing = p.landings[peer] + u64(first) * vectors;
    const u32 warps = gridDim.x * blockDim.x / WARP;
    for (u32 begin = (blockIdx.x * blockDim.x + threadIdx.x) / WARP * ROWS_AT_ONCE; begin < count;
         begin += warps * ROWS_AT_ONCE) {
        for (u32 column = lane; column < vectors; column += WARP) {
            float4 values[ROWS_AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
                if (begin + i < count) values[i] = __ldcg(table + u64(entries[begin + i]) * vectors + column);
            }
#pragma unroll
            for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
                if (begin + i < count) landing[u64(begin + i) * vectors + column] = packed(values[i]);
            }
        }
    }
}

struct Fetch {
    const float* tables[RANKS_MAX];
    const u32* list;
    const u32* starts;
    uint2* landing;
    u32 rank;
    u32 ranks;
    u32 dim;
    u32 reserved;
};
static_assert(sizeof(Fetch) == 104);

// Grid: x over distinct rows, y over owners; every rank starts with another owner, and
// ends with itself.
extern "C" __global__ void __launch_bounds__(256) rows_fetch(const __grid_constant__ Fetch p) {
    const u32 owner = (p.rank + 1 + blockIdx.y) % p.ranks;
    const u32 first = p.starts[owner], end = p.starts[owner + 1];
    const u32 lane = threadIdx.x % WARP, vectors = p.dim / VECTOR;
    const float4* table = reinterpret_cast<const float4*>(p.tables[owner]);
    const u32 warps = gridDim.x * blockDim.x / WARP;
    for (u32 begin = first + (blockIdx.x * blockDim.x + threadIdx.x) / WARP * ROWS_AT_ONCE; begin < end;
         begin += warps * ROWS_AT_ONCE) {
        for (u32 column = lane; column < vectors; column += WARP) {
            float4 values[ROWS_AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
                if (begin + i < end) values[i] = __ldcg(table + u64(p.list[begin + i]) * vectors + column);
            }
#pragma unroll
            for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
                if (begin + i < end) p.landing[u64(begin + i) * vectors + column] = packed(values[i]);
            }
        }
    }
}

struct Vectors {
    const float* table;
    const Feature* features;
    // Of each rank: its ids, and the vectors that its model reads.
    const u32* ids[RANKS_MAX];
    uint2* outputs[RANKS_MAX];
    u32 samples;
    u32 features_count;
    u32 rank;
    u32 ranks;
    u32 stride;
    u32 dim;
};
static_assert(sizeof(Vectors) == 168);

// The exchange of vectors: an owner looks through the ids of all ranks for its own. Grid: x over samples, y over ranks.
extern "C" __global__ void __launch_bounds__(256) vectors_send(const __grid_constant__ Vectors p) {
    const u32 peer = (p.rank + 1 + blockIdx.y) % p.ranks;
    const u32 lane = threadIdx.x % WARP, vectors = p.dim / VECTOR;
    const float4* table = reinterpret_cast<const float4*>(p.table);
    const u32 warps = gridDim.x * blockDim.x / WARP;
    for (u32 sample = (blockIdx.x * blockDim.x + threadIdx.x) / WARP; sample < p.samples; sample += warps) {
        uint2* output = p.outputs[peer] + u64(sample) * p.stride / VECTOR;
        for (u32 first = 0; first < p.features_count; first += WARP) {
            const u32 feature = first + lane;
            u32 row = 0, place = 0;
            bool own_row = false;
            if (feature < p.features_count) {
                const Feature own = p.features[feature];
                const u32 id = min(p.ids[peer][own.ids + sample], own.rows - 1);
                own_row = id % p.ranks == p.rank;
                row = own.base + id / p.ranks;
                place = own.place / VECTOR;
            }
            u32 mine = __ballot_sync(ALL_LANES, own_row);
            while (mine != 0) {
                u32 sources[ROWS_AT_ONCE], places[ROWS_AT_ONCE], taken = 0;
#pragma unroll
                for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
                    const u32 source = mine != 0 ? __ffs(mine) - 1 : 0;
                    taken += mine != 0;
                    mine &= mine - 1;
                    sources[i] = __shfl_sync(ALL_LANES, row, source);
                    places[i] = __shfl_sync(ALL_LANES, place, source);
                }
                for (u32 column = lane; column < vectors; column += WARP) {
                    float4 values[ROWS_AT_ONCE];
#pragma unroll
                    for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
                        if (i < taken) values[i] = __ldcg(table + u64(sources[i]) * vectors + column);
                    }
#pragma unroll
                    for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
                        if (i < taken) output[places[i] + column] = packed(values[i]);
                    }
                }
            }
        }
    }
}
