// Initializes the optimizer state of a table's rows, which is stored behind their weights.
//
// Writes 4 bytes per number of state, and reads the weights if the state depends on them (FTRL).
#include "dtype.cuh"
#include "optimizer.cuh"

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
        float state = p.rule.initial;
        // FTRL's z is chosen so that it yields the weight.
        if (p.rule.kind == FTRL && number < p.dim) {
            const float4 weights = load_weights(row, number, p.dtype);
            const float weight = (&weights.x)[number % VECTOR];
            state = __fmul_rn(-p.rule.damping, weight);
        }
        row[p.weights + number] = state;
    }
}
