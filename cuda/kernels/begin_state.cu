// Initializes the optimizer state of a table's rows, which is stored behind their weights.
//
// Writes 4 bytes per number of state, and reads the weights if the state depends on them (FTRL).
#include "shard.cuh"

struct BeginState {
    // [row][words]: weights, then state.
    float* rows;
    u64 rows_count;
    Rule rule;
    // Words of a row, words before its state, and elements including padding.
    u32 words;
    u32 weights;
    u32 dim;
    // Type of the weights: a `Dtype`.
    u32 dtype;
};

// Grid: any.
extern "C" __global__ void __launch_bounds__(256) begin_state(const __grid_constant__ BeginState p) {
    const u32 states = p.words - p.weights;
    const u64 numbers = p.rows_count * states;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < numbers; i += u64(gridDim.x) * blockDim.x) {
        const u32 number = u32(i % states);
        float* row = p.rows + i / states * p.words;
        row[p.weights + number] = begun_state(p.rule, row, number, p.dim, p.dtype);
    }
}
