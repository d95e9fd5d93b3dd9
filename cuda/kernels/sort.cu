// Sorts (slot, bag) pairs by slot, stably: count, sum, scatter, twice. `locate` does the first count.
//
// Each pass reads 8 bytes a pair and writes 8.
#include "sort.cuh"

struct Count {
    const uint2* pairs;
    const u32* slots_count;
    u32* counts;
    u32 ids;
    u32 reserved;
};
static_assert(sizeof(Count) == 32);

// Counts the high digits of a tile's slots. Grid: one block a tile. Shared memory: 4 bytes a digit.
extern "C" __global__ void __launch_bounds__(COUNT_THREADS) sort_count(const __grid_constant__ Count p) {
    extern __shared__ u32 digits[];
    const u32 bits = digit_bits(*p.slots_count), bins = 1u << bits;
    for (u32 digit = threadIdx.x; digit < bins; digit += COUNT_THREADS) digits[digit] = 0;
    __syncthreads();
    const u32 begin = blockIdx.x * TILE + threadIdx.x;
#pragma unroll
    for (u32 round = 0; round < COUNT_ROUNDS; round++) {
        const u32 id = begin + round * COUNT_THREADS;
        count_digit(digits, id < p.ids ? p.pairs[id].x >> bits : ~0u);
    }
    __syncthreads();
    for (u32 digit = threadIdx.x; digit < bins; digit += COUNT_THREADS) {
        p.counts[digit * gridDim.x + blockIdx.x] = digits[digit];
    }
}

constexpr u32 SUM_THREADS = 128;

struct Sum {
    const u32* slots_count;
    u32* counts;
    u32* totals;
    u32 tiles;
    u32 reserved;
};
static_assert(sizeof(Sum) == 32);

// Replaces each tile's count of a digit by that of the tiles before, and writes the digit's total. One warp a digit.
extern "C" __global__ void __launch_bounds__(SUM_THREADS) sort_sum(const __grid_constant__ Sum p) {
    const u32 lane = threadIdx.x % WARP, digit = (blockIdx.x * SUM_THREADS + threadIdx.x) / WARP;
    if (digit >= 1u << digit_bits(*p.slots_count)) return;
    u32* counts = p.counts + digit * p.tiles;
    u32 before = 0;
    for (u32 first = 0; first < p.tiles; first += WARP) {
        const u32 tile = first + lane;
        const u32 own = tile < p.tiles ? counts[tile] : 0;
        u32 sum = own;
#pragma unroll
        for (u32 distance = 1; distance < WARP; distance *= 2) {
            const u32 other = __shfl_up_sync(ALL_LANES, sum, distance);
            if (lane >= distance) sum += other;
        }
        if (tile < p.tiles) counts[tile] = before + sum - own;
        before += __shfl_sync(ALL_LANES, sum, WARP - 1);
    }
    if (lane == 0) p.totals[digit] = before;
}

struct Scatter {
    // What the first pass sorts, and the second.
    const u32* slots;
    const u32* bags;
    const uint2* pairs;
    const u32* slots_count;
    const u32* counts;
    const u32* totals;
    uint2* sorted;
    u32 ids;
    // 0 for the low digit, 1 for the high one.
    u32 pass;
};
static_assert(sizeof(Scatter) == 64);

// Puts a tile's pairs where they belong. Grid: one block a tile. Shared memory: 36 bytes a digit.
extern "C" __global__ void __launch_bounds__(SORT_THREADS) sort_scatter(const __grid_constant__ Scatter p) {
    extern __shared__ u32 places[];
    __shared__ u32 warps[SORT_WARPS + 1];
    const u32 bits = digit_bits(*p.slots_count), bins = 1u << bits, shift = p.pass * bits;
    // [warp][digit], after the place where a digit of this tile begins. A tile has fewer pairs than 2^16.
    u16* ranks = reinterpret_cast<u16*>(places + bins);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;

    u32 before = 0;
    for (u32 first = 0; first < bins; first += SORT_THREADS) {
        const u32 digit = first + threadIdx.x;
        u32 all;
        const u32 own = digit < bins ? p.totals[digit] : 0;
        const u32 sum = before + exclusive_sum<SORT_THREADS>(own, warps, all);
        if (digit < bins) places[digit] = sum + p.counts[digit * gridDim.x + blockIdx.x];
        before += all;
    }
    // Two at a time: a digit has a whole number of words of ranks.
    for (u32 i = threadIdx.x; i < SORT_WARPS * bins / 2; i += SORT_THREADS) places[bins + i] = 0;
    __syncthreads();

    // A warp takes consecutive pairs, round by round; a pair's rank is that among the warp's pairs of its digit.
    const u32 begin = blockIdx.x * TILE + warp * (TILE / SORT_WARPS) + lane;
    u16* own_ranks = ranks + warp * bins;
    uint2 pairs[SORT_ROUNDS];
    u16 rank[SORT_ROUNDS];
#pragma unroll
    for (u32 round = 0; round < SORT_ROUNDS; round++) {
        const u32 id = begin + round * WARP;
        if (id >= p.ids) continue;
        pairs[round] = p.pass == 0 ? make_uint2(p.slots[id], p.bags[id]) : p.pairs[id];
    }
#pragma unroll
    for (u32 round = 0; round < SORT_ROUNDS; round++) {
        const bool here = begin + round * WARP < p.ids;
        const u32 digit = here ? pairs[round].x >> shift & (bins - 1) : bins;
        const u32 equal = __match_any_sync(ALL_LANES, digit);
        const u32 below = equal & ((1u << lane) - 1);
        if (here) rank[round] = own_ranks[digit] + __popc(below);
        __syncwarp();
        if (here && below == 0) own_ranks[digit] += __popc(equal);
        __syncwarp();
    }
    __syncthreads();
    for (u32 digit = threadIdx.x; digit < bins; digit += SORT_THREADS) {
        u32 sum = 0;
        for (u32 other = 0; other < SORT_WARPS; other++) {
            const u32 own = ranks[other * bins + digit];
            ranks[other * bins + digit] = sum;
            sum += own;
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 round = 0; round < SORT_ROUNDS; round++) {
        if (begin + round * WARP >= p.ids) continue;
        const u32 digit = pairs[round].x >> shift & (bins - 1);
        const u32 place = places[digit] + own_ranks[digit] + rank[round];
        p.sorted[place] = pairs[round];
    }
}
