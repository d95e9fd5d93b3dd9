// Sums over the samples, column by column: gradients of biases and of the last layer.
//
// Pieces of equal length are summed first, then the pieces, both in a fixed order.
#include "element.cuh"

constexpr u32 PIECE = 256;
constexpr u32 ROWS = 8;

struct Columns {
    // [sample][stride]
    void* gradients;
    // Null, or the outputs [sample][outputs_stride] of the ReLU that the gradients go through: where an output is not
    // above 0, the gradient becomes 0.
    const void* outputs;
    // [piece][columns]
    float* parts;
    u32 samples;
    u32 columns;
    u32 stride;
    u32 outputs_stride;
};

// Grid: x over pieces, y over 128 columns.
template <class T>
__device__ inline void sum_columns(const Columns& p) {
    __shared__ float4 sums[ROWS][WARP];
    const u32 lane = threadIdx.x % WARP, row = threadIdx.x / WARP;
    const u32 column = (blockIdx.y * WARP + lane) * VECTOR;
    const u32 end = min((blockIdx.x + 1) * PIECE, p.samples);
    float4 sum = make_float4(0, 0, 0, 0);
    if (column < p.columns) {
#pragma unroll 4
        for (u32 sample = blockIdx.x * PIECE + row; sample < end; sample += ROWS) {
            T* address = static_cast<T*>(p.gradients) + u64(sample) * p.stride + column;
            float4 values = load4(address);
            if (p.outputs != nullptr) {
                const T* outputs = static_cast<const T*>(p.outputs) + u64(sample) * p.outputs_stride + column;
                values = where_positive(values, load4(outputs));
                store4(address, values);
            }
            add(sum, values);
        }
    }
    sums[row][lane] = sum;
    __syncthreads();
    if (row == 0 && column < p.columns) {
        for (u32 other = 1; other < ROWS; other++) add(sum, sums[other][lane]);
        store4(p.parts + u64(blockIdx.x) * p.columns + column, sum);
    }
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP) columns_f32(const __grid_constant__ Columns p) {
    sum_columns<float>(p);
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP) columns_bf16(const __grid_constant__ Columns p) {
    sum_columns<bf16>(p);
}

extern "C" __global__ void __launch_bounds__(ROWS * WARP) columns_f16(const __grid_constant__ Columns p) {
    sum_columns<f16>(p);
}

struct Total {
    // [piece][columns]
    const float* parts;
    // [columns]
    float* sums;
    u32 pieces;
    u32 columns;
};

// Pieces that are summed in parallel.
constexpr u32 TOTAL_ROWS = 32;

// Grid: over 32 columns.
extern "C" __global__ void __launch_bounds__(TOTAL_ROWS* WARP) columns_total(const __grid_constant__ Total p) {
    __shared__ float sums[TOTAL_ROWS][WARP];
    const u32 lane = threadIdx.x % WARP, row = threadIdx.x / WARP, column = blockIdx.x * WARP + lane;
    float sum = 0;
    if (column < p.columns) {
#pragma unroll 8
        for (u32 piece = row; piece < p.pieces; piece += TOTAL_ROWS) sum += p.parts[u64(piece) * p.columns + column];
    }
    sums[row][lane] = sum;
    __syncthreads();
    if (row == 0 && column < p.columns) {
        for (u32 other = 1; other < TOTAL_ROWS; other++) sum += sums[other][lane];
        p.sums[column] = sum;
    }
}
