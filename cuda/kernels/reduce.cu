// The gradients of a rank's distinct rows: of each row the sum over its bags, in their order.
//
// Reads 2 bytes an element of every look-up and writes 2 of every distinct row, into the memory of the row's owner:
// while other rows are read, the link costs little. Of 16384 samples of dlrm that is 129 MB: 35 us at the rate of
// copies of random rows, 59 measured, 8 of them in the second kernel (H200); of 65536 samples 134 and 165 us.
//
// Warps take runs of equal length of the sorted pairs, whatever rows they belong to, so that a row of which there are
// thousands is as much work as any other. Sums that do not both begin and end in a run go to `parts` in f32; a second
// kernel adds them up, run by run. Which sums these are follows from the pairs alone, so the bits are the same each
// time.
#include "common.cuh"

// Pairs of a run. With half as many there are more warps, but twice as many parts: no gain.
constexpr u32 RUN = 64;
constexpr u32 REDUCE_AT_ONCE = 8;
constexpr u32 PART_WARPS = 16;
constexpr u32 PARTS_AT_ONCE = 8;
constexpr u32 FEATURES_MAX = 512;

struct Reduce {
    // Slots, and beside them bags: a feature's number above `sample_bits`, a sample's below. Sorted.
    const uint2* pairs;
    const Feature* features;
    const uint2* gradients;
    // Where the slots of each owner begin.
    const u32* starts;
    // Of each owner: [rank][capacity][dim].
    uint2* sums[RANKS_MAX];
    // [run][2][dim]: of the row that a run begins inside of, and of the one that it ends inside of.
    float4* parts;
    u32 ids;
    u32 features_count;
    u32 sample_bits;
    u32 stride;
    u32 dim;
    u32 capacity;
    u32 rank;
    u32 ranks;
};
static_assert(sizeof(Reduce) == 136);

// Writes the sum of a slot's row to its owner. `starts` is a copy of the parameter's.
__device__ inline void write_sum(const Reduce& p, const u32* starts, u32 slot, u32 column, float4 sum) {
    u32 owner = 0;
    while (owner + 1 < p.ranks && slot >= starts[owner + 1]) owner++;
    const u64 place = u64(p.rank) * p.capacity + slot - starts[owner];
    p.sums[owner][place * (p.dim / VECTOR) + column] = packed(sum);
}

// One warp a run; grid y over pieces of 128 columns.
extern "C" __global__ void __launch_bounds__(256) reduce_runs(const __grid_constant__ Reduce p) {
    __shared__ u32 columns[FEATURES_MAX], starts[RANKS_MAX];
    for (u32 feature = threadIdx.x; feature < p.features_count; feature += blockDim.x) {
        columns[feature] = p.features[feature].place / VECTOR;
    }
    if (threadIdx.x < p.ranks) starts[threadIdx.x] = p.starts[threadIdx.x];
    __syncthreads();
    const u32 lane = threadIdx.x % WARP, run = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    const u32 begin = run * RUN, end = min(begin + RUN, p.ids);
    if (begin >= p.ids) return;
    const u32 vectors = p.dim / VECTOR, column = blockIdx.y * WARP + lane;
    const bool active = column < vectors;
    float4* parts = p.parts + u64(run) * 2 * vectors + column;
    const u32 before = begin > 0 ? p.pairs[begin - 1].x : ~0u;
    const u32 after = end < p.ids ? p.pairs[end].x : ~0u;

    float4 sum = make_float4(0, 0, 0, 0);
    u32 current = ~0u;
    for (u32 first = begin; first < end; first += WARP) {
        const u32 own = first + lane;
        u32 slot = ~0u, place = 0;
        if (own < end) {
            const uint2 pair = p.pairs[own];
            slot = pair.x;
            const u32 sample = pair.y & ((1u << p.sample_bits) - 1);
            place = sample * (p.stride / VECTOR) + columns[pair.y >> p.sample_bits];
        }
        const u32 here = min(WARP, end - first);
        const u32 previous = __shfl_up_sync(ALL_LANES, slot, 1);
        const u32 heads = __ballot_sync(ALL_LANES, own < end && slot != (lane == 0 ? current : previous));
        for (u32 next = 0; next < here; next += REDUCE_AT_ONCE) {
            uint2 values[REDUCE_AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < REDUCE_AT_ONCE; i++) {
                const u32 source = __shfl_sync(ALL_LANES, place, next + i);
                values[i] = make_uint2(0, 0);
                if (active && next + i < here) values[i] = __ldcs(p.gradients + source + column);
            }
#pragma unroll
            for (u32 i = 0; i < REDUCE_AT_ONCE; i++) {
                if (heads >> (next + i) & 1) {
                    if (active && current != ~0u) {
                        if (current == before) {
                            parts[0] = sum;
                        } else {
                            write_sum(p, starts, current, column, sum);
                        }
                    }
                    sum = make_float4(0, 0, 0, 0);
                    current = __shfl_sync(ALL_LANES, slot, next + i);
                }
                add(sum, unpacked(values[i]));
            }
        }
    }
    if (!active) return;
    if (current == before) {
        parts[0] = sum;
    } else if (current == after) {
        parts[vectors] = sum;
    } else {
        write_sum(p, starts, current, column, sum);
    }
}

// The sum of the parts of runs `first`, `first + step` and so on, as long as they begin inside of the slot's row.
__device__ inline void add_parts(const Reduce& p, u32 slot, u64 first, u32 step, u32 column, bool active, float4& sum) {
    const u32 vectors = p.dim / VECTOR;
    for (bool goes_on = true; goes_on; first += PARTS_AT_ONCE * step) {
        // Parts are read before it is known whether they belong to the row, or one would wait for the other.
        float4 values[PARTS_AT_ONCE];
        u32 slots[PARTS_AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < PARTS_AT_ONCE; i++) {
            const u64 run = first + i * step, begin = run * RUN;
            slots[i] = begin < p.ids ? p.pairs[begin].x : ~0u;
            if (begin < p.ids && active) values[i] = p.parts[run * 2 * vectors + column];
        }
#pragma unroll
        for (u32 i = 0; i < PARTS_AT_ONCE; i++) {
            goes_on = slots[i] == slot;
            if (goes_on) add(sum, values[i]);
        }
    }
}

// Adds up the rows that go on from one run to the next. A warp looks at a run whether such a row begins there, and adds
// the parts of a short one, run by run. A long one is left to the whole block: each warp adds every PART_WARPS-th part,
// then the warps in order. Grid y over pieces of 128 columns.
extern "C" __global__ void __launch_bounds__(PART_WARPS * WARP) reduce_parts(const __grid_constant__ Reduce p) {
    __shared__ float4 sums[PART_WARPS][WARP];
    __shared__ u32 long_runs[PART_WARPS], starts[RANKS_MAX];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, run = blockIdx.x * PART_WARPS + warp;
    const u64 begin = u64(run) * RUN, end = begin + RUN;
    const u32 vectors = p.dim / VECTOR, column = blockIdx.y * WARP + lane;
    const bool active = column < vectors;
    if (threadIdx.x < p.ranks) starts[threadIdx.x] = p.starts[threadIdx.x];
    __syncthreads();
    bool is_long = false;
    if (end < p.ids) {
        const u32 slot = p.pairs[end].x;
        const bool begins = p.pairs[end - 1].x == slot && (begin == 0 || p.pairs[begin - 1].x != slot);
        const u64 far = begin + (PARTS_AT_ONCE + 1) * RUN;
        is_long = begins && far < p.ids && p.pairs[far].x == slot;
        if (begins && !is_long) {
            float4 sum = make_float4(0, 0, 0, 0);
            if (active) sum = p.parts[(u64(run) * 2 + 1) * vectors + column];
            add_parts(p, slot, run + 1, 1, column, active, sum);
            if (active) write_sum(p, starts, slot, column, sum);
        }
    }
    if (lane == 0) long_runs[warp] = is_long;
    __syncthreads();
    for (u32 other = 0; other < PART_WARPS; other++) {
        if (!long_runs[other]) continue;
        const u32 first = blockIdx.x * PART_WARPS + other;
        const u32 slot = p.pairs[(u64(first) + 1) * RUN].x;
        float4 sum = make_float4(0, 0, 0, 0);
        if (warp == 0 && active) sum = p.parts[(u64(first) * 2 + 1) * vectors + column];
        add_parts(p, slot, first + 1 + warp, PART_WARPS, column, active, sum);
        sums[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && active) {
            for (u32 next = 1; next < PART_WARPS; next++) add(sum, sums[next][lane]);
            write_sum(p, starts, slot, column, sum);
        }
        __syncthreads();
    }
}
