// The gradients of a rank's distinct rows: of each row the sum over its bags, in their order.
//
// Reads 2 bytes an element of every look-up and writes 2 of every distinct row. Warps take runs of equal length of the
// sorted pairs, whatever rows they belong to, so that a row of which there are thousands is as much work as any other.
// Sums that do not begin or end in a run go to `parts` in f32; a second kernel adds them up, run by run. Which sums
// these are follows from the pairs alone, so the bits are the same each time.
#include "common.cuh"

constexpr u32 RUN = 64;
constexpr u32 REDUCE_AT_ONCE = 8;
constexpr u32 PART_WARPS = 4;
constexpr u32 PARTS_AT_ONCE = 4;
constexpr u32 FEATURES_MAX = 512;

struct Reduce {
    // Sorted by slot.
    const u32* slots;
    // A feature's number above `sample_bits`, a sample's below.
    const u32* bags;
    const Feature* features;
    const uint2* gradients;
    // [slot][dim]
    uint2* sums;
    // [run][2][dim]: of the row that a run begins inside of, and of the one that it ends inside of.
    float4* parts;
    u32 ids;
    u32 features_count;
    u32 sample_bits;
    u32 stride;
    u32 dim;
    u32 reserved;
};
static_assert(sizeof(Reduce) == 72);

// One warp a run; grid y over pieces of 128 columns.
extern "C" __global__ void __launch_bounds__(256) reduce_runs(const __grid_constant__ Reduce p) {
    __shared__ u32 columns[FEATURES_MAX];
    for (u32 feature = threadIdx.x; feature < p.features_count; feature += blockDim.x) {
        columns[feature] = p.features[feature].column / VECTOR;
    }
    __syncthreads();
    const u32 lane = threadIdx.x % WARP, run = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    const u32 begin = run * RUN, end = min(begin + RUN, p.ids);
    if (begin >= p.ids) return;
    const u32 vectors = p.dim / VECTOR, column = blockIdx.y * WARP + lane;
    const bool active = column < vectors;
    float4* parts = p.parts + u64(run) * 2 * vectors + column;
    const u32 before = begin > 0 ? p.slots[begin - 1] : ~0u;
    const u32 after = end < p.ids ? p.slots[end] : ~0u;

    float4 sum = make_float4(0, 0, 0, 0);
    u32 current = ~0u;
    for (u32 first = begin; first < end; first += WARP) {
        const u32 own = first + lane;
        u32 slot = ~0u, place = 0;
        if (own < end) {
            const u32 bag = p.bags[own];
            slot = p.slots[own];
            const u32 sample = bag & ((1u << p.sample_bits) - 1);
            place = sample * (p.stride / VECTOR) + columns[bag >> p.sample_bits];
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
                            p.sums[u64(current) * vectors + column] = packed(sum);
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
        p.sums[u64(current) * vectors + column] = packed(sum);
    }
}

// Adds up the rows that go on from one run to the next: one block a run that such a row begins in, each warp every
// PART_WARPS-th of the runs that follow, then the warps in order. Grid y over pieces of 128 columns.
extern "C" __global__ void __launch_bounds__(PART_WARPS * WARP) reduce_parts(const __grid_constant__ Reduce p) {
    __shared__ float4 sums[PART_WARPS][WARP];
    const u32 run = blockIdx.x, begin = run * RUN, end = begin + RUN;
    if (end >= p.ids) return;
    const u32 slot = p.slots[end];
    if (p.slots[end - 1] != slot || (begin > 0 && p.slots[begin - 1] == slot)) return;
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 vectors = p.dim / VECTOR, column = blockIdx.y * WARP + lane;
    const bool active = column < vectors;
    const float4* parts = p.parts + column;
    float4 sum = make_float4(0, 0, 0, 0);
    if (warp == 0 && active) sum = parts[(u64(run) * 2 + 1) * vectors];
    bool goes_on = true;
    for (u32 first = run + 1 + warp; goes_on; first += PARTS_AT_ONCE * PART_WARPS) {
        float4 values[PARTS_AT_ONCE];
        bool belongs[PARTS_AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < PARTS_AT_ONCE; i++) {
            const u64 other = first + i * PART_WARPS;
            belongs[i] = other * RUN < p.ids && p.slots[other * RUN] == slot;
            if (belongs[i] && active) values[i] = parts[other * 2 * vectors];
        }
#pragma unroll
        for (u32 i = 0; i < PARTS_AT_ONCE; i++) {
            if (belongs[i] && active) add(sum, values[i]);
        }
        goes_on = belongs[PARTS_AT_ONCE - 1];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && active) {
        for (u32 other = 1; other < PART_WARPS; other++) add(sum, sums[other][lane]);
        p.sums[u64(slot) * vectors + column] = packed(sum);
    }
}
