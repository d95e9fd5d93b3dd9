// Gradient descent on tables that lie on this GPU: of each distinct row the sum over its bags, in their order, and at
// once the update.
//
// Reads an element of every look-up's gradient, and reads and writes 4 bytes an element of every distinct row. The cut
// into runs, and what becomes of rows that go on from one run to the next, are as in `reduce.cu`.
#include "element.cuh"

constexpr u32 RUN = 64;
constexpr u32 REDUCE_AT_ONCE = 8;
// Most blocks of the second kernel find nothing to do: with sixteen warps each, of 65536 samples of dlrm they take 276 us
// in place of 50 (H200).
constexpr u32 PART_WARPS = 4;
constexpr u32 PARTS_AT_ONCE = 4;
constexpr u32 FEATURES_MAX = 512;

struct Descend {
    // Slots, and beside them bags: a feature's number above `sample_bits`, a sample's below. Sorted.
    const uint2* pairs;
    // How many they are.
    const u32* count;
    // Of each slot.
    const u32* rows;
    const Feature* features;
    // [sample][stride]
    const void* gradients;
    // One a table.
    const Rate* rates;
    // Nothing is written where this is not 0.
    const u32* stop;
    // [row of all tables][dim]
    float* table;
    // [run][2][dim]: of the row that a run begins inside of, and of the one that it ends inside of.
    float4* parts;
    // There is room for.
    u32 ids;
    u32 features_count;
    u32 sample_bits;
    u32 stride;
    u32 dim;
    u32 reserved;
};
static_assert(sizeof(Descend) == 96);

// `w -= rate g`, rounded as on the CPU: no fused multiplication and subtraction.
__device__ inline void descend(const Descend& p, u32 slot, float rate, u32 column, float4 sum) {
    float* weights = p.table + u64(p.rows[slot]) * p.dim + column * VECTOR;
    float4 weight = load4(weights);
    weight.x = __fsub_rn(weight.x, __fmul_rn(rate, sum.x));
    weight.y = __fsub_rn(weight.y, __fmul_rn(rate, sum.y));
    weight.z = __fsub_rn(weight.z, __fmul_rn(rate, sum.z));
    weight.w = __fsub_rn(weight.w, __fmul_rn(rate, sum.w));
    store4(weights, weight);
}

template <class T>
__device__ inline void descend_runs(const Descend& p) {
    __shared__ u32 columns[FEATURES_MAX];
    __shared__ float rates[FEATURES_MAX];
    for (u32 feature = threadIdx.x; feature < p.features_count; feature += blockDim.x) {
        columns[feature] = p.features[feature].place;
        rates[feature] = p.rates[p.features[feature].table].rate;
    }
    __syncthreads();
    const u32 lane = threadIdx.x % WARP, run = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    const u32 begin = run * RUN, end = min(begin + RUN, *p.count);
    if (begin >= *p.count || *p.stop != 0) return;
    const T* gradients = static_cast<const T*>(p.gradients);
    const u32 vectors = p.dim / VECTOR, column = blockIdx.y * WARP + lane;
    const bool active = column < vectors;
    float4* parts = p.parts + u64(run) * 2 * vectors + column;
    const u32 before = begin > 0 ? p.pairs[begin - 1].x : ~0u;
    const u32 after = end < *p.count ? p.pairs[end].x : ~0u;

    float4 sum = make_float4(0, 0, 0, 0);
    float rate = 0;
    u32 current = ~0u;
    for (u32 first = begin; first < end; first += WARP) {
        const u32 own = first + lane;
        u32 slot = ~0u;
        float own_rate = 0;
        u64 place = 0;
        if (own < end) {
            const uint2 pair = p.pairs[own];
            const u32 bag = pair.y, feature = bag >> p.sample_bits;
            slot = pair.x;
            own_rate = rates[feature];
            place = u64(bag & ((1u << p.sample_bits) - 1)) * p.stride + columns[feature];
        }
        const u32 here = min(WARP, end - first);
        for (u32 next = 0; next < here; next += REDUCE_AT_ONCE) {
            float4 values[REDUCE_AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < REDUCE_AT_ONCE; i++) {
                const u64 source = __shfl_sync(ALL_LANES, place, next + i);
                if (active && next + i < here) values[i] = load4(gradients + source + column * VECTOR);
            }
#pragma unroll
            for (u32 i = 0; i < REDUCE_AT_ONCE; i++) {
                if (next + i >= here) break;
                const u32 of = __shfl_sync(ALL_LANES, slot, next + i);
                const float its_rate = __shfl_sync(ALL_LANES, own_rate, next + i);
                if (of != current) {
                    if (active && current != ~0u) {
                        if (current == before) {
                            parts[0] = sum;
                        } else {
                            descend(p, current, rate, column, sum);
                        }
                    }
                    sum = make_float4(0, 0, 0, 0);
                    current = of;
                    rate = its_rate;
                }
                if (active) add(sum, values[i]);
            }
        }
    }
    if (!active) return;
    if (current == before) {
        parts[0] = sum;
    } else if (current == after) {
        parts[vectors] = sum;
    } else {
        descend(p, current, rate, column, sum);
    }
}

// One warp a run; grid y over pieces of 128 columns.
extern "C" __global__ void __launch_bounds__(256) descend_runs_f32(const __grid_constant__ Descend p) {
    descend_runs<float>(p);
}

extern "C" __global__ void __launch_bounds__(256) descend_runs_bf16(const __grid_constant__ Descend p) {
    descend_runs<bf16>(p);
}

// The rows that go on from one run to the next: one block a run that such a row begins in, each warp every
// PART_WARPS-th of the runs that follow, then the warps in order. Grid y over pieces of 128 columns.
extern "C" __global__ void __launch_bounds__(PART_WARPS * WARP) descend_parts(const __grid_constant__ Descend p) {
    __shared__ float4 sums[PART_WARPS][WARP];
    const u32 run = blockIdx.x, begin = run * RUN, end = begin + RUN;
    if (end >= *p.count || *p.stop != 0) return;
    const u32 slot = p.pairs[end].x;
    if (p.pairs[end - 1].x != slot || (begin > 0 && p.pairs[begin - 1].x == slot)) return;
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
            belongs[i] = other * RUN < *p.count && p.pairs[other * RUN].x == slot;
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
        descend(p, slot, p.rates[p.features[p.pairs[end].y >> p.sample_bits].table].rate, column, sum);
    }
}
