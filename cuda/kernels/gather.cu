// The vectors of a rank's samples, out of its distinct rows.
//
// Writes 2 bytes an element and reads as many, most of them out of the second-level cache: distinct rows are few. Of
// 16384 samples of dlrm that is 129 MB: 35 us at the rate of copies of random rows, 37 measured (H200).
#include "common.cuh"

// Rows that a warp has in flight.
constexpr u32 GATHER_AT_ONCE = 8;

struct Gather {
    const u32* slots;
    const Feature* features;
    const uint2* landing;
    uint2* output;
    u32 samples;
    u32 features_count;
    u32 stride;
    u32 dim;
};
static_assert(sizeof(Gather) == 48);

// One warp a sample.
extern "C" __global__ void __launch_bounds__(256) gather(const __grid_constant__ Gather p) {
    const u32 lane = threadIdx.x % WARP, vectors = p.dim / VECTOR;
    const u32 warps = gridDim.x * blockDim.x / WARP;
    for (u32 sample = (blockIdx.x * blockDim.x + threadIdx.x) / WARP; sample < p.samples; sample += warps) {
        uint2* output = p.output + u64(sample) * p.stride / VECTOR;
        for (u32 first = 0; first < p.features_count; first += WARP) {
            u32 slot = 0, place = 0;
            if (first + lane < p.features_count) {
                const Feature own = p.features[first + lane];
                slot = p.slots[own.ids + sample];
                place = own.place / VECTOR;
            }
            const u32 here = min(WARP, p.features_count - first);
            for (u32 begin = 0; begin < here; begin += GATHER_AT_ONCE) {
                u32 sources[GATHER_AT_ONCE], places[GATHER_AT_ONCE];
#pragma unroll
                for (u32 i = 0; i < GATHER_AT_ONCE; i++) {
                    sources[i] = __shfl_sync(ALL_LANES, slot, begin + i);
                    places[i] = __shfl_sync(ALL_LANES, place, begin + i);
                }
                for (u32 column = lane; column < vectors; column += WARP) {
                    uint2 values[GATHER_AT_ONCE];
#pragma unroll
                    for (u32 i = 0; i < GATHER_AT_ONCE; i++) {
                        if (begin + i < here) values[i] = __ldcg(p.landing + u64(sources[i]) * vectors + column);
                    }
#pragma unroll
                    for (u32 i = 0; i < GATHER_AT_ONCE; i++) {
                        // The vectors are read by others next: distinct rows shall stay in the cache before them.
                        if (begin + i < here) __stcs(output + places[i] + column, values[i]);
                    }
                }
            }
        }
    }
}
