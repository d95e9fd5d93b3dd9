// Sends rows from their owners to the ranks that look them up, in the type that these compute in. For rows that every
// rank stores, each rank is its own owner.
//
// Reads a row's weights at the owner and writes one element per weight over the link. For 16384 samples of dlrm in
// bf16 that is 10 MB on each of two GPUs, 33 us, and 15 MB on each of four, 48 us; for dlrm-dcnv2 on each of four 115
// MB, 336 us: 343 GB/s each way (H200, 18 links). 16 bytes per lane instead of 8 were no faster.
#include "shard.cuh"

constexpr u32 SEND_THREADS = 256;
// Rows that a team of lanes has in flight.
constexpr u32 ROWS_AT_ONCE = 4;

struct Send {
    const float* storage;
    const Shard* shards;
    const u32* entries;
    const u32* firsts;
    const u32* counts;
    // Per rank, or per node: [slot][width].
    Addresses landings;
    u32 shards_count;
    u32 capacity;
    u32 rank;
    u32 ranks;
    // Elements from one slot to the next.
    u32 width;
    // Entries that a rank can have of rows that only one owner stores.
    u32 owned;
};

// Four weights as stored: f32, or two words of the other types.
__device__ inline float4 load_raw(const float* row, u32 column, u32 dtype) {
    if (dtype == FP32) return __ldcg(reinterpret_cast<const float4*>(row) + column / VECTOR);
    const uint2 stored = __ldcg(reinterpret_cast<const uint2*>(row) + column / VECTOR);
    return make_float4(__uint_as_float(stored.x), __uint_as_float(stored.y), 0, 0);
}

__device__ inline float4 weights_of_raw(float4 raw, u32 dtype) {
    if (dtype == FP32) return raw;
    const uint2 stored = make_uint2(__float_as_uint(raw.x), __float_as_uint(raw.y));
    return dtype == BF16 ? weights_from<BF16>(stored) : weights_from<FP16>(stored);
}

// Grid: x over entries; y over ranks, plus one if there are rows that every rank stores. Each owner starts with a
// different rank and ends with itself, because the link is the bottleneck.
template <class T, u32 LANES>
__device__ inline void send(const Send& p) {
    const bool own = blockIdx.y == p.ranks;
    const u32 peer = own ? p.rank : (p.rank + 1 + blockIdx.y) % p.ranks, list = own ? p.ranks + peer : peer;
    const u32 first = p.firsts[list], count = p.counts[list];
    const u32 lane = threadIdx.x % LANES, teams = gridDim.x * SEND_THREADS / LANES;
    const u32 mask = LANES == WARP ? ALL_LANES : ((1u << LANES) - 1) << (threadIdx.x % WARP / LANES * LANES);
    const u32* entries = p.entries + u64(peer) * p.capacity + (own ? p.owned : 0);
    T* landing = address_of<T>(p.landings, peer) + u64(first) * p.width;
    for (u32 begin = (blockIdx.x * SEND_THREADS + threadIdx.x) / LANES * ROWS_AT_ONCE; begin < count;
         begin += teams * ROWS_AT_ONCE) {
        const float* own_row = nullptr;
        u32 own_dim = 0, own_dtype = FP32;
        if (lane < ROWS_AT_ONCE && begin + lane < count) {
            const u32 row = entries[begin + lane];
            const Shard& shard = p.shards[shard_of(p.shards, p.shards_count, row)];
            own_row = p.storage + shard.words + u64(row - shard.base) * shard.row_words;
            own_dim = filled_dim(shard);
            own_dtype = shard.dtype;
        }
        const float* rows[ROWS_AT_ONCE];
        u32 dims[ROWS_AT_ONCE], dtypes[ROWS_AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
            rows[i] = reinterpret_cast<const float*>(__shfl_sync(mask, reinterpret_cast<u64>(own_row), i, LANES));
            dims[i] = __shfl_sync(mask, own_dim, i, LANES);
            dtypes[i] = __shfl_sync(mask, own_dtype, i, LANES);
        }
        for (u32 column = lane * VECTOR; column < p.width; column += LANES * VECTOR) {
            float4 values[ROWS_AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
                if (column < dims[i]) values[i] = load_raw(rows[i], column, dtypes[i]);
            }
#pragma unroll
            for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
                if (column >= dims[i]) continue;
                store4(landing + u64(begin + i) * p.width + column, weights_of_raw(values[i], dtypes[i]));
            }
        }
    }
}

#define KERNELS(LANES)                                                                                           \
    extern "C" __global__ void __launch_bounds__(SEND_THREADS) send_f32_##LANES(const __grid_constant__ Send p) {  \
        send<float, LANES>(p);                                                                                   \
    }                                                                                                            \
    extern "C" __global__ void __launch_bounds__(SEND_THREADS) send_bf16_##LANES(const __grid_constant__ Send p) { \
        send<bf16, LANES>(p);                                                                                    \
    }                                                                                                            \
    extern "C" __global__ void __launch_bounds__(SEND_THREADS) send_f16_##LANES(const __grid_constant__ Send p) {  \
        send<f16, LANES>(p);                                                                                     \
    }

// By the widest row: up to 16, up to 64, and more elements.
KERNELS(4)
KERNELS(16)
KERNELS(32)
