// Converts to fp8 what fp8 products read but did not write: activations, gradients and weights.
//
// Per bf16 element two bytes are read and two written; per weight four and two.
#include "fp8.cuh"

constexpr u32 QUANTIZE_THREADS = 256;

// Tile of activations.
constexpr u32 TILE_SAMPLES = 128;
constexpr u32 TILE_COLUMNS = 128;
// Columns per thread, and threads per sample.
constexpr u32 EACH = 8;
constexpr u32 ACROSS = TILE_COLUMNS / EACH;

struct Fp8Quantize {
    // [sample][stride]
    const bf16* values;
    // [sample][rows_stride]
    u8* rows;
    // [column][turned_stride]
    u8* turned;
    Fp8Scaling* scaling;
    u32 samples;
    // A multiple of 8.
    u32 columns;
    u32 stride;
    // The samples rounded up to a multiple of 16, or more.
    u32 turned_stride;
    // Whether a backward pass follows, which needs transposed copies and updated scalings.
    u32 learns;
    u32 rows_stride;
};

// Grid: x over 128 samples, y over 128 columns. A thread has eight columns of four samples that make one word of a
// transposed row, several times over.
extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS) fp8_quantize(const __grid_constant__ Fp8Quantize p) {
    constexpr u32 WORDS = TILE_SAMPLES / 4, TIMES = WORDS * ACROSS / QUANTIZE_THREADS;
    __shared__ u32 turned[TILE_COLUMNS][WORDS + 1];
    const u32 own = threadIdx.x % ACROSS * EACH, column = blockIdx.y * TILE_COLUMNS + own;
    const float scale = p.scaling->scale;
    uint4 values[TIMES][4];
#pragma unroll
    for (u32 time = 0; time < TIMES; time++) {
        const u32 first = blockIdx.x * TILE_SAMPLES + turned_sample(threadIdx.x / ACROSS + time * (WORDS / TIMES));
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 sample = first + i / 2 * TURNED_FAR + i % 2;
            values[time][i] = make_uint4(0, 0, 0, 0);
            if (sample >= p.samples || column >= p.columns) continue;
            values[time][i] = *reinterpret_cast<const uint4*>(p.values + u64(sample) * p.stride + column);
        }
    }
    float largest = 0;
#pragma unroll
    for (u32 time = 0; time < TIMES; time++) {
        const u32 word = threadIdx.x / ACROSS + time * (WORDS / TIMES);
        uint2 bytes[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 sample = blockIdx.x * TILE_SAMPLES + turned_sample(word) + i / 2 * TURNED_FAR + i % 2;
            const uint4 from = values[time][i];
            const float4 low = unpacked(make_uint2(from.x, from.y)), high = unpacked(make_uint2(from.z, from.w));
            float scaled[EACH] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (u32 k = 0; k < EACH; k++) {
                scaled[k] *= scale;
                largest = fmaxf(largest, fabsf(scaled[k]));
            }
            bytes[i] = make_uint2(packed_fp8(scaled[0], scaled[1], scaled[2], scaled[3]),
                                  packed_fp8(scaled[4], scaled[5], scaled[6], scaled[7]));
            if (sample >= p.samples || column >= p.columns) continue;
            *reinterpret_cast<uint2*>(p.rows + u64(sample) * p.rows_stride + column) = bytes[i];
        }
#pragma unroll
        for (u32 k = 0; k < EACH; k++) {
            const u32 pick = k % 4 | (k % 4 + 4) << 4;
            const auto word_of = [&](u32 i) { return k < 4 ? bytes[i].x : bytes[i].y; };
            const u32 low = __byte_perm(word_of(0), word_of(1), pick), high = __byte_perm(word_of(2), word_of(3), pick);
            turned[own + k][word] = __byte_perm(low, high, 0x5410);
        }
    }
    if (p.learns == 0) return;
    // Contains a barrier of the block.
    observe_in_block<QUANTIZE_THREADS>(p.scaling, largest);
    const u32 lane = threadIdx.x % WARP, at = blockIdx.x * TILE_SAMPLES + lane * 4;
    for (u32 row = threadIdx.x / WARP; row < TILE_COLUMNS; row += QUANTIZE_THREADS / WARP) {
        const u32 of = blockIdx.y * TILE_COLUMNS + row;
        if (of >= p.columns || at >= p.turned_stride) break;
        *reinterpret_cast<u32*>(p.turned + u64(of) * p.turned_stride + at) = turned[row][lane];
    }
}

// A layer's weights.
struct Fp8Weights {
    // [output][input]
    const float* values;
    // [output][input] and [input][output], the rows of both in pairs.
    u8* rows;
    u8* turned;
    Fp8Scaling* scaling;
    // Multiples of 16.
    u32 outputs;
    u32 inputs;
};

struct Fp8QuantizeWeights {
    // One per y of the grid.
    const Fp8Weights* layers;
};

// Inputs and outputs of a tile of weights.
constexpr u32 TILE = 64;

// Grid: x over tiles, as many as the largest layer has; y over layers.
extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS)
    fp8_quantize_weights(const __grid_constant__ Fp8QuantizeWeights p) {
    __shared__ __align__(4) u8 turned[TILE][TILE + 4];
    const Fp8Weights& layer = p.layers[blockIdx.y];
    const u32 across = (layer.inputs + TILE - 1) / TILE, down = (layer.outputs + TILE - 1) / TILE;
    if (blockIdx.x >= across * down) return;
    const u32 output = blockIdx.x / across * TILE, input = blockIdx.x % across * TILE;
    const u32 offset = threadIdx.x % 16 * 4;
    const float scale = layer.scaling->scale;
    float largest = 0;
    for (u32 row = threadIdx.x / 16; row < TILE; row += QUANTIZE_THREADS / 16) {
        if (output + row >= layer.outputs || input + offset >= layer.inputs) continue;
        const float4 values = load4(layer.values + u64(output + row) * layer.inputs + input + offset);
        const float scaled[4] = {values.x * scale, values.y * scale, values.z * scale, values.w * scale};
#pragma unroll
        for (u32 k = 0; k < 4; k++) largest = fmaxf(largest, fabsf(scaled[k]));
        const u32 bytes = packed_fp8(scaled[0], scaled[1], scaled[2], scaled[3]);
        *reinterpret_cast<u32*>(layer.rows + u64(paired(output + row)) * layer.inputs + input + offset) = bytes;
#pragma unroll
        for (u32 k = 0; k < 4; k++) turned[offset + k][row] = u8(bytes >> k * 8);
    }
    // Contains a barrier of the block.
    observe_in_block<QUANTIZE_THREADS>(layer.scaling, largest);
    for (u32 row = threadIdx.x / 16; row < TILE; row += QUANTIZE_THREADS / 16) {
        if (input + row >= layer.inputs || output + offset >= layer.outputs) continue;
        *reinterpret_cast<u32*>(layer.turned + u64(paired(input + row)) * layer.outputs + output + offset) =
            *reinterpret_cast<const u32*>(&turned[row][offset]);
    }
}
