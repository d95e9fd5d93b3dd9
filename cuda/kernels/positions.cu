// The learned vectors of positions: they are added to keys before attention, and the gradients with respect to them are
// the sums of those with respect to keys, position by position. Positions are jagged, as in `attention.cu`.
//
// Forward: reads and writes the keys. Backward: reads the gradients with respect to keys, and writes a vector of sums
// per slice of the samples, which the host adds up in order. For 16384 samples of 50 positions with keys of 64 bf16
// that is 210 MB and 105 MB, 66 us at 4.8 TB/s.
#include "element.cuh"

constexpr u32 POSITIONS_THREADS = 256;

struct Positions {
    // [position][width]
    void* keys;
    // With respect to the keys, as attention writes them.
    const void* key_gradients;
    // Where each sample's positions start; where the last one's end.
    const u32* offsets;
    // The number of samples; later ones have no positions.
    const u32* samples_count;
    // [vector][width]
    const void* vectors;
    // [slice][columns]: sums of the gradients with respect to the vectors.
    float* parts;
    u32 samples;
    u32 width;
    // The most positions of a sample: there are as many vectors.
    u32 length_max;
    // Elements of all vectors, with their padding.
    u32 columns;
    // Whether positions are counted from the last one.
    u32 from_last;
    u32 reserved;
};

// The vector of a key of a sample with `length` keys, and also the key of a vector.
__device__ inline u32 counted(const Positions& p, u32 position, u32 length) {
    return p.from_last ? length - 1 - position : position;
}

// Grid: any number of blocks. A block takes a sample at a time.
template <class T>
__device__ inline void add_vectors(const Positions& p) {
    const u32 fours = p.width / VECTOR, samples = min(p.samples, *p.samples_count);
    for (u32 sample = blockIdx.x; sample < samples; sample += gridDim.x) {
        const u32 begin = p.offsets[sample], length = p.offsets[sample + 1] - begin;
        T* const keys = static_cast<T*>(p.keys) + u64(begin) * p.width;
        for (u32 i = threadIdx.x; i < length * fours; i += POSITIONS_THREADS) {
            const u32 vector = counted(p, i / fours, length), d = i % fours * VECTOR;
            if (vector >= p.length_max) continue;
            float4 key = load4(keys + i * VECTOR);
            add(key, load4(static_cast<const T*>(p.vectors) + vector * p.width + d));
            store4(keys + i * VECTOR, key);
        }
    }
}

// Grid: x over columns, y over slices, each of which has every gridDim.y-th sample. A thread takes four elements of a
// vector, so that a block reads most of a sample's gradients at once.
template <class T>
__device__ inline void sum_gradients(const Positions& p) {
    const u32 column = (blockIdx.x * POSITIONS_THREADS + threadIdx.x) * VECTOR;
    if (column >= p.columns) return;
    const u32 vector = column / p.width, d = column % p.width, samples = min(p.samples, *p.samples_count);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (u32 sample = blockIdx.y; sample < samples; sample += gridDim.y) {
        const u32 begin = p.offsets[sample], length = p.offsets[sample + 1] - begin;
        if (vector < min(length, p.length_max)) {
            const u64 position = begin + counted(p, vector, length);
            add(sum, load4(static_cast<const T*>(p.key_gradients) + position * p.width + d));
        }
    }
    store4(p.parts + u64(blockIdx.y) * p.columns + column, sum);
}

#define KERNELS(NAME, T)                                                                                             \
    extern "C" __global__ void __launch_bounds__(POSITIONS_THREADS)                                                  \
        positions_add_##NAME(const __grid_constant__ Positions p) {                                                  \
        add_vectors<T>(p);                                                                                           \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(POSITIONS_THREADS)                                                  \
        positions_gradient_##NAME(const __grid_constant__ Positions p) {                                             \
        sum_gradients<T>(p);                                                                                         \
    }

KERNELS(f32, float)
KERNELS(bf16, bf16)
KERNELS(f16, f16)
