// Gradient descent on the dense parameters, and their copies in bf16.
//
// Reads 8 bytes a parameter and writes 4, and 2 more for a copy.
#include "element.cuh"

struct DenseSgd {
    float* parameters;
    const float* gradients;
    // Null where none are kept.
    bf16* copies;
    const Step* step;
    // Nothing is written where this is not 0.
    const u32* stop;
    u32 count;
    u32 reserved;
};
static_assert(sizeof(DenseSgd) == 48);

extern "C" __global__ void __launch_bounds__(256) dense_sgd(const __grid_constant__ DenseSgd p) {
    if (*p.stop != 0) return;
    const float rate = p.step->dense.rate;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += gridDim.x * blockDim.x) {
        // Rounded as on the CPU: no fused multiplication and subtraction.
        const float value = __fsub_rn(p.parameters[i], __fmul_rn(rate, p.gradients[i]));
        p.parameters[i] = value;
        if (p.copies != nullptr) p.copies[i] = __float2bfloat16_rn(value);
    }
}
