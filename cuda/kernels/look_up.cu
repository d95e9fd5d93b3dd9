// The vectors of samples, straight out of tables that lie on this GPU.
//
// Reads 4 bytes an element, most of them out of the second-level cache, and writes one element of the vectors' type.
#include "element.cuh"

// Rows that a warp has in flight.
constexpr u32 LOOK_UPS_AT_ONCE = 4;

struct LookUp {
    const float* tables;
    const Feature* features;
    const u32* ids;
    // How many samples there are; vectors of those behind are zeros.
    const u32* samples_count;
    // [sample][stride]
    void* output;
    u32 samples;
    u32 features_count;
    u32 stride;
    u32 dim;
};
static_assert(sizeof(LookUp) == 56);

// One warp a sample.
template <class T>
__device__ inline void look_up(const LookUp& p) {
    const u32 lane = threadIdx.x % WARP, warps = gridDim.x * blockDim.x / WARP, samples_count = *p.samples_count;
    for (u32 sample = (blockIdx.x * blockDim.x + threadIdx.x) / WARP; sample < p.samples; sample += warps) {
        T* output = static_cast<T*>(p.output) + u64(sample) * p.stride;
        for (u32 first = 0; first < p.features_count; first += WARP) {
            u32 row = 0, place = 0;
            if (first + lane < p.features_count) {
                const Feature own = p.features[first + lane];
                // What routes the batch counts ids that are out of range.
                if (sample < samples_count) row = own.base + min(p.ids[own.ids + sample], own.rows - 1);
                place = own.place;
            }
            const u32 here = min(WARP, p.features_count - first);
            for (u32 begin = 0; begin < here; begin += LOOK_UPS_AT_ONCE) {
                u32 sources[LOOK_UPS_AT_ONCE], places[LOOK_UPS_AT_ONCE];
#pragma unroll
                for (u32 i = 0; i < LOOK_UPS_AT_ONCE; i++) {
                    sources[i] = __shfl_sync(ALL_LANES, row, begin + i);
                    places[i] = __shfl_sync(ALL_LANES, place, begin + i);
                }
                for (u32 column = lane * VECTOR; column < p.dim; column += WARP * VECTOR) {
                    float4 values[LOOK_UPS_AT_ONCE];
#pragma unroll
                    for (u32 i = 0; i < LOOK_UPS_AT_ONCE; i++) {
                        if (begin + i < here) values[i] = load4(p.tables + u64(sources[i]) * p.dim + column);
                    }
#pragma unroll
                    for (u32 i = 0; i < LOOK_UPS_AT_ONCE; i++) {
                        if (sample >= samples_count) values[i] = make_float4(0, 0, 0, 0);
                        if (begin + i < here) store4(output + places[i] + column, values[i]);
                    }
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) look_up_f32(const __grid_constant__ LookUp p) { look_up<float>(p); }

extern "C" __global__ void __launch_bounds__(256) look_up_bf16(const __grid_constant__ LookUp p) { look_up<bf16>(p); }

extern "C" __global__ void __launch_bounds__(256) look_up_f16(const __grid_constant__ LookUp p) { look_up<f16>(p); }
