// Pools bags directly from tables on this GPU: per bag the sum or the mean of its rows, in their order.
//
// Reads the weights of every look-up and writes one element of the vectors' type per bag and column. Blocks are
// ordered by feature: at any time the whole GPU reads one table, so that many of its frequent rows are in the L1
// caches and most others in the L2 cache. For 65536 samples of dlrm (218 thousand distinct rows) that is 554 MB, 131
// us at the rate of a copy; measured: 154 us, and 190 if a warp takes a sample with all its features (H200).
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

// Where rows have a lane's four weights.
template <u32 DTYPE>
struct Rows {
    using Weights = typename FourWeights<DTYPE>::Type;

    const u8* first;
    u32 row_bytes;
    u32 last;

    __device__ Rows(const Part& part, u32 column)
        : first(reinterpret_cast<const u8*>(four_weights<DTYPE>(part.table, column))),
          row_bytes(part.feature.row_words * sizeof(float)), last(part.feature.rows - 1) {}

    // Ids out of range are counted when the batch is routed.
    __device__ Weights of(u32 id) const {
        return __ldg(reinterpret_cast<const Weights*>(first + u64(min(id, last)) * row_bytes));
    }
};

// One id per sample: the vectors are the rows.
template <u32 DTYPE, class T>
__device__ inline void copy_rows(const LookUp& p, const Part& part, T* output) {
    for (u32 column = part.column; column < part.feature.dim; column += part.columns) {
        const Rows<DTYPE> rows(part, column);
        for (u32 sample = part.first; sample < part.last; sample += LOOK_UPS_AT_ONCE) {
            typename FourWeights<DTYPE>::Type values[LOOK_UPS_AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < LOOK_UPS_AT_ONCE; i++) {
                // All-zero bits are zero in each type.
                values[i] = {};
                if (sample + i < part.there) values[i] = rows.of(__ldg(p.ids + part.feature.ids + sample + i));
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
    const auto bag_at = [&](u32 sample) {
        return sample < part.there ? bag_of(part.feature, p.offsets, sample) : Bag{0, 0};
    };
    // The ids of consecutive samples are consecutive.
    const Bag first_bag = bag_at(part.first);
    u32 end = first_bag.begin;
    if (part.first < part.there) {
        const Bag bag = bag_at(part.there - 1);
        end = bag.begin + bag.size;
    }
    for (u32 column = part.column; column < part.feature.dim; column += part.columns) {
        const Rows<DTYPE> rows(part, column);
        u32 sample = part.first, bag_begin = first_bag.begin, bag_end = bag_begin + first_bag.size;
        float4 sum = make_float4(0, 0, 0, 0);
        const auto close_bag = [&] {
            const float scale = bag_scale(part.feature, bag_end - bag_begin);
            if (scale != 1) sum = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
            stream4(output + u64(sample) * p.stride + column, sum);
            sum = make_float4(0, 0, 0, 0);
            bag_begin = bag_end;
        };
        for (u32 next = first_bag.begin; next < end; next += LOOK_UPS_AT_ONCE) {
            // All ids are loaded before the first row, or each row would wait for its own.
            u32 ids[LOOK_UPS_AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < LOOK_UPS_AT_ONCE; i++) ids[i] = next + i < end ? __ldg(p.ids + next + i) : 0;
            typename FourWeights<DTYPE>::Type values[LOOK_UPS_AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < LOOK_UPS_AT_ONCE; i++) values[i] = rows.of(ids[i]);
#pragma unroll
            for (u32 i = 0; i < LOOK_UPS_AT_ONCE; i++) {
                if (next + i >= end) break;
                while (next + i == bag_end) {
                    close_bag();
                    bag_end += bag_at(++sample).size;
                }
                add(sum, weights_from<DTYPE>(values[i]));
            }
        }
        for (close_bag(); ++sample < part.last;) {
            bag_end += bag_at(sample).size;
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
