// The scales of tensors in fp8, from the largest magnitudes of the last steps.
#include "fp8.cuh"
#include "guard.cuh"

struct Fp8Scalings {
    Fp8Scaling* tensors;
    Guard* guard;
    // [rank][tensor]: the largest magnitudes of a step; null with one rank.
    double* of_ranks;
    u32 count;
    u32 rank;
    u32 ranks;
    u32 reserved;
};
static_assert(sizeof(Fp8Scalings) == 40);

// Writes this rank's largest magnitudes, and zeros for the other ranks: the all-reduced array then has those of all
// ranks. Grid: one block.
extern "C" __global__ void __launch_bounds__(256) fp8_tell(const __grid_constant__ Fp8Scalings p) {
    for (u32 i = threadIdx.x; i < p.ranks * p.count; i += blockDim.x) {
        const float largest = __uint_as_float(p.tensors[i % p.count].largest);
        p.of_ranks[i] = i / p.count == p.rank ? largest : 0;
    }
}

// Conversion clamps values to the range of fp8, so an infinite value is visible only here. With several ranks, a
// tensor's largest magnitude is the maximum over them. Grid: one block.
extern "C" __global__ void __launch_bounds__(256) fp8_check(const __grid_constant__ Fp8Scalings p) {
    for (u32 i = threadIdx.x; i < p.count; i += blockDim.x) {
        u32 largest = p.tensors[i].largest;
        for (u32 rank = 0; p.of_ranks != nullptr && rank < p.ranks; rank++) {
            // Without a sign, the bits of floats order as the floats do, and NaN is the largest.
            largest = max(largest, __float_as_uint(float(p.of_ranks[rank * p.count + i])) & 0x7fffffff);
        }
        p.tensors[i].largest = largest;
        if (!isfinite(__uint_as_float(largest))) atomicOr(&p.guard->found, WRONG_VECTORS);
    }
}

// The binary exponent of a positive number, as frexp defines it.
__device__ inline int exponent(float value) {
    int exponent;
    frexpf(value, &exponent);
    return exponent;
}

// Ends a step: if it was applied, scales follow from the recorded magnitudes. The largest magnitude of the last steps
// is scaled to between 112 and 224, so that values may double before they are clamped to 448. Grid: one block.
extern "C" __global__ void __launch_bounds__(256) fp8_rescale(const __grid_constant__ Fp8Scalings p) {
    const bool written = p.guard->stop == 0;
    for (u32 i = threadIdx.x; i < p.count; i += blockDim.x) {
        Fp8Scaling& tensor = p.tensors[i];
        if (written) {
            tensor.history[tensor.steps++ % FP8_HISTORY] = __uint_as_float(tensor.largest) * tensor.inverse;
            float largest = 0;
            for (u32 step = 0; step < FP8_HISTORY; step++) largest = fmaxf(largest, tensor.history[step]);
            // If all values were 0, or no scale brings the magnitude near 1, the scale stays.
            if (largest >= 1e-30f && largest <= 1e30f) {
                const int power = 8 - exponent(largest / 0.875f);
                tensor.scale = ldexpf(1, power);
                tensor.inverse = ldexpf(1, -power);
            }
        }
        tensor.largest = 0;
    }
}
