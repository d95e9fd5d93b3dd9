// Pools bags directly from tables on this GPU: per bag the sum or the mean of its rows, in their order.
//
// Reads the weights of every look-up and writes one element of the vectors' type per bag and column. Blocks are
// ordered by feature: at any time the whole GPU reads one table, so that many of its frequent rows are in the L1
// caches and most others in the L2 cache. For 65536 samples of dlrm (218 thousand distinct rows) that is 554 MB, 131
// us at the rate of a copy; measured: 154 us, and 190 if a warp takes a sample with all its features (H200). If the
// interaction gathers the rows itself, vectors need not be written, but that took 165 and 338 us instead of 134 and
// 256, forward and backward.
#include "dtype.cuh"

// Rows that a group of lanes has in flight.
constexpr u32 LOOK_UPS_AT_ONCE = 8;

// A block's work: each group of `lanes` lanes takes `each` samples of one feature, starting at `first`.
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
    // The number of samples; vectors after them become zeros.
    const u32* samples_count;
    // [sample][stride]
    void* output;
    u32 samples;
    u32 stride;
};
static_assert(sizeof(LookUp) == 64);

// A group's share of a task: the lane's first column, and the samples from `first` to before `last`, of which those
// before `there` are in the batch.
struct Part {
    Feature feature;
    const float* table;
    u32 column;
    u32 columns;
    u32 first;
    u32 last;
    u32 there;
};

// Four weights of the row of an id.
template <u32 DTYPE>
__device__ inline typename FourWeights<DTYPE>::Type row4(const LookUp& p, const Part& part, u32 at, u32 column) {
    // Ids out of range are counted when the batch is routed.
    const u32 row = min(__ldg(p.ids + at), part.feature.rows - 1);
    return __ldg(four_weights<DTYPE>(part.table + u64(row) * part.feature.row_words, column));
}

// One id per sample: the vectors are the rows.
template <u32 DTYPE, class T>
__device__ inline void copy_rows(const LookUp& p, const Part& part, T* output) {
    for (u32 column = part.column; column < part.feature.dim; column += part.columns) {
        for (u32 sample = part.first; sample < part.last; sample += LOOK_UPS_AT_ONCE) {
            typename FourWeights<DTYPE>::Type values[LOOK_UPS_AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < LOOK_UPS_AT_ONCE; i++) {
                // All-zero bits are zero in each type.
                values[i] = {};
                if (sample + i < part.there) values[i] = row4<DTYPE>(p, part, part.feature.ids + sample + i, column);
            }
#pragma unroll
            for (u32 i = 0; i < LOOK_UPS_AT_ONCE; i++) {
                // The vectors are read next by other blocks, so they are streamed past the cache, which keeps the
                // rows.
                if (sample + i < part.last) {
                    stream4(output + u64(sample + i) * p.stride + column, weights_from<DTYPE>(values[i]));
                }
            }
        }
    }
}

template <u32 DTYPE, class T>
__device__ inline void pool_bags(const LookUp& p, const Part& part, T* output) {
    // The ids of consecutive samples are consecutive.
    const auto bag_at = [&](u32 sample) {
        return sample < part.there ? bag_of(part.feature, p.offsets, sample) : Bag{0, 0};
    };
    const Bag first_bag = bag_at(part.first);
    u32 end = first_bag.begin;
    if (part.first < part.there) {
        const Bag bag = bag_at(part.there - 1);
        end = bag.begin + bag.size;
    }
    for (u32 column = part.column; column < part.feature.dim; column += part.columns) {
        u32 sample = part.first;
        Bag bag = first_bag;
        float4 sum = make_float4(0, 0, 0, 0);
        const auto close_bag = [&] {
            const float scale = bag_scale(part.feature, bag.size);
            if (scale != 1) sum = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
            stream4(output + u64(sample) * p.stride + column, sum);
            sum = make_float4(0, 0, 0, 0);
        };
        for (u32 next = first_bag.begin; next < end; next += LOOK_UPS_AT_ONCE) {
            typename FourWeights<DTYPE>::Type values[LOOK_UPS_AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < LOOK_UPS_AT_ONCE; i++) {
                if (next + i < end) values[i] = row4<DTYPE>(p, part, next + i, column);
            }
#pragma unroll
            for (u32 i = 0; i < LOOK_UPS_AT_ONCE; i++) {
                if (next + i >= end) continue;
                while (next + i == bag.begin + bag.size) {
                    close_bag();
                    bag = bag_at(++sample);
                }
                add(sum, weights_from<DTYPE>(values[i]));
            }
        }
        for (close_bag(); ++sample < part.last;) {
            bag = bag_at(sample);
            close_bag();
        }
    }
}

template <u32 DTYPE, class T>
__device__ inline void look_up(const LookUp& p) {
    const LookUpTask task = p.tasks[blockIdx.x];
    const u32 first = task.first + threadIdx.x / task.lanes * task.each;
    if (first >= p.samples) return;
    const u32 last = min(first + task.each, p.samples), there = min(last, *p.samples_count);
    const Feature feature = p.features[task.feature];
    const u32 column = threadIdx.x % task.lanes * VECTOR, columns = task.lanes * VECTOR;
    const Part part = {feature, p.tables + feature.words, column, columns, first, last, there};
    T* output = static_cast<T*>(p.output) + feature.vector_offset;
    if (feature.offsets == FIXED && feature.hotness == 1) {
        copy_rows<DTYPE>(p, part, output);
    } else {
        pool_bags<DTYPE>(p, part, output);
    }
}

// One kernel per type of table and type of vector: in one kernel for all, every type would use the registers of the
// largest, which made dlrm's look-ups 30% slower.
#define KERNEL(VECTORS, ROWS, T, DTYPE)                                                                          \
    extern "C" __global__ void __launch_bounds__(256, 4) look_up_##VECTORS##_##ROWS(const __grid_constant__ LookUp p) { \
        look_up<DTYPE, T>(p);                                                                                    \
    }
#define KERNELS(VECTORS, T)          \
    KERNEL(VECTORS, f32, T, FP32)    \
    KERNEL(VECTORS, bf16, T, BF16)   \
    KERNEL(VECTORS, f16, T, FP16)

KERNELS(f32, float)
KERNELS(bf16, bf16)
KERNELS(f16, f16)
