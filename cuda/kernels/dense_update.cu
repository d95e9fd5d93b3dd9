// The update of the dense parameters, and of their copies in the element type of activations.
//
// Reads 8 bytes per parameter and 4 per number of state, writes 4 and 4, and 2 more for a bf16 copy.
#include "optimizer.cuh"

struct DenseUpdate {
    float* parameters;
    const float* gradients;
    // Null if the rule has no such state.
    float* first;
    float* second;
    // Null if there are no copies.
    void* copies;
    const Rate* rate;
    // Factor of the gradients; null for 1.
    const float* scale;
    // If this is not 0, nothing is written.
    const u32* stop;
    Rule rule;
    u32 count;
    u32 reserved;
};

template <class T, u32 KIND>
__device__ inline void update_all(const DenseUpdate& p) {
    if (*p.stop != 0) return;
    const Rate rate = *p.rate;
    const float scale = p.scale == nullptr ? 1.0f : *p.scale;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += gridDim.x * blockDim.x) {
        float parameter = p.parameters[i], first = 0, second = 0;
        if (STATES<KIND> > 0) first = p.first[i];
        if (STATES<KIND> > 1) second = p.second[i];
        apply<KIND>(p.rule, rate, __fmul_rn(p.gradients[i], scale), parameter, first, second);
        p.parameters[i] = parameter;
        if (STATES<KIND> > 0) p.first[i] = first;
        if (STATES<KIND> > 1) p.second[i] = second;
        if (p.copies != nullptr) store(static_cast<T*>(p.copies) + i, parameter);
    }
}

template <class T>
__device__ inline void update(const DenseUpdate& p) {
    switch (p.rule.kind) {
#define UPDATE_ALL(KIND) \
    case KIND: return update_all<T, KIND>(p);
        RULES_OF_ELEMENTS(UPDATE_ALL)
#undef UPDATE_ALL
    }
}

// Grid: any.
extern "C" __global__ void __launch_bounds__(256) dense_update_f32(const __grid_constant__ DenseUpdate p) {
    update<float>(p);
}

extern "C" __global__ void __launch_bounds__(256) dense_update_bf16(const __grid_constant__ DenseUpdate p) {
    update<bf16>(p);
}

extern "C" __global__ void __launch_bounds__(256) dense_update_f16(const __grid_constant__ DenseUpdate p) {
    update<f16>(p);
}
