// The state that a table's rows begin with, behind their weights.
//
// Writes 4 bytes a number of state, and reads the weights where they decide.
#include "optimizer.cuh"

struct BeginState {
    // [row][words], the first elements of a row its weights.
    float* rows;
    u64 rows_count;
    Rule rule;
    // Words of a row, and those in front of its state.
    u32 words;
    u32 weights;
};
static_assert(sizeof(BeginState) == 56);

// Grid: any.
extern "C" __global__ void __launch_bounds__(256) begin_state(const __grid_constant__ BeginState p) {
    const u32 states = p.words - p.weights;
    const u64 numbers = p.rows_count * states;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < numbers; i += u64(gridDim.x) * blockDim.x) {
        const u32 number = u32(i % states);
        float* row = p.rows + i / states * p.words;
        float state = p.rule.initial;
        // FTRL's z stands for the weight.
        if (p.rule.kind == FTRL && number < p.weights) state = __fmul_rn(-p.rule.damping, row[number]);
        row[p.weights + number] = state;
    }
}
