// The vectors of samples, straight out of tables that lie on this GPU: of each bag the sum or the mean of its rows, in
// their order.
//
// Reads 4 bytes an element of every look-up and writes one element of the vectors' type for every bag. Blocks go by
// feature: at any time the whole GPU reads one table, of whose frequent rows many then lie in the first-level caches,
// and most others in the second.
#include "element.cuh"

// Rows that a group of lanes has in flight.
constexpr u32 LOOK_UPS_AT_ONCE = 8;

// A block's work: groups of `lanes` lanes take `each` samples of a feature each, from `first` on.
struct LookUpTask {
    u32 feature;
    u32 first;
    u32 lanes;
    u32 each;
};
static_assert(sizeof(LookUpTask) == 16);

struct LookUp {
    const float* tables;
    const Feature* features;
    const LookUpTask* tasks;
    const u32* ids;
    const u32* offsets;
    // How many samples there are; vectors of those behind are zeros.
    const u32* samples_count;
    // [sample][stride]
    void* output;
    u32 samples;
    u32 stride;
};
static_assert(sizeof(LookUp) == 64);

template <class T>
__device__ inline void look_up(const LookUp& p) {
    const LookUpTask task = p.tasks[blockIdx.x];
    const u32 first = task.first + threadIdx.x / task.lanes * task.each, lane = threadIdx.x % task.lanes;
    if (first >= p.samples) return;
    const Feature feature = p.features[task.feature];
    const u32 last = min(first + task.each, p.samples), there = min(last, *p.samples_count);
    const float* table = p.tables + feature.words;
    T* output = static_cast<T*>(p.output) + feature.place;
    // The ids of consecutive samples are consecutive.
    const auto bag_at = [&](u32 sample) { return sample < there ? bag_of(feature, p.offsets, sample) : Bag{0, 0}; };
    const Bag first_bag = bag_at(first);
    u32 end = first_bag.begin;
    if (first < there) {
        const Bag bag = bag_at(there - 1);
        end = bag.begin + bag.size;
    }
    for (u32 column = lane * VECTOR; column < feature.dim; column += task.lanes * VECTOR) {
        u32 sample = first;
        Bag bag = first_bag;
        float4 sum = make_float4(0, 0, 0, 0);
        const auto close_bag = [&] {
            const float scale = bag_scale(feature, bag.size);
            if (scale != 1) sum = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
            // The vectors are read by others next: rows shall stay in the cache before them.
            stream4(output + u64(sample) * p.stride + column, sum);
            sum = make_float4(0, 0, 0, 0);
        };
        for (u32 next = first_bag.begin; next < end; next += LOOK_UPS_AT_ONCE) {
            float4 values[LOOK_UPS_AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < LOOK_UPS_AT_ONCE; i++) {
                if (next + i >= end) continue;
                // What routes the batch counts ids that are out of range.
                const u32 row = min(__ldg(p.ids + next + i), feature.rows - 1);
                values[i] = __ldg(reinterpret_cast<const float4*>(table + u64(row) * feature.row_words + column));
            }
#pragma unroll
            for (u32 i = 0; i < LOOK_UPS_AT_ONCE; i++) {
                if (next + i >= end) continue;
                while (next + i == bag.begin + bag.size) {
                    close_bag();
                    bag = bag_at(++sample);
                }
                add(sum, values[i]);
            }
        }
        for (close_bag(); ++sample < last;) {
            bag = bag_at(sample);
            close_bag();
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) look_up_f32(const __grid_constant__ LookUp p) { look_up<float>(p); }

extern "C" __global__ void __launch_bounds__(256) look_up_bf16(const __grid_constant__ LookUp p) { look_up<bf16>(p); }
