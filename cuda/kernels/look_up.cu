// Pools bags directly from tables on this GPU: per bag the sum or the mean of its rows, in their order.
//
// Reads the weights of every look-up and writes one element of the vectors' type per bag and column. Blocks are
// ordered by feature: at any time the whole GPU reads one table, so that many of its frequent rows are in the L1
// caches and most others in the L2 cache. For 65536 samples of dlrm (218 thousand distinct rows) that is 554 MB, 131
// us at the rate of a copy; measured: 154 us, and 190 if a warp takes a sample with all its features (H200).
//
// Columns that are pooled by factors have kernels of their own, which read 4 bytes more per look-up: so the others need
// neither branches nor registers for factors. Each product is rounded before it is added, as on the CPU.
//
// Rows that attention reads stay separate: they are copied position by position, by kernels of their own, which read a
// row and an id per look-up, and write each row to its part of a key.
//
// Vectors that only products in fp8 read are written as these read them: in fp8, row by row and transposed. A block
// collects the vectors of some samples in shared memory, where it transposes them.
#include "dtype.cuh"
#include "fp8.cuh"

constexpr u32 LOOK_UP_THREADS = 256;
// Rows that a group of lanes has in flight.
constexpr u32 LOOK_UPS_AT_ONCE = 8;

// A block's work: each group of `lanes` lanes takes `each` samples of one feature, starting at `first`. In fp8 the
// samples of a block are a multiple of 16, and `each` is at most SAMPLES_EACH_MAX.
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
    // Of ids in columns that are pooled by factors.
    const float* factors;
    const u32* offsets;
    // The number of samples; vectors after them become zeros.
    const u32* samples_count;
    // [sample][stride]
    void* output;
    // Where rows that are separate are written, as the features say.
    void* keys;
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

// Vectors of a type of elements.
template <class T>
struct Elements {
    // The first vector of the feature.
    T* vectors;
    u32 stride;

    __device__ void put(u32 sample, u32 column, float4 values) {
        // The vectors are read next by other blocks, so they are streamed past the cache, which keeps the rows.
        stream4(vectors + u64(sample) * stride + column, values);
    }
};

constexpr u32 SAMPLES_EACH_MAX = 16;
// Four columns each: of all samples of a block, or turned, in rows of one column with one word more.
constexpr u32 TILE_WORDS = LOOK_UP_THREADS * SAMPLES_EACH_MAX + WARP * VECTOR;

struct LookUpFp8 {
    // With the rows in fp8 as output.
    LookUp look_up;
    // [column][turned_stride]
    u8* turned;
    Fp8Scaling* scaling;
    // The samples rounded up to a multiple of 16, or more.
    u32 turned_stride;
    // Whether a backward pass follows, which needs the transposed copy and the largest magnitude.
    u32 learns;
};

// Vectors in fp8. They are rounded to bf16 first, so that they are those that `fp8_quantize` makes of vectors in bf16.
struct InFp8 {
    // The first vector of the feature.
    u8* rows;
    // [sample][lane], the lanes in another order in every second sample, so that four threads that read two samples
    // each use different banks.
    u32* tile;
    u32 stride;
    // Of the block.
    u32 first;
    u32 lanes;
    float scale;
    float largest;

    __device__ u32& word(u32 sample, u32 lane) const {
        return tile[sample * lanes + (lane ^ ((sample / 2 % 4 * 8) & (lanes - 1)))];
    }

    __device__ void put(u32 sample, u32 column, float4 values) {
        const float4 rounded = unpacked(packed(values));
        const float scaled[VECTOR] = {rounded.x * scale, rounded.y * scale, rounded.z * scale, rounded.w * scale};
#pragma unroll
        for (u32 k = 0; k < VECTOR; k++) largest = fmaxf(largest, fabsf(scaled[k]));
        const u32 bytes = packed_fp8(scaled[0], scaled[1], scaled[2], scaled[3]);
        __stcs(reinterpret_cast<u32*>(rows + u64(sample) * stride + column), bytes);
        word(sample - first, column / VECTOR) = bytes;
    }
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
template <u32 DTYPE, class Output>
__device__ inline void copy_rows(const LookUp& p, const Part& part, Output& output) {
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
                if (sample + i < part.last) output.put(sample + i, column, weights_from<DTYPE>(values[i]));
            }
        }
    }
}

__device__ inline float4 times(float4 row, float factor) {
    return make_float4(__fmul_rn(row.x, factor), __fmul_rn(row.y, factor), __fmul_rn(row.z, factor),
                       __fmul_rn(row.w, factor));
}

template <u32 DTYPE, bool FACTORS, class Output>
__device__ inline void pool_bags(const LookUp& p, const Part& part, Output& output) {
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
            const float scale = FACTORS ? 1 : bag_scale(part.feature.pooling, bag_end - bag_begin);
            if (scale != 1) sum = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
            output.put(sample, column, sum);
            sum = make_float4(0, 0, 0, 0);
            bag_begin = bag_end;
        };
        for (u32 next = first_bag.begin; next < end; next += LOOK_UPS_AT_ONCE) {
            // All ids are loaded before the first row, or each row would wait for its own.
            u32 ids[LOOK_UPS_AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < LOOK_UPS_AT_ONCE; i++) ids[i] = next + i < end ? __ldg(p.ids + next + i) : 0;
            float factors[FACTORS ? LOOK_UPS_AT_ONCE : 1];
            if constexpr (FACTORS) {
#pragma unroll
                for (u32 i = 0; i < LOOK_UPS_AT_ONCE; i++) {
                    const float* const of_column = p.factors + part.feature.factors;
                    factors[i] = next + i < end ? __ldg(of_column + (next + i - part.feature.ids)) : 0;
                }
            }
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
                const float4 row = weights_from<DTYPE>(values[i]);
                if constexpr (FACTORS) {
                    add(sum, times(row, factors[i]));
                } else {
                    add(sum, row);
                }
            }
        }
        for (close_bag(); ++sample < part.last;) {
            bag_end += bag_at(sample).size;
            close_bag();
        }
    }
}

template <u32 DTYPE, bool FACTORS, class Output>
__device__ inline void look_up(const LookUp& p, const LookUpTask& task, const Feature& feature, Output& output) {
    const u32 first = task.first + threadIdx.x / task.lanes * task.each;
    if (first >= p.samples) return;
    const u32 last = min(first + task.each, p.samples), there = min(last, *p.samples_count);
    const u32 column = threadIdx.x % task.lanes * VECTOR, columns = task.lanes * VECTOR;
    const Part part = {feature, p.tables + feature.words, column, columns, first, last, there};
    if (!FACTORS && feature.offsets == FIXED && feature.hotness == 1) {
        copy_rows<DTYPE>(p, part, output);
    } else {
        pool_bags<DTYPE, FACTORS>(p, part, output);
    }
}

// Copies the rows of the positions from `first` on that are in the batch.
template <class T, u32 DTYPE>
__device__ inline void copy_keys(const LookUp& p) {
    const LookUpTask task = p.tasks[blockIdx.x];
    const Feature feature = p.features[task.feature];
    const u32 samples = *p.samples_count;
    const u32 count = feature.offsets == FIXED ? samples * feature.hotness : p.offsets[feature.offsets + samples];
    const u32 first = task.first + threadIdx.x / task.lanes * task.each, there = min(first + task.each, count);
    if (first >= there) return;
    const u32 column = threadIdx.x % task.lanes * VECTOR, columns = task.lanes * VECTOR;
    const Part part = {feature, p.tables + feature.words, column, columns, first, there, there};
    Elements<T> output = {static_cast<T*>(p.keys) + feature.vector_offset, feature.key_stride};
    copy_rows<DTYPE>(p, part, output);
}

// Writes the transposed copy of a block's vectors. A thread turns up to four times a square of four samples and four
// columns; all threads have read theirs before the first writes its own.
__device__ inline void write_turned(const LookUpFp8& p, const LookUpTask& task, const Feature& feature,
                                    const InFp8& from) {
    constexpr u32 TIMES = SAMPLES_EACH_MAX / 4;
    const u32 lanes = task.lanes, words = LOOK_UP_THREADS / lanes * task.each / 4, squares = words * lanes;
    // A warp takes four words of eight lanes, or more words if the task has fewer lanes. With eight lanes, both reads
    // and writes use all banks.
    const u32 across = min(lanes, 8u), of_warp = WARP / across;
    u32 turned[TIMES][VECTOR];
    const auto place = [&](u32 square, u32& word, u32& lane) {
        const u32 part = square / WARP, within = square % WARP, parts = lanes / across;
        lane = part % parts * across + within % across;
        word = part / parts * of_warp + within / across;
    };
#pragma unroll
    for (u32 time = 0; time < TIMES; time++) {
        const u32 square = time * LOOK_UP_THREADS + threadIdx.x;
        if (square >= squares) continue;
        u32 word, lane, bytes[4];
        place(square, word, lane);
#pragma unroll
        for (u32 i = 0; i < 4; i++) bytes[i] = from.word(turned_sample(word) + i / 2 * TURNED_FAR + i % 2, lane);
#pragma unroll
        for (u32 k = 0; k < VECTOR; k++) {
            const u32 pick = k | (k + 4) << 4;
            const u32 low = __byte_perm(bytes[0], bytes[1], pick), high = __byte_perm(bytes[2], bytes[3], pick);
            turned[time][k] = __byte_perm(low, high, 0x5410);
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 time = 0; time < TIMES; time++) {
        const u32 square = time * LOOK_UP_THREADS + threadIdx.x;
        if (square >= squares) continue;
        u32 word, lane;
        place(square, word, lane);
#pragma unroll
        for (u32 k = 0; k < VECTOR; k++) from.tile[(lane * VECTOR + k) * (words + 1) + word] = turned[time][k];
    }
    __syncthreads();
    for (u32 column = threadIdx.x / WARP; column < feature.dim; column += LOOK_UP_THREADS / WARP) {
        u8* const row = p.turned + u64(feature.vector_offset + column) * p.turned_stride;
        for (u32 word = threadIdx.x % WARP; word < words; word += WARP) {
            const u32 sample = task.first + word * 4;
            if (sample >= p.turned_stride) break;
            *reinterpret_cast<u32*>(row + sample) = from.tile[column * (words + 1) + word];
        }
    }
}

template <u32 DTYPE, bool FACTORS>
__device__ inline void look_up_fp8(const LookUpFp8& p) {
    __shared__ u32 tile[TILE_WORDS];
    const LookUpTask task = p.look_up.tasks[blockIdx.x];
    const Feature feature = p.look_up.features[task.feature];
    u8* const rows = static_cast<u8*>(p.look_up.output) + feature.vector_offset;
    InFp8 output = {rows, tile, p.look_up.stride, task.first, task.lanes, p.scaling->scale, 0};
    if (task.first + LOOK_UP_THREADS / task.lanes * task.each > p.look_up.samples) {
        // The transposed copy has zeros after the last sample.
        for (u32 word = threadIdx.x; word < TILE_WORDS; word += LOOK_UP_THREADS) tile[word] = 0;
        __syncthreads();
    }
    look_up<DTYPE, FACTORS>(p.look_up, task, feature, output);
    if (p.learns == 0) return;
    // Contains a barrier of the block.
    observe_in_block<LOOK_UP_THREADS>(p.scaling, output.largest);
    write_turned(p, task, feature, output);
}

// One kernel per type of table and type of vector: in one kernel for all, every type would use the registers of the
// largest, which made dlrm's look-ups 30% slower.
#define KERNEL(NAME, VECTORS, ROWS, T, DTYPE, FACTORS, BLOCKS)                               \
    extern "C" __global__ void __launch_bounds__(LOOK_UP_THREADS, BLOCKS)                    \
        NAME##_##VECTORS##_##ROWS(const __grid_constant__ LookUp p) {                        \
        const LookUpTask task = p.tasks[blockIdx.x];                                         \
        const Feature feature = p.features[task.feature];                                    \
        Elements<T> output = {static_cast<T*>(p.output) + feature.vector_offset, p.stride};  \
        look_up<DTYPE, FACTORS>(p, task, feature, output);                                   \
    }
#define KERNELS_BY(NAME, VECTORS, T, FACTORS, BLOCKS)            \
    KERNEL(NAME, VECTORS, f32, T, FP32, FACTORS, BLOCKS)         \
    KERNEL(NAME, VECTORS, bf16, T, BF16, FACTORS, BLOCKS)        \
    KERNEL(NAME, VECTORS, f16, T, FP16, FACTORS, BLOCKS)
#define KERNEL_OF_KEYS(VECTORS, ROWS, T, DTYPE)                                     \
    extern "C" __global__ void __launch_bounds__(LOOK_UP_THREADS, 4)                \
        look_up_keys_##VECTORS##_##ROWS(const __grid_constant__ LookUp p) {         \
        copy_keys<T, DTYPE>(p);                                                     \
    }
#define KERNELS(VECTORS, T)                           \
    KERNELS_BY(look_up, VECTORS, T, false, 4)         \
    KERNELS_BY(look_up_factors, VECTORS, T, true, 3)  \
    KERNEL_OF_KEYS(VECTORS, f32, T, FP32)             \
    KERNEL_OF_KEYS(VECTORS, bf16, T, BF16)            \
    KERNEL_OF_KEYS(VECTORS, f16, T, FP16)

KERNELS(f32, float)
KERNELS(bf16, bf16)
KERNELS(f16, f16)

#define KERNEL_FP8(NAME, ROWS, DTYPE, FACTORS, BLOCKS)                      \
    extern "C" __global__ void __launch_bounds__(LOOK_UP_THREADS, BLOCKS)   \
        NAME##_##ROWS(const __grid_constant__ LookUpFp8 p) {                \
        look_up_fp8<DTYPE, FACTORS>(p);                                     \
    }
#define KERNELS_FP8(ROWS, DTYPE)                                \
    KERNEL_FP8(look_up_fp8, ROWS, DTYPE, false, 4)              \
    KERNEL_FP8(look_up_fp8_factors, ROWS, DTYPE, true, 3)

KERNELS_FP8(f32, FP32)
KERNELS_FP8(bf16, BF16)
KERNELS_FP8(f16, FP16)
