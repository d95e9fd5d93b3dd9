// Converts dense columns to the element type of layers and vectors, padding each sample with zeros.
//
// Reads 4 bytes per element.
#include "element.cuh"

struct DenseInput {
    // [sample][columns]
    const float* dense;
    // [sample][stride]
    void* output;
    u32 samples;
    u32 columns;
    // Elements written per sample.
    u32 filled;
    u32 stride;
};

template <class T>
__device__ inline void convert(const DenseInput& p) {
    const u32 elements = p.samples * p.filled;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += gridDim.x * blockDim.x) {
        const u32 sample = i / p.filled, column = i % p.filled;
        const float value = column < p.columns ? p.dense[u64(sample) * p.columns + column] : 0.0f;
        store(static_cast<T*>(p.output) + u64(sample) * p.stride + column, value);
    }
}

extern "C" __global__ void __launch_bounds__(256) dense_input_f32(const __grid_constant__ DenseInput p) {
    convert<float>(p);
}

extern "C" __global__ void __launch_bounds__(256) dense_input_bf16(const __grid_constant__ DenseInput p) {
    convert<bf16>(p);
}

extern "C" __global__ void __launch_bounds__(256) dense_input_f16(const __grid_constant__ DenseInput p) {
    convert<f16>(p);
}
